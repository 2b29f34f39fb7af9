# SPDX-License-Identifier: Apache-2.0
"""What [backward] promises: how each argument of the gradient's operator is found by its name."""

from __future__ import annotations

from ..schema.dtype_rules import DtypeRule
from ..schema.params import Param
from ..schema.source import Mistake, check_one_of, listed, nearest
from .operator_file import Operator

_PREFIX = "grad_"


def check_gradient(op: Operator, forward: Operator, backward: Operator) -> None:
    """Refuses a backward operator that cannot be called from what its forward has.

    `forward` is the operator that runs when a gradient is recorded, mostly `op` itself.
    """
    with op.source_file.at("backward", "name"):
        if written := [param.name for param in op.inputs if param.mutated]:
            raise Mistake(
                f"[backward] of an operator that writes its argument '{written[0]}'",
                "one that only returns results",
                "remove [backward]",
            )
        for param in backward.inputs:
            _check_argument(param, op, forward, backward)
        if not any(_gradient_of(param.name, forward.outputs) for param in backward.inputs):
            raise Mistake(
                f"'{backward.name}' takes no gradient",
                f"an argument {listed(_PREFIX + param.name for param in forward.outputs)}",
                "add it to its schema",
            )
        for result in backward.outputs:
            _check_result(result, op, backward)
        _check_wanted(backward)
    for name, source in op.backward.shares.items():
        with op.source_file.at("backward", "shares", name):
            _check_shared(name, source, op, backward)
    with op.source_file.at("backward", "saves"):
        taken = [param.name for param in backward.inputs]
        for name in op.backward.saves:
            what = f"[backward] saves '{name}', which '{backward.name}' does not take"
            check_one_of(name, taken, what, "what it takes", "remove it")


def _gradient_of(name: str, params: list[Param]) -> Param | None:
    """The tensor whose gradient has this name."""
    names = {_PREFIX + param.name: param for param in params if param.is_tensor}
    return names.get(name)


def _check_argument(param: Param, op: Operator, forward: Operator, backward: Operator) -> None:
    """An argument is a gradient, a saved tensor, an attribute or a size, in this order."""
    what = f"argument '{param.name}' of '{backward.name}'"
    if param.mutated:
        raise Mistake(f"{what} is written", "arguments that are only read", "write a result")
    if source := _gradient_of(param.name, forward.outputs):
        if not param.is_tensor or param.is_list:
            raise Mistake(f"{what} is no tensor", f"the gradient of '{source.name}'", "rename it")
        return
    known = {known.name: known for known in [*forward.outputs, *op.inputs]}
    if param.name in known:
        _check_same_type(param, known[param.name], what)
        if param.is_tensor and param.name not in op.backward.saves:
            raise Mistake(f"{what} is not saved", "it in saves", f'add "{param.name}" to saves')
        return
    sizes = [name for name in forward.binding.sizes if name not in forward.binding.element_sizes]
    if param.name in sizes and (param.kind, param.is_list) == ("int", False):
        return
    gradients = [_PREFIX + result.name for result in forward.outputs]
    names = [*gradients, *known]
    raise Mistake(
        f"{what} is not known from '{forward.name}'",
        f"one of {listed([*names, *sizes])}",
        nearest(param.name, names, "rename it"),
    )


def _check_same_type(param: Param, source: Param, what: str) -> None:
    """A value of the forward must be one that the backward accepts."""
    if (param.kind, param.is_list) != (source.kind, source.is_list):
        raise Mistake(f"{what} is of type {_type(param)}", _type(source), "use the same type")
    if source.optional and not param.optional:
        raise Mistake(f"{what} is never None", f"{_type(source)}", "write '?' behind its type")


def _type(param: Param) -> str:
    return param.kind + ("[]" if param.is_list else "") + ("?" if param.optional else "")


def _check_result(result: Param, op: Operator, backward: Operator) -> None:
    """A result has the name, the rank and the dtypes of an input."""
    what = f"result '{result.name}' of '{backward.name}'"
    tensors = [param for param in op.inputs if param.is_tensor and not param.is_list]
    source = _gradient_of(result.name, tensors)
    if source is None:
        names = [_PREFIX + param.name for param in tensors]
        raise Mistake(what, f"one of {listed(names)}", nearest(result.name, names, "rename it"))
    if _rank(source) != _rank(result):
        raise Mistake(
            f"{what} has the shape '{result.shape.text}'",
            f"that of '{source.name}' ('{source.shape.text}')",
            "write the same number of sizes",
        )
    if not set(result.possible) & set(source.possible):
        raise Mistake(
            f"{what} may be {listed(result.possible)}",
            f"a dtype of '{source.name}' ({listed(source.possible)})",
            "use the dtypes of the input",
        )


def _rank(param: Param) -> tuple[int, bool]:
    """How many sizes a shape names, and whether it has a group besides."""
    return len(param.shape.terms), param.shape.group is not None


def _check_shared(name: str, source: str, op: Operator, backward: Operator) -> None:
    """One tensor is the gradient of both inputs, so both have its shape and dtype in every call."""
    tensors = {param.name: param for param in op.inputs if param.is_tensor and not param.is_list}
    given = [result.name.removeprefix(_PREFIX) for result in backward.outputs]
    if name not in tensors or name in given:
        raise Mistake(
            f"shares names '{name}'",
            f"an input tensor of which '{backward.name}' makes no gradient",
            nearest(name, [other for other in tensors if other not in given], "remove it"),
        )
    what = f"'{name}' shares the gradient of '{source}'"
    check_one_of(source, given, what, f"one that '{backward.name}' makes", "remove it")
    mine, theirs = tensors[name], tensors[source]
    alike = mine.shape.text == theirs.shape.text and not (mine.expanded or theirs.expanded)
    if not alike or mine.optional or theirs.optional:
        raise Mistake(
            f"'{name}' ('{mine.shape.text}') shares the gradient of '{source}' ('{theirs.shape.text}')",
            "two tensors of one shape, which every call gives and none expands",
            "make a gradient for each",
        )
    if DtypeRule(same_as=source) != mine.dtypes and DtypeRule(same_as=name) != theirs.dtypes:
        raise Mistake(
            f"'{name}' shares the gradient of '{source}', but may have another dtype",
            "the same one",
            f'write {name} = "{source}" in [dtypes]',
        )


def _check_wanted(backward: Operator) -> None:
    if not backward.outputs:
        raise Mistake(f"'{backward.name}' has no results", "gradients of inputs", "add them")
    if len(backward.outputs) > 1:
        for result in backward.outputs:
            if not result.optional:
                raise Mistake(
                    f"result '{result.name}' of '{backward.name}' is always made",
                    "several gradients each made only when wanted",
                    f"write Tensor? {result.name}",
                )
