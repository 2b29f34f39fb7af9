# SPDX-License-Identifier: Apache-2.0
"""Triton kernels in images: compiled without a GPU, kept, checked, started without Triton; mistakes of [launch].

The driver is tests/forms/fake_cuda.c, which runs Triton's _rms_norm in the process's memory; on a GPU
tests/cuda/frameworks/cuda_triton_images.py does the same with the real one.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from anyop.builder.build import build
from anyop.builder.wheel import build_wheel
from anyop.codegen.generate import generate
from anyop.codegen.schema.source import SchemaErrors

OPS = Path(__file__).parents[2] / "ops"
HAS_TRITON = importlib.util.find_spec("triton") is not None
if shutil.which("gcc") is None:
    pytest.skip("no gcc on this machine", allow_module_level=True)
needs_triton = pytest.mark.skipif(
    not HAS_TRITON, reason="triton is not installed (it has wheels for x86-64 Linux only)"
)
NO_TRITON = "import sys; sys.modules['triton'] = None; sys.modules['torch'] = None\n"
PROGRAM = """
import os, sys
import anyop
import numpy as np
from anyop.testing.dlpack import DlpackArray

make = np.random.default_rng(0).standard_normal
OP = anyop.rms_norm

def norm(x, out=None, backend="triton"):
    w = np.linspace(1, 2, x.shape[-1], dtype=np.float32)
    out = np.full_like(x, -7) if out is None else out
    with anyop.use(backend):
        OP(*(DlpackArray(a, device=(2, 0)) for a in (x, w)), out=DlpackArray(out, device=(2, 0)))
    exact = x / np.sqrt((x.astype(float) ** 2).mean(-1, keepdims=True) + 1e-6) * w
    return float(abs(out - exact).max()) < 2e-6

def tried(*arguments):
    try:
        return norm(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def aligned(shape, offset=0):
    memory = np.empty(int(np.prod(shape)) + 20, np.float32)
    at = -memory.ctypes.data % 16 // 4 + offset
    found = memory[at : at + int(np.prod(shape))].reshape(shape)
    found[...] = make(shape)
    return found

x, out = aligned((6, 64)), aligned((6, 64))
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> Path:
    """The folder of the fake driver."""
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).with_name("fake_cuda.c")
    command = ["gcc", "-O1", "-shared", "-fPIC", "-o", folder / "libcuda.so.1", source]
    subprocess.run(command, check=True)
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory, driver) -> Path:
    """A cache with the images of aligned and any calls of 64 float32."""
    folder = tmp_path_factory.mktemp("cache")
    if HAS_TRITON:
        out, _ = run(driver, folder, "print(norm(x, out), norm(aligned((6, 64), 1)))")
        assert out == ["True True"]
    return folder


def run(driver, cache, program: str, **environment: str) -> tuple[list[str], list[str]]:
    """What the program prints, and what the driver did and was said."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + program],
        env={
            **os.environ, "LD_LIBRARY_PATH": f"{driver}:{os.environ.get('LD_LIBRARY_PATH', '')}", "FAKE_SM": "90",
            "ANYOP_CACHE_DIR": str(cache), "ANYOP_TORCH_GLUE": "0", **environment,
        },
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr.splitlines()


def copied(cache: Path, tmp_path: Path) -> tuple[Path, list[Path]]:
    shutil.copytree(cache / "triton", tmp_path / "triton")
    for folder in (tmp_path, tmp_path / "triton"):
        folder.chmod(0o700)
    return tmp_path, sorted((tmp_path / "triton").iterdir())


@needs_triton
def test_values_and_launches_without_triton(driver, cache):
    """The images that are there are used: two, though there are four kinds of addresses and strides."""
    program = NO_TRITON + (
        "wide = aligned((6, 128))[:, :64]\n"
        "narrow = aligned((6, 65))[:, :64]\n"
        "print(norm(x, out), norm(x, out), norm(wide, out), norm(aligned((6, 64), 1), out), norm(narrow, out))\n"
    )
    out, did = run(driver, cache, program)
    assert out == ["True True True True True"]
    norms = [line for line in did if line.startswith("norm")]
    assert [line.split(" hidden")[0] for line in norms] == [
        "norm of 6 x 64 strides 64 64", "norm of 6 x 64 strides 64 64", "norm of 6 x 64 strides 128 64",
        "norm of 6 x 64 strides 64 64", "norm of 6 x 64 strides 65 64",
    ]  # fmt: skip
    assert all("hidden (nil) (nil)" in line for line in norms)
    assert sum(line.startswith("load") for line in did) == 2
    launches = [line for line in did if line.startswith("launch")]
    assert launches[0].startswith("launch 1 1 1 of 128 1 1 shared ")  # 32 rows a block, 4 warps


@needs_triton
@pytest.mark.parametrize("harm", ["cut", "changed", "empty", "renamed"])
def test_a_damaged_image_is_made_anew(driver, cache, tmp_path, harm):
    folder, images = copied(cache, tmp_path)
    (image,) = (path for path in images if "_1_0_" in path.name)
    good = image.read_bytes()
    other = next(path for path in images if path != image).read_bytes()
    bad = {
        "cut": good[:-1],
        "changed": good[:-9] + b"\0" + good[-8:],
        "empty": b"",
        "renamed": other,
    }
    image.write_bytes(bad[harm])
    assert run(driver, folder, "print(norm(x, out))")[0] == ["True"]
    assert image.read_bytes()[:8] == b"ANYOPTRI" and len(image.read_bytes()) == len(good)


@needs_triton
@pytest.mark.parametrize("count", [10, 12])
def test_an_image_of_another_triton(driver, cache, count):
    """Said once, with place and cure; the function in Python runs instead."""
    program = "print(tried(x, out), tried(x, out))"
    out, did = run(driver, cache, program, FAKE_PARAMS=str(count))
    (said,) = (line for line in did if "of another Triton" in line)
    assert "its kernel has other parameters (made by Triton 3." in said
    assert "/triton/anyop_rms_norm" in said and "remove the file, or build the library anew" in said
    assert said.endswith("; triton.python runs instead") and "finds no CUDA device" in out[0]


def test_what_cannot_be_made_falls_to_the_next(driver, tmp_path):
    """Without Triton and an image: the reason, then the next of the route."""
    scope = "triton,cpu"
    out, did = run(driver, tmp_path, NO_TRITON + f"print(tried(x, out, {scope!r}))")
    text = "\n".join((*out, *did))
    assert (
        "has no image for such a call: needs triton, which is not installed (pip install triton)"
        in text
    )
    assert "norm of" not in text


def test_rows_that_are_not_one_are_left_to_python(driver, tmp_path):
    program = NO_TRITON + "print(tried(make((4, 3, 128)).astype('f4')[:, :2, :64]))"
    out, did = run(driver, tmp_path, program)
    assert "takes x with leading dimensions that are one" in "\n".join((*out, *did))


TWICE = """\
import triton
import triton.language as tl

@triton.jit(do_not_specialize=["n"])
def _twice(x, out, n, BLOCK: tl.constexpr, ON: tl.constexpr, factor=2):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, factor * tl.load(x + at, at < n), at < n)

@triton.autotune([triton.Config({"BLOCK": 64}, num_warps=2), triton.Config({"BLOCK": 128}, num_warps=4)], key=["n"])
@triton.jit
def _tuned(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, at < n), at < n)
"""
SCHEMA = """\
schema = "images::twice(Tensor x, int k=1, str mode='a', Tensor? y=None) -> Tensor"
shapes = {{ x = "* D", y = "D", out = "* D" }}
dtypes = {{ x = ["float32", "float16"], y = "x", out = "x" }}
[kernels]
triton = {{ file = "twice_triton.py", function = "_twice" }}
[launch.triton]
{}
"""
LAUNCH = """\
kernel = "_twice"
grid = ["ceil(numel(*)*D/BLOCK)"]
arguments = ["x", "out", "rows*D"]
constants = { BLOCK = "min(next_power_of_2(D), 1024)", ON = "mode == 'b'" }
"""


def folder_of(path: Path, launch: str = LAUNCH) -> Path:
    path.mkdir(exist_ok=True)
    (path / "twice.toml").write_text(SCHEMA.format(launch))
    (path / "twice_triton.py").write_text(TWICE)
    return path


@pytest.mark.parametrize(
    "old, new, message",
    [
        ('kernel = "_twice"', 'kernel = "_twise"', "expected one of it (_twice or _tuned); did you mean '_twice'?"),
        ('kernel = "_twice"\n', "", 'launch without kernel, expected it; write kernel = "'),
        ("grid", "grit", "unknown key of launch 'grit'"),
        ("ON = ", "OFF = ", "constant 'OFF', which _twice has not, expected one of its parameters"),
        (", ON = \"mode == 'b'\"", "", "launch without the constant ON, expected it"),
        ('"rows*D"', '"rows*E"', "'E' in 'rows*E' of launch, expected a size, a number or a name"),
        ('"rows*D"]', '"rows*D", "k", "k"]', "5 arguments of _twice, expected 4 (x, out, n, factor)"),
        ('"out", "rows*D"', '"x", "rows*D"', "arguments without 'out', which the kernel must write"),
        ('"rows*D"', '"stride(y)"', "stride(y) in 'stride(y)', which may be absent"),
        ('"rows*D"', '"size(z, 0)"', "size(z) in 'size(z, 0)' of launch, expected x"),
        ('"rows*D"', '"x[0]"', "unusable expression 'x[0]' in launch"),
        ('"rows*D"', '"mode"', "'mode' in arguments, expected a tensor or a number that is never absent"),
        ("mode == 'b'", "k == 'b'", "text(k) in 'k == 'b'' of launch, expected mode"),
        ("arguments", 'ahead = ["D=64 mode=b", "k=3"]\narguments', "ahead 'k=3' without D, expected"),
        ("arguments", 'ahead = ["Q=64"]\narguments', "'Q=64' in ahead 'Q=64'"),
        ("arguments", "options = { warps = 4 }\narguments", "unknown option of launch 'warps'"),
        ("arguments", "configs = [{ BLOCK = 64 }, { num_warps = 4 }]\narguments", "configuration {'BLOCK': 64}"),
    ],
)  # fmt: skip
def test_mistakes(tmp_path, old, new, message):
    launch = LAUNCH
    if "factor" not in message:
        launch = LAUNCH.replace('"rows*D"]', '"rows*D", "k"]')
    assert old in launch
    folder = folder_of(tmp_path / "ops", launch.replace(old, new, 1))
    with pytest.raises(SchemaErrors) as error:
        generate([folder], "images")
    assert f"{folder}/twice.toml:6: " in str(error.value) and message in str(error.value)


def kinds(launch: str, path: Path) -> list[str]:
    (op,) = generate([folder_of(path, launch)], "images").operators
    return list(op.kernels[0].launch.ahead)


def test_kinds_that_are_compiled_ahead(tmp_path):
    """dtypes; aligned; wide; constants, as C writes them."""
    plain = LAUNCH.replace('"rows*D"]', '"rows*D", "k"]')
    found = kinds(
        plain + 'ahead = ["D=64|100 mode=a", "D=3000 mode=b dtype=float16"]', tmp_path / "a"
    )
    sets = [f"{t},{t};{a};0;{b},0" for b in (64, 128) for t in (6, 8) for a in (1, 2, 0)]
    assert found == [*sets, *(f"6,6;{a};0;1024,1" for a in (1, 2, 0))]
    tuned = plain.replace("_twice", "_tuned").replace(', "k"', "")
    tuned = tuned[: tuned.index("constants")] + 'ahead = ["dtype=float32"]'
    assert kinds(tuned, tmp_path / "b") == [
        f"8,8;{a};0;{c}" for c in ("64,2", "128,4") for a in (1, 2, 0)
    ]
    (op,) = generate([tmp_path / "b"], "images").operators
    assert op.kernels[0].choices == 2  # the default is the first


@needs_triton
def test_images_beside_a_library_and_in_a_wheel(driver, tmp_path):
    """Compiled by the builder; then neither Triton nor the cache is needed."""
    source = tmp_path / "ops"
    source.mkdir()
    toml = (OPS / "norm" / "rms_norm.toml").read_text().split("[backward]")[0]
    toml = re.sub('aten = """.*?"""', "", toml, flags=re.DOTALL)
    toml = toml.replace("rms_norm(Tensor", "mine::rms_norm(Tensor").replace(
        'cpu = "rms_norm.cc"\n', ""
    )
    toml = "\n".join(
        line
        for line in toml.splitlines()
        if not line.startswith(
            ("cuda =", "opencl =", "ascend =", "aten_overloads =", "deterministic")
        )
    )
    (source / "rms_norm.toml").write_text(
        toml.replace("grid =", 'ahead = ["D=64 dtype=float32"]\ngrid =')
    )
    shutil.copy(OPS / "norm" / "rms_norm_triton.py", source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANYOP_CACHE_DIR", str(tmp_path / "cache"))
        library = Path(build(source, out=tmp_path / "out", name="mine", arch="90"))
        wheel = build_wheel(source, tmp_path, name="mine", version="1", arch=["80", "90a"])
    images = sorted((library.parent / "triton").glob("*.img"))
    assert len(images) == 3 and all("-90_8.8.8_" in path.name for path in images)
    packed = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".img")]
    assert len(packed) == 6 and {path.name for path in images} <= {
        Path(name).name for name in packed
    }
    program = (
        NO_TRITON
        + f"anyop.load({str(library)!r}); OP = anyop.ops.mine.rms_norm\nprint(tried(x, out), tried(x[:, :32]))"
    )
    out, did = run(driver, tmp_path / "none", program)
    assert out[0].startswith("True NotImplementedError: mine.rms_norm") and "needs triton" in out[0]
    assert sum(line.startswith("norm of") for line in did) == 1
    images[0].write_bytes(images[0].read_bytes()[:100])
    images[1].write_bytes(b"")
    out, _ = run(driver, tmp_path / "none", program)
    assert (
        "is damaged" in out[0]
        and str(images[0].parent) in out[0]
        and "build the library anew" in out[0]
    )
    assert not (tmp_path / "none" / "triton").exists()


SCRATCH = """\
import triton
import triton.language as tl

@triton.jit
def _copy(x, out, rows, D, BLOCK: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [rows, D], [D, 1], [1, BLOCK])
    target = tl.make_tensor_descriptor(out, [rows, D], [D, 1], [1, BLOCK])
    target.store([tl.program_id(0), 0], source.load([tl.program_id(0), 0]))
"""


@needs_triton
def test_launch_data(tmp_path):
    """Clusters, cooperative grids, PDL and scratch are written into the file."""
    from anyop.backend.triton_compile import _HEAD, CannotCompile, compile_image, is_whole

    launch = {
        "file": "copy_triton.py", "source": SCRATCH, "kernel": "_copy", "constants": ["BLOCK", "num_warps"],
        "booleans": [], "fixed": {"num_ctas": 2, "launch_pdl": True, "launch_cooperative_grid": True},
    }  # fmt: skip
    tensors = [["x", "tensor", 1], ["out", "tensor", 2]]
    launch["arguments"] = [*tensors, ["rows", "int", 0], ["D", "int", 1]]
    kind = "90;6,6;1;0;256,8"
    data = compile_image("acme.copy", launch, kind)
    assert is_whole(data, kind) and not is_whole(data, "90;6,6;1;0;256,4")
    _, _, form, threads, _, ctas, cooperative, pdl, scratch, align, hidden, count, *rest = (
        _HEAD.unpack_from(data)
    )
    assert (form, threads, ctas, cooperative, pdl, hidden, count) == (1, 256, 2, 1, 1, 2, 4)
    assert scratch > 0 and align in (64, 128) and rest[1].rstrip(b"\0") == kind.encode()
    assert rest[4][:5] == bytes([8, 8, 4, 4, 0]) and data[_HEAD.size :][:4] == b"\x7fELF"
    wide = compile_image("acme.copy", {**launch, "fixed": {}}, "80;6,6;0;1;256,8")
    assert _HEAD.unpack_from(wide)[5:8] == (1, 0, 0) and _HEAD.unpack_from(wide)[-1][:4] == bytes(
        [8, 8, 8, 8]
    )
    with pytest.raises(CannotCompile, match="no complex numbers"):
        compile_image("acme.copy", launch, "90;10,10;1;0;256,8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISABLE_PTXAS_OPT", "1")
        with pytest.raises(CannotCompile, match="DISABLE_PTXAS_OPT changes what Triton compiles"):
            compile_image("acme.copy", launch, kind)


def test_cleaning_the_cache(monkeypatch, tmp_path):
    """Images are no entries, and go with them: all, or what is older."""
    from anyop.cache import maintenance

    monkeypatch.setenv("ANYOP_CACHE_DIR", str(tmp_path))
    (tmp_path / "triton").mkdir()
    for name, age_s in (("old.img", 7200), ("new.img", 0), ("notes.txt", 7200)):
        path = tmp_path / "triton" / name
        path.write_bytes(b"x")
        os.utime(path, (time.time() - age_s,) * 2)
    maintenance.clean(older_seconds=3600.0)
    assert sorted(os.listdir(tmp_path / "triton")) == ["new.img", "notes.txt"]
    maintenance.clean()
    assert os.listdir(tmp_path / "triton") == ["notes.txt"]


@needs_triton
def test_a_result_at_an_odd_address_has_an_image_of_its_own(tmp_path):
    """The loads, and so the order of sums, are those of an aligned one: only the result's hint is missing."""
    from anyop.backend.triton_compile import _plan, jit_function

    (op,) = generate(
        [folder_of(tmp_path / "a", LAUNCH.replace('"rows*D"]', '"rows*D", "k"]'))], "images"
    ).operators
    stated = [[a.name, a.type, a.aligned] for a in op.kernels[0].launch.arguments]
    assert {name: aligned for name, _, aligned in stated}["out"] == 2
    launch = {
        "file": "copy_triton.py", "source": SCRATCH, "kernel": "_copy", "constants": ["BLOCK"], "fixed": {},
        "arguments": [["x", "tensor", 1], ["out", "tensor", 2], ["rows", "int", 0], ["D", "int", 1]], "booleans": [],
    }  # fmt: skip
    kernel = jit_function("acme.copy", launch)
    hints = {a: _plan(kernel, launch, f"90;6,6;{a};0;256")[3] for a in (1, 2, 0)}
    assert hints == {1: [0, 1, 3], 2: [0, 3], 0: []}
