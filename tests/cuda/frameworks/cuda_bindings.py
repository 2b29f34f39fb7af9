# SPDX-License-Identifier: Apache-2.0
"""Every operator with a CUDA kernel from JAX (compiled, eager), CuPy, C++ and Paddle: the bits that torch's get."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anyop
import numpy as np
import pytest
from anyop import testing
from anyop.cases.callers import CALLERS, Caller, missing
from anyop.cases.dtype_choices import result_dtypes
from anyop.cases.good_cases import Case
from anyop.cases.subject import Subject
from anyop.cases.values import result_shapes
from anyop.testing.torch_memory import DeviceMemory, on_device, takes_less

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch's tests share the device
from on_cuda import DEVICE, SUBJECTS, behind_a_spin, torch
from row_points import largest, row_case

PACKAGE = Path(anyop.__file__).parent
MOST = 1 << 20  # elements of the largest tensor
# JAX's arrays are not written: what an operator changes is a result there, which others have not.
RETURNING = [n for n, s in SUBJECTS.items() if s.results and not s.metadata["mutated"]]


def cases_of(subject: Subject, caller: Caller | None = None) -> list[Case]:
    """One of each class in the first dtypes that there are, one of other dtypes, some of mixed ones; longer rows."""
    choices = [
        choice
        for choice in testing.dtype_choices(subject.metadata)
        if caller is None or all(caller.has_dtype(name) for name in choice.names.values() if name)
    ]
    if not choices:
        pytest.skip(f"{caller.name} has no dtypes of {subject.name}")
    found: dict[Any, Case] = {}
    for case in testing.good_cases(subject, choices[0]):
        found.setdefault(case.what, case)
    for at, choice in enumerate(choices[1:]):
        if choice.is_uniform or at % 23 == 0:
            found[at] = testing.Good(subject, choice).case
    for choice in choices[:2]:
        case = row_case(subject, choice, 1000, 40) or row_case(subject, choice, 64, 40)
        if case and largest(subject, case.point) <= MOST:
            found[str(choice)] = case
    return [case for case in found.values() if is_served(subject, case)]


def is_served(subject: Subject, case: Case) -> bool:
    """Whether a kernel of the device takes it."""
    try:
        expected_of(subject, arguments_of(subject, case))
    except NotImplementedError as error:
        assert takes_less(error, DEVICE)
        return False
    return True


def arguments_of(subject: Subject, case: Case) -> dict[str, Any]:
    """Arrays one behind the other, as other frameworks hold them."""
    given = testing.build(subject, case).arguments
    return {k: np.array(v, order="C") if isinstance(v, np.ndarray) else v for k, v in given.items()}


def flat(values: Any) -> list[np.ndarray]:
    """The arrays among them, also those of lists."""
    found = []
    for value in values:
        found += (
            flat(value)
            if isinstance(value, list)
            else [value]
            if isinstance(value, np.ndarray)
            else []
        )
    return found


def listed(results: Any) -> list[Any]:
    return list(results) if isinstance(results, (tuple, list)) else [results]


def expected_of(subject: Subject, arguments: dict[str, Any]) -> list[np.ndarray | None]:
    return listed(on_device(subject.function, DEVICE)(**arguments))


def assert_same(found: list, expected: list, what: str) -> None:
    for one, other in zip(found, expected, strict=True):
        if other is None:
            assert one is None, what
            continue
        assert one.dtype == other.dtype and one.shape == other.shape, what
        assert one.tobytes() == other.tobytes(), what


def caller_on_cuda(name: str) -> Caller:
    if reason := missing(name):
        pytest.skip(reason)
    caller = CALLERS[name]()
    if name == "paddle":
        if not caller.framework.is_compiled_with_cuda():
            pytest.skip("this Paddle is built for the CPU alone")
        place = caller.framework.CUDAPlace(0)
        on_cpu, caller.tensor = caller.tensor, lambda array: on_cpu(array)._copy_to(place, True)
    return caller


def in_jax(function):
    """Under 64-bit dtypes, with JAX's first CUDA device; skips where JAX has none."""

    def call(name):
        pytest.importorskip("jax", reason="jax is not installed")
        import jax

        try:  # in a thread: JAX leaves its last device current where it starts
            with ThreadPoolExecutor(1) as pool:
                device = pool.submit(jax.devices, DEVICE).result()[0]
        except RuntimeError:
            pytest.skip("there is no CUDA device that JAX can use")
        import anyop.jax  # noqa: F401

        caller = CALLERS["jax"]()
        with caller.scope(), jax.default_device(device):
            function(SUBJECTS[name], jax, caller, device)

    return call


@pytest.mark.parametrize("name", RETURNING)
def test_jax_compiled(name):
    """All cases in one program, whose kernels run in XLA's order on its stream."""

    @in_jax
    def run(subject, jax, caller, device):
        cases = cases_of(subject, caller)
        given = [arguments_of(subject, case) for case in cases]
        arrays = [{k: v for k, v in one.items() if flat([v])} for one in given]

        def program(every):
            return [
                listed(subject.function(**{**one, **held}))
                for one, held in zip(given, every, strict=True)
            ]

        found = jax.jit(program)([caller.arguments(held) for held in arrays])
        for case, one, results in zip(cases, given, found, strict=True):
            assert all(r is None or r.devices() == {device} for r in results)
            results = [None if r is None else np.asarray(r) for r in results]
            assert_same(results, expected_of(subject, one), f"[{case.choice}] {case.label}")

    run(name)


@pytest.mark.parametrize("name", RETURNING)
def test_jax_eager(name):
    @in_jax
    def run(subject, jax, caller, device):
        for case in cases_of(subject, caller)[:1] + cases_of(subject, caller)[-1:]:
            given = arguments_of(subject, case)
            found = listed(subject.function(**caller.arguments(given)))
            assert all(r is None or r.devices() == {device} for r in found)
            found = [None if r is None else np.asarray(r) for r in found]
            assert_same(found, expected_of(subject, given), f"[{case.choice}] {case.label}")

    run(name)


@pytest.mark.parametrize("framework", ["cupy", "paddle"])
@pytest.mark.parametrize("name", SUBJECTS)
def test_eager(name, framework):
    """CuPy's on a stream of its own, which no other stream waits for."""
    subject, caller = SUBJECTS[name], caller_on_cuda(framework)
    stream = caller.framework.cuda.Stream(non_blocking=True) if framework == "cupy" else None
    for case in cases_of(subject, caller):
        given = arguments_of(subject, case)
        with stream or nullcontext():
            found = listed(subject.function(**caller.arguments(given)))
            assert all(r is None or caller.is_tensor(r) for r in found)
            found = [None if r is None else np.array(caller.array(r)) for r in found]
        assert_same(found, expected_of(subject, given), f"[{case.choice}] {case.label}")


# ---- C++ ----

DTYPES = {
    "bool": "Bool", "uint8": "UInt8", "bfloat16": "BFloat16", "float8_e4m3fn": "Float8E4M3FN",
    "float8_e5m2": "Float8E5M2", "uint16": "UInt16", "uint32": "UInt32", "uint64": "UInt64",
}  # fmt: skip


def dtype_in_cpp(name: str) -> str:
    return "kAnyop" + DTYPES.get(name, name.capitalize())


def view_in_cpp(at: int, dtype: str, shape: tuple[int, ...]) -> str:
    sizes = ", ".join(map(str, shape))
    return f"Tensor::View(data[{at}], {dtype_in_cpp(dtype)}, {{{sizes}}}, {{}}, 2, 0)"


def value_in_cpp(param: dict[str, Any], value: Any) -> str:
    if param["kind"] == "ScalarType":
        return dtype_in_cpp(value) if value else "std::nullopt"
    if value is None:
        return "std::nullopt"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if param["kind"] == "str" else repr(value)


def function_in_cpp(subject: Subject, case: Case) -> str:
    """call_<op>(pointers to arguments and then results, the stream): 0, or 1 with the error printed."""
    given, words, at = arguments_of(subject, case), [], 0
    for param in subject.inputs:
        name = param["name"]
        if param["kind"] != "Tensor":
            words.append(value_in_cpp(param, given.get(name, param["default"])))
        elif name in given:
            arrays, dtype = flat([given[name]]), case.choice.names[name]
            views = [view_in_cpp(at + n, dtype, array.shape) for n, array in enumerate(arrays)]
            several = f"std::vector<Tensor>{{{', '.join(views)}}}"
            words.append(several if param["list"] else views[0])
            at += len(arrays)
        else:
            words.append("std::nullopt" if param["list"] else "Tensor()")
    dtypes = result_dtypes(subject.metadata, case.names)
    for name, shape in result_shapes(subject, case).items():
        words.append(view_in_cpp(at, dtypes[name][0], shape))
        at += 1
    call = f"anyop::{subject.name}({', '.join(words)}, stream);"
    return (
        f'extern "C" int call_{subject.name}(void* const* data, void* stream) {{\n  try {{\n    {call}\n'
        "    return 0;\n  } catch (const std::exception& error) {\n"
        '    std::fprintf(stderr, "%s\\n", error.what());\n    return 1;\n  }\n}\n'
    )


def long_case(subject: Subject) -> Case | None:
    """Of long rows where it has such, in the first dtypes that a kernel of the device takes."""
    choices = testing.dtype_choices(subject.metadata)
    cases = [row_case(subject, choices[0], columns, 40) for columns in (1000, 64)]
    cases = [case for case in cases if case and largest(subject, case.point) <= MOST]
    cases += [testing.Good(subject, choice).case for choice in choices]
    return next((case for case in cases if is_served(subject, case)), None)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A library of the typed C++ functions' calls, one for each operator, compiled by the C++ compiler alone."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ on this machine")
    folder = tmp_path_factory.mktemp("cpp")
    text = "#include <anyop/ops.h>\n#include <cstdio>\nusing anyop::Tensor;\n"
    served = ((s, case) for s in SUBJECTS.values() if (case := long_case(s)))
    text += "".join(function_in_cpp(s, case) for s, case in served)
    (folder / "calls.cc").write_text(text)
    command = ["g++", "-std=c++17", "-O1", "-fPIC", "-shared", "-I", PACKAGE / "include"]
    command += [folder / "calls.cc", "-o", folder / "calls.so"]
    command += ["-L", PACKAGE / "lib", "-lanyop", f"-Wl,-rpath,{PACKAGE / 'lib'}"]
    found = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[:3000]
    return ctypes.CDLL(str(folder / "calls.so"))


@pytest.mark.parametrize("name", SUBJECTS)
def test_typed_cpp_functions(name, program):
    """On the stream that is given, where inputs come to be behind a spin, and without waiting for it."""
    subject = SUBJECTS[name]
    case = long_case(subject)
    if case is None:
        pytest.skip("CUDA takes none of the cases tried")
    given, memory = arguments_of(subject, case), DeviceMemory(DEVICE)
    values = [memory.there(array) for array in flat(given.values())]
    dtypes = result_dtypes(subject.metadata, case.names)
    results = {
        name: torch.empty(shape, dtype=getattr(torch, dtypes[name][0]), device=DEVICE)
        for name, shape in result_shapes(subject, case).items()
    }
    late = [torch.zeros_like(value) for value in values]
    tensors = [*late, *results.values()]
    data = (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))
    expected = expected_of(subject, given) if results else []

    def clear() -> None:
        for tensor in tensors:
            tensor.zero_()

    def call(stream: torch.cuda.Stream) -> None:
        for to, value in zip(late, values):
            to.copy_(value)
        function = getattr(program, f"call_{subject.name}")
        assert function(data, ctypes.c_void_p(stream.cuda_stream)) == 0

    for _ in behind_a_spin(clear, call):
        found = [memory.back(result) for result in results.values()]
        assert_same(found, expected, f"[{case.choice}] {case.label}")
