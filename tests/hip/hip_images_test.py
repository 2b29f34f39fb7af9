# SPDX-License-Identifier: Apache-2.0
"""Kernels in code objects of HIP (.hsaco): called on a false runtime, and made by clang for chips that are not here."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import anyop
import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "runtimes"))
import small_builds as sb  # noqa: E402
from false_runtimes import make, run  # noqa: E402

cache_folder = sb.cache_folder
CLANG = next(filter(None, map(shutil.which, ("clang++-21", "clang++-20", "clang++-19"))), None)
pytestmark = [
    sb.needs_compiler,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler"),
]
SCHEMA = """\
schema = "hipside::fill(Tensor like, int value) -> Tensor"
shapes = { like = "*", out = "*" }
dtypes = { like = ["int32"], out = "like" }
[kernels.hip]
file = "fill.hsaco"
entry = "fill"
grid = ["ceil(numel(*)/256)"]
block = [256]
arguments = ["out", "value:int32", "rows"]
"""
# Needs no header of HIP's.
KERNEL = """\
extern "C" __attribute__((global)) void fill(int* out, int value, long count) {
  const long i = (long)__builtin_amdgcn_workgroup_id_x() * 256 + __builtin_amdgcn_workitem_id_x();
  if (i < count) out[i] = value;
}
"""
CALL = """
import sys
import anyop, numpy as np
from anyop.conformance.device_array import back, there
from anyop.conformance.device_table import Device, use
anyop.load(sys.argv[1])
chip = Device(sys.argv[2])
use(chip)
x = np.zeros(1000, np.int32)
given, out = there(chip, x), there(chip, x)
for value in (7, -9, 1 << 40):
    try:
        anyop.ops.hipside.fill(given, value, out=out)
    except Exception as error:
        print(type(error).__name__, error)
        continue
    print((back(chip, out) == value).all())
"""


def write(folder: Path, image: bytes, schema: str = SCHEMA) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "fill.toml").write_text(schema)
    (folder / "fill.hsaco").write_bytes(image)
    return folder


def test_the_false_runtime_starts_it(cache_folder, tmp_path):
    library = anyop.build(write(tmp_path / "ops", b"false image"), name="hipside")
    environment = make("hip", tmp_path / "hip", full=True).environment
    code, text = run(environment, "-c", CALL, library, "hip")
    *right, large = text.splitlines()
    assert code == 0 and right == ["True", "True"], text
    assert large.startswith("ValueError hipside.fill: ") and "value" in large, text
    other = make("maca", tmp_path / "maca", full=True).environment
    code, text = run(other, "-c", CALL, library, "maca")
    assert code == 0 and text.count("NotImplementedError hipside.fill: has no kernel for") == 3, (
        text
    )


@pytest.mark.parametrize(
    ("image", "schema", "message"),
    [
        (b"another's image", SCHEMA, "loading fill.hsaco"),
        (b"", SCHEMA, "fill.hsaco is empty, and no image"),
        (b"false image", SCHEMA.replace('"fill"\n', '"full"\n'), "looking for the kernel full"),
    ],
)
def test_what_the_runtime_does_not_take_is_named(image, schema, message, cache_folder, tmp_path):
    library = anyop.build(write(tmp_path / "ops", image, schema), name="hipside")
    environment = make("hip", tmp_path / "hip", full=True).environment
    code, text = run(environment, "-c", CALL, library, "hip")
    assert code == 0 and text.count(message) == 2, text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[kernels.hip]", "[kernels.cuda]", "the code object fill.hsaco for cuda"),
        ("block = [256]", "block = [256]\npdl = true", "pdl of a code object"),
        ("block = [256]", "", "a code object without block"),
        ('"rows"]', '"layout(out)"]', "unusable expression 'layout(out)'"),
    ],
)
def test_mistakes_are_named(old, new, message, cache_folder, tmp_path):
    folder = write(tmp_path / "ops", b"false image", SCHEMA.replace(old, new))
    with pytest.raises(Exception) as error:
        anyop.build(folder, name="hipside")
    assert message in str(error.value)


def compile_for(folder: Path, *flags: str) -> bytes:
    """What clang makes of the kernel."""
    (folder / "fill.hip").write_text(KERNEL)
    words = ["-x", "hip", "--offload-device-only", "-nogpuinc", "-nogpulib", "-O2", *flags]
    program = [CLANG, *words, "fill.hip", "-o", "fill.hsaco"]
    done = subprocess.run(program, cwd=folder, capture_output=True, text=True, timeout=300)
    if "lld" in done.stderr:
        pytest.skip(f"clang's linker is not installed (Debian: lld-19): {done.stderr}")
    assert done.returncode == 0, done.stderr
    return (folder / "fill.hsaco").read_bytes()


@pytest.mark.skipif(CLANG is None, reason="there is no clang of 19 or later (Debian: clang-19)")
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942"])
def test_the_entry_of_what_clang_makes_is_found(arch, cache_folder, tmp_path):
    image = compile_for(tmp_path, f"--offload-arch={arch}", "--no-gpu-bundle-output")
    assert image[:4] == b"\x7fELF"
    assert anyop.build(write(tmp_path / "ops", image), name="hipside")
    write(tmp_path / "ops", image, SCHEMA.replace('"fill"\n', '"full"\n'))
    with pytest.raises(Exception, match=r"entry 'full', which fill.hsaco lacks.*fill"):
        anyop.build(tmp_path / "ops", name="hipside")


@pytest.mark.skipif(CLANG is None, reason="there is no clang of 19 or later (Debian: clang-19)")
def test_a_bundle_for_two_architectures(cache_folder, tmp_path):
    archs = ("--offload-arch=gfx90a", "--offload-arch=gfx942", "--gpu-bundle-output")
    image = compile_for(tmp_path, *archs)
    assert image.count(b"gfx90a") and image.count(b"gfx942")
    assert anyop.build(write(tmp_path / "ops", image), name="hipside")
