# SPDX-License-Identifier: Apache-2.0
"""Under Paddle's torch proxy, in several orders of import, beside PyTorch: each tensor stays what it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import prepared
import pytest

pytest.importorskip("paddle", reason="PaddlePaddle is not installed")
pytest.importorskip("torch", reason="torch is not installed")

# Steps in the order that argv gives, then the questions; a process of its own for each order.
PROGRAM = """
import importlib, json, sys, warnings
warnings.filterwarnings("ignore")
steps = sys.argv[1].split(",")
for step in steps:
    if step == "proxy":
        paddle.compat.enable_torch_proxy(silent=True)
    elif step == "scope":
        paddle.enable_compat(scope={"scoped_package"})
    elif step == "no torch":
        class Block:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] == "torch":
                    raise ModuleNotFoundError("No module named 'torch'", name="torch")
        sys.meta_path.insert(0, Block())
    elif step == "anyop.torch":
        import anyop
        adapter = importlib.import_module("anyop.torch")
    else:
        globals()[step] = importlib.import_module(step)
import anyop, paddle
from anyop import _frameworks
answers = {}

def ask(name, function):
    try:
        answers[name] = str(function())
    except Exception as error:
        answers[name] = f"{type(error).__name__}: {error}"

def gradient_of(framework, x, weight):
    result = anyop.rms_norm(x, weight)
    result.sum().backward()
    assert x.grad is not None and weight.grad is not None
    return type(result).__module__

def paddles():
    x, weight = paddle.randn([4, 8]), paddle.ones([8])
    x.stop_gradient = weight.stop_gradient = False
    return gradient_of(paddle, x, weight)

def named_torch():
    import torch
    return type(anyop.rms_norm(torch.ones(4, 8), torch.ones(8))).__module__

def torchs():
    torch = _frameworks.real_torch()
    x, weight = torch.ones(4, 8, requires_grad=True), torch.ones(8, requires_grad=True)
    result = anyop.rms_norm(x, weight)
    # PyTorch's own backward imports parts of torch, and under the proxy gets Paddle's.
    with paddle.compat.use_torch_proxy_guard(enable=False):
        result.sum().backward()
    assert x.grad is not None and weight.grad is not None
    return type(result).__module__

def torch_out():
    torch = _frameworks.real_torch()
    y = torch.ones(4, 8)
    version = y._version
    anyop.relu(torch.ones(4, 8), out=y)
    return y._version - version

def mixed():
    return anyop.rms_norm(paddle.ones([4, 8]), _frameworks.real_torch().ones(8))

def modules():
    from anyop.torch import nn
    return nn.Linear.__mro__[1].__module__

def later():
    from anyop.torch import attention
    return attention.torch.nn.Linear.__module__

def listed():
    return [name for name in dir(importlib.import_module("anyop.torch")) if name[0] != "_"]

def scoped():
    import scoped_package
    return scoped_package.result

ask("paddle", paddles)
ask("named torch", named_torch)
if _frameworks.real_torch() is not None:
    ask("torch", torchs)
    ask("torch out", torch_out)
    ask("mixed", mixed)
ask("modules", modules)
ask("later", later)
ask("listed", listed)
if "scope" in steps:
    ask("scoped", scoped)
print(json.dumps(answers))
"""
PACKAGE = """
import torch
import anyop
result = type(anyop.rms_norm(torch.ones([4, 8]), torch.ones([8]))).__module__
"""
NO_MODULES = "ImportError: anyop.torch.nn is for PyTorch, and torch is Paddle here"
EACH = {
    "paddle": "paddle", "named torch": "paddle", "torch": "torch", "torch out": "1",
    "mixed": "TypeError: rms_norm: weight is a torch.Tensor, expected a paddle.Tensor",
}  # fmt: skip
# What each answer begins with. What was imported before the proxy stays PyTorch's; after it, it is Paddle's unless
# forced. dir() is no error.
ORDERS = {
    "anyop,paddle,proxy": EACH | {"modules": NO_MODULES},
    "paddle,proxy,anyop.torch": EACH | {"modules": NO_MODULES, "listed": "[]"},
    "torch,anyop.torch,paddle,proxy": EACH | {"modules": "torch.nn", "later": "torch.nn"},
    "paddle,proxy,anyop.torch,forced": EACH | {"modules": "torch.nn", "later": "torch.nn"},
    "paddle,scope,anyop.torch": {
        "scoped": "paddle", "named torch": "torch", "torch": "torch", "modules": "torch.nn"
    },
    "no torch,paddle,proxy,anyop.torch": {
        "paddle": "paddle", "named torch": "paddle", "modules": NO_MODULES
    },
}  # fmt: skip


def run(order: str, folder: Path, **extra: str) -> subprocess.CompletedProcess:
    steps = ",".join(step for step in order.split(",") if step != "forced")
    first, command = steps.split(",")[0], [sys.executable, "-c", PROGRAM, steps]
    ready = partial(prepared.run, first) if first in ("paddle", "torch") else subprocess.run
    path = f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    environment = os.environ | {"PYTHONPATH": path} | extra
    return ready(command, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("order", ORDERS)
def test_each_tensor_stays_what_it_is(order, tmp_path):
    (tmp_path / "scoped_package.py").write_text(PACKAGE)
    done = run(order, tmp_path, **({"ANYOP_FRAMEWORK": "torch"} if "forced" in order else {}))
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for what, begin in ORDERS[order].items():
        assert found[what].startswith(begin), (what, found[what])
    assert ("torch" in found) == ("no torch" not in order)
    assert "nn" in found["listed"] or "forced" not in order


def test_a_wrong_value_is_said(tmp_path):
    done = run("paddle,anyop.torch", tmp_path, ANYOP_FRAMEWORK="tensorflow")
    assert done.returncode == 1
    assert "ImportError: ANYOP_FRAMEWORK is 'tensorflow', expected torch or paddle" in done.stderr
