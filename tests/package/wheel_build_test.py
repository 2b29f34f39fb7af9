# SPDX-License-Identifier: Apache-2.0
"""A third party's wheel: what is in it, that pip installs it, that it runs with nothing but Python and anyop."""

import ast
import base64
import csv
import hashlib
import importlib.util
import os
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import anyop
import pytest
from anyop.builder.elf import Elf
from anyop.builder.errors import BuildError
from anyop.builder.wheel import build_wheel
from anyop.builder.wheel_platform import platform_tag

MACHINE = os.uname().machine
NVCC = Path(os.environ.get("CUDACXX", "/usr/local/cuda/bin/nvcc"))
PYPROJECT = """
[project]
name = "acme-kernels"
version = "1.2rc1"
description = 'Scaling, "fast".'
license = "Apache-2.0"
"""
SCHEMA = """
schema = "acme::scale(Tensor x, float factor=2.0) -> Tensor"
brief = "Multiply by a number."
math = "out = factor * x"
source = "elementary"
arguments = { x = "any tensor", factor = "the number" }
shapes = { x = "*", out = "*" }
dtypes = { x = ["float32"], out = "x" }
kernels = { cpu = "scale.cc" }
tolerance = { float32 = 1e-6 }
"""
# The exception and dlopen are there to need libstdc++ and what glibc 2.34 moved.
KERNEL = """
#include <dlfcn.h>
#include <stdexcept>
#include "acme/ops/scale.h"
int32_t acme_scale_cpu(const ScaleArgs* args, AnyopCall* call) {
  try {
    if (args->factor == 13) throw std::out_of_range("unlucky");
    if (args->factor == 14 && !dlopen("libnowhere.so", RTLD_NOW)) throw std::range_error(dlerror());
  } catch (const std::exception& error) {
    return call->fail(call, kAnyopValueError, error.what());
  }
  auto* x = (const float*)args->x->data;
  auto* out = (float*)args->out->data;
  for (int64_t r = 0; r < args->rows; ++r) out[r] = args->factor * x[r];
  return kAnyopOk;
}
"""
# Runs with Python and anyop alone.
PROGRAM = """
import array, importlib.util, shutil, sys
import anyop, acme_kernels
assert not any(map(shutil.which, ("g++", "cc", "nvcc", "ninja"))), "a compiler is on PATH"
assert not any(map(importlib.util.find_spec, ("numpy", "torch", "tvm_ffi"))), "not bare"
x, out = array.array("f", [1, -2, 3]), array.array("f", [0, 0, 0])
assert acme_kernels.scale(x, 5, out=out) is out and out.tolist() == [5, -10, 15], out
assert acme_kernels.scale is anyop.ops.acme.scale and acme_kernels.__version__ == "1.2rc1"
for factor, text in ((13, "acme.scale: unlucky"), (14, "acme.scale: libnowhere.so")):
    try:
        acme_kernels.scale(x, factor, out=out)
    except ValueError as error:
        assert str(error).startswith(text), error
    else:
        raise SystemExit("not refused")
assert "include_dir" in acme_kernels.__all__ and "scale" in acme_kernels.__all__
print(acme_kernels.include_dir())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kernels")
    for name, text in (
        ("pyproject.toml", PYPROJECT), ("scale.toml", SCHEMA), ("scale.cc", KERNEL),
    ):  # fmt: skip
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANYOP_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("SOURCE_DATE_EPOCH", raising=False)
        yield


@pytest.fixture(scope="module")
def wheel(folder, tmp_path_factory) -> Path:
    return Path(build_wheel(folder, tmp_path_factory.mktemp("wheels") / "new"))


def unpack(wheel: Path, into: Path) -> Path:
    """The library of an unpacked wheel."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(into)
    (library,) = into.glob("*/lib*.so")
    return library


def test_the_name_says_what_is_needed(wheel, tmp_path):
    assert wheel.name == f"acme_kernels-1.2rc1-py3-none-manylinux_2_17_{MACHINE}.whl"
    library = Elf(str(unpack(wheel, tmp_path)))
    assert "libstdc++.so.6" not in library.needed
    assert library.exported == {"AnyopLibraryEntry"}
    versions = {s.version for s in library.symbols() if not s.defined and s.version}
    minors = [int(match[1]) for v in versions if (match := re.match(r"GLIBC_2\.(\d+)", v))]
    assert max(minors) <= 17 and all(v.startswith(("GLIBC_", "GCC_")) for v in versions)


def test_record_and_metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
        assert archive.namelist()[-1] == "acme_kernels-1.2rc1.dist-info/RECORD"
    rows = list(csv.reader(files["acme_kernels-1.2rc1.dist-info/RECORD"].decode().splitlines()))
    assert [row[0] for row in rows] == list(files)
    for path, digest, size in rows[:-1]:
        sha = base64.urlsafe_b64encode(hashlib.sha256(files[path]).digest()).decode().rstrip("=")
        assert (digest, int(size)) == (f"sha256={sha}", len(files[path])), path
    assert rows[-1][1:] == ["", ""]
    assert files["acme_kernels-1.2rc1.dist-info/METADATA"].decode().splitlines() == [
        "Metadata-Version: 2.1", "Name: acme-kernels", "Version: 1.2rc1", 'Summary: Scaling, "fast".',
        "License: Apache-2.0", "Requires-Python: >=3.10", f"Requires-Dist: anyop>={anyop.__version__}",
    ]  # fmt: skip
    assert {"acme_kernels/include/acme/ops.h", "acme_kernels/libacme_kernels.so"} <= set(files)
    stub = ast.parse(files["acme_kernels/__init__.pyi"])
    functions = {node.name for node in stub.body if isinstance(node, ast.FunctionDef)}
    assert {"include_dir", "scale"} <= functions and files["acme_kernels/py.typed"] == b""
    assert not any(name.endswith(("compile_commands.json", "/acme.pyi")) for name in files)


def test_pip_installs_it_and_it_runs_with_nothing_else(wheel, tmp_path):
    environment = tmp_path / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    (site,) = environment.glob("lib/python*/site-packages")
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install"]
    run(*pip, "--no-index", "--no-deps", "--target", site, wheel)
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "anyop").symlink_to(Path(anyop.__path__[0]).resolve())
    (site / "anyop.pth").write_text(f"{tmp_path / 'only'}\n")
    bare = {"PATH": str(tmp_path / "nothing"), "HOME": str(tmp_path / "home")}
    found = run(python, "-I", "-c", PROGRAM, env=bare).strip()
    assert Path(found, "acme", "ops.h").is_file() and found.startswith(str(site.resolve()))
    assert not (tmp_path / "home").exists()  # nothing was built or cached


def run(*command: object, env: dict[str, str] | None = None) -> str:
    done = subprocess.run([*map(str, command)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_same_bytes_from_another_folder_and_a_cold_cache(folder, wheel, tmp_path, monkeypatch):
    monkeypatch.setenv("ANYOP_CACHE_DIR", str(tmp_path / "cache"))
    shutil.copytree(folder, tmp_path / "another place")
    again = Path(build_wheel(tmp_path / "another place", tmp_path / "out"))
    assert again.name == wheel.name and again.read_bytes() == wheel.read_bytes()


def test_dates_are_those_of_source_date_epoch(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    with zipfile.ZipFile(build_wheel(folder, tmp_path)) as archive:
        assert {info.date_time for info in archive.infolist()} == {(2023, 11, 14, 22, 13, 20)}
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(ValueError, match="SOURCE_DATE_EPOCH is 'yesterday', expected seconds"):
        build_wheel(folder, tmp_path)


@pytest.mark.parametrize(
    ("name", "version", "says"),
    [
        ("", "1", "the wheel's name is '', expected letters"),
        ("../../x", "1", "the wheel's name is '../../x', expected letters"),
        ("a;touch pwn", "1", "expected letters, digits"),
        ("-acme", "1", "a letter or digit at both ends"),
        ("acme\nRequires-Dist: evil", "1", "expected a text of one line"),
        ("ácme", "1", "expected letters, digits"),
        ("3d", "1", "cannot import a package '3d'"),
        ("class", "1", "cannot import a package 'class'"),
        ("Anyop", "1", "anyop is another package"),
        ("json", "1", "json is another package"),
        ("tvm-ffi", "1", "tvm_ffi is another package"),
        ("acme", "", "the wheel's version is ''"),
        ("acme", "one", "the wheel's version is 'one', expected one as 1.2.3"),
        ("acme", "1/../../x", "expected one as 1.2.3"),
        ("acme", "01.2", "expected one as 1.2.3"),
    ],
)  # fmt: skip
def test_odd_names_and_versions_are_refused(name, version, says, folder, tmp_path):
    with pytest.raises(ValueError, match=re.escape(says)):
        build_wheel(folder, tmp_path, name=name, version=version)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", r"the wheel needs a name: --name \(name= in Python\), or \[project\] name in .*pyproject"),
        ("[project]\nname = 'acme'", "the wheel needs a version"),
        ("[project]\nname = 7\nversion = '1'", "name is 7, expected a text of one line"),
        ("[project]\nname = 'a'\nversion = '1'\ndependencies = 'b'", "dependencies is 'b', expected a list"),
        ("project = 3", r"project is 3, expected a table \[project\]"),
        ("[project\n", "pyproject.toml: "),
    ],
)  # fmt: skip
def test_a_wrong_pyproject_is_refused(text, says, tmp_path):
    (tmp_path / "scale.toml").write_text(SCHEMA)
    (tmp_path / "scale.cc").write_text(KERNEL)
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ValueError, match=says):
        build_wheel(tmp_path, tmp_path / "out")


def shared_object(path: Path, text: str, *flags: str) -> str:
    source = path.with_suffix(".c")
    source.write_text(text)
    run("gcc", "-shared", "-fPIC", source, "-o", path, *flags)
    return str(path)


def test_a_library_that_no_manylinux_has_is_refused(folder, tmp_path):
    shared_object(tmp_path / "libforeign.so", "int foreign(void) { return 1; }")
    flags = [f"-L{tmp_path}", "-Wl,--no-as-needed,-lforeign,--as-needed"]
    with pytest.raises(
        BuildError, match=r"libacme_kernels\.so needs libforeign\.so, which a wheel"
    ):
        build_wheel(folder, tmp_path / "out", flags=flags)
    assert not list(tmp_path.glob("out/*"))


def test_the_platform_follows_the_newest_symbol(tmp_path):
    plain = shared_object(tmp_path / "plain.so", "int one(void) { return 1; }")
    assert platform_tag([plain]) == f"manylinux_2_17_{MACHINE}"
    text = "#include <dlfcn.h>\nvoid* f(void) { return dlopen(0, 1); }"
    newer = shared_object(tmp_path / "newer.so", text)
    needed = re.findall(r"GLIBC_2\.(\d+)", run("readelf", "-V", newer))
    least = max(17, *map(int, needed))
    assert platform_tag([plain, newer]) == f"manylinux_2_{least}_{MACHINE}"
    own = shared_object(tmp_path / "own.so", "int two(void);", "-Wl,--no-as-needed", newer)
    with pytest.raises(BuildError, match=r"own\.so needs"):
        platform_tag([own])
    assert platform_tag([own, newer], Elf(own).needed) == f"manylinux_2_{least}_{MACHINE}"
    with pytest.raises(BuildError, match="no machine"):
        platform_tag([])


MODULE = """
#include <tvm/ffi/c_api.h>
int __tvm_ffi_add_to(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  const DLTensor *x = args[0].v_ptr, *out = args[2].v_ptr;
  for (int64_t i = 0; i < x->shape[0]; ++i)
    ((float*)out->data)[i] = ((const float*)x->data)[i] + (float)args[1].v_float64;
  result->type_index = kTVMFFINone;
  return self || count != 3 ? -1 : 0;
}
"""
ADD_TO = """
schema = "ready::add_to(Tensor x, float amount=1.0) -> Tensor"
shapes = { x = "N", out = "N" }
kernels = { cpu = { file = "ready.so", function = "add_to" } }
"""


def test_a_library_of_tvm_ffi_comes_with_the_wheel(tmp_path):
    tvm_ffi = importlib.util.find_spec("tvm_ffi")
    if tvm_ffi is None:
        pytest.skip("apache-tvm-ffi is not installed")
    runtime = Path(tvm_ffi.submodule_search_locations[0])
    (tmp_path / "ops").mkdir()
    flags = [f"-I{runtime / 'include'}", f"-L{runtime / 'lib'}", "-Wl,--no-as-needed", "-ltvm_ffi"]
    shared_object(tmp_path / "ops" / "ready.so", MODULE, *flags)
    (tmp_path / "ops" / "ready.c").unlink()
    (tmp_path / "ops" / "add_to.toml").write_text(ADD_TO)
    wheel = Path(build_wheel(tmp_path / "ops", tmp_path, name="ready-made", version="1"))
    shutil.rmtree(tmp_path / "ops")
    unpack(wheel, tmp_path / "site")
    program = f"""
import sys; sys.path.append({str(tmp_path / "site")!r})
import numpy as np, ready_made
x = np.arange(5, dtype=np.float32)
assert np.array_equal(ready_made.add_to(x, 0.5), x + 0.5)
assert np.array_equal(ready_made.add_to(x), x + 1)
"""
    run(sys.executable, "-c", program)


CUDA_KERNEL = """
#include "acme/ops/scale.h"
__global__ void Scale(const float* x, float factor, float* out, int64_t n) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i < n) out[i] = factor * x[i];
}
extern "C" int32_t acme_scale_cuda(const ScaleArgs* args, AnyopCall* call) {
  const unsigned blocks = static_cast<unsigned>((args->rows + 255) / 256);
  Scale<<<blocks, 256, 0, (cudaStream_t)call->stream>>>(
      (const float*)args->x->data, args->factor, (float*)args->out->data, args->rows);
  return cudaGetLastError() == cudaSuccess ? kAnyopOk : kAnyopDeviceError;
}
"""


def fat_binary(library: Path) -> set[tuple[str, int]]:
    """("code" or "ptx", architecture) of everything that nvcc put into a library."""
    data, found = library.read_bytes(), set()
    for match in re.finditer(re.escape(struct.pack("<I", 0xBA55ED50)), data):
        start, size = struct.unpack_from("<HQ", data, match.start() + 6)
        at, end = match.start() + start, match.start() + start + size
        while at + 32 <= end:
            kind, _, head, length = struct.unpack_from("<HHIQ", data, at)
            found.add(
                ({1: "ptx", 2: "code"}.get(kind, "?"), *struct.unpack_from("<I", data, at + 28))
            )
            at += head + length
    return found


def test_one_library_holds_the_code_of_several_gpus(folder, tmp_path, monkeypatch):
    if not NVCC.exists():
        pytest.skip(f"there is no {NVCC}")
    monkeypatch.setenv("ANYOP_NVCC", str(NVCC))
    fat = shutil.copytree(folder, tmp_path / "fat")
    kernels = 'kernels = { cpu = "scale.cc", cuda = "scale.cu" }'
    (fat / "scale.toml").write_text(SCHEMA.replace('kernels = { cpu = "scale.cc" }', kernels))
    (fat / "scale.cu").write_text(CUDA_KERNEL)
    wheel = Path(build_wheel(fat, tmp_path / "out", arch=["80", "90a"]))
    assert wheel.name.endswith(f"manylinux_2_17_{MACHINE}.whl")  # libcudart is inside
    library = unpack(wheel, tmp_path / "unpacked")
    assert {("code", 80), ("code", 90)} <= fat_binary(library)
    assert anyop.load(library) == ["acme.scale"]
    assert anyop.backends("acme.scale") == ["cpu", "cuda"]
