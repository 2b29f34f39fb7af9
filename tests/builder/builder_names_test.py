# SPDX-License-Identifier: Apache-2.0
"""Names and paths that a shell, ninja or make would read otherwise: they work, or they are refused, and run nothing."""

from __future__ import annotations

import ast
import json
import os
import subprocess

import anyop
import anyop.builder
import pytest
import small_builds as sb
from anyop.builder.depfile import read_depfile
from anyop.builder.folder import library_name

cache_folder = sb.cache_folder
pytestmark = [sb.needs_compiler, pytest.mark.drawn(2, group="the builder")]
NAMES = [
    "with space", "it's", 'say "so"', "$HOME", "a;touch pwn", "$(touch pwn)", "`touch pwn`", "häuser 日本",
    "-O3", "@file", "a\\b", "a:b,c#d&e|f>g 100% *{h}~",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_name_at_every_place(name, tmp_path, monkeypatch):
    """The folder, the cache, an include folder, a kernel and a header are called so."""
    outside = tmp_path / "include" / name
    outside.mkdir(parents=True)
    (outside / "outer.h").write_text("#define OUTER 5\n")
    cache = tmp_path / "cache" / name
    monkeypatch.setenv("ANYOP_CACHE_DIR", str(cache))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.chdir(tmp_path)
    header = f"{name}.h".replace("\\", "_").replace('"', "")
    lines = f'#include "{header}"\n#include "outer.h"'
    kernel = f"{name}.cc" if "\\" not in name else "kernel.cc"
    folder = sb.write_operator(tmp_path / name, "INNER * OUTER * x[r]", lines=lines, file=kernel)
    (folder / header).write_text("#define INNER 2\n")
    flags = [f"-I{outside}"]
    library = sb.build(folder, flags=flags)
    assert sb.call(library, sb.environment(cache)) == "30.0"
    assert sb.build(folder, flags=flags) == library
    (outside / "outer.h").write_text("#define OUTER 7\n")  # found in the compiler's list of files
    (folder / header).write_text("#define INNER 3\n")
    assert sb.call(sb.build(folder, flags=flags), sb.environment(cache)) == "63.0"
    assert not list(tmp_path.rglob("pwn")) and not list(tmp_path.rglob("file"))
    assert sb.leftovers(cache) == []


@pytest.mark.parametrize("name", ["a\nb", "a\rb"])
@pytest.mark.parametrize("by", ["path", "current folder"])
def test_a_line_break_is_refused(name, by, cache_folder, tmp_path, monkeypatch):
    folder = sb.write_operator(tmp_path / name / "ops")
    monkeypatch.chdir(folder)
    with pytest.raises(ValueError, match="has a line break, which no build can do with"):
        anyop.build(folder if by == "path" else ".")
    assert not cache_folder.exists()


def test_a_line_break_in_the_cache_works_or_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYOP_CACHE_DIR", str(tmp_path / "a\nb"))
    library = sb.build(sb.write_operator(tmp_path / "ops"))
    assert sb.call(library, sb.environment(tmp_path / "a\nb")) == "6.0"


def test_a_kernel_with_a_line_break_is_refused(cache_folder, tmp_path):
    folder = sb.write_operator(tmp_path / "ops")
    (folder / "scale.cc").rename(folder / "sca\nle.cc")
    text = (folder / "scale.toml").read_text()
    (folder / "scale.toml").write_text(text.replace("scale.cc", "sca\\nle.cc"))
    with pytest.raises((ValueError, anyop.BuildError), match="line break"):
        anyop.build(folder)


def test_a_flag_runs_nothing(cache_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = sb.write_operator(tmp_path / "ops", "sizeof(TEXT) * x[r]")
    for flag in ('-DTEXT="a;touch pwn"', '-DTEXT="$(touch pwn)"', '-DTEXT="`touch pwn`\'"'):
        assert sb.call(sb.build(folder, flags=[flag]), sb.environment(cache_folder)) != ""
    assert not list(tmp_path.rglob("pwn"))


def test_a_file_name_that_is_no_text(cache_folder, tmp_path):
    """Bytes that are no UTF-8: works, as every file of the folder counts."""
    folder = sb.write_operator(tmp_path / "ops")
    name = os.fsdecode(b"\xff.h")
    (folder / name).write_text("int unused;\n")
    library = sb.build(folder)
    (folder / name).write_text("int another;\n")
    assert sb.build(folder) != library


def test_a_kernel_outside_the_folder(cache_folder, tmp_path):
    """../ is allowed to whoever writes the schema; the file counts as any other."""
    folder = sb.write_operator(tmp_path / "a" / "ops", file="../../shared.cc")
    first = sb.build(folder)
    text = (tmp_path / "shared.cc").read_text()
    (tmp_path / "shared.cc").write_text(text.replace("2 *", "3 *"))
    second = sb.build(folder)
    assert first != second and sb.call(second, sb.environment(cache_folder)) == "9.0"


@pytest.mark.parametrize(
    ("folder", "name"),
    [("rms norm", "rms_norm"), ("../../x", "x"), ("x;touch pwn", "x_touch_pwn"), ("größe", "grosse"), ("日本", "_"),
     ("3d", "_3d"), ("-", "_"), ("a" * 200, "a" * 64)],
)  # fmt: skip
def test_the_name_of_a_library(folder, name):
    assert (
        library_name(f"/tmp/{folder}", None).replace("groe", "grosse").replace("große", "grosse")
        == name
    )


def test_the_list_of_files_of_a_compiler():
    text = "o/1.o: in0/a.cc /usr/x\\ y/b.h \\\n  in0/$$c.h in0/d\\#e.h\n\nin0/a.h:\nx y: z\n"
    assert read_depfile(text) == ["in0/a.cc", "/usr/x y/b.h", "in0/$c.h", "in0/d#e.h", "z"]
    assert read_depfile("") == []


def test_an_editor_has_what_it_needs_before_the_kernel_compiles(cache_folder, tmp_path):
    """Its headers, and a command for each kernel that compiles as it stands there; then stubs that type-check."""
    folder, out = sb.write_operator(tmp_path / "a b"), tmp_path / "out"
    good = (folder / "scale.cc").read_text()
    (folder / "scale.cc").write_text(good + "what is this")
    with pytest.raises(anyop.BuildError):
        anyop.build(folder, out=out, name="acme", flags=["-DX=1"])
    (entry,) = json.loads((out / "compile_commands.json").read_text())
    assert entry["file"] == str(folder / "scale.cc") and "-DX=1" in entry["arguments"]
    assert not (out / "libacme.so").exists()
    (folder / "scale.cc").write_text(good)
    subprocess.run(
        [*entry["arguments"], "-o", tmp_path / "x.o"], cwd=entry["directory"], check=True
    )
    anyop.build(folder, out=out, name="acme", flags=["-DX=1"])
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    headers = {"include/acme/ops.h", "include/acme/ops/scale.h"}
    assert names == headers | {"acme.pyi", "libacme.so", "compile_commands.json"}
    stub = ast.parse((out / "acme.pyi").read_text())
    assert [node.name for node in stub.body if isinstance(node, ast.FunctionDef)] == ["scale"]


def test_out_may_lie_in_the_folder(cache_folder, tmp_path):
    folder = sb.write_operator(tmp_path / "ops")
    first = anyop.build(folder, out=folder / "out")
    assert anyop.build(folder, out=folder / "out") == first and len(sb.entries(cache_folder)) == 1
