# SPDX-License-Identifier: Apache-2.0
"""What a build depends on: a change of any of it builds anew, whatever the file's times say; nothing else does."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import anyop
import anyop.builder.plan
import pytest
import small_builds as sb
from anyop.builder.folder import cpu_identity
from anyop.cache import dependencies

cache_folder = sb.cache_folder
pytestmark = [sb.needs_compiler, pytest.mark.drawn(2, group="the builder")]


@pytest.fixture
def log(cache_folder, tmp_path, monkeypatch) -> Path:
    """Of the compiler that builds in this process use."""
    log = tmp_path / "log"
    monkeypatch.setenv("CXX", str(sb.write_compiler(tmp_path / "bin" / "g++", log)))
    return log


@pytest.fixture
def folder(tmp_path) -> Path:
    """An operator whose factor is in a header of its folder, one that is not known by its suffix, and one outside."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "outer.h").write_text("#define OUTER 1\n")
    lines = '#include "inner.h"\n#include "table.dat"\n#include "outer.h"'
    folder = sb.write_operator(tmp_path / "ops", "INNER * TABLE * OUTER * x[r]", lines=lines)
    (folder / "inner.h").write_text("#define INNER 2\n")
    (folder / "table.dat").write_text("#define TABLE 1\n")
    return folder


def value(library: Path, cache: Path) -> float:
    """scale(3), by a process of its own."""
    return float(sb.call(library, sb.environment(cache)))


CHANGES = {
    "plain": lambda path, old: None,
    "older mtime": lambda path, old: os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns - 10**12)),
    "same mtime": lambda path, old: os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns)),
}


@pytest.mark.parametrize(
    ("name", "how"),
    [("outside/outer.h", how) for how in CHANGES]
    + [(f"ops/{name}", "same mtime") for name in ("inner.h", "table.dat", "scale.cc")],
)
def test_a_changed_file_builds_anew(name, how, folder, log, cache_folder, tmp_path, monkeypatch):
    """All changes keep the size. The time of change (ctime) cannot be set back, and is trusted once it is settled."""
    monkeypatch.setattr(dependencies, "_SETTLED_SECONDS", -1.0)  # as if all files were old
    flags = [f"-I{tmp_path / 'outside'}"]
    path = tmp_path / name
    first = sb.build(folder, flags=flags)
    assert sb.build(folder, flags=flags) == first and sb.links(log) == 1
    old, text = path.stat(), path.read_text()
    changed = (
        re.sub(r"\b[12]$", "4", text, flags=re.M)
        if name.endswith(("h", "dat"))
        else text.replace("x[r]", "9.0f")
    )
    assert len(changed) == len(text) and changed != text
    time.sleep(0.02)  # a tick of the clock of the file system
    path.write_text(changed)
    CHANGES[how](path, old)
    second = sb.build(folder, flags=flags)
    assert sb.links(log) == 2
    assert value(second, cache_folder) == {"ops/scale.cc": 18.0, "ops/inner.h": 12.0}.get(
        name, 24.0
    )
    path.write_text(text)
    assert (
        sb.build(folder, flags=flags) == first and sb.links(log) == 2
    )  # by its contents, from the cache


def test_a_link_that_is_turned_builds_anew(cache_folder, tmp_path, log):
    """An include folder whose current version is a link, as /opt/x -> /opt/x-1.0."""
    for number in (2, 5):
        (tmp_path / f"x-{number}").mkdir()
        (tmp_path / f"x-{number}" / "x.h").write_text(f"#define X {number}\n")
    folder = sb.write_operator(tmp_path / "ops", "X * x[r]", lines='#include "x.h"')
    for number in (2, 5):
        (tmp_path / "x").unlink(missing_ok=True)
        (tmp_path / "x").symlink_to(tmp_path / f"x-{number}")
        assert value(sb.build(folder, flags=[f"-I{tmp_path}/x"]), cache_folder) == 3 * number


def test_touching_builds_nothing(folder, log, tmp_path):
    flags = [f"-I{tmp_path / 'outside'}"]
    first = sb.build(folder, flags=flags)
    for path in (*folder.iterdir(), tmp_path / "outside" / "outer.h", tmp_path / "bin" / "g++"):
        path.touch()
    assert sb.build(folder, flags=flags) == first and sb.links(log) == 1


def test_what_no_build_reads_changes_nothing(cache_folder, tmp_path, log):
    folder = sb.write_operator(tmp_path / "ops")
    first = sb.build(folder)
    for name in ("scale_test.py", "notes.md", ".hidden.cc", "pyproject.toml", "scale_test.cc"):
        (folder / name).write_text("?")
    assert sb.build(folder) == first and sb.links(log) == 1


def test_every_schema_counts(cache_folder, tmp_path, log):
    """Also one that is called as a test is."""
    folder = sb.write_operator(tmp_path / "ops", op="scale_test")
    sb.build(folder)
    text = (folder / "scale_test.toml").read_text()
    (folder / "scale_test.toml").write_text(text.replace("Tensor x", "Tensor x, int unused=0"))
    sb.build(folder)
    assert sb.links(log) == 2


@pytest.mark.parametrize(
    "change",
    [{"flags": ["-DX=1"]}, {"name": "other"}, {"static": True}, {"environment": "CPLUS_INCLUDE_PATH"},
     {"environment": "LIBRARY_PATH"}],
    ids=str,
)  # fmt: skip
def test_choices_are_kept_apart(change, cache_folder, tmp_path, log, monkeypatch):
    folder = sb.write_operator(tmp_path / "ops")
    first = sb.build(folder)
    if "environment" in change:
        monkeypatch.setenv(change["environment"], str(tmp_path))
        change = {}
    second = sb.build(folder, **change)
    assert second != first and sb.links(log) == 2
    assert sb.build(folder, **change) == second and sb.links(log) == 2


def test_a_library_of_the_link_counts(cache_folder, tmp_path, log):
    """An archive that flags name."""
    lines = 'extern "C" float factor();'
    folder = sb.write_operator(tmp_path / "ops", "factor() * x[r]", lines=lines)
    flags = [f"-L{tmp_path}", "-Wl,--no-as-needed", "-lfactor"]
    for number in (2, 5):
        source = tmp_path / "factor.cc"
        source.write_text(f'extern "C" float factor() {{ return {number}; }}')
        object_file, archive = tmp_path / "factor.o", tmp_path / "libfactor.a"
        subprocess.run([sb.GXX, "-fPIC", "-c", source, "-o", object_file], check=True)
        subprocess.run(["ar", "rcs", archive, object_file], check=True)
        assert value(sb.build(folder, flags=flags), cache_folder) == 3 * number


def test_a_compiler_that_is_upgraded_in_place_builds_anew(cache_folder, tmp_path, log):
    folder = sb.write_operator(
        tmp_path / "ops", "FACTOR * x[r]", lines="#ifndef FACTOR\n#define FACTOR 2\n#endif"
    )
    compiler = tmp_path / "bin" / "g++"
    first = sb.build(folder)
    old = compiler.stat()
    compiler.write_text(compiler.read_text().replace('" "$@"', '" -DFACTOR=5 "$@"'))
    os.utime(compiler, ns=(old.st_atime_ns, old.st_mtime_ns))
    second = sb.build(folder)
    assert second != first and sb.links(log) == 2
    assert value(second, cache_folder) == 15.0
    assert value(first, cache_folder) == 6.0


@pytest.mark.parametrize("launcher", [False, True])
def test_a_compiler_replaced_behind_the_same_path_builds_anew(
    launcher, cache_folder, tmp_path, monkeypatch
):
    """A link that is turned to another program; also behind one that calls it, as ccache does."""
    folder = sb.write_operator(tmp_path / "ops")
    log, link = tmp_path / "log", tmp_path / "g++"
    for version in ("one", "two"):
        sb.write_compiler(tmp_path / version / "g++", log, before=f": {version}")
    link.symlink_to(tmp_path / "one" / "g++")
    ccache = tmp_path / "ccache"
    ccache.write_text('#!/bin/sh\nexec "$@"\n')
    ccache.chmod(0o755)
    monkeypatch.setenv("CXX", f"{ccache} {link}" if launcher else str(link))
    first = sb.build(folder)
    link.unlink()
    link.symlink_to(tmp_path / "two" / "g++")
    second = sb.build(folder)
    assert second != first and sb.links(log) == 2
    assert sb.build(folder) == second and sb.links(log) == 2


def test_another_compiler_takes_what_matches_else_builds(cache_folder, tmp_path, monkeypatch):
    folder = sb.write_operator(tmp_path / "ops")
    made, logs = {}, {}
    for name in ("one", "two"):
        logs[name] = tmp_path / f"log {name}"
        monkeypatch.setenv("CXX", f"'{sb.write_compiler(tmp_path / name / 'g++', logs[name])}'")
        made[name] = sb.build(folder)
        assert sb.links(logs[name]) == 1
    assert made["one"] != made["two"] and len(sb.entries(cache_folder)) == 2
    for name in ("one", "two"):
        monkeypatch.setenv("CXX", f"'{tmp_path / name / 'g++'}'")
        assert sb.build(folder) == made[name]
    assert [sb.links(log) for log in logs.values()] == [1, 1]


@pytest.mark.parametrize("launcher", [False, True])
def test_flags_in_the_variable_are_part_of_the_key(launcher, cache_folder, tmp_path, monkeypatch):
    """An entry of other flags is never loaded, whether the compiler is there or not."""
    lines = "#ifdef TWO\n#define FACTOR 2\n#else\n#define FACTOR 7\n#endif"
    folder = sb.write_operator(tmp_path / "ops", "FACTOR * x[r]", lines=lines)
    compiler = sb.write_compiler(tmp_path / "bin" / "g++")
    monkeypatch.setenv("CXX", f"{'env ' * launcher}{compiler} -DTWO")
    env = sb.environment(cache_folder, CXX=os.environ["CXX"])
    assert sb.call(folder, env) == "6.0"
    for missing in ("g++-99", f"{tmp_path}/g++ -DTWO", "g++-99 -DTWO"):
        said = sb.call(folder, env | {"CXX": missing})
        assert said == f"MissingToolError: CXX is {missing!r}, which is no program"
    assert sb.call(folder, env | {"CXX": sb.GXX}) == "21.0"
    bare = env | {"PATH": str(tmp_path / "nothing")}
    assert (
        sb.call(folder, bare | {"CXX": ""}) == "21.0"
    )  # without a compiler any one's entry will do
    monkeypatch.setenv("CXX", sb.GXX)
    assert value(sb.build(folder, flags=["-DTWO"]), cache_folder) == 6.0
    assert len(sb.entries(cache_folder)) == 3


@pytest.mark.parametrize(
    "where", ["ops/scale.cc", "ops/inner.h", "ops/scale.toml", "outside/outer.h"]
)
def test_a_file_that_changes_during_the_build_is_an_error(
    where, folder, cache_folder, tmp_path, monkeypatch
):
    """Never an entry that holds the older contents under the newer key, or the reverse."""
    monkeypatch.setattr(dependencies, "_SETTLED_SECONDS", -1.0)
    log, flags, path = tmp_path / "log", [f"-I{tmp_path / 'outside'}"], tmp_path / where
    compiler = sb.write_compiler(tmp_path / "bin" / "g++", log, before="sleep 0.2")
    monkeypatch.setenv("CXX", str(compiler))
    text = path.read_text()

    def edit() -> None:
        while not log.exists():
            time.sleep(0.01)
        path.write_text(text + "\n")
        if where == "ops/inner.h":  # and back again: the compiler may have read either
            path.write_text(text)

    editor = threading.Thread(target=edit)
    editor.start()
    with pytest.raises(anyop.BuildError, match=r"was changed while ops was built; build it again"):
        anyop.build(folder, flags=flags)
    editor.join()
    assert sb.entries(cache_folder) == [] and sb.leftovers(cache_folder) == []
    monkeypatch.delenv("CXX")
    assert value(sb.build(folder, flags=flags), cache_folder) == 6.0


def test_a_compiler_that_changes_during_the_build_is_an_error(cache_folder, tmp_path, monkeypatch):
    folder, log = sb.write_operator(tmp_path / "ops"), tmp_path / "log"
    compiler = sb.write_compiler(tmp_path / "bin" / "g++", log, before="sleep 0.2")
    monkeypatch.setenv("CXX", str(compiler))

    def upgrade() -> None:
        while not log.exists():
            time.sleep(0.01)
        new = sb.write_compiler(tmp_path / "bin" / "new", log, before="true")
        new.replace(compiler)

    thread = threading.Thread(target=upgrade)
    thread.start()
    with pytest.raises(anyop.BuildError, match=r"bin/g\+\+ was changed while ops was built"):
        anyop.build(folder)
    thread.join()
    assert sb.entries(cache_folder) == []
    sb.build(folder)


def test_the_processor_counts_where_a_flag_asks_for_it(monkeypatch):
    """-march=native is another compiler on another machine; without it a cache may be shared."""
    assert cpu_identity(["-O3", "-march=x86-64-v3"]) == ""
    assert cpu_identity(["-march=native"]) == cpu_identity(["-Xcompiler=-mtune=native"]) != ""


@pytest.mark.parametrize("by", ["flags", "CXX"])
def test_a_library_for_another_processor_is_not_taken(by, cache_folder, tmp_path, log, monkeypatch):
    """The cache of a home folder that machines share."""
    if os.uname().machine != "x86_64":
        pytest.skip(f"-march=native is of x86-64's compilers; this is {os.uname().machine}")
    folder = sb.write_operator(tmp_path / "ops")
    flags = ["-march=native"] if by == "flags" else []
    if by == "CXX":
        monkeypatch.setenv("CXX", f"{os.environ['CXX']} -march=native")
    choices = sys.modules["anyop.builder.choices"]
    here = sb.build(folder, flags=flags)
    monkeypatch.setattr(
        choices, "cpu_identity", lambda flags: cpu_identity(flags) and "another processor"
    )
    there = sb.build(folder, flags=flags)
    assert there != here and there.parent.parent != here.parent.parent and sb.links(log) == 2


def test_another_installed_anyop_has_entries_of_its_own(cache_folder, tmp_path, log, monkeypatch):
    """Two of one version may differ, as developers' do."""
    folder = sb.write_operator(tmp_path / "ops")
    first = sb.build(folder)
    other = tmp_path / "include"
    shutil.copytree(anyop.include_dir(), other, symlinks=False)
    for module in ("anyop.builder.choices", "anyop.builder.plan"):
        monkeypatch.setattr(sys.modules[module], "include_dir", lambda: str(other))
    second = sb.build(folder)
    assert second != first and sb.links(log) == 2


def test_a_changed_header_of_anyop_builds_anew(cache_folder, tmp_path, log, monkeypatch):
    folder, include = sb.write_operator(tmp_path / "ops"), tmp_path / "include"
    shutil.copytree(anyop.include_dir(), include, symlinks=False)
    for module in ("anyop.builder.choices", "anyop.builder.plan"):
        monkeypatch.setattr(sys.modules[module], "include_dir", lambda: str(include))
    sb.build(folder)
    with (include / "anyop" / "kernel.h").open("a") as stream:
        stream.write("// another\n")
    sb.build(folder)
    assert sb.links(log) == 2


def test_a_folder_with_an_old_library_beside_its_operators_is_built(cache_folder, tmp_path):
    """A library that was put there, then the source was changed: the source counts."""
    folder = sb.write_operator(tmp_path / "ops")
    anyop.build(folder, out=folder)
    assert (folder / "libops.so").exists()
    sb.write_operator(folder, "7 * x[r]")
    assert sb.call(folder, sb.environment(cache_folder)) == "21.0"
    assert sb.call(folder / "libops.so", sb.environment(cache_folder)) == "6.0"


def test_out_never_overwrites_what_the_library_is_built_from(cache_folder, tmp_path):
    folder = sb.write_operator(tmp_path / "ops", file="libops.so.cc")
    source = folder / "libops.so.cc"
    shutil.copy(source, folder / "kernel.cc")
    command = [sb.GXX, "-c", "-fPIC", "-x", "c++", "/dev/null", "-o", str(folder / "libops.so")]
    subprocess.run(command, check=True)
    text = (folder / "scale.toml").read_text()
    (folder / "scale.toml").write_text(text.replace('"libops.so.cc"', '["kernel.cc", "libops.so"]'))
    before = (folder / "libops.so").read_bytes()
    with pytest.raises(ValueError, match=r"libops\.so"):  # by the schema, or by build
        anyop.build(folder, out=folder)
    assert (folder / "libops.so").read_bytes() == before


# Loads, edits and loads again, in one process; prints what came.
EDITED = """
import sys
sys.path[:0] = [sys.argv[1]]
import small_builds as sb
import anyop, numpy as np
from pathlib import Path
folder, out, by = Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
def path():
    return folder if by == "folder" else anyop.build(folder, out=out) if by == "out" else out
for value in ("2 * x[r]", "2 * x[r]", "5 * x[r]"):
    sb.write_operator(folder, value)
    try:
        if by == "outs":
            anyop.build(folder, out=out)
        print(anyop.load(path()), anyop.ops.acme.scale(np.float32([3])))
    except ValueError as error:
        print(error)
"""


@pytest.mark.parametrize("by", ["folder", "out", "outs"])
def test_loading_twice_gives_the_names_twice_and_an_edited_one_is_refused(
    by, cache_folder, tmp_path
):
    """The dynamic loader would give the first library for its path again, without a word."""
    here = Path(sb.__file__).parent
    words = [here, tmp_path / "ops", tmp_path / "out", by]
    process = sb.python(EDITED, *words, env=sb.environment(cache_folder))
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    first, second, third = output.splitlines()
    assert first == second == "['acme.scale'] [6.]"
    assert "what is loaded stays" in third and "start a new process" in third
