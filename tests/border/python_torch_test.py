# SPDX-License-Identifier: Apache-2.0
"""Python's entry and torch: eager tensors in, tensors out, in every dtype that torch has; gradients are not lost."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import anyop
import numpy as np
import pytest
from anyop.cases.dtype_choices import NAMES

torch = pytest.importorskip("torch", reason="torch is not installed")

X = torch.tensor([[-2.0, 3.0, 0.5], [1.0, -1.0, 4.0]])
RELU = torch.relu(X)


def test_a_new_result_is_a_plain_tensor_of_its_own():
    for x in (X, X.t(), X[0, 0], X[:, 1:], X[1:], X.expand(2, 2, 3), torch.empty(0, 3), X[:, ::2]):
        y = anyop.relu(x)
        assert type(y) is torch.Tensor and y.dtype == torch.float32 and y.device.type == "cpu"
        assert y.is_contiguous() and y.shape == x.shape and y._base is None
        assert not y.requires_grad and y.is_leaf and y.data_ptr() % 16 == 0
        assert torch.equal(y, torch.relu(x))


def test_out_is_written_where_it_lies():
    out = torch.full((4, 3), 7.0)
    part = out[1:3]
    at = part.data_ptr()
    assert anyop.relu(X, out=part) is part and part.data_ptr() == at
    assert torch.equal(out[1:3], RELU) and (out[[0, 3]] == 7).all()
    strided = torch.zeros(3, 2).t()
    assert anyop.relu(X, out=strided) is strided and torch.equal(strided, RELU)


@pytest.mark.parametrize("name", NAMES)
def test_every_dtype_goes_in_and_out_bit_for_bit(name):
    dtype = getattr(torch, name)
    item = torch.empty(0, dtype=dtype).element_size()
    bits = torch.from_numpy(np.random.default_rng(2).integers(0, 256, (9, 2 * item), np.uint8))
    table = (bits % 2).bool() if name == "bool" else bits.view(dtype)
    indices = torch.tensor([3, 0, 8, 3])
    found = anyop.embedding(indices, table)
    assert found.dtype == dtype
    assert torch.equal(found.view(torch.uint8), table.view(torch.uint8)[indices])
    out = torch.empty_like(found)
    at = out.data_ptr()
    assert anyop.embedding(indices, table, out=out) is out and out.data_ptr() == at
    assert torch.equal(out.view(torch.uint8), found.view(torch.uint8))


def test_results_of_several():
    values, indices = anyop.topk(X, 2)
    expected = torch.topk(X, 2)
    assert torch.equal(values, expected.values) and torch.equal(indices, expected.indices)
    given = (torch.empty(2, 2), torch.empty(2, 2, dtype=torch.int64))
    found = anyop.topk(X, 2, out=given)
    assert found[0] is given[0] and found[1] is given[1] and torch.equal(given[0], values)


def test_no_gradient_where_none_is_wanted():
    x = X.clone().requires_grad_()
    parameter = torch.nn.Parameter(X.clone())
    for tensor in (x, parameter, x * 2):
        for context in (torch.no_grad, torch.inference_mode):
            with context():
                y = anyop.relu(tensor)
            assert type(y) is torch.Tensor and not y.requires_grad
            assert torch.equal(y, torch.relu(tensor.detach()))
        assert not anyop.relu(tensor.detach()).requires_grad
        with torch.no_grad(), torch.enable_grad():
            assert anyop.relu(tensor).requires_grad


def test_the_grad_mode_is_each_threads_own():
    import threading

    x, found = X.clone().requires_grad_(), []
    with torch.no_grad():
        thread = threading.Thread(target=lambda: found.append(anyop.relu(x).requires_grad))
        thread.start()
        thread.join()
        found.append(anyop.relu(x).requires_grad)
    assert found == [True, False]


def test_lazy_bits_are_resolved():
    negative = torch.complex(torch.zeros_like(X), X).conj().imag
    assert negative.is_neg()
    assert torch.equal(anyop.relu(negative), torch.relu(-X))
    table = torch.complex(X, X).conj()
    found = anyop.embedding(torch.tensor([1]), table)
    assert table.is_conj() and torch.equal(found, table[1:].resolve_conj())


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.quint8),
        lambda: torch.nested.nested_tensor([X[0], X[1]]),
        lambda: X.to_sparse_csr(),
        lambda: X.to_mkldnn(),
    ],
    ids=["quantized", "nested", "sparse", "mkldnn"],
)
def test_what_has_no_plain_memory_is_refused(make):
    try:
        bad = make()
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(f"this torch cannot make one: {error}")
    with pytest.raises(TypeError, match="relu: x is a tensor of another kind"):
        anyop.relu(bad)
    with pytest.raises(TypeError, match="add: y is a tensor of another kind"):
        anyop.add(X, bad)
    with pytest.raises((NotImplementedError, RuntimeError), match="relu"):
        torch.ops.anyop.relu(bad)
    assert torch.equal(anyop.relu(X), RELU)


def test_meta_gives_meta_and_does_not_mix():
    found = anyop.relu(X.to("meta"))
    assert found.is_meta and found.shape == X.shape
    with pytest.raises(ValueError, match=r"add: .*meta"):
        anyop.add(X, X.to("meta"))


def test_tensors_are_let_go():
    x, out = X.clone(), torch.empty_like(X)
    before = sys.getrefcount(x), sys.getrefcount(out)
    y = anyop.relu(x)
    anyop.relu(x, out=out)
    for bad in (
        lambda: anyop.relu(x, out=out.double()),
        lambda: anyop.rms_norm(x, "text"),
        lambda: anyop.rms_norm(x, x),
    ):
        with pytest.raises((TypeError, ValueError)):
            bad()
    assert (sys.getrefcount(x), sys.getrefcount(out)) == before
    watch, storage = weakref.ref(y), weakref.ref(y.untyped_storage())
    del y
    gc.collect()
    assert watch() is None and storage() is None


def test_a_dtype_may_be_torchs():
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.bool):
        y = anyop.cast(X, dtype)
        assert y.dtype == dtype and torch.equal(y, X.to(dtype))
    assert anyop.cast(X.numpy(), torch.float16).dtype == np.float16


def test_torch_may_come_before_or_after():
    for first, second in (("torch", "anyop"), ("anyop", "torch")):
        program = f"""
import {first}, {second}, anyop, numpy as np
x = np.array([-1, 2], np.float32)
assert anyop.relu(x).tolist() == [0, 2]
import torch
assert anyop.relu(torch.from_numpy(x)).tolist() == [0, 2] and type(anyop.relu(x)) is np.ndarray
print("right")
"""
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
        )
        assert done.stdout == "right\n", done.stderr
