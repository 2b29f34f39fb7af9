# SPDX-License-Identifier: Apache-2.0
"""The end of a process while its daemon threads are inside of anyop: exit code 0 from every entry point, always.

In short all entry points of a framework in one process, one thread each; with ANYOP_TEST_FULL=1 each by itself, 20
times.
"""

import functools
import importlib.util
import os
import shutil
import subprocess
import sys

import anyop
import prepared
import pytest

FULL = os.environ.get("ANYOP_TEST_FULL") == "1"

PRELUDE = """
import threading, time
import numpy as np
import anyop

x, w = np.ones((4, 64), np.float32), np.ones(64, np.float32)
big = np.ones((512, 640), np.float32)  # more than a mebibyte: without Python's lock
class Heavy:
    \"\"\"Lets other threads in while it is let go of.\"\"\"
    def __del__(self): time.sleep(0)
def kernel(x):
    heavy = Heavy()
    time.sleep(0)  # lets go of Python's lock, and takes it again below anyop's frames
    return np.maximum(x, 0) + sum(range(50)) * 0
"""

# By framework: what is made before the threads start, and what one does again and again.
ENTRIES = {
    "numpy": {
        "call": ("", "anyop.gelu(big)"),
        "small call": ("", "anyop.rms_norm(x, w)"),
        "own arrays": (
            "class Array:\n"
            "    def __dlpack__(self, **given): time.sleep(0); return x.__dlpack__()\n"
            "    def __dlpack_device__(self): return 1, 0",
            "anyop.rms_norm(Array(), w)",
        ),
        "failing call": ("", "try: anyop.rms_norm(x, x)\nexcept ValueError: pass"),
        "python kernel": (
            "anyop.register('relu', 'mine', kernel, priority=9)",
            "anyop.relu(x)",
        ),
        "python kernel of much": (  # it takes the lock that the call has let go of
            "anyop.register('relu', 'mine', kernel, priority=9)",
            "anyop.relu(big)",
        ),
        "failing kernel": (
            "def fail(x): time.sleep(0); raise ValueError('no')\n"
            "anyop.register('silu', 'mine', fail, priority=9)",
            "try: anyop.silu(big)\nexcept ValueError: pass",
        ),
        "explain": (  # its imports, ten seconds beside fourteen threads that all want Python's lock
            "anyop.explain('rms_norm', x, w)",
            "anyop.explain('rms_norm', x, w)",
        ),
        "use": ("", "with anyop.use('cpu'): anyop.rms_norm(x, w)"),
        "log": (
            "import logging\n"
            "class Quiet(logging.Handler):\n"
            "    def emit(self, record): time.sleep(0)\n"
            "logging.getLogger('anyop').addHandler(Quiet())\n"
            "anyop.log_dispatch(2, stderr=False)",
            "anyop.rms_norm(x, w), anyop.gelu(big)",
        ),
        "register": (
            "",
            "name = f'n{threading.get_ident()}'\n"
            "anyop.register('relu', 'mine', kernel, name=name, priority=9)\n"
            "anyop.relu(x)\n"
            "anyop.unregister('relu', name)",
        ),
        "routes": ("", "anyop.load_routes(None), anyop.backends('rms_norm')"),
        "pickle": ("import pickle", "pickle.loads(pickle.dumps(anyop.relu))(x)"),
        "record": (
            "import os, tempfile\n"
            "folder = tempfile.TemporaryDirectory()\n"
            "anyop.record(os.path.join(folder.name, 'calls.jsonl'))",
            "anyop.relu(x)",
        ),
        "settings": (
            "",
            "anyop.use_deterministic(True), anyop.set_num_threads(2)\n"
            "anyop.list_ops(), anyop.schema('relu'), anyop.metadata('relu')",
        ),
    },
    "torch": {
        "call": ("", "anyop.rms_norm(t, v)"),
        "aten": ("", "anyop.aten.add(big, big), anyop.aten.relu(x)"),
        "torch.ops": ("", "torch.ops.anyop.rms_norm(t, v)"),
        "torch alone": ("", "torch.relu(t)"),  # ends most processes at exit without anyop
        "gradient": (
            "g = torch.ones(64, 64, requires_grad=True)",
            "anyop.rms_norm(g, v[:64]).sum().backward()",
        ),
        "python kernel": (
            "anyop.register('relu', 'mine', kernel, priority=9)",
            "torch.ops.anyop.relu(t)",
        ),
        "resolve": ("", "anyop.aten.resolve('add', x, x)"),
        "vmap": ("", "torch.func.vmap(lambda row: anyop.rms_norm(row[None], v))(t)"),
        "forward mode": (  # its levels are the process's: one thread at a time
            "levels = threading.Lock()",
            "with levels: torch.func.jvp(anyop.gelu, (t,), (t,))",
        ),
        "replaced": (
            "import torch.nn as nn\n"
            "model = nn.Sequential(nn.LayerNorm(64), nn.GELU())\n"
            "anyop.torch.replace(model, timed=False, verbose=False)",
            "model(t[:, :64])",
        ),
    },
    "jax": {
        "jit": ("f = jax.jit(anyop.rms_norm)\nf(j, u)", "f(j, u).block_until_ready()"),
        "python kernel": (
            "anyop.register('relu', 'mine', kernel, priority=9)\nh = jax.jit(anyop.relu)\nh(j)",
            "h(j).block_until_ready()",
        ),
        "eager": ("", "anyop.rms_norm(j, u)"),
        "gradient": ("", "jax.grad(lambda j: anyop.rms_norm(j, u).sum())(j)"),
        "vmap": ("", "jax.vmap(lambda row: anyop.rms_norm(row[None], u))(j)"),
    },
    "paddle": {
        "call": ("", "anyop.rms_norm(p, q)"),
        "gradient": (  # its engine breaks memory where threads share a leaf, without anyop too
            "g = paddle.ones([64, 64])\ng.stop_gradient = False\nengine = threading.Lock()",
            "with engine: paddle.grad(anyop.rms_norm(g, q).sum(), g)",
        ),
        "python kernel": (
            "anyop.register('relu', 'mine', kernel, priority=9)",
            "anyop.relu(p)",
        ),
    },
    "tvm_ffi": {
        "call": ("f = tvm_ffi.get_global_func('anyop.rms_norm')\nf(big, big[0])", "f(big, big[0])"),
        "python kernel": (
            "h = tvm_ffi.get_global_func('anyop.relu')\n"
            "anyop.register('relu', 'mine', kernel, priority=9)",
            "h(big)",
        ),
    },
}
# The glues are built here, once, not while the threads are waited for.
SETUPS = {
    "numpy": "",
    "torch": "import torch, anyop.torch\nt, v = torch.ones(1024, 1024), torch.ones(1024)\n"
    "anyop.rms_norm(t, v), anyop.aten.relu(x)\n",
    "jax": "import jax, anyop.jax\nj, u = jax.numpy.ones((64, 64)), jax.numpy.ones(64)\n",
    "paddle": "import paddle\np, q = paddle.ones([64, 64]), paddle.ones([64])\n"
    "anyop.rms_norm(p, q)\n",
    "tvm_ffi": "import tvm_ffi\n",
}

THREADS = """
import sys
counts = [0] * len(works)
def forever(i):
    while True:
        works[i]()
        counts[i] += 1
for i in range(len(works)): threading.Thread(target=forever, args=(i,), daemon=True).start()
end = time.monotonic() + 60
while min(counts) < 3 and time.monotonic() < end: time.sleep(0.01)
sys.setswitchinterval(1e-5)
time.sleep(0.05)
print("end", min(counts) >= 3, flush=True)
"""


def program(framework: str, entries: list[str]) -> str:
    text = PRELUDE + SETUPS[framework] + "works = []\n"
    for setup, work in (ENTRIES[framework][entry] for entry in entries):
        body = "".join(f"    {line}\n" for line in work.splitlines())
        text += f"{setup}\ndef work():\n{body}works.append(work)\n"
    return text + THREADS


CASES = [(f, [e] * 3) for f in ENTRIES for e in ENTRIES[f]] if FULL else []
CASES += [(framework, list(ENTRIES[framework])) for framework in ENTRIES]


@pytest.mark.parametrize(("framework", "entries"), CASES, ids=lambda given: str(given)[:40])
def test_exit(framework, entries):
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    start = functools.partial(prepared.run, framework)
    ready = framework in ("torch", "jax", "paddle")
    ends_well(program(framework, entries), 20 if FULL else 1, start if ready else subprocess.run)


def ends_well(text: str, times: int, start=subprocess.run) -> None:
    for _ in range(times):
        run = start([sys.executable, "-c", text], capture_output=True, text=True, timeout=300)
        assert (run.returncode, run.stdout) == (0, "end True\n"), run.stderr[-3000:]


FOREIGN = """
#include <anyop/anyop.h>
#include <pthread.h>
static _Atomic int calls;
static float memory[64];
static int64_t shape[1] = {64};
static void* run(void* op) {
  AnyopTensor x = {memory, 1, 0, 1, 2, 32, 1, shape, 0, 0};
  for (;; ++calls) {
    AnyopValue values[2] = {{.kind = kAnyopTensorValue}};
    values[0].as.tensor = &x;
    if (AnyopInvoke(op, values, 2, 0) == kAnyopOk) AnyopDeleteTensor(values[1].as.tensor);
  }
}
int count(void) { return calls; }
int start(void) {
  pthread_t thread;
  return pthread_create(&thread, 0, run, (void*)AnyopFindOperator("relu"));
}
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_exit_beside_threads_that_python_does_not_know(tmp_path):
    """A kernel in Python, called by the C ABI from threads of C: they make Python's thread states anew each time."""
    (tmp_path / "foreign.c").write_text(FOREIGN)
    library, runtime = tmp_path / "libforeign.so", os.path.dirname(anyop._load.core.__file__)
    command = ["gcc", "-shared", "-fPIC", "-pthread", f"-I{anyop.include_dir()}", "-o", library]
    command += [tmp_path / "foreign.c", f"{runtime}/lib/libanyop.so", f"-Wl,-rpath,{runtime}/lib"]
    subprocess.run(command, check=True)
    text = f"""{PRELUDE}
import ctypes, sys
anyop.register('relu', 'mine', kernel, priority=9)
foreign = ctypes.CDLL({str(library)!r})
for _ in range(3): assert foreign.start() == 0
end = time.monotonic() + 60
while foreign.count() < 30 and time.monotonic() < end: time.sleep(0.01)
sys.setswitchinterval(1e-5)
time.sleep(0.05)
print("end", foreign.count() >= 30, flush=True)
"""
    ends_well(text, 20 if FULL else 2)


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_exit_beneath_frames_that_let_nothing_through(tmp_path):
    """Code of others that calls back into Python, with a C++ runtime of its own: ended without a terminate handler."""
    (tmp_path / "strict.cc").write_text(
        'extern "C" void run(void (*back)()) noexcept { for (;;) back(); }\n'
    )
    command = "g++ -shared -fPIC -static-libstdc++ -static-libgcc strict.cc -o libstrict.so"
    subprocess.run(command.split(), cwd=tmp_path, check=True)
    text = f"""{PRELUDE}
import ctypes
strict = ctypes.CDLL({str(tmp_path / "libstrict.so")!r})
back = ctypes.CFUNCTYPE(None)(lambda: time.sleep(0))
works = [lambda: strict.run(back)] * 3
counts = [3] * 3
{THREADS.replace("counts = [0] * len(works)", "")}"""
    ends_well(text, 20 if FULL else 2)
