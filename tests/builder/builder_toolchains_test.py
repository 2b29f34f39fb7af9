# SPDX-License-Identifier: Apache-2.0
"""The table of compilers and the file that extends it; how compilers are found and what is asked of them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import anyop
import anyop.builder
import pytest
import small_builds as sb
from anyop.builder import toolchains, tools
from anyop.builder.gpus import wanted_archs
from anyop.builder.plan import fitting_archs
from anyop.builder.toolchains import TOOLCHAINS, Toolchain, choose_toolchain

cache_folder = sb.cache_folder
ROOT = Path(__file__).resolve().parents[2]
# Takes nvcc's place: notes its arguments and compiles what it is given as C++.
FAKE = """\
#!/bin/sh
printf '%s\\n' "$*" >> '{log}'
case "$1" in --version) echo "Vendor compiler, release 7.1"; exit 0;; --dryrun) exit 1;; esac
out= ; dep= ; src=
while [ $# -gt 0 ]; do case "$1" in
  -o) out=$2; shift;; -MF) dep=$2; shift;; -c) src=$2; shift;; -I*) includes="$includes $1";;
esac; shift; done
exec '{gxx}' -x c++ -std=c++17 -fPIC -fvisibility=hidden -DANYOP_WITH_CUDA=1 $includes -MD -MF $dep -c "$src" -o "$out"
"""
TABLE = """\
[vendor]
like = "nvcc"
names = ["vendorcc"]
variables = ["VENDORCC"]
places = ["{place}"]
arch = "--gpu={{arch}}"
newer = ""
default_arch = ["10", "20"]
link = []
programs = []
install = "install the vendor's toolkit"
"""


@pytest.fixture
def vendor(cache_folder, tmp_path, monkeypatch) -> Path:
    """A CUDA-compatible compiler called by a user's file; returns its log."""
    log = tmp_path / "log"
    (tmp_path / "place").mkdir()
    program = tmp_path / "place" / "vendorcc"
    program.write_text(FAKE.format(log=log, gxx=sb.GXX))
    program.chmod(0o755)
    (tmp_path / "table.toml").write_text(TABLE.format(place=tmp_path / "place"))
    monkeypatch.setenv("ANYOP_TOOLCHAINS", str(tmp_path / "table.toml"))
    return log


def write_cuda(folder: Path) -> Path:
    """The operator with a kernel for CUDA that needs no header of CUDA's."""
    sb.write_operator(folder)
    text = (folder / "scale.toml").read_text()
    (folder / "scale.toml").write_text(text.replace('.cc" }', '.cc", cuda = "scale.cu" }'))
    kernel = (folder / "scale.cc").read_text()
    (folder / "scale.cu").write_text(kernel.replace("scale_cpu", "scale_cuda"))
    return folder


def test_the_flags_of_kernels_are_those_of_cmake():
    text = (ROOT / "cmake" / "AnyopOperators.cmake").read_text()
    stated = re.search(r"set\(ANYOP_KERNEL_FLAGS ([^)]*)\)", text)[1].split()
    assert sorted([*stated, "-fPIC"]) == sorted(toolchains.CPU_FLAGS)
    assert "POSITION_INDEPENDENT_CODE ON" in text
    assert not any("fast-math" in flag or "march" in flag for flag in toolchains.CPU_FLAGS)


@sb.needs_compiler
def test_a_named_compiler_compiles_the_kernels(vendor, cache_folder, tmp_path, monkeypatch):
    folder = write_cuda(tmp_path / "ops")
    first = sb.build(folder, toolchains={"cuda": "vendor"})
    compiled = [line for line in vendor.read_text().splitlines() if " -o " in line]
    assert len(compiled) == 1 and "in0/scale.cu" in compiled[0], compiled
    assert "--gpu=10 --gpu=20" in compiled[0] and "-gencode" not in compiled[0]
    assert sb.call(first, sb.environment(cache_folder)) == "6.0"
    assert sb.build(folder, toolchains={"cuda": "vendor"}) == first
    monkeypatch.setenv("ANYOP_TOOLCHAIN_CUDA", "vendor")  # by the environment: the same
    assert sb.build(folder) == first
    assert sb.build(folder, arch="20") != first


@sb.needs_compiler
@pytest.mark.parametrize("arch", ["80+", "80*"])
def test_a_file_is_read_once_where_it_says_so(vendor, tmp_path, monkeypatch, arch):
    folder, table = write_cuda(tmp_path / "ops"), tmp_path / "table.toml"
    text = (folder / "scale.toml").read_text()
    assert text.count('"scale.cu"') == 1
    kernel = f'{{ file = "scale.cu", arch = "{arch}" }}'
    (folder / "scale.toml").write_text(text.replace('"scale.cu"', kernel))
    named = 'arch = "--gpu={read},{arch}"\nnewer = "--newer={read}"'
    table.write_text(
        table.read_text().replace('arch = "--gpu={arch}"', named).replace('newer = ""\n', "")
    )
    sb.build(folder, toolchains={"cuda": "vendor"}, arch="80,90")
    (line,) = [line for line in vendor.read_text().splitlines() if " -o " in line]
    once = "--gpu=80,80 --gpu=80,90 --newer=80 -DANYOP_READ_ONCE=1"
    assert (once in line) == (arch == "80*"), line
    assert ("--gpu=80,80 --gpu=90,90 --newer=90" in line) == (arch == "80+"), line
    assert ("ANYOP_READ_ONCE" in line) == (arch == "80*")


@sb.needs_compiler
def test_device_compilers_run_on_half_the_cores(vendor, cache_folder, tmp_path, monkeypatch):
    """Each takes gigabytes: of two cores one, while the tables compile on the other."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    folder, program = tmp_path / "ops", tmp_path / "place" / "vendorcc"
    for name in ("one", "two", "three"):
        sb.write_operator(folder, op=name)
        text = (folder / f"{name}.toml").read_text()
        (folder / f"{name}.toml").write_text(text.replace('.cc" }', f'.cc", cuda = "{name}.cu" }}'))
        kernel = (folder / f"{name}.cc").read_text()
        (folder / f"{name}.cu").write_text(kernel.replace(f"{name}_cpu", f"{name}_cuda"))
    busy = f"mkdir '{tmp_path}/busy' || echo two at once >> '{vendor}'\nsleep 0.3\n"
    text = program.read_text().replace("exec ", busy)
    program.write_text(f"{text}code=$?\nrmdir '{tmp_path}/busy'\nexit $code\n")
    sb.build(folder, toolchains={"cuda": "vendor"})
    said = vendor.read_text()
    assert said.count(" -o ") == 3 and "two at once" not in said, said


@sb.needs_compiler
def test_a_change_of_the_table_builds_anew(vendor, cache_folder, tmp_path):
    folder, table = write_cuda(tmp_path / "ops"), tmp_path / "table.toml"
    first = sb.build(folder, toolchains={"cuda": "vendor"})
    table.write_text(table.read_text().replace("--gpu=", "--chip="))
    assert sb.build(folder, toolchains={"cuda": "vendor"}) != first
    assert "--chip=10" in vendor.read_text()


@sb.needs_compiler
def test_a_named_compiler_that_is_missing(vendor, tmp_path):
    (tmp_path / "place" / "vendorcc").unlink()
    says = (
        f"there is no compiler for cuda kernels: looked for vendorcc in PATH, {tmp_path / 'place'}; VENDORCC names it; "
        "install the vendor's toolkit"
    )
    with pytest.raises(anyop.MissingToolError, match=re.escape(says)):
        anyop.build(write_cuda(tmp_path / "ops"), toolchains={"cuda": "vendor"})


@sb.needs_compiler
def test_a_variable_goes_before_path_and_the_places_of_the_table(vendor, cache_folder, tmp_path):
    folder = write_cuda(tmp_path / "ops")
    other = tmp_path / "other"
    other.write_text("#!/bin/sh\necho 'scale.cu(1): error: of the other' >&2\nexit 1\n")
    other.chmod(0o755)
    patch = pytest.MonkeyPatch()
    patch.setenv("VENDORCC", str(other))
    try:
        with pytest.raises(anyop.BuildError, match="error: of the other"):
            anyop.build(folder, toolchains={"cuda": "vendor"})
    finally:
        patch.undo()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 3", "x is 3, expected a table [x]"),
        ("[x]\nnames = ['a']", "[x] has no 'backend'"),
        ("[x]\nbackend = 'cuda'", "[x] has no 'names'"),
        (
            "[x]\nlike = 'nvcc'\ncolour = 'red'",
            "[x] has the unknown key 'colour', expected some of like, backend",
        ),
        ("[x]\nlike = 'nvcc'\nname = 'y'", "[x] has the unknown key 'name'"),
        ("[x]\nlike = 'icc'", "[x] like = 'icc', expected one of c++"),
        ("[x]\nlike = ['nvcc']", "[x] like = ['nvcc'], expected one of"),
        ("[x]\nlike = 'nvcc'\nnames = 'a'", "[x] names is 'a', expected a list of texts"),
        ("[x]\nlike = 'nvcc'\nnames = [1]", "[x] names is [1], expected a list of texts"),
        ("[x]\nlike = 'nvcc'\narch = ['a']", "[x] arch is ['a'], expected a text"),
        ("[x]\nlike = 'nvcc'\narch = '{gpu}'", "[x] arch is '{gpu}'"),
        ("[x]\nlike = 'nvcc'\narch = '{'", "[x] arch is '{'"),
        (
            "[x]\nlike = 'nvcc'\nbackend = 'metal'",
            "[x] backend is 'metal', expected one of host, cuda, hip",
        ),
        ("[x]\nlike = 'nvcc'\nnames = []", "[x] names is []"),
        ('[x]\nlike = "nvcc"\ncompile = ["a\\nb"]', "[x] compile is ['a\\nb']"),
        ("[x\n", "table.toml: "),
    ],
    ids=repr,
)
def test_mistakes_in_the_file_are_named(text, says, tmp_path, monkeypatch):
    (tmp_path / "table.toml").write_bytes(text.encode("latin-1"))
    monkeypatch.setenv("ANYOP_TOOLCHAINS", str(tmp_path / "table.toml"))
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        choose_toolchain("cuda")
    assert str(caught.value).startswith(str(tmp_path / "table.toml"))


def test_a_file_that_is_no_utf8_is_named(tmp_path, monkeypatch):
    (tmp_path / "table.toml").write_bytes(b'[x]\nlike = "\xff"')
    monkeypatch.setenv("ANYOP_TOOLCHAINS", str(tmp_path / "table.toml"))
    with pytest.raises(ValueError, match=r"table\.toml: "):
        choose_toolchain("cuda")


def test_a_file_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYOP_TOOLCHAINS", str(tmp_path / "nowhere.toml"))
    with pytest.raises(OSError, match=r"nowhere\.toml"):
        choose_toolchain("host")


def test_an_entry_replaces_one_of_the_table(tmp_path, monkeypatch):
    (tmp_path / "table.toml").write_text("[nvcc]\nlike = 'nvcc'\ndefault_arch = ['100']\n")
    monkeypatch.setenv("ANYOP_TOOLCHAINS", str(tmp_path / "table.toml"))
    assert choose_toolchain("cuda").default_arch == ("100",)
    assert choose_toolchain("cuda").names == TOOLCHAINS["nvcc"].names
    (tmp_path / "table.toml").write_text("[cucc]\nlike = 'cucc'\nplaces = ['/opt/x']\n")
    assert choose_toolchain("cuda") == TOOLCHAINS["nvcc"]  # the default stays the default
    assert choose_toolchain("cuda", "cucc").places == ("/opt/x",)


VENDORS = [  # toolchain, where its program lies below the folder of a variable, its library, flags
    (
        "cucc",
        "MACA_PATH",
        "tools/cu-bridge/tools/cucc",
        "tools/cu-bridge/lib/libruntime_cu.so",
        "-O3",
    ),
    (
        "cucc",
        "MACA_PATH",
        "tools/cu-bridge/bin/cucc",
        "tools/cu-bridge/lib/libruntime_cu.so",
        "-O3",
    ),
    (
        "mxcc",
        "MACA_PATH",
        "mxgpu_llvm/bin/mxcc",
        "lib/libmcruntime.so",
        "-x maca -offload-arch=xcore1000",
    ),
    (
        "mcc",
        "MUSA_HOME",
        "bin/mcc",
        "lib/libmusart.so",
        "-x musa -mtgpu --cuda-gpu-arch=mp_22 --cuda-gpu-arch=mp_31",
    ),
    (
        "corex",
        "COREX_HOME",
        "bin/clang++",
        "lib64/libcudart.so",
        "-x ivcore --cuda-gpu-arch=ivcore11",
    ),
]


@sb.needs_compiler
@pytest.mark.parametrize(("name", "variable", "program", "library", "flags"), VENDORS)
def test_a_vendors_compiler_in_its_own_folder(
    name, variable, program, library, flags, cache_folder, tmp_path, monkeypatch
):
    """A false one, which compiles as the host's does, with an empty library beside it."""
    monkeypatch.setenv(variable, str(tmp_path / "sdk"))
    program, library = tmp_path / "sdk" / program, tmp_path / "sdk" / library
    for file in (program, library):
        file.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(FAKE.format(log=tmp_path / "log", gxx=sb.GXX))
    program.chmod(0o755)
    words = [sb.GXX, "-shared", "-x", "c++", os.devnull, "-o", str(library)]
    subprocess.run(words, check=True, timeout=300)
    sb.build(write_cuda(tmp_path / "ops"), toolchains={"cuda": name})
    compiled = [line for line in (tmp_path / "log").read_text().splitlines() if " -o " in line]
    assert len(compiled) == 1
    assert set(flags.split()) <= set(compiled[0].split()), compiled


def test_the_table_itself_is_right():
    for name, chain in TOOLCHAINS.items():
        assert (
            chain.name == name and chain.names and chain.backend in ("host", "cuda", "hip", "mlu")
        )
        for field in Toolchain._fields:
            assert isinstance(getattr(chain, field), (str, tuple)), (name, field)
    first = {chain.backend: chain.name for chain in reversed(TOOLCHAINS.values())}
    assert first == {"host": "c++", "cuda": "nvcc", "hip": "hipcc", "mlu": "cncc"}


@pytest.mark.parametrize(
    ("stated", "wanted", "found"),
    [(None, ["90a", "80"], ["80", "90a"]), ("80+", ["70", "90", "80"], ["80", "90"]), ("90+", ["80"], ["90"]),
     ("90a", ["80", "90"], ["90a"]), ("90+", ["90a", "100"], ["90a", "100"]),
     ("80*", ["70", "90", "80"], ["80", "90"]), ("80*", ["70"], ["80"])],
)  # fmt: skip
def test_the_architectures_of_a_kernel(stated, wanted, found):
    assert fitting_archs(stated, wanted) == found


def test_the_architectures_that_are_wanted(monkeypatch):
    monkeypatch.setattr("anyop.builder.gpus.gpu_archs", lambda: ("75",))
    monkeypatch.delenv("ANYOP_CUDA_ARCH", raising=False)
    assert wanted_archs("cuda", None, ("80",)) == ["75"]
    assert wanted_archs("cuda", "90a,80; 100f", ("80",)) == ["100f", "80", "90a"]
    assert wanted_archs("cuda", ["90", "90"], ()) == ["90"]
    monkeypatch.setenv("ANYOP_CUDA_ARCH", "86")
    assert wanted_archs("cuda", None, ("80",)) == ["86"]
    for bad in ("sm_90", "90b", "", "9", ["90;rm"], [90]):
        with pytest.raises(ValueError, match="architecture"):
            wanted_archs("cuda", bad, ())


def test_the_compiler_is_never_taken_from_the_current_folder(tmp_path, monkeypatch):
    for folder in (tmp_path, tmp_path / "bin"):
        folder.mkdir(exist_ok=True)
        (folder / "g++").write_text("#!/bin/sh\n")
        (folder / "g++").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", f":.:bin:{tmp_path / 'bin'}:")
    assert tools.find_command(choose_toolchain("host")) == [str(tmp_path / "bin" / "g++")]
    monkeypatch.setenv("PATH", ":.:bin:")
    assert tools.find_command(choose_toolchain("host")) is None


def test_a_variable_with_an_open_quote_is_named(monkeypatch):
    monkeypatch.setenv("CXX", 'g++ "-DX')
    with pytest.raises((ValueError, anyop.MissingToolError), match="CXX"):
        tools.need_command(choose_toolchain("host"))


@pytest.mark.parametrize(
    ("command", "compiler"),
    [(["/x/g++"], "/x/g++"), (["/x/ccache", "-v", "/y/clang++", "-O1"], "/y/clang++"), (["/x/g++", "-m64"], "/x/g++")],
)  # fmt: skip
def test_the_compiler_behind_a_launcher(command, compiler):
    assert tools.compiler_of(command) == compiler


@sb.needs_compiler
def test_the_parts_of_gcc_count():
    tool = tools.describe(choose_toolchain("host"), [sb.GXX])
    if "Free Software" not in tools.ask([sb.GXX], "--version"):
        pytest.skip(f"{sb.GXX} is no gcc")
    names = {os.path.basename(path) for path, *_ in tool.files}
    assert {"cc1plus", "collect2"} <= names and any(name.endswith("ld") for name in names), names
    assert shutil.which("g++") == sb.GXX and re.search(r"\d+\.\d+", tool.version)


CLANG_PROGRAM = """
import sys
import anyop, ml_dtypes, numpy as np
print(anyop.load(sys.argv[1]))
angle = np.random.default_rng(0).standard_normal((5, 40))
x = np.random.default_rng(1).standard_normal((2, 5, 80))
# Roundings of the inputs and of the result, and two products and a sum.
for dtype, tolerance in ((np.float64, 1e-14), (np.float32, 1e-6), (np.float16, 2e-3), (ml_dtypes.bfloat16, 2e-2)):
    given = [value.astype(dtype) for value in (x, np.cos(angle), np.sin(angle))]
    X, C, S = (value.astype(np.float64) for value in given)
    expected = np.concatenate([X[..., :40] * C - X[..., 40:] * S, X[..., 40:] * C + X[..., :40] * S], -1)
    found = anyop.ops.port.rotary(*given).astype(np.float64)
    assert (abs(found - expected) <= tolerance * (1 + abs(expected))).all(), dtype
"""


def test_clang_builds_and_computes_the_same(cache_folder):
    """anyop's headers for kernels are read by other compilers than gcc too."""
    pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is an ml_dtypes array")
    found = sorted(Path("/usr/bin").glob("clang++-[0-9]*"))
    clang = shutil.which("clang++") or (str(found[-1]) if found else None)
    if clang is None:
        pytest.skip("no clang++ on this machine")
    done = subprocess.run(
        [sys.executable, "-c", CLANG_PROGRAM, str(ROOT / "examples" / "porting" / "ops")],
        env=os.environ | {"CXX": clang, "ANYOP_CACHE_DIR": str(cache_folder)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert "port.rotary" in done.stdout
