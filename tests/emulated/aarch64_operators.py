# SPDX-License-Identifier: Apache-2.0
"""The standard tests of operators that are built for another processor and run in an emulator: tools/aarch64.py.

ANYOP_TEST_PROGRAM is the command that answers calls (answer_calls.cc). ANYOP_TEST_LIBRARIES names folders of operators
that it has loaded besides anyop's, each with its library for this processor. Schemas and references are read here,
where anyop is installed; the kernels, the checks and the memory of new results are the other processor's.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import struct
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import anyop
import numpy as np
import pytest
from anyop import testing
from anyop.cases.dtype_choices import NAMES, numpy_dtype
from anyop.testing.check import Checked

ROOT = Path(__file__).resolve().parents[2]
COMMAND = shlex.split(os.environ["ANYOP_TEST_PROGRAM"])
LIBRARIES = json.loads(
    os.environ.get("ANYOP_TEST_LIBRARIES", "{}")
)  # folder: its library, for here
TENSOR, INT, FLOAT, STRING, TENSORS, INTS, FLOATS, STRINGS = range(1, 9)  # AnyopValueKind
SCALARS = {"int": INT, "bool": INT, "ScalarType": INT, "float": FLOAT, "str": STRING}
MADE, NONE = -1, -2
ERRORS = {1: ValueError, 2: TypeError, 3: NotImplementedError, 4: MemoryError}
CODES = {"i": 0, "u": 1, "f": 2, "b": 6, "c": 5}  # DLDataTypeCode
EXTENDED = {"bfloat16": (4, 16), "float8_e4m3fn": (10, 8), "float8_e5m2": (12, 8)}


def dlpack_type(dtype: np.dtype) -> tuple[int, int]:
    return EXTENDED.get(dtype.name) or (CODES[dtype.kind], 8 * dtype.itemsize)


DTYPES = {dlpack_type(numpy_dtype(name)): numpy_dtype(name) for name in NAMES}


def memory_of(array: np.ndarray) -> np.ndarray:
    """The bytes of the allocation that the array lies in."""
    while array.base is not None:
        array = array.base.obj if isinstance(array.base, memoryview) else array.base
    return array.reshape(-1).view(np.uint8)


class Request:
    """One call as bytes, and the memory that the answer overwrites."""

    def __init__(self) -> None:
        self.buffers: list[np.ndarray] = []
        self.values: list[bytes] = []

    def tensor(self, array: np.ndarray | int) -> bytes:
        """A place in a buffer, MADE or NONE."""
        if isinstance(array, int):
            return struct.pack("<i", array)
        memory = memory_of(array)
        same = [i for i, b in enumerate(self.buffers) if b.ctypes.data == memory.ctypes.data]
        if not same:
            self.buffers.append(memory)
        at = same[0] if same else len(self.buffers) - 1
        offset = array.ctypes.data - memory.ctypes.data
        strides = [step // array.itemsize for step in array.strides]
        head = struct.pack("<iqBB", at, offset, *dlpack_type(array.dtype))
        return head + numbers(array.shape) + numbers(strides)

    def add(self, param: dict[str, Any], value: Any) -> None:
        """The value of a parameter; None leaves the default to the core."""
        kind, many = param["kind"], param["list"]
        if value is None:
            self.values.append(struct.pack("<i", 0))
        elif kind == "Tensor" and many:
            elements = [self.tensor(NONE if array is None else array) for array in value]
            self.values.append(struct.pack("<iI", TENSORS, len(elements)) + b"".join(elements))
        elif kind == "Tensor":
            self.values.append(struct.pack("<i", TENSOR) + self.tensor(value))
        elif many and kind == "float":
            items = np.asarray(value, np.float64).reshape(-1)
            self.values.append(struct.pack("<iI", FLOATS, len(items)) + items.tobytes())
        elif many and kind == "str":
            items = [text(item) for item in value]
            self.values.append(struct.pack("<iI", STRINGS, len(items)) + b"".join(items))
        elif many:
            items = value if isinstance(value, (list, tuple)) else [value]
            self.values.append(struct.pack("<i", INTS) + numbers(items))
        elif kind == "str":
            self.values.append(struct.pack("<i", STRING) + text(value))
        else:
            number = NAMES.index(value) if kind == "ScalarType" else value
            form = "<id" if SCALARS[kind] == FLOAT else "<iq"
            self.values.append(
                struct.pack(form, SCALARS[kind], float(number) if form == "<id" else int(number))
            )

    def pack(self, name: str) -> bytes:
        places = [
            struct.pack("<QQ", b.ctypes.data % 4096, b.size) + b.tobytes() for b in self.buffers
        ]
        head = struct.pack("<I", len(places)) + b"".join(places) + text(name)
        return head + struct.pack("<I", len(self.values)) + b"".join(self.values)


def numbers(values: Any) -> bytes:
    return struct.pack(f"<I{len(values)}q", len(values), *values)


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<I", len(data)) + data


class Machine:
    """The other process. Its operators are called as those of anyop, with NumPy arrays."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def read(self, form: str) -> tuple:
        return struct.unpack(form, self.bytes(struct.calcsize(form)))

    def bytes(self, count: int) -> bytes:
        data = self.process.stdout.read(count)
        if len(data) != count:
            raise RuntimeError(f"the program ended with status {self.process.wait()}")
        return data

    def call(self, subject: testing.Subject, positional: tuple, named: dict[str, Any]) -> Any:
        names = [param["name"] for param in subject.inputs]
        arguments = {**dict(zip(names, positional)), **named}
        request = Request()
        for param in subject.inputs:
            request.add(param, arguments.get(param["name"]))
        wanted = [arguments.get(param["name"]) for param in subject.results]
        given = [None if w is False else MADE if w is None else w for w in wanted]
        for value in given:
            request.add({"kind": "Tensor", "list": False}, value)
        self.process.stdin.write(request.pack(subject.name))
        self.process.stdin.flush()
        made = self.answer(request.buffers, sum(isinstance(value, int) for value in given))
        found = [made.pop(0) if isinstance(value, int) else value for value in given]
        return found[0] if len(found) == 1 else tuple(found) or None

    def answer(self, buffers: list[np.ndarray], made: int) -> list[np.ndarray]:
        status, length = self.read("<iI")
        message = self.bytes(length).decode()
        for buffer in buffers:
            data = self.bytes(buffer.size)
            if data != buffer.tobytes():  # what is read-only stays as it is
                buffer[...] = np.frombuffer(data, np.uint8)
        if status:
            raise ERRORS.get(status, RuntimeError)(message)
        return [self.tensor() for _ in range(made)]

    def tensor(self) -> np.ndarray:
        code, bits, rank = self.read("<BBI")
        shape, dtype = self.read(f"<{rank}q"), DTYPES[code, bits]
        data = self.bytes(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
        return np.frombuffer(bytearray(data), dtype).reshape(shape).view()


@pytest.fixture(scope="session")
def machine():
    machine = Machine()
    yield machine
    machine.process.stdin.close()
    assert machine.process.wait(10) == 0


def subjects() -> list[testing.Subject]:
    found = list(testing.find_subjects(ROOT / "ops"))
    for folder, library in LIBRARIES.items():
        anyop.load(library)
        found += testing.find_subjects(folder)
    return found


CHOICES = [
    pytest.param(subject, choice, id=f"{subject.name}-{choice}")
    for subject in subjects()
    for choice in testing.dtype_choices(subject.metadata)
]


@pytest.mark.parametrize(("subject", "choice"), CHOICES)
def test_standard_cases(subject, choice, machine, tally):
    there = dataclasses.replace(
        subject, function=lambda *args, **named: machine.call(subject, args, named)
    )
    total, failures, kinds = Checked(), [], Counter()
    for case in testing.standard_cases(there, choice):
        kinds[case.what] += 1
        try:
            total.add(testing.check_case(there, case))
        except testing.CheckError as error:
            failures.append(str(error))
    tally[subject.name].update(
        {
            "dtypes": 1, "cases": kinds.total(), "calls": total.calls, "values": total.values,
            "guard bytes": total.guard_bytes,
        }
    )  # fmt: skip
    assert not failures, f"{len(failures)} failures, the first:\n" + "\n".join(failures[:8])
    assert kinds.total() >= 30 and total.values > 300


def test_a_bad_call_is_refused_there(machine):
    """The text is the same as here, so the checks read the tables in the same way."""
    subject = next(p.values[0] for p in CHOICES if p.values[0].name == "rms_norm")
    x, weight = np.ones((2, 4), np.float32), np.ones(3, np.float32)
    with pytest.raises(ValueError) as here:
        anyop.rms_norm(x, weight)
    with pytest.raises(ValueError) as there:
        machine.call(subject, (x, weight), {})
    assert str(there.value) == str(here.value)
