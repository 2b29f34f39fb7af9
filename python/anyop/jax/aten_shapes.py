# SPDX-License-Identifier: Apache-2.0
"""What a call of ATen will give, by torch's meta kernels; what no compiled program can have is refused."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from anyop import _frameworks, aten
from anyop.aten import _table
from anyop.backend.torch_calls import TorchCalls

with _frameworks.no_proxy():  # Paddle's
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

# What bindings/jax/element.h has.
DTYPES = frozenset(
    f"{kind}{bits}"
    for kind, sizes in (
        ("int", (8, 16, 32, 64)),
        ("uint", (8, 16, 32, 64)),
        ("float", (16, 32, 64)),
    )
    for bits in sizes
) | {"bool", "bfloat16", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"}
_calls = TorchCalls(torch)
_LACKS_DATA = re.compile(r"\bmeta\b|not allocated yet|expects CPU tensor|on CPU")


class _Leaves(TorchDispatchMode):
    """Sees the operators that a call consists of."""

    def __init__(self) -> None:
        super().__init__()
        self.draws = self.depends = ""  # the operator that draws random numbers, that reads data

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        with self:
            found = func.decompose(*args, **kwargs)
        if found is not NotImplemented:
            return found
        name = func.name().removeprefix("aten::")
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.draws = name
        if {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(func.tags):
            self.depends = name
        return func(*args, **kwargs)


@contextlib.contextmanager
def _plain_state() -> Iterator[None]:
    """No gradients, autocast or modes of this thread's; all as it was afterwards."""
    with _frameworks.no_proxy(), _calls.state(1, 0, 0), _disable_current_modes():
        yield


def stand_in(shape: Sequence[int], dtype: str) -> torch.Tensor:
    """A tensor without memory."""
    with _plain_state():
        return torch.empty(tuple(shape), dtype=getattr(torch, dtype), device="meta")


def results(facts: Mapping[str, Any], values: Mapping[str, Any], is_seeded: bool) -> list[Any]:
    """What an overload gives: tensors without memory, and values that do not depend on data."""
    with _plain_state(), _Leaves() as leaves:
        try:
            found = _call(facts, values)
        except (AssertionError, RuntimeError) as error:  # NotImplementedError is one
            if leaves.depends or type(error) is not RuntimeError or _LACKS_DATA.search(str(error)):
                raise NotImplementedError(_no_shape(facts, leaves, error)) from None
            raise RuntimeError(f"{name(facts)}: {error}") from None
        except (IndexError, TypeError, ValueError) as error:
            kind = next(k for k in (IndexError, TypeError, ValueError) if isinstance(error, k))
            raise kind(f"{name(facts)}: {error}") from None
    if leaves.draws and not is_seeded:
        raise NotImplementedError(
            f"{name(facts)}: draws random numbers, and a compiled program would draw the same ones in every run; "
            "say so by generator= a seed (an int, or a traced integer that differs), where the operator has that "
            "argument, or draw with jax.random"
        )
    several = len(facts["results"]) != 1
    return list(found) if several and found is not None else [found]


def _call(facts: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
    op = getattr(getattr(torch.ops.aten, facts["name"]), facts["overload"] or "default")
    args, kwargs, has_gap = [], {}, False
    for param in facts["params"]:
        if param["name"] not in values:
            has_gap = True
        elif has_gap or param.get("keyword_only"):
            kwargs[param["name"]] = values[param["name"]]
        else:
            args.append(values[param["name"]])
    return op(*args, **kwargs)


def dtype_of_code(code: int) -> str:
    """What torch's operators call a dtype."""
    return next(name for name, number in _table.metadata()["codes"]["dtype"] if number == code)


def name(facts: Mapping[str, Any]) -> str:
    """Of an overload: "add.Tensor"."""
    return facts["schema"].partition("(")[0]


def _no_shape(facts: Mapping[str, Any], leaves: _Leaves, error: Exception) -> str:
    if leaves.depends:
        return (
            f"{name(facts)}: its result depends on data ({leaves.depends}), and a compiled program must know "
            "shapes and Python's values before; call it outside of jax.jit"
        )
    return (
        f"{name(facts)}: torch {torch.__version__} cannot tell its results without data (it has no meta kernel), "
        f"and a compiled program must know them; call it outside of jax.jit: {str(error).splitlines()[0][:200]}"
    )


# ---- overloads that write into XLA's buffers ----


def into(
    facts: Mapping[str, Any], values: Mapping[str, Any], found: Sequence[Any]
) -> Mapping[str, Any] | None:
    """The overload that writes the result where it is to be; None: there is none that certainly writes all of it.

    Only of elementwise operators: some others resize a place meanwhile (mse_loss), or write no part of it in some cases
    (native_batch_norm).
    """
    if len(found) != 1 or "pointwise" not in facts["tags"]:
        return None
    shapes = [x.shape for x in values.values() if isinstance(x, torch.Tensor)]
    if found[0].shape != np.broadcast_shapes(*map(tuple, shapes)):
        return None
    for other in map(aten.metadata, aten.overloads(facts["name"])):
        if other["kind"] == "out" and other["callable"] and _taken(other) == _taken(facts):
            return other if _fits(other, values, found[0]) else None
    return None


def _taken(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(p["name"], p["type"]) for p in facts["params"] if not p.get("mutable")]


def _fits(facts: Mapping[str, Any], values: Mapping[str, Any], result: torch.Tensor) -> bool:
    (name,) = [param["name"] for param in facts["params"] if param.get("mutable")]
    place = stand_in(result.shape, str(result.dtype).removeprefix("torch."))
    with _plain_state():
        try:
            _call(facts, {**values, name: place})
        except (RuntimeError, TypeError, ValueError):
            return False
    return place.shape == result.shape and place.is_contiguous()
