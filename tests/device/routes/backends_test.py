# SPDX-License-Identifier: Apache-2.0
"""Python functions, Triton's and FlagGems' among them, in the place of overloads on the device."""

from __future__ import annotations

import threading

import pytest

pytestmark = pytest.mark.anyplatform


@pytest.fixture
def device(platform):
    """anyop.torch.device; functions and routes of the test are taken back."""
    import anyop.torch.device
    import torch
    from anyop.torch import overload_backends

    before = dict(overload_backends._functions)
    anyop.torch.device.count_calls()
    yield anyop.torch.device
    anyop.torch.device.count_calls(False)
    for overload, _ in set(overload_backends._functions) - set(before):
        torch.ops.anyop_device.set_route(overload, "")
    overload_backends._functions.clear()
    overload_backends._functions.update(before)


def pair():
    import torch

    return torch.randn(4, 4, device="anyop"), torch.randn(4, 4, device="anyop")


def product_below(x, y):
    """That of the device below, whose bits are not the CPU's."""
    import torch

    return (torch.ops.anyop_device.inner(x) @ torch.ops.anyop_device.inner(y)).cpu()


def test_a_function_serves(device, inner):
    """On tensors of the inner device over the same memory; its result is the device's."""
    import torch

    x, y = pair()
    seen = []

    @device.register("mm", backend="mine")
    def mine(self, mat2):
        seen.append(
            (self.device.type, torch.ops.anyop_device.inner(x).data_ptr() == self.data_ptr())
        )
        return self * 2 + mat2

    device.set_route("mm", "mine, aten")
    count = device.calls("mm")["other"]
    found = x @ y
    assert seen == [(inner, True)] and device.calls("mm")["other"] == count + 1
    assert found.device.type == "anyop" and torch.equal(found, x * 2 + y)
    assert device.route("mm") == "mine,aten" and device.backend_available("mine")
    assert not device.backend_available("yours")


def test_anyop_register_serves_overloads(device):
    import anyop
    import torch

    x, y = pair()
    anyop.register("aten.mm", "mine", lambda self, mat2: self * 7 + mat2)
    device.set_route("mm", "mine, boxed")  # aten's other name
    assert torch.equal(x @ y, x * 7 + y) and device.route("mm") == "mine,aten"
    anyop.unregister("aten.mm", "mine")
    assert torch.equal((x @ y).cpu(), product_below(x, y))
    for mistake in ({"when": "D>3"}, {"framework": "numpy"}, {"priority": 0}):
        with pytest.raises(ValueError, match="takes op, backend and function alone"):
            anyop.register("aten.mm", "mine", torch.mm, **mistake)
    with pytest.raises(ValueError, match=r"overload of ATen's named 'aten\.mmm'"):
        anyop.register("aten.mmm", "mine")(torch.mm)


def test_written_arguments_are_the_callers(device):
    import torch

    device.register("relu_", lambda self: self.fill_(3), backend="mine")
    device.set_route("relu_", "mine")
    x, _ = pair()
    assert x.relu_() is x and torch.equal(x.cpu(), torch.full((4, 4), 3.0))


def test_what_it_does_not_take_and_its_errors(device):
    import torch

    @device.register("mm", backend="mine")
    def floats_alone(self, mat2):
        if self.dtype != torch.float32:
            raise NotImplementedError("floats alone")
        if self.shape[0] == 4:
            raise KeyError("a mistake")
        return torch.zeros(self.shape[0], mat2.shape[1])

    device.set_route("mm", "mine, aten")
    x, y = (t.double() for t in pair())
    assert torch.equal((x @ y).cpu(), product_below(x, y))
    with pytest.raises(KeyError, match="a mistake"):
        x.float() @ y.float()
    device.unregister("mm", "mine")
    assert torch.equal((x @ y).cpu(), product_below(x, y))
    with pytest.raises(ValueError, match="no function serves mm as mine"):
        device.unregister("mm", "mine")


def test_it_may_call_what_it_stands_for(device):
    import torch

    device.register("mm", lambda self, mat2: torch.mm(self, mat2) + 1, backend="mine")
    device.set_route("mm", "mine, aten")
    x, y = pair()
    assert torch.equal((x @ y).cpu(), product_below(x, y) + 1)


def test_gradients_are_atens(device):
    import torch

    device.register("mm", lambda self, mat2: (self[:, :, None] * mat2).sum(1), backend="mine")
    device.set_route("mm", "mine, aten")
    x, y = (t.requires_grad_() for t in pair())
    count = device.calls("mm")["other"]
    (x @ y).square().sum().backward()
    assert device.calls("mm")["other"] == count + 3
    cpu = [t.detach().cpu().requires_grad_() for t in (x, y)]
    (cpu[0] @ cpu[1]).square().sum().backward()
    torch.testing.assert_close(x.grad.cpu(), cpu[0].grad)


def test_replaced_while_other_threads_call(device):
    x, y = pair()
    device.register("mm", lambda self, mat2: self + 0, backend="mine")
    device.set_route("mm", "mine, aten")
    stop, wrong = threading.Event(), []
    right = [x.cpu(), x.cpu() + 1]

    def work():
        while not stop.is_set():
            found = (x @ y).cpu()
            if not any(found.equal(each) for each in right):
                wrong.append(found)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for more in range(200):
        device.register("mm", lambda self, mat2, more=more: self + more % 2, backend="mine")
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    "op, backend, said",
    [
        ("mmm", "mine", "no overload of ATen's named 'mmm'"),
        ("mm.Tensor", "mine", "of that name: mm.default"),
        ("mm", "native", "backend is 'native'"),
        ("mm", "a b", "backend is 'a b'"),
    ],
)
def test_wrong_names(device, op, backend, said):
    with pytest.raises(ValueError, match=said):
        device.register(op, lambda *a: None, backend=backend)


def test_route_files_name_it(device, tmp_path):
    import anyop
    import torch

    device.register("mm", lambda self, mat2: self * 5, backend="mine")
    (tmp_path / "a.routes").write_text("aten.mm = mine, aten\n")
    x, y = pair()
    try:
        anyop.load_routes(tmp_path / "a.routes")
        assert torch.equal(x @ y, x * 5)
    finally:
        anyop.load_routes(None)
    assert not torch.equal(x @ y, x * 5)


def test_flaggems_where_it_is_not_installed(device):
    import importlib.util

    import torch

    if importlib.util.find_spec("flag_gems"):
        pytest.skip("flag_gems is installed")
    x, y = pair()
    device.set_route("mm", "aten")
    expected = x @ y
    device.set_route("mm", "flaggems, aten")
    assert torch.equal(x @ y, expected) and not device.backend_available("flaggems")
    device.set_route("mm", "")


@pytest.mark.triton
@pytest.mark.cuda
def test_triton(device):
    """A kernel of Triton's on the device's memory."""
    triton = pytest.importorskip("triton", reason="triton is not installed")
    import torch
    from triton import language as tl

    @triton.jit
    def add(x, y, out, count, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, at < count) + tl.load(y + at, at < count), at < count)

    @device.register("add.Tensor", backend="triton")
    def triton_add(self, other, *, alpha=1):
        if alpha != 1 or not self.is_contiguous() or self.shape != other.shape:
            raise NotImplementedError("contiguous tensors of one shape alone")
        out = torch.empty_like(self)
        add[(triton.cdiv(out.numel(), 256),)](self, other, out, out.numel(), BLOCK=256)
        return out

    device.set_route("add.Tensor", "triton, aten")
    x, y = pair()
    count = device.calls("add.Tensor")["other"]
    assert torch.equal((x + y).cpu(), x.cpu() + y.cpu())
    assert device.calls("add.Tensor")["other"] == count + 1
