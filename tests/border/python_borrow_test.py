# SPDX-License-Identifier: Apache-2.0
"""What a call borrowed stays as it was read: arguments that change while others are read, or while a kernel runs."""

from __future__ import annotations

import ctypes
import threading

import anyop
import numpy as np
import pytest
from anyop.testing.dlpack import DlpackArray

W = np.linspace(0.5, 1.5, 64, dtype=np.float32)


class Changes:
    """A number that changes something while it is read."""

    def __init__(self, change):
        self.change = change

    def __float__(self):
        self.change()
        return 1e-6

    __index__ = __float__


def rows(count, width=64):
    return np.random.default_rng(3).standard_normal((count, width)).astype(np.float32)


def reference(x):
    d = x.astype(np.float64)
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-6) * W


def fill_freed_memory(keep=[]):  # noqa: B006
    keep[:] = [np.full(4, 2**40) for _ in range(1000)]


def test_an_array_that_gets_other_sizes_while_numbers_are_read():
    """x.shape = ... frees the sizes of before."""
    x, given = rows(8), rows(8)

    def change():
        x.shape = (2, 2, 2, 64)
        fill_freed_memory()

    found = anyop.rms_norm(x, W, Changes(change))
    np.testing.assert_allclose(found, reference(given).reshape(2, 2, 2, 64), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda x: x.resize((2, 64), refcheck=False), 2),
        (lambda x: x.resize((500, 64), refcheck=False), 500),
        (lambda x: x.__setstate__((1, (3, 64), np.dtype("f4"), False, bytes(3 * 64 * 4))), 3),
    ],
)
def test_an_array_that_gets_other_memory_while_numbers_are_read(change, expected):
    x = rows(8)
    found = anyop.rms_norm(x, W, Changes(lambda: change(x)))
    np.testing.assert_allclose(found, reference(x), rtol=1e-5, atol=1e-6)
    assert found.shape == (expected, 64)


def test_a_result_that_is_replaced_while_numbers_are_read():
    x, out = rows(8), rows(8)
    with pytest.raises(ValueError, match=r"rms_norm: out has shape \(2, 64\)"):
        anyop.rms_norm(x, W, Changes(lambda: out.resize((2, 64), refcheck=False)), out=out)


def test_an_array_that_changes_while_another_object_gives_its_memory():
    """__dlpack__ runs when the first array is borrowed already."""
    x = rows(8)

    class Shows(DlpackArray):
        def __dlpack__(self, **keywords):
            x.shape = (4, 2, 64)
            x.resize((2, 64), refcheck=False)
            fill_freed_memory()
            return super().__dlpack__(**keywords)

    found = anyop.rms_norm(x, Shows(W))
    np.testing.assert_allclose(found, reference(x), rtol=1e-5, atol=1e-6)


def test_aten_reads_again_what_changed():
    pytest.importorskip("torch", reason="torch is not installed")
    x = rows(8)

    class Dim:
        def __index__(self):
            x.resize((2, 64), refcheck=False)
            return 1

    np.testing.assert_allclose(anyop.aten.sum(x, [Dim()]), x.sum(1), rtol=1e-5, atol=1e-4)
    assert x.shape == (2, 64)


@pytest.mark.parametrize(
    "change",
    [
        lambda torch, x: x.resize_(300, 64),
        lambda torch, x: x.set_(torch.ones(2, 64)),
        lambda torch, x: setattr(x, "data", torch.ones(3, 64)),
    ],
)
def test_a_tensor_that_changes_while_numbers_are_read(change):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x, w = torch.ones(8, 64), torch.ones(64)

    def changes():
        change(torch, x)
        x.fill_(2)

    found = anyop.rms_norm(x, w, Changes(changes))
    torch.testing.assert_close(found, torch.ones_like(x))


def test_a_storage_that_shrinks_while_numbers_are_read():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x, w = torch.ones(8, 64), torch.ones(64)
    with pytest.raises(ValueError, match="x is larger than its storage"):
        anyop.rms_norm(x, w, Changes(lambda: x.untyped_storage().resize_(0)))


# ---- other threads ----


def change_while(changes, call, times=300):
    """call() in four threads beside one that changes; the texts of what was refused."""
    refused, wrong, running = set(), [], [True]

    def disturb():
        while running[0]:
            for change in changes:
                try:
                    change()
                except (ValueError, RuntimeError) as error:
                    refused.add(str(error).replace("\n", " "))

    def work():
        for _ in range(times):
            try:
                call()
            except ValueError:
                pass  # sizes that do not fit, refused by name
            except BaseException as error:
                wrong.append(error)
                raise

    workers = [threading.Thread(target=work) for _ in range(4)]
    disturber = threading.Thread(target=disturb)
    for thread in (disturber, *workers):
        thread.start()
    for thread in workers:
        thread.join()
    running[0] = False
    disturber.join()
    assert not wrong
    return refused


def test_arrays_keep_memory_and_sizes_while_a_long_kernel_runs():
    x = np.ones((4096, 128), np.float32)

    def shape(*sizes):
        x.shape = sizes

    changes = [
        lambda: shape(128, 4096),
        lambda: x.resize((4096, 130), refcheck=False),
        lambda: x.resize((4096, 128), refcheck=False),
        lambda: shape(4096, 128),
    ]

    def call():
        found = anyop.rms_norm(x, np.ones(x.shape[-1], np.float32))
        assert found.dtype == np.float32

    refused = change_while(changes, call)
    assert all("cannot resize" in text or "reshape" in text for text in refused), refused


def test_a_view_keeps_the_memory_of_the_array_that_owns_it():
    """The owner cannot be resized while the kernel of a view runs, and can be afterwards."""
    owner, refused = np.ones((1024, 512), np.float32), []

    class Out(DlpackArray):
        pass

    def kernel(x):
        try:
            owner.resize((1, 1), refcheck=False)
        except ValueError as error:
            refused.append(str(error))
        return np.asarray(x) + 1

    anyop.register("relu", "grows", kernel)
    try:
        with anyop.use("grows"):
            found = anyop.relu(owner[:4])
    finally:
        anyop.unregister("relu", "grows")
    assert len(refused) == 1 and "cannot resize" in refused[0]
    assert (found == 2).all()
    owner.resize((1, 1), refcheck=False)


def test_tensors_keep_memory_and_sizes_while_a_long_kernel_runs():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = torch.ones(4096, 128)

    def reset():
        x.set_(torch.ones(4096, 128))

    changes = [
        lambda: x.t_(),
        lambda: x.resize_(4200, 128),
        reset,
        lambda: x.untyped_storage().resize_(0),
        lambda: setattr(x, "data", torch.ones(4096, 128)),
    ]
    refused = change_while(changes, lambda: anyop.relu(x))
    assert all("not resizable" in text for text in refused), refused
    reset()
    x.resize_(5000, 128)  # once nothing runs it may


class _TorchGlue(ctypes.Structure):
    _fields_ = [
        ("head", ctypes.c_uint32 * 2),
        ("skipped", ctypes.c_void_p * 7),  # up to release
        (
            "hold",
            ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint64),
        ),
        ("let_go", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    ]


@pytest.mark.parametrize("first", [0, 1])
def test_storages_that_two_calls_hold_are_resizable_again_behind_both(first):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from anyop.native.glues import torch_glue

    if torch_glue.load() is None:
        pytest.skip(f"no glue: {torch_glue.problem}")
    glue = _TorchGlue.from_address(torch_glue.load())
    alone, shared = torch.zeros(4), torch.zeros(4)
    fixed = torch.from_numpy(np.zeros(4, np.float32))  # is not resizable, before and behind

    def hold(*tensors):  # a THPVariable has its c10::TensorImpl behind its head
        impls = [ctypes.c_void_p.from_address(id(t) + object.__basicsize__) for t in tensors]
        return glue.hold((ctypes.c_void_p * len(impls))(*[i.value for i in impls]), len(impls))

    def resizable():
        return [t.untyped_storage().resizable() for t in (alone, shared, fixed)]

    held = [hold(alone, shared, shared[1:], fixed), hold(shared, fixed)]
    assert resizable() == [False, False, False]
    glue.let_go(held.pop(first))
    assert resizable() == [first == 0, False, False]
    glue.let_go(held.pop())
    assert resizable() == [True, True, False]
