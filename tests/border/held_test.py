# SPDX-License-Identifier: Apache-2.0
"""Calls with a handle (anyop.hold): what changed since the call before is noticed; results are those of plain calls."""

from __future__ import annotations

import threading

import anyop
import numpy as np
import pytest

N = 20  # more than overlap is judged in pairs of


def arrays(seed: int, count: int = N, dtype=np.float32) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    return [draw.standard_normal((3, k % 4 + 1)).astype(dtype) for k in range(count)]


class Case:
    """A handle of multi_tensor_axpby (out = 2 x + 3 y) that has been called once."""

    def __init__(self, make=lambda arrays: arrays):
        self.make = make
        self.held = anyop.hold(anyop.multi_tensor_axpby)
        self.x, self.y = make(arrays(1)), make(arrays(2))
        self.out = make([np.zeros_like(a) for a in arrays(1)])
        self.two, self.three = make([np.full(1, 2, np.float32), np.full(1, 3, np.float32)])
        self.check()

    def call(self) -> None:
        self.held(self.x, self.y, self.out, self.two, self.three)

    def check(self) -> None:
        self.call()
        for x, y, out in zip(self.x, self.y, self.out, strict=True):
            x, y, out = (np.asarray(a, np.float32) for a in (x, y, out))
            np.testing.assert_allclose(out, 2 * x + 3 * y, rtol=1e-5, atol=1e-5)

    def refused(self, kind, match: str) -> None:
        """Twice: what was refused once leaves nothing behind."""
        before = [np.asarray(out).copy() for out in self.out]
        for _ in range(2):
            with pytest.raises(kind, match=match) as mine:
                self.call()
            with pytest.raises(kind) as plain:
                anyop.multi_tensor_axpby(self.x, self.y, self.out, self.two, self.three)
            if "overlaps" not in match:  # of which any pair may be named
                assert str(mine.value) == str(plain.value)
        for out, kept in zip(self.out, before):
            np.testing.assert_array_equal(np.asarray(out), kept)


@pytest.fixture(params=["numpy", "torch"])
def case(request):
    if request.param == "numpy":
        return Case()
    torch = pytest.importorskip("torch", reason="torch is not installed")
    return Case(lambda found: [torch.from_numpy(a.copy()) for a in found])


def test_the_same_tensors_and_moved_ones(case):
    case.check()
    case.y = case.make(arrays(5))  # all of a list moved
    case.check()
    case.x[3] = case.make(arrays(6))[3]
    case.out[7] = case.make(arrays(6))[7]
    case.check()
    case.two = case.make([np.full(1, 2, np.float32)])[0]
    case.check()
    case.out = case.x = list(case.y)  # now in place
    wanted = [np.asarray(a) * np.float32(5) for a in case.y]
    case.call()
    for out, expected in zip(case.out, wanted):
        np.testing.assert_allclose(np.asarray(out), expected, rtol=1e-5)


def test_other_sizes_of_one_tensor(case):
    case.y[4] = case.make([np.zeros((3, 7), np.float32)])[0]
    case.refused(ValueError, r"y has shape \(3, 7\).*\[element 4\]")
    case.y[4] = case.make(arrays(2))[4]
    case.check()


def test_other_sizes_of_all_lists(case):
    for name in ("x", "y", "out"):
        getattr(case, name)[4] = case.make([np.ones((3, 7), np.float32)])[0]
    case.check()


def test_another_dtype(case):
    case.y[4] = case.make([np.zeros((3, 1), np.int32)])[0]
    case.refused(TypeError, r"y has dtype int32.*\[element 4\]")
    case.y[4] = case.make(arrays(2))[4]
    case.check()
    for name in ("x", "y", "out"):
        getattr(case, name)[4] = case.make([np.ones((3, 1), np.float64)])[0]
    case.check()


def test_lists_of_another_length(case):
    case.y.pop()
    case.refused(ValueError, f"y has {N - 1} tensors, expected {N}")
    case.x.pop(), case.out.pop()
    case.check()


def test_an_overlap_that_was_not_there(case):
    whole = case.make([np.zeros(5, np.float32)])[0]
    case.x[0], case.out[1] = whole[:3].reshape(3, 1), case.out[1]
    case.check()
    case.x[4], case.out[0] = whole[:3].reshape(3, 1), whole[2:].reshape(3, 1)
    case.refused(ValueError, r"out overlaps x in memory \[element 0 of out, element")
    case.out[0] = case.make([np.zeros((3, 1), np.float32)])[0]
    case.check()


def test_a_tensor_twice_in_a_written_list(case):
    case.out[4] = case.out[0]
    case.refused(ValueError, r"out overlaps out in memory \[element")


def test_a_single_tensor_that_came_to_lie_in_a_list(case):
    case.two = case.out[0].reshape(3)[1:2]
    case.refused(ValueError, r"out overlaps a in memory|a overlaps out in memory")


def test_an_address_that_is_no_multiple(case):
    if not isinstance(case.y[0], np.ndarray):
        pytest.skip("torch has no such tensors")
    case.y[4] = np.zeros(13, np.uint8)[1:].view(np.float32).reshape(3, 1)
    case.refused(ValueError, r"y lies at an address that is no multiple.*\[element 4\]")


def test_attributes_are_not_kept():
    p, g, m, v = (arrays(k) for k in range(4))
    v = [np.abs(a) for a in v]
    mine, plain = ([[a.copy() for a in part] for part in (p, m, v)] for _ in range(2))
    held, lr, step = (
        anyop.hold(anyop.multi_tensor_adam),
        np.full(1, 0.1, np.float32),
        np.ones(1, np.float32),
    )
    for decay in (0.0, 0.5, 0.25):
        for call, (q, n, w) in ((held, mine), (anyop.multi_tensor_adam, plain)):
            call(q, g, n, w, lr, step, weight_decay=decay)
    for found, expected in zip(
        [a for part in mine for a in part], [a for part in plain for a in part]
    ):
        np.testing.assert_array_equal(found, expected)


def changes(torch):
    def shrink(t):
        t.untyped_storage().resize_(4)

    def free(t):
        t.untyped_storage().resize_(0)

    def exchange(t):
        t.data = torch.zeros(3, 7)

    return {
        "resize_": (lambda t: t.resize_(3, 7), r"y has shape \(3, 7\).*\[element 4\]"),
        "set_": (lambda t: t.set_(torch.zeros(3, 7)), r"y has shape \(3, 7\).*\[element 4\]"),
        "data": (exchange, r"y has shape \(3, 7\).*\[element 4\]"),
        "shrunk": (shrink, "y is larger than its storage|y has no storage"),
        "freed": (free, "y is larger than its storage|y has no storage"),
    }


@pytest.mark.parametrize("name", ["resize_", "set_", "data", "shrunk", "freed"])
def test_one_tensor_that_changed_underneath(name):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    case = Case(lambda found: [torch.empty(a.shape).copy_(torch.from_numpy(a)) for a in found])
    change, message = changes(torch)[name]
    case.y = [
        torch.ones(y.shape) for y in case.y
    ]  # NumPy saw the others: they keep their size for ever
    case.call()
    change(case.y[4])
    case.refused(ValueError, message)


def test_storage_that_moved_within_one_tensor():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    case = Case(lambda found: [torch.empty(a.shape).copy_(torch.from_numpy(a)) for a in found])
    case.y[4].data = torch.full((3, 1), 7.0)
    case.x[5].set_(torch.full((3, 2), 9.0))
    case.check()


def test_no_tensor_is_kept_alive():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import weakref

    case = Case(lambda found: [torch.empty(a.shape).copy_(torch.from_numpy(a)) for a in found])
    gone = [weakref.ref(t) for t in case.y]
    case.y = None
    assert all(ref() is None for ref in gone)
    case.y = case.make(arrays(2))
    case.check()


def test_threads_with_one_handle():
    held, errors = anyop.hold(anyop.multi_tensor_scale), []
    lists = [[np.full(4099, k, np.float32) for _ in range(N * 4)] for k in range(4)]
    rate = np.full(1, 2, np.float32)

    def work(k):
        out = [np.empty_like(x) for x in lists[k]]
        for _ in range(30):
            held(lists[k], out, rate)
            if not all((o == 2 * k).all() for o in out):
                errors.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_what_cannot_be_held():
    for wrong in (None, len, "relu", anyop.relu):
        with pytest.raises(
            TypeError, match="hold: expected a function of an operator that takes lists"
        ):
            anyop.hold(wrong)
