# SPDX-License-Identifier: Apache-2.0
"""sample on the CPU beside torch's softmax, sort and multinomial: 8 rows of 128,256 logits, by 1 and 2 threads."""

from __future__ import annotations

import statistics
import time

import anyop
import torch

B, V, K, P = 8, 128_256, 50, 0.9


def by_sort(logits):
    probs, tokens = logits.softmax(-1).sort(-1, descending=True)
    probs[:, K:] = 0
    sums = probs.cumsum(-1)
    probs[sums - probs >= P * sums[:, -1:]] = 0
    return tokens.gather(-1, probs.multinomial(1))


def timed(call):
    call()
    times = []
    for _ in range(7):
        begin = time.perf_counter()
        call()
        times.append((time.perf_counter() - begin) * 1e3)
    return min(times), statistics.median(times)


def main():
    logits = torch.randn(B, V) * 3
    seed, offset = torch.arange(B), torch.zeros(B, dtype=torch.int64)
    greatest = anyop.sample(logits, seed, offset, top_k=1)[0]
    assert torch.equal(greatest.long(), logits.argmax(-1))
    calls = {
        "sample": lambda: anyop.sample(logits, seed, offset),
        "sample top_k top_p": lambda: anyop.sample(logits, seed, offset, top_k=K, top_p=P),
        "sample top_p": lambda: anyop.sample(logits, seed, offset, top_p=P),
        "torch: softmax, sort, multinomial": lambda: by_sort(logits),
    }
    for threads in (1, 2):
        torch.set_num_threads(threads)
        anyop.set_num_threads(threads)
        for name, call in calls.items():
            least, median = timed(call)
            print(f"{threads} threads, {B} rows, {name}: {least:.2f} {median:.2f} ms")


if __name__ == "__main__":
    main()
