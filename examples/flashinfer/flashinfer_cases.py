# SPDX-License-Identifier: Apache-2.0
"""Inputs for each operator, what FlashInfer's own Python calls for them, and a comparison with the reference."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyop
import flashinfer_modules
import torch

OPS = Path(__file__).parent / "ops"
# |found - expected| <= limit * (1 + |expected|): a rounding of the result, which sums of float32 may turn.
LIMITS = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 1e-4}


@dataclass
class Case:
    """One call. own: the same by FlashInfer's Python; reference: the backend to compare with."""

    function: Callable
    arguments: tuple[Any, ...]
    own: Callable
    reference: str = "reference"


def load() -> None:
    """Builds and loads the operators of this folder, and adds FlashInfer to two of anyop's own."""
    if "fi.rope" not in anyop.list_ops():
        anyop.load(anyop.build(OPS, name="fi", backends=["cpu"]))
    flashinfer_modules.register()


def normal(*shape: int, dtype=torch.bfloat16, device="cuda", seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype).to(device)


def rms_norm(rows: int, D: int, dtype=torch.bfloat16) -> Case:
    import flashinfer

    x, weight = normal(rows, D, dtype=dtype), normal(D, dtype=dtype, seed=1)
    own = functools.partial(flashinfer.norm.rmsnorm, x, weight)
    return Case(anyop.rms_norm, (x, weight), own, "aten")


def silu_and_mul(rows: int, D: int, dtype=torch.bfloat16) -> Case:
    import flashinfer

    gate = normal(rows, 2 * D, dtype=dtype)
    return Case(
        anyop.silu_and_mul, (gate,), functools.partial(flashinfer.silu_and_mul, gate), "aten"
    )


def rope(T: int, H: int, G: int, D: int, interleave: bool, dtype=torch.bfloat16) -> Case:
    import flashinfer

    q, k = normal(T, H, D, dtype=dtype), normal(T, G, D, dtype=dtype)
    positions = torch.arange(T, device="cuda", dtype=torch.int32) % 1000
    return Case(
        anyop.ops.fi.rope,
        (q, k, positions, D, interleave),
        lambda: flashinfer.apply_rope_pos_ids(q, k, positions, rotary_dim=D, interleave=interleave),
    )


def decode(T: int, H: int, G: int) -> Case:
    import flashinfer

    D = flashinfer_modules.HEAD
    q, k, v = normal(H, D), normal(T, G, D), normal(T, G, D, seed=1)
    return Case(
        anyop.ops.fi.decode,
        (q, k, v, D**-0.5),
        lambda: flashinfer.single_decode_with_kv_cache(q, k, v),
    )


def batch_decode(lengths: list[int], H: int, G: int, page: int = 16) -> Case:
    import flashinfer

    D = flashinfer_modules.HEAD
    pages = [-(-length // page) for length in lengths]
    ends = torch.tensor([0, *pages]).cumsum(0).int()
    order = torch.randperm(sum(pages), generator=torch.Generator().manual_seed(0)).int()
    last = torch.tensor([(length - 1) % page + 1 for length in lengths]).int()
    shape = (sum(pages), page, G, D)
    q, k, v = normal(len(lengths), H, D), normal(*shape), normal(*shape, seed=1)
    places = [tensor.cuda() for tensor in (ends, order, last)]
    planned = flashinfer_modules.plan(ends, H, G, page)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        torch.empty(1 << 27, dtype=torch.uint8, device="cuda"), "NHD"
    )
    wrapper.plan(*places, H, G, D, page, q_data_type=q.dtype, kv_data_type=q.dtype)
    return Case(
        anyop.ops.fi.batch_decode,
        (q, k, v, *places, *planned, D**-0.5),
        lambda: wrapper.run(q, (k, v)),
    )


# A name, and what makes the case: each when its turn comes.
CASES: dict[str, Callable[[], Case]] = {
    "rms_norm 64x4096": lambda: rms_norm(64, 4096),
    "rms_norm 8192x4096": lambda: rms_norm(8192, 4096),
    "rms_norm 7x1000 float16": lambda: rms_norm(7, 1000, torch.float16),
    "silu_and_mul 64x4096": lambda: silu_and_mul(64, 4096),
    "silu_and_mul 8192x4096": lambda: silu_and_mul(8192, 4096),
    "silu_and_mul 7x1000 float16": lambda: silu_and_mul(7, 1000, torch.float16),
    "rope T=1 H=32 G=8 D=128": lambda: rope(1, 32, 8, 128, False),
    "rope T=4096 H=32 G=8 D=128": lambda: rope(4096, 32, 8, 128, False),
    "rope T=333 H=4 G=4 D=64 interleaved float16": lambda: rope(333, 4, 4, 64, True, torch.float16),
    "decode T=1 H=8 G=8": lambda: decode(1, 8, 8),
    "decode T=32768 H=32 G=8": lambda: decode(32768, 32, 8),
    "batch_decode B=4 T=1 to 300 H=8 G=8": lambda: batch_decode([1, 17, 16, 300], 8, 8),
    "batch_decode B=64 T=2048 H=32 G=8": lambda: batch_decode([2048] * 64, 32, 8),
}


def tensors(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else [x for x in result if x is not None]


def run(case: Case, backend: str) -> list[torch.Tensor]:
    with anyop.use(backend):
        name = case.function.__name__
        name = name if name in anyop.list_ops() else f"fi.{name}"
        chosen = anyop.explain(name, *case.arguments).chosen
        assert chosen == backend, f"{name}: {chosen} would run, not {backend}"
        return tensors(case.function(*case.arguments))


def worst(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """The largest difference, as a share of what is allowed."""
    assert [x.shape for x in found] == [x.shape for x in expected]
    shares = [0.0]
    for one, other in zip(found, expected):
        assert one.dtype == other.dtype and one.isfinite().all()
        allowed = LIMITS[one.dtype] * (1 + other.double().abs())
        shares.append(((one.double() - other.double()).abs() / allowed).max().item())
    return max(shares)


def check(case: Case) -> float:
    """FlashInfer through anyop against the reference and FlashInfer's own Python: share of what is allowed."""
    found = run(case, "flashinfer")
    share = worst(found, run(case, case.reference))
    own = tensors(case.own())
    return max(share, worst(found[: len(own)], own))
