# SPDX-License-Identifier: Apache-2.0
"""anyop/aten.h as `anyop aten header` writes it for the installed torch: what it costs, and what its calls give."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import anyop
from anyop.aten import _table
from anyop.codegen.aten.cpp_header import cpp_functions

HERE = Path(__file__).resolve().parent
PACKAGE = Path(anyop.__file__).parent
EXAMPLE = HERE.parents[1] / "examples" / "aten_cpp"
pytestmark = pytest.mark.drawn(5, together="ATen's header")
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
COMPILERS = [("g++", 17), ("g++", 20), ("clang++", 17)]


def run(*command: object, **variables: str) -> str:
    words = [str(word) for word in command]
    environment = os.environ | variables
    found = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, (found.stdout + found.stderr)[:4000]
    return found.stdout


def compile_cpp(header: Path, *arguments: object, compiler: str = "g++") -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} on this machine")
    run(compiler, *WARNINGS, "-I", header, "-I", PACKAGE / "include", *arguments)


@pytest.fixture(scope="module")
def header(tmp_path_factory) -> Path:
    """The folder of the header."""
    folder = tmp_path_factory.mktemp("aten")
    said = run(sys.executable, "-m", "anyop", "aten", "header", "--out", folder)
    assert str(folder / "anyop" / "aten.h") in said
    return folder


@pytest.mark.parametrize("compiler, standard", COMPILERS)
def test_header_compiles_by_itself(header, tmp_path, compiler, standard):
    source = tmp_path / "aten.cc"
    source.write_text("#include <anyop/aten.h>\n#include <anyop/ops.h>\n", encoding="utf-8")
    compile_cpp(header, f"-std=c++{standard}", "-fsyntax-only", source, compiler=compiler)


def test_cost_of_including(header, tmp_path, report):
    """Told, as it depends on the machine: 0.4 s with g++ 12."""
    source = tmp_path / "aten.cc"
    source.write_text("#include <anyop/aten.h>\n", encoding="utf-8")
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        compile_cpp(header, "-std=c++17", "-O2", "-c", source, "-o", tmp_path / "aten.o")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    report.append(f"including anyop/aten.h: {min(seconds):.3f} CPU s of g++ -O2")
    assert (tmp_path / "aten.o").stat().st_size < 10_000  # nothing was generated


def test_every_function_compiles(header, tmp_path):
    """All of them are instantiated, and those with defaults are called without the arguments that have them.

    To machine code with ANYOP_TEST_FULL=1 (make test-full); else the compiler reads them.
    """
    functions = cpp_functions(_table.metadata())
    names = [function.name for function in functions]
    callable_ = sum(each["callable"] for each in _table.metadata()["overloads"].values())
    assert len(set(names[:callable_])) == callable_  # each overload has a name of its own
    lines = ["#include <anyop/aten.h>", "using namespace anyop::aten;", "namespace anyop::aten {"]
    lines += [f"template {f.result} {f.name}<0>({', '.join(f.types)});" for f in functions]
    lines += [_without_defaults(f, at) for at, f in enumerate(functions[:callable_])]
    source = tmp_path / "every.cc"
    source.write_text("\n".join([*lines, "}\n"]), encoding="utf-8")
    if os.environ.get("ANYOP_TEST_FULL") != "1":
        compile_cpp(header, "-std=c++17", "-fsyntax-only", source)
        return
    compile_cpp(header, "-std=c++17", "-S", source, "-o", tmp_path / "every.s")
    assert (tmp_path / "every.s").read_text().count("weak\t_ZN5anyop4aten") >= len(functions)


def _without_defaults(function, at: int) -> str:
    given = [t for t, param in zip(function.types, function.params) if "default" not in param]
    params = ", ".join(f"{type_} a{i}" for i, type_ in enumerate(given))
    call = f"{function.name}({', '.join(f'a{i}' for i in range(len(given)))})"
    return f"{function.result} call{at}({params}) {{ return {call}; }}"


def test_calls(header, tmp_path):
    """Values, views, errors and threads, in a program without Python and under sanitizers."""
    overloads = _table.metadata()["overloads"].values()
    schemas = tmp_path / "schemas.txt"
    schemas.write_text("".join(f"{o['schema']}\n" for o in overloads), encoding="utf-8")
    flags = ["-std=c++17", "-g", "-fsanitize=address,undefined", "-I", HERE.parents[1], "-pthread"]
    library = ["-L", PACKAGE / "lib", "-lanyop", f"-Wl,-rpath,{PACKAGE / 'lib'}"]
    source = HERE / "aten_header_calls.cc"
    compile_cpp(header, *flags, source, *library, "-o", tmp_path / "calls")
    # Its sanitizers come first, whichever the tests run under.
    said = run(tmp_path / "calls", ANYOP_TEST_SCHEMAS=str(schemas), LD_PRELOAD="")
    print(said.splitlines()[-1])
    assert "BeforeOpen\n" in said and "Threads\n" in said and said.endswith(" 0 failed\n")


def test_example(tmp_path):
    """By CMake, as its first lines say."""
    if shutil.which("cmake") is None:
        pytest.skip("no cmake on this machine")
    command = f"-DANYOP_COMMAND={sys.executable};-m;anyop"
    run("cmake", "-S", EXAMPLE, "-B", tmp_path, f"-Danyop_DIR={anyop.cmake_dir()}", command)
    run("cmake", "--build", tmp_path)
    said = run(tmp_path / "tones").splitlines()
    assert said[:2] == [" 440 Hz, 1.00", "1000 Hz, 0.50"]
    assert said[2] == "mean square 0.635, shape of the halves (2, 4000)"
    assert said[3].startswith("refused: add.Tensor: The size of tensor a (8000) must match")


def test_schema_of_another_torch_is_refused(header, tmp_path):
    """A header that says something else than the torch that is loaded: the call says so, and nothing runs."""
    folder = tmp_path / "anyop"
    folder.mkdir()
    text = (header / "anyop" / "aten.h").read_text(encoding="utf-8")
    old = '"relu(Tensor self) -> Tensor"'
    assert old in text
    (folder / "aten.h").write_text(text.replace(old, '"relu(Tensor self, int n) -> Tensor"'))
    source = tmp_path / "other.cc"
    source.write_text(
        "#include <anyop/aten.h>\n#include <cstdio>\nint main() {\n  anyop::aten::Open();\n"
        "  try {\n    anyop::aten::relu(anyop::aten::ones({2}));\n"
        '  } catch (const anyop::Error& e) {\n    std::printf("%s", e.what());\n  }\n}\n'
    )
    library = ["-L", PACKAGE / "lib", "-lanyop", f"-Wl,-rpath,{PACKAGE / 'lib'}"]
    compile_cpp(tmp_path, "-std=c++17", source, *library, "-o", tmp_path / "other")
    assert run(tmp_path / "other").startswith("relu: anyop/aten.h is another torch's, it has relu(")
