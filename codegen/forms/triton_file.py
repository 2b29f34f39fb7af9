# SPDX-License-Identifier: Apache-2.0
"""What a Triton file says of one of its kernels, read without Triton: parameters, constants, configurations."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from ..schema.source import Mistake, check_one_of


@dataclass(frozen=True)
class TritonKernel:
    """One @triton.jit function."""

    params: tuple[str, ...]
    constants: tuple[str, ...]  # annotated tl.constexpr
    defaults: tuple[str, ...]  # params that have one
    unaligned: tuple[str, ...]  # of which divisibility is never asked
    configs: tuple[dict[str, int], ...] | None  # of @triton.autotune; None: it is not autotuned
    imports: tuple[
        str, ...
    ]  # modules beyond Triton's and Python's: their code may be in the kernel


def read_triton_kernel(file: str, source: str, name: object) -> TritonKernel:
    """Of a source that is Python."""
    body = ast.parse(source, file).body
    kernels = {
        node.name: node
        for node in body
        if isinstance(node, ast.FunctionDef)
        and any(_called(d).endswith("jit") for d in node.decorator_list)
    }
    what = f"{file} without the Triton kernel {name!r}"
    fix = 'write kernel = "..." of a function under @triton.jit'
    check_one_of(name, kernels, what, "one of it", fix)
    node = kernels[str(name)]
    given = [*node.args.posonlyargs, *node.args.args]
    if node.args.vararg or node.args.kwarg or node.args.kwonlyargs:
        raise Mistake(f"{file}: {name} with * arguments", "plain parameters", "name them")
    params = tuple(argument.arg for argument in given)
    constants = tuple(
        argument.arg
        for argument in given
        if argument.annotation
        and ast.unparse(argument.annotation).strip("'\"").endswith("constexpr")
    )
    return TritonKernel(
        params, constants, params[len(params) - len(node.args.defaults) :],
        _unaligned(node, params), _configs(file, node), _imports(source),
    )  # fmt: skip


def _called(decorator: ast.expr) -> str:
    return ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)


def _keyword(call: ast.expr, *names: str) -> list[ast.expr]:
    keywords = call.keywords if isinstance(call, ast.Call) else []
    return [keyword.value for keyword in keywords if keyword.arg in names]


def _unaligned(node: ast.FunctionDef, params: tuple[str, ...]) -> tuple[str, ...]:
    """What do_not_specialize and do_not_specialize_on_alignment name, by name or place."""
    found = []
    for decorator in node.decorator_list:
        for value in _keyword(decorator, "do_not_specialize", "do_not_specialize_on_alignment"):
            found += _literal(value, f"do_not_specialize of {node.name}")
    return tuple(params[item] if isinstance(item, int) else str(item) for item in found)


def _literal(value: ast.expr, what: str) -> Any:
    try:
        return ast.literal_eval(value)
    except ValueError:
        raise Mistake(f"{what}, which is computed", "numbers and texts", "write them out") from None


def _configs(file: str, node: ast.FunctionDef) -> tuple[dict[str, int], ...] | None:
    """Of @triton.autotune(configs=[triton.Config({"BLOCK": 64}, num_warps=4), ...])."""
    tuned = [d for d in node.decorator_list if _called(d).endswith("autotune")]
    if not tuned:
        return None
    listed_ = [*_keyword(tuned[0], "configs"), *getattr(tuned[0], "args", [])]
    what = f"configs of {node.name} in {file}"
    if not listed_ or not isinstance(listed_[0], ast.List):
        return ()
    configs = []
    for call in listed_[0].elts:
        if not isinstance(call, ast.Call):
            return ()
        if _keyword(call, "pre_hook") or len(call.args) > 3:
            raise Mistake(f"{what} with a pre_hook", "none: it runs at every launch", "remove it")
        named = [k.value for k in call.keywords if k.arg == "kwargs"]
        config = _literal((call.args[:1] or named)[0], what)
        config |= dict(zip(("num_warps", "num_stages"), (_literal(a, what) for a in call.args[1:])))
        config |= {k.arg: _literal(k.value, what) for k in call.keywords if k.arg != "kwargs"}
        configs.append({key: value for key, value in config.items() if value is not None})
    return tuple(configs)


def _imports(source: str) -> tuple[str, ...]:
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or ".")
    own = ("triton", "torch", "math", "typing", "__future__", "functools", "numpy")
    return tuple(sorted(name for name in found if name.partition(".")[0] not in own))
