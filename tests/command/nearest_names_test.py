# SPDX-License-Identifier: Apache-2.0
"""Every place where a name is looked up answers with the nearest one that is known: in Python, in torch's and in ATen's
names, in variables and route files, on the command line.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import anyop
import numpy as np
import pytest
from anyop import testing
from anyop.command import commands, main

X = np.ones((2, 3), np.float32)
W = np.ones(3, np.float32)

# A look-up of a misspelt name, the error's class, and what it must propose.
IN_PYTHON = {
    "function": (lambda: anyop.rms_nrom, AttributeError, "rms_norm"),
    "function of the package": (lambda: anyop.load_rotues, AttributeError, "load_routes"),
    "package": (lambda: anyop.torhc, AttributeError, "torch"),
    "namespace": (lambda: anyop.ops.anyopp, AttributeError, "anyop"),
    "of a namespace": (lambda: anyop.ops.anyop.rms_nrom, AttributeError, "rms_norm"),
    "namespace of list_ops": (lambda: anyop.list_ops("anyopp"), ValueError, "anyop"),
    "schema": (lambda: anyop.schema("rms_nrom"), ValueError, "rms_norm"),
    "schema, with its namespace": (lambda: anyop.schema("anyop.toppk"), ValueError, "anyop.topk"),
    "schema, in torch's words": (lambda: anyop.schema("anyop::toppk"), ValueError, "anyop.topk"),
    "metadata": (lambda: anyop.metadata("rms_nrom"), ValueError, "rms_norm"),
    "backends": (lambda: anyop.backends("rms_nrom"), ValueError, "rms_norm"),
    "explain": (lambda: anyop.explain("rms_nrom", X), ValueError, "rms_norm"),
    "observe": (lambda: testing.observe("rms_nrom"), ValueError, "rms_norm"),
    "kernel_calls": (lambda: testing.kernel_calls("rms_nrom"), ValueError, "rms_norm"),
    "argument": (lambda: anyop.rms_norm(X, wieght=W), TypeError, "weight"),
    "dtype": (lambda: anyop.cast(X, "flaot64"), TypeError, "float64"),
    "backend of use": (lambda: anyop.use("tritn"), ValueError, "triton"),
    "operator of use": (lambda: anyop.use("cpu", ops="rms_nrom"), ValueError, "rms_norm"),
    "preset": (lambda: anyop.load_routes("tritno"), ValueError, "triton"),
    "register": (lambda: anyop.register("rms_nrom", "a", max), ValueError, "rms_norm"),
    "framework of register": (
        lambda: anyop.register("relu", "a", max, framework="numyp"), ValueError, "numpy",
    ),
    "device of register": (
        lambda: anyop.register("relu", "a", max, device="cdua"), ValueError, "cuda",
    ),
    "dtype of register": (
        lambda: anyop.register("relu", "a", lambda x: x, dtypes=["flaot32"]), ValueError, "float32",
    ),
    "unregister": (lambda: anyop.unregister("rms_nrom", "a"), ValueError, "rms_norm"),
    "implementation": (lambda: anyop.unregister("relu", "flaggmes"), ValueError, "flaggems"),
}  # fmt: skip


def says(error: pytest.ExceptionInfo, near: str) -> bool:
    return f"did you mean '{near}'?" in str(error.value)


@pytest.mark.parametrize("place", IN_PYTHON)
def test_in_python(place):
    look_up, kind, near = IN_PYTHON[place]
    with pytest.raises(kind) as error:
        look_up()
    assert says(error, near), error.value


def test_names_that_tools_ask_for_are_plain():
    """hasattr is cheap, and no module hides behind a proposal."""
    assert not hasattr(anyop, "__wrapped__") and not hasattr(anyop.ops, "__wrapped__")
    assert getattr(anyop.ops, "no_such_space", None) is None
    with pytest.raises(AttributeError, match="no operators of a namespace 'nobodys' are loaded"):
        _ = anyop.ops.nobodys.x


PACKAGES = {
    "testing.obsreve": "did you mean 'observe'?", "testing.rms_norm": "it is anyop.rms_norm",
    "tune.merged_": "did you mean 'merged'?", "torch.rplace": "did you mean 'replace'?",
    "torch.atention": "did you mean 'attention'?", "torch.flashinfr": "did you mean 'flashinfer'?",
    "torch.rms_norm": "it is anyop.rms_norm", "jax.slow_cal": "did you mean 'slow_call'?",
    "jax.softmax": "it is anyop.softmax", "paddle.slow_cal": "did you mean 'slow_call'?",
    "paddle.softmax": "it is anyop.softmax",
}  # fmt: skip


@pytest.mark.parametrize("place", PACKAGES)
def test_in_packages(place):
    package, name = place.split(".")
    pytest.importorskip(package if package in ("torch", "jax", "paddle") else "anyop")
    module = importlib.import_module(f"anyop.{package}")
    with pytest.raises(AttributeError) as error:
        getattr(module, name)
    assert (
        str(error.value) == f"module 'anyop.{package}' has no attribute '{name}'; {PACKAGES[place]}"
    )
    assert not hasattr(module, "__wrapped__") and not hasattr(module, "_slow_cal")


def test_python_proposes_nothing_more():
    text = "import anyop\nanyop.lod"
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert ran.stderr.endswith("has no attribute 'lod'; did you mean 'load'?\n"), ran.stderr


def test_modules_of_anyop_torch_that_nobody_imported():
    pytest.importorskip("torch", reason="torch is not installed")
    text = "import anyop.torch\nanyop.torch.deep_gemm"
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert ran.stderr.endswith("has no attribute 'deep_gemm': import anyop.torch.deep_gemm\n")


# ---- torch ----


def test_in_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import anyop.torch
    from anyop.torch import overload_backends

    x, w = torch.ones(2, 3), torch.ones(3)
    call = torch.ops.anyop.rms_norm
    grad = x.clone().requires_grad_()
    compiled = torch.compile(lambda x: call(x, w, use="atne"), backend="eager")
    mistakes = {
        "use=": (lambda: call(x, w, use="atne"), "aten"),
        "use= in upper case": (lambda: call(x, w, use="ATEN"), "aten"),
        "the pattern of use=": (lambda: call(x, w, use="aten=rms_nrom"), "rms_norm"),
        "use= with a gradient": (lambda: call(grad, w, use="atne"), "aten"),
        "use= of out": (lambda: call.out(x, w, out=torch.empty(2, 3), use="atne"), "aten"),
        "use= in torch.compile": (lambda: compiled(x), "aten"),
        "an overlay": (lambda: anyop.torch.overlay("adddmm"), "addmm"),
        "an overload of an overlay": (lambda: anyop.torch.overlay("add.Tensro"), "add.Tensor"),
        "an overload to register": (
            lambda: overload_backends.register("add.Tensro", max), "add.Tensor",
        ),
    }  # fmt: skip
    for place, (look_up, near) in mistakes.items():
        with pytest.raises(ValueError) as error:
            look_up()
        assert says(error, near), (place, error.value)
    aten = {
        "operator": (lambda: anyop.aten.softmx, "softmax"),
        "overload": (lambda: anyop.aten.add.Tensro, "add.Tensor"),
    }
    for place, (look_up, near) in aten.items():
        with pytest.raises(AttributeError) as error:
            look_up()
        assert says(error, near), (place, error.value)
    assert torch.equal(call(x, w, use="aten"), call(x, w))  # a right name is no mistake


# ---- variables ----


@pytest.mark.parametrize(
    ("variable", "value", "near"),
    [
        ("ANYOP_OP_RELU", "tritn", "triton"),
        ("ANYOP_OP_RMS_NROM", "cpu", "ANYOP_OP_RMS_NORM"),
        ("ANYOP_DISABLE", "flaggmes", "flaggems"),
        ("ANYOP_ROUTES", "tritno", "triton"),
    ],
)
def test_in_variables(variable, value, near):
    ran = subprocess.run(
        [sys.executable, "-c", "import anyop"],
        capture_output=True, text=True, env={**os.environ, variable: value},
    )  # fmt: skip
    assert f"did you mean '{near}'?" in ran.stderr


# ---- the command line ----

ON_THE_COMMAND_LINE = [
    (["explian"], "explain"),
    (["--vresion"], "--version"),
    (["explain", "rms_nrom"], "rms_norm"),
    (["explain", "rms_nrom: D=8"], "rms_norm"),
    (["explain", "topk: kk=a D=8"], "k"),
    (["explain", "rms_norm: D=8 dytpe=float32"], "dtype"),
    (["explain", "rms_norm: D=8 dtype=flaot32"], "float32"),
    (["explain", "rms_norm", "--device", "cdua"], "cuda"),
    (["explain", "rms_norm", "--use", "tritn"], "triton"),
    (["explain", "rms_norm", "--routes", "tritno"], "triton"),
    (["explain", "--devcie", "cpu"], "--device"),
    (["list", "--namespcae", "anyop"], "--namespace"),
    (["list", "--namespace", "anyopp"], "anyop"),
    (["routes", "shwo"], "show"),
    (["routes", "show", "--op", "rms_nrom"], "rms_norm"),
    (["routes", "show", "--deivce", "cpu"], "--device"),
    (["routes", "diff", "cpu", "cdua"], "cuda"),
    (["tune", "rms_nrom: D=8"], "rms_norm"),
    (["tune", "--bench", "--ops", "rms_nrom"], "rms_norm"),
    (["tune", "--bench", "--backends", "tritn"], "triton"),
    (["tune", "--bench", "--device", "cudaa"], "cuda"),
    (["aten", "shwo"], "show"),
    (["cache", "verfy"], "verify"),
    (["device-check", "host", "--only", "copys"], "copies"),
]


@pytest.mark.parametrize(
    ("words", "near"), ON_THE_COMMAND_LINE, ids=[" ".join(w) for w, _ in ON_THE_COMMAND_LINE]
)
def test_on_the_command_line(words, near, capfd):
    if words[0] == "aten":
        pytest.importorskip("torch", reason="torch is not installed")
    code = main(words)
    anyop.load_routes(None)  # a command's process ends with its routes
    shown = "".join(capfd.readouterr())
    assert code in (1, 2) and "Traceback" not in shown
    assert f"did you mean '{near}'?" in shown


@pytest.mark.parametrize("command", commands())
def test_an_option_of_every_command(command, capsys):
    """--helpp stands for all options: each command has --help."""
    assert main([command, "--helpp"]) == 2
    assert "unknown option '--helpp'; did you mean '--help'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "framework"),
    [("jax", "jax"), ("paddle", "paddle"), ("testing", ""), ("tune", ""), ("torch.apex", "torch")],
)
def test_dir_shows_what_users_call(module, framework):
    """And not the modules that a package is made of; tests/models/torch_replace_test.py asks anyop.torch."""
    if framework:
        pytest.importorskip(framework, reason=f"{framework} is not installed")
    package = importlib.import_module(f"anyop.{module}")
    shown = [name for name in dir(package) if not name.startswith("_")]
    assert shown == sorted(set(package.__all__) - {"slow_call"})
    assert all(hasattr(package, name) for name in dir(package))
