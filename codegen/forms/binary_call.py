# SPDX-License-Identifier: Apache-2.0
"""How a kernel that is there as a binary is called: which function, on which grid, with which arguments."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..schema.binding import Binding
from ..schema.expressions import Expr, groups, letters, parse_expression, refuse_texts
from ..schema.fields import join_text, numel_field
from ..schema.params import Param
from ..schema.source import Mistake, check_one_of, listed
from . import binaries

# What a CUDA kernel can take by value -> kinds of arguments that become it.
TYPES = {
    "int32": ("int", "bool"), "int64": ("int", "bool"), "bool": ("bool",),
    "float": ("float",), "double": ("float",), "real": ("float",),
}  # fmt: skip
# "real": float, or double in a call with a tensor of float64; a compiler at run time knows it so.
_LATER = ("real",)
_PLACES = re.compile(r"(layout|rows|matrices|split)\(([^()]*)\)")
_ABSENT = re.compile(r"(\w+)\s+is\s+None", re.ASCII)
_EQUALS = re.compile(r"(\w+)\s*==\s*'(\w*)'", re.ASCII)
_NAME = r"[A-Za-z_$][A-Za-z0-9_$]*"
_IN_OPENCL = re.compile(rb"(?:\b|__)kernel\s+void\s+([A-Za-z_][A-Za-z0-9_]*)\s*\(")
_IN_HSACO = re.compile(rb"\0(" + _NAME.encode() + rb")\.kd(?=\0)")  # its descriptor
# Suffix of an image -> the device that takes it, what it is called; the others are CUDA's.
_IMAGES = {".cl": ("opencl", "OpenCL C"), ".hsaco": ("hip", "code object")}
_CUDA = ("cuda", "CUDA image")
_ENTRY = re.compile(rb"\.entry\s+([A-Za-z_$][A-Za-z0-9_$]*)")


@dataclass(frozen=True)
class Argument:
    """One value of the call: a parameter of the operator, or an expression of sizes."""

    text: str
    param: Param | None
    expression: Expr | None
    type: (
        str | None
    )  # of TYPES, "layout", "rows", "matrices", "split", "equals", "absent"; None: a pointer, or a value of tvm-ffi
    places: tuple[Param, ...] = ()  # of layout(...), rows(...), matrices(...) and split(...)


@dataclass(frozen=True)
class Image:
    """A kernel in images of CUDA or of a plugin's device, and its launch."""

    entry: str
    grid: tuple[Expr, ...]
    block: tuple[Expr, ...]
    shared_bytes: Expr
    arguments: tuple[Argument, ...]
    cluster: tuple[int, ...]  # blocks; empty: none
    cooperative: bool
    pdl: bool  # may start before what runs on the stream has ended: the kernel waits itself
    scratch_bytes: Expr | None  # of the argument "scratch"


@dataclass(frozen=True)
class Module:
    """A function that a library exports for tvm-ffi."""

    function: str
    arguments: tuple[Argument, ...]


def read_image(
    backend: str, files: list[Path], entry: dict[str, Any], params: list[Param], binding: Binding
) -> Image:
    """Of `cuda = { file = ["scale.cubin"], entry = ..., grid = ..., block = ..., arguments = [...] }`."""
    own, kind = _IMAGES.get(files[0].suffix, _CUDA)
    if backend != own:
        raise Mistake(
            f"the {kind} {files[0].name} for {backend}", f"{own} = ...", "correct the backend"
        )
    for key in ("entry", "grid", "block", "arguments"):
        if key not in entry:
            one = "an OpenCL kernel" if own == "opencl" else f"a {kind}"
            raise Mistake(f"{one} without {key}", "it", _EXAMPLES[key])
    if own != "cuda":
        _check_single(files, entry, kind)
    name = _name(entry["entry"], "entry")
    for file in files:
        _check_entry(file, name)
    known = known_sizes(params, binding)
    scratch = entry.get("scratch_bytes")
    texts = entry["arguments"]
    arguments = _arguments(texts, params, known, binding, "opencl" if own == "opencl" else "cuda")
    if own != "cuda":
        _check_count(arguments)
    if (scratch is not None) != (isinstance(texts, list) and SCRATCH in texts):
        raise Mistake(
            "scratch_bytes or the argument 'scratch' alone", "both", "write both, or neither"
        )
    return Image(
        name,
        _extent(entry["grid"], "grid", known, binding),
        _extent(entry["block"], "block", known, binding),
        size_expression(entry.get("shared_bytes", 0), "shared_bytes", known, binding),
        arguments,
        _cluster(entry.get("cluster", [])),
        _flag(entry, "cooperative"),
        _flag(entry, "pdl"),
        scratch if scratch is None else size_expression(scratch, "scratch_bytes", known, binding),
    )


SCRATCH = "scratch"
MOST_VALUES, MOST_TENSORS = 32, 10  # kAnyopImageValues, kAnyopImageTensors


def _check_single(files: list[Path], entry: dict[str, Any], kind: str) -> None:
    """What only CUDA's driver has."""
    if len(files) > 1:
        fix = "write both into one" if kind == "OpenCL C" else "bundle them into one"
        raise Mistake(f"{len(files)} files of {kind}", "one", fix)
    for key in ("cluster", "cooperative", "pdl"):
        if key in entry:
            one = "an OpenCL kernel" if kind == "OpenCL C" else f"a {kind}"
            raise Mistake(f"{key} of {one}", "CUDA's alone", "remove it")


def _check_count(arguments: tuple[Argument, ...]) -> None:
    """What a call of anyop/forms/device_image.h has room for."""
    tensors = sum(1 for a in arguments if a.type is None and a.param is not None)
    for count, most, what in (
        (len(arguments), MOST_VALUES, "arguments"),
        (tensors, MOST_TENSORS, "tensors"),
    ):
        if count > most:
            raise Mistake(f"{count} {what}", f"at most {most}", "pass fewer to the kernel")


def _cluster(value: object) -> tuple[int, ...]:
    sizes = value if isinstance(value, list) else [value]
    blocks = 1
    for size in sizes:
        blocks *= size if type(size) is int and size > 0 else 0
    if len(sizes) > 3 or not 1 <= blocks <= 16:
        raise Mistake(f"cluster {value!r}", "up to three numbers, at most 16 blocks", "correct it")
    return tuple(sizes)


def _flag(entry: dict[str, Any], key: str) -> bool:
    if type(entry.get(key, False)) is not bool:
        raise Mistake(f"{key} {entry[key]!r}", "true or false", "correct it")
    return entry.get(key, False)


_EXAMPLES = {
    "entry": 'write entry = "<the kernel\'s name>"',
    "grid": 'write grid = ["ceil(numel(*)/256)"]',
    "block": "write block = [256]",
    "arguments": 'write arguments = ["x", "out", "rows", "factor:float"]',
}


def read_module(
    files: list[Path], entry: dict[str, Any], params: list[Param], binding: Binding
) -> Module:
    """Of `cpu = { file = "libaddone.so", function = "add_one", arguments = [...] }`."""
    known = known_sizes(params, binding)
    exported = binaries.names(files[0], rb"__tvm_ffi_([A-Za-z][A-Za-z0-9_]*)")
    if "function" not in entry:
        raise Mistake(
            f"{files[0].name} without function",
            f"one that it exports ({listed(exported)})",
            'write function = "..."',
        )
    name = _name(entry["function"], "function")
    what = f"function '{name}', which {files[0].name} does not export"
    fix = "correct the name, or the library"
    check_one_of(name, exported, what, "one that it exports for tvm-ffi", fix)
    texts = entry.get("arguments", [param.name for param in params])
    return Module(name, _arguments(texts, params, known, binding, None))


def _name(value: object, what: str) -> str:
    if not isinstance(value, str) or not re.fullmatch(_NAME, value):
        raise Mistake(f"{what} {value!r}", "a name of C", "correct it")
    return value


def _check_entry(file: Path, name: str) -> None:
    """A fatbin may be compressed, and code objects bundled; of these the driver tells."""
    if file.suffix == ".ptx":
        found = [match.decode() for match in _ENTRY.findall(file.read_bytes())]
    elif file.suffix == ".cubin":
        if binaries.machine(file) != "CUDA":
            raise Mistake(f"{file.name} is no cubin", "an ELF file of nvcc -cubin", "make it anew")
        found = binaries.names(file, rb"\.text\.(" + _NAME.encode() + rb")")
    elif file.suffix == ".cl":
        found = [match.decode() for match in _IN_OPENCL.findall(file.read_bytes())]
    elif file.suffix == ".hsaco" and file.read_bytes()[:4] == b"\x7fELF":
        found = sorted({match.decode() for match in _IN_HSACO.findall(file.read_bytes())})
    else:
        return
    what = f"entry '{name}', which {file.name} lacks"
    fix = 'declare the kernel extern "C", or write its mangled name'
    check_one_of(name, found, what, "a kernel of it", fix)


def known_sizes(params: list[Param], binding: Binding) -> list[str]:
    """Fields of the argument struct that are integers."""
    whole = [p.name for p in params if p.kind == "int" and not p.optional and not p.is_list]
    sizes = [name for name in binding.sizes if name not in binding.element_sizes]
    products: list[Any] = [group for group in binding.groups if group not in binding.element_groups]
    return [*whole, *sizes, *(numel_field(group) for group in [*products, *binding.joins])]


def _extent(value: object, what: str, known: list[str], binding: Binding) -> tuple[Expr, ...]:
    values = value if isinstance(value, list) else [value]
    if not 1 <= len(values) <= 3:
        raise Mistake(f"{what} of {len(values)} sizes", "one, two or three", "correct it")
    return tuple(size_expression(item, what, known, binding) for item in values)


def size_expression(value: object, what: str, known: list[str], binding: Binding) -> Expr:
    """An expression whose letters and groups are fields; numel(X) is the field of the product."""
    if type(value) is int:
        value = str(value)
    if not isinstance(value, str):
        raise Mistake(f"{what} {value!r}", "a number or an expression of sizes", _EXAMPLES["grid"])
    expression = parse_expression(re.sub(r"\(\s*\*\s*\)", "(_)", value))  # numel(*)
    refuse_texts(expression, f"{what} '{value}'")
    for letter in letters(expression):
        at = f"'{letter}' in {what} '{value}'"
        check_one_of(letter, known, at, "a size or an int argument", "use only these")
    for group in groups(expression):
        if not _is_product(group, binding):
            text = join_text(group) if isinstance(group, tuple) else f"*{group.strip('_')}"
            raise Mistake(f"'{text}' in {what} '{value}'", "a group of a shape", "correct it")
    if "rank" in _operations(expression):
        raise Mistake(f"rank in {what} '{value}'", "sizes and numel(X)", "write a size")
    return expression


def _is_product(group: str | tuple[str, ...], binding: Binding) -> bool:
    if isinstance(group, tuple):
        return group in binding.joins
    return group in binding.groups and group not in binding.element_groups


def _operations(expression: Expr) -> set[str]:
    if not isinstance(expression, tuple):
        return set()
    return {expression[0]}.union(*map(_operations, expression[1:]))


def _arguments(
    texts: object, params: list[Param], known: list[str], binding: Binding, image: str | None
) -> tuple[Argument, ...]:
    if not isinstance(texts, list) or not all(type(text) in (str, int) for text in texts):
        raise Mistake(f"arguments {texts!r}", "a list of texts", _EXAMPLES["arguments"])
    if image:
        placed = []
        for text in texts if image != "cuda" else ():
            if not str(text).lstrip().startswith("split"):
                placed += _places(str(text), params)
        arguments = tuple(
            _image_argument(str(t), params, known, binding, image, placed) for t in texts
        )
    else:
        arguments = tuple(_module_argument(str(text), params, known, binding) for text in texts)
    given = {argument.param.name for argument in arguments if argument.param}
    for param in params:
        if (param.output or param.mutated) and param.name not in given:
            raise Mistake(
                f"arguments without '{param.name}', which the kernel must write",
                "every result and every argument that is written",
                f'add "{param.name}"',
            )
    return arguments


def _places(text: str, params: list[Param]) -> list[Param]:
    """The tensors of layout(...), rows(...) and matrices(...), the tensor and the dimension of split(x, dim)."""
    match = _PLACES.fullmatch(text.strip())
    if not match:
        return []
    named = {param.name: param for param in params if param.is_tensor and not param.is_list}
    names = [name.strip() for name in match[2].split(",")]
    if match[1] == "split":
        whole = {p.name: p for p in params if p.kind == "int" and not p.optional and not p.is_list}
        if len(names) != 2 or names[0] not in named or names[1] not in whole:
            raise Mistake(
                f"'{text}'", "a tensor and an int argument", "write it like split(x, dim)"
            )
        return [named[names[0]], whole[names[1]]]
    for name in names:
        check_one_of(name, named, f"'{name}' in '{text}'", "a tensor", "correct it")
    if len(names) > 4 or named[names[0]].optional:
        raise Mistake(f"'{text}'", "up to four tensors, the first always there", "correct it")
    return [named[name] for name in names]


def _image_argument(
    text: str,
    params: list[Param],
    known: list[str],
    binding: Binding,
    image: str,
    placed: list[Param],
) -> Argument:
    if image != "cuda" and (word := _word_argument(text, params)):
        return word
    name, _, kind = (part.strip() for part in text.partition(":"))
    param = next((param for param in params if param.name == name), None)
    if param is None and text == SCRATCH:
        return Argument(text, None, None, None)
    if param is None:
        expression = size_expression(name, "arguments", known, binding)
        _check_type(text, "int", kind or "int64")
        return Argument(text, None, expression, kind or "int64")
    is_number = kind == "real" and image != "cuda" and _is_optional_number(param)
    if param.is_list or (param.optional and not param.is_tensor and not is_number):
        what = "a list" if param.is_list else "optional"
        raise Mistake(f"'{name}', which is {what}", "a tensor or a number", "leave it out")
    if param.is_tensor:
        return _tensor_argument(text, param, kind, placed)
    if param.kind == "float" and not kind:
        raise Mistake(
            f"'{name}' without a type",
            "float or double",
            f'write "{name}:float", as the kernel has it',
        )
    kind = kind or {"int": "int64", "bool": "bool"}.get(param.kind, "")
    _check_type(text, param.kind, kind, () if image != "cuda" else _LATER)
    return Argument(text, param, None, kind)


def _word_argument(text: str, params: list[Param]) -> Argument | None:
    """layout(x), mode == 'sum', absent(cap); None: it is none of these."""
    if places := _places(text, params):
        return Argument(text, None, None, text.split("(")[0].strip(), tuple(places))
    if equals := _EQUALS.fullmatch(text.strip()):
        texts = {p.name: p for p in params if p.kind == "str" and not p.is_list}
        check_one_of(equals[1], texts, f"'{equals[1]}' in '{text}'", "a str argument")
        return Argument(equals[2], texts[equals[1]], None, "equals")
    if absent := _ABSENT.fullmatch(text.strip()):
        scalars = {p.name: p for p in params if _is_optional_number(p)}
        check_one_of(absent[1], scalars, f"'{absent[1]}' in '{text}'", "an optional number")
        return Argument(text, scalars[absent[1]], None, "absent")
    return None


def _tensor_argument(text: str, param: Param, kind: str, placed: list[Param]) -> Argument:
    if kind:
        raise Mistake(f"'{text}'", "the name of the tensor alone", f'write "{param.name}"')
    if (param.layout != "contiguous" or param.expanded) and param not in placed:
        raise Mistake(
            f"'{param.name}', whose strides are free (a kernel in an image gets none)",
            "a contiguous tensor",
            f"remove {param.name} from [layouts], or write its shape without broadcasting",
        )
    return Argument(text, param, None, None)


def _is_optional_number(param: Param) -> bool:
    return param.optional and param.kind == "float" and not param.is_list


def _check_type(text: str, kind: str, stated: str, without: tuple[str, ...] = ()) -> None:
    fitting = [name for name, kinds in TYPES.items() if kind in kinds and name not in without]
    if stated not in fitting:
        raise Mistake(f"'{text}', of type {kind}", f"it as {listed(fitting)}", "correct the type")


def _module_argument(
    text: str, params: list[Param], known: list[str], binding: Binding
) -> Argument:
    param = next((param for param in params if param.name == text.strip()), None)
    if param is None:
        return Argument(text, None, size_expression(text, "arguments", known, binding), None)
    if param.is_list:
        raise Mistake(
            f"'{param.name}', which is a list", "tensors, numbers and text", "leave it out"
        )
    return Argument(text, param, None, None)
