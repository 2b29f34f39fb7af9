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
from anyop.testing.dtype_choices import NAMES

torch = pytest.importorskip("torch", reason="torch is not installed")
if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
    pytest.skip("torch is older than 2.10", allow_module_level=True)

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


def test_gradients_are_refused_or_not_wanted():
    x = X.clone().requires_grad_()
    parameter = torch.nn.Parameter(X.clone())
    for tensor in (x, parameter, x * 2):
        with pytest.raises(TypeError, match="relu: x requires a gradient"):
            anyop.relu(tensor)
        for context in (torch.no_grad, torch.inference_mode):
            with context():
                y = anyop.relu(tensor)
            assert type(y) is torch.Tensor and not y.requires_grad
            assert torch.equal(y, torch.relu(tensor.detach()))
        with (
            torch.no_grad(),
            torch.enable_grad(),
            pytest.raises(TypeError, match="requires a gradient"),
        ):
            anyop.relu(tensor)
        assert torch.equal(anyop.relu(tensor.detach()), torch.relu(tensor.detach()))
    with pytest.raises(TypeError, match="relu: out requires a gradient"):
        anyop.relu(X, out=torch.zeros(2, 3, requires_grad=True))
    indices = torch.tensor([0])
    with pytest.raises(TypeError, match="embedding: weight requires a gradient"):
        anyop.embedding(indices, parameter)


def test_the_grad_mode_is_each_threads_own():
    import threading

    x, errors = X.clone().requires_grad_(), []

    def work():
        try:
            anyop.relu(x)
        except TypeError as error:
            errors.append(str(error))

    with torch.no_grad():
        anyop.relu(x)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert len(errors) == 1 and "requires a gradient" in errors[0]


def test_forward_gradients_are_refused():
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(X, torch.ones_like(X))
        with pytest.raises(
            TypeError, match=r"relu: x is used inside torch\.autograd\.forward_ad\.dual_level"
        ):
            anyop.relu(dual)
    assert torch.equal(anyop.relu(X), RELU)
    with pytest.raises(TypeError, match="relu: x"):
        torch.func.jvp(anyop.relu, (X,), (X,))


def test_lazy_bits_are_refused_and_resolve():
    negative = torch.complex(torch.zeros_like(X), X).conj().imag
    assert negative.is_neg()
    with pytest.raises(TypeError, match=r"relu: x has torch's lazy negative bit.*resolve_neg"):
        anyop.relu(negative)
    assert torch.equal(anyop.relu(negative.resolve_neg()), torch.relu(-X))
    table = torch.complex(X, X).conj()
    with pytest.raises(
        TypeError, match=r"embedding: weight has torch's lazy conjugate bit.*resolve_conj"
    ):
        anyop.embedding(torch.tensor([0]), table)
    found = anyop.embedding(torch.tensor([1]), table.resolve_conj())
    assert torch.equal(found, table[1:].resolve_conj())


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.quint8),
        lambda: torch.nested.nested_tensor([X[0], X[1]]),
        lambda: X.to_sparse_csr(),
        lambda: X.to_mkldnn(),
        lambda: X.to("meta"),
    ],
    ids=["quantized", "nested", "sparse", "mkldnn", "meta"],
)
def test_what_has_no_plain_memory_is_refused(make):
    try:
        bad = make()
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(f"this torch cannot make one: {error}")
    with pytest.raises((TypeError, ValueError), match="relu: x"):
        anyop.relu(bad)
    assert torch.equal(anyop.relu(X), RELU)


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


def test_compiled_code_calls_through():
    """torch.compile leaves the call to Python: the same result, with a break in the graph."""

    def function(x):
        return anyop.relu(x * 2) + 1

    compiled = torch.compile(function, backend="eager")
    assert torch.equal(compiled(X), function(X))
