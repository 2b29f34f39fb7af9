# SPDX-License-Identifier: Apache-2.0
"""Values that are no good arguments: numbers out of range, odd texts and lists, objects that raise or lie."""

from __future__ import annotations

import anyop.aten as aten
import numpy as np
import torch
from hazards_case import CLEAR, case, refuses, right_or_refused
from numpy.testing import assert_array_equal

X = np.arange(4, dtype=np.float32)


@case
def no_integers():
    for odd in (float("inf"), float("nan"), 1.5, "1", None, [0], object(), 1j, b"0", np.float32(1)):
        refuses(lambda odd=odd: aten.select(X, 0, odd))
        refuses(lambda odd=odd: aten.flip(X, [odd]))


@case
def integers_beyond_int64():
    for huge in (1 << 63, -(1 << 63) - 1, 1 << 70, 1 << 4000, np.uint64(1 << 63)):
        refuses(lambda huge=huge: aten.select(X, 0, huge))
        refuses(lambda huge=huge: aten.sum(X, [huge]))
        refuses(lambda huge=huge: aten.empty([huge]))
    assert_array_equal(aten.add(np.zeros(1, np.int64), (1 << 63) - 1), [(1 << 63) - 1])
    assert_array_equal(aten.add(np.zeros(1, np.int64), -(1 << 63)), [-(1 << 63)])


@case
def integers_as_scalars():
    for huge in (1 << 70, -(1 << 4000)):
        refuses(lambda huge=huge: aten.add(X, huge))
        refuses(lambda huge=huge: aten.full([2], huge))
        refuses(lambda huge=huge: aten.add(X, X, alpha=huge))


@case
def numbers_that_do_not_fit_the_dtype():
    refuses(lambda: aten.fill_(np.zeros(2, np.int64), 1j))
    refuses(lambda: aten.fill_(X.copy(), 1j))
    refuses(lambda: aten.add(np.zeros(2, np.int64), 1, alpha=0.5))
    refuses(lambda: aten.add_(np.zeros(2, np.int64), 0.5))
    assert_array_equal(aten.add(np.zeros(2, np.int64), 0.5), [0.5, 0.5])


@case
def special_floats_are_kept():
    assert_array_equal(aten.full([2], float("inf")), [np.inf] * 2)
    assert_array_equal(aten.full([1], float("nan")), [np.nan])
    assert_array_equal(aten.clamp(X, float("-inf"), 2.0), X.clip(max=2))
    assert np.signbit(aten.full([1], -0.0))[0]


@case
def texts():
    for odd in ("floor\0", "floor\0x", "", "FLOOR", "\ud800", "floor" * 10**6, b"floor", 3):
        refuses(lambda odd=odd: aten.div(X, 2, rounding_mode=odd))
    for odd in ("float32\0", "\0", "", "float", "floaty", "\ud800", "torch.", "x" * 10**6):
        if odd != "float":
            refuses(lambda odd=odd: aten.ones([2], dtype=odd))
    for odd in ("cpu\0", "", "cpu:", "cpu:x", "cpu:99999999999999999999", "nowhere", "cuda:-2"):
        refuses(lambda odd=odd: aten.ones([2], device=odd))


@case
def names_of_operators():
    for odd in ("", ".", "add.", ".Tensor", "add\0", "add.Tensor\0", "nope", "add.nope", "\ud800"):
        refuses(lambda odd=odd: aten.call(odd, X, 1), *CLEAR, AttributeError, LookupError)
    refuses(lambda: aten.call("x" * 10**6), *CLEAR, AttributeError, LookupError)
    refuses(lambda: aten.call(), *CLEAR)
    refuses(lambda: aten.call(3, X), *CLEAR, AttributeError, LookupError)


@case
def counts_of_arguments():
    for call in (
        lambda: aten.add(),
        lambda: aten.add(X),
        lambda: aten.add(X, 1, 1, 1, 1),
        lambda: aten.add(X, 1, beta=2),
        lambda: aten.add(X, 1, other=2),
        lambda: aten.add(X, other=1, self=X),
        lambda: aten.relu(X, **{"\ud800": 1}),
        lambda: aten.relu(*[X] * 1000),
        lambda: aten.relu(X, **{f"k{i}": i for i in range(1000)}),
    ):
        refuses(call, TypeError)


@case
def lists_of_wrong_lengths():
    image, kernel = np.ones((1, 1, 4, 4), np.float32), np.ones((1, 1, 2, 2), np.float32)
    refuses(lambda: aten.convolution(image, kernel, None, [1, 1, 1], [0], [1], False, [0], 1))
    refuses(lambda: aten.max_pool2d_with_indices(image, [2, 2, 2]))
    refuses(lambda: aten.max_pool2d_with_indices(image, []))
    refuses(lambda: aten.permute(X, [0, 1]))
    refuses(lambda: aten.upsample_nearest2d(image, [2]))
    refuses(lambda: aten.cat([]))
    refuses(lambda: aten.native_layer_norm_backward(X, X, [4], X, X, None, None, [True]))
    refuses(lambda: aten.reshape(X, [1] * 10**5))


@case
def lists_of_odd_things():
    inside: list = [X]
    inside.append(inside)
    for odd in (
        inside,
        [None],
        [X, 1],
        [[X]],
        {"a": X},
        {1, 2},
        iter([X]),
        "ab",
        [X, torch.ones(4)],
    ):
        refuses(lambda odd=odd: aten.cat(odd), TypeError)
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    refuses(lambda: aten.cat(deep))
    refuses(lambda: aten.flip(X, deep))
    while deep:  # Python itself would end them by recursion
        deep = deep[0]


class Vanishes:
    """Empties the list that it is in when it is asked for its memory."""

    def __init__(self, held):
        self.held = held

    def __dlpack_device__(self):
        self.held.clear()
        return (1, 0)

    def __dlpack__(self, **_):
        self.held.clear()
        return np.ones(4, np.float32).__dlpack__()

    def __index__(self):
        self.held.clear()
        return 0


@case
def lists_that_change_meanwhile():
    for make in (lambda held: aten.cat(held), lambda held: aten.flip(X, held)):
        held: list = []
        held += [Vanishes(held), Vanishes(held), *([X] * 50)]
        try:
            make(held)
        except CLEAR as error:
            assert str(error)


@case
def mixed_frameworks():
    for pair in ((X, torch.ones(4)), (torch.ones(4), X)):
        refuses(lambda pair=pair: aten.add(*pair), TypeError)
        refuses(lambda pair=pair: aten.cat(list(pair)), TypeError)
    refuses(lambda: aten.add(X, 1, out=torch.ones(4)), TypeError)


@case
def odd_generators():
    seen = torch.get_rng_state()
    for odd in ("x", object(), np.random.default_rng(0), 1.5, [1], X, 1 << 70, torch.ones(1)):
        refuses(lambda odd=odd: aten.rand([2], generator=odd))
    assert_array_equal(aten.rand([2], generator=7), aten.rand([2], generator=7))
    own = torch.Generator().manual_seed(7)
    assert_array_equal(aten.rand([2], generator=own), aten.rand([2], generator=7))
    assert not np.array_equal(aten.rand([2], generator=own), aten.rand([2], generator=7))
    assert torch.equal(seen, torch.get_rng_state())


def lending(lends, device=(1, 0)):
    def asked(self):
        return device() if callable(device) else device

    return type("Odd", (), {"__dlpack__": lambda self, **_: lends(), "__dlpack_device__": asked})()


def raises(error):
    raise error


@case
def objects_that_lie_about_their_memory():
    used = np.ones(2).__dlpack__()
    torch.from_dlpack(used)
    for lends in (lambda: None, lambda: 5, lambda: "x", lambda: X, lambda: used, lambda: object()):
        refuses(lambda lends=lends: aten.add(lending(lends), 1))
    for device in (None, (), (1,), "cpu", (1.5, 0), (1 << 70, 0), (2, 0), (77, 0), (-1, -5)):
        odd = lending(lambda: np.ones(2).__dlpack__(), device)  # what is lent says where it is, too
        right_or_refused(lambda odd=odd: aten.add(odd, 1), [2, 2])


@case
def objects_that_raise():
    for error in (
        KeyError("mine"),
        ZeroDivisionError("mine"),
        MemoryError("mine"),
        SystemExit("mine"),
    ):
        odd = lending(lambda error=error: raises(error))
        refuses(lambda odd=odd: aten.add(odd, 1), type(error), says="mine")
        odd = lending(lambda: None, lambda error=error: raises(error))
        refuses(lambda odd=odd: aten.add(odd, 1), type(error), TypeError)
    refuses(
        lambda: aten.add(lending(lambda: raises(KeyboardInterrupt("mine"))), 1), KeyboardInterrupt
    )

    class Number:
        def __index__(self):
            raise ZeroDivisionError("mine")

        __float__ = __int__ = __bool__ = __index__

    refuses(lambda: aten.select(X, 0, Number()), ZeroDivisionError, TypeError)
    refuses(lambda: aten.add(X, Number()), ZeroDivisionError, TypeError)


@case
def odd_subclasses():
    class Loud(np.ndarray):
        def __array_finalize__(self, held):
            if held is not None and type(held) is Loud:
                raise ZeroDivisionError("mine")

    loud = np.ndarray.__new__(Loud, (4,), np.float32, np.ones(4, np.float32))
    try:
        assert_array_equal(np.asarray(aten.add(loud, 1)), np.full(4, 2))
    except ZeroDivisionError as error:
        assert str(error) == "mine"
    masked = np.ma.masked_array(X, [1, 0, 0, 0])
    right_or_refused(lambda: np.asarray(aten.add(masked, 1)), X + 1)


@case
def numbers_where_tensors_are_due():
    assert_array_equal(aten.add(X, 2), X + 2)
    for odd in ("x", None, object(), [1.0], {}, type, aten.add):
        refuses(lambda odd=odd: aten.relu(odd), TypeError, NotImplementedError)
        refuses(lambda odd=odd: aten.mm(odd, odd), TypeError, NotImplementedError)


@case
def what_torch_refuses():
    refuses(lambda: aten.mm(X.reshape(2, 2), np.ones((3, 3), np.float32)), RuntimeError, ValueError)
    refuses(lambda: aten.select(X, 0, 9), IndexError)
    refuses(lambda: aten.select(X, 5, 0), IndexError)
    refuses(lambda: aten.index(X, [np.array([9])]), IndexError)
    refuses(lambda: aten.linalg_inv_ex(np.ones((2, 3), np.float32)), RuntimeError)
    refuses(lambda: aten.gather(X, 0, np.array([99])), RuntimeError, IndexError)
    refuses(lambda: aten.embedding(X.reshape(2, 2), np.array([7])), IndexError, RuntimeError)
    refuses(lambda: aten.bincount(np.array([-1])))


@case
def no_memory():
    refuses(lambda: aten.empty([1 << 60], dtype="uint8"), MemoryError, RuntimeError)
    refuses(lambda: aten.zeros([1 << 50]), MemoryError, RuntimeError)
    assert_array_equal(aten.zeros([2]), [0, 0])


@case
def likes():
    for odd in ("nothing", "", "numpy\0", 3, object(), ["numpy"]):
        refuses(lambda odd=odd: aten.ones([2], like=odd))
    assert isinstance(aten.ones([2]), np.ndarray)
    assert isinstance(aten.ones([2], like="torch"), torch.Tensor)
    assert isinstance(aten.ones([2], like=torch.ones(1)), torch.Tensor)
