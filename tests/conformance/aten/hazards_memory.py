# SPDX-License-Identifier: Apache-2.0
"""Memory that an operator must not be given as it is: odd strides, sizes, dtypes, overlaps, read-only arrays."""

from __future__ import annotations

import ctypes

import anyop.aten as aten
import numpy as np
import torch
from hazards_case import case, refuses, right_or_refused
from numpy.lib.stride_tricks import as_strided
from numpy.testing import assert_array_equal


def ramp(*shape: int, dtype=np.float32) -> np.ndarray:
    return np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)


@case
def negative_strides():
    x = ramp(3, 4)
    for turned in (x[::-1], x[:, ::-1], x[::-1, ::-1], x[::2, ::-3], ramp(7)[::-2]):
        assert_array_equal(aten.add(turned, 1), turned + 1)
        assert_array_equal(aten.sum(turned), turned.sum())
        assert_array_equal(aten.cat([turned, turned]), np.concatenate([turned, turned]))


@case
def negative_strides_of_views_and_of_written():
    x = ramp(3, 4)
    right_or_refused(lambda: aten.t(x[::-1]), x[::-1].T)
    right_or_refused(lambda: aten.detach(x[::-1]), x[::-1])
    before = x.copy()
    refuses(lambda: aten.add_(x[::-1], 1), ValueError, says="strid")
    refuses(lambda: aten.add(before, 1, out=x[::-1]), ValueError, says="strid")
    assert_array_equal(x, before)


@case
def zero_tensors():
    zero = torch._efficientzerotensor(3)
    assert torch.equal(aten.add(zero, torch.ones(3)), torch.ones(3))
    assert_array_equal(aten._efficientzerotensor([3], like="numpy"), np.zeros(3, np.float32))
    held = aten._efficientzerotensor([2, 2], like="aten")
    assert_array_equal(np.from_dlpack(held), np.zeros((2, 2), np.float32))


@case
def lazy_conjugates_and_negatives():
    x = ramp(3).astype(np.complex64) * (1 + 2j)
    assert_array_equal(aten.conj(x), x.conj())
    assert_array_equal(aten._neg_view(ramp(3)), -ramp(3))
    assert_array_equal(aten.imag(aten.conj(x)), -x.imag)


@case
def sparse_results():
    refuses(lambda: aten.to_sparse(np.eye(3, dtype=np.float32)), TypeError, says="(?i)sparse")
    there = torch.eye(3).to_sparse()
    assert torch.equal(aten.add(there, there).to_dense(), 2 * torch.eye(3))


@case
def quantized_results():
    refuses(lambda: aten.quantize_per_tensor(ramp(3), 0.1, 0, torch.qint8), TypeError)
    q = torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.qint8)
    assert torch.equal(aten.dequantize(q), torch.ones(3))


@case
def nested_results():
    refuses(lambda: aten._nested_tensor_from_tensor_list([ramp(2), ramp(3)]))
    held = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    assert aten.clone(held).is_nested


@case
def meta_tensors():
    assert aten.add(torch.ones(2, device="meta"), 1).is_meta
    refuses(lambda: aten.empty([2, 3], device="meta", like="numpy"))


@case
def huge_sizes():
    wide = as_strided(np.ones(1, np.float32), (1 << 30, 1 << 30), (0, 0))
    assert aten.t(wide).shape == (1 << 30, 1 << 30)
    refuses(lambda: aten.add(wide, 1))
    refuses(lambda: aten.empty([1 << 60]))
    refuses(lambda: aten.empty([1 << 40, 1 << 40]))
    refuses(lambda: aten.zeros([1 << 62, 4]))
    refuses(lambda: aten.empty([-1]))
    refuses(lambda: aten.repeat(ramp(2), [1 << 61]))
    assert_array_equal(aten.add(ramp(2), 1), ramp(2) + 1)


@case
def as_strided_out_of_bounds():
    x = ramp(4)
    refuses(lambda: aten.as_strided(x, [2], [1], 3))
    refuses(lambda: aten.as_strided(x, [1 << 40, 1 << 40], [1, 1]))
    refuses(lambda: aten.as_strided(x, [2], [1 << 62]))
    refuses(lambda: aten.as_strided(x, [2], [-1], 1))
    refuses(lambda: aten.as_strided(x[::2], [4], [1]))  # behind the last element that was lent
    assert_array_equal(aten.as_strided(x, [2, 2], [1, 2]), [[0, 2], [1, 3]])


@case
def nothing_and_no_dimension():
    assert_array_equal(aten.add(np.zeros((0, 3)), 1), np.zeros((0, 3)))
    assert aten.sum(np.zeros((0,))) == 0 and isinstance(aten.sum(np.zeros(3)), np.ndarray)
    assert_array_equal(aten.add(np.array(2.5), np.array(1.0)), np.array(3.5))
    refuses(lambda: aten.max(np.zeros((0,))))


@case
def many_dimensions():
    deep = np.ones((1,) * 64, np.float32)
    right_or_refused(lambda: aten.add(deep, 1), deep + 1)
    refuses(lambda: aten.unsqueeze(deep, 0))  # 65: more than NumPy has
    refuses(lambda: aten.reshape(np.ones(1), [1] * 500))


@case
def byte_orders():
    refuses(lambda: aten.add(np.ones(3, ">f4"), 1), TypeError, says="byte order|dtype|>f4|f4")
    refuses(lambda: aten.add(np.ones(3, np.float32), 1, out=np.ones(3, ">f4")))


@case
def misaligned():
    raw = bytearray(4 * 4 + 1)
    x = np.frombuffer(raw, np.float32, 4, offset=1)
    x[:] = ramp(4)
    right_or_refused(lambda: aten.add(x, 1), ramp(4) + 1)
    right_or_refused(lambda: aten.add(np.zeros(4, np.float32), x), ramp(4))


@case
def dtypes_that_torch_has_not():
    for odd in (
        np.array([object()]),
        np.zeros(2, "i4,f4"),
        np.zeros(2, "M8[s]"),
        np.zeros(2, "m8[s]"),
        np.array(["a", "bc"]),
        np.array([b"a"]),
        np.zeros(2, np.longdouble),
        np.zeros(2, np.clongdouble),
        np.zeros(2, "V4"),
    ):
        refuses(lambda odd=odd: aten.add(odd, 1), TypeError, says="dtype")
        refuses(lambda odd=odd: aten.cat([odd, odd]), TypeError)


@case
def read_only_memory():
    x = ramp(3)
    fixed = x.copy()
    fixed.flags.writeable = False
    for call in (
        lambda: aten.add_(fixed, 1),
        lambda: aten.add(x, 1, out=fixed),
        lambda: aten.zero_(fixed),
        lambda: aten.fill_(fixed, 2),
        lambda: aten.index_put_(fixed, [np.array([0])], np.float32(3)),
        lambda: aten._foreach_add_([x.copy(), fixed], 1),
        lambda: aten.max(x.reshape(1, 3), 0, max=fixed, max_values=np.zeros(3, np.int64)),
    ):
        refuses(call, ValueError, TypeError)
        assert_array_equal(fixed, x)
    view = aten.view(fixed, [3, 1])
    assert not view.flags.writeable
    assert not aten.split(fixed, 1)[0].flags.writeable
    assert_array_equal(aten.add(fixed, 1), x + 1)


@case
def statistics_that_schemas_do_not_mark():
    x, mean, var = ramp(4, 3), np.zeros(3, np.float32), np.ones(3, np.float32)
    mean.flags.writeable = False
    refuses(lambda: aten.native_batch_norm(x, None, None, mean, var, True, 0.1, 1e-5), ValueError)
    assert_array_equal(mean, np.zeros(3))
    aten.native_batch_norm(x, None, None, mean, var, False, 0.1, 1e-5)
    refuses(lambda: aten.native_batch_norm(x, None, None, var, var, True, 0.1, 1e-5), says="both")
    aten.native_batch_norm(x, None, None, var, var, False, 0.1, 1e-5)
    own = x.copy()  # its last row is the statistics
    found = aten.native_batch_norm(own, None, None, own[3], var, True, 0.1, 1e-5)
    assert_array_equal(
        found[0], aten.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)[0]
    )


@case
def jax_is_immutable():
    import jax.numpy as jnp

    x = jnp.arange(3.0)
    for call in (
        lambda: aten.add_(x, 1),
        lambda: aten.add(x, 1, out=x),
        lambda: aten.zero_(x),
        lambda: aten._foreach_add_([x], 1),
    ):
        refuses(call)
        assert_array_equal(np.asarray(x), [0, 1, 2])


@case
def outputs_that_overlap_themselves():
    x = as_strided(np.zeros(1, np.float32), (4,), (0,))
    refuses(lambda: aten.add_(x, 1))
    refuses(lambda: aten.add(ramp(4), 1, out=x))


@case
def outputs_that_overlap_inputs():
    """Torch sees by its storages that memory overlaps; from here each array has a storage of its own."""
    x = ramp(6)
    assert_array_equal(aten.add(x, 1, out=x), ramp(6) + 1)
    for call, expected in (
        (lambda x: aten.add(x[:-1], 1, out=x[1:]), ramp(5) + 1),
        (lambda x: aten.add(x[1:], 1, out=x[:-1]), ramp(6)[1:] + 1),
        (lambda x: aten.mul_(x[1:], x[:-1]), ramp(6)[1:] * ramp(5)),
        (lambda x: aten.copy_(x[1:], x[:-1]), ramp(5)),
        (lambda x: aten.copy_(x[:-1], x[1:]), ramp(6)[1:]),
        (lambda x: aten.cumsum(x[:-1], 0, out=x[1:]), ramp(5).cumsum()),
        (lambda x: aten.cat([x[:3], x[3:]], out=x), ramp(6)),
        (lambda x: aten.cat([x[3:], x[:3]], out=x), [3, 4, 5, 0, 1, 2]),
        (lambda x: aten.flip(x, [0], out=x), ramp(6)[::-1]),
        (
            lambda x: aten.mm(x[:4].reshape(2, 2), x[:4].reshape(2, 2), out=x[:4].reshape(2, 2)),
            [[2, 3], [6, 11]],
        ),
        (
            lambda x: aten.sort(x, 0, True, values=x, indices=np.zeros(6, np.int64))[0],
            ramp(6)[::-1],
        ),
        (lambda x: aten.index_select(x, 0, np.array([5, 4, 3, 2, 1, 0]), out=x), ramp(6)[::-1]),
        (
            lambda x: aten.transpose_copy(x[:4].reshape(2, 2), 0, 1, out=x[:4].reshape(2, 2)),
            [[0, 2], [1, 3]],
        ),
        (lambda x: aten.add_(x[:4].reshape(2, 2), x[:4].reshape(2, 2).T), [[0, 3], [3, 6]]),
    ):
        right_or_refused(lambda call=call: call(ramp(6)), expected)


@case
def outputs_of_another_shape_or_dtype():
    # A larger one is refused, too, but torch may have written its first elements by then.
    refuses(lambda: aten.add(ramp(3), 1, out=np.zeros((3, 3), np.float32)), says="shape")
    for wrong in (np.zeros(2, np.float32), np.zeros(0, np.float32)):
        before = wrong.copy()
        refuses(lambda wrong=wrong: aten.add(ramp(3), 1, out=wrong), says="shape|size|resiz")
        assert_array_equal(wrong, before)
    refuses(lambda: aten.add(ramp(3), 1, out=np.zeros(3, np.int64)))
    right_or_refused(lambda: aten.add(ramp(3), 1, out=np.zeros(3)), ramp(3) + 1)
    turned = np.zeros((2, 2), np.float32).T
    assert aten.mm(ramp(2, 2), ramp(2, 2), out=turned) is turned
    assert_array_equal(turned, ramp(2, 2) @ ramp(2, 2))


@case
def resized_and_replaced_arguments():
    x = ramp(4)
    refuses(lambda: aten.resize_(x, [100]))
    assert_array_equal(aten.resize_(x, [2, 2]), [[0, 1], [2, 3]])
    assert x.shape == (4,)
    other = ramp(3) + 5
    right_or_refused(lambda: aten.set_(x, other), other)
    right_or_refused(lambda: aten.resize_as_(x, ramp(2)), ramp(2))
    assert_array_equal(x, ramp(4))
    refuses(lambda: aten.set_(x, other, 1, [100], [1]))


@case
def view_operators_in_place():
    x = ramp(2, 3)
    assert_array_equal(aten.t_(x), ramp(2, 3).T)
    assert x.shape == (2, 3)
    one = ramp(1, 3)
    assert aten.squeeze_(one).shape == (3,) and aten.unsqueeze_(x, 0).shape == (1, 2, 3)
    assert aten.transpose_(x, 0, 1).shape == (3, 2) and aten.as_strided_(x, [2], [1]).shape == (2,)
    found = aten.t_(x)
    found[0, 1] = 70
    assert x[1, 0] == 70  # the result is a view of the argument


@case
def views_outlive_their_base():
    held = [aten.view(ramp(64, 64), [4096]) for _ in range(50)]
    parts = aten.split(ramp(100), 10)
    assert all((view == ramp(4096)).all() for view in held)
    assert_array_equal(np.concatenate(parts), ramp(100))
    nested = aten.select(aten.t(aten.view(ramp(6), [2, 3])), 0, 1)
    assert_array_equal(nested, [1, 4])


class Shape(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("device_type", ctypes.c_int32))
    _fields_ += (("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8))
    _fields_ += (("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p))
    _fields_ += (("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64))
    _fields_ += (("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class Lends:
    """Lends whatever it is told to, by DLPack."""

    def __init__(self, shape, strides=None, data=0, bits=32, code=2, lanes=1, device=1, offset=0):
        self.sizes = (ctypes.c_int64 * max(1, len(shape)))(*shape)
        self.steps = strides and (ctypes.c_int64 * len(strides))(*strides)
        self.memory = (ctypes.c_float * 16)(*range(16))
        data = ctypes.addressof(self.memory) if data == "memory" else data
        steps = ctypes.addressof(self.steps) if strides else 0
        self.lent = Shape(data, device, 0, len(shape), code, bits, lanes)
        self.lent.shape, self.lent.strides = ctypes.addressof(self.sizes), steps
        self.lent.byte_offset, self.device = offset, device

    def __dlpack_device__(self):
        return (self.device, 0)

    def __dlpack__(self, **_):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p] * 3
        return new(ctypes.addressof(self.lent), NAME, None)


NAME = ctypes.cast(ctypes.c_char_p(b"dltensor"), ctypes.c_void_p)


@case
def lent_without_memory():
    refuses(lambda: aten.add(Lends([4]), 1))
    assert tuple(aten.add(Lends([0]), 1).shape) == (0,)


@case
def lent_with_impossible_sizes():
    for shape, strides in (
        ([1 << 62, 4], None),
        ([1 << 40, 1 << 40], [1, 1]),
        ([-1], None),
        ([2], [1 << 62]),
        ([2, 2], [-(1 << 62), 1]),
        ([2], [-1]),
    ):
        refuses(lambda a=shape, b=strides: aten.add(Lends(a, b, "memory"), 1))


@case
def lent_with_impossible_types():
    for odd in (
        {"bits": 0},
        {"bits": 7},
        {"code": 99},
        {"lanes": 4},
        {"bits": 255},
        {"device": 77},
    ):
        refuses(lambda odd=odd: aten.add(Lends([2], None, "memory", **odd), 1))


@case
def lent_with_many_dimensions():
    for count in (65, 200, 1000):
        right_or_refused(lambda n=count: aten.sum(Lends([1] * n, None, "memory")), 0)
