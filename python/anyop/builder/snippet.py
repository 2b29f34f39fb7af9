# SPDX-License-Identifier: Apache-2.0
"""The folder of operators that stands behind anyop.jit.load: schemas, the source, and calls of plain C++ functions."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from anyop.builder.folder import SUFFIXES
from anyop.codegen.text.toml_text import toml_table

_ALL = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
]
# C type of an element -> dtype.
_ELEMENTS = {
    "float": "float32", "double": "float64", "int8_t": "int8", "uint8_t": "uint8", "int16_t": "int16",
    "int32_t": "int32", "int": "int32", "int64_t": "int64", "bool": "bool",
}  # fmt: skip
_SCALARS = {
    "int64_t": "int",
    "int32_t": "int",
    "int": "int",
    "double": "float",
    "float": "float",
    "bool": "bool",
}
# Streams by the types that a host compiler knows without CUDA's headers.
_STREAMS = {
    "void*": "void",
    "cudaStream_t": "struct CUstream_st",
    "hipStream_t": "struct ihipStream_t",
}


@dataclass
class Parameter:
    """One parameter of a C++ function."""

    name: str
    kind: str  # in the schema: "Tensor", "int", ...; "call", "stream"
    written: bool = False
    dtypes: tuple[str, ...] = ()
    element: str = ""  # C type behind a raw pointer
    type: str = ""  # as the declaration has it


class Snippet:
    """Writes the folder. Raises ValueError with the function or schema that cannot be."""

    def __init__(
        self, name: str, namespace: str, backend: str, source: str | None, files: list[str]
    ) -> None:
        self.name, self.namespace, self.backend, self.source = name, namespace, backend, source
        self.files = files

    def write(
        self, folder: str, functions: Iterable[str], schemas: Iterable[Mapping[str, Any] | str]
    ) -> None:
        """Everything that anyop.build reads."""
        files = list(self.files)
        if self.source is not None:
            files = [f"{self.name}{SUFFIXES[self.backend]}"]
            _write(
                folder,
                files[0],
                f'#include "anyop/kernel.h"\n#line 1 "{files[0]}"\n{self.source}\n',
            )
        for function in functions:
            returned, parameters = self._find_function(function)
            adapter = f"{function}_call.cc"
            _write(
                folder,
                f"{function}.toml",
                toml_table(self._schema(function, parameters, [*files, adapter])),
            )
            _write(folder, adapter, self._call(function, returned, parameters))
        for schema in schemas:
            operator = self._with_defaults(schema, files)
            namespace, op = operator["schema"].split("(")[0].strip().split("::")
            _write(folder, f"{op}.toml", toml_table(operator))
            if namespace == self.namespace != self.name:
                self._write_alias(folder, op)

    def _write_alias(self, folder: str, op: str) -> None:
        """The source goes on using the first namespace: its header and the name of its kernel."""
        os.makedirs(os.path.join(folder, self.name, "ops"), exist_ok=True)
        kernel = f"{op}_{self.backend}"
        text = f"#define {self.name}_{kernel} {self.namespace}_{kernel}\n"
        _write(folder, f"{self.name}/ops/{op}.h", f'{text}#include "{self.namespace}/ops/{op}.h"\n')

    def _with_defaults(self, schema: Mapping[str, Any] | str, files: list[str]) -> dict[str, Any]:
        if isinstance(schema, str):
            schema = _parse(schema)
        operator = dict(schema)
        signature = operator.get("schema")
        if not isinstance(signature, str) or not re.match(r"\s*[\w.:]+\s*\(", signature):
            raise ValueError(
                f"a schema of {self.name} has schema = {signature!r}, expected 'op(Tensor x) -> Tensor'"
            )
        if "::" not in signature.split("(")[0]:
            operator["schema"] = f"{self.namespace}::{signature.strip()}"
        operator.setdefault("kernels", {self.backend: files})
        return operator

    def _schema(
        self, function: str, parameters: list[Parameter], files: list[str]
    ) -> dict[str, Any]:
        stated = [parameter for parameter in parameters if parameter.kind not in ("call", "stream")]
        tensors = [parameter for parameter in stated if parameter.kind == "Tensor"]
        if not tensors:
            raise ValueError(
                f"{function} has no tensor among its parameters, which tells the device"
            )
        if len(tensors) > 8:  # each is a group of sizes, of which a schema has 8
            raise ValueError(
                f"{function} has {len(tensors)} tensors, at most 8 can be called so; give a schema instead"
            )
        written = iter("abcdefghijklmnopqrstuvwxyz")
        words = [
            f"Tensor({next(written)}!) {p.name}" if p.written else f"{p.kind} {p.name}"
            for p in stated
        ]
        operator: dict[str, Any] = {
            "schema": f"{self.namespace}::{function}({', '.join(words)}) -> ()",
            "brief": f"The function {function} of {self.name}.",
            "shapes": {parameter.name: f"*S{i}" for i, parameter in enumerate(tensors)},
            "dtypes": {parameter.name: list(parameter.dtypes) for parameter in tensors},
            "kernels": {self.backend: files},
        }
        strided = {parameter.name: "strided" for parameter in tensors if not parameter.element}
        return operator | ({"layouts": strided} if strided else {})

    def _call(self, function: str, returned: str, parameters: list[Parameter]) -> str:
        """The kernel that calls the function."""
        struct = "".join(word.capitalize() for word in function.split("_")) + "Args"
        values = []
        for parameter in parameters:
            value = f"args->{parameter.name}"
            if parameter.kind == "call":
                value = "call"
            elif parameter.kind == "stream":
                value = f"static_cast<{parameter.type}>(call->stream)"
            elif parameter.element:
                value = f"static_cast<{'' if parameter.written else 'const '}{parameter.element}*>({value}->data)"
            elif parameter.kind == "str":
                value += ".data"
            values.append(value)
        declaration = (
            f"{returned} {function}({', '.join(parameter.type for parameter in parameters)})"
        )
        call = f"{function}({', '.join(values)})"
        kernel = f"{self.namespace}_{function}_{self.backend}"
        body = f"  {call};\n  return kAnyopOk;" if returned == "void" else f"  return {call};"
        return (
            f'#include "{self.namespace}/ops/{function}.h"\n\n{declaration};\n\n'
            f'extern "C" int32_t {kernel}(const {struct}* args, AnyopCall* call) {{\n  (void)call;\n{body}\n}}\n'
        )

    def _find_function(self, function: str) -> tuple[str, list[Parameter]]:
        """What it returns and its parameters, read from the source."""
        if not re.fullmatch(r"[a-z][a-z0-9_]*", function):
            raise ValueError(
                f"function {function!r}: expected a name of lower-case letters, digits and _"
            )
        for text in [self.source] if self.source is not None else map(_read, self.files):
            plain = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.S)
            found = re.search(rf"\b(void|int32_t|int)\s+{function}\s*\(([^)]*)\)\s*\{{", plain)
            if found:
                parameters = [
                    self._parameter(function, word) for word in found[2].split(",") if word.strip()
                ]
                return found[1], parameters
        raise ValueError(
            f"no function {function} in the source of {self.name}: expected 'void {function}(...) {{'"
        )

    def _parameter(self, function: str, text: str) -> Parameter:
        found = re.fullmatch(
            r"\s*(const\s+)?(\w+)\s*(\*?)\s*(?:__restrict__\s+|__restrict\s+)?(\w+)\s*", text
        )
        if found:
            const, kind, star, name = "const " if found[1] else "", found[2], found[3], found[4]
            written, type = not const, f"{const}{kind}{star}"
            if type == "AnyopCall*":
                return Parameter(name, "call", type=type)
            if type in _STREAMS:
                return Parameter(name, "stream", type=f"{_STREAMS[type]}*")
            if f"{kind}{star}" == "AnyopTensor*":
                return Parameter(name, "Tensor", written, tuple(_ALL), type=type)
            if type == "const char*":
                return Parameter(name, "str", type=type)
            if star and kind in _ELEMENTS:
                return Parameter(name, "Tensor", written, (_ELEMENTS[kind],), kind, type)
            if not star and kind in _SCALARS:
                return Parameter(name, _SCALARS[kind], type=kind)
        raise ValueError(
            f"{function}: parameter '{' '.join(text.split())}', expected AnyopTensor*, a pointer to "
            f"{', '.join(_ELEMENTS)}, one of {', '.join(_SCALARS)}, const char*, AnyopCall* or void* stream"
        )


def _parse(text: str) -> dict[str, Any]:
    try:
        import tomllib
    except ImportError:  # Python 3.10
        import tomli as tomllib
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"a schema's text is no TOML: {error}") from None


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as stream:
        return stream.read()


def _write(folder: str, name: str, text: str) -> None:
    with open(os.path.join(folder, name), "w", encoding="utf-8") as stream:
        stream.write(text)
