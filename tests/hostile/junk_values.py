# SPDX-License-Identifier: Apache-2.0
"""Junk that needs no framework: values of every Python type, numbers at the ends of ranges, texts, whole calls."""

from __future__ import annotations

import ctypes
import decimal
import enum
import fractions
import gc
import io
import signal
import sys
import threading
import types
import weakref

import numpy as np
from junk_draft import REMOVED, Unfit, junk, junk_values

# ---- any place ----


class Colour(enum.IntEnum):
    RED = 1


class Text(str):
    pass


class Number(int):
    pass


class Real(float):
    pass


def _deep(levels: int = 100_000) -> list:
    found: list = []
    for _ in range(levels):
        found = [found]
    DEEP.append(found)  # taken apart by hand: Python's own destructor would recurse
    return found


DEEP: list = []
_loop: list = []
_loop.append(_loop)

junk_values(
    "any",
    none=None, true=True, false=False, zero=0, one=1, minus_one=-1, two_to_31=2**31, two_to_62=2**62,
    largest=2**63 - 1, smallest=-(2**63), two_to_63=2**63, below_int64=-(2**63) - 1, two_to_64=2**64,
    a_thousand_digits=10**1000, half=0.5, nan=float("nan"), inf=float("inf"), minus_inf=float("-inf"),
    minus_zero=-0.0, denormal=5e-324, largest_float=1.7976931348623157e308, complex_number=1j, text="junk",
    empty_text="", surrogate="\ud800", nul="a\0b", long_text="x" * 1_000_000, unicode_text="ä€😀", bytes_=b"junk",
    empty_bytes=b"", empty_list=[], list_of_none=[None], nested=[[1.0]], loop=_loop, empty_tuple=(),
    numbers=(1, 2, 3), dictionary={}, set_={1}, frozen=frozenset([1]), range_=range(3), slice_=slice(1), dots=Ellipsis,
    not_implemented=NotImplemented, type_=int, builtin=len, module=sys, lambda_=lambda *a, **k: None, object_=object(),
    decimal=decimal.Decimal("0.5"), fraction=fractions.Fraction(1, 2), enum_=Colour.RED, text_subclass=Text("none"),
    int_subclass=Number(1), float_subclass=Real(0.5), exception=ValueError("x"), exception_type=KeyboardInterrupt,
    file=io.BytesIO(b"x"), lock=threading.Lock(), simple=types.SimpleNamespace(), proxy=types.MappingProxyType({}),
    ctypes_int=ctypes.c_int(1), ctypes_array=(ctypes.c_float * 3)(), pointer=ctypes.pointer(ctypes.c_float(1)),
    ctypes_null=ctypes.c_void_p(None), memory=memoryview(b"abc"), byte_array=bytearray(8), numpy_type=np.float32,
    numpy_dtype=np.dtype("float32"), numpy_object_dtype=np.dtype("O"), numpy_module=np, numpy_half=np.float16(0.5),
    numpy_float32=np.float32(0.5), numpy_float64=np.float64(0.5), numpy_long=np.longdouble(0.5),
    numpy_complex=np.complex64(1j), numpy_bool=np.bool_(True), numpy_int8=np.int8(1), numpy_int64=np.int64(1),
    numpy_uint64=np.uint64(2**63), numpy_void=np.void(b"ab"), numpy_text=np.str_("none"), numpy_bytes=np.bytes_(b"x"),
    numpy_date=np.datetime64("2020-01-01"), numpy_span=np.timedelta64(1, "s"),
)  # fmt: skip


@junk("any")
def generator(draft, place, good):
    return (item for item in [good])


@junk("any")
def coroutine(draft, place, good):
    async def wait():
        return 1

    made = wait()
    made.close()
    return made


@junk("any")
def weak_proxy(draft, place, good):
    class Held:
        pass

    held = Held()
    return weakref.proxy(held)  # dead at once


@junk("any")
def deep_list(draft, place, good):
    draft.may_recurse = True
    return DEEP[0] if DEEP else _deep()


@junk("any")
def the_operator(draft, place, good):
    return draft.subject.function


@junk("any")
def frame(draft, place, good):
    return sys._getframe()


@junk("any")
def wrong_capsule(draft, place, good):
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = (
        ctypes.py_object,
        [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
    )
    return new(0x1, b"dltensor", None)


@junk("any")
def nothing_given(draft, place, good):
    return REMOVED


@junk("any")
def another_argument(draft, place, good):
    draft.may_change = place.kind == "result"
    return draft.dice.choice(list(draft.arguments.values()) or [None])


@junk("any")
def zero_dim_array(draft, place, good):
    return np.array(draft.dice.choice([0, 1, 0.5, True, 2**40]))


@junk("any")
def one_element_array(draft, place, good):
    return np.array([draft.dice.choice([0, 1, 0.5])])


@junk("any")
def dtype_text(draft, place, good):
    return draft.dice.choice(
        [
            "float32",
            "<f4",
            "f",
            "torch.float32",
            "float32 ",
            "FLOAT32",
            "bf16",
            "object",
            "int4",
            "complex64",
        ]
    )


# ---- numbers of a kind ----


@junk("int")
def near_int(draft, place, good):
    """Beside the good value and at the ends of 32 and 64 bits."""
    return draft.dice.choice(
        [good + 1, good - 1, -good, -good - 1, good + 2**32, good - 2**32, good + 2**64, 2**31 - 1, -(2**31), 2**40]
    ) if isinstance(good, int) else 2**40  # fmt: skip


@junk("int")
def numpy_int(draft, place, good):
    kind = draft.dice.choice(
        [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64]
    )
    if not isinstance(good, int) or not np.iinfo(kind).min <= good <= np.iinfo(kind).max:
        raise Unfit
    return kind(good)


@junk("float")
def any_double(draft, place, good):
    """Any bits at all."""
    return float(np.frombuffer(draft.dice.randbytes(8), np.float64)[0])


@junk("float")
def any_numpy_float(draft, place, good):
    kind = draft.dice.choice([np.float16, np.float32, np.float64])
    return np.frombuffer(draft.dice.randbytes(8), kind)[0]


@junk("float")
def int_for_float(draft, place, good):
    return draft.dice.choice([2**53 + 1, 2**64, 10**308, 10**309, -(10**400)])


@junk("str")
def near_text(draft, place, good):
    text = good if isinstance(good, str) else "none"
    return draft.dice.choice(
        [
            text.upper(),
            text + " ",
            text + "\n",
            text[:-1],
            text * 2,
            text.encode(),
            Text(text),
            [text],
            text + "%s%n",
        ]
    )


@junk("ScalarType")
def dtype_object(draft, place, good):
    kinds = [
        np.float32,
        np.dtype("float16"),
        np.dtype(">f4"),
        np.dtype("<f8"),
        np.int64,
        np.longdouble,
        float,
        int,
    ]
    kinds += [
        bool,
        np.dtype([("a", "f4")]),
        np.dtype(("f4", 2)),
        np.dtype("S3"),
        np.uintc,
        np.bool_,
        np.complex64,
    ]
    return draft.dice.choice(kinds)


# ---- the call as a whole ----


@junk("call")
def nothing_odd(draft, place, good):
    """A good call."""


@junk("call")
def unknown_keyword(draft, place, good):
    for _ in range(draft.dice.choice([1, 2, 1000])):
        name = draft.dice.choice(
            ["nonsense", "", "é", "self", "\ud800", "x\0", "out_", "use", "a" * 10_000]
        )
        draft.arguments[name + str(len(draft.arguments))] = 1


@junk("call")
def not_interned(draft, place, good):
    draft.arguments = {"".join(list(name)): value for name, value in draft.arguments.items()}


@junk("call")
def text_subclass_keyword(draft, place, good):
    draft.arguments = {Text(name): value for name, value in draft.arguments.items()}


@junk("call")
def too_many(draft, place, good):
    names = [p["name"] for p in draft.subject.inputs]
    draft.positional = [draft.arguments.pop(n, None) for n in names]
    draft.positional += [None] * draft.dice.choice([1, 2, 3, 70, 100_000])


@junk("call")
def given_twice(draft, place, good):
    draft.may_change = True  # moved on by one place, an input may stand for a result
    first = draft.subject.inputs[0]["name"]
    draft.positional = [draft.arguments.get(first)]


@junk("call")
def no_arguments(draft, place, good):
    draft.arguments.clear()


@junk("call")
def odd_out(draft, place, good):
    outputs = [draft.of(p.array) for p in draft.outputs.values()] or [None]
    draft.arguments["out"] = draft.dice.choice(
        [
            tuple(outputs),
            outputs,
            (),
            (None,) * 9,
            tuple(outputs) * 2,
            "out",
            0,
            False,
            {},
            (outputs[0],),
            object(),
        ]
    )


@junk("call")
def shuffled(draft, place, good):
    if draft.meanings:
        raise Unfit  # what an odd object stands for is known for its own place alone
    draft.may_change = True
    names = list(draft.arguments)
    values = list(draft.arguments.values())
    draft.dice.shuffle(values)
    draft.arguments = dict(zip(names, values))


class Outcome:
    """A call that is made where its exception would be lost."""

    def __init__(self, function):
        self.function, self.error = function, None

    def run(self):
        try:
            self.found = self.function()
        except BaseException as error:
            self.error = error

    def get(self):
        if self.error is not None:
            raise self.error
        return self.found


@junk("call")
def in_a_thread(draft, place, good):
    def run(function):
        made = Outcome(function)
        thread = threading.Thread(target=made.run)
        thread.start()
        thread.join()
        return made.get()

    draft.run = run


@junk("call")
def in_two_threads(draft, place, good):
    """The same arguments at the same time."""
    if draft.outputs:
        raise Unfit
    draft.run, draft.in_threads = _beside, True


def _beside(function):
    found: list = []

    def work():
        for _ in range(3):
            try:
                found.append(function())
            except Exception as error:
                found.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    result = None
    try:
        result = function()
    finally:
        for thread in threads:
            thread.join()
    if any(isinstance(item, Exception) for item in found):
        raise next(item for item in found if isinstance(item, Exception))
    return result


@junk("call")
def near_the_recursion_limit(draft, place, good):
    if draft.bridge.name == "paddle":
        raise Unfit  # there a PyLayer ends the process without anyop: its error's text is asked for without an end
    draft.may_recurse = True

    def run(function):
        def down(levels: int):
            return function() if levels <= 0 else down(levels - 1)

        depth = len(_stack())
        return down(sys.getrecursionlimit() - depth - draft.dice.choice([3, 5, 8, 15, 30, 60]))

    draft.run = run


def _stack() -> list:
    frame, found = sys._getframe(), []
    while frame:
        found.append(frame)
        frame = frame.f_back
    return found


@junk("call")
def in_a_destructor(draft, place, good):
    def run(function):
        made = Outcome(function)

        class Dying:
            def __del__(self):
                made.run()

        dying = Dying()
        if draft.dice.random() < 0.5:
            dying.itself = dying  # found by the collector
        del dying
        gc.collect()
        return made.get()

    draft.run = run


@junk("call")
def in_a_signal_handler(draft, place, good):
    def run(function):
        made = Outcome(function)
        before = signal.signal(signal.SIGUSR1, lambda number, frame: made.run())
        try:
            signal.raise_signal(signal.SIGUSR1)
        finally:
            signal.signal(signal.SIGUSR1, before)
        return made.get()

    draft.run = run


@junk("call")
def under_a_profiler(draft, place, good):
    def run(function):
        before = sys.getprofile()
        sys.setprofile(lambda *_: None)
        try:
            return function()
        finally:
            sys.setprofile(before)

    draft.run = run
