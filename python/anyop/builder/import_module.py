# SPDX-License-Identifier: Apache-2.0
"""Drafts operator files for the functions of a tvm-ffi library, which is used as it is.

A draft is right in names and types. What no library tells stands under a comment CHECK: which tensors
are written, shapes, dtypes and the device. The convention: a function that returns nothing writes its
last tensor; all sizes are equal.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from anyop import _anyop
from anyop._paths import package_file
from anyop.builder.elf import Elf, NotElf
from anyop.codegen.operators.folders import read_folders
from anyop.codegen.schema.names import check_namespace, check_operator_name
from anyop.codegen.schema.source import Mistake
from anyop.codegen.text.toml_text import toml_value

_PREFIX, _METADATA, _DOC = "__tvm_ffi_", "__tvm_ffi__metadata_", "__tvm_ffi__doc_"
_TIMEOUT_S = 60
_TENSOR = ("DLTensor*",)
# Types of tvm-ffi -> types of a schema.
_TYPES = {
    **dict.fromkeys(_TENSOR, "Tensor"),
    "int": "int",
    "float": "float",
    "bool": "bool",
    "ffi.String": "str",
    "const char*": "str",
    "std::string": "str",
    "DataType": "ScalarType",
}
_SECTIONS = {".nv_fatbin": "cuda", ".hip_fatbin": "hip"}


@dataclass
class Drafts:
    """What was written, and for which functions nothing could be."""

    folder: str
    written: list[str] = field(default_factory=list)  # paths
    skipped: dict[str, str] = field(default_factory=dict)  # function -> reason


def import_module(
    path: str | os.PathLike, out: str | None = None, namespace: str | None = None
) -> Drafts:
    """Write a draft for each function of the library at `path` into `out`, with a copy of the library.

    out: default: a folder of the library's name in the current one. namespace: default: that name.
    Raises OSError, FileExistsError, ValueError.
    """
    file = os.path.abspath(os.fspath(path))
    if not Path(file).name.isprintable():
        raise ValueError(f"the name {Path(file).name!r} cannot stand in an operator file")
    library = _read(file)
    functions = sorted(
        name[len(_PREFIX) :]
        for name in library.exported
        if re.fullmatch(rf"{_PREFIX}[A-Za-z]\w*", name)
    )
    if not functions:
        raise ValueError(f"{file} exports no function of tvm-ffi ({_PREFIX}<name>)")
    stem = re.sub(r"\W+", "_", Path(file).name.split(".")[0].removeprefix("lib")).strip("_").lower()
    namespace = stem if namespace is None else namespace
    _check(check_namespace, namespace)
    drafts = Drafts(os.path.abspath(out or stem))
    texts = _drafts(drafts, file, library, functions, namespace)
    _write(drafts, file, texts)
    return drafts


def _read(file: str) -> Elf:
    library = Elf(file)
    _anyop.check_library(file)  # a process will load it
    if library.kind != "ET_DYN":
        raise NotElf(f"{file} is no shared library (ELF type {library.kind}, expected ET_DYN)")
    machine = os.uname().machine
    if library.machine != machine:
        raise ValueError(f"{file} is for {library.machine}, and this machine is {machine}")
    return library


def _check(function, *arguments: str) -> None:
    try:
        function(*arguments)
    except Mistake as mistake:
        raise ValueError(str(mistake)) from None


def _drafts(
    drafts: Drafts, file: str, library: Elf, functions: list[str], namespace: str
) -> dict[str, str]:
    """Operator -> text of its file."""
    told = [n for f in functions for n in (_METADATA + f, _DOC + f) if n in library.exported]
    texts = _metadata(file, told) if told else {}
    names = library.sections
    backend = next((found for section, found in _SECTIONS.items() if section in names), "cpu")
    made: dict[str, str] = {}
    for function in functions:
        operator = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", function).lower()
        try:
            _check(check_operator_name, namespace, operator)
            if operator in made:
                raise ValueError(f"another function becomes the operator {operator}, too")
            types = _types(texts.get(_METADATA + function))
            doc = texts.get(_DOC + function)
            made[operator] = _draft(
                namespace, operator, function, Path(file).name, backend, types, doc
            )
        except ValueError as error:
            drafts.skipped[function] = str(error)
    return made


def _metadata(file: str, symbols: list[str]) -> dict[str, str]:
    """Symbol -> its text, from a process that loads the library."""
    program = str(Path(__file__).with_name("module_metadata.py"))
    command = [sys.executable, "-I", program, file, _runtime(), *symbols]
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"{file} does not load within {_TIMEOUT_S} seconds") from None
    last = run.stdout.splitlines()[-1] if run.stdout else ""
    if run.returncode != 0 or not last.startswith("{"):
        reason = run.stderr.strip().splitlines()[-1:] or [f"exit code {run.returncode}"]
        raise ValueError(f"{file} cannot be loaded: {reason[0]}")
    answer = json.loads(last)
    if "problem" in answer:
        raise ValueError(f"{file} cannot be loaded: {answer['problem']}")
    return answer["texts"]


def _runtime() -> str:
    """The libtvm_ffi of the installed package, empty without it."""
    return package_file("tvm_ffi", "lib", "libtvm_ffi.so")


def _types(text: str | None) -> tuple[list[dict], dict] | None:
    """Arguments and result of the JSON of tvm-ffi, old form or new; None where the library tells nothing."""
    if text is None:
        return None
    try:
        schema = json.loads(json.loads(text)["type_schema"])
        if "named_args" in schema:
            named = schema["named_args"]
            return named["params"], (named["return"] or [{"type": "None"}])[0]
        result, *arguments = schema["args"]
        return arguments, result
    except (ValueError, KeyError, TypeError, IndexError):
        raise ValueError(f"its metadata has an unknown form: {text[:80]}") from None


def _kind(argument: dict) -> str:
    """The type in a schema, with `?` where None is allowed."""
    name = argument.get("type")
    if name == "Optional":
        return _kind(argument["args"][0]) + "?"
    if name == "ffi.Tensor":
        raise ValueError(
            "takes ffi.Tensor, which it may keep; tensors are lent: write ffi::TensorView"
        )
    if name not in _TYPES:
        raise ValueError(f"takes {name}, which no argument of an operator is")
    return _TYPES[name]


def _draft(
    namespace: str, operator: str, function: str, file: str, backend: str, types, doc: str | None
) -> str:
    """The text of one operator file."""
    arguments, result = types if types else ([{"type": "DLTensor*"}] * 2, {"type": "None"})
    if result.get("type") != "None":
        raise ValueError(
            f"returns {result.get('type')}; an operator writes tensors that it is given"
        )
    kinds = [_kind(argument) for argument in arguments]
    tensors = [i for i, kind in enumerate(kinds) if kind == "Tensor"]
    if not tensors:
        raise ValueError("takes no tensor that it could write")
    names, written = _names(arguments, kinds), tensors[-1]
    schema = _schema(f"{namespace}::{operator}", names, kinds, written, alone=len(tensors) == 1)
    shapes = ", ".join(
        f'{name} = "*"' for name, kind in zip(names, kinds) if kind.startswith("Tensor")
    )
    order = ", ".join(f'"{name}"' for name in names)
    brief = (doc or "").strip().splitlines()[:1]
    lines = [
        f"# Draft of `anyop import-module` for {function} of {file}.",
        *([] if types else ["# CHECK: the library does not tell types; two tensors are a guess."]),
        f"# CHECK: is {names[written]} what the function writes, and nothing else?",
        f"schema = {toml_value(schema)}",
        *(f"brief = {toml_value(line)}" for line in brief if line.isprintable() and line.strip()),
        '# CHECK: sizes; a letter for each, as "* D". As it stands, all tensors have the same.',
        f"shapes = {{ {shapes} }}",
        "# CHECK: dtypes; without this line all tensors are float32.",
        f'# dtypes = {{ {names[tensors[0]]} = ["float32", "float16"] }}',
        f"# CHECK: {backend} is {'what the library has code for' if backend != 'cpu' else 'a guess'}.",
        "[kernels]",
        f"{backend} = {{ file = {toml_value(file)}, function = {toml_value(function)}, arguments = [{order}] }}",
    ]
    return "\n".join(lines) + "\n"


def _names(arguments: list[dict], kinds: list[str]) -> list[str]:
    """Those of the metadata where it has them, else x0, x1 for tensors and a2, a3 for others."""
    names: list[str] = []
    for i, (argument, kind) in enumerate(zip(arguments, kinds)):
        name = argument.get("name")
        plain = isinstance(name, str) and re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name)
        names.append(
            name if plain and name not in names else f"{'x' if 'Tensor' in kind else 'a'}{i}"
        )
    return names


def _schema(name: str, names: list[str], kinds: list[str], written: int, alone: bool) -> str:
    """The written tensor is the result, or a changed argument where it is the only tensor."""
    inputs = [
        f"{'Tensor(a!)' if i == written else kind} {argument}"
        for i, (argument, kind) in enumerate(zip(names, kinds))
        if alone or i != written
    ]
    return f"{name}({', '.join(inputs)}) -> {'()' if alone else f'(Tensor {names[written]})'}"


def _write(drafts: Drafts, file: str, texts: dict[str, str]) -> None:
    """Writes the files, none over another, and copies the library; then reads them as a build would."""
    paths = {os.path.join(drafts.folder, f"{name}.toml"): text for name, text in texts.items()}
    copy = os.path.join(drafts.folder, os.path.basename(file))
    for path in (*paths, *([copy] if copy != file else [])):
        if os.path.lexists(path):
            raise FileExistsError(f"{path} is there already; nothing was written")
    if not paths:
        return
    os.makedirs(drafts.folder, exist_ok=True)
    if copy != file:
        shutil.copyfile(file, copy)
    for path, text in paths.items():
        with open(path, "x", encoding="utf-8") as stream:
            stream.write(text)
        drafts.written.append(path)
    _, errors = read_folders(map(Path, drafts.written))
    if errors:
        raise ValueError("\n".join(map(str, errors)))
