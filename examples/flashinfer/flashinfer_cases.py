# SPDX-License-Identifier: Apache-2.0
"""Inputs for each operator, what FlashInfer's own Python calls for them, and a comparison with the reference."""

from __future__ import annotations

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
    """One call. own: the same by FlashInfer's Python; None where it draws its own random numbers."""

    name: str
    function: Callable
    arguments: tuple[Any, ...]
    own: Callable | None = None
    reference: str = "reference"


def load() -> None:
    """Builds and loads the operators of this folder, and adds FlashInfer to two of anyop's own."""
    if "fi.rope" not in anyop.list_ops():
        anyop.load(anyop.build(OPS, name="fi", backends=["cpu"]))
    flashinfer_modules.register()


def normal(*shape: int, dtype=torch.bfloat16, device="cuda", seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype).to(device)


def elementwise(rows: int, D: int, dtype=torch.bfloat16) -> list[Case]:
    """Norms and activation, of anyop's operators and of this folder."""
    import flashinfer

    x, weight = normal(rows, D, dtype=dtype), normal(D, dtype=dtype, seed=1)
    gate = normal(rows, 2 * D, dtype=dtype, seed=2)
    text = f"{rows}x{D} {str(dtype)[6:]}"
    return [
        Case(
            f"rms_norm {text}",
            anyop.rms_norm,
            (x, weight),
            lambda: flashinfer.norm.rmsnorm(x, weight),
            "aten",
        ),
        Case(
            f"silu_and_mul {text}",
            anyop.silu_and_mul,
            (gate,),
            lambda: flashinfer.silu_and_mul(gate),
            "aten",
        ),
    ]


def rope(T: int, H: int, G: int, D: int, interleave: bool, dtype=torch.bfloat16) -> Case:
    import flashinfer

    q, k = normal(T, H, D, dtype=dtype), normal(T, G, D, dtype=dtype)
    positions = torch.arange(T, device="cuda", dtype=torch.int32) % 1000
    return Case(
        f"rope T={T} H={H} D={D} interleave={interleave} {str(dtype)[6:]}",
        anyop.ops.fi.rope,
        (q, k, positions, D, interleave),
        lambda: flashinfer.apply_rope_pos_ids(q, k, positions, rotary_dim=D, interleave=interleave),
    )


def decode(T: int, H: int, G: int) -> Case:
    import flashinfer

    D = flashinfer_modules.HEAD
    q, k, v = normal(H, D), normal(T, G, D), normal(T, G, D, seed=1)
    return Case(
        f"decode T={T} H={H} G={G}",
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
        f"batch_decode B={len(lengths)} tokens={sum(lengths)} H={H} G={G}",
        anyop.ops.fi.batch_decode,
        (q, k, v, *places, *planned, D**-0.5),
        lambda: wrapper.run(q, (k, v)),
    )


def all_cases() -> list[Case]:
    return [
        *elementwise(64, 4096),
        *elementwise(8192, 4096),
        *elementwise(7, 1000, torch.float16),
        rope(1, 32, 8, 128, False),
        rope(4096, 32, 8, 128, False),
        rope(333, 4, 4, 64, True, torch.float16),
        decode(1, 8, 8),
        decode(32768, 32, 8),
        batch_decode([1, 17, 16, 300], 8, 8),
        batch_decode([2048] * 64, 32, 8),
    ]


def tensors(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else [x for x in result if x is not None]


def run(case: Case, backend: str) -> list[torch.Tensor]:
    with anyop.use(backend):
        name = case.function.__name__
        name = name if name in anyop.list_ops() else f"fi.{name}"
        chosen = anyop.explain(name, *case.arguments).chosen
        assert chosen == backend, f"{case.name}: {chosen} would run, not {backend}"
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
    """FlashInfer through anyop against the reference, and against FlashInfer's own Python."""
    found = run(case, "flashinfer")
    share = worst(found, run(case, case.reference))
    if case.own is not None:
        own = tensors(case.own())
        share = max(share, worst(found[: len(own)], own))
    assert share <= 1, f"{case.name}: off by {share:.2f} of what is allowed"
    return share
