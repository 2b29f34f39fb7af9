# SPDX-License-Identifier: Apache-2.0
"""Times latent attention on CUDA beside FlashMLA: decoding, listed rows, rows into the cache.

    python bench/gpu/cuda_latent.py [--only decode,sparse,append] [--rounds 15] [--implementations cuda_sm90,cuda]

As cuda_attention.py: graphs, results checked against float64, turns, idling, a flushed cache. FLOPs are 2 (W + R) for
each query's head and row; bytes are those of the rows that a sequence reads. One line of JSON for each side goes to
bench/results/cuda_latent.jsonl.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from cuda_attention import CHECKED, Case, imported, main, normal

try:
    import torch
except ImportError:
    torch = None

W, R, P, SCALE = 576, 512, 64, 192**-0.5
# B, length, H.
DECODED = [(64, 8192, 128), (8, 65536, 128), (64, 8192, 16)]
# T, H, rows of the cache, K.
LISTED = [(4096, 128, 32768, 2048), (128, 128, 131072, 2048), (128, 16, 131072, 2048)]


# sgl-flash-mla keeps Hopper's kernels apart.
LEGACY: list[dict[str, bool]] = [{"use_legacy": True}, {}]


def attend_exactly(q: Any, rows: Any) -> Any:
    """A token's first heads, (heads, W), to rows (T, W), in float64."""
    q, rows = q[:CHECKED].double(), rows.double()
    return (q @ rows.t() * SCALE).softmax(-1) @ rows[:, :R]


def flash_mla(q: Any, cache: Any, table: Any, lengths: Any) -> dict[str, Callable]:
    """FlashMLA's decoding, where its package is there and takes the call."""
    module = imported("flash_mla", "sgl_flash_mla")
    for options in LEGACY:
        with contextlib.suppress(Exception):
            plan, splits = module.get_mla_metadata(lengths, q.shape[1] * q.shape[2], 1)
            call = partial(
                module.flash_mla_with_kvcache, q, cache[:, :, None], table, lengths, R, plan, splits,
                softmax_scale=SCALE, causal=True, **options,
            )  # fmt: skip
            call()
            return {"flash_mla": call}
    return {}


def flash_mla_sparse(q: Any, cache: Any, indices: Any) -> dict[str, Callable]:
    """The same of its kernel for lists."""
    module = imported("flash_mla", "sgl_flash_mla")
    given = (q, cache.view(-1, 1, W), indices[:, None], SCALE)
    for options in LEGACY:
        with contextlib.suppress(Exception):
            call = partial(module.flash_mla_sparse_fwd, *given, **options)
            call()
            return {"flash_mla": call}
    return {}


def decode(anyop: Any) -> Iterator[Case]:
    for B, length, H in DECODED:
        pages = B * length // P
        cache, q = normal(pages, P, W), normal(B, 1, H, W)
        table = torch.randperm(pages, device="cuda").int().reshape(B, -1)
        lengths = torch.full((B,), length, dtype=torch.int32, device="cuda")
        own = cache[table[-1].long()].flatten(0, 1)
        yield Case(
            "mla_decode", f"B{B} L{length} H{H}", peers=flash_mla(q, cache, table, lengths),
            call=partial(anyop.mla_decode, q, cache, table, lengths, R, scale=SCALE),
            exact=partial(attend_exactly, q[-1, 0], own), part=lambda found: found[0][-1, 0, :CHECKED],
            flops=2.0 * B * length * H * (W + R) if H > 64 else 0, bytes=2.0 * B * length * W,
        )  # fmt: skip


def sparse(anyop: Any) -> Iterator[Case]:
    for T, H, rows, K in LISTED:
        cache, q = normal(rows // P, P, W), normal(T, H, W)
        indices = torch.randint(0, rows, (T, K), device="cuda", dtype=torch.int32)
        own = cache.flatten(0, 1)[indices[-1].long()]
        peers = flash_mla_sparse(q, cache, indices)
        shape = f"T{T} H{H} K{K} of {rows}"
        flops = 2.0 * T * K * H * (W + R)
        yield Case(
            "mla_sparse", shape, peers=peers, flops=flops,
            call=partial(anyop.mla_sparse, q, cache, indices, R, scale=SCALE),
            exact=partial(attend_exactly, q[-1], own), part=lambda found: found[0][-1, :CHECKED],
        )  # fmt: skip
        packed = torch.zeros(rows // P, P, 656, dtype=torch.uint8, device="cuda")
        flat = cache.flatten(0, 1)
        anyop.append_latent_fp8(
            packed, flat[:, :R], flat[:, R:], torch.arange(rows, device="cuda", dtype=torch.int32)
        )
        yield Case(
            "mla_sparse_fp8", shape, peers={}, flops=flops, limit=0.06,  # of 8 bits
            call=partial(anyop.mla_sparse_fp8, q, packed, indices, scale=SCALE),
            exact=partial(attend_exactly, q[-1], own), part=lambda found: found[0][-1, :CHECKED],
        )  # fmt: skip


def append(anyop: Any) -> Iterator[Case]:
    for rows in (16384, 64):
        latent, rope, cache = normal(rows, R), normal(rows, W - R), normal(2048, P, W)
        packed = torch.zeros(2048, P, 656, dtype=torch.uint8, device="cuda")
        slots = torch.randperm(2048 * P, device="cuda")[:rows].int()

        def call(latent=latent, rope=rope, cache=cache, slots=slots):
            anyop.append_latent(cache, latent, rope, slots)
            return cache

        def call_fp8(latent=latent, rope=rope, packed=packed, slots=slots):
            anyop.append_latent_fp8(packed, latent, rope, slots)
            return packed

        yield Case(
            "append_latent", f"{rows}x{W}", call=call, peers={}, bytes=rows * W * 4.0, limit=0,
            exact=lambda latent=latent: latent[:CHECKED].double(),
            part=lambda cache, slots=slots: cache.flatten(0, 1)[slots[:CHECKED].long(), :R],
        )  # fmt: skip
        yield Case(
            "append_latent_fp8", f"{rows}x{W}", call=call_fp8, peers={}, bytes=rows * (W * 2.0 + 656), limit=0,
            exact=lambda rope=rope: rope[:CHECKED].double(),
            part=lambda packed, slots=slots: packed.flatten(0, 1)[slots[:CHECKED].long(), 528:].view(torch.bfloat16),
        )  # fmt: skip


FAMILIES = {"decode": decode, "sparse": sparse, "append": append}

if __name__ == "__main__":
    sys.exit(main(FAMILIES, "cuda_latent", __doc__.splitlines()[0]))
