# SPDX-License-Identifier: Apache-2.0
"""The table `launch` of a Triton kernel: how it is started without Python, checked against its file."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..schema.binding import Binding
from ..schema.dtypes import DTYPES, dtype_name, promote
from ..schema.expressions import Expr
from ..schema.fields import numel_field
from ..schema.operator_sections import check_keys, text_of, texts_of
from ..schema.params import Param
from ..schema.source import Mistake, check_one_of, listed, nearest
from .launch_expression import check_names, evaluate, parse_launch, tensors
from .triton_file import TritonKernel, read_triton_kernel

_KEYS = ("kernel", "grid", "arguments", "names", "constants", "options", "configs", "ahead")
OPTIONS = (
    "num_warps", "num_stages", "num_ctas", "maxnreg", "launch_pdl", "launch_cooperative_grid", "enable_fp_fusion",
)  # fmt: skip
ABSENT = 255  # in place of a dtype
_MOST_CONSTANTS = 16  # as include/anyop/forms/triton_image.h has room
_MOST_ARGUMENTS = 24
_CONDITIONS = ("==", "!=", "<", "<=", "and", "or", "has", "text")


@dataclass(frozen=True)
class LaunchArgument:
    """One value that the kernel gets at run time."""

    name: str  # the kernel's parameter
    text: str
    type: str  # "tensor", "int", "float", "double", "bool"
    param: Param | None
    expression: Expr | None
    layout: str  # of a tensor: "contiguous", "rows" (stride(x) is passed), "free" (all strides are)
    aligned: int  # the image for 16 relies on it: 1, or 2 of a result, else 0


@dataclass(frozen=True)
class Launch:
    """A Triton kernel, and its launch."""

    kernel: str
    base: str  # name of its images
    names: dict[str, Expr]
    configs: tuple[dict[str, int], ...]  # names -> values of each choice; none: one without
    constants: dict[str, Expr]  # of the kernel and of its compiler, those that vary
    grid: tuple[Expr, ...]
    arguments: tuple[LaunchArgument, ...]
    known: dict[str, str]  # name -> its C
    text: dict[str, Any]  # what the compiler is told, JSON
    ahead: tuple[str, ...]  # kinds that are compiled with the library


def check_launch(table: object) -> dict[str, Any]:
    """The table, with keys that are known and those that must be there."""
    if not isinstance(table, dict):
        raise Mistake(f"launch {table!r}", "a table", "write [launch.triton]")
    check_keys(table, _KEYS, "key of launch")
    for key in ("kernel", "grid", "arguments"):
        if key not in table:
            raise Mistake(f"launch without {key}", "it", _EXAMPLES[key])
    text_of(table["kernel"], "kernel")
    return table


def read_launch(
    symbol: str, file: Path, source: str, table: dict[str, Any], when: str | None, params: list[Param],
    binding: Binding,
) -> Launch:  # fmt: skip
    """Of [launch.triton]."""
    kernel = read_triton_kernel(file.name, source, table["kernel"])
    return _Reader(symbol, file, source, table, kernel, params, binding).read(when)


_EXAMPLES = {
    "kernel": 'write kernel = "<the function under @triton.jit>"',
    "grid": 'write grid = ["ceil(rows/ROWS)"]',
    "arguments": 'write arguments = ["x", "out", "rows", "stride(x)", "eps"]',
}


class _Reader:
    def __init__(
        self, op: str, file: Path, source: str, table: dict, kernel: TritonKernel, params: list[Param],
        binding: Binding,
    ) -> None:  # fmt: skip
        self.op, self.file, self.source, self.table, self.kernel = op, file, source, table, kernel
        self.params, self.binding = {param.name: param for param in params}, binding
        self.known = _known(params, binding)
        self.used: list[Expr] = []
        self.whole: dict[str, int] = {}  # names that are fixed

    def read(self, when: str | None) -> Launch:
        given = {key: self._section(key) for key in ("names", "constants", "options")}
        check_keys(given["options"], OPTIONS, "option of launch")
        own = {name: self._add(name, text, "n_") for name, text in given["names"].items()}
        configs = self._configs(given)
        constants, fixed = self._varying_and_fixed(
            {**given["constants"], **given["options"]}, configs
        )
        grid = self.table["grid"] if isinstance(self.table["grid"], list) else [self.table["grid"]]
        if not 1 <= len(grid) <= 3:
            raise Mistake(f"grid of {len(grid)} sizes", "one, two or three", "correct it")
        extents = tuple(self._expression(text) for text in grid)
        arguments = self._arguments(given["constants"], constants)
        text = self._text(arguments, constants, fixed)
        digest = hashlib.sha256(
            json.dumps([self.source, text], sort_keys=True).encode()
        ).hexdigest()
        base = f"{self.op}-{digest[:16]}"
        launch = Launch(
            self.table["kernel"], base, own, configs, constants, extents, arguments, self.known,
            {**text, "base": base, "source": self.source}, (),
        )  # fmt: skip
        ahead = tuple(dict.fromkeys(self._ahead(launch, when)))
        return Launch(**{**launch.__dict__, "ahead": ahead})

    def _varying_and_fixed(
        self, stated: dict[str, Any], configs: Sequence[dict[str, Any]]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Those that vary, as expressions, and those that are fixed, which expressions may name."""
        varying, fixed = {}, {}
        for name, value in stated.items():
            if isinstance(value, str) and not re.fullmatch(r"tl\.\w+", value):
                varying[name] = self._add(name, value, "c_")
            elif type(value) in (str, int, float, bool):
                fixed[name] = value
                if type(value) in (int, bool) and name not in self.known:
                    self.known[name] = f"INT64_C({int(value)})"
                    self.whole[name] = int(value)
            else:
                found = f"{name} = {value!r} in launch"
                raise Mistake(found, "a number or an expression", "correct it")
        varying = {**dict.fromkeys(configs[0] if configs else (), 0), **varying}
        if len(varying) > _MOST_CONSTANTS:
            found = f"{len(varying)} constants that vary"
            raise Mistake(found, f"at most {_MOST_CONSTANTS}", "fix some")
        return varying, fixed

    def _section(self, key: str) -> dict[str, Any]:
        value = self.table.get(key, {})
        if not isinstance(value, dict) or not all(n.isidentifier() and n.isascii() for n in value):
            raise Mistake(
                f"{key} of launch {value!r}",
                "names and expressions",
                f'write {key} = {{ N = "D" }}',
            )
        return value

    def _add(self, name: str, text: object, prefix: str) -> Expr:
        """The expression of a name; those that come later may use it. A constant may be called as a size."""
        taken = name in self.known or name in self.params
        if taken and prefix == "n_":
            raise Mistake(f"'{name}' of launch, which is there already", "a new name", "rename it")
        expression = self._expression(text)
        if not taken:
            self.known[name] = f"{prefix}{name}"
        return expression

    def _expression(self, value: object) -> Expr:
        if type(value) not in (int, str):
            raise Mistake(f"{value!r} in launch", "a number or an expression", _EXAMPLES["grid"])
        text = re.sub(r"numel\(\s*\*\s*\)", "rows", str(value))
        expression = self._fields(parse_launch(text))
        check_names(expression, self.known, text)
        for word, name, *rest in tensors(expression):
            param = self.params.get(name)
            kind = "str" if word == "text" else param.kind if word == "has" and param else "Tensor"
            if param is None or param.is_list or param.kind != kind:
                found = [p.name for p in self.params.values() if p.kind == kind and not p.is_list]
                raise Mistake(
                    f"{word}({name}) in '{text}' of launch",
                    listed(found),
                    nearest(name, found, "correct it"),
                )
            if word not in ("has", "text") and param.optional:
                raise Mistake(
                    f"{word}({name}) in '{text}', which may be absent",
                    "an argument of every call",
                    "use another",
                )
            if rest and word == "stride" and type(_whole(rest[0])) is not int:
                raise Mistake(
                    f"stride of a dimension that varies in '{text}'", "a number", "write it"
                )
        self.used.append(expression)
        return expression

    def _fields(self, expression: Expr) -> Expr:
        """Numel of a group is its field; the condition `x is None` of a bool or int needs no tensor."""
        if not isinstance(expression, tuple):
            return expression
        if expression[0] == "numel" and expression[1] not in self.params:
            return numel_field(expression[1])
        return tuple(self._fields(part) if isinstance(part, tuple) else part for part in expression)

    def _configs(self, given: dict[str, dict]) -> tuple[dict[str, int], ...]:
        """The choices: those of the file, or as launch states them."""
        configs = self.table.get("configs", self.kernel.configs or [])
        if self.kernel.configs is not None and not configs:
            raise Mistake(
                f"{self.table['kernel']} is autotuned by configurations that are computed", "them",
                "write configs = [{ BLOCK = 1024, num_warps = 4 }, ...] into launch",
            )  # fmt: skip
        if not isinstance(configs, (list, tuple)) or not all(isinstance(c, dict) for c in configs):
            raise Mistake(f"configs {configs!r}", "a list of tables", "write [{ BLOCK = 1024 }]")
        keys = sorted({key for config in configs for key in config})
        for config in configs:
            if sorted(config) != keys or not all(
                type(value) in (int, bool) for value in config.values()
            ):
                raise Mistake(
                    f"configuration {config!r}",
                    f"whole numbers for {listed(keys, 'and')}",
                    "complete it",
                )
        for name in keys:
            if name in given["constants"] or name in given["options"] or name in self.known:
                raise Mistake(
                    f"'{name}' of configs and elsewhere in launch", "it once", "remove one"
                )
            self.known[name] = f"c_{name}"
        return tuple({key: int(config[key]) for key in keys} for config in configs)

    def _arguments(
        self, constants: dict[str, Any], varying: dict[str, Expr]
    ) -> tuple[LaunchArgument, ...]:
        texts, rest = self.table["arguments"], self._rest({*constants, *varying} - {*OPTIONS})
        if not isinstance(texts, list) or not all(type(text) in (str, int) for text in texts):
            raise Mistake(f"arguments {texts!r}", "a list of texts", _EXAMPLES["arguments"])
        if len(texts) != len(rest):
            what = f"{len(texts)} arguments of {self.table['kernel']}"
            raise Mistake(what, f"{len(rest)} ({', '.join(rest)})", "complete them")
        if len(texts) > _MOST_ARGUMENTS:
            raise Mistake(f"{len(texts)} arguments", f"at most {_MOST_ARGUMENTS}", "pass fewer")
        found = [self._argument(name, str(text)) for name, text in zip(rest, texts, strict=True)]
        given = {argument.param.name for argument in found if argument.param}
        for param in self.params.values():
            if (param.output or param.mutated) and param.name not in given:
                raise Mistake(
                    f"arguments without '{param.name}', which the kernel must write",
                    "every result",
                    f'add "{param.name}"',
                )
        return tuple(self._with_layout(argument) for argument in found)

    def _rest(self, stated: set[str]) -> list[str]:
        """The parameters that arguments are for: all but the constants, each of which is stated or has a default."""
        kernel = self.kernel
        if unknown := stated - set(kernel.params):
            name = sorted(unknown)[0]
            found = f"constant '{name}', which {self.table['kernel']} has not"
            check_one_of(name, kernel.params, found, "one of its parameters", "remove it")
        missing = [n for n in kernel.constants if n not in stated and n not in kernel.defaults]
        if missing:
            found, fix = listed(missing, "and"), f'write constants = {{ {missing[0]} = "..." }}'
            raise Mistake(f"launch without the constant {found}", "it", fix)
        return [n for n in kernel.params if n not in stated and n not in kernel.constants]

    def _argument(self, name: str, text: str) -> LaunchArgument:
        word, _, kind = (part.strip() for part in text.partition(":"))
        param = self.params.get(word)
        aligned = 2 if param and (param.output or param.mutated) else 1
        if name in self.kernel.unaligned:
            aligned = 0
        if param is None:
            if kind:
                raise Mistake(
                    f"'{text}' in arguments", "an expression without a type", "remove the type"
                )
            return LaunchArgument(name, text, "int", None, self._expression(text), "", aligned)
        if (
            param.is_list
            or param.kind in ("str", "ScalarType")
            or (param.optional and not param.is_tensor)
        ):
            raise Mistake(
                f"'{word}' in arguments",
                "a tensor or a number that is never absent",
                "make a constant of it",
            )
        types = {"Tensor": ("",), "int": ("",), "bool": ("",), "float": ("", "float", "double")}[
            param.kind
        ]
        if kind not in types:
            raise Mistake(
                f"'{text}' in arguments", listed(filter(None, types)) or "no type", "correct it"
            )
        kind = {"Tensor": "tensor", "float": kind or "float"}.get(param.kind, param.kind)
        return LaunchArgument(name, text, kind, param, word if kind == "int" else None, "", aligned)

    def _with_layout(self, argument: LaunchArgument) -> LaunchArgument:
        if argument.type != "tensor":
            return argument
        asked = [
            part[2:]
            for expr in self.used
            for part in tensors(expr, "stride")
            if part[1] == argument.param.name
        ]
        dims = {dim for part in asked if part and isinstance(dim := _whole(part[0]), int)}
        layout = "rows" if () in asked else "contiguous"
        if dims:
            shape = argument.param.shape
            rank = len(shape.before) + len(shape.after)
            if shape.group is not None or {d % rank for d in dims if -rank <= d < rank} != set(
                range(rank)
            ):
                raise Mistake(
                    f"some strides of {argument.param.name} in launch",
                    "stride(x), that of its rows, or those of all dimensions of a shape without *",
                    "pass them all",
                )
            layout = "free"
        return LaunchArgument(**{**argument.__dict__, "layout": layout})

    def _text(self, arguments, constants, fixed) -> dict[str, Any]:
        conditions = [
            n for n, e in constants.items() if isinstance(e, tuple) and e[0] in _CONDITIONS
        ]
        booleans = [n for n, e in constants.items() if isinstance(e, str) and self._is_bool(e)]
        return {
            "file": self.file.name,
            "kernel": self.table["kernel"],
            "arguments": [[a.name, a.type, a.aligned] for a in arguments],
            "constants": list(constants),
            "booleans": conditions + booleans,
            "fixed": fixed,
            "imports": self.kernel.imports,
        }

    def _is_bool(self, name: str) -> bool:
        return name in self.params and self.params[name].kind == "bool"

    def _ahead(self, launch: Launch, when: str | None) -> Iterator[str]:
        """Kinds of the calls that `ahead` lists: dtypes;aligned;wide;constants."""
        for line in texts_of(self.table.get("ahead", []), "ahead"):
            words = dict(word.partition("=")[::2] for word in line.split())
            dtypes = words.pop("dtype", "") or _dtypes_of(when)
            choices = [
                [(name, value) for value in values.split("|")] for name, values in words.items()
            ]
            for chosen in itertools.product(*choices):
                values = self._values(line, dict(chosen))
                for dtype in dtypes.split("|") if dtypes else self._first_dtypes():
                    for config in launch.configs or ({},):
                        constants = self._constants(line, launch, {**values, **config})
                        for aligned in (1, 2, 0):
                            yield f"{self._dtype_words(launch, dtype, values)};{aligned};0;{constants}"

    def _values(self, line: str, chosen: dict[str, str]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, text in chosen.items():
            if text == "None" and name in self.params:
                values[f"has {name}"] = 0
            elif re.fullmatch(r"-?\d{1,18}", text) and name in self.known:
                values[name] = int(text)
            elif name in self.params and self.params[name].kind == "str":
                values[name] = text
            else:
                raise Mistake(
                    f"'{name}={text}' in ahead '{line}'",
                    f"a number for {listed(self.known)}",
                    "correct it",
                )
        return values

    def _constants(self, line: str, launch: Launch, values: dict[str, Any]) -> str:
        values, made = {**self.whole, **values}, {}
        for name, expression in launch.names.items():
            with contextlib.suppress(
                KeyError, ZeroDivisionError
            ):  # what no constant needs may be left open
                values.setdefault(name, evaluate(expression, values))
        try:
            for name, expression in launch.constants.items():
                is_size = launch.known[name].startswith("args->")  # of the operator, called alike
                stated = name in values and not is_size
                made[name] = values[name] if stated else evaluate(expression, values)
                values.setdefault(name, made[name])
        except KeyError as error:
            raise Mistake(
                f"ahead '{line}' without {error.args[0]}",
                "what the constants follow from",
                f"add {error.args[0]}=...",
            ) from None
        except ZeroDivisionError:
            raise Mistake(
                f"ahead '{line}', which divides by zero", "other sizes", "correct it"
            ) from None
        return ",".join(str(made[name]) for name in launch.constants)

    def _first_dtypes(self) -> tuple[str, ...]:
        return next(param.possible for param in self.params.values() if param.is_tensor)

    def _dtype_words(self, launch: Launch, dtype: str, values: dict[str, Any]) -> str:
        """Of every tensor argument, where the first tensors of the operator have the dtype."""
        found: dict[str, str] = {}
        for param in self.params.values():
            if param.is_tensor and not param.is_list:
                rule = param.dtypes
                first, second = rule.first_given or ("", "")
                like = rule.same_as or (first if values.get(f"has {first}", 1) else second)
                pair = [found.get(name) for name in rule.promote] if rule.promote else []
                pair += [rule.with_dtype] if rule.with_dtype else []
                both = promote(*pair) if all(pair) and pair else None
                found[param.name] = both or found.get(like) or _fitting(dtype_name(dtype), param)
        given = [a.param.name for a in launch.arguments if a.type == "tensor"]
        return ",".join(
            str(DTYPES.index(found[n]) if values.get(f"has {n}", 1) else ABSENT) for n in given
        )


def _fitting(dtype: str, param: Param) -> str:
    return dtype if dtype in param.possible else param.possible[0]


def _dtypes_of(when: str | None) -> str:
    match = re.search(r"(?:^| )dtype=(\S+)", when or "")
    return match[1] if match else ""


def _whole(expression: Expr) -> Expr:
    return (
        -expression[2]
        if isinstance(expression, tuple) and expression[:2] == ("-", 0)
        else expression
    )


def _known(params: list[Param], binding: Binding) -> dict[str, str]:
    """Numbers of the argument struct -> their C."""
    found = {
        p.name: f"args->{p.name}"
        for p in params
        if p.kind in ("int", "bool") and not (p.optional or p.is_list)
    }
    sizes = [name for name in binding.sizes if name not in binding.element_sizes]
    groups = [group for group in binding.groups if group not in binding.element_groups]
    products = [*map(numel_field, groups), *map(numel_field, binding.joins)]
    for name in (*sizes, *products):
        found[name] = f"args->{name}"
    for p in params:
        if p.is_tensor and not p.is_list:
            found[f"has {p.name}"] = f"(args->{p.name} != NULL)"
        elif p.optional and not p.is_list:
            found[f"has {p.name}"] = (
                f"(args->{p.name}.{'data != NULL' if p.kind == 'str' else 'has != 0'})"
            )
    return found
