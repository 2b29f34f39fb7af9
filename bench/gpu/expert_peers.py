# SPDX-License-Identifier: Apache-2.0
"""What cuda_experts.py times beside anyop's experts: torch's _grouped_mm behind a sort, Liger, and a kernel in Triton.

Each takes x (T, H), w13 (E, 2*I, H) with gates first, w2 (E, H, I), weights (T, k) in float32 and ids (T, k) in int32.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import anyop
import torch
from torch.nn.functional import linear, silu

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is declared
try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

LIGER = "liger (no graph)"  # it waits for the host once in a call, which no graph can hold
# BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, warps, stages: what vLLM's tables have for few and for many rows of an expert.
TILES = {
    "few": [(16, 64, 128, 1, 4, 4), (16, 128, 128, 1, 4, 3)],
    "many": [(64, 128, 64, 8, 4, 4), (128, 128, 64, 8, 8, 3), (128, 256, 64, 8, 8, 3)],
}


def exactly(x: Any, w13: Any, w2: Any, weights: Any, ids: Any) -> Any:
    """In float64, expert by expert."""
    out = torch.zeros_like(x, dtype=torch.float64)
    for e in ids.unique().tolist():
        tokens, at = torch.where(ids == e)
        gate, up = linear(x[tokens].double(), w13[e].double()).chunk(2, -1)
        rows = linear(silu(gate) * up, w2[e].double()) * weights[tokens, at, None].double()
        out = out.index_add(0, tokens, rows)
    return out


def by_grouped_mm(x: Any, w13: Any, w2: Any, weights: Any, ids: Any) -> Any:
    """As transformers' grouped_mm; differentiable, and without a wait for the host."""
    T, k = ids.shape
    sorted_ids, order = ids.flatten().sort(stable=True)
    experts = torch.arange(len(w13), dtype=ids.dtype, device=ids.device)
    ends = torch.searchsorted(sorted_ids, experts, right=True, out_int32=True)
    gate, up = torch._grouped_mm(x[order // k], w13.transpose(1, 2), ends).chunk(2, -1)
    rows = torch._grouped_mm(silu(gate) * up, w2.transpose(1, 2), ends)
    rows = rows * weights.flatten()[order, None].to(x.dtype)
    inverse = torch.empty_like(order).scatter_(0, order, torch.arange(T * k, device=ids.device))
    return rows[inverse].view(T, k, -1).sum(1)


def by_steps(x: Any, w13: Any, w2: Any, weights: Any, ids: Any) -> Any:
    """Operators of anyop one by one, each with a gradient."""
    order, inverse, offsets = anyop.moe_sort(ids, experts=len(w13))
    rows = anyop.moe_permute(x, order, top_k=ids.shape[1])
    hidden = anyop.silu_and_mul(anyop.grouped_linear(rows, w13, offsets))
    return anyop.moe_unpermute(anyop.grouped_linear(hidden, w2, offsets), inverse, weights)


def by_liger() -> Callable | None:
    try:
        from liger_kernel.ops.fused_moe import LigerFusedMoEFunction
    except ImportError as error:
        print(f"left out: liger: {error}", flush=True)
        return None
    return lambda x, w13, w2, weights, ids: LigerFusedMoEFunction.apply(x, w13, w2, ids, weights)


if triton is not None:

    @triton.jit(do_not_specialize=["slot_count"])
    def _expert_rows(
        x, w, out, slots, experts, padded_count, factors, slot_count, N, K, PER_ROW: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
        BLOCKS_M: tl.constexpr,
    ):  # fmt: skip
        """Rows slots // PER_ROW of x times their expert's weights, to rows `slots` of out, as vLLM's kernel does it."""
        program, blocks_n = tl.program_id(0), tl.cdiv(N, BLOCK_N)
        group = program // (GROUP_M * blocks_n)
        rows_of_group = min(BLOCKS_M - group * GROUP_M, GROUP_M)
        within = program % (GROUP_M * blocks_n)
        block_m = group * GROUP_M + within % rows_of_group
        block_n = within // rows_of_group
        if block_m * BLOCK_M >= tl.load(padded_count):
            return
        expert = tl.load(experts + block_m).to(tl.int64)
        slot = tl.load(slots + block_m * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
        mine = slot < slot_count
        n = (block_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
        k = tl.arange(0, BLOCK_K)
        left = x + (slot // PER_ROW)[:, None] * K + k[None, :]
        right = w + expert * N * K + n[None, :] * K + k[:, None]
        sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for _ in range(0, K, BLOCK_K):  # K is a multiple of it
            sums = tl.dot(tl.load(left, mine[:, None], other=0.0), tl.load(right), sums)
            left += BLOCK_K
            right += BLOCK_K
        if PER_ROW == 1:
            sums *= tl.load(factors + slot, mine, other=0.0)[:, None]
        columns = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
        at = out + slot[:, None] * N + columns[None, :]
        tl.store(at, sums.to(out.dtype.element_ty), mine[:, None] & (columns < N)[None, :])


def by_triton(tile: tuple[int, ...], x: Any, w13: Any, w2: Any, weights: Any, ids: Any) -> Any:
    """Slots in whole blocks of an expert; product, activation, product by the weights, sum."""
    block_m, block_n, block_k, group, warps, stages = tile
    (T, k), H, width = ids.shape, x.shape[1], w13.shape[1]
    slots, experts, count = anyop.moe_align(ids, len(w13), block_m)
    both, rows = x.new_empty(T * k, width), x.new_empty(T * k, H)

    def product(left: Any, w: Any, out: Any, per_row: int) -> None:
        grid = len(experts) * triton.cdiv(w.shape[1], block_n)
        _expert_rows[(grid,)](
            left, w, out, slots, experts, count, weights, T * k, *w.shape[1:], per_row, block_m, block_n,
            block_k, group, len(experts), num_warps=warps, num_stages=stages,
        )  # fmt: skip

    product(x, w13, both, k)
    product(anyop.silu_and_mul(both), w2, rows, 1)
    return rows.view(T, k, H).sum(1)


def peers_of(rows_of_an_expert: float) -> dict[str, Callable]:
    """By their names; each with a result like fused_moe's."""
    found: dict[str, Callable] = {"torch": by_grouped_mm, "anyop by steps": by_steps}
    if liger := by_liger():
        found[LIGER] = liger
    if triton is not None:
        for tile in TILES["few" if rows_of_an_expert <= 32 else "many"]:
            found["triton " + "x".join(map(str, tile[:3]))] = partial(by_triton, tile)
    return found
