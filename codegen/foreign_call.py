# SPDX-License-Identifier: Apache-2.0
"""A call of a function of tvm-ffi, as text: checked here, read again by bindings/tvm_ffi."""

from __future__ import annotations

import ast

from .binding import Binding
from .params import Param
from .source import Mistake, listed, nearest

VIEWS = ("rows", "flat")  # leading dimensions made one; all of them
_EXAMPLE = 'write it like "rmsnorm(out, rows(x), weight, eps, False)"'


def check_call(text: str, params: list[Param], binding: Binding) -> None:
    """Refuses what is no call of one function, or names what the operator has not."""
    try:
        call = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise Mistake(f"call '{text}'", "a call of one function", _EXAMPLE) from None
    parts = ast.unparse(call.func).split(".") if isinstance(call, ast.Call) else [""]
    if not all(part.isascii() and part.isidentifier() for part in parts) or call.keywords:
        raise Mistake(f"call '{text}'", "a call of one function, arguments by place", _EXAMPLE)
    given = {name for node in call.args for name in _check_argument(node, params, binding)}
    for param in params:
        if (param.output or param.mutated) and param.name not in given:
            raise Mistake(
                f"call without '{param.name}', which the function must write",
                "every result and every argument that is written",
                f"pass {param.name}",
            )


def _check_argument(node: ast.expr, params: list[Param], binding: Binding) -> list[str]:
    """The parameters that an argument names, at most one."""
    by_name = {param.name: param for param in params}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return [_view(node, by_name)]
    if isinstance(node, ast.Name):
        sizes = [size for size in binding.sizes if size not in binding.element_sizes]
        if node.id not in (*by_name, *sizes):
            raise Mistake(
                f"'{node.id}' in the call",
                f"a parameter or a size ({listed([*by_name, *sizes])})",
                nearest(node.id, [*by_name, *sizes], "correct it"),
            )
        if node.id in by_name and by_name[node.id].is_list:
            raise Mistake(f"'{node.id}', a list", "tensors, numbers and text", "leave it out")
        return [node.id] if node.id in by_name else []
    number = node.operand if isinstance(node, ast.UnaryOp) else node
    if isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.USub):
        number = None
    if not isinstance(number, ast.Constant) or type(number.value) not in _constants(node):
        raise Mistake(
            f"'{ast.unparse(node)}' in the call",
            f"a parameter, a size, a number, text, True, False, None or {listed(VIEWS)}(tensor)",
            _EXAMPLE,
        )
    return []


def _constants(node: ast.expr) -> tuple[type, ...]:
    signed = (int, float)
    return signed if isinstance(node, ast.UnaryOp) else (*signed, bool, str, type(None))


def _view(node: ast.Call, by_name: dict[str, Param]) -> str:
    tensors = [p.name for p in by_name.values() if p.is_tensor and not p.is_list]
    if node.func.id not in VIEWS:
        raise Mistake(
            f"'{ast.unparse(node)}' in the call",
            f"{listed(VIEWS)} of a tensor",
            nearest(node.func.id, VIEWS, "correct it"),
        )
    names = [argument.id for argument in node.args if isinstance(argument, ast.Name)]
    if node.keywords or len(node.args) != 1 or names[:1] == [] or names[0] not in tensors:
        raise Mistake(
            f"'{ast.unparse(node)}' in the call", f"a tensor ({listed(tensors)})", _EXAMPLE
        )
    return names[0]
