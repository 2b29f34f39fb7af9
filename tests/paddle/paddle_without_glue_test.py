# SPDX-License-Identifier: Apache-2.0
"""Without a C++ compiler, without Paddle, with a Paddle that is too old: what works, and what is said."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import prepared
import pytest

pytest.importorskip("paddle", reason="PaddlePaddle is not installed")

HERE = Path(__file__).parent
SUITE = [
    "paddle_hazards_test.py", "paddle_modes_test.py", "paddle_gradients_test.py::test_out_raises_the_version",
    "paddle_gradients_test.py::test_what_is_not_recorded",
    "paddle_gradients_test.py::test_out_with_a_gradient_is_refused",
    "paddle_gradients_test.py::test_gradients_are_those_of_the_operator[attention]",
    "paddle_operators_test.py::test_standard_cases[rms_norm]",
]  # fmt: skip


with_paddle = functools.partial(prepared.run, "paddle")


def run(*command, start=subprocess.run, **environment):
    return start(
        [sys.executable, *command],
        env=os.environ | environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def test_everything_works_without_the_glue():
    """By Paddle's attributes; what was compiled for this Paddle is not looked for."""
    tests = [str(HERE / name) for name in SUITE]
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, ANYOP_PADDLE_GLUE="0")
    assert done.returncode == 0, done.stdout[-3000:]


LOCKED = """
import faulthandler, threading
import numpy as np
import paddle, anyop

x, weight, result = paddle.ones([4, 64]), paddle.ones([64]), paddle.empty([4, 64])


def block(x):
    return anyop.gelu(anyop.rms_norm(x, weight))


graph = paddle.jit.to_static(block, full_graph=True)
graph(x)
freeing, done = threading.Event(), threading.Event()

class Slow(np.ndarray):
    def __del__(self):
        if self.base is not None:
            freeing.set()
            done.wait(10)  # without Python's lock, and with Paddle's

imported = [paddle.utils.dlpack.from_dlpack(np.ones(8, np.float32).view(Slow))]
freeing.clear()
faulthandler.dump_traceback_later(15, exit=True)
thread = threading.Thread(target=imported.pop)
thread.start()
assert freeing.wait(5) and thread.is_alive()
for _ in range(10):
    anyop.rms_norm(x, weight, out=result)
    anyop.rms_norm(x, weight)  # made and freed
graph(x)
assert thread.is_alive()
done.set()
thread.join()
print("all came back")
"""


@pytest.mark.parametrize("glue", ["", "0"], ids=["glue", "without"])
def test_no_wait_for_paddles_lock(glue, tmp_path):
    """Paddle frees what came by DLPack with a lock held; who waits for that with Python's lock waits for ever."""
    program = tmp_path / "locked.py"  # a file: Paddle reads the source of what it makes a graph of
    program.write_text(LOCKED)
    code = f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')"
    done = run("-c", code, start=with_paddle, ANYOP_PADDLE_GLUE=glue)
    assert done.returncode == 0 and "all came back" in done.stdout, done.stderr[-2000:]


COMPILERS = """
import paddle, anyop
from anyop.native.glues import paddle_glue
x = paddle.ones([2, 3])
x.stop_gradient = False
anyop.relu(x).sum().backward()
assert x.grad is not None and anyop.relu(x.detach()).shape == [2, 3]
print("problem:", paddle_glue.problem)
"""


def test_without_a_compiler(tmp_path):
    done = run(
        "-c", COMPILERS, start=with_paddle, CXX="/nonexistent/g++", ANYOP_CACHE_DIR=str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    assert "problem: CXX is '/nonexistent/g++', which is no program" in done.stdout
    assert not list((tmp_path / "entries").iterdir())


def test_a_glue_for_another_paddle_is_refused(tmp_path):
    """The library of this Paddle, looked for under the name of another."""
    code = """
import paddle, anyop
from anyop import _anyop
from anyop.native.glues import paddle_glue
assert paddle_glue.load() is not None, paddle_glue.problem
try:
    _anyop.open_paddle_glue(paddle_glue.path, "3.9.0")
except ValueError as error:
    print(error)
"""
    done = run("-c", code, start=with_paddle)
    assert done.returncode == 0, done.stderr
    assert "is for Paddle 3." in done.stdout and "and Paddle 3.9.0 is loaded" in done.stdout


BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "paddle":
            raise ModuleNotFoundError("No module named 'paddle'", name="paddle")
sys.meta_path.insert(0, Block())
import anyop
assert "paddle" not in sys.modules
import anyop.paddle
"""
OLD = """
import sys, types
class Tensor: pass
sys.modules["paddle"] = types.SimpleNamespace(Tensor=Tensor, __version__="2.6.2")
import anyop.paddle
"""


@pytest.mark.parametrize(
    "code, said",
    [(BLOCKED, "needs PaddlePaddle, which is not installed: pip install paddlepaddle"),
     (OLD, "needs DLPack's exchange functions, which paddle has from 3.3 on; this is paddle 2.6.2")],
    ids=["none", "too old"],
)  # fmt: skip
def test_import_error(code, said):
    done = run("-c", code)
    assert done.returncode == 1 and f"ImportError: anyop.paddle {said}" in done.stderr
