# SPDX-License-Identifier: Apache-2.0
"""An operator in a .hip file is built by hipcc without a GPU: what its object shows, and the library it is in.

No AMD device is needed or used: nothing is computed here.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import anyop
import pytest
from anyop.builder.build import build
from anyop.builder.elf import Elf
from anyop.codegen.generate import generate

HIPCC = shutil.which(os.environ.get("ANYOP_HIPCC", "hipcc"))
if HIPCC is None:
    pytest.skip("hipcc is not installed (Debian: apt-get install hipcc)", allow_module_level=True)
FOLDER = Path(__file__).parent
DEFINED = {"hipside_scale_hip"}
RUNTIME = {
    "__hipPopCallConfiguration", "__hipPushCallConfiguration", "__hipRegisterFatBinary",
    "__hipRegisterFunction", "__hipUnregisterFatBinary", "hipGetErrorString", "hipGetLastError",
    "hipLaunchKernel",
}  # fmt: skip
FOREIGN = ("torch", "c10", "at::", "Py", "_ZN2at", "_ZN3c10", "_ZN5torch")


@pytest.fixture(scope="module")
def headers(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("hip")
    for name, text in generate([FOLDER], "hipside").files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def library() -> str:
    return build(FOLDER, name="hipside", arch=["gfx90a"])


def test_the_compiler_sees_hip_and_kernel_h_only(headers, tmp_path):
    """-MD lists every header that is read."""
    command = [HIPCC, "--offload-arch=gfx90a", "-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden"]
    command += ["-MD", "-MF", tmp_path / "d", "-I", headers, "-I", anyop.include_dir()]
    command += ["-c", FOLDER / "scale.hip", "-o", tmp_path / "scale.o"]
    environment = {
        **os.environ,
        "HIP_PLATFORM": "amd",
    }  # where CUDA lies beside, hipcc would take nvcc
    subprocess.run(list(map(str, command)), check=True, env=environment)
    read = (tmp_path / "d").read_text().replace("\\\n", " ").split()[1:]
    assert f"{anyop.include_dir()}/anyop/kernel.h" in read
    assert not [name for name in read if "torch" in name or name.endswith("Python.h")]
    symbols = Elf(str(tmp_path / "scale.o")).symbols("static")
    shown = {s.name for s in symbols if s.defined and not s.local}
    wanted = {s.name for s in symbols if not s.defined and s.name}
    assert {name for name in shown if not name.startswith("__hip_")} == DEFINED
    assert wanted - RUNTIME <= {"atexit", "__cxa_atexit", "_GLOBAL_OFFSET_TABLE_"}
    assert not [s.name for s in symbols if any(word in s.name for word in FOREIGN)]
    assert Elf(str(tmp_path / "scale.o")).contents(".hip_fatbin")


def test_the_library(library):
    found = Elf(library)
    assert found.exported == {"AnyopLibraryEntry"}
    assert not [name for name in found.undefined | set(found.needed) if "torch" in name]
    assert any(name.startswith("libamdhip64.so") for name in found.needed)


def test_its_operator_is_there(library):
    program = "import sys, anyop; print(anyop.load(sys.argv[1]), anyop.backends('hipside.scale'))"
    command = [sys.executable, "-c", program, library]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "libamdhip64" in done.stderr:
        pytest.skip("HIP's runtime library is not installed")
    assert done.stdout == "['hipside.scale'] ['hip']\n", done.stderr


def test_a_compilers_error_names_the_file(tmp_path):
    for name in ("scale.toml", "scale.hip"):
        shutil.copy(FOLDER / name, tmp_path)
    path = tmp_path / "scale.hip"
    path.write_text(path.read_text().replace("factor * x[i]", "factor * missing[i]"))
    with pytest.raises(anyop.BuildError, match=r"scale\.hip:13:\d+: error: .*missing"):
        build(tmp_path, name="broken", arch=["gfx90a"])
