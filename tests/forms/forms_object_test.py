# SPDX-License-Identifier: Apache-2.0
"""Kernels that are ready objects and archives: linked as they are, refused by name where they cannot be."""

import shutil
import subprocess
import sys
from pathlib import Path

import anyop
import numpy as np
import pytest
from anyop.builder.build import build
from anyop.codegen.generate import generate
from anyop.codegen.schema.source import SchemaErrors

SCHEMA = """\
schema = "objects::scale(Tensor x, float factor=2.0) -> Tensor"
shapes = { x = "*", out = "*" }
"""
KERNEL = """\
#include "objects/ops/scale.h"
float Times(float, float);
extern "C" int32_t objects_scale_cpu(const ScaleArgs* args, AnyopCall*) {
  const float* x = static_cast<const float*>(args->x->data);
  float* out = static_cast<float*>(args->out->data);
  for (int64_t i = 0; i < args->rows; ++i) out[i] = Times(x[i], static_cast<float>(args->factor));
  return kAnyopOk;
}
"""
HELPER = "float Times(float a, float b) { return a * b; }\n"

if shutil.which("g++") is None:
    pytest.skip("no g++ on this machine", allow_module_level=True)


def run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> Path:
    """scale.o, times.o and libscale.a of both."""
    folder = tmp_path_factory.mktemp("objects")
    (folder / "scale.toml").write_text(SCHEMA + "[kernels]\n")
    for name, text in generate([folder], "objects").files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "scale.cc").write_text(KERNEL)
    (folder / "times.cc").write_text(HELPER)
    for name in ("scale", "times"):
        flags = ["-std=c++17", "-O1", "-fPIC", "-I", folder, "-I", anyop.include_dir()]
        run("g++", *flags, "-c", folder / f"{name}.cc", "-o", folder / f"{name}.o")
    run("ar", "rcs", folder / "libscale.a", folder / "scale.o", folder / "times.o")
    return folder


def folder_with(tmp_path, compiled, kernels, *files) -> Path:
    folder = tmp_path / "ops"
    folder.mkdir()
    (folder / "scale.toml").write_text(SCHEMA + f"kernels = {{ {kernels} }}\n")
    for file in files:
        shutil.copy(compiled / file, folder)
    return folder


@pytest.mark.parametrize(
    "kernels, files",
    [
        ('cpu = ["scale.o", "times.o"]', ["scale.o", "times.o"]),
        ('cpu = "libscale.a"', ["libscale.a"]),
        ('cpu = ["scale.cc", "times.o"]', ["scale.cc", "times.o"]),
    ],
)
def test_linked_as_it_is(kernels, files, compiled, tmp_path):
    folder = folder_with(tmp_path, compiled, kernels, *files)
    library = build(folder, out=tmp_path / "out")
    program = (
        "import sys, anyop, numpy as np; anyop.load(sys.argv[1]);"
        "print(anyop.ops.objects.scale(np.arange(3, dtype=np.float32), 3).tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, library], capture_output=True, text=True, check=False
    )
    assert done.stdout == "[0.0, 3.0, 6.0]\n", done.stderr


def test_an_object_without_the_kernel(compiled, tmp_path):
    folder = folder_with(tmp_path, compiled, 'cpu = "times.o"', "times.o")
    with pytest.raises(
        SchemaErrors, match=r"times.o without the function objects_scale_cpu, expected"
    ):
        build(folder, out=tmp_path / "out")


def test_an_object_that_needs_another(compiled, tmp_path):
    folder = folder_with(tmp_path, compiled, 'cpu = "scale.o"', "scale.o")
    with pytest.raises(anyop.BuildError, match="undefined reference to `Times"):
        build(folder, out=tmp_path / "out")


def test_no_object_at_all(compiled, tmp_path):
    folder = folder_with(tmp_path, compiled, 'cpu = "scale.o"')
    (folder / "scale.o").write_text("objects_scale_cpu\n")
    with pytest.raises(SchemaErrors, match=r"scale.toml:3: scale.o is no object file"):
        build(folder, out=tmp_path / "out")


@pytest.mark.parametrize("file", ["scale.o", "libscale.a"])
def test_an_object_for_another_machine(file, compiled, tmp_path):
    """The machine's number in the ELF header is changed: only that is looked at."""
    folder = folder_with(tmp_path, compiled, f'cpu = "{file}"', file)
    data = bytearray((folder / file).read_bytes())
    data[data.index(b"\x7fELF") + 18] = 22  # s390x
    (folder / file).write_bytes(data)
    with pytest.raises(SchemaErrors, match=rf"scale.toml:3: {file} is for s390x, expected "):
        build(folder, out=tmp_path / "out")


def test_values_in_this_process(compiled, tmp_path):
    folder = folder_with(tmp_path, compiled, 'cpu = "libscale.a"', "libscale.a")
    assert anyop.load(build(folder, out=tmp_path / "out")) == ["objects.scale"]
    x = np.linspace(-1, 1, 7, dtype=np.float32)
    np.testing.assert_array_equal(anyop.ops.objects.scale(x), 2 * x)
    assert anyop.metadata("objects.scale")["kernels"][0]["form"] == "object"
