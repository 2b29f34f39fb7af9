# SPDX-License-Identifier: Apache-2.0
"""What anyop.unregister lets go of: the callable and all that it holds, the routes, at once or behind the last call."""

import gc
import threading
import weakref

import anyop
import numpy as np
import pytest
from anyop._load import core
from anyop.backend.tvm_ffi import register_tvm_ffi

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
RELU = np.maximum(X, 0)


class Held:
    """What a kernel's closure holds, seen to go by weakref."""


def add(name: str, **options):
    held = Held()

    def kernel(x):
        assert held is not None
        return np.maximum(x, 0)

    anyop.register("relu", "mine", kernel, name=name, priority=9, **options)
    return weakref.ref(held)


@pytest.mark.parametrize("called", [False, True])
def test_the_callable_goes_at_once(called):
    held = add("one")
    if called:
        assert np.array_equal(anyop.relu(X), RELU)
        assert anyop.explain("relu", X).chosen == "one"
    anyop.unregister("relu", "one")
    gc.collect()
    assert held() is None
    assert np.array_equal(anyop.relu(X), RELU) and anyop.explain("relu", X).chosen == "cpu"


def test_one_that_is_replaced_goes_too():
    first = add("one")
    anyop.relu(X)
    second = add("one")
    gc.collect()
    assert first() is None and second() is not None
    anyop.unregister("relu", "one")
    gc.collect()
    assert second() is None


def test_one_that_is_refused_goes_too():
    held = Held()
    with pytest.raises(ValueError, match="when"):
        anyop.register("relu", "mine", lambda x, held=held: x, name="one", when="Q<=1")
    gone = weakref.ref(held)
    del held
    gc.collect()
    assert gone() is None


def test_under_a_call_it_stays_until_the_call_ends():
    inside, go = threading.Event(), threading.Event()
    gone, found = None, []

    def kernel(x, held=Held()):  # noqa: B008
        nonlocal gone
        gone = weakref.ref(held)
        inside.set()
        assert go.wait(60)
        return np.maximum(x, 0) + 1

    anyop.register("relu", "mine", kernel, name="one", priority=9)
    kernel = None
    thread = threading.Thread(target=lambda: found.append(anyop.relu(X)))
    thread.start()
    assert inside.wait(60)
    anyop.unregister("relu", "one")
    assert np.array_equal(anyop.relu(X), RELU)  # a call after it does not come there
    go.set()
    thread.join()
    assert np.array_equal(found[0], RELU + 1)
    del thread
    gc.collect()
    assert gone() is None


def test_a_kernel_that_takes_itself_away():
    def kernel(x):
        anyop.unregister("relu", "one")
        return np.maximum(x, 0) + 1

    anyop.register("relu", "mine", kernel, name="one", priority=9)
    gone, kernel = weakref.ref(kernel), None
    assert np.array_equal(anyop.relu(X), RELU + 1) and np.array_equal(anyop.relu(X), RELU)
    gc.collect()
    assert gone() is None


def add_tvm_ffi(held: Held, **options) -> None:
    """The same by a function of tvm-ffi, which tvm-ffi makes of one of Python."""
    tvm_ffi = pytest.importorskip("tvm_ffi")

    def kernel(out, x):
        assert held is not None
        np.from_dlpack(out)[...] = np.maximum(np.from_dlpack(x), 0) + 1

    function = tvm_ffi.convert(kernel)
    call = options.pop("call", "kernel(out, x)")
    register_tvm_ffi("relu", call, function, name="one", backend="mine", priority=9, **options)


@pytest.mark.parametrize("called", [False, True])
def test_a_function_of_tvm_ffi_goes_too(called):
    held = Held()
    add_tvm_ffi(held)
    if called:
        assert np.array_equal(anyop.relu(X), RELU + 1)
    add_tvm_ffi(held)  # in place of the first
    assert np.array_equal(anyop.relu(X), RELU + 1)
    gone = weakref.ref(held)
    del held
    gc.collect()
    assert gone() is not None and np.array_equal(anyop.relu(X), RELU + 1)
    anyop.unregister("relu", "one")
    gc.collect()
    assert gone() is None
    assert np.array_equal(anyop.relu(X), RELU)


def test_a_function_of_tvm_ffi_that_is_refused_goes_too():
    held = Held()
    for wrong in ({"when": "Q<=1"}, {"call": "kernel(out"}):
        with pytest.raises(ValueError):
            add_tvm_ffi(held, **wrong)
    gone = weakref.ref(held)
    del held
    gc.collect()
    assert gone() is None


def test_under_a_call_a_function_of_tvm_ffi_stays_until_the_call_ends():
    tvm_ffi = pytest.importorskip("tvm_ffi")
    inside, go, found, held = threading.Event(), threading.Event(), [], Held()
    gone = weakref.ref(held)

    def kernel(out, x, held=held):
        inside.set()
        assert go.wait(60)
        np.from_dlpack(out)[...] = np.maximum(np.from_dlpack(x), 0) + 1

    register_tvm_ffi("relu", "kernel(out, x)", tvm_ffi.convert(kernel), name="one", priority=9)
    kernel = held = None
    thread = threading.Thread(target=lambda: found.append(anyop.relu(X)))
    thread.start()
    assert inside.wait(60)
    anyop.unregister("relu", "one")
    gc.collect()
    assert gone() is not None and np.array_equal(anyop.relu(X), RELU)
    go.set()
    thread.join()
    assert np.array_equal(found[0], RELU + 1)
    add_tvm_ffi(Held())  # what was taken away under a call goes with the next change
    anyop.unregister("relu", "one")
    gc.collect()
    assert gone() is None


def resident_kib() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4


def test_memory_stays_flat():
    """Each with another name, called, explained, in a scope and logged; before, one cost 7 KiB and its closure."""

    def cycle(i):
        memory = bytes(20_000)
        anyop.register("relu", "mine", lambda x: np.maximum(x, 0) + 0 * len(memory), name=f"n{i}")
        with anyop.use("mine"):
            anyop.relu(X)
        anyop.unregister("relu", f"n{i}")

    for i in range(300):
        cycle(i)
    gc.collect()
    before = resident_kib()
    for i in range(2_000):
        cycle(-i)
    gc.collect()
    grown = resident_kib() - before
    assert grown < 4_000, f"{grown} KiB for 2,000"  # 14,000 and 40,000 of closures


def test_threads_call_meanwhile():
    """Right results while implementations come and go, named, routed, logged and explained."""
    wrong, end, calls = [], threading.Event(), [0]
    anyop.register("relu", "mine", lambda x: np.maximum(x, 0), name="stays")

    def call():
        while not end.is_set():
            calls[0] += 1
            if not np.array_equal(anyop.relu(X), RELU):
                wrong.append("relu")
            anyop.explain("relu", X)
            with anyop.use("mine,cpu"):
                if not np.array_equal(anyop.relu(X), RELU):
                    wrong.append("use")

    def change(i):
        for k in range(150):
            add(f"n{i}_{k % 3}")
            anyop.relu(X)
            anyop.unregister("relu", f"n{i}_{k % 3}")

    callers = [threading.Thread(target=call) for _ in range(3)]
    changers = [threading.Thread(target=change, args=(i,)) for i in range(2)]
    for thread in callers + changers:
        thread.start()
    for thread in changers:
        thread.join()
    assert all(thread.is_alive() for thread in callers) and calls[0] > 10
    end.set()
    for thread in callers:
        thread.join()
    anyop.unregister("relu", "stays")
    assert not wrong and not any(name.startswith("n") for name in anyop.backends("relu"))
    assert "n0_0" not in core.implementations("relu")
