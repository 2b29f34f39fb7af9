# SPDX-License-Identifier: Apache-2.0
"""anyop's functions, and what holds them, pickled, copied and saved: the same comes back, in another process too."""

import copy
import io
import multiprocessing
import pickle
import sys

import anyop
import numpy as np
import prepared
import pytest

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_function_comes_back_as_itself(protocol):
    for name in anyop.list_ops("anyop"):
        function = getattr(anyop, name)
        assert pickle.loads(pickle.dumps(function, protocol)) is function
        assert copy.copy(function) is function and copy.deepcopy(function) is function
    held = {"act": anyop.relu, "all": [anyop.gelu, anyop.silu]}
    assert pickle.loads(pickle.dumps(held, protocol)) == held == copy.deepcopy(held)
    for error in (anyop.InternalError("a"), anyop.DeviceError("b")):
        found = pickle.loads(pickle.dumps(error, protocol))
        assert type(found) is type(error) and found.args == error.args


def test_in_a_process_that_is_spawned():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert np.array_equal(pool.map(anyop.relu, [X])[0], anyop.relu(X))
        assert np.array_equal(pool.apply(anyop.softmax, (X,), {"dim": 1}), anyop.softmax(X, dim=1))


def test_cloudpickle():
    cloudpickle = pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")
    found = pickle.loads(cloudpickle.dumps(lambda x: anyop.relu(anyop.gelu(x))))
    assert np.array_equal(found(X), anyop.relu(anyop.gelu(X)))


def test_of_another_namespace():
    """An operator of a library that the other process has not loaded: who unpickles it is told."""
    from anyop import _operators

    data = pickle.dumps(anyop.relu).replace(b"\x05anyop\x94", b"\x05acme_\x94")
    assert data != pickle.dumps(anyop.relu)
    with pytest.raises(LookupError, match=r"no operators of acme_ are loaded.*anyop\.load"):
        pickle.loads(data)
    _operators.ops.acme_ = copy.copy(anyop.ops.anyop)
    try:
        assert pickle.loads(data) is anyop.relu
    finally:
        del _operators.ops.acme_


@pytest.fixture
def torch():
    pytest.importorskip("torch", reason="torch is not installed")
    import anyop.torch  # noqa: F401
    import torch

    return torch


class Holder:
    """Of a module's class that a test makes; torch need not be there to import this file."""

    @staticmethod
    def make(torch):
        class Holding(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.act, self.table = anyop.relu, {"gelu": anyop.gelu, "add": anyop.aten.add}

            def forward(self, x):
                return self.table["add"](self.act(x), self.table["gelu"](x))

        Holding.__qualname__ = "Holding"
        globals()["Holding"] = Holding
        return Holding()


def test_modules_that_hold_functions(torch):
    """Modules with anyop's functions as attributes, of anyop.torch.nn, and those that replace put in."""
    from anyop.torch import nn

    replaced = torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
    anyop.torch.replace(replaced, timed=False)
    x = torch.tensor(X)
    for module in (Holder.make(torch), replaced, nn.ReLU(), nn.LayerNorm(4), nn.Softmax(1)):
        expected, file = module(x), io.BytesIO()
        torch.save(module, file)
        file.seek(0)
        for again in (
            torch.load(file, weights_only=False),
            pickle.loads(pickle.dumps(module)),
            copy.copy(module),
            copy.deepcopy(module),
        ):
            assert type(again) is type(module) and torch.equal(again(x), expected)


def test_saved_here_and_loaded_in_another_process(torch, tmp_path):
    path = tmp_path / "act.pt"
    torch.save({"act": anyop.relu, "x": torch.tensor(X)}, path)
    program = (
        f"import torch; d = torch.load({str(path)!r}, weights_only=False); import anyop;"
        "print(d['act'] is anyop.relu, torch.equal(d['act'](d['x']), d['x'].clamp_min(0)))"
    )
    run = prepared.run(
        "torch",
        [sys.executable, "-c", program],
    )
    assert run.stdout == "True True\n", run.stderr
