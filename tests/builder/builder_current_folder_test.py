# SPDX-License-Identifier: Apache-2.0
"""No program, library or module comes from the current folder, or by another user's link, because its name fits."""

import os
import subprocess
import sys
from pathlib import Path

import anyop
import pytest
import small_builds as sb
from anyop.builder import tools
from anyop.cache import place

cache_folder = sb.cache_folder
# Loads whatever would be found as each package, which are not installed; the current folder goes first.
PROGRAM = """
import importlib.machinery as m, importlib.util as u, sys
real = m.PathFinder.find_spec
hidden = {"ninja", "tvm_ffi", "flag_gems", "cupy", "anyop_absent"}
def find(name, path=None, target=None):
    if name in hidden:
        return real(name, [""])
    return real(name, path, target)
m.PathFinder.find_spec = find
sys.path.insert(0, "")
assert u.find_spec("ninja") is not None, "the folder is a package without a module"
import anyop
from anyop.builder.tools import find_ninja
from anyop.builder.import_module import _runtime
from anyop._load import register_tvm_ffi
from anyop._paths import is_installed, package_folders
print(find_ninja(), _runtime() or None, register_tvm_ffi(), package_folders("flag_gems"), is_installed("cupy"), sep="|")
"""


def plant(folder: Path, code: str = "") -> None:
    """Files that would be run or opened by their names, each of which leaves a mark."""
    program = f"#!/bin/sh\necho $0 $* >> {folder}/marked\n{code}"
    names = [
        "ninja/data/bin/ninja",
        "env",
        "g++",
        "c++",
        "clang++",
        "ninja-build",
        "cc1plus",
        "as",
        "ld",
    ]
    for name in [
        *names,
        "tvm_ffi/lib/libtvm_ffi.so",
        "flag_gems/x",
        "cupy/x",
        "anyop/native/device_module.py",
    ]:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            program if not name.endswith(".py") else f"open({str(folder / 'marked')!r}, 'w')"
        )
        path.chmod(0o755)


def test_folders_without_a_module_are_no_packages(tmp_path):
    plant(tmp_path)
    env = sb.environment(tmp_path / "cache", PATH="/usr/bin:/bin")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    ninja, runtime, problem, gems, cupy = done.stdout.strip().split("|")
    assert not ninja.startswith(str(tmp_path)) and runtime == "None"
    assert (
        problem == "the package apache-tvm-ffi is not installed"
        and gems == "[]"
        and cupy == "False"
    )
    assert not (tmp_path / "marked").exists()


def test_import_torch_runs_no_folder_named_anyop(tmp_path):
    """The entry point of the distribution anyop-device, where anyop itself is not installed."""
    plant(tmp_path)
    entry = Path(anyop.__file__).resolve().parent.parent / "anyop_device" / "anyop_device.py"
    if not entry.exists():
        pytest.skip("anyop-device lies in the source tree, which is not here")
    program = f"import sys; sys.path[:0] = ['']; exec(open({str(entry)!r}).read()); autoload()"
    env = sb.environment(tmp_path / "cache", PYTHONPATH="")
    subprocess.run([sys.executable, "-S", "-c", program], cwd=tmp_path, env=env, check=True)
    assert not (tmp_path / "marked").exists()


@sb.needs_compiler
@pytest.mark.parametrize("path", ["", ".", ":{PATH}:", ".:{PATH}", "bin:{PATH}:."])
def test_empty_and_relative_entries_of_path_are_passed_over(
    path, tmp_path, cache_folder, monkeypatch
):
    """By every process that a build or `anyop doctor` starts."""
    plant(tmp_path)
    plant(tmp_path / "bin")
    folder = sb.write_operator(tmp_path / "ops")
    ninja = tools.find_ninja()
    env = sb.environment(
        cache_folder, PATH=path.replace("{PATH}", os.environ["PATH"]), ANYOP_NINJA=ninja
    )
    for command in (["build", folder], ["doctor"]):
        words = [sys.executable, "-m", "anyop", *map(str, command)]
        done = subprocess.run(
            words, cwd=tmp_path, env=env | {"PYTHONSAFEPATH": "1"}, capture_output=True, text=True
        )
        assert "Traceback" not in done.stderr
        if "{PATH}" in path and command[0] == "build":
            assert done.returncode == 0, done.stderr
    assert [mark.read_text() for mark in tmp_path.rglob("marked")] == []


def test_a_foreign_link_is_not_followed(tmp_path, monkeypatch):
    """/tmp/anyop-<uid>, which anybody can plant, leads where its owner wants."""
    mine, link = tmp_path / "mine", tmp_path / f"anyop-{os.getuid()}"
    mine.mkdir(mode=0o700)
    link.symlink_to(mine)
    place.check_private(str(link))  # one's own may be followed
    if os.getuid() == 0:
        os.lchown(link, 12345, 12345)
    else:
        monkeypatch.setattr(place, "is_foreign", lambda found: os.path.stat.S_ISLNK(found.st_mode))
    monkeypatch.setenv("ANYOP_CACHE_DIR", str(link))
    with pytest.raises(
        PermissionError, match=r"is a link of user \d+, which anyop does not follow; remove it"
    ):
        anyop.build(sb.write_operator(tmp_path / "ops"))
    assert list(mine.iterdir()) == []
