# SPDX-License-Identifier: Apache-2.0
"""Kernels that are CUDA images: embedded without a CUDA compiler, the fitting one chosen, its arguments packed.

The driver is tests/forms/fake_cuda.c, which runs the one kernel it knows in the process's memory; on a GPU
tests/cuda/frameworks/cuda_forms.py does the same with nvcc's images.
"""

import contextlib
import ctypes
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import anyop
import pytest
from anyop.builder.build import build
from anyop.codegen.generate import generate
from anyop.codegen.schema.source import SchemaErrors

SCHEMA = """\
schema = "images::scale(Tensor x, float factor=2.0, int block=256) -> Tensor"
shapes = { x = "*", out = "*" }
[kernels]
"""
LAUNCH = (
    'entry = "scale_kernel", grid = ["ceil(numel(*)/block)"], block = "block", '
    'arguments = ["x", "out", "rows", "factor:float"]'
)
PTX = "//\n.version 7.0\n.target sm_{}\n.address_size 64\n.visible .entry scale_kernel(\n)\n{{ ret; }}\n"
PROGRAM = """\
import sys
import anyop
import numpy as np
from anyop.testing.dlpack import DlpackArray

anyop.load(sys.argv[1])

def scale(x, *arguments, device=0, **named):
    out = np.full_like(x, -7)
    place = (2, device)
    anyop.ops.images.scale(
        DlpackArray(x, device=place), *arguments, out=DlpackArray(out, device=place), **named
    )
    return out.tolist()

x = np.arange(5, dtype=np.float32)
"""

if shutil.which("gcc") is None:
    pytest.skip("no gcc on this machine", allow_module_level=True)


def cubin(sm: int) -> bytes:
    """The head of an ELF file as nvcc 13 writes it, and a section's name."""
    head = b"\x7fELF\x02\x01\x01\x41\x08" + bytes(7)
    head += struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 0, sm << 8 | 4, 64, 0, 0, 0, 0, 0)
    return head + b"\0.text.scale_kernel\0"


def write(folder: Path, kernel: str, **files: bytes) -> Path:
    """The operator's folder; a name with _ for the dot, as a90_cubin."""
    folder.mkdir(exist_ok=True)
    (folder / "scale.toml").write_text(f"{SCHEMA}cuda = {{ {kernel} }}\n")
    for name, data in files.items():
        (folder / name.replace("_", ".")).write_bytes(data)
    return folder


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> Path:
    """The folder of the fake driver."""
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).with_name("fake_cuda.c")
    command = ["gcc", "-O1", "-shared", "-fPIC", "-o", folder / "libcuda.so.1", source]
    subprocess.run(command, check=True)
    return folder


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> str:
    """Three images in a folder with an odd name, without any CUDA compiler."""
    folder = tmp_path_factory.mktemp("images") / 'a "b" $c\\d é'
    kernel = f'file = ["a80.cubin", "later.ptx", "a90.cubin"], {LAUNCH}'
    images = {"a80_cubin": cubin(80), "a90_cubin": cubin(90), "later_ptx": PTX.format(90).encode()}
    path = write(folder, kernel, **images)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ANYOP_NVCC", "CUDACXX"):
            patch.setenv(name, "/nonexistent/nvcc")
        return build(path, name="images", out=folder.parent / "out")


def run(library, driver, program: str, sm: int = 86) -> tuple[str, list[str]]:
    """What the program prints, and what the driver did."""
    places = f"{driver}:{os.environ.get('LD_LIBRARY_PATH', '')}" if driver else ""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + program, library],
        env={**os.environ, "LD_LIBRARY_PATH": places, "FAKE_SM": str(sm), "ANYOP_TORCH_GLUE": "0"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr.splitlines()


def test_values_and_launches(library, driver):
    program = "print(scale(x), scale(x, 3.5), scale(x, 1, 2), scale(x[:0]), scale(x, device=2))"
    out, did = run(library, driver, program)
    twice = "[0.0, 2.0, 4.0, 6.0, 8.0]"
    assert out == f"{twice} [0.0, 3.5, 7.0, 10.5, 14.0] [0.0, 1.0, 2.0, 3.0, 4.0] [] {twice}\n"
    launch = "launch {} 1 1 of {} 1 1 shared 0 stream (nil) context {} depth 1"
    assert did == [
        "load cubin 80 context 0",
        launch.format(1, 256, 0),
        launch.format(1, 256, 0),
        launch.format(3, 2, 0),
        "load cubin 80 context 2",
        launch.format(1, 256, 2),
    ]


@pytest.mark.parametrize(
    "sm, loaded", [(80, "cubin 80"), (89, "cubin 80"), (90, "cubin 90"), (120, "ptx 90")]
)
def test_the_fitting_image_is_chosen(library, driver, sm, loaded):
    assert run(library, driver, "scale(x)", sm)[1][0] == f"load {loaded} context 0"


ERROR = """
try:
    scale({})
except Exception as error:
    print(f"{{type(error).__name__}}: {{error}}")
"""


@pytest.mark.parametrize(
    "call, sm, message",
    [
        ("x", 75, "NotImplementedError: images.scale: no image of scale_kernel for sm_75, the architecture "
         'of cuda:0; there are a90.cubin (sm_90), a80.cubin (sm_80), later.ptx (sm_90) (CUDA says "no kernel image")'),
        ("x, 2, 0", 80, "ValueError: images.scale: grid.x is too large, or not defined"),
        ("x, 2, -3", 80, "ValueError: images.scale: grid.x is -1, expected at most 2147483647"),
        ("x, 2, 4096", 80, "ValueError: images.scale: block.x is 4096, expected at most 1024"),
        ("x, device=5", 80, 'DeviceError: images.scale: CUDA says "an error" (CUDA_ERROR_FAKE) while making '
         "its device current"),
        ("x, device=99", 80, "DeviceError: images.scale: its device's number is not from 0 to 63"),
    ],
)  # fmt: skip
def test_errors(library, driver, call, sm, message):
    assert run(library, driver, ERROR.format(call), sm)[0].strip() == message


def test_no_driver(library):
    with contextlib.suppress(OSError):
        ctypes.CDLL("libcuda.so.1")
        pytest.skip("this machine has NVIDIA's driver")
    out, _ = run(library, None, ERROR.format("x"))
    assert "NVIDIA's driver cannot be used: libcuda.so.1: cannot open" in out


@pytest.mark.parametrize(
    "arguments, message",
    [
        ('"x", "out", "rows"', "InternalError: images.scale: scale_kernel takes 4 arguments, but [kernels] lists 3"),
        ('"x", "out", "rows:int32", "factor:float"', "InternalError: images.scale: argument 3 of scale_kernel "
         "has 8 bytes, but 'rows:int32' in [kernels] has 4"),
    ],
)  # fmt: skip
def test_arguments_unlike_the_kernels(arguments, message, driver, tmp_path):
    launch = LAUNCH[: LAUNCH.index("arguments")] + f"arguments = [{arguments}]"
    folder = write(tmp_path / "ops", f'file = "a.cubin", {launch}', a_cubin=cubin(80))
    library = build(folder, out=tmp_path / "out", name="images")
    assert run(library, driver, ERROR.format("x"))[0].strip() == message


def test_shared_memory(driver, tmp_path):
    launch = LAUNCH.replace("arguments", 'shared_bytes = "block * 256", arguments')
    folder = write(tmp_path / "ops", f'file = "a.cubin", {launch}', a_cubin=cubin(80))
    library = build(folder, out=tmp_path / "out", name="images")
    out, did = run(library, driver, "print(scale(x, 2, 256)[4])" + ERROR.format("x, 2, 512"))
    assert "shared 65536" in did[1] and out.startswith("8.0\nDeviceError: ") and "starting" in out


@pytest.mark.parametrize(
    "kernel, message",
    [
        ('file = "a.cubin"', 'a CUDA image without entry, expected it; write entry = "'),
        (f'file = "a.cubin", {LAUNCH}'.replace("scale_kernel", "scale_kernal"),
         "entry 'scale_kernal', which a.cubin lacks, expected a kernel of it (scale_kernel); did you mean"),
        (f'file = "b.ptx", {LAUNCH}'.replace("scale_kernel", "other"), "a kernel of it (scale_kernel)"),
        (f'file = "a.cubin", {LAUNCH}'.replace(", \"out\"", ""), "arguments without 'out', which the kernel must"),
        (f'file = "a.cubin", {LAUNCH}'.replace("factor:float", "factor"), 'write "factor:float"'),
        (f'file = "a.cubin", {LAUNCH}'.replace("factor:float", "factor:int32"), "it as float or double"),
        (f'file = "a.cubin", {LAUNCH}'.replace("rows", "row"), "'row' in arguments 'row'"),
        (f'file = "a.cubin", {LAUNCH}'.replace("numel(*)", "numel(X)"), "'*X' in grid"),
        (f'file = "a.cubin", {LAUNCH}'.replace("numel(*)", "rank(_)"), "rank in grid"),
        (f'file = "a.cubin", {LAUNCH}'.replace('grid = [', 'grid = [1, 1, 1, '), "grid of 4 sizes"),
        (f'file = ["a.cubin", "b.cc"], {LAUNCH}', "kernel files a.cubin and b.cc, expected"),
        (f'file = "a.cubin", arch = "80", {LAUNCH}', "unknown key of a kernel in the form of image 'arch'"),
    ],
)  # fmt: skip
def test_mistakes(kernel, message, tmp_path):
    folder = write(
        tmp_path / "ops", kernel, a_cubin=cubin(80), b_ptx=PTX.format(80).encode(), b_cc=b""
    )
    with pytest.raises(SchemaErrors) as error:
        generate([folder], "images")
    assert str(error.value).startswith(f"{folder}/scale.toml:4: ") and message in str(error.value)


def test_strides_that_a_kernel_would_not_see(tmp_path):
    folder = write(tmp_path / "ops", f'file = "a.cubin", {LAUNCH}', a_cubin=cubin(80))
    path = folder / "scale.toml"
    path.write_text(path.read_text().replace("[kernels]", 'layouts = { x = "strided" }\n[kernels]'))
    with pytest.raises(SchemaErrors, match="'x', whose strides are free"):
        generate([folder], "images")


def test_backends_are_told(library):
    program = "import sys, anyop; anyop.load(sys.argv[1]); print(anyop.backends('images.scale'))"
    done = subprocess.run(
        [sys.executable, "-c", program, library], capture_output=True, text=True, check=True
    )
    assert done.stdout == "['cuda']\n" and anyop.__version__
