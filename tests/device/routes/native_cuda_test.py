# SPDX-License-Identifier: Apache-2.0
"""The route native on CUDA memory: own kernels of CUDA and Triton run, provably, with the bits of anyop.<op>."""

from __future__ import annotations

import contextlib

import anyop
import pytest
from anyop import testing
from slow_stream import sleep

torch = pytest.importorskip("torch", reason="torch is not installed")
F = torch.nn.functional
pytestmark = [pytest.mark.cuda, pytest.mark.triton, pytest.mark.usefixtures("platform")]

# Overload, operator, its kernels; the call on tensors of the device, and the operator's.
CASES = [
    ("add.Tensor", "add", ("cuda", "triton"), lambda x: x + x, lambda x: anyop.add(x, x)),
    ("silu", "silu", ("triton",), F.silu, anyop.silu),
    ("gelu", "gelu", ("triton",), F.gelu, anyop.gelu),
    ("_softmax", "softmax", ("triton",), lambda x: x.softmax(-1), anyop.softmax),
]
CASES = [(*case[:2], backend, *case[3:]) for case in CASES for backend in case[2]]


@pytest.fixture
def native():
    """Routes an overload natively; afterwards its route is as before."""
    import anyop.torch.device as device

    changed = []

    def route(overload: str) -> None:
        device.set_route(overload, "native")
        changed.append(overload)

    yield route
    for overload in changed:
        torch.ops.anyop_device.set_route(overload, "")


def ran(operator: str) -> dict[str, int]:
    testing.observe(operator)
    return {kernel.backend: kernel.calls or 0 for kernel in testing.kernel_calls(operator)}


@contextlib.contextmanager
def counted(operator: str, backend: str):
    """Inside, calls go there; gives a list that says behind it how often which kernel ran."""
    before, found = ran(operator), {}
    with anyop.use(backend, ops=[operator]):
        yield found
    found.update(
        {k: n - before.get(k, 0) for k, n in ran(operator).items() if n > before.get(k, 0)}
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "overload, operator, backend, call, expected",
    CASES,
    ids=[f"{case[0]}-{case[2]}" for case in CASES],
)
def test_own_kernels_run(native, overload, operator, backend, call, expected, dtype):
    torch.manual_seed(0)
    x = torch.randn(5, 48).to(dtype)
    with counted(operator, backend) as here:
        right = expected(x.cuda())
    if here != {backend: 1}:
        pytest.skip(f"anyop.{operator} has no kernel of {backend} here: {here} ran")
    native(overload)
    with counted(operator, backend) as calls:
        found = call(x.to("anyop"))
    assert calls == {backend: 1}
    assert found.device == torch.device("anyop:0") and torch.equal(found.cpu(), right.cpu())
    torch.testing.assert_close(found.cpu(), call(x.float()).to(dtype))


@pytest.mark.parametrize("backend", ["cuda", "triton"])
def test_they_run_on_the_current_stream(native, backend):
    x, side = torch.zeros(1 << 16, device="anyop"), torch.anyop.Stream()
    native("add.Tensor")
    with anyop.use(backend, ops=["add"]):
        _ = x + x  # loads the kernel, for which CUDA waits
        side.wait_stream(torch.anyop.current_stream())
        with torch.anyop.stream(side):
            sleep(100)
            x.fill_(1)
            found = x + x
    side.synchronize()
    assert found.sum().item() == 2 << 16


@pytest.mark.usefixtures("two_devices")
@pytest.mark.parametrize("backend", ["cuda", "triton"])
def test_they_run_where_the_tensors_are(native, backend):
    native("add.Tensor")
    x = torch.randn(40, device="anyop:1")
    with anyop.use(backend, ops=["add"]):
        found = x + x
    assert found.device.index == 1 and torch.equal(found.cpu(), x.cpu() * 2)
    assert torch.anyop.current_device() == 0


def test_only_own_kernels_may_run(program, tmp_path):
    """With torch's kernels taken away, what has operators runs, and says by which kernels; the rest is refused."""
    (tmp_path / "a.routes").write_text(
        "aten.add.Tensor = native\naten.silu = native\naten._softmax = native\n"
        "add = cuda, triton\nsilu = triton\nsoftmax = triton\n"
    )
    done = program(
        """
import anyop
F = torch.nn.functional
def run(x): return F.softmax(F.silu(x) + x, -1)
x = torch.randn(4, 32)
found = run(x.to("anyop"))
print(found.device, torch.allclose(found.cpu(), run(x), atol=1e-6))
try:
    x.to("anyop").exp()
except NotImplementedError as error:
    print("refused:", error)
""",
        whole=True,
        ANYOP_ROUTES=str(tmp_path / "a.routes"),
        ANYOP_DISABLE="boxed,cpu_fallback",
        ANYOP_FALLBACK="error",
        ANYOP_LOG_DISPATCH="1",
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("anyop:0 True\nrefused: exp"), done.stdout
    for said in (
        "aten.silu on anyop:0: native",
        "silu on anyop:0: triton",
        "softmax on anyop:0: triton",
    ):
        assert said in done.stderr, done.stderr
