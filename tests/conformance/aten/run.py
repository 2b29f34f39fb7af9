# SPDX-License-Identifier: Apache-2.0
"""Tries overloads with all their calls from a framework, and keeps what came of it for the report."""

from __future__ import annotations

import functools
import re
import warnings
from typing import NamedTuple

import calls
import compare
import frameworks
import oracle

DTYPES = ("bfloat16", "complex64", "int64", "bool")  # that float32 is replaced by in full runs

# Why there are no arguments: the first pattern that the name fits.
REASONS = [
    (
        r"[Dd]imname|named_|\.names|_names|^align_|^rename|^refine_",
        "names of dimensions",
    ),  # until torch 2.11
    ("_philox|_resize_output", "kernels of other devices"),
    ("quantized|quantize_per|^q_|_affine_quantized|int_repr|dequantize", "quantized tensors"),
    ("mkldnn", "tensors of oneDNN's own layout"),
    ("sparse|coalesce|^_nnz|^s?smm|sspaddmm|_dim[IV]|_spdiags", "sparse tensors"),
    ("^_?(indices|values)|(row|col)_indices", "sparse tensors"),
    ("nested|jagged|padded_tensor", "nested tensors"),
    (
        "cudnn|cufft|cuda|miopen|_cslt|mps|_flash_att|_efficient_att|fused_attention",
        "kernels of other devices",
    ),
    (
        "_batch_dim|_dual|_fw_primal|^_backward$|retain_grad|requires_grad",
        "states of autograd and functorch",
    ),
    ("fbgemm|quant|int4pack", "packed weights"),
]


class Outcome(NamedTuple):
    """What came of one overload from one framework."""

    state: str  # "values", "shapes", "nothing to compare", "untestable", "failed"
    why: str = ""
    calls: int = 0
    close: int = 0


def has_glue() -> bool:
    from anyop.native.glues import aten_glue

    return aten_glue.find_loaded() is not None


def reason(overload: oracle.Overload, problem: str) -> str:
    """Why an overload cannot be tried here."""
    source = calls.origin(overload.name) or overload
    if source.name in calls.FRUITLESS:
        return calls.FRUITLESS[source.name]
    kinds = {"Storage", "Stream", "CellParamsBase", "QScheme", "Dict"}
    for param in overload.params:
        for kind in kinds:
            if kind in param.type:
                return f"takes a {kind}"
    for pattern, why in REASONS:
        if re.search(pattern, overload.name):
            return why
    if "Could not run" in problem or not oracle.has_cpu_kernel(source.name):
        return "no kernel for the CPU in this torch"
    return problem or "no arguments known"


@functools.cache
def outcome(framework: str, name: str, full: bool = False) -> Outcome:
    """All calls of an overload, once a process."""
    overload = oracle.overloads()[name]
    tried = [(call, n) for n, call in enumerate(calls.calls_of(name))]
    if full:
        more = [calls.recast(call, dtype) for dtype in DTYPES for call, _ in tried]
        tried += [(call, 0) for call in more if call]
    total, passed, problem = compare.Checked(), 0, ""
    for call, sample in tried:
        try:
            checked = try_call(framework, overload, call, sample)
        except compare.Refused as error:
            problem = problem or str(error)
            continue
        except Exception as error:
            if "the ATen glue can" in str(error) and not has_glue():
                return Outcome("untestable", "needs the glue, which could not be built here")
            return Outcome("failed", f"{call}: {type(error).__name__}: {error}", passed)
        passed += 1
        total = compare.Checked(*map(sum, zip(total, checked)))
    if not passed:
        return Outcome("untestable", reason(overload, problem))
    kinds = {"values": total.values, "shapes": total.shapes, "refused": total.refusals}
    state = next((kind for kind, count in kinds.items() if count), "nothing to compare")
    return Outcome(state, "", passed, total.close)


def try_call(framework: str, overload: oracle.Overload, call, sample: int) -> compare.Checked:
    from anyop import aten

    with warnings.catch_warnings(), frameworks.ALL[framework].around():
        warnings.simplefilter("ignore")  # torch's, of what is deprecated
        return compare.check(aten.call, frameworks.ALL[framework], overload, call, sample)
