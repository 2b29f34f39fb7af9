# SPDX-License-Identifier: Apache-2.0
"""What a person reads when a build goes wrong or takes long: the first error and its place, the missing tool."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import anyop
import anyop.builder
import pytest
import small_builds as sb
from anyop.builder.ninja import Step, write_ninja
from anyop.builder.tools import find_ninja

cache_folder = sb.cache_folder
pytestmark = [sb.needs_compiler, pytest.mark.drawn(2, group="the builder")]
NVCC = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
needs_nvcc = pytest.mark.skipif(not NVCC, reason="there is no nvcc")
CUDA = """\
#include <cuda_runtime.h>
#include "acme/ops/{op}.h"
int32_t acme_{op}_cuda(const {struct}Args* args, AnyopCall* call) {{ {body} return kAnyopOk; }}
"""


def write_cuda(folder: Path, body: str = "(void)args; (void)call;") -> Path:
    """The same operator with a CUDA kernel beside it."""
    sb.write_operator(folder)
    text = (folder / "scale.toml").read_text()
    (folder / "scale.toml").write_text(text.replace('.cc" }', '.cc", cuda = "scale.cu" }'))
    (folder / "scale.cu").write_text(CUDA.format(op="scale", struct="Scale", body=body))
    return folder


def fails(folder: Path, error: type = anyop.BuildError, **options) -> list[str]:
    """The lines of the error."""
    with pytest.raises(error) as caught:
        anyop.build(folder, **options)
    return str(caught.value).splitlines()


def test_the_first_compile_error_comes_first_with_file_and_line(cache_folder, tmp_path):
    lines = "\n".join(
        ["int fine;", "int x = mistake;", *(f"int y{n} = wrong{n};" for n in range(40))]
    )
    folder = sb.write_operator(tmp_path / "my ops", lines=lines)
    with pytest.raises(anyop.BuildError) as caught:
        anyop.build(folder)
    shown = str(caught.value).splitlines()
    first = f"my_ops could not be built: {folder}/scale.cc:3:9: error: 'mistake' was not declared in this scope"
    assert shown[0].replace("‘", "'").replace("’", "'") == first
    assert len(shown) <= 26 and re.match(
        r"\(\d+ more lines: --verbose, or the error's .output\)", shown[-1]
    )
    assert "wrong39" in caught.value.output
    assert sb.entries(cache_folder) == [] and sb.leftovers(cache_folder) == []


def test_an_error_in_a_header_names_the_header(cache_folder, tmp_path):
    folder = sb.write_operator(tmp_path / "ops", lines='#include "part/inner.h"')
    (folder / "part").mkdir()
    (folder / "part" / "inner.h").write_text("int first;\nint x = ;\n")
    shown = fails(folder)
    assert f"{folder}/part/inner.h:2:9: error: " in shown[0]


def test_a_missing_header_is_the_first_error(cache_folder, tmp_path):
    folder = sb.write_operator(tmp_path / "ops", lines='#include "nowhere.h"')
    assert f"{folder}/scale.cc:2:10: fatal error: nowhere.h: No such file" in fails(folder)[0]


def test_a_function_that_is_missing_at_the_link_is_named(cache_folder, tmp_path):
    folder = sb.write_operator(tmp_path / "ops", "far_away(x[r])", lines="float far_away(float);")
    assert "undefined reference to" in fails(folder)[0] and "far_away" in fails(folder)[0]


def test_a_kernel_that_is_missing_at_the_link_is_named(cache_folder, tmp_path):
    folder = sb.write_operator(tmp_path / "ops")
    (folder / "scale.cc").write_text("int nothing;\n")
    shown = fails(folder)
    wanted = 'extern "C" int32_t acme_scale_cpu(const ScaleArgs* args, AnyopCall* call)'
    assert (
        shown[0] == f"ops could not be built: scale.cc defines no acme_scale_cpu, expected {wanted}"
    )
    assert any("undefined reference to" in line for line in shown[1:])


def test_a_library_that_is_missing_at_the_link_is_named(cache_folder, tmp_path):
    folder = sb.write_operator(tmp_path / "ops")
    assert "cannot find -lnowhere" in fails(folder, flags=["-lnowhere"])[0]


def test_mistakes_in_schemas_come_all_with_file_and_line(cache_folder, tmp_path):
    folder = sb.write_operator(tmp_path / "ops")
    sb.write_operator(folder, op="other")
    for op in ("scale", "other"):
        path = folder / f"{op}.toml"
        path.write_text(path.read_text().replace("dtypes", "dtipes"))
    text = "\n".join(fails(folder, ValueError))
    for op in ("scale", "other"):
        assert re.search(rf"{folder}/{op}\.toml:3: .*dtipes", text), text


def test_an_error_of_nvcc_names_file_and_line(cache_folder, tmp_path):
    if not NVCC:
        pytest.skip("there is no nvcc")
    folder = write_cuda(tmp_path / "ops", "int x = mistake;")
    shown = fails(folder, arch="80")
    assert re.match(
        rf'ops could not be built: {folder}/scale\.cu\(3\): error: .*"mistake" is undefined',
        shown[0],
    )


@needs_nvcc
@pytest.mark.parametrize("stated", ["777a", "777+", "777*", None])
def test_an_architecture_that_nvcc_lacks_names_who_asks_and_what_there_is(
    stated, cache_folder, tmp_path
):
    folder = write_cuda(tmp_path / "ops")
    file = folder / "scale.toml"
    text = file.read_text()
    if stated:
        file.write_text(
            text.replace('cuda = "scale.cu"', f'cuda = {{ file = "scale.cu", arch = "{stated}" }}')
        )
    line = 1 + text[: text.index("scale.cu")].count("\n")
    who = f"{file}:{line} asks for" if stated else "arch=, --arch or ANYOP_CUDA_ARCH asks for"
    first = fails(folder, arch="80" if stated else "777")[0]
    assert re.match(
        rf"ops could not be built: \S+ has no architecture 777a?, which {who}", first
    ), first
    assert re.search(r"it has (\d+, )*90, .*: write one of these, or install a newer CUDA$", first)


@needs_nvcc
def test_a_cuda_folder_builds_without_a_gpu(cache_folder, tmp_path):
    """Two architectures in one library; a second build takes it from the cache, other architectures do not."""
    folder = write_cuda(tmp_path / "ops")
    first = sb.build(folder, arch=["80", "90a"])
    code = first.read_bytes()
    assert b"sm_80" in code or b"compute_80" in code or len(code) > 100_000
    assert sb.build(folder, arch=["90a", "80"]) == first
    assert sb.build(folder, arch="80") != first
    assert sb.call(first, sb.environment(cache_folder)) == "6.0"


@pytest.mark.parametrize(
    "what", ["compiler", "named compiler", "ninja", "named ninja", "nvcc", "named nvcc"]
)
def test_a_missing_tool_is_named_at_once(what, cache_folder, tmp_path, monkeypatch):
    """Which, where it was looked for, and the variable; before anything is compiled. Warm, none of them is
    needed, but a variable that is set must name one.
    """
    needs = write_cuda if "nvcc" in what else sb.write_operator
    folder, other = needs(tmp_path / "ops"), sb.write_operator(tmp_path / "warm")
    monkeypatch.setenv("CXX", sb.GXX)
    warm = sb.build(other)
    if "ninja" not in what:
        monkeypatch.setenv("ANYOP_NINJA", find_ninja())
    if "compiler" in what:
        monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # the package ninja
    monkeypatch.setattr(sys.modules["anyop.builder.tools"], "_places", lambda chain: ["/opt/place"])
    variable = {"compiler": "CXX", "ninja": "ANYOP_NINJA", "nvcc": "ANYOP_NVCC"}[what.split()[-1]]
    if "named" in what:
        monkeypatch.setenv(variable, "/nowhere/tool")
    expected = {
        "compiler": r"there is no C\+\+ compiler: looked for g\+\+, c\+\+, clang\+\+ in PATH, .*; CXX names it; .*apt",
        "ninja": "there is no ninja: looked for the Python package ninja and in PATH; ANYOP_NINJA names it; .*pip",
        "nvcc": "there is no compiler for cuda kernels: looked for nvcc in PATH, /opt/place; "
        "ANYOP_NVCC or CUDACXX names it; install the CUDA toolkit",
    }.get(what, f"{variable} is '/nowhere/tool', which is no program")
    with pytest.raises(anyop.MissingToolError, match=expected):
        anyop.build(folder, arch="80" if "nvcc" in what else None)
    if what == "named compiler":  # the entry may be of another than the one that was meant
        with pytest.raises(anyop.MissingToolError, match=expected):
            anyop.build(other)
    else:
        assert sb.build(other) == warm
    assert sb.leftovers(cache_folder) == []


def test_a_folder_of_c_never_asks_for_nvcc(cache_folder, tmp_path, monkeypatch):
    """Traps where nvcc and hipcc could be; nobody steps on them, neither cold nor warm."""
    bin_folder, stepped = tmp_path / "bin", tmp_path / "stepped"
    bin_folder.mkdir()
    for name in ("nvcc", "hipcc", "nvidia-smi", "cucc", "rocminfo"):
        (bin_folder / name).write_text(f"#!/bin/sh\necho $0 >> '{stepped}'\nexit 1\n")
        (bin_folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
    for name in ("ANYOP_NVCC", "CUDACXX", "ANYOP_HIPCC"):
        monkeypatch.setenv(name, str(bin_folder / "nvcc"))
    folder = sb.write_operator(tmp_path / "ops")
    assert sb.build(folder) == sb.build(folder)
    assert not stepped.exists()
    with pytest.raises(anyop.BuildError):  # a folder that needs it does
        anyop.build(write_cuda(tmp_path / "cuda"), arch="80")
    assert str(bin_folder / "nvcc") in stepped.read_text()


def test_progress_is_shown_after_a_second_and_not_before(cache_folder, tmp_path):
    program = "import sys, anyop; anyop.build(sys.argv[1])"
    line = r"anyop: building ops (\[\d/4\] \S+ )?\(\d+ s\)\n"
    for seconds, expected in ((0, ""), (1.5, f"({line})+")):
        folder = sb.write_operator(tmp_path / "ops", f"{seconds} * x[r]")
        slow = sb.write_compiler(tmp_path / f"{seconds}" / "g++", before=f"sleep {seconds}")
        process = sb.python(program, folder, env=sb.environment(cache_folder, CXX=str(slow)))
        start = time.monotonic()
        output, errors = process.communicate(timeout=60)
        if not seconds and time.monotonic() - start > 1.2:
            continue  # a machine so busy that the build took a second by itself
        assert output == "" and re.fullmatch(expected, errors), errors


def test_verbose_shows_the_commands(cache_folder, tmp_path, capfd):
    folder = sb.write_operator(tmp_path / "ops", lines="#warning look at this")
    anyop.build(folder, verbose=True)
    errors = capfd.readouterr().err
    assert "-fvisibility=hidden" in errors and " -shared " in errors and "look at this" in errors
    assert f"{folder}/scale.cc:2:2: warning" in errors


@pytest.mark.parametrize(
    "lines", ["", 'extern "C" void leaked() {}\nvoid also_leaked() {}\nint shared;']
)
def test_one_function_is_exported(lines, cache_folder, tmp_path):
    from anyop.builder.elf import Elf

    library = Elf(str(sb.build(sb.write_operator(tmp_path / "ops", lines=lines))))
    assert library.exported == {"AnyopLibraryEntry"}
    assert not any("torch" in name or "tvm" in name.lower() for name in library.undefined)


def test_a_flag_that_exports_more_is_an_error(cache_folder, tmp_path):
    (tmp_path / "all.map").write_text("{ global: *; };")
    folder = sb.write_operator(
        tmp_path / "ops", lines='extern "C" __attribute__((visibility("default"))) void leaked() {}'
    )
    text = "\n".join(
        fails(folder, flags=[f"-Wl,--version-script={tmp_path}/all.map", "-Wl,--export-dynamic"])
    )
    assert re.search(
        r"libops\.so exports .*leaked.*expected AnyopLibraryEntry only|version", text
    ), text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"flags": "-O3"}, "flags is '-O3', expected a list of texts"),
        ({"flags": ["-DX\n-DY"]}, "flags has '-DX\\n-DY', expected texts of one line"),
        ({"flags": [3]}, "flags has 3"),
        (
            {"arch": "ninety"},
            "architecture 'ninety', expected texts such as '80', '90a', 'gfx90a' or 'mtp_592'",
        ),
        ({"backends": ["metal"]}, "no backend 'metal' to build, expected some of cpu, cuda, hip"),
        ({"backends": "cpu"}, "backends is 'cpu', expected a list of texts"),
        (
            {"toolchains": {"cuda": "no"}},
            "no toolchain 'no' for cuda, expected one of nvcc, cucc, mxcc, mcc, corex",
        ),
        ({"toolchains": {"metal": "nvcc"}}, "no toolchain 'nvcc' for metal"),
        (
            {"name": "../../x"},
            "the name of the library is '../../x', expected letters, digits and _",
        ),
        ({"name": ""}, "the name of the library is ''"),
        ({"name": "x;touch pwn"}, "the name of the library is 'x;touch pwn'"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused(options, says, cache_folder, tmp_path):
    folder = write_cuda(tmp_path / "ops")
    with pytest.raises(ValueError, match=re.escape(says)):
        anyop.build(folder, **options)
    assert not cache_folder.exists()


@pytest.mark.parametrize(
    ("path", "error", "says"),
    [
        ("nowhere", FileNotFoundError, "no folder of operators at .*nowhere"),
        ("file", NotADirectoryError, "file is a file, expected a folder of operators"),
        ("empty", ValueError, "no operator here"),
        ("a\nb", ValueError, "has a line break"),
    ],
)
def test_folders_that_cannot_be_are_refused(path, error, says, cache_folder, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(error, match=says):
        anyop.build(tmp_path / path)


def test_build_ninja_quotes_what_ninja_and_the_shell_would_read():
    text = write_ninja([Step("it's", ["g++", "-DX=$HOME; rm"], "o/a b:$.o", ["in0/x y.cc"])])
    assert "build o/a$ b$:$$.o: run in0/x$ y.cc\n" in text
    assert "  command = g++ '-DX=$$HOME; rm'\n" in text


def test_ninja_gives_back_what_was_written(tmp_path):
    """Every sign but a line break reaches the command, by ninja's own reading of the file."""
    words = [chr(code) for code in (*range(1, 128), 0xE9, 0x2028) if chr(code) not in "\n\r"]
    words += ["$$", "${X}", "$ x", " lead", "a\\", "#", "é$\t"]
    steps = [Step(word, ["true", f"-D{word}", word], f"o/{i}") for i, word in enumerate(words)]
    (tmp_path / "build.ninja").write_text(write_ninja(steps), encoding="utf-8")
    listed = [find_ninja(), "-t", "commands"]
    run = subprocess.run(listed, cwd=tmp_path, capture_output=True, check=True)
    commands = run.stdout.decode().split("\n")[:-1]
    assert [shlex.split(line) for line in commands] == [step.command for step in steps]


@pytest.mark.parametrize("text", ["a\nbuild all: run", "a\rb", "a\0b"])
def test_what_ninja_cannot_hold_is_refused(text):
    for step in (Step(text, ["g++"], "o"), Step("w", ["g++", text], "o"), Step("w", ["g++"], text)):
        with pytest.raises(anyop.BuildError, match="which no build can do with"):
            write_ninja([step])


def test_the_permissions_of_a_copy_are_the_users(cache_folder, tmp_path):
    out = tmp_path / "new" / "out"
    library = Path(anyop.build(sb.write_operator(tmp_path / "ops"), out=out))
    assert library == out / "libops.so" and stat.S_IMODE(library.stat().st_mode) == 0o755
    assert (out / "include" / "acme" / "ops" / "scale.h").exists()
    assert not list(out.rglob("*.part")) and not (out / "manifest.json").exists()
    assert sb.call(library, sb.environment(cache_folder)) == "6.0"


@pytest.mark.parametrize("shape", ["lines", "one line", "status lines"])
def test_a_compiler_that_prints_thirty_megabytes(shape, cache_folder, tmp_path, monkeypatch):
    """It is followed in bounded space; the first error and the end are kept, and the message fits on a screen."""
    folder = sb.write_operator(tmp_path / "ops")
    print_it = {
        "lines": "yes 'scale.cc:1:1: note: what a long story' | head -c 30000000",
        "one line": "head -c 30000000 /dev/zero | tr '\\0' x",
        "status lines": "yes '[1/2] in0/scale.cc' | head -c 5000000",
    }[shape]
    compiler = sb.write_compiler(
        tmp_path / "g++", before=f"echo 'in0/scale.cc:3:1: error: no' >&2; {print_it}; exit 1"
    )
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(anyop.BuildError) as caught:
        anyop.build(folder)
    text = str(caught.value)
    assert "scale.cc:3:1: error: no" in text.splitlines()[0] and len(text) < 30_000
    assert shape == "status lines" or len(caught.value.output) < 2_000_000


@pytest.mark.parametrize(
    "flag", ["-c", "-E", "-S", "-###", "-M", "-fsyntax-only", "-o", "", "-wrapper"]
)
def test_flags_with_which_nothing_is_built(flag, cache_folder, tmp_path, monkeypatch):
    folder = sb.write_operator(tmp_path / "ops")
    if flag == "-wrapper":
        with pytest.raises(anyop.BuildError, match=r"libops\.so was not made, .* verbose shows"):
            anyop.build(folder, flags=[flag, "echo"])
        return
    with pytest.raises(ValueError, match=r"flags has .* leave it out"):
        anyop.build(folder, flags=[flag])
    if flag:
        monkeypatch.setenv("CXX", f"{sb.GXX} {flag}")
        with pytest.raises(ValueError, match=rf"CXX has '{re.escape(flag)}'.* leave it out"):
            anyop.build(folder)


@pytest.mark.parametrize("flag", ["\x7f", "no-such.o"])
def test_a_word_that_is_neither_option_nor_file(flag, cache_folder, tmp_path):
    folder = sb.write_operator(tmp_path / "ops")
    with pytest.raises(ValueError, match=r"which is no option .* leave it out"):
        anyop.build(folder, flags=[flag])
    assert anyop.build(folder, flags=["-I", "no-such"])  # what an option asks for


def test_what_is_not_utf8_is_named(cache_folder, tmp_path, monkeypatch):
    odd = "a\udcffb"
    folder = sb.write_operator(tmp_path / "ops")
    with pytest.raises(ValueError, match=r"the path is .* not UTF-8"):
        anyop.build(sb.write_operator(tmp_path / odd))
    with pytest.raises(ValueError, match=r"the path is .* not UTF-8"):
        anyop.load(str(tmp_path / odd / "x.so"))
    with pytest.raises(ValueError, match=r"flags has .* not UTF-8"):
        anyop.build(folder, flags=[f"-D{odd}"])
    with pytest.raises(ValueError, match=r"the source or a schema is .* not UTF-8"):
        anyop.jit.load("odd", source=f"// {odd}\nvoid f(float* x) {{}}", functions=["f"])
    (folder / f"{odd}.toml").write_text("")
    with pytest.raises(ValueError, match=r"holds .* not UTF-8"):
        anyop.build(folder)
    (folder / f"{odd}.toml").unlink()
    with monkeypatch.context() as patch:
        patch.setenv("ANYOP_CACHE_DIR", str(tmp_path / odd))
        with pytest.raises(ValueError, match=r"ANYOP_CACHE_DIR is .* in UTF-8"):
            anyop.build(folder)
    assert (
        sb.call(anyop.build(sb.write_operator(tmp_path / "a\x7fb")), sb.environment(cache_folder))
        == "6.0"
    )


def test_a_cache_that_nothing_may_be_run_from(tmp_path):
    """The loader says only that a segment could not be mapped."""
    folder, mount = sb.write_operator(tmp_path / "ops"), tmp_path / "mount"
    mount.mkdir()
    code = f"mount -t tmpfs -o noexec,mode=700 none '{mount}' && exec \"$@\""
    probe = ["unshare", "-rm", "sh", "-c", code, "sh"]
    if (
        not shutil.which("unshare")
        or subprocess.run([*probe, "true"], capture_output=True).returncode
    ):
        pytest.skip("this user cannot mount in a name space of its own")
    env = sb.environment(mount / "cache")
    done = subprocess.run(
        [*probe, sys.executable, "-c", sb.CALL, folder, "acme"],
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "noexec? ANYOP_CACHE_DIR names another cache" in done.stderr
