# SPDX-License-Identifier: Apache-2.0
"""Calls operators, and ATen's where torch is, on arrays of the framework that made_up.cc brings.

    python made_up_program.py MODULE PACKAGE

MODULE is _anyop with made_up.cc in it, PACKAGE the folder anyop of the build.
"""

import ctypes
import importlib.util
import math
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType


class Array:
    """float32, row-major, in memory of its own."""

    def __init__(self, shape, values=()):
        self.shape, self.written = tuple(shape), 0
        self.memory = (ctypes.c_float * math.prod(shape))(*values)
        self.address = ctypes.addressof(self.memory)

    def mark(self):
        self.written += 1


def from_dlpack(tensor):
    made = Array(tensor.shape)
    made.memory[:] = memoryview(to_numpy(tensor)).cast("B").cast("f")
    return made


def to_numpy(tensor):
    import numpy as np

    return np.ascontiguousarray(np.from_dlpack(tensor))


def call_operators(anyop) -> None:
    x, w, out = Array((2, 2), (3, 4, 6, 8)), Array((2,), (1, 2)), Array((2, 2))
    scale = 1 / math.sqrt(12.5)
    expected = [3 * scale, 8 * scale, 3 * scale, 8 * scale]
    made = anyop.rms_norm(x, w, 0.0)
    assert type(made) is Array and made.shape == (2, 2)
    close(made.memory, expected)
    assert anyop.rms_norm(x, w, 0.0, out=out) is out and out.written == 1
    close(out.memory, expected)
    assert x.written == 0
    other = (ctypes.c_float * 2)(1, 1)
    refused(anyop.rms_norm, x, other, "as the tensors before it")
    del x.address
    refused(anyop.rms_norm, x, w, "is empty")


def call_aten(anyop) -> None:
    x, y = Array((2,), (1, 2)), Array((2,), (10, 20))
    made = anyop.aten.add(x, y)
    assert type(made) is Array
    close(made.memory, [11, 22])
    assert anyop.aten.add_(x, y) is x and x.written == 1
    close(x.memory, [11, 22])
    refused(anyop.aten.add, x, (ctypes.c_float * 2)(1, 1), "as the tensors before it")
    by_name = anyop.aten.add((ctypes.c_float * 2)(1, 2), (ctypes.c_float * 2)(5, 6), like="made_up")
    assert type(by_name) is Array
    close(by_name.memory, [6, 8])


def close(found, expected) -> None:
    pairs = list(zip(found, expected, strict=True))
    assert all(abs(a - b) <= 2**-20 * abs(b) for a, b in pairs), pairs


def refused(function, x, y, text: str) -> None:
    try:
        function(x, y)
    except (TypeError, ValueError) as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"not refused: {text}")


def main(module: str, package: str) -> None:
    made_up = ModuleType("made_up")
    made_up.__dict__.update(Array=Array, from_dlpack=from_dlpack)
    sys.modules["made_up"] = made_up
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "anyop")
        copy.mkdir()
        for path in Path(package).iterdir():
            if not path.name.startswith("_anyop."):
                (copy / path.name).symlink_to(path)
        shutil.copy(module, copy / Path(module).name)
        sys.path.insert(0, folder)
        import anyop

        assert Path(anyop.__file__).is_relative_to(folder)
        call_operators(anyop)
        if importlib.util.find_spec("torch") and importlib.util.find_spec("numpy"):
            import torch  # noqa: F401

            call_aten(anyop)


if __name__ == "__main__":
    main(*sys.argv[1:])
