# SPDX-License-Identifier: Apache-2.0
"""The ATen glue by itself: lent memory, what keeps it, what may be written, what a result's memory is."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from glue_calls import READ_ONLY, Lent, Refused, call, same

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_views_keep_what_they_see():
    x = X.copy()
    lent = Lent(x)
    view = call("select.int", call("t", lent), 0, 1)
    assert lent.retained == 1, "one result that refers to the memory is left"
    x[0, 1] = 77
    assert view.numpy()[0] == 77
    other = call("view", view, [1, 2])
    view.release()
    assert lent.released == 0
    thread = threading.Thread(target=other.release)
    thread.start()
    thread.join()
    assert lent.released == 1
    plain = Lent(x)
    call("relu", plain)
    call("expand", plain, [2, 3])  # dropped at once
    assert (plain.retained, plain.released) == (1, 1)


def test_arguments_that_are_returned():
    x, out = X.copy(), np.zeros_like(X)
    lent, target = Lent(x), Lent(out)
    returned = call("add_.Tensor", lent, X)
    np.testing.assert_array_equal(x, X * 2)
    assert returned.view()[0].data == x.ctypes.data and lent.retained == 1
    call("add.out", X, X, out=target)
    np.testing.assert_array_equal(out, X * 2)
    assert (target.retained, target.released) == (1, 1)
    lent = Lent(X.copy())
    assert list(call("squeeze_", call("unsqueeze_", lent, 0)).view()[0].shape[:2]) == [2, 3]
    same(call("t_", Lent(X.copy())), X.T)
    same(call("resize_", Lent(X.copy()), [3]), X.ravel()[:3])


def test_sparse_values_keep_their_memory():
    values = Lent(np.ones(2, np.float32))
    sparse = call("sparse_coo_tensor.indices_size", np.array([[0, 2]]), values, [3])
    assert values.retained == 1
    same(call("to_dense", sparse), np.float32([1, 0, 1]))
    with pytest.raises(Refused, match="TypeError: the tensor is sparse"):
        sparse.view()
    sparse.release()
    assert values.released == 1


def test_set_and_failed_calls_keep_the_count():
    lent, source = Lent(X.copy()), Lent(X * 2)
    result = call("set_.source_Tensor", lent, source)
    same(result, X * 2)
    assert (lent.retained, source.retained) == (0, 1)
    result.release()
    assert source.released == 1
    lent = Lent(X.copy())
    with pytest.raises(Refused):
        call("add_.Tensor", lent, np.ones(5, np.float32))
    assert (lent.retained, lent.released) == (0, 0)


def test_read_only_memory():
    lent = Lent(X.copy(), read_only=True)
    view = call("t", lent)
    assert view.view()[1] == READ_ONLY
    assert call("relu", lent).view()[1] == 0
    for target in (lent, view):
        with pytest.raises(Refused, match=r"ValueError: self .*read-only"):
            call("zero_", target)
    with pytest.raises(Refused, match=r"ValueError: out .*read-only"):
        call("add.out", X, X, out=lent)
    np.testing.assert_array_equal(lent.array, X)


@pytest.mark.parametrize("shape", [(5,), (0,), (50,), (3, 2)])
def test_out_is_never_resized(shape: tuple):
    out = Lent(np.zeros(shape, np.float32))
    with pytest.raises(Refused) as caught:
        call("add.out", X, X, out=out)
    assert caught.value.status == "ValueError"
    assert (
        f"out has shape ({', '.join(map(str, shape))})" in caught.value.text
        and "(2, 3)" in caught.value.text
    )
    with pytest.raises(Refused, match=r"ValueError: self has shape .* is not resized"):
        call("resize_", Lent(X.copy()), [100])


def test_what_is_read_is_not_what_is_written():
    x = np.arange(5, dtype=np.float32)
    call("add_.Tensor", x[1:], x[:-1])
    np.testing.assert_array_equal(x, [0, 1, 3, 5, 7])
    with pytest.raises(Refused, match=r"ValueError: self shares memory .* would write both"):
        call("_foreach_mul_.Scalar", [x[:3], x[2:]], -1)
    x[:] = np.arange(5)
    call("add_.Tensor", x, x)
    np.testing.assert_array_equal(x, np.arange(5) * 2)
    even, odd = Lent(x[::2]), Lent(x[1:4:2])
    call("_foreach_mul_.Scalar", [even, odd], -1)
    np.testing.assert_array_equal(x, np.arange(5) * -2)
    parts = call("_foreach_add.ScalarList", [even, odd], [0, 0])
    assert len(parts) == 2 and even.retained == 0
    whole, half = Lent(x), Lent(x[:3])
    kept = call("set_.source_Tensor", half, whole)
    assert (whole.retained, half.retained) == (1, 0)
    del kept
    assert whole.released == 1
    bytes_ = np.arange(16, dtype=np.uint8)
    call("copy_", np.frombuffer(bytes_, np.float32)[1:], bytes_[3:6])
    np.testing.assert_array_equal(np.frombuffer(bytes_, np.float32)[1:], [3, 4, 5])


def test_geometry():
    same(call("clone", Lent(X, row_major=True)), X)
    same(call("clone", Lent(X, shape=(2,), strides=(3,), offset=4)), X[:, 1])
    same(call("clone", np.broadcast_to(X[0], (4, 3))), np.broadcast_to(X[0], (4, 3)))
    same(call("sum", Lent(None, shape=(0, 3), strides=(3, 1))), np.float32(0))
    same(call("clone", np.float32(3)[...]), np.float32(3))


def test_views_of_lazy_tensors():
    z = torch.tensor([1 + 2j, 3 - 1j])
    same(call("conj", z), z.conj().resolve_conj())
    same(call("imag", call("conj", z)), z.conj().imag.resolve_neg())
    zero = call("_efficientzerotensor", [2, 3], dtype=torch.float32)
    same(zero, np.zeros((2, 3), np.float32))
    for made in (
        torch.ones(2, device="meta"),
        torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.quint8),
    ):
        with pytest.raises(Refused, match="TypeError: the tensor is "):
            call("alias", made).view()


def test_meta_memory_gives_shapes():
    made = call("mm", *(Lent(None, shape=s, strides=(s[1], 1), device=0) for s in ((2, 3), (3, 4))))
    with pytest.raises(Refused, match="TypeError: the tensor is a meta tensor"):
        made.view()
    with pytest.raises(Refused, match="TypeError: the tensor is a meta tensor"):
        call("zeros", [2], device=torch.device("meta")).view()
    out = Lent(X, device=0)
    with pytest.raises(Refused):  # of two devices
        call("add.Tensor", out, X)


def _resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def test_many_calls_leave_nothing():
    x = np.ones((64, 64), np.float32)

    def work(count: int) -> None:
        lent = Lent(x)
        for i in range(count):
            view = call("t", lent)
            call("_foreach_add.Scalar", [lent, view], 1)
            if i % 10 == 0:
                with pytest.raises(Refused):
                    call("mm", lent, X)
            del view
        assert lent.retained == lent.released == count

    work(2000)
    before = _resident_mb()
    work(20000)  # a leak of one result's memory each would be 320 MB
    assert _resident_mb() - before < 8
