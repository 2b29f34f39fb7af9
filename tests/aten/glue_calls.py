# SPDX-License-Identifier: Apache-2.0
"""The ATen glue called as bindings/aten calls it, by ctypes: Python values in, tensors of torch's out."""

from __future__ import annotations

import ctypes as c
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from anyop.native.glues import aten_glue
from glue_abi import OWNER, Memory, Options, Table, Type, Value, View

READ_ONLY, AS_TORCH, HAS_STREAM = 1, 1, 2
NONE, INT, FLOAT, BOOL, COMPLEX, STR, TORCH, MEMORY, LIST, SEED, GENERATOR, DEVICE = (
    0,
    *range(2, 13),
)
OPTIONAL, IS_LIST, OPTIONAL_ELEMENTS, WRITES = 1, 2, 4, 8
KINDS = {
    "Tensor": 0,
    "Scalar": 1,
    "number": 1,
    "int": 2,
    "SymInt": 2,
    "float": 3,
    "bool": 4,
    "str": 5,
}
KINDS |= {"ScalarType": 6, "Layout": 7, "MemoryFormat": 8, "Device": 9, "Generator": 10}
STATUSES = [
    "Ok",
    "ValueError",
    "TypeError",
    "NotImplemented",
    "OutOfMemory",
    "InternalError",
    "DeviceError",
    "Pending",
]
STATUSES += ["IndexError", "RuntimeError"]
_CODES = {"f": 2, "i": 0, "u": 1, "b": 6, "c": 5}


@functools.cache
def glue() -> Any:
    """AnyopTorchAtenGlue."""
    path = aten_glue.find_loaded()
    assert path, aten_glue.problem
    entry = c.CDLL(path).AnyopTorchAtenGlueEntry
    entry.restype = c.POINTER(Table)
    return entry().contents


@dataclass
class Seed:
    """A generator of its own."""

    seed: int


class Refused(Exception):
    """A status that is not kAnyopOk; text is the glue's."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{STATUSES[status]}: {text}")
        self.status, self.text = STATUSES[status], text


_lent: dict[int, Lent] = {}  # what something may still release


@OWNER
def _retain(owner: int) -> None:
    _lent[owner].retained += 1


@OWNER
def _release(owner: int) -> None:
    _lent[owner].released += 1
    if _lent[owner].released == _lent[owner].retained:
        _lent.pop(owner)


class Lent:
    """Memory for a call, and how often it was retained and released."""

    def __init__(self, array: np.ndarray | None, read_only: bool = False, **geometry: Any) -> None:
        self.retained = self.released = 0
        self.array = array
        shape = geometry.get("shape", getattr(array, "shape", ()))
        itemsize = getattr(array, "itemsize", 4)
        strides = geometry.get("strides", [s // itemsize for s in getattr(array, "strides", ())])
        self.shape, self.strides = (c.c_int64 * 64)(*shape), (c.c_int64 * 64)(*strides)
        kind = array.dtype.kind if array is not None else "f"
        code, bits = geometry.get("dtype", (_CODES[kind], itemsize * 8))
        data = geometry.get("data", array.ctypes.data if array is not None else None)
        place = geometry.get("device", 1)
        view = View(
            data,
            place,
            0,
            len(shape),
            code,
            bits,
            1,
            self.shape,
            self.strides,
            geometry.get("offset", 0),
        )
        self.memory = Memory(view, READ_ONLY if read_only else 0, 0, id(self), _retain, _release)
        if geometry.get("row_major"):
            self.memory.tensor.strides = None


class Held:
    """A tensor that a call has returned."""

    def __init__(self, pointer: int) -> None:
        self.cell = c.c_void_p(pointer)

    def __del__(self) -> None:
        self.release()

    def release(self) -> None:
        if self.cell:
            glue().release(self.cell)
            self.cell = c.c_void_p()

    def view(self) -> tuple[View, int]:
        """The glue's view, and its flags."""
        view, flags, error = View(), c.c_uint32(), c.create_string_buffer(500)
        status = glue().view(c.byref(self.cell), c.byref(view), c.byref(flags), error, 500)
        if status:
            raise Refused(status, error.value.decode())
        return view, flags.value

    def numpy(self) -> np.ndarray:
        """A copy of the values."""
        view, _ = self.view()
        kind = next(kind for kind, code in _CODES.items() if code == view.code)
        dtype = np.dtype(bool if kind == "b" else f"{kind}{view.bits // 8}")
        shape = view.shape[: view.ndim]
        if 0 in shape:
            return np.empty(shape, dtype)
        strides = [s * dtype.itemsize for s in view.strides[: view.ndim]]
        extent = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + dtype.itemsize
        raw = (c.c_char * extent).from_address(view.data)
        return np.ndarray(shape, dtype, raw, 0, strides).copy()


class Op:
    """One overload, its types as torch's schema says."""

    def __init__(self, name: str) -> None:
        base, _, overload = name.partition(".")
        self.handle = glue().find(f"aten::{base}".encode(), overload.encode())
        assert self.handle, name
        self.schema = torch._C._get_schema(f"aten::{base}", overload)
        self.arguments = self.schema.arguments
        self.types = (Type * 64)(*(_type(argument) for argument in self.arguments))

    def __call__(self, *given: Any, flags: int = 0, **named: Any) -> Any:
        kept: list = []
        values = (Value * 64)()
        for i, argument in enumerate(self.arguments):
            default = argument.default_value if argument.has_default_value() else None
            value = given[i] if i < len(given) else named.get(argument.name, default)
            values[i] = _value(value, kept)
        try:
            return self._call(values, flags)
        finally:
            for lent in kept:
                if isinstance(lent, Lent) and lent.retained == lent.released:
                    _lent.pop(id(lent), None)

    def _call(self, values: Any, flags: int) -> Any:
        results, error = (Value * 8)(), c.create_string_buffer(1024)
        options = Options(c.sizeof(Options), flags, None, 0, 0)
        inputs, count = len(self.arguments), len(self.schema.returns)
        status = glue().call(
            self.handle, self.types, inputs, values, results, count, c.byref(options), error, 1024
        )
        if status:
            raise Refused(status, error.value.decode())
        found = tuple(_result(results[i]) for i in range(count))
        return found[0] if count == 1 else found


@functools.cache
def _op(name: str) -> Op:
    return Op(name)


def call(name: str, *given: Any, **named: Any) -> Any:
    """Calls "add.Tensor"; defaults are the schema's."""
    return _op(name)(*given, **named)


def _type(argument: Any) -> Type:
    kind, flags = (
        argument.real_type,
        WRITES if argument.alias_info and argument.alias_info.is_write else 0,
    )
    if kind.kind() == "OptionalType":
        kind, flags = kind.getElementType(), flags | OPTIONAL
    if kind.kind() == "ListType":
        kind, flags = kind.getElementType(), flags | IS_LIST
        if kind.kind() == "OptionalType":
            kind, flags = kind.getElementType(), flags | OPTIONAL_ELEMENTS
    return Type(KINDS[str(kind)], flags, -1)


def _value(value: Any, kept: list) -> Value:
    """kept: what must live as long as the call."""
    made = Value()
    if isinstance(value, np.ndarray):
        value = Lent(value)
    kept.append(value)
    match value:
        case bool():
            made.tag, made.as_.i = BOOL, value
        case int():
            made.tag, made.as_.i = INT, value
        case float():
            made.tag, made.as_.f = FLOAT, value
        case complex():
            made.tag, made.as_.f, made.more.imag = COMPLEX, value.real, value.imag
        case str():
            text = value.encode()
            kept.append(text)
            made.tag, made.more.count, made.as_.p = STR, len(text), c.cast(text, c.c_void_p)
        case torch.dtype() | torch.layout() | torch.memory_format():
            made.tag, made.as_.i = INT, _code(value)
        case Lent():
            _lent[id(value)] = value
            made.tag, made.as_.p = MEMORY, c.addressof(value.memory)
        case Held():
            made.tag, made.as_.p = TORCH, value.cell
        case torch.Tensor():
            kept.append(c.c_void_p(value._cdata))
            made.tag, made.as_.p = TORCH, c.addressof(kept[-1])
        case torch.Generator():
            made.tag, made.as_.p = GENERATOR, value._cdata
        case Seed():
            made.tag, made.as_.i = SEED, value.seed
        case torch.device():
            kinds = {"cpu": 0, "meta": 14}
            made.tag, made.as_.i = DEVICE, kinds[value.type] << 32 | 0xFFFFFFFF
        case list():
            items = (Value * (len(value) + 1))(*(_value(item, kept) for item in value))
            kept.append(items)
            made.tag, made.more.count, made.as_.p = LIST, len(value), c.addressof(items)
        case None:
            pass
        case _:
            raise TypeError(value)
    return made


def _code(value: Any) -> int:
    return -torch.ops.aten.neg.int(value)  # torch's own conversion


def _result(value: Value) -> Any:
    match value.tag:
        case 0:
            return None
        case 2:
            return value.as_.i
        case 3:
            return value.as_.f
        case 4:
            return bool(value.as_.i)
        case 5:
            return complex(value.as_.f, value.more.imag)
        case 6:
            return c.string_at(value.as_.p, value.more.count).decode()
        case 7:
            return Held(value.as_.p)
        case 9:
            items = (Value * value.more.count).from_address(value.as_.p) if value.more.count else ()
            found = [_result(item) for item in items]
            c.CDLL(None).free(c.c_void_p(value.as_.p))
            return found
        case 12:
            return ("device", value.as_.i >> 32, c.c_int32(value.as_.i & 0xFFFFFFFF).value)
    raise TypeError(value.tag)


def same(found: Held, expected: object) -> None:
    """Values, shape and dtype."""
    expected = expected.numpy() if isinstance(expected, torch.Tensor) else np.asarray(expected)
    values = found.numpy()
    assert values.dtype == expected.dtype
    np.testing.assert_array_equal(values, expected)
