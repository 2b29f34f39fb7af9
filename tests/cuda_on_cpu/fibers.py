# SPDX-License-Identifier: Apache-2.0
"""CUDA kernels of operators, compiled by the host compiler and run by fibers (tests/cuda_on_cpu): implementations."""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

import anyop
import numpy as np
from anyop.codegen.generate import generate
from anyop.codegen.operators.operator_file import Operator, read_operator

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
COMPILER = shutil.which(os.environ.get("ANYOP_TEST_CXX", "g++")) or "c++"
# A misaligned vector ends the process, as it ends the work on a GPU.
FLAGS = [
    "-std=c++17", "-O1", "-fPIC", "-w", "-fsanitize=alignment", "-fsanitize-undefined-trap-on-error",
]  # fmt: skip
BACKEND = "cuda_on_cpu"


def sources(op: Operator, backend: str = "cuda") -> list[Path]:
    """Those of a CUDA kernel for every GPU, or of another backend's, as for Hopper alone (cuda_sm90)."""
    return [file for kernel in op.kernels if kernel.backend == backend for file in kernel.sources]


OPERATORS = {op.name: op for file in sorted((ROOT / "ops").rglob("*.toml"))
             if sources(op := read_operator(file))}  # fmt: skip


class Implementation(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint32), ("device_type", ctypes.c_int32), ("backend", ctypes.c_char_p),
        ("name", ctypes.c_char_p), ("source", ctypes.c_char_p), ("when", ctypes.c_char_p),
        ("priority", ctypes.c_int32), ("flags", ctypes.c_uint32), ("run", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )  # fmt: skip


@cache
def made() -> Path:
    """A folder of this process, for what is made once: headers, objects, the libraries of functions."""
    folder = tempfile.mkdtemp(prefix="anyop_fibers_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@cache
def headers() -> Path:
    """The folder of the headers that are generated from all operators."""
    for name, text in generate([ROOT / "ops"], "anyop").files.items():
        if name.endswith(".h"):
            (made() / name).parent.mkdir(parents=True, exist_ok=True)
            (made() / name).write_text(text)
    return made()


@cache
def _compile_one(file: Path, hopper: bool, more: tuple[str, ...]) -> Path:
    places = [*[HERE / "hopper"] * hopper, HERE, ROOT / "include", headers()]
    flags = [*FLAGS, f"-DANYOP_HOPPER_ON_CPU={hopper:d}", *(f"-I{place}" for place in places)]
    folder = Path(tempfile.mkdtemp(dir=made()))
    command = [COMPILER, "-x", "c++", *flags, *more, "-c", str(file), "-o", str(folder / "made.o")]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[:4000]
    return folder / "made.o"


def compile_kernels(folder: Path, names: list[str], backend: str = "cuda", *more: str) -> Path:
    """One library of the operators' kernels. For cuda_sm90 hopper/ has what Hopper's instructions do."""
    files = {file for name in names for file in sources(OPERATORS[name], backend)}
    files.add(HERE / "cuda_on_cpu.cc")
    headers()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        compile_one = partial(_compile_one, hopper=backend.endswith("_sm90"), more=more)
        objects = list(pool.map(compile_one, sorted(files)))
    library, shown = folder / "libcuda_on_cpu.so", made() / "shown"
    shown.write_text(
        "{ global: anyop_*; local: *; };"
    )  # else inline functions' state is all libraries'
    flags = ["-shared", "-Wl,-Bsymbolic", f"-Wl,--version-script={shown}", "-o", str(library)]
    command = [COMPILER, *flags, *map(str, objects)]
    subprocess.run(command, check=True)
    return library


@cache
def compile_cublaslt(*flags: str, name: str = "libcublasLt.so") -> Path:
    """The functions of cuBLASLt in memory of the CPU, for ANYOP_CUBLASLT, which C reads at the first product."""
    return _compile_library(name, "cublaslt_on_cpu.cc", *flags)


@cache
def compile_cudnn(*flags: str, name: str = "libcudnn.so.9") -> Path:
    """The functions of cuDNN, for ANYOP_CUDNN, likewise."""
    return _compile_library(name, "cudnn_on_cpu.cc", *flags)


def _compile_library(name: str, source: str, *flags: str) -> Path:
    library = Path(tempfile.mkdtemp(dir=made())) / name
    include = [f"-I{HERE}", f"-I{ROOT / 'include'}"]
    command = [
        COMPILER,
        *FLAGS,
        *include,
        *flags,
        "-shared",
        "-o",
        str(library),
        str(HERE / source),
    ]
    subprocess.run(command, check=True)
    return library


def register(library: Path, names: list[str], backend: str = "cuda") -> None:
    """The kernels of a backend as implementations for the CPU's memory, taken where a call asks for them."""
    kernels, core = ctypes.CDLL(str(library)), the_core()
    for name in names:
        run = ctypes.cast(getattr(kernels, f"anyop_{name}_{backend}"), ctypes.c_void_p)
        (kernel,) = (kernel for kernel in OPERATORS[name].kernels if kernel.backend == backend)
        words = [w for w in (kernel.when or "").split() if not w.startswith("capability")]
        when = " ".join(words).encode() or None  # which of its calls the kernel takes
        one = Implementation(
            ctypes.sizeof(Implementation), 1, BACKEND.encode(), None, b"test", when, -1000, 0, run
        )
        op = ctypes.c_void_p(core.AnyopFindOperator(name.encode()))
        assert core.AnyopRegisterImplementation(op, ctypes.byref(one)) == 0, core.AnyopLastError()


def remove(names: list[str]) -> None:
    core = the_core()
    for name in names:
        op = ctypes.c_void_p(core.AnyopFindOperator(name.encode()))
        core.AnyopRemoveImplementation(op, BACKEND.encode())


def the_core() -> ctypes.CDLL:
    core = ctypes.CDLL(os.path.join(os.path.dirname(anyop.__file__), "lib", "libanyop.so"))
    core.AnyopFindOperator.restype = ctypes.c_void_p
    core.AnyopLastError.restype = ctypes.c_char_p
    return core


@contextmanager
def running(folder: Path, names: list[str], backend: str = "cuda") -> Iterator[None]:
    """The operators' kernels are there, and cuBLASLt's and cuDNN's functions on the CPU."""
    os.environ["ANYOP_CUBLASLT"] = str(compile_cublaslt())
    os.environ["ANYOP_CUDNN"] = str(compile_cudnn())
    register(compile_kernels(folder, names, backend), names, backend)
    yield
    remove(names)


def on_fibers(function):
    def call(*positional, **named):
        with anyop.use(BACKEND):
            return function(*positional, **named)

    return call


def placed(array, how):
    """The same heads (*X, S, H, D), whose last dimension lies side by side and the others as `how` says."""
    if how == "transposed":
        return np.ascontiguousarray(array.swapaxes(-2, -3)).swapaxes(-2, -3)
    before, behind = {"wider": (16, 16), "shifted": (1, 2), "odd": (16, 1)}[how]
    memory = np.zeros((*array.shape[:-1], before + array.shape[-1] + behind), array.dtype)
    view = memory[..., before : before + array.shape[-1]]
    view[...] = array
    return view


def same_bits(a, b):
    return all(x.tobytes() == y.tobytes() for x, y in zip(arrays(a), arrays(b)))


def arrays(found):
    return found if isinstance(found, tuple) else (found,)
