# SPDX-License-Identifier: Apache-2.0
"""Times attention on CUDA beside PyTorch's kernels, FlashAttention 3 and 4 and FlashInfer, in TFLOP/s.

    python bench/gpu/cuda_attention.py [--only dense,varlen,backward,...] [--rounds 15] [--implementations cuda,...]

Each side is captured into a CUDA graph and checked against float64 in a few queries of two heads; ours is run twice for
the same bits. Then all sides take turns, each after 20 ms of idling with the second cache filled with other bytes.
FLOPs are 4 S T D for each head, half of that under a causal bound; what reads and writes alone is judged by its bytes.
Other projects' packages are used where they can be imported. One line of JSON for each side goes to
bench/results/cuda_attention.jsonl.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cuda_products import paced_turns
from cuda_rows import FLUSH_BYTES, capture, ceiling, device
from harness import environment, write

try:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.bias import causal_lower_right
except ImportError:
    torch = None

# B, S (of queries and keys), H, G, D, E; causal; window_left.
DENSE = [
    (1, 8192, 32, 8, 128, 128, True, -1),
    (4, 4096, 64, 8, 128, 128, True, -1),
    (1, 16384, 64, 8, 128, 128, True, -1),
    (1, 16384, 64, 8, 128, 128, False, -1),
    (1, 8192, 64, 8, 64, 64, True, -1),
    (1, 8192, 128, 128, 192, 128, True, -1),
    (1, 8192, 64, 8, 64, 64, True, 127),
]
LENGTHS = [128, 16384, 512, 2048, 8192, 1024, 4096, 256]
CHECKED = 16  # queries, the last ones
WRONG: list[str] = []


@dataclass
class Case:
    """`exact` gives what `part` takes of a result, in float64."""

    operator: str
    shape: str
    call: Callable
    peers: dict[str, Callable]
    exact: Callable
    part: Callable
    flops: float = 0.0
    bytes: float = 0.0
    limit: float = 8e-3


SEEDS = itertools.count()


def normal(*shape: int) -> Any:
    """Never the same numbers twice: of equal queries and keys each query sees itself alone."""
    generator = torch.Generator("cuda").manual_seed(next(SEEDS))
    return torch.randn(*shape, generator=generator, device="cuda").bfloat16()


def attend_exactly(q: Any, k: Any, v: Any, causal: bool, left: int) -> Any:
    """The last queries of heads first and last, (2, queries, E); q, k and v are (S, H, D)."""
    S, T, group = len(q), len(k), q.shape[1] // k.shape[1]
    found = []
    for head in (0, q.shape[1] - 1):
        rows, keys = q[-CHECKED:, head].double(), k[:, head // group].double()
        scores = rows @ keys.t() / q.shape[2] ** 0.5
        place = torch.arange(T - min(S, CHECKED), T, device="cuda")[:, None]
        others = torch.arange(T, device="cuda")
        hidden = (others > place) & causal | (others < place - left) & (left >= 0)
        found.append(
            scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v[:, head // group].double()
        )
    return torch.stack(found)


def imported(*names: str) -> Any:
    """The first of these modules that is there, else None."""
    for name in names:
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    return None


def by_torch(backend: Any, call: Callable) -> Callable:
    def run() -> Any:
        with sdpa_kernel(backend):
            return call()

    return run


def by_flex(q: Any, k: Any, v: Any, left: int) -> Callable:
    """A window by torch's Triton kernel, compiled, of the blocks that its mask leaves."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    S = q.shape[2]
    seen = create_block_mask(
        lambda b, h, s, t: (s >= t) & (s - t <= left), None, None, S, S, device=q.device
    )
    return partial(torch.compile(flex_attention), q, k, v, block_mask=seen, enable_gqa=True)


def dense(anyop: Any) -> Iterator[Case]:
    for B, S, H, G, D, E, causal, left in DENSE:
        q, k, v = normal(B, S, H, D), normal(B, S, G, D), normal(B, S, G, E)
        heads = [x.transpose(1, 2) for x in (q, k, v)]
        sdpa = partial(
            torch.nn.functional.scaled_dot_product_attention,
            *heads,
            is_causal=causal,
            enable_gqa=True,
        )
        peers: dict[str, Callable] = {}
        if left < 0:
            for name in ("CUDNN_ATTENTION", "FLASH_ATTENTION"):
                peers[f"torch {name[:5].lower()}"] = by_torch(getattr(SDPBackend, name), sdpa)
        else:
            peers["torch flex"] = by_flex(*heads, left)
        window = (left, 0 if left >= 0 else -1)
        if fa3 := imported("flash_attn_interface", "fa3_fwd_interface"):
            peers["fa3"] = partial(fa3.flash_attn_func, q, k, v, causal=causal, window_size=window)
        if fa4 := imported("flash_attn.cute"):
            bounds = {} if left < 0 else {"window_size": (left, 0)}
            peers["fa4"] = partial(fa4.flash_attn_func, q, k, v, causal=causal, **bounds)
        pairs = S * S / (2 if causal else 1) if left < 0 else S * (left + 1)
        yield Case(
            "attention", f"{B}x{S}x{H}/{G}x{D}/{E}" + " causal" * causal + f" window {left + 1}" * (left >= 0),
            call=partial(anyop.attention, *heads, causal=causal, window_left=left),
            peers=peers, exact=partial(attend_exactly, q[-1], k[-1], v[-1], causal, left),
            part=partial(last_of_dense, H=H), flops=2.0 * B * H * pairs * (D + E),
        )  # fmt: skip


def last_of_dense(out: Any, H: int) -> Any:
    """Of (B, H, S, E), or of the others' (B, S, H, E)."""
    out = out[0] if isinstance(out, tuple) else out
    one = out[-1] if out.shape[1] == H else out[-1].transpose(0, 1)
    return one[[0, H - 1], -CHECKED:]


def varlen(anyop: Any) -> Iterator[Case]:
    H, G, D = 32, 8, 128
    ends = torch.tensor([0, *LENGTHS], device="cuda").cumsum(0).int()
    total, last = sum(LENGTHS), LENGTHS[-1]
    q, k, v = normal(total, H, D), normal(total, G, D), normal(total, G, D)
    peers: dict[str, Callable] = {}
    if fa3 := imported("flash_attn_interface", "fa3_fwd_interface"):
        peers["fa3"] = partial(
            fa3.flash_attn_varlen_func, q, k, v, cu_seqlens_q=ends, cu_seqlens_k=ends,
            max_seqlen_q=max(LENGTHS), max_seqlen_k=max(LENGTHS), causal=True,
        )  # fmt: skip
    if fa4 := imported("flash_attn.cute"):
        peers["fa4"] = partial(
            fa4.flash_attn_varlen_func, q, k, v, cu_seqlens_q=ends, cu_seqlens_k=ends,
            max_seqlen_q=max(LENGTHS), max_seqlen_k=max(LENGTHS), causal=True,
        )  # fmt: skip
    if flashinfer := imported("flashinfer"):
        workspace = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")
        wrapper.plan(ends, ends, H, G, D, causal=True, q_data_type=torch.bfloat16)
        peers["flashinfer"] = partial(wrapper.run, q, k, v)
    exact = partial(attend_exactly, q[-last:], k[-last:], v[-last:], True, -1)

    def part(out: Any) -> Any:
        out = out[0] if isinstance(out, tuple) else out
        return out[-CHECKED:, [0, H - 1]].transpose(0, 1)

    yield Case(
        "attention_varlen", f"{len(LENGTHS)} sequences of {min(LENGTHS)} to {max(LENGTHS)}, {H}/{G}x{D} causal",
        call=partial(anyop.attention_varlen, q, k, v, ends, ends, causal=True), peers=peers, exact=exact, part=part,
        flops=4.0 * H * D * sum(n * n / 2 for n in LENGTHS),
    )  # fmt: skip


def slopes_exactly(grad: Any, q: Any, k: Any, v: Any, causal: bool) -> Any:
    """grad_q of the last queries of heads first and last, (2, queries, D); q is (S, H, D), k (T, G, D)."""
    S, T, group = len(q), len(k), q.shape[1] // k.shape[1]
    place = torch.arange(T - min(S, CHECKED), T, device="cuda")[:, None]
    hidden = (torch.arange(T, device="cuda") > place) & causal
    found = []
    for head in (0, q.shape[1] - 1):
        rows, to = q[-CHECKED:, head].double(), grad[-CHECKED:, head].double()
        keys, values = (x[:, head // group].double() for x in (k, v))
        factor = q.shape[2] ** -0.5
        weights = (rows @ keys.t() * factor).masked_fill(hidden, -torch.inf).softmax(-1)
        dots = to @ values.t()
        found.append(weights * (dots - (weights * dots).sum(-1, keepdim=True)) @ keys * factor)
    return torch.stack(found)


def backward(anyop: Any) -> Iterator[Case]:
    """Gradients of q, k and v; 2.5 times the forward's FLOPs."""
    for B, S, H, G, D, E, causal, _ in [DENSE[0], DENSE[1], DENSE[4], DENSE[5]]:
        q, k, v, grad = (
            normal(B, S, H, D),
            normal(B, S, G, D),
            normal(B, S, G, E),
            normal(B, S, H, E),
        )
        heads = [x.transpose(1, 2) for x in (q, k, v)]
        given = [grad.transpose(1, 2), *heads, *anyop.attention_with_lse(*heads, causal=causal)]
        peers: dict[str, Callable] = {}
        for name in ("CUDNN_ATTENTION", "FLASH_ATTENTION"):
            with contextlib.suppress(Exception):
                leaves = [x.detach().requires_grad_() for x in heads]
                with sdpa_kernel(getattr(SDPBackend, name)):
                    out = torch.nn.functional.scaled_dot_product_attention(
                        *leaves, is_causal=causal, enable_gqa=True
                    )
                call = partial(torch.autograd.grad, out, leaves, given[0], retain_graph=True)
                call()  # what a graph cannot have
                peers[f"torch {name[:5].lower()}"] = call
        yield Case(
            "attention_backward", f"{B}x{S}x{H}/{G}x{D}/{E}" + " causal" * causal,
            call=partial(anyop.attention_backward, *given, causal=causal), peers=peers,
            exact=partial(slopes_exactly, grad[-1], q[-1], k[-1], v[-1], causal),
            part=lambda found, H=H: found[0][-1][[0, H - 1], -CHECKED:],
            flops=5.0 * B * H * S * S / (2 if causal else 1) * (D + E),
        )  # fmt: skip


def merge(anyop: Any) -> Iterator[Case]:
    flashinfer = imported("flashinfer")
    for rows in (16384, 64):
        outs = [normal(rows, 32, 128) for _ in range(2)]
        lses = [torch.randn(rows, 32, device="cuda") for _ in range(2)]
        shares = torch.stack(lses).double().softmax(0)[..., None]
        peers = {}
        if flashinfer:  # its logarithms are of base 2
            twos = [lse * 1.4426950408889634 for lse in lses]
            peers["flashinfer"] = partial(
                flashinfer.merge_state, outs[0], twos[0], outs[1], twos[1]
            )
        yield Case(
            "merge_states", f"2x{rows}x32x128", call=partial(anyop.merge_states, outs, lses), peers=peers,
            exact=lambda s=shares, o=outs: (s * torch.stack(o).double()).sum(0)[:CHECKED],
            part=lambda found: found[0][:CHECKED], bytes=rows * 32 * (3 * 256 + 3 * 4.0),
        )  # fmt: skip


def append(anyop: Any) -> Iterator[Case]:
    for rows in (16384, 64):
        caches = [normal(2048, 16, 8, 128) for _ in range(2)]
        k, v = normal(rows, 8, 128), normal(rows, 8, 128)
        slots = torch.randperm(2048 * 16, device="cuda")[:rows].int()

        def call(caches=caches, k=k, v=v, slots=slots):
            anyop.append_kv(*caches, k, v, slots)
            return caches[0]

        def part(cache, slots=slots):
            return cache.reshape(-1, 8, 128)[slots[:CHECKED].long()]

        yield Case(
            "append_kv", f"{rows}x8x128", call=call, peers={}, part=part, bytes=rows * 8 * 128 * 8.0, limit=0,
            exact=lambda k=k: k[:CHECKED].double(),
        )  # fmt: skip


# B, lengths of all or of each, H, G, dtype of the cache.
DECODED = [
    (64, 8192, 32, 8, "bfloat16"),
    (16, 32768, 64, 8, "bfloat16"),
    (1, 131072, 64, 8, "bfloat16"),
    (64, (128, 32768), 32, 8, "bfloat16"),
    (64, 8192, 32, 8, "float8_e4m3fn"),
    (1, 1024, 32, 8, "bfloat16"),
]


def paged(anyop: Any) -> Iterator[Case]:
    """Decoding, a query each; bytes are those of the keys and values read."""
    P, D = 16, 128
    flashinfer = imported("flashinfer")
    for B, length, H, G, cached in DECODED:
        lengths = [length] * B
        if isinstance(length, tuple):
            lengths = [
                round(length[0] * (length[1] / length[0]) ** (b / (B - 1))) for b in range(B)
            ]
        counts = [-(-n // P) for n in lengths]
        pages = torch.randperm(sum(counts), device="cuda").int()
        table = torch.zeros(B, max(counts), dtype=torch.int32, device="cuda")
        starts = torch.tensor([0, *counts], device="cuda").cumsum(0)
        for b, count in enumerate(counts):
            table[b, :count] = pages[starts[b] : starts[b] + count]
        kind = getattr(torch, cached)
        caches = [normal(len(pages), P, G, D + i)[..., :D].to(kind).contiguous() for i in (0, 8)]
        q, device_lengths = normal(B, H, D), torch.tensor(lengths, device="cuda").int()
        own = [x[table[-1, : counts[-1]].long()].flatten(0, 1)[: lengths[-1]] for x in caches]
        peers: dict[str, Callable] = {}
        if flashinfer:
            wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
                torch.empty(256 << 20, dtype=torch.uint8, device="cuda"), use_tensor_cores=True
            )
            ends = torch.tensor([(n - 1) % P + 1 for n in lengths], device="cuda").int()
            wrapper.plan(
                starts.int(), pages, ends, H, G, D, P, q_data_type=torch.bfloat16, kv_data_type=kind
            )
            peers["flashinfer"] = partial(wrapper.run, q, tuple(caches))
        named = f"{length[0]} to {length[1]}" if isinstance(length, tuple) else str(length)
        yield Case(
            "attention_paged", f"B{B} L{named} {H}/{G}x{D} {cached}",
            call=partial(anyop.attention_paged, q, *caches, table, device_lengths), peers=peers,
            exact=partial(attend_exactly, q[-1:], *own, False, -1),
            part=lambda out, H=H: (out[0] if isinstance(out, tuple) else out)[-1:, [0, H - 1]].transpose(0, 1),
            bytes=2.0 * sum(lengths) * G * D * kind.itemsize,
        )  # fmt: skip


# B, S queries of each sequence, T keys, the last queries' own among them; pages of P.
PREFILLED = [
    (1, 8192, 8192, 16), (1, 8192, 8192, 64), (1, 2048, 32768, 16), (1, 2048, 32768, 64),
    (8, 1024, 8192, 16), (8, 1024, 8192, 64), (8, 256, 8192, 16), (8, 64, 8192, 16),
]  # fmt: skip


def prefill(anyop: Any) -> Iterator[Case]:
    """Prompts and chunks behind what is in the cache; ours and torch's on the same keys as rows beside them."""
    H, G, D = 32, 8, 128
    flashinfer = imported("flashinfer")
    for B, S, T, P in PREFILLED:
        pages = torch.randperm(B * T // P, device="cuda").int()
        table, lengths = pages.reshape(B, -1), torch.full((B,), T, device="cuda").int()
        caches = [normal(len(pages), P, G, D + i)[..., :D].contiguous() for i in (0, 8)]
        q = normal(B * S, H, D)
        heads = [q.reshape(B, S, H, D).transpose(1, 2)]
        heads += [x[table.long()].reshape(B, T, G, D).transpose(1, 2) for x in caches]
        bound = {"causal": True, "offset": T - S}
        peers: dict[str, Callable] = {"anyop dense": partial(anyop.attention, *heads, **bound)}
        sdpa = torch.nn.functional.scaled_dot_product_attention
        bias = causal_lower_right(S, T)
        peers["torch flash"] = by_torch(
            SDPBackend.FLASH_ATTENTION, partial(sdpa, *heads, attn_mask=bias, enable_gqa=True)
        )
        if S == T:  # cuDNN's bound in torch is from the top left
            peers["torch cudnn"] = by_torch(
                SDPBackend.CUDNN_ATTENTION, partial(sdpa, *heads, is_causal=True, enable_gqa=True)
            )
        if flashinfer:
            wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
                torch.empty(256 << 20, dtype=torch.uint8, device="cuda"), "NHD"
            )
            starts, counts = (
                torch.arange(B + 1, device="cuda").int() * step for step in (S, T // P)
            )
            last = torch.full((B,), P, device="cuda").int()
            wrapper.plan(
                starts, counts, pages, last, H, G, D, P, causal=True, q_data_type=torch.bfloat16
            )
            peers["flashinfer"] = partial(wrapper.run, q, tuple(caches))
        yield Case(
            "attention_paged", f"B{B} S{S} T{T} {H}/{G}x{D} pages of {P}",
            call=partial(anyop.attention_paged, q, *caches, table, lengths), peers=peers,
            exact=partial(attend_exactly, q[-S:], *(x[-1].transpose(0, 1) for x in heads[1:]), True, -1),
            part=partial(last_of_prefill, S=S, H=H), flops=4.0 * B * H * D * S * (T - S + S / 2),
        )  # fmt: skip


def last_of_prefill(out: Any, S: int, H: int) -> Any:
    """Of (tokens, H, D), or of dense (B, H, S, D)."""
    out = out[0] if isinstance(out, tuple) else out
    if out.dim() == 4:
        return last_of_dense(out, H)
    return out[-CHECKED:, [0, H - 1]].transpose(0, 1)


FAMILIES = {
    "dense": dense, "varlen": varlen, "backward": backward, "merge": merge, "append": append, "paged": paged,
    "prefill": prefill,
}  # fmt: skip


def is_right(case: Case, side: str, out: Any, twice: Any) -> bool:
    found, exact = case.part(out).double(), case.exact()
    error = (found - exact).abs().max().item()
    problem = "" if error <= case.limit * (1 + exact.abs().max().item()) else f"error {error:.1e}"
    if not problem and side.startswith("anyop"):
        same = all(torch.equal(a, b) for a, b in zip(listed(out), listed(twice)))
        problem = "" if same else "other bits the second time"
    if problem:
        WRONG.append(f"{case.operator} {case.shape} by {side}: {problem}")
        print("WRONG:", WRONG[-1], flush=True)
    return not problem


def listed(results: Any) -> tuple:
    """Those that are there: flash-attn-4 gives None for what was not wanted."""
    every = results if isinstance(results, (tuple, list)) else (results,)
    return tuple(result for result in every if result is not None)


@contextlib.contextmanager
def left_out(side: str, case: Case) -> Iterator[None]:
    """Another project's kernel may refuse a call."""
    try:
        yield
    except Exception as error:
        if side.startswith("anyop"):
            raise
        text = str(error).strip().split("\n")[0][:100]
        print(f"left out: {case.operator} {case.shape} by {side}: {type(error).__name__}: {text}")


def sides_of(case: Case, anyop: Any, names: list[str]) -> Iterator[tuple[str, Callable, Any]]:
    for name in names:
        if name in anyop.backends(case.operator):
            yield f"anyop {name}", case.call, anyop.use(name)
    for name, call in case.peers.items():
        yield name, call, contextlib.nullcontext()


def measure(
    case: Case, anyop: Any, options: argparse.Namespace, flush, limit, idle_us
) -> Iterator[dict]:
    graphs = {}
    for side, call, context in sides_of(case, anyop, options.implementations.split(",")):
        with left_out(side, case), context:
            graph, out = capture(call)
            graph.replay()
            first = tuple(t.clone() for t in listed(out))
            graph.replay()
            if is_right(case, side, first[0] if len(first) == 1 else first, out):
                graphs[side] = graph
    times = paced_turns(graphs, options.rounds, flush)
    best = min((t for side, t in times.items() if not side.startswith("anyop")), default=None)
    for side, median in times.items():
        busy = median - idle_us if case.bytes and median > idle_us else median
        yield {
            "case": case.operator, "shape": case.shape, "dtype": "bfloat16", "side": side,
            "median_us": round(median, 2), "tflops": round(case.flops / median / 1e6, 1),
            "share_of_ceiling": round(case.bytes / busy / limit, 3),
            "of_best_peer": round(best / median, 3) if best else None,
        }  # fmt: skip


def show(row: dict) -> None:
    rate = f"{row['tflops']:6.0f} TF" if row["tflops"] else f"{row['share_of_ceiling']:8.1%}"
    beside = f"{row['of_best_peer']:8.3f}" if row["of_best_peer"] else ""
    print(
        f"{row['case']:18}{row['shape']:>48} {row['side']:16}{row['median_us']:10.2f}{rate}{beside}",
        flush=True,
    )


def main(families: dict[str, Callable], bench: str, what: str) -> str | None:
    """What was wrong, if something was."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default=",".join(families), metavar="FAMILY,FAMILY")
    parser.add_argument("--implementations", default="cuda_sm90,cuda")
    options = parser.parse_args()
    if torch is None or not torch.cuda.is_available():
        print("skipped: there is no CUDA device that torch can use")
        return None
    import anyop
    import anyop.torch

    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    limit, one = ceiling(options.rounds, flush), torch.zeros(1, device="cuda")
    idle_us = paced_turns({"": capture(lambda: one.add_(0))[0]}, options.rounds, flush)[""]
    print(f"ceiling {limit / 1e3:.0f} GB/s, a kernel of one element {idle_us:.2f} us")
    rows = []
    for name in options.only.split(","):
        for case in families[name](anyop):
            for row in measure(case, anyop, options, flush, limit, idle_us):
                show(row)
                rows.append(row | {"ceiling_gb_per_s": round(limit / 1e3)})
    where = environment(anyop, torch) | device() | {"idle_us": round(idle_us, 2)}
    print("written to", write(bench, rows, where))
    return "; ".join(WRONG) or None


if __name__ == "__main__":
    sys.exit(main(FAMILIES, "cuda_attention", __doc__.splitlines()[0]))
