# SPDX-License-Identifier: Apache-2.0
"""Junk tensors of NumPy: layouts, sizes, dtypes, overlaps, subclasses, and DLPack with any field set to anything."""

from __future__ import annotations

import array
import ctypes
import math
import mmap

import numpy as np
from anyop.cases.dtype_choices import NAMES, numpy_dtype
from anyop.testing.dlpack import DlpackArray, NoCapsule, OldDlpackArray, RaisingDlpack
from junk_draft import NOTHING, Draft, Place, Unfit, junk
from numpy.lib.stride_tricks import as_strided

ODD = (
    ">f4", ">f8", ">i8", "S4", "U3", "O", "V8", "M8[s]", "m8[s]", "g", "G", "longlong", "ulonglong",
    [("a", "f4"), ("b", "i8")], ("f4", (2,)),
)  # fmt: skip
EXTENDED = ("int4", "uint4", "float8_e4m3fnuz", "float8_e8m0fnu", "float4_e2m1fn", "int2")


def _changed(draft: Draft, made: np.ndarray) -> object:
    return draft.of(made)


@junk("Tensor")
def other_dtype(draft, place, good):
    name = draft.dice.choice(NAMES)
    with np.errstate(all="ignore"):
        return draft.of(draft.fresh(np.abs(good).astype(numpy_dtype(name))))


@junk("Tensor")
def odd_dtype(draft, place, good):
    return np.zeros(good.shape, draft.dice.choice(ODD))


@junk("Tensor")
def extended_dtype(draft, place, good):
    import ml_dtypes

    name = draft.dice.choice(EXTENDED)
    if not hasattr(ml_dtypes, name):
        raise Unfit
    return np.zeros(good.shape, getattr(ml_dtypes, name))


@junk("Tensor")
def odd_size(draft, place, good):
    if not good.ndim:
        raise Unfit
    shape = list(good.shape)
    at = draft.dice.randrange(good.ndim)
    shape[at] = draft.dice.choice([0, 1, shape[at] + 1, max(shape[at] - 1, 0), shape[at] * 2, 1000])
    return draft.of(
        draft.fresh(np.resize(good, shape) if good.size else np.ones(shape, good.dtype))
    )


@junk("Tensor")
def odd_rank(draft, place, good):
    made = draft.dice.choice(
        [good[None], good[..., None], good.reshape(-1), good.reshape(good.shape + (1,) * 20)]
        + ([good[0], good[..., 0]] if good.ndim and good.size else [])
    )
    return draft.of(draft.fresh(np.array(made)))


@junk("Tensor")
def rank_64(draft, place, good):
    return draft.of(np.zeros((1,) * draft.dice.choice([31, 32, 33, 63, 64]), good.dtype))


@junk("Tensor")
def two_to_40_by_0(draft, place, good):
    """Sizes that are large, of nothing."""
    large = draft.dice.choice([2**31, 2**40, 2**62])
    shape = [large] * min(max(good.ndim, 1), 1) + list(good.shape[1:])
    if len(shape) < 2:
        shape = [0]
    else:
        shape[draft.dice.randrange(1, len(shape))] = 0
    draft.dice.shuffle(shape)
    return draft.of(np.zeros(shape, good.dtype))


@junk("Tensor")
def all_empty(draft, place, good):
    """All arguments with a size 0, and another that is huge."""
    at = draft.dice.randrange(max(good.ndim, 1))
    for name, value in list(draft.arrays.items()):
        if isinstance(value, np.ndarray) and value.ndim == good.ndim and value.ndim > 1:
            shape = list(value.shape)
            shape[at % value.ndim], shape[at % value.ndim - 1] = 2**40, 0
            draft.arguments[name] = draft.of(np.zeros(shape, value.dtype))
    return draft.arguments.get(place.name)


@junk("Tensor")
def empty(draft, place, good):
    return draft.of(np.zeros((0,) * good.ndim, good.dtype))


@junk("Tensor")
def huge_broadcast(draft, place, good):
    """More elements than memory has bytes, all of them one."""
    shape = draft.dice.choice([(2**40,), (2**31, 2**31), (2**20,) * 3, (2**62,)])
    return as_strided(np.ones(1, good.dtype), shape, (0,) * len(shape))


LAYOUTS = {
    "reversed": lambda a: a[::-1],
    "all reversed": lambda a: a[(slice(None, None, -1),) * a.ndim],
    "transposed": lambda a: a.T,
    "Fortran": np.asfortranarray,
    "every second": lambda a: np.repeat(a, 2, -1)[..., ::2],
    "every second row": lambda a: np.repeat(a, 2, 0)[::2],
    "swapped twice": lambda a: np.ascontiguousarray(a.swapaxes(0, -1)).swapaxes(0, -1),
    "stride 0 first": lambda a: np.broadcast_to(a[:1], a.shape),
    "stride 0 last": lambda a: np.broadcast_to(a[..., :1], a.shape),
    "stride 0": lambda a: np.broadcast_to(a[(slice(0, 1),) * a.ndim], a.shape),
    "windows": lambda a: as_strided(a, a.shape, (a.itemsize,) * a.ndim),
    "wide": lambda a: np.concatenate([a, a], -1)[..., : a.shape[-1]],
}


@junk("Tensor")
def layout(draft, place, good):
    if not good.ndim or not good.size:
        raise Unfit
    name = draft.dice.choice(list(LAYOUTS))
    draft.note(name)
    made = LAYOUTS[name](draft.fresh(good))
    return draft.of(made)


@junk("Tensor")
def misaligned(draft, place, good):
    memory = np.zeros(good.nbytes + 16, np.uint8)
    made = np.ndarray(good.shape, good.dtype, memory.data, draft.dice.choice([1, 2, 3, 5]))
    made[...] = good
    return made


@junk("Tensor")
def odd_strides(draft, place, good):
    """Strides that are no multiple of an element; elements that reach over each other."""
    if good.ndim == 0 or not good.size:
        raise Unfit
    memory = np.zeros(good.nbytes * 4 + 64, np.uint8)
    item = good.itemsize
    strides = tuple(draft.dice.choice([1, item - 1, item + 1, item]) for _ in good.shape)
    need = sum((n - 1) * abs(s) for n, s in zip(good.shape, strides)) + item
    if need > memory.size:
        raise Unfit
    return as_strided(memory[:item].view(good.dtype)[0:1].reshape(()), good.shape, strides)


@junk("Tensor")
def read_only(draft, place, good):
    made = draft.fresh(good)
    made.flags.writeable = False
    return draft.of(made) if draft.bridge.name == "numpy" else made


class Plain(np.ndarray):
    """A subclass that does nothing."""


class Loud(np.ndarray):
    """Raises whenever a view of it is made."""

    def __array_finalize__(self, held):
        if type(held) is Loud:
            raise ZeroDivisionError("mine")


class Liar(np.ndarray):
    """Says other things of itself than are true."""

    shape = property(lambda self: (2**40, 7))
    dtype = property(lambda self: np.dtype("int8"))
    strides = property(lambda self: (1, 1))
    ndim = property(lambda self: 99)
    data = property(lambda self: None)
    __array_interface__ = property(
        lambda self: {"data": (16, False), "shape": (9,), "typestr": "<f8"}
    )


@junk("Tensor")
def subclass(draft, place, good):
    kind = draft.dice.choice([Plain, Liar, Loud])
    made = np.ndarray.__new__(kind, good.shape, good.dtype)
    np.ndarray.view(made, np.ndarray)[...] = good
    return draft.means(made, np.array(good))


@junk("Tensor")
def masked(draft, place, good):
    return np.ma.MaskedArray(good)


@junk("Tensor")
def matrix(draft, place, good):
    if good.ndim != 2:
        raise Unfit
    return np.asmatrix(good)


@junk("Tensor")
def memory_map(draft, place, good):
    if not good.nbytes:
        raise Unfit
    memory = mmap.mmap(-1, good.nbytes)
    made = np.frombuffer(memory, good.dtype, good.size).reshape(good.shape)
    made[...] = good
    return made


@junk("Tensor")
def record_array(draft, place, good):
    return np.zeros(good.shape, [("a", good.dtype)]).view(np.recarray)


@junk("Tensor")
def as_list(draft, place, good):
    return draft.dice.choice(
        [good.tolist(), [good], (good,), [[good]], np.array([good, None], object)]
    )


@junk("Tensor")
def buffer(draft, place, good):
    """Memory by Python's buffer protocol."""
    if good.dtype.kind not in "fiu" or good.dtype.isbuiltin != 1:
        raise Unfit
    held = np.ascontiguousarray(good)
    made = draft.dice.choice(
        [memoryview(held), bytearray(8), array.array("f", [1.0, 2.0]), held.data]
    )
    return made


@junk("Tensor")
def ctypes_memory(draft, place, good):
    made = (ctypes.c_float * draft.dice.choice([0, 1, 3, 64]))()
    return made


@junk("Tensor", label="the same array again")
def same_again(draft, place, good):
    """An array that stands in two places."""
    draft.may_change = place.kind == "result"
    arrays = [v for v in draft.arguments.values() if draft.bridge.array(v) is not None]
    if not arrays:
        raise Unfit
    return draft.dice.choice(arrays)


@junk("Tensor")
def other_framework(draft, place, good):
    """A NumPy array among the framework's tensors; of NumPy, one that only speaks DLPack."""
    return np.array(good)


@junk("Tensor")
def all_of_numpy(draft, place, good):
    """All are NumPy's but this one."""
    if draft.bridge.name == "numpy":
        raise Unfit
    for name, value in draft.arrays.items():
        if isinstance(value, np.ndarray):
            draft.arguments[name] = value
    return draft.of(good)


@junk("Tensor")
def dlpack(draft, place, good):
    """What a foreign framework lends, with one field replaced or none."""
    fields = {
        "shape": [(0,), (2**40, 2**40), (-1,), (2**63 - 1,), (1,) * 64, (0, 2**62)],
        "strides": [(0,) * good.ndim, (-1,) * good.ndim, (2**62,) * good.ndim],
        "dtype": [
            (2, 32, 4),
            (2, 31, 1),
            (0, 0, 0),
            (255, 255, 65535),
            (2, 128, 1),
            (3, 64, 1),
            (5, 64, 1),
        ],
        "device": [(2, 0), (0, 0), (-1, -1), (13, 99), (14, 0), (1, 7), (2**31 - 1, 0)],
        "data": [0, None, 1, 16],
        "byte_offset": [1, 2**63, 2**64 - 8],
        "flags": [1, 2, 3, 2**64 - 1],
        "major": [0, 2, 9999],
        "ndim": [-1, -(2**31), 0, 65, 2**31 - 1],
    }
    kind = draft.dice.choice([DlpackArray, DlpackArray, OldDlpackArray, NoCapsule, RaisingDlpack])
    if draft.dice.random() < 0.2:
        if kind in (NoCapsule, RaisingDlpack):
            return kind(draft.fresh(good))
        return draft.means(kind(draft.fresh(good)), np.array(good))
    field = draft.dice.choice(list(fields))
    value = draft.dice.choice(fields[field])
    if not _is_harmless(field, value, good):
        draft.note(f"{field}={value} would be a lie about memory that no one can see through")
        raise Unfit
    draft.note(f"{kind.__name__} {field}={value}")
    made = kind(draft.fresh(good), **{field: value})
    (
        draft.given if place.kind == "result" else draft.placed
    ).pop()  # what it lends is its own affair
    return draft.means(made, _lent(field, value, good, kind))


def _is_harmless(field: str, value: object, good: np.ndarray) -> bool:
    """Whether a callee can find the lie out: wrong sizes and addresses of real memory are not to be seen."""
    if field == "shape":
        return 0 in value or -1 in value or math.prod(value) * good.itemsize >= 2**63
    if field == "strides":
        return value == (0,) * good.ndim or good.size == 0
    if field == "data":
        return value in (0, None) and good.size > 0
    if field == "byte_offset":
        return value == 1 and good.itemsize > 1 and good.size > 0
    if field == "ndim":
        return not 0 <= value <= 64 or value == 0
    if field == "dtype":
        return value[1] * value[2] <= good.itemsize * 8 or value[1] > 64 or value[0] > 17
    return True


def _lent(field: str, value: object, good: np.ndarray, kind: type) -> object:
    """What an accepted one stands for."""
    if field == "flags" and value in (1, 2, 3):
        return np.array(good)
    if field == "flags" or (field == "major" and kind is OldDlpackArray):
        return np.array(good)
    if field == "strides" and good.size == 0:
        return np.array(good)
    if field == "device" and value[0] == 1:
        return np.array(good)
    if field == "strides" and value == (0,) * good.ndim and good.size:
        return np.array(np.broadcast_to(good[(slice(0, 1),) * good.ndim], good.shape))
    if field == "ndim" and value == 0 and good.size:
        return np.array(good.reshape(-1)[0])
    if field == "shape" and 0 in value:
        return np.zeros(value, good.dtype) if math.prod(v or 1 for v in value) < 2**63 else NOTHING
    return NOTHING


# ---- results ----


@junk("result")
def over_an_input(draft, place, good):
    """Memory that an input has, too: exactly, shifted, reversed."""
    arrays = [v for v in draft.arrays.values() if isinstance(v, np.ndarray) and v.size and v.ndim]
    if not arrays or not draft.bridge.writes:
        raise Unfit
    held = draft.dice.choice(arrays)
    made = draft.dice.choice(
        [held, held[::-1], held[..., ::-1], held[:1], held.T, held.reshape(-1)[:-1]]
    )
    if made.shape != good.shape and made.size >= good.size and draft.dice.random() < 0.7:
        made = made.reshape(-1)[-good.size or None :][: good.size].reshape(good.shape)
    if made.dtype != good.dtype and made.flags.c_contiguous and made.nbytes >= good.nbytes:
        made = made.reshape(-1).view(np.uint8)[: good.nbytes].view(good.dtype).reshape(good.shape)
    draft.may_change = True
    return draft.of(made)


@junk("result")
def over_another_result(draft, place, good):
    if len(draft.outputs) < 2:
        raise Unfit
    other = draft.dice.choice([p.array for n, p in draft.outputs.items() if n != place.name])
    return draft.of(other)


@junk("result")
def over_itself(draft, place, good):
    if not good.ndim or not good.size:
        raise Unfit
    memory = draft.fresh(np.zeros(good.size + 8, good.dtype))
    strides = draft.dice.choice([(0,) * good.ndim, (good.itemsize,) * good.ndim])
    return draft.of(as_strided(memory, good.shape, strides))


@junk("result")
def another_input_object(draft, place, good):
    """The very object of an argument."""
    name = draft.dice.choice([p["name"] for p in draft.subject.tensors])
    draft.may_change = True
    return draft.arguments.get(name)


__all__ = ["Place"]
