# SPDX-License-Identifier: Apache-2.0
"""Autograd on the device: hooks, higher orders, transforms, side streams, threads; and torch's own device beside it."""

from __future__ import annotations

import threading

import pytest
from slow_stream import sleep

torch = pytest.importorskip("torch", reason="torch is not installed")
F = torch.nn.functional
pytestmark = [pytest.mark.anyplatform, pytest.mark.usefixtures("platform")]


def loss_of(x, w):
    return F.gelu(x @ w).square().mean()


def gradient(device, stream=None):
    x, w = torch.randn(16, 16).to(device), torch.randn(16, 16).to(device).requires_grad_()
    if stream is None:
        loss_of(x, w).backward()
        return w.grad
    stream.wait_stream(torch.get_device_module(device).current_stream())
    with torch.get_device_module(device).stream(stream):
        loss_of(x, w).backward()
    torch.get_device_module(device).current_stream().wait_stream(stream)
    return w.grad


def test_gradients(same):
    assert same(gradient).device == torch.device("anyop:0")


def test_backward_on_a_side_stream(same, inner):
    def on_side(device):
        return gradient(
            device, None if device == "cpu" else torch.get_device_module(device).Stream()
        )

    same(on_side)


def test_forward_on_one_stream_and_backward_on_another(same):
    def across(device):
        x, w = torch.randn(16, 16).to(device), torch.randn(16, 16).to(device).requires_grad_()
        if device == "cpu":
            loss_of(x, w).backward()
            return w.grad
        module = torch.get_device_module(device)
        side = module.Stream()
        side.wait_stream(module.current_stream())
        with module.stream(side):
            sleep(50) if device == "anyop" else None
            loss = loss_of(x, w)
        loss.backward()
        module.current_stream().wait_stream(side)
        return w.grad

    same(across)


@pytest.mark.host
def test_torchs_own_device_still_trains():
    """Once ours is loaded, forward and backward of the other go on."""
    torch.manual_seed(0)
    expected = gradient("anyop")
    torch.manual_seed(0)
    assert torch.equal(gradient("cpu"), expected.cpu())


@pytest.mark.cuda
def test_native_cuda_beside_the_device(program):
    """Forward has the device's bits, on side streams too. Backward torch refuses (its issue 161129): loading says so
    once, names the overlay, and a backward that was tried harms nothing. Where a torch can, the warning must go.
    """
    found = program(
        """
F = torch.nn.functional
x, w = torch.randn(16, 16), torch.randn(16, 16)
def loss_on(device, grad):
    return F.gelu(x.to(device) @ w.to(device).requires_grad_(grad)).square().mean()
plain = loss_on("anyop", False).cpu()
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    there = loss_on("cuda", False).cpu()
print("forward", torch.equal(loss_on("cuda", True).detach().cpu(), plain) and torch.equal(there, plain))
try:
    loss_on("cuda", True).backward()
    print("backward works")
except RuntimeError as error:
    print("refused", "opt_ready_stream" in str(error))
loss_on("anyop", True).backward()
print("on", torch.equal(loss_on("cuda", False).cpu(), plain))
""",
        whole=True,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    assert found.stdout.splitlines() == ["forward True", "refused True", "on True"]
    assert found.stderr.count("torch runs no backward of native cuda tensors") == 1
    assert "anyop.torch.overlay" in found.stderr


def test_a_graph_over_two_devices(same, inner):
    def across(device):
        host = torch.randn(8, 8, requires_grad=True)
        w = torch.randn(8, 8).to(device).requires_grad_()
        (host.to(device) @ w).cpu().square().sum().backward()
        assert host.grad.is_cpu
        return host.grad.to(device), w.grad

    same(across)


def test_higher_orders(same):
    def second(device):
        x = torch.randn(6).to(device).requires_grad_()
        (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        second.sum().backward()
        return first, second, x.grad

    same(second)


def test_transforms(same):
    def transformed(device):
        x, w = torch.randn(5, 4).to(device), torch.randn(4, 4).to(device)

        def f(row):
            return torch.tanh(row @ w).sum()

        return (
            torch.func.vmap(torch.func.grad(f))(x),
            torch.func.jacrev(lambda v: torch.tanh(v @ w))(x[0]),
            torch.func.jacfwd(lambda v: torch.tanh(v @ w))(x[0]),
            torch.func.hessian(f)(x[0]),
            torch.func.jvp(f, (x[0],), (x[1],)),
            torch.autograd.functional.jacobian(lambda v: torch.tanh(v @ w), x[0]),
        )

    same(transformed)


def test_gradcheck():
    x = torch.randn(3, 4, device="anyop", dtype=torch.float64, requires_grad=True)
    w = torch.randn(4, 3, device="anyop", dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: F.softmax(a @ b, -1), (x, w))


def test_functions_of_users_and_hooks():
    seen = []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            seen.append((ctx.saved_tensors[0].device, gradient.device))
            return gradient * 2

    x = torch.ones(3, device="anyop", requires_grad=True)
    x.register_hook(lambda g: g + 1)
    x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.device))
    Double.apply(x).sum().backward()
    here = torch.device("anyop:0")
    assert seen == [(here, here), here] and x.grad.tolist() == [3, 3, 3]
    x.grad = None
    with torch.autograd.detect_anomaly(check_nan=False):
        Double.apply(x).sum().backward()
    assert x.grad.tolist() == [3, 3, 3]


def test_saved_tensors_wait_on_the_cpu():
    def run(scope):
        torch.manual_seed(0)
        x = torch.randn(8, 8).to("anyop").requires_grad_()
        with scope:
            found = torch.exp(x @ x).mean()
        found.backward()
        return x.grad

    expected = run(torch.enable_grad())
    for pinned in (False, True):
        scope = torch.autograd.graph.save_on_cpu(pin_memory=pinned, device_type="anyop")
        assert torch.equal(run(scope), expected)


def test_modes():
    x = torch.ones(3, device="anyop", requires_grad=True)
    with torch.no_grad():
        assert not (x * 2).requires_grad
    with torch.inference_mode():
        y = x * 2
    assert y.is_inference() and y.device.type == "anyop" and y.tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="leaf Variable"):
        x.add_(1)
    y, z = x * 1, None
    z = y * y
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_threads_add_to_one_gradient(inner):
    w = torch.ones(8, 8, device="anyop", requires_grad=True)
    x = torch.ones(8, 8, device="anyop")

    def work():
        for _ in range(50):
            (x @ w).sum().backward()

    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert w.grad.device.type == "anyop" and torch.all(w.grad == 8 * 200)


@pytest.mark.usefixtures("two_devices")
def test_two_devices_in_one_graph():
    x = torch.randn(8, 8, device="anyop:0", requires_grad=True)
    w = torch.randn(8, 8, device="anyop:1", requires_grad=True)
    (x.to("anyop:1") @ w).sum().backward()
    assert (x.grad.device.index, w.grad.device.index) == (0, 1)
    ones = torch.ones(8, 8)
    assert torch.allclose(x.grad.cpu(), ones @ w.detach().cpu().T)
    assert torch.allclose(w.grad.cpu(), x.detach().cpu().T @ ones)
