# SPDX-License-Identifier: Apache-2.0
"""FlagGems as a backend: a stand-in of its package and one of its compiled library, on the CPU; and what is missing.

The real package needs a GPU to be imported: tests/cuda/frameworks/cuda_flaggems.py runs it.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import anyop
import numpy as np
import prepared
import pytest
from anyop._load import core

torch = pytest.importorskip("torch", reason="torch is not installed")
from anyop.backend import flaggems, flaggems_c  # noqa: E402

LIBRARY = Path(__file__).with_name("flaggems_library.c")
PACKAGE = """
import torch

__version__ = "0"
calls = []


def listed(key):
    name, _, overload = key.partition(".")
    function = getattr(getattr(torch.ops.aten, name), overload or "default")

    def call(*args, **kwargs):
        calls.append(key)
        return function(*args, **kwargs)

    return key, call


_FULL_CONFIG = tuple(map(listed, [
    "silu", "relu", "add.Tensor", "mul.Tensor", "_softmax", "mm", "bmm", "addmm",
    "sum.dim_IntList", "stack", "amax", "exp", "log", "sub.Tensor", "div.Tensor",
    "masked_fill.Scalar", "eq.Scalar",
]))
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package flag_gems that has some operators and counts their calls."""
    (tmp_path / "flag_gems").mkdir()
    (tmp_path / "flag_gems" / "__init__.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "flag_gems", raising=False)
    importlib.invalidate_caches()
    yield importlib.import_module("flag_gems")
    sys.modules.pop("flag_gems", None)


def kernel_of(op):
    return next(k for k in anyop.metadata(op)["kernels"] if k["form"] == "aten")


@pytest.fixture
def on_cpu():
    """Offers the backend for the CPU, where its stand-ins compute, and takes it away again."""
    made = []

    def offer(op, functions):
        made.append(op)
        resolver = partial(flaggems.resolve, op, kernel_of(op), functions)
        core.register_python(op, "stand_in", "stand_in", "test", None, 1, -60, False, resolver)

    yield offer
    for op in made:
        core.unregister(op, "stand_in")


def array(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


X, W = array(5, 8), array(8, seed=1)
CALLS = [  # operator, arguments, what of FlagGems must have run
    ("silu", (X,), ["silu"]),
    ("add", (X, X), ["add.Tensor"]),
    ("silu_and_mul", (X,), ["silu", "mul.Tensor"]),
    ("softmax", (X,), ["_softmax"]),
    ("mul", (X, W), ["mul.Tensor"]),
    ("linear", (X, array(3, 8)), ["mm"]),
    ("add_backward", (X, W, X), ["sum.dim_IntList"]),
    ("merge_states", ([X, array(5, 8, seed=2)], [X[:, 0].copy(), X[:, 1].copy()]), ["stack"]),
    ("linear_backward", (array(2, 3, 4), array(2, 3, 8), array(4, 8)), ["mm"]),
]


@pytest.mark.parametrize(("op", "arguments", "expected"), CALLS, ids=[c[0] for c in CALLS])
def test_flag_gems_computes_and_not_aten(package, on_cpu, op, arguments, expected):
    on_cpu(op, flaggems.python_functions)
    function = getattr(anyop, op)
    plain = function(*arguments)
    with anyop.use("stand_in"):
        assert anyop.explain(op, *arguments).chosen == "stand_in"
        found = function(*arguments)
    assert set(expected) <= set(package.calls)
    pairs = zip(found, plain) if isinstance(plain, tuple) else [(found, plain)]
    for one, other in pairs:
        np.testing.assert_allclose(one, other, 1e-5, 1e-5)


def test_what_flag_gems_lacks_is_said(package):
    for op, what in (
        ("topk", ""),
        ("embedding", "embedding"),
        ("log_softmax", "log_softmax.int"),
    ):
        found = flaggems.resolve(op, kernel_of(op), flaggems.python_functions)
        assert found.startswith("FlagGems has no ") and what in found


def test_what_aten_would_call_behind_flag_gems_back_is_refused(package, on_cpu, monkeypatch):
    """matmul of three dimensions is bmm in ATen; suppose the package had it not, and nobody had known."""
    listed = tuple(entry for entry in package._FULL_CONFIG if entry[0] != "bmm")
    monkeypatch.setattr(package, "_FULL_CONFIG", listed)
    monkeypatch.setitem(flaggems._PARTS, "matmul", ("mm",))
    on_cpu("matmul", flaggems.python_functions)
    a = array(2, 3, 4)
    with anyop.use("stand_in"), pytest.raises(NotImplementedError, match="FlagGems has no bmm"):
        anyop.matmul(a, array(2, 4, 3))
    assert "bmm" not in package.calls


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import no_such_module", "flag_gems needs no_such_module, which is not installed"),
        ("raise RuntimeError('no device')", "cannot be imported: RuntimeError: no device"),
        ("__version__ = '9'", "flag_gems 9 does not list its operators"),
    ],
)
def test_a_package_that_cannot_be_used(package, source, why):
    Path(package.__file__).write_text(source)
    shutil.rmtree(Path(package.__file__).with_name("__pycache__"), ignore_errors=True)
    sys.modules.pop("flag_gems")
    importlib.invalidate_caches()
    assert why in flaggems.resolve("silu", kernel_of("silu"), flaggems.python_functions)


# The first words of a program, and what else says that FlagGems is to run: on a CPU it cannot, and is known.
WAYS = {
    "use": ("with anyop.use('flaggems'): anyop.relu(x)", {}, ""),
    "use_of_one": ("with anyop.use('flaggems', ops='relu'): anyop.relu(x)", {}, ""),
    "behind_another": ("with anyop.use('flaggems,aten'): anyop.relu(x)", {}, "aten"),
    "before_another": ("with anyop.use('triton,flaggems'): anyop.relu(x)", {}, ""),
    "variable": ("anyop.relu(x)", {"ANYOP_OP_RELU": "flaggems"}, ""),
    "file": ("anyop.relu(x)", {"ANYOP_ROUTES": "relu = flaggems"}, ""),
    "preset": ("anyop.load_routes('triton'); anyop.relu(x)", {}, "cpu"),
    "a_file_later": ("anyop.load_routes(routes); anyop.relu(x)", {"routes": "relu = flaggems"}, ""),
    "of_torch_ops": (
        "import torch, anyop.torch; torch.ops.anyop.relu(torch.ones(3), use='flaggems')", {}, "",
    ),
}  # fmt: skip


@pytest.mark.drawn(3)
@pytest.mark.parametrize("way", WAYS)
def test_it_is_known_from_the_first_word_on(way, tmp_path):
    call, environment, runs = WAYS[way]
    environment = dict(environment)
    for key in {"ANYOP_ROUTES", "routes"} & set(environment):
        (tmp_path / "a.routes").write_text(environment[key] + "\n")
        environment[key] = str(tmp_path / "a.routes")
    code = (
        f"import os, numpy as np, anyop\nx, routes = np.ones(3), os.environ.get('routes')\n{call}"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, env={**os.environ, "ANYOP_LOG_DISPATCH": "1", **environment},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "relu on cpu:0: " + runs in ran.stderr and "flaggems is not there" not in ran.stderr
    if not runs:
        assert "flaggems serves cuda, and the tensors are on cpu" in ran.stderr


def test_nothing_is_imported_before_it_is_needed():
    """Names of both backends are known in a process that has neither; torch is not imported for that."""
    code = """
import json, sys, anyop
assert {"flaggems", "flaggems_c"} <= set(anyop.backends("rms_norm"))
anyop.use("flaggems")
assert not {"torch", "flag_gems", "triton"} & set(sys.modules), "imported"
from anyop._load import core
from anyop.backend import flaggems, flaggems_c
kernel = next(k for k in anyop.metadata("silu")["kernels"] if k["form"] == "aten")
sys.modules["flag_gems"] = None
print(json.dumps([flaggems.resolve("silu", kernel, f) for f in
                  (flaggems.python_functions, flaggems_c.compiled_functions)]))
"""
    environment = {k: v for k, v in os.environ.items() if k != "FLAGGEMS_DIR"}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert ran.returncode == 0, ran.stderr
    python, compiled = json.loads(ran.stdout)
    assert python == "needs flag_gems, which is not installed (pip install flag_gems)"
    assert compiled == "needs FLAGGEMS_DIR, which is not set"


# ---- the compiled library ----

WITH_LIBRARY = """
import os, sys, torch, numpy as np, anyop
from functools import partial
from anyop._load import core
from anyop.backend import flaggems, flaggems_c
def kernel(op):
    return next(k for k in anyop.metadata(op)["kernels"] if k["form"] == "aten")
for op in ("relu", "rms_norm"):
    resolver = partial(flaggems.resolve, op, kernel(op), flaggems_c.compiled_functions)
    core.register_python(op, "stand_in", "stand_in", "test", None, 1, -60, False, resolver)
x = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
w = np.linspace(-1, 1, 8, dtype=np.float32)
plain = anyop.relu(x), anyop.rms_norm(x, w, eps=1e-3)
os.environ["ANYOP_FALLBACK"] = "error"
with anyop.use("stand_in"):
    assert anyop.explain("relu", x).chosen == "stand_in", anyop.explain("relu", x)
    found = anyop.relu(x), anyop.rms_norm(x, w, eps=1e-3)
for one, other in zip(found, plain):
    assert np.abs(one - other).max() < 1e-6
print(flaggems.resolve("silu", kernel("silu"), flaggems_c.compiled_functions))
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_the_compiled_library(tmp_path):
    """Laid out as FlagGems installs it; FLAGGEMS_DIR is the folder of its CMake configuration."""
    folder = tmp_path / "flag_gems" / "lib" / "cmake" / "FlagGems"
    folder.mkdir(parents=True)
    at_torch = Path(torch.__file__).parent / "lib"
    target = tmp_path / "flag_gems" / "c_operators.cpython.so"
    command = [
        "gcc",
        "-shared",
        "-fPIC",
        LIBRARY,
        "-o",
        target,
        f"-L{at_torch}",
        "-ltorch_cpu",
        "-lm",
    ]
    subprocess.run(command, check=True)
    ran = prepared.run(
        "torch",
        [sys.executable, "-c", WITH_LIBRARY],
        env={**os.environ, "FLAGGEMS_DIR": str(folder)},
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "FlagGems has no silu"  # one with other arguments is none


def test_a_folder_without_the_library(tmp_path, monkeypatch):
    monkeypatch.setenv("FLAGGEMS_DIR", str(tmp_path / "a" / "b" / "c" / "d" / "e"))
    found = flaggems.resolve("silu", kernel_of("silu"), flaggems_c.compiled_functions)
    assert found.startswith("FLAGGEMS_DIR is ") and "no c_operators*.so there" in found
