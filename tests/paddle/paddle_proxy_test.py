# SPDX-License-Identifier: Apache-2.0
"""Under Paddle's torch proxy, in several orders of import, beside PyTorch: each tensor stays what it is."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

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
ORDERS = {
    "anyop,paddle,proxy": {},
    "paddle,proxy,anyop.torch": {},
    "torch,anyop.torch,paddle,proxy": {},
    "paddle,scope,anyop.torch": {},
    "paddle,proxy,anyop.torch,forced": {"ANYOP_FRAMEWORK": "torch"},
    "no torch,paddle,proxy,anyop.torch": {},
    "paddle,anyop.torch,wrong": {"ANYOP_FRAMEWORK": "tensorflow"},
}
PADDLE_HAS_NONE = "ImportError: anyop.torch.nn is for PyTorch, and torch is Paddle here"


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scoped")
    (folder / "scoped_package.py").write_text(PACKAGE)

    def run(item):
        order, extra = item
        steps = ",".join(s for s in order.split(",") if s not in ("forced", "wrong"))
        path = f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        first, command = steps.split(",")[0], [sys.executable, "-c", PROGRAM, steps]
        ready = functools.partial(prepared.run, first)
        return order, (ready if first in ("paddle", "torch") else subprocess.run)(
            command,
            env=os.environ | {"PYTHONPATH": path} | extra,
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    with ThreadPoolExecutor(2) as pool:
        return dict(pool.map(run, ORDERS.items()))


def answered(answers, order):
    done = answers[order]
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("order", [o for o in ORDERS if "proxy" in o and "no torch" not in o])
def test_each_tensor_stays_what_it_is(answers, order):
    found = answered(answers, order)
    assert found["paddle"] == "paddle" and found["named torch"] == "paddle"
    assert found["torch"] == "torch" and found["torch out"] == "1"
    expected = "TypeError: rms_norm: weight is a torch.Tensor, expected a paddle.Tensor"
    assert found["mixed"].startswith(expected)


def test_what_anyop_torch_means(answers):
    """What was imported before the proxy stays PyTorch's; after it, it is Paddle's unless forced."""
    modules = {order: answered(answers, order)["modules"] for order in list(ORDERS)[:6]}
    assert modules["anyop,paddle,proxy"].startswith(PADDLE_HAS_NONE)
    assert modules["paddle,proxy,anyop.torch"].startswith(PADDLE_HAS_NONE)
    assert modules["no torch,paddle,proxy,anyop.torch"].startswith(PADDLE_HAS_NONE)
    for order in ("torch,anyop.torch,paddle,proxy", "paddle,proxy,anyop.torch,forced"):
        assert modules[order].startswith("torch.nn"), order
        assert answered(answers, order)["later"].startswith("torch.nn"), order


def test_dir_is_no_error(answers):
    assert answered(answers, "paddle,proxy,anyop.torch")["listed"] == "[]"
    assert "nn" in answered(answers, "paddle,proxy,anyop.torch,forced")["listed"]


def test_a_proxy_for_one_package(answers):
    found = answered(answers, "paddle,scope,anyop.torch")
    assert found["scoped"] == "paddle" and found["named torch"] == "torch"
    assert found["torch"] == "torch" and found["modules"].startswith("torch.nn")


def test_without_torch(answers):
    found = answered(answers, "no torch,paddle,proxy,anyop.torch")
    assert found["paddle"] == "paddle" and found["named torch"] == "paddle"
    assert "torch" not in found


def test_a_wrong_value_is_said(answers):
    done = answers["paddle,anyop.torch,wrong"]
    assert done.returncode == 1
    assert "ImportError: ANYOP_FRAMEWORK is 'tensorflow', expected torch or paddle" in done.stderr
