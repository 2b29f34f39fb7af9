# SPDX-License-Identifier: Apache-2.0
"""A call of a function of tvm-ffi, as text: checked here, read again by bindings/tvm_ffi."""

from __future__ import annotations

import ast

from ..schema.binding import Binding
from ..schema.params import Param
from ..schema.source import Mistake, listed, nearest

VIEWS = ("rows", "flat")  # leading dimensions made one; all of them
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
_LANGUAGE = (
    "a parameter, a number, text, True, False, None, a list, rows(tensor), flat(tensor), workspace(bytes), "
    "+ - * // % min max ceil(a/b) numel(tensor) of sizes and int arguments"
)
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
    """The parameters that an argument names by themselves, at most one."""
    by_name = {param.name: param for param in params}
    if isinstance(node, ast.Name) and node.id in by_name:
        return [node.id]
    if _called(node) in VIEWS:
        return [_tensor(node, by_name)]
    number = node.operand if isinstance(node, ast.UnaryOp) else node
    if isinstance(number, ast.Constant) and type(number.value) in _constants(node):
        return []
    if _called(node) == "workspace" and len(node.args) == 1:
        _check_expression(node.args[0], by_name, binding)
    elif isinstance(node, ast.List):
        for element in node.elts:
            if not isinstance(element, ast.Constant) or type(element.value) not in (float, bool):
                _check_expression(element, by_name, binding)
    else:
        _check_expression(node, by_name, binding)
    return []


def _constants(node: ast.expr) -> tuple[type, ...]:
    if not isinstance(node, ast.UnaryOp):
        return (int, float, bool, str, type(None))
    return (int, float) if isinstance(node.op, ast.USub) else ()


def _called(node: ast.expr) -> str:
    """The function of a plain call, empty where it is none."""
    plain = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords
    return node.func.id if plain else ""


def _check_expression(node: ast.expr, by_name: dict[str, Param], binding: Binding) -> None:
    """An integer of sizes and int arguments."""
    parts: list[ast.expr] = []
    if isinstance(node, ast.Name):
        _check_name(node.id, by_name, binding)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, _ARITHMETIC):
        parts = [node.left, node.right]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        parts = [node.operand]
    elif _called(node) in ("min", "max") and len(node.args) == 2:
        parts = node.args
    elif _called(node) == "ceil" and isinstance(getattr(node.args[0], "op", None), ast.Div):
        parts = [node.args[0].left, node.args[0].right]
    elif _called(node) == "numel":
        _tensor(node, by_name)
    elif not isinstance(node, ast.Constant) or type(node.value) is not int:
        words = (*VIEWS, "workspace")
        fix = nearest(_called(node), words, _EXAMPLE) if _called(node) else _EXAMPLE
        raise Mistake(f"'{ast.unparse(node)}' in the call", _LANGUAGE, fix)
    for part in parts:
        _check_expression(part, by_name, binding)


def _check_name(name: str, by_name: dict[str, Param], binding: Binding) -> None:
    sizes = [size for size in binding.sizes if size not in binding.element_sizes]
    whole = [
        p.name for p in by_name.values() if p.kind == "int" and not p.optional and not p.is_list
    ]
    if name in (*sizes, *whole):
        return
    if name in by_name:
        raise Mistake(f"'{name}' in an expression of the call", "sizes and int arguments", _EXAMPLE)
    raise Mistake(
        f"'{name}' in the call",
        f"a parameter or a size ({listed([*by_name, *sizes])})",
        nearest(name, [*by_name, *sizes], "correct it"),
    )


def _tensor(node: ast.Call, by_name: dict[str, Param]) -> str:
    """The one tensor that is asked for."""
    tensors = [p.name for p in by_name.values() if p.is_tensor and not p.is_list]
    names = [argument.id for argument in node.args if isinstance(argument, ast.Name)]
    if len(node.args) != 1 or names[:1] == [] or names[0] not in tensors:
        raise Mistake(
            f"'{ast.unparse(node)}' in the call", f"a tensor ({listed(tensors)})", _EXAMPLE
        )
    return names[0]
