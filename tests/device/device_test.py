# SPDX-License-Identifier: Apache-2.0
"""Devices: how many, which is current, and where tensors and results lie."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.anyplatform, pytest.mark.usefixtures("platform")]
two_devices = pytest.mark.usefixtures("two_devices")


def test_the_module():
    assert torch.get_device_module("anyop") is torch.anyop
    assert torch.anyop.is_available() and torch.anyop.device_count() >= 1
    assert torch.anyop.current_device() == 0
    torch.anyop.init()
    assert torch.anyop.is_initialized()
    name, found = torch.anyop.get_device_name(0), torch.anyop.get_device_properties(0)
    assert name and found.name == name and found.total_memory > 0


@pytest.mark.host
def test_the_host_platform_has_two_devices():
    assert torch.anyop.device_count() == 2
    assert torch.accelerator.current_accelerator() == torch.device("anyop")
    assert torch.accelerator.device_count() == 2


def test_tensors_say_their_device():
    x = torch.ones(2, device="anyop")
    assert x.is_anyop and not x.is_cpu and not x.is_cuda
    assert x.device == torch.device("anyop", 0) and x.get_device() == 0
    assert "device='anyop:0'" in repr(x)
    assert torch.ones(2).anyop().device == x.device == x.to("anyop").device
    assert x.to("anyop") is x and x.cpu().device.type == "cpu"
    assert torch.nn.Linear(2, 2).anyop().weight.is_anyop
    assert x.type() == "torch.anyop.FloatTensor"


@pytest.mark.parametrize("place", ["anyop:99", "anyop:-3", "anyop:50"])
def test_a_device_that_is_not_there(place):
    with pytest.raises((RuntimeError, ValueError), match=r"anyop|index|ordinal|device"):
        torch.ones(2, device=place)
    assert torch.ones(2, device="anyop").sum().item() == 2
    with pytest.raises((RuntimeError, ValueError, AssertionError)):
        torch.anyop.set_device(99)
    assert torch.anyop.current_device() == 0


@two_devices
def test_the_current_device():
    assert torch.empty(1, device="anyop").device.index == 0
    with torch.anyop.device(1):
        assert torch.anyop.current_device() == 1
        assert torch.empty(1, device="anyop").device.index == 1
        with torch.anyop.device("anyop:0"):
            assert torch.empty(1, device="anyop").device.index == 0
        assert torch.anyop.current_device() == 1
    assert torch.anyop.current_device() == 0
    with pytest.raises(ValueError), torch.anyop.device(1):
        raise ValueError
    assert torch.anyop.current_device() == 0
    with torch.anyop.device(None):
        assert torch.anyop.current_device() == 0
    try:
        torch.anyop.set_device("anyop:1")
        assert torch.ones(1).anyop().device.index == 1
        assert torch.accelerator.current_device_index() == 1
    finally:
        torch.anyop.set_device(0)


@two_devices
def test_the_current_device_is_a_threads_own():
    found = {}

    def work(index):
        torch.anyop.set_device(index)
        found[index] = [torch.ones(2, device="anyop").device.index for _ in range(20)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert found == {0: [0] * 20, 1: [1] * 20} and torch.anyop.current_device() == 0


@two_devices
def test_results_lie_where_operands_do():
    x = torch.randn(4, 4, device="anyop:1")
    results = [
        x + 1,
        x @ x,
        x.T,
        x.sum(),
        x[0],
        torch.cat([x, x]),
        torch.zeros_like(x),
        x.new_ones(3),
    ]
    results += [x.sort()[0], x.nonzero(), x.to(torch.float64), x > 0, torch.empty_like(x)]
    assert {found.device for found in results} == {torch.device("anyop:1")}
    assert torch.anyop.current_device() == 0, "an operator leaves the current device"


@two_devices
def test_copies_between_devices():
    x = torch.randn(5, 7, device="anyop:0")
    y = x.to("anyop:1")
    assert y.device.index == 1 and torch.equal(x.cpu(), y.cpu())
    y.zero_()
    y.T.copy_(x.T.double())  # other strides, another dtype
    assert torch.equal(x.cpu(), y.cpu())
    z = torch.empty(7, 5).to("anyop:1").copy_(x.T, non_blocking=True)
    assert torch.equal(z.cpu(), x.cpu().T)


def test_scopes_of_torch():
    with torch.device("anyop"):
        assert torch.ones(2).is_anyop and torch.nn.Linear(2, 2).bias.is_anyop
        assert torch.arange(3).is_anyop and torch.tensor([1.0]).is_anyop
    assert torch.ones(2).is_cpu
    torch.set_default_device("anyop")
    try:
        assert torch.randn(3).is_anyop
    finally:
        torch.set_default_device(None)
        vars(torch._GLOBAL_DEVICE_CONTEXT).clear()  # whose None torch 2.9 asks for its device
    assert torch.ones(2).is_cpu


def test_meta_and_skipped_initialisation():
    with torch.device("meta"):
        layer = torch.nn.Linear(3, 3)
    layer = layer.to_empty(device="anyop")
    torch.nn.init.ones_(layer.weight)
    assert layer.weight.is_anyop and layer.weight.sum().item() == 9
    skipped = torch.nn.utils.skip_init(torch.nn.Linear, 3, 3, device="anyop")
    assert skipped.weight.is_anyop
