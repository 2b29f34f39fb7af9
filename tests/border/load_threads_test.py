# SPDX-License-Identifier: Apache-2.0
"""Operators that one thread loads while others load, list and misspell them: each finds all or nothing."""

import subprocess
import sys
from pathlib import Path

import anyop
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from first_use_test import write_folder

PRELUDE = """
import sys, threading, time
import numpy as np
import anyop
from anyop import _operators

def at_once(*works):
    wrong, gate = [], threading.Barrier(len(works))
    def run(work):
        gate.wait()
        try:
            work()
        except BaseException as error:
            wrong.append(repr(error))
    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return wrong
"""


def run(program: str, *arguments: object) -> str:
    command = [sys.executable, "-c", PRELUDE + program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("loads")
    write_folder(folder, "loaded by threads")
    return anyop.build(folder / "acme")


def test_who_has_loaded_finds_operators_in_every_adapter(library):
    """Also the thread for which another one loads: torch.ops had nothing yet."""
    program = """
told = []
def adapter(names):
    time.sleep(0.3)  # as torch's, where there is much to install
    told.extend(names)
_operators.on_new_operators.append(adapter)
def load():
    assert anyop.load(sys.argv[1]) == ["acme.scale", "acme.scale_backward"]
    assert told == ["acme.scale", "acme.scale_backward"], told
def load_later():
    time.sleep(0.1)
    load()
print(at_once(load, load, load_later, load_later))
"""
    assert run(program, library) == "[]"


def test_an_adapter_that_comes_meanwhile_misses_no_operator(library):
    """Listing comes before asking to be told: what came between was never told."""
    program = """
told = []
def adapter(names):
    time.sleep(0.3)
    told.extend(names)
def load():
    time.sleep(0.1)
    anyop.load(sys.argv[1])
print(at_once(lambda: _operators.install(adapter), load))
print(told.count("acme.scale"), told.count("relu"))
"""
    assert run(program, library).split("\n") == ["[]", "1 1"]


def test_lists_while_operators_come(library):
    program = """
sys.setswitchinterval(1e-6)
space = _operators.Namespace()
_operators.ops.__dict__["many"] = space
end = threading.Event()
def come():  # as load() adds them
    for number in range(2000):
        setattr(space, f"op{number}", None)
        time.sleep(0)
        if number % 50 == 0:
            _operators.ops.__dict__[f"space{number}"] = _operators.Namespace()
    end.set()
def lists():
    while not end.is_set():
        assert "relu" in anyop.list_ops() and "many.op0" in anyop.list_ops()
        anyop.list_ops("many")
def misspells():
    while not end.is_set():
        try:
            anyop.ops.many.oq0
        except AttributeError as error:
            assert "no operator is named many.oq0" in str(error)
        try:
            anyop.ops.manz
        except AttributeError:
            pass
setattr(space, "op0", None)
print(at_once(come, lists, misspells))
"""
    assert run(program) == "[]"


def test_one_snippet_of_many_threads_is_one_library():
    """The second thread found the name taken, and got a library and a namespace of its own."""
    program = """
text = "void f(const float* x, float* y, int64_t n) { for (int64_t i = 0; i < n; ++i) y[i] = 2 * x[i]; }"
found = []
def load():
    made, y = anyop.jit.load("twice_of_threads", source=text, functions=["f"]), np.zeros(3, np.float32)
    made.f(np.ones(3, np.float32), y, 3)
    assert y.tolist() == [2, 2, 2]
    found.append(made.namespace)
begun = threading.Event()
def adapter(names):
    begun.set()
    time.sleep(0.3)
_operators.on_new_operators.append(adapter)
def load_later():
    begun.wait()
    load()
print(at_once(load, load_later, load_later), {*found})
"""
    assert run(program) == "[] {'twice_of_threads'}"
