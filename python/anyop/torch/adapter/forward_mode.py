# SPDX-License-Identifier: Apache-2.0
"""torch's forward mode (torch.func.jvp, jacfwd, dual_level): results with tangents, by the formulas of [tangent].

The formulas call torch.ops.<namespace>.<op> on values and tangents, so reverse mode and vmap see through them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.autograd import forward_ad

from anyop.adapter.tangent import Tangent
from anyop.torch.adapter.operators import Operator

_LEVEL = 0  # torch has no other


def is_active() -> bool:
    """Whether tensors may have tangents."""
    if forward_ad._current_level >= 0:
        return True
    if not torch._C._are_functorch_transforms_active():
        return False
    # A graph of torch.compile enters a level of functorch without telling forward_ad.
    stack = torch._C._functorch.get_interpreter_stack() or ()
    return any(level.key() == torch._C._functorch.TransformType.Jvp for level in stack)


class ForwardMode:
    """How one operator carries tangents."""

    def __init__(self, operator: Operator, operators: Mapping[str, Operator]) -> None:
        self.operator, self.operators = operator, operators
        self.tangent = Tangent(operator.metadata)

    def call(self, compute: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
        """compute(args, kwargs), which gets no tangents; what it returns has one where an argument has."""
        found = dict(self._tangents(args, kwargs))
        if not found:
            return compute(args, kwargs)
        if any(name in kwargs for name in self.operator.names[self.operator.count :]):
            raise NotImplementedError(
                f"{self.operator.name}: has no derivative in forward mode with out=; leave it out"
            )
        self.tangent.check(found)
        args, kwargs = tuple(map(_primal, args)), {k: _primal(v) for k, v in kwargs.items()}
        out = compute(args, kwargs)
        if not _is_floating(out):  # a cast to integers
            return out
        values = [*self.operator.fill(args, kwargs), out]
        named = dict(zip(self.operator.names, values))
        run = partial(self._run, self.operator.scope(kwargs))
        tangent = self.tangent.push(named, found, run, _filled, out.dtype)
        return out if tangent is None else forward_ad.make_dual(out, tangent, level=_LEVEL)

    def _tangents(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        for name, value in (*zip(self.operator.names, args), *kwargs.items()):
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(tensor, torch.Tensor) and _is_floating(tensor):
                    tangent = forward_ad.unpack_dual(tensor, level=_LEVEL).tangent
                    if tangent is not None:
                        yield name, tangent

    def _run(self, use: str | None, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """One call of a formula."""
        operator = self.operators.get(name)
        if operator is None:
            raise NotImplementedError(
                f"{self.operator.name}: its derivative in forward mode calls {name}, which is not loaded"
            )
        values = operator.bind(tuple(args), kwargs)
        inputs, results = values[: operator.count], values[operator.count :]
        for at in operator.tensors:
            if inputs[at] is not None and operator.inputs[at]["layout"] != "strided":
                inputs[at] = inputs[at].contiguous()
        unwanted = sum(1 << bit for bit, value in enumerate(results) if value is False)
        return operator.call(inputs, -1 & ~unwanted, use)


def _is_floating(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _primal(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and _is_floating(value):
        return forward_ad.unpack_dual(value, level=_LEVEL).primal
    return value


def _filled(like: torch.Tensor, shape: Sequence[int] | None, number: float) -> torch.Tensor:
    """A tensor that takes memory for one number."""
    return like.new_full((), number).expand(like.shape if shape is None else shape)
