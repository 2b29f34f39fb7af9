# SPDX-License-Identifier: Apache-2.0
"""The tests of the guards once more, where there is no compiler for the glue: torch's attributes tell the same.

One file of them, drawn by the commit; all with ANYOP_TEST_FULL=1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import prepared
import pytest
from drawn import few

TESTS = Path(__file__).resolve().parents[1]
FILES = ["border/python_torch_test.py", "torch/torch_hazards_test.py", "torch/torch_modes_test.py"]


def ask(program: str, **more: str) -> str:
    done = prepared.run(
        "torch",
        [sys.executable, "-c", program],
        env=os.environ | more,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_guards_by_attribute():
    files = few(FILES, 1, "guards by attribute")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *files]
    environment = os.environ | {"ANYOP_TORCH_GLUE": "0"}
    done = subprocess.run(command, cwd=TESTS, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"ANYOP_TORCH_GLUE": "0"}, "says to do without"),
        ({"ANYOP_TORCH_GLUE": "/nowhere.so"}, "nowhere.so"),
        ({"CXX": "false"}, "failed and said nothing: "),
        ({"CXX": "no-such-compiler"}, "no-such-compiler"),
    ],
)
def test_why_there_is_none(tmp_path, change, why):
    program = """
import torch, anyop
from anyop.native.glues import torch_glue
x = torch.randn(3)
assert torch.equal(anyop.relu(x), torch.relu(x))
assert torch_glue.load() is None
print(torch_glue.problem)
"""
    assert why in ask(program, ANYOP_CACHE_DIR=str(tmp_path), **change)


BUILDS = pytest.mark.drawn(2, group="builds of the glue")


@BUILDS
def test_threads_that_come_first_together_all_get_it(tmp_path):
    program = """
import threading, torch, anyop
from anyop.native.glues import torch_glue
x, found = torch.randn(3), []
def work():
    anyop.relu(x)
    found.append(torch_glue.load())
threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(found), len(set(found)), None not in found)
"""
    assert ask(program, ANYOP_CACHE_DIR=str(tmp_path)) == "4 1 True"


def copy_the_glue(cache: Path) -> None:
    """What was built for these tests, as the entry of a cache of its own; nothing where it is not in a cache."""
    text = """
import torch
from anyop.native.glues import torch_glue
from anyop.cache.place import cache_dir
print(torch_glue.load() and torch_glue.path, cache_dir(), sep="|")
"""
    path, found = map(Path, ask(text).split("|"))
    if found in path.parents:
        entry = path.parent.relative_to(found)
        shutil.copytree(path.parent, cache / entry)
        for folder in [*(cache / entry).parents][: -len(cache.parts)]:
            folder.chmod(0o700)


@BUILDS
def test_a_broken_one_in_the_cache_is_built_anew(tmp_path):
    copy_the_glue(tmp_path)
    program = "import torch; from anyop.native.glues import torch_glue as g; print(g.load() is not None, g.path)"
    built, path = ask(program, ANYOP_CACHE_DIR=str(tmp_path)).split()
    assert built == "True" and tmp_path in Path(path).parents
    Path(path).write_bytes(b"not a library")
    built, again = ask(program, ANYOP_CACHE_DIR=str(tmp_path)).split()
    assert built == "True" and again != path and not Path(path).exists()
    assert ask(program, ANYOP_CACHE_DIR=str(tmp_path)) == f"True {again}"
