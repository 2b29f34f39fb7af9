# SPDX-License-Identifier: Apache-2.0
"""anyop.torch.overlay: routes for tensors of the CPU, torch's own kernel kept, and off again without a trace."""

from __future__ import annotations

import os
import sys
import threading

import anyop
import prepared
import pytest

pytestmark = pytest.mark.cpu
torch = pytest.importorskip("torch", reason="torch is not installed")
from anyop.torch import overlay  # noqa: E402
from anyop.torch.overlaying import overlaid  # noqa: E402


def dumps(*overloads: str) -> list[str]:
    """All that torch has registered for them, and what it calls for which key."""
    names = [f"aten::{overload}" for overload in overloads]
    dump, table = torch._C._dispatch_dump, torch._C._dispatch_dump_table
    return [show(name) for name in names for show in (dump, table)]


def calls(overload: str) -> dict[str, int]:
    return sys.modules["anyop.torch.overlaying"].calls(overload)


@pytest.fixture
def counted():
    """Counts calls; compare with what was counted before."""
    with overlay("mm", "cpu"):  # loads the library
        torch.ops.anyop_device.count_calls(True)
    yield
    torch.ops.anyop_device.count_calls(False)


def test_routes_and_leaves_no_trace(counted):
    a, b = torch.randn(5, 7), torch.randn(7, 3)
    plain, own = a @ b, anyop.matmul(a, b)
    before = dumps("mm", "add.Tensor", "std.correction")
    with overlay(["mm", "add", "std"], "cpu", route="native, aten"):
        count = calls("mm")["native"]
        assert torch.equal(a @ b, own) and calls("mm")["native"] == count + 1
        assert torch.equal(a + a, anyop.add(a, a))
        assert torch.equal(a.std(), torch.tensor(a.numpy()).std())  # no operator: boxed
        assert dumps("mm", "add.Tensor", "std.correction") != before
    assert dumps("mm", "add.Tensor", "std.correction") == before
    assert torch.equal(a @ b, plain)
    lying = overlay("mm", "cpu", route="none")
    with pytest.raises(NotImplementedError, match="mm: refused by its route"):
        a @ b
    lying.off()
    lying.off()
    assert torch.equal(a @ b, plain) and overlaid() == {}


def test_nested_in_any_order(counted):
    a = torch.randn(4, 4)
    before = dumps("mm")
    outer = overlay("mm", "cpu", route="none")
    inner = overlay(["mm", "relu"], "cpu", route="native")
    assert overlaid()["mm"] == "native"
    assert torch.equal(a @ a, anyop.matmul(a, a))
    outer.off()
    assert overlaid()["mm"] == "native"
    unsaid = overlay("mm", "cpu")  # says nothing: what is said below it stays
    assert overlaid()["mm"] == "native"
    inner.off()
    assert overlaid()["mm"] == "aten"
    unsaid.off()
    assert overlaid() == {} and dumps("mm") == before


def test_follows_rules(tmp_path):
    rules = tmp_path / "a.routes"
    rules.write_text(
        "[when device=cpu]\naten.mm = native\n[when device=cuda]\naten.relu = native\n"
    )
    a = torch.randn(4, 4)
    try:
        anyop.load_routes(rules)
        with overlay(device="cpu"):  # all that rules name
            assert {name.split(".")[0] for name in overlaid()} == {"mm"}
            assert set(overlaid().values()) == {"native"}
            assert torch.equal(a @ a, anyop.matmul(a, a))
            rules.write_text("aten.mm = none\n")
            anyop.load_routes(rules)
            with pytest.raises(NotImplementedError, match=r"a\.routes:1"):
                a @ a
            anyop.load_routes(None)
            assert overlaid()["mm"] == "aten"
    finally:
        anyop.load_routes(None)
    assert overlaid() == {}


def test_wrong_names_change_nothing():
    for ops, device, said in (
        ("linear", "cpu", "made of other overloads"),
        (["mm", "mmm"], "cpu", "no overload of ATen's named 'mmm'"),
        ("mm", "xpu", "'cpu' or 'cuda'"),
        ([], "cpu", "ops is empty"),
    ):
        with pytest.raises(ValueError, match=said):
            overlay(ops, device)
    with pytest.raises(ValueError, match="no backend of ATen's overloads"):
        overlay("mm", "cpu", route="nativ")
    assert overlaid() == {}


def test_autograd_and_compile(counted):
    x, w = torch.randn(4, 6, requires_grad=True), torch.randn(6, 3, requires_grad=True)
    (x @ w).relu().sum().backward()
    expected = [x.grad.clone(), w.grad.clone()]
    for run in (lambda f: f, lambda f: torch.compile(f, backend="aot_eager")):
        x.grad = w.grad = None
        with overlay(["mm", "relu", "threshold_backward"], "cpu", route="native"):
            count = calls("mm")["native"]
            run(lambda: (x @ w).relu().sum())().backward()
            assert calls("mm")["native"] == count + 3
        for found, grad in zip((x.grad, w.grad), expected):
            torch.testing.assert_close(found, grad)


def test_python_backends(counted):
    from anyop.torch.overload_backends import register, unregister

    def more(self, other, *, alpha=1):
        return torch.add(self, other, alpha=alpha) + 100  # add.Tensor inside is torch's own

    register("add.Tensor", more, backend="overlaid_test")
    x = torch.arange(3.0)
    expected = 2 * x + 100
    with overlay("add.Tensor", "cpu", route="overlaid_test, aten"):
        assert torch.equal(x + x, expected)
        unregister("add.Tensor", "overlaid_test")
        assert torch.equal(x + x, 2 * x)


def test_needs_no_device_and_warns_of_nothing():
    """In a process of its own, where every warning is an error and another backend has PrivateUse1."""
    program = """
import warnings
warnings.simplefilter("error")
import torch
torch.utils.rename_privateuse1_backend("other")
import anyop.torch
with anyop.torch.overlay(["mm", "std"], "cpu", route="native, aten"):
    a = torch.ones(2, 2)
    print((a @ a).tolist(), a.std().item(), torch._C._get_privateuse1_backend_name())
anyop.torch.overlay("mm", "cpu", route="native")  # stays on
print((a @ a).tolist())
"""
    done = prepared.run(
        "torch", [sys.executable, "-c", program], timeout=240,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == [
        "[[2.0, 2.0], [2.0, 2.0]] 0.0 other",
        "[[2.0, 2.0], [2.0, 2.0]]",
    ]
    assert "verrid" not in done.stderr


def test_turning_on_and_off_under_calls():
    """Two threads compute while overlays come and go; each result is torch's or the operator's."""
    torch.manual_seed(0)
    a, b = torch.randn(8, 8), torch.randn(8, 8)
    right = [a @ b, anyop.matmul(a, b)]
    stop, wrong, count = threading.Event(), [], [0, 0]

    def work(me: int) -> None:
        while not stop.is_set():
            product = a @ b
            whole = torch.cat([a, b])
            count[me] += 1
            if not any(torch.equal(product, r) for r in right) or whole.shape != (16, 8):
                wrong.append(product)

    threads = [threading.Thread(target=work, args=(me,)) for me in (0, 1)]
    for thread in threads:
        thread.start()
    for turn in range(60):
        with overlay(["mm", "cat", "std"], "cpu", route=("native, aten", "", "aten")[turn % 3]):
            pass
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong and min(count) > 100
