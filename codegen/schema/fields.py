# SPDX-License-Identifier: Apache-2.0
"""The fields of an operator's argument struct: parameters, then sizes, then products of groups."""

from __future__ import annotations

from typing import NamedTuple

from .binding import Binding
from .params import Param
from .source import Mistake

_SCALARS = {
    "int": "int64_t",
    "bool": "int64_t",
    "ScalarType": "int64_t",
    "float": "double",
    "str": "AnyopString",
}
_LISTS = {
    "Tensor": "AnyopTensorList", "int": "AnyopIntList", "bool": "AnyopIntList",
    "ScalarType": "AnyopIntList", "float": "AnyopFloatList", "str": "AnyopStringList",
}  # fmt: skip


class Field(NamedTuple):
    """One line of the struct."""

    type: str
    name: str
    comment: str


def camel(name: str) -> str:
    """rms_norm -> RmsNorm."""
    return "".join(word[:1].upper() + word[1:] for word in name.split("_"))


def c_type(param: Param) -> str:
    """The C type of a parameter's field."""
    if param.is_list:
        return _LISTS[param.kind]
    if param.is_tensor:
        return "AnyopTensor*" if param.output or param.mutated else "const AnyopTensor*"
    if param.optional and param.kind != "str":
        return "AnyopOptionalFloat" if param.kind == "float" else "AnyopOptionalInt"
    return _SCALARS[param.kind]


def numel_field(group: str | tuple[str, ...]) -> str:
    """Field of the product of a group's sizes."""
    return "rows" if group == "_" else "numel_" + "".join(group)


def struct_fields(params: list[Param], binding: Binding) -> list[Field]:
    """All fields behind `base`, in order."""
    per_element = "of one element: see the tensors"
    return [
        *(Field(c_type(param), param.name, _comment(param)) for param in params),
        *(
            _size(size, per_element if size in binding.element_sizes else "")
            for size in binding.sizes
        ),
        *(_size(numel_field(group), _product(f"*{group.strip('_')}")) for group in binding.groups),
        *(_size(numel_field(join), _product(join_text(join))) for join in binding.joins),
    ]


def join_text(join: tuple[str, ...]) -> str:
    """broadcast(*X, *Y)."""
    return "broadcast(" + ", ".join("*" + name for name in join) + ")"


def _size(name: str, comment: str) -> Field:
    return Field("int64_t", name, comment)


def _product(text: str) -> str:
    return f"product of the sizes under {text}"


def _comment(param: Param) -> str:
    notes = []
    if param.shape:
        notes.append(
            f"[{param.shape.length}] ({shape_sizes(param)})"
            if param.is_list
            else f"({param.shape.text})"
        )
    elif param.kind in ("bool", "ScalarType"):
        notes.append({"bool": "0 or 1", "ScalarType": "AnyopDtype"}[param.kind])
    if param.expanded:
        notes.append("expanded: stride 0 where it repeats")
    if param.is_tensor and param.optional and not param.is_list:
        notes.append("NULL when not wanted" if param.output else "NULL when absent")
    if param.optional_elements:
        notes.append("an absent element has data NULL and ndim -1")
    return "; ".join(notes)


def shape_sizes(param: Param) -> str:
    """The shape text without the length of the list."""
    text = param.shape.text
    return text.split("]", 1)[1].strip() if param.shape.length else text


def check_fields(fields: list[Field]) -> None:
    """Refuses two fields of one name."""
    seen: set[str] = set()
    for field in fields:
        if field.name in seen:
            raise Mistake(
                f"two fields called '{field.name}' in the argument struct",
                "names that differ",
                "rename the argument, letter or group",
            )
        seen.add(field.name)
