# SPDX-License-Identifier: Apache-2.0
"""Which calls each overload is tried with: those of by_hand.txt and found.txt; for out= and in-place overloads those of
the overload that they are a form of.
"""

from __future__ import annotations

import functools
from pathlib import Path

import oracle
from inputs import Call, Spec, parse

HERE = Path(__file__).parent
FORMS = {"__iand__": "__and__", "__ior__": "__or__", "__ixor__": "__xor__"}
FORMS |= {"__ilshift__": "__lshift__", "__irshift__": "__rshift__"}


def read(file: str) -> dict[str, list[Call]]:
    found: dict[str, list[Call]] = {}
    for line in (HERE / file).read_text().splitlines():
        if line and not line.startswith("#"):
            call = parse(line)
            found.setdefault(call.name, []).append(call)
    return found


@functools.cache
def written() -> dict[str, list[Call]]:
    """Calls by overload; those by hand replace those found."""
    return {**read("found.txt"), **read("by_hand.txt")}


@functools.cache
def _by_base() -> dict[str, list[oracle.Overload]]:
    groups: dict[str, list[oracle.Overload]] = {}
    for overload in oracle.overloads().values():
        groups.setdefault(overload.base, []).append(overload)
    return groups


OPTIONS = {"dtype", "layout", "device", "pin_memory", "memory_format"}  # out= has them already


def _shape(overload: oracle.Overload, is_out: bool = False, options: bool = True) -> list:
    return [
        (p.name, p.type)
        for p in overload.params
        if not (is_out and p.writes) and (options or p.name not in OPTIONS)
    ]


@functools.cache
def origin(name: str) -> oracle.Overload | None:
    """The functional overload that an out= or in-place one is a form of."""
    overload = oracle.overloads()[name]
    if overload.kind in ("functional", "view"):
        return None
    is_out = overload.kind == "out"
    base = FORMS.get(overload.base, overload.base if is_out else overload.base.rstrip("_"))
    others = _by_base().get(base, []) + _by_base().get(base + "_functional", [])
    for options in (True, False) if is_out else (True,):
        for other in others:
            same = _shape(other, options=options) == _shape(overload, is_out, options)
            if other.kind in ("functional", "view") and same:
                return other
    return None


def calls_of(name: str) -> list[Call]:
    """Arguments but for what out= asks for; empty when none are known."""
    own = [] if name in FRUITLESS else written().get(name, [])
    overload = oracle.overloads()[name]
    if own or overload.kind in ("functional", "view"):
        return own
    source = origin(name)
    if not source:
        return []
    known = {param.name for param in overload.params}
    return [
        Call(name, call.args, {key: value for key, value in call.kwargs.items() if key in known})
        for call in calls_of(source.name)
    ]


# Its bfloat16 kernel reads 32 bytes at once and ends the process where memory is not so aligned, in torch itself.
ALIGNED = "_weight_int8pack_mm"


def recast(call: Call, dtype: str) -> Call | None:
    """The call with float32 replaced; None when it has none."""
    changed = False
    if call.name.partition(".")[0] == ALIGNED:
        return None

    def fill(value):
        nonlocal changed
        if isinstance(value, list):
            return [fill(item) for item in value]
        if isinstance(value, Spec) and value.dtype == "float32" and value.values is None:
            changed = True
            return value._replace(dtype=dtype)
        return value

    args = tuple(map(fill, call.args))
    kwargs = {key: fill(value) for key, value in call.kwargs.items()}
    return Call(call.name, args, kwargs) if changed else None


# Why by_hand.txt has no call of these, and search.py finds none.
FRUITLESS = {
    "from_file": "writes files",
    "_print": "prints",
    "_fw_primal": "states of autograd and functorch",
    "_unpack_dual": "states of autograd and functorch",
    "chalf": "NumPy has no complex32",
    "_pin_memory": "wants a device that is no CPU",
    "pin_memory": "wants a device that is no CPU",
    "convolution_overrideable": "a hook for devices outside torch",
    "convolution_backward_overrideable": "a hook for devices outside torch",
    "_nnpack_spatial_convolution": "torch was built without NNPACK",
    "_scaled_mm": "takes a column-major fp8 matrix",
    "_scaled_mm_v2": "takes a column-major fp8 matrix",
    "_lazy_clone": "copy-on-write storage, which lent memory has not",
    "_propagate_xla_data": "a hook for devices outside torch",
    "_test_check_tensor": "a test of torch's own",
    "_wrapped_linear_prepack": "packed weights",
    "_thnn_fused_lstm_cell_backward": "kernels of other devices",
    "get_gradients": "distributed autograd",
    "_triton_multi_head_attention": "kernels of other devices",
    "_triton_scaled_dot_attention": "kernels of other devices",
}

# In torch itself these leave in out= something else than what their functional form returns.
OUT_DIFFERS = {
    "_compute_linear_combination.out": "adds to what out= holds",
    "fft_ihfftn.out": "writes nothing when the input is converted first",
}
