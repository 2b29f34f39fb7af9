# SPDX-License-Identifier: Apache-2.0
"""Operators as global functions of tvm-ffi: every kind of argument, results, errors."""

import gc
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import anyop
import numpy as np
import pytest
import tvm_ffi

PROBES = Path(__file__).resolve().parents[1] / "probe"
DEFAULTS = {
    "i": "3", "f": "0.5", "b": "0", "s": "none", "dtype": "8",
    "oi": "None", "of": "7.5", "os": "None", "od": "None",
    "il": "[1,2]", "fl": "[]", "bl": "[]", "sl": "[]", "pair": "[1,1]", "ol": "None", "dl": "[]",
}  # fmt: skip
ORDER = list(DEFAULTS)
LIBTVM_FFI = Path(tvm_ffi.__file__).parent / "lib" / "libtvm_ffi.so"


@pytest.fixture(scope="session")
def probes(tmp_path_factory) -> None:
    """The operators of tests/probe, compiled and loaded."""
    out = tmp_path_factory.mktemp("probe")
    generator = [sys.executable, "-m", "anyop.codegen", "--out", out, "--library", "probe"]
    subprocess.run([*generator, PROBES], check=True)
    flags = ["-O1", "-fPIC", "-fvisibility=hidden", f"-I{anyop.include_dir()}", f"-I{out}"]
    objects = []
    for source in [*out.rglob("*.c"), *PROBES.glob("*.cc")]:
        objects.append(out / f"{source.stem}.o")
        compiler = ["g++", "-std=c++17"] if source.suffix == ".cc" else ["gcc"]
        subprocess.run([*compiler, *flags, "-c", source, "-o", objects[-1]], check=True)
    library = out / "libprobe.so"
    subprocess.run(["g++", "-shared", *objects, "-o", library], check=True)
    assert sorted(anyop.load(library)) == ["probe.kinds", "probe.sums"]


def kinds(**given) -> dict[str, str]:
    """What the kernel saw, for arguments given up to the last one named; those between are None."""
    last = max((ORDER.index(name) for name in given), default=-1)
    arguments = [given.get(name) for name in ORDER[: last + 1]]
    text = tvm_ffi.get_global_func("probe.kinds")(np.zeros(512, np.uint8), *arguments)
    words = bytes(np.from_dlpack(text)).decode().split()
    return dict(word.split("=", 1) for word in words)


def test_every_operator_is_a_global_function():
    names = anyop.list_ops()
    assert len(names) > 3
    for name in names:
        full = name if "." in name else f"anyop.{name}"
        assert tvm_ffi.get_global_func(full, allow_missing=True) is not None, full


def test_defaults(probes):
    assert kinds() == DEFAULTS
    # None: the default, but for an optional argument, where it is a value of its own.
    assert kinds(dl=[]) == DEFAULTS | {"of": "None"}


@pytest.mark.parametrize(
    ("name", "value", "seen"),
    [
        ("i", -(2**62), str(-(2**62))),
        ("i", True, "1"),
        ("f", 2, "2"),
        ("f", 0.25, "0.25"),
        ("b", True, "1"),
        ("s", "", ""),
        ("s", "seven77", "seven77"),
        ("s", "a-long-text-on-the-heap", "a-long-text-on-the-heap"),
        ("s", "größe", "größe"),
        ("dtype", "float16", "6"),
        ("dtype", np.dtype("int32"), "4"),
        ("dtype", tvm_ffi.dtype("bfloat16"), "7"),
        ("oi", 5, "5"),
        ("of", 1.5, "1.5"),
        ("os", "text", "text"),
        ("od", "bool", "0"),
        ("il", [], "[]"),
        ("il", (7, 8, 9), "[7,8,9]"),
        ("il", tvm_ffi.Shape((4, 5)), "[4,5]"),
        ("fl", [1, 2.5], "[1,2.5]"),
        ("bl", [True, False], "[1,0]"),
        ("sl", ["a", "a-longer-text"], "[a,a-longer-text]"),
        ("pair", 6, "[6,6]"),
        ("pair", [2, 3], "[2,3]"),
        ("pair", tvm_ffi.Shape((2, 3)), "[2,3]"),
        ("ol", [1], "[1]"),
        ("dl", ["int8", tvm_ffi.dtype("float64")], "[2,9]"),
    ],
)
def test_kinds(probes, name, value, seen):
    assert kinds(**{name: value})[name] == seen


@pytest.mark.parametrize(
    ("name", "value", "error", "says"),
    [
        ("i", 1.0, TypeError, "i is a float, expected int"),
        ("i", "1", TypeError, "i is a str, expected int"),
        ("f", "1", TypeError, "f is a str, expected float"),
        ("b", 1, TypeError, "b is an int, expected bool"),
        ("s", 1, TypeError, "s is an int, expected str"),
        ("s", "a\0b", ValueError, "s holds a NUL character"),
        ("dtype", "float31", TypeError, "dtype is float31, expected a dtype"),
        ("dtype", tvm_ffi.dtype("float32x4"), TypeError, "dtype is a dtype that no operator knows"),
        ("dtype", 8, TypeError, "dtype is an int, expected"),
        ("il", 1, TypeError, "il is an int, expected an Array or List of int"),
        ("il", [1, 2.5], TypeError, "il is a float"),
        ("il", {"a": 1}, TypeError, "il is a ffi.Map"),
        ("fl", tvm_ffi.Shape((4, 5)), TypeError, "fl is a ffi.Shape"),
        ("sl", ["a", None], TypeError, "sl is a None"),
        ("pair", [1, 2, 3], ValueError, "pair has 3 values, expected 2"),
        ("pair", tvm_ffi.Shape((1,)), ValueError, "pair has 1 values, expected 2"),
    ],
)
def test_wrong_kinds_are_refused(probes, name, value, error, says):
    with pytest.raises(error, match=f"^probe.kinds: {says}"):
        kinds(**{name: value})
    assert kinds(i=1)["i"] == "1"


def test_mutable_list(probes):
    if not hasattr(tvm_ffi, "List"):
        pytest.skip("this tvm-ffi has no List yet")
    assert kinds(il=tvm_ffi.List([3, 4]))["il"] == "[3,4]"


def test_lists_of_tensors_and_several_results(probes):
    sums = tvm_ffi.get_global_func("probe.sums")
    xs = [np.arange(3.0), None, np.ones(1)]
    total, count = sums(xs, np.array([10.0]))
    assert np.from_dlpack(total).item() == 14
    assert np.from_dlpack(count).tolist() == [3, -1, 1]
    total, count = sums(xs, None, 0, None, False)
    assert np.from_dlpack(total).item() == 4
    assert count is None
    given = np.zeros(())
    assert sums([], None, 0, given, False) is None
    total, count = sums([np.ones(2)], None, 0, given)
    assert total is None
    assert given == 2
    assert np.from_dlpack(count).tolist() == [2]
    with pytest.raises(
        TypeError, match=r"probe\.sums: xs is a float, expected an Array or List of Tensor"
    ):
        sums([1.5])
    with pytest.raises(TypeError, match="xs is missing"):
        sums(None)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (1, "ValueError"),
        (2, "TypeError"),
        (3, "NotImplementedError"),
        (4, "MemoryError"),
        (5, "InternalError"),
        (6, "DeviceError"),
    ],
)
def test_status_becomes_the_kind_of_error(probes, status, kind):
    sums = tvm_ffi.get_global_func("probe.sums")
    with pytest.raises(Exception, match=r"^probe\.sums: failed as it was told to$") as caught:
        sums([np.ones(1)], None, status)
    known = {"ValueError": ValueError, "TypeError": TypeError, "MemoryError": MemoryError}
    assert isinstance(
        caught.value, known.get(kind, RuntimeError)
    )  # kinds it has no class for are RuntimeError
    assert np.from_dlpack(sums([np.ones(2)])[0]).item() == 2


def test_numpy_and_torch_get_their_own_kind_back():
    torch = pytest.importorskip("torch")
    rms_norm = tvm_ffi.get_global_func("anyop.rms_norm")
    x, w = np.random.default_rng(0).random((4, 64), np.float32), np.full(64, 2, np.float32)
    expected = x / np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-6) * w
    np.testing.assert_allclose(np.from_dlpack(rms_norm(x, w)), expected, rtol=1e-6)
    result = rms_norm(torch.from_numpy(x), torch.from_numpy(w))
    assert type(result) is torch.Tensor
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(
        np.from_dlpack(rms_norm(x, w)), expected, rtol=1e-6
    )  # NumPy again, after torch
    out = np.empty_like(x)
    assert rms_norm(x, w, None, None, None, out) is None
    np.testing.assert_allclose(out, expected, rtol=1e-6)
    tensors = [tvm_ffi.from_dlpack(value) for value in (x, w)]
    np.testing.assert_allclose(np.from_dlpack(rms_norm(*tensors)), expected, rtol=1e-6)


def test_checks_are_those_of_every_call():
    rms_norm = tvm_ffi.get_global_func("anyop.rms_norm")
    x, w = np.ones((4, 8), np.float32), np.ones(8, np.float32)
    for arguments, error, says in [
        ((), TypeError, "x is missing in rms_norm"),
        ((x, w, 1e-6, 0.0, None, None, None), TypeError, "got 7 arguments, expected at most 6"),
        ((x, w[:7]), ValueError, r"weight has shape \(7\), expected \(D\) with D=8"),
        ((x, w.astype(np.float64)), TypeError, "weight has dtype float64, expected float32"),
        ((x, w, 1e-6, 0.0, None, x[:, ::-1]), ValueError, "out "),
        (({}, w), TypeError, "x is a ffi.Map, expected Tensor"),
        ((3, w), TypeError, "x is an int, expected Tensor"),
    ]:
        with pytest.raises(error, match=f"^rms_norm: {says}"):
            rms_norm(*arguments)


def test_results_do_not_leak():
    rms_norm = tvm_ffi.get_global_func("anyop.rms_norm")
    x, w = np.ones((64, 1024), np.float32), np.ones(1024, np.float32)

    def resident_mib() -> float:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def call_often() -> None:  # 500 MiB of results
        for _ in range(2000):
            rms_norm(x, w)
            with pytest.raises(ValueError, match="weight"):
                rms_norm(x, w[:5])
        gc.collect()

    call_often()  # AddressSanitizer keeps the first 256 MiB that are freed
    before = resident_mib()
    call_often()
    assert resident_mib() - before < 50


def test_many_threads():
    rms_norm = tvm_ffi.get_global_func("anyop.rms_norm")
    x, w = np.random.default_rng(1).random((32, 256), np.float32), np.ones(256, np.float32)
    expected = np.from_dlpack(rms_norm(x, w)).copy()
    wrong = []

    def work():
        wrong.extend(
            1 for _ in range(200) if not np.array_equal(np.from_dlpack(rms_norm(x, w)), expected)
        )

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def run(program: str, *arguments: object) -> str:
    process = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


COPIES = """
import re
maps = open("/proc/self/maps")
copies = {line.split()[-1] for line in maps if re.search(r"libtvm_ffi\\.so", line)}
print(len(copies), *copies)
"""


def test_tvm_ffi_is_not_imported():
    program = "import sys, anyop; print(*sorted({'torch', 'tvm_ffi'} & set(sys.modules)), 'none')"
    assert run(program) == "none"


def test_libtvm_ffi_is_not_loaded_before_it_is_used():
    assert run(f"import anyop\nanyop.relu\n{COPIES}") == "0"
    asked = "import importlib.util, anyop\nassert importlib.util.find_spec('tvm_ffi')\n"
    assert run(asked + COPIES) == "0"
    used = "import tvm_ffi\nassert tvm_ffi.get_global_func('anyop.rms_norm')\n"
    assert run(asked + used + COPIES) == f"1 {LIBTVM_FFI}"


def test_an_operator_uses_it_before_tvm_ffi_is_imported():
    program = (
        "import sys, anyop, numpy as np\n"
        "anyop.register_tvm_ffi('relu', 'nobody.has_it(out, x)', backend='mine')\n"
        "with anyop.use('mine', ops='relu'):\n"
        "    anyop.relu(np.ones(3, np.float32))\n"
        "    print(anyop.explain('relu', np.ones(3, np.float32)))\n"
        "assert 'tvm_ffi' not in sys.modules\n"
    )
    assert "tvm-ffi has no global function 'nobody.has_it'" in run(program)


@pytest.mark.parametrize("order", ["import anyop, tvm_ffi", "import tvm_ffi, anyop"])
def test_there_is_one_libtvm_ffi(order):
    used = "assert tvm_ffi.get_global_func('anyop.rms_norm')"
    assert run(f"{order}\n{used}\n{COPIES}") == f"1 {LIBTVM_FFI}"


def test_a_copy_that_is_loaded_goes_first(tmp_path):
    """Another package brought its own libtvm_ffi before anyop came."""
    other = shutil.copy(LIBTVM_FFI, tmp_path / "libtvm_ffi.so")
    program = "import ctypes, sys\nctypes.CDLL(sys.argv[1])\nimport anyop\nanyop.rms_norm\n"
    assert run(program + COPIES, other) == f"1 {other}"


def test_an_unusable_libtvm_ffi_is_named():
    library = Path(anyop._anyop.__file__).parent / "lib" / "libanyop.so"
    program = (
        "import ctypes, sys\n"
        "register = ctypes.CDLL(sys.argv[1]).AnyopRegisterTvmFfi\n"
        "register.restype = ctypes.c_char_p\n"
        "for path in (None, b'/nowhere/libtvm_ffi.so', sys.argv[1].encode()):\n"
        "    print(register(path).decode())\n"
        "print(register(sys.argv[2].encode()), register(None))"
    )
    lines = run(program, library, LIBTVM_FFI).splitlines()
    assert lines[0] == "libtvm_ffi is not loaded, and no path to it is given"
    assert lines[1].startswith("cannot open libtvm_ffi: /nowhere/libtvm_ffi.so")
    assert lines[2] == "libtvm_ffi lacks the function TVMFFIGetVersion"
    assert lines[3] == "None None"


def test_nothing_of_tvm_ffi_is_linked():
    library = Path(anyop._anyop.__file__).parent / "lib" / "libanyop.so"
    symbols = subprocess.run(
        ["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True
    ).stdout
    assert "TVMFFI" not in symbols
