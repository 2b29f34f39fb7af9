# SPDX-License-Identifier: Apache-2.0
"""ThreadSanitizer over the runtime: the tests of src/device, and the PyTorch device on host under threads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.host
if os.environ.get("ANYOP_TEST_FULL") != "1":
    pytest.skip("builds all of anyop, some minutes: make test-full", allow_module_level=True)
if shutil.which("cmake") is None:
    pytest.skip("there is no cmake", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[3]
TESTS = sorted(path.stem for path in (ROOT / "src" / "device").rglob("*_test.cc"))
PROGRAM = ROOT / "bindings" / "torch_device" / "host_threads_test.cc"
PASSED_OVER = {"TSAN_OPTIONS": f"suppressions={PROGRAM.with_suffix('.supp')}"}


def build(folder: Path) -> Path:
    """anyop, its tests and its PyTorch device, all instrumented; the device's library."""
    options = ["-DANYOP_SANITIZE=thread", "-DANYOP_BUILD_TESTS=ON", "-DANYOP_PREBUILT_GLUE=ON"]
    options += ["-DANYOP_WITH_CUDA=OFF", "-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}"]
    subprocess.run(["cmake", "-S", ROOT, "-B", folder, *options], check=True)
    subprocess.run(
        ["cmake", "--build", folder, "-j2", "--target", "torch_device", *TESTS], check=True
    )
    return folder / "python" / "anyop" / "lib" / f"torch_device-{torch.__version__}.so"


def build_program(folder: Path) -> Path:
    """The PyTorch device under threads; torch is not instrumented."""
    place, program = Path(torch.__file__).parent, folder / "host_threads"
    words = ["g++", "-std=c++20", "-O1", "-g1", "-fsanitize=thread", "-o", program]
    words += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    words += [f"-I{place / 'include' / more}" for more in ("", "torch/csrc/api/include")]
    words += [PROGRAM, f"-L{place / 'lib'}"]
    words += ["-ltorch", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{place / 'lib'}"]
    subprocess.run(list(map(str, words)), check=True)
    return program


def check(*words: object, **more: str) -> str:
    """What a program says, which ThreadSanitizer lets end with code 0."""
    environment = {**os.environ, **PASSED_OVER, **more}
    del environment["ANYOP_TEST_FULL"]  # the soak is for a build without instruments
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and "ThreadSanitizer" not in done.stderr, done.stderr[-4000:]
    return done.stdout


def test_no_data_race(tmp_path):
    assert len(TESTS) == 3
    library = build(tmp_path)
    for name in TESTS:
        assert " 0 failed" in check(tmp_path / "tests" / name)
    found = check(build_program(tmp_path), library, LD_LIBRARY_PATH=str(library.parent))
    assert found.endswith("overlay\n0 wrong\n")
