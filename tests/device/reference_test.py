# SPDX-License-Identifier: Apache-2.0
"""References from a process without the device (reference.py): the fixture `same` as on CUDA, on every platform."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.anyplatform, pytest.mark.usefixtures("platform")]


@pytest.fixture
def apart() -> bool:
    return True


def test_results_come_from_a_process_without_the_device(same):
    def run(device):
        assert (device == "anyop") == ("anyop.torch.device" in sys.modules)
        return torch.zeros(2).to(device)

    assert same(run).device == torch.device("anyop:0")


@pytest.mark.parametrize("name", ["plain", "with a blank", "a/b::c"])
def test_several_calls_and_names(same, name):
    for power in (1, 2, 3):
        same(lambda device, power=power: torch.randn(5).to(device) ** power)
    found = same(lambda device: (torch.tensor([1 + 2j]).to(device).conj(), name, torch.Size([2])))
    assert found[0].is_conj() and found[1:] == (name, (2,))


def test_gradients(same):
    def run(device):
        x = torch.randn(6).to(device).requires_grad_()
        y = (x**3).view(2, 3)
        y.sum().backward()
        return {"x": x, "y": y, "of": [y.device, x.dtype], "grad": x.grad}

    found = same(run)
    assert found["y"].requires_grad and found["grad"].device.type == "anyop"


@pytest.mark.parametrize("wrong", ["value", "dtype", "number of results"])
def test_a_difference_is_noticed(same, wrong):
    def run(device):
        ours = device == "anyop"
        x = torch.ones(3, dtype=torch.float64 if ours and wrong == "dtype" else None)
        x[1] += ours and wrong == "value"
        return [x.to(device)] * (2 if ours and wrong == "number of results" else 1)

    with pytest.raises(AssertionError, match=r"other values|dtype is|2 results"):
        same(run)


def test_an_error_there_is_told(same):
    def run(device):
        if device != "anyop":
            raise KeyError("not on this device")
        return torch.ones(2, device=device)

    with pytest.raises(AssertionError, match=r"(?s)no result of torch's own device.*not on this"):
        same(run)
