# SPDX-License-Identifier: Apache-2.0
"""The build: what a change rebuilds, what is refused, the examples on the installed package."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import anyop
import pytest
from drawn import FULL, few

ROOT = Path(__file__).resolve().parents[2]
PARTS = [
    "CMakeLists.txt",
    "pyproject.toml",
    "cmake",
    "src",
    "include",
    "codegen",
    "bindings",
    "python",
]
pytestmark = pytest.mark.drawn(5, together="a tree that is built anew")
# Those of one kernel each; mul is in formulas of tangents.
OPERATORS = [
    "norm/l2_normalize*",
    "embedding/*.*",
    "elementwise/mul*",
    "elementwise/sum_to.h",
    "elementwise/shaped_as.h",
]
# Before the compiler: it only reads what sources include, for ninja to know, and their objects are
# empty. What is built anew is the same; libraries are linked, and do not run. With ANYOP_TEST_FULL=1 all is compiled.
READS = """#!/bin/sh
for source; do :; done
case $source in *.c|*.cc) ;; *) exec "$@" ;; esac
for word; do
  shift
  [ "$before" = -o ] && object=$word word=/dev/null
  [ "$word" = -c ] && set -- "$@" -E || set -- "$@" "$word"
  before=$word
done
"$@" && echo | "$1" -x c -c -fPIC - -o "$object"
"""
NVCC = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
ENVIRONMENT = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def run(*command: object, cwd: Path | None = None, good: bool = True) -> str:
    """Run a command; its output, errors included."""
    words = [str(word) for word in command]
    process = subprocess.run(
        words, cwd=cwd, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert (process.returncode == 0) == good, process.stdout
    return process.stdout


def configure(source: Path, build: Path, *options: str, good: bool = True) -> str:
    python = f"-DPython_EXECUTABLE={sys.executable}"
    words = ["cmake", "-G", "Ninja", "-S", source, "-B", build, python, *options]
    return run(*words, good=good)


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """A copy of the sources with a few operators, configured and built in build/."""
    tree = tmp_path_factory.mktemp("tree")
    ignored = shutil.ignore_patterns("__pycache__")
    for part in PARTS:
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, tree / part, **({"ignore": ignored} if copy is shutil.copytree else {}))
    for pattern in OPERATORS:
        for file in sorted((ROOT / "ops").glob(pattern)):
            (tree / "ops" / file.parent.name).mkdir(parents=True, exist_ok=True)
            shutil.copy(file, tree / "ops" / file.parent.name)
    # The tests below count the files of its kernel for the CPU, and give it another name.
    schema = tree / "ops" / "norm" / "l2_normalize.toml"
    text = re.sub(r"(?m)^opencl = .*\n", "", schema.read_text())
    schema.write_text(text.replace(', "opencl"]', "]"))
    # Without CUDA kernels, which compile for long: the build that runs these tests has them.
    options = ["-DANYOP_WITH_CUDA=OFF"]
    if not FULL:
        reads = tree / "reads.sh"
        reads.write_text(READS)
        reads.chmod(0o755)
        options += [f"-DCMAKE_{language}_COMPILER_LAUNCHER={reads}" for language in ("C", "CXX")]
        options.append("-DCMAKE_CXX_STANDARD_LIBRARIES=-Wl,-z,undefs")
    configure(tree, tree / "build", *options)
    run("cmake", "--build", tree / "build", "-j2")
    return tree


def rebuilt(tree: Path) -> list[str]:
    """Build again; the sources that were compiled, and "libanyop" when it was linked."""
    output = run("cmake", "--build", tree / "build", "-j2", "--verbose")
    done = []
    for line in output.splitlines():
        compiled = re.search(r" -c (\S+)$", line)
        if compiled:
            done.append(Path(compiled[1]).name)
        elif re.search(r" -shared .*libanyop\.so", line):
            done.append("libanyop")
    return sorted(done)


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def test_nothing_changed_builds_nothing(tree):
    assert rebuilt(tree) == []


def test_one_kernel_rebuilds_one_object(tree):
    append(tree / "ops" / "norm" / "l2_normalize.cc", "// changed\n")
    assert [name for name in rebuilt(tree) if name != "libanyop"] == ["l2_normalize.cc"]


def test_a_default_rebuilds_one_table(tree):
    path = tree / "ops" / "norm" / "l2_normalize.toml"
    text = path.read_text()
    assert "eps=1e-12" in text
    path.write_text(text.replace("eps=1e-12", "eps=1e-11"))
    done = rebuilt(tree)
    assert "l2_normalize_table.c" in done
    own = {"l2_normalize_table.c", "l2_normalize.cc"}
    assert set(done) <= {*own, "libanyop"}
    assert rebuilt(tree) == []


def test_a_new_folder_is_found_and_a_vanished_one_leaves(tree):
    new = tree / "ops" / "fresh"
    new.mkdir()
    for suffix in (".toml", ".cc"):
        text = (tree / "ops" / "norm" / f"l2_normalize{suffix}").read_text()
        text = text.replace("l2_normalize", "fresh_normalize").replace(
            "L2Normalize", "FreshNormalize"
        )
        text = re.sub(
            r"(?ms)^\[(backward|tangent|launch\.[a-z.]+)\]\n.*?(?=^\[)|^(cuda|triton|deterministic) = [^\n]*\n",
            "",
            text,
        )  # what stays
        (new / f"fresh_normalize{suffix}").write_text(text)
    done = rebuilt(tree)
    assert {"fresh_normalize.cc", "fresh_normalize_table.c", "anyop_library.c", "libanyop"} == set(
        done
    )
    shutil.rmtree(new)
    assert set(rebuilt(tree)) <= {"anyop_library.c", "libanyop"}
    assert not (tree / "build" / "generated" / "anyop" / "ops" / "fresh_normalize.h").exists()


def test_a_mistake_in_a_schema_stops_the_build(tree):
    path = tree / "ops" / "norm" / "l2_normalize.toml"
    text = path.read_text()
    path.write_text(text + '\n[colours]\nred = "no"\n')
    output = run("cmake", "--build", tree / "build", good=False)
    assert re.search(r"l2_normalize\.toml:\d+: .*colours", output)
    path.write_text(text)
    run("cmake", "--build", tree / "build")


def test_stubs_of_aten_are_written_for_the_torch_that_is_here(tree):
    try:
        version = metadata.version("torch").partition("+")[0]
    except metadata.PackageNotFoundError:
        pytest.skip("torch is not installed")
    lines = (tree / "build" / "generated" / "aten" / "__init__.pyi").read_text().splitlines()
    assert lines[0].startswith(f"# Generated by codegen.aten for torch {version}")
    assert sum(line.startswith("def ") or "_op" in line for line in lines) > 1000


def test_compile_commands_are_there(tree):
    commands = json.loads((tree / "build" / "compile_commands.json").read_text())
    assert {"l2_normalize.cc", "call.cc"} <= {Path(entry["file"]).name for entry in commands}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["-DANYOP_WITH_CUDA=perhaps"], "ANYOP_WITH_CUDA is 'perhaps', expected AUTO, ON or OFF"),
        (["-DANYOP_SANITIZE=memory"], "ANYOP_SANITIZE is 'memory', expected address"),
        (["-DANYOP_CPU_ISA=2"], "ANYOP_CPU_ISA is '2', expected 1, 3, 4"),
        (["-DANYOP_OPS_DIRS=/nowhere"], "ANYOP_OPS_DIRS names /nowhere"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_are_refused(options, says, tree, tmp_path):
    output = configure(tree, tmp_path, *options, good=False)
    assert re.search(says, " ".join(output.split()))


def test_cuda_without_nvcc_is_refused(tree, tmp_path):
    folders = [Path(folder) for folder in os.environ["PATH"].split(":")] + [
        Path("/usr/local/cuda/bin")
    ]
    hidden = [folder for folder in folders if (folder / "nvcc").exists()]
    if any((folder / "c++").exists() for folder in hidden):
        pytest.skip("nvcc lies beside the C++ compiler, so it cannot be hidden alone")
    options = ["-DANYOP_WITH_CUDA=ON", f"-DCMAKE_IGNORE_PATH={';'.join(map(str, hidden))}"]
    output = " ".join(configure(tree, tmp_path, *options, good=False).split())
    assert "there is no nvcc on PATH" in output
    assert "CUDACXX" in output


@pytest.mark.skipif(NVCC is None, reason="nvcc is not here: nothing compiles CUDA kernels")
@pytest.mark.parametrize("arch", few(["777a", "777*"], 1, "an arch that nvcc lacks"))
def test_an_arch_that_nvcc_lacks_is_refused(arch, tree, tmp_path):
    extra = tmp_path / "extra"
    extra.mkdir()
    text = (ROOT / "tests" / "probe" / "sums.toml").read_text()
    kernels = f'[kernels]\ncuda = {{ file = "sums.cu", arch = "{arch}" }}\n'
    text = re.sub(r"(?ms)^\[kernels\].*?(?=^\[|\Z)", kernels, text)
    (extra / "sums.toml").write_text(text)
    (extra / "sums.cu").write_text("// Not compiled.\n")
    options = [f"-DANYOP_OPS_DIRS={extra}", f"-DCMAKE_CUDA_COMPILER={NVCC}"]
    output = configure(tree, tmp_path / "build", "-DANYOP_WITH_CUDA=ON", *options, good=False)
    said = " ".join(output.split())
    asked = re.escape(f'sums.cu has arch = "{arch}", which ')
    assert re.search(rf"{asked}\S*nvcc lacks; it has .*90", said), said


def test_further_folders_are_compiled_in(tree, tmp_path):
    extra = tmp_path / "extra"
    extra.mkdir()
    for name in ("sums.toml", "sums.cc"):
        shutil.copy(ROOT / "tests" / "probe" / name, extra)
    configure(tree, tmp_path / "build", f"-DANYOP_OPS_DIRS={extra}")
    tables = (tmp_path / "build" / "generated" / "anyop_library.c").read_text()
    assert "probe_sums" in tables
    assert "anyop_l2_normalize" in tables


@pytest.mark.parametrize("language", ["c", "cpp"])
def test_example_builds_and_runs(language, tmp_path):
    found = f"-Danyop_DIR={anyop.cmake_dir()}"
    configure(ROOT / "examples" / language, tmp_path, found)
    run("cmake", "--build", tmp_path)
    output = run(tmp_path / "normalize")
    assert output.startswith(f"anyop {anyop.__version__}\n")
    numbers = [float(number) for number in re.findall(r"-?\d\.\d{5}", output)]
    rms = [0.36515, 0.73030, 2.19089, 2.92119, -0.81650, 0, 1.63299, 3.26599]
    layer = [-1.34163, -0.44721, 0.44721, 1.34163] * 2
    assert numbers == pytest.approx(rms + layer, abs=2e-5)
    assert "refused: rms_norm: weight has shape (3), expected (D) with D=4\n" in output


def test_another_major_version_is_not_found(tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\nproject(p LANGUAGES NONE)\n"
        "find_package(anyop 7 REQUIRED)\n"
    )
    output = configure(tmp_path, tmp_path / "build", f"-Danyop_DIR={anyop.cmake_dir()}", good=False)
    assert "7" in output
    assert "anyop" in output
