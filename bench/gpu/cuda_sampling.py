# SPDX-License-Identifier: Apache-2.0
"""Sampling on CUDA beside torch's sort and FlashInfer: one row, 64 and 512 rows of 128,256 logits, graph replay; of 64
rows also five drafted tokens verified, beside the same steps in torch.

Prints the least and the median time of each case in microseconds, and the share that one sum of the logits takes.
"""

from __future__ import annotations

import statistics
import sys

import anyop
import torch

V, ROUNDS = 128_256, 30


def timed(call) -> tuple[float, float]:
    """Minimum and median of a captured call, the second cache flushed before each."""
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    times = []
    for _ in range(ROUNDS):
        flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return min(times), statistics.median(times)


def by_sort(logits, k, p):
    """top-k, then top-p, as in many a serving loop."""
    values, tokens = logits.sort(-1, descending=True)
    values[:, k:] = -torch.inf
    probs = values.softmax(-1)
    probs[probs.cumsum(-1) - probs >= p] = 0
    noise = torch.empty_like(probs).exponential_()
    return tokens.gather(-1, (probs / noise).argmax(-1, keepdim=True))


def chain_by_torch(draft, tokens, target):
    """verify_chain's tokens by torch's operators, without a wait."""
    B, N, V = draft.shape
    p, q = (probs[:, :N].gather(2, tokens[..., None])[..., 0] for probs in (draft, target))
    count = (torch.rand_like(p) * p < q).long().cumprod(1).sum(1, keepdim=True)
    at = count[..., None].expand(B, 1, V)
    taken = draft.gather(1, at.clamp(max=N - 1))[:, 0] * (count < N)
    rest = (target.gather(1, at)[:, 0] - taken).clamp_(min=0)
    last = (rest / torch.empty_like(rest).exponential_()).argmax(-1, keepdim=True)
    steps = torch.arange(N + 1, device=tokens.device)
    given = torch.cat([tokens, last], 1)
    return torch.where(steps < count, given, torch.where(steps == count, last, -1))


def chains(B, N=5):
    """Five tokens of a draft that is near the target."""
    target = (torch.randn(B, N + 1, V, device="cuda") * 3).softmax(-1)
    draft = target[:, :N].sqrt()
    draft /= draft.sum(-1, keepdim=True)
    noise = torch.empty_like(draft).exponential_()
    tokens = (draft / noise).argmax(-1)
    seed, offset = torch.arange(B, device="cuda"), torch.zeros(B, dtype=torch.int64, device="cuda")
    yield "verify_chain", lambda: anyop.verify_chain(draft, tokens, target, seed, offset)
    yield "torch: verify_chain", lambda: chain_by_torch(draft, tokens, target)
    try:
        import flashinfer.sampling as peer
    except ImportError:
        return
    few = tokens.int()
    yield "flashinfer: chain", lambda: peer.chain_speculative_sampling(draft, few, target)


def cases(B):
    logits = torch.randn(B, V, device="cuda") * 3
    probs = logits.softmax(-1)
    seed, offset = torch.arange(B, device="cuda"), torch.zeros(B, dtype=torch.int64, device="cuda")
    k = torch.full((B,), 50, dtype=torch.int32, device="cuda")
    p = torch.full((B,), 0.9, device="cuda")
    mask = torch.zeros(B, V, dtype=torch.bool, device="cuda")
    counts = torch.zeros(B, V, dtype=torch.int32, device="cuda")
    bits = torch.full((B, -(-V // 32)), -1, dtype=torch.int32, device="cuda")
    greatest = anyop.sample(logits, seed, offset, top_k=torch.ones_like(k))[0]
    assert torch.equal(greatest.long(), logits.argmax(-1))

    def sample(**given):
        return lambda: anyop.sample(logits, seed, offset, **given)

    yield "sample", sample(logprob=False)
    yield "sample, logprob", sample()
    yield "sample top_k top_p", sample(top_k=k, top_p=p, logprob=False)
    yield "sample top_k top_p, logprob", sample(top_k=k, top_p=p)
    yield "sample top_p", sample(top_p=p, logprob=False)
    yield "sample_probs top_p", lambda: anyop.sample_probs(probs, seed, offset, top_p=p)
    yield "top_k_mask", lambda: anyop.top_k_mask(logits, k)
    yield "top_p_renorm", lambda: anyop.top_p_renorm(probs, p)
    yield "penalize", lambda: anyop.penalize(logits, mask, counts, k.float(), p, p)
    yield "token_bitmask", lambda: anyop.token_bitmask(logits, bits)
    yield "torch: sort, top_k, top_p", lambda: by_sort(logits, 50, 0.9)
    try:
        import flashinfer.sampling as peer
    except ImportError:
        print("flashinfer is not here", file=sys.stderr)
        return
    yield "flashinfer: top_k top_p", lambda: peer.top_k_top_p_sampling_from_logits(logits, k, p)
    yield "flashinfer: top_p_renorm", lambda: peer.top_p_renorm_probs(probs, p)


def main():
    print(torch.cuda.get_device_name(), torch.__version__)
    for B in (1, 64, 512):
        logits = torch.empty(B, V, device="cuda")
        read, _ = timed(logits.sum)
        print(f"B={B}: sum of the logits {read:.1f} us")
        for name, call in cases(B):
            least, median = timed(call)
            print(f"B={B} {name}: {least:.1f} {median:.1f} us, {read / least:.0%} of a sum")
    for name, call in chains(64):
        try:
            least, median = timed(call)
        except Exception as error:  # a peer that no graph can hold
            print(f"left out: {name}: {type(error).__name__}: {str(error)[:200]}")
            continue
        print(f"64x5x{V} {name}: {least:.1f} {median:.1f} us")


if __name__ == "__main__":
    main()
