# SPDX-License-Identifier: Apache-2.0
"""Operands of two devices are refused as by torch; layouts that the device lacks are refused, never made elsewhere."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.anyplatform, pytest.mark.usefixtures("platform")]
MESSAGE = r"(?i)same device|different device|is on cpu|on cpu|device"

PAIRS = {
    "add": lambda x, y: x + y,
    "mul_": lambda x, y: x.clone().mul_(y),
    "mm": lambda x, y: x @ y,
    "linear": lambda x, y: torch.nn.functional.linear(x, y),
    "bmm": lambda x, y: torch.bmm(x[None], y[None]),
    "cat": lambda x, y: torch.cat([x, y]),
    "where": lambda x, y: torch.where(x > 0, x, y),
    "conv": lambda x, y: torch.nn.functional.conv1d(x[None], y[..., None]),
    "embedding": lambda x, y: torch.nn.functional.embedding(x.long().abs() % 3, y),
    "gather": lambda x, y: x.gather(0, y.long() * 0),
    "index_select": lambda x, y: x.index_select(0, y[0].long() * 0),
    "layer_norm": lambda x, y: torch.nn.functional.layer_norm(x, (3,), y[0]),
    "batch_norm": lambda x, y: torch.nn.functional.batch_norm(x, y[0], y[1].abs()),
    "out": lambda x, y: torch.add(x, x, out=y),
    "lerp": lambda x, y: torch.lerp(x, x, y),
    "addmm": lambda x, y: torch.addmm(x, x, y),
    "cross_entropy": lambda x, y: torch.nn.functional.cross_entropy(x, y[0].long() * 0),
    "attention": lambda x, y: torch.nn.functional.scaled_dot_product_attention(
        x[None], y[None], x[None]
    ),
    "masked_fill": lambda x, y: x.masked_fill(y > 0, 1.0),
    "dot": lambda x, y: torch.dot(x[0], y[0]),
    "foreach": lambda x, y: torch._foreach_add([x, x], [y, y]),
    "equal": lambda x, y: torch.equal(x, y),
    "scatter": lambda x, y: x.scatter(0, y.long() * 0, 1.0),
    "stack": lambda x, y: torch.stack([x, y]),
    "max": lambda x, y: torch.maximum(x, y),
    "solve": lambda x, y: torch.linalg.solve(x + 3 * torch.eye(3, device=x.device), y),
    "index_put": lambda x, y: x.index_put((torch.tensor([0, 1], device=x.device),), y[:2]),
    "bernoulli": lambda x, y: x.bernoulli_(y.sigmoid()),
}


def refused(function, a, b):
    x, y = torch.randn(3, 3).to(a), torch.randn(3, 3).to(b)
    with pytest.raises((RuntimeError, NotImplementedError, ValueError), match=MESSAGE):
        function(x, y)


@pytest.mark.parametrize("name", PAIRS)
def test_a_cpu_operand_is_refused(name):
    refused(PAIRS[name], "anyop", "cpu")
    refused(PAIRS[name], "cpu", "anyop")


@pytest.mark.parametrize("name", PAIRS)
def test_an_operand_of_the_other_device_is_refused(name, two_devices):
    refused(PAIRS[name], "anyop:0", "anyop:1")


@pytest.mark.cuda
@pytest.mark.parametrize("name", PAIRS)
def test_an_operand_of_native_cuda_is_refused(name):
    refused(PAIRS[name], "anyop", "cuda")
    refused(PAIRS[name], "cuda", "anyop")


def test_what_torch_allows(inner):
    x = torch.arange(4.0, device="anyop")
    assert (x + torch.tensor(1.0)).tolist() == [1, 2, 3, 4]
    assert (torch.tensor(2.0) * x).is_anyop and torch.where(x > 1, x, torch.tensor(0.0)).is_anyop
    assert x[torch.tensor([2, 0])].tolist() == [2, 0]
    assert x.copy_(torch.ones(4)).is_anyop and torch.zeros(4).copy_(x).sum() == 4
    assert x.index_put_((torch.tensor([1]),), torch.tensor(7.0)).tolist() == [1, 7, 1, 1]
    x.fill_(torch.tensor(3.0))
    assert attempt(lambda: x.clamp(max=torch.tensor(2.0)).tolist()) == attempt(
        lambda: torch.full((4,), 3.0, device=inner).clamp(max=torch.tensor(2.0)).tolist()
    )
    with pytest.raises(RuntimeError, match=MESSAGE):
        torch.ones(3) + torch.tensor(1.0, device="anyop")


def attempt(function):
    """What it gives, or that torch refuses: a number on the CPU as clamp's bound, beside tensors of CUDA."""
    try:
        return function()
    except RuntimeError as error:
        assert "max is on cpu" in str(error), error
        return "refused"


LAYOUTS = {
    "to_sparse": lambda: torch.eye(3, device="anyop").to_sparse(),
    "to_sparse_csr": lambda: torch.eye(3, device="anyop").to_sparse_csr(),
    "sparse_coo_tensor": lambda: torch.sparse_coo_tensor(
        torch.tensor([[0, 1], [1, 0]], device="anyop"), torch.ones(2, device="anyop"), (2, 2)
    ),
    "sparse_coo_device": lambda: torch.sparse_coo_tensor([[0], [1]], [1.0], (2, 2), device="anyop"),
    "sparse_csr_tensor": lambda: torch.sparse_csr_tensor(
        [0, 1, 2], [0, 1], [1.0, 2.0], device="anyop"
    ),
    "sparse moved": lambda: torch.eye(3).to_sparse().to("anyop"),
    "csr moved": lambda: torch.eye(3).to_sparse_csr().to("anyop"),
    "quantize_per_tensor": lambda: torch.quantize_per_tensor(
        torch.ones(3, device="anyop"), 0.1, 0, torch.quint8
    ),
    "quantize_per_channel": lambda: torch.quantize_per_channel(
        torch.ones(2, 3, device="anyop"),
        torch.ones(2, device="anyop"),
        torch.zeros(2, dtype=torch.long, device="anyop"),
        0,
        torch.qint8,
    ),
    "quantized moved": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8).to(
        "anyop"
    ),
    "empty_quantized": lambda: torch._empty_affine_quantized(
        [3], scale=0.1, zero_point=0, dtype=torch.qint8, device="anyop"
    ),
    "mkldnn": lambda: torch.ones(3, 3, device="anyop").to_mkldnn(),
    "nested": lambda: torch.nested.to_padded_tensor(
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], device="anyop"), 0.0
    ),
    "jagged": lambda: torch.nested.nested_tensor(
        [torch.ones(2), torch.ones(3)], device="anyop", layout=torch.jagged
    ).values(),
    "sparse embedding": lambda: _sparse_gradient(),
}


def _sparse_gradient():
    weight = torch.ones(4, 2, device="anyop", requires_grad=True)
    found = torch.nn.functional.embedding(torch.tensor([1], device="anyop"), weight, sparse=True)
    found.sum().backward()
    return weight.grad


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LAYOUTS)
def test_other_layouts_are_right_or_refused(name, inner):
    """Refused with a text, or a tensor of the device whose values come back: never one of another device."""
    try:
        found = LAYOUTS[name]()
        assert found.device.type == "anyop", f"a tensor of {found.device}"
        dense = found.dequantize() if found.is_quantized else found.to_dense()
        assert dense.device.type == "anyop" and dense.cpu().isfinite().all()
    except (RuntimeError, NotImplementedError) as error:
        assert len(str(error)) > 10 and "INTERNAL ASSERT" not in str(error)
    assert torch.ones(2, device="anyop").sum().item() == 2
