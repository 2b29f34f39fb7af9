# SPDX-License-Identifier: Apache-2.0
"""The standard tests of operators with CUDA kernels, on CUDA tensors: by anyop and by torch.ops.

How arrays get there, and the guards around them: anyop/testing/torch_memory.py.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import anyop
import pytest
from anyop import testing
from anyop.testing.torch_memory import fits_torch, on_device, takes_less
from on_cuda import SUBJECTS, torch


def by_anyop(name: str):
    return getattr(anyop, name)


def by_torch(name: str):
    """The operator of torch.ops, which takes results by keyword: out=, and False for one not wanted."""
    pytest.importorskip("anyop.torch", reason="anyop.torch is not there")
    overloads = getattr(torch.ops.anyop, name)

    def call(*positional, **named):
        results = [p["name"] for p in SUBJECTS[name].results]
        if any(result in named for result in results):
            pytest.skip("torch.ops takes no results")
        for param in SUBJECTS[name].attributes:
            if param["kind"] == "ScalarType" and isinstance(named.get(param["name"]), str):
                named[param["name"]] = getattr(torch, named[param["name"]])
        return overloads(*positional, **named)

    return call


def on_cuda(function):
    """The function of NumPy arrays that runs the operator on CUDA tensors."""
    return on_device(function, "cuda")


FEW_SIZES = {"decoder_layer"}  # most of the cases are of sizes that their kernels do not take
CHOICES = [
    pytest.param(subject, choice, id=f"{name}-{choice}")
    for name, subject in SUBJECTS.items()
    for choice in testing.dtype_choices(subject.metadata)
]


def test_there_are_operators():
    assert {"add", "rms_norm", "rms_norm_backward"} <= set(SUBJECTS)


@pytest.mark.parametrize(("subject", "choice"), CHOICES)
def test_good_inputs(subject, choice):
    there = replace(subject, function=on_cuda(by_anyop(subject.name)))
    failures, kinds, left_out = [], Counter(), 0
    cases = testing.standard_cases(subject, choice)
    if not choice.is_uniform:
        cases = cases[::4]
    for case in cases:
        if not fits_torch(case):
            left_out += 1
            continue
        try:
            testing.check_case(there, case)
        except testing.CheckError as error:
            if takes_less(error, "cuda"):
                left_out += 1
                continue
            failures.append(str(error))
        kinds[case.what] += 1
    if failures:
        pytest.fail(f"{len(failures)} failures:\n" + "\n".join(failures[:8]), pytrace=False)
    if not kinds:
        pytest.skip(f"CUDA takes none of these {left_out} calls")
    # Lists have tensors of all sizes in one case.
    least = 20 if subject.metadata["symbols"]["element_groups"] else 40
    assert (
        kinds.total() >= (least if choice.is_uniform else least // 4) or subject.name in FEW_SIZES
    )
    assert left_out < kinds.total() or subject.name in FEW_SIZES


@pytest.mark.parametrize("name", SUBJECTS)
def test_torch_ops_gives_the_same_bits(name):
    call = by_torch(name)
    for choice in testing.dtype_choices(SUBJECTS[name].metadata)[:8]:
        good = testing.Good(SUBJECTS[name], choice)
        try:
            expected = on_cuda(by_anyop(name))(**good.arguments())
        except NotImplementedError as error:
            assert takes_less(error, "cuda")
            continue
        found = on_cuda(call)(**good.arguments())
        if expected is None:  # it writes an argument
            continue
        pairs = zip(found, expected) if isinstance(expected, tuple) else [(found, expected)]
        for one, other in pairs:
            assert one.dtype == other.dtype and one.tobytes() == other.tobytes()


# Around what decides how a row is divided: vectors of 16 bytes, lanes, blocks, registers, two passes.
WIDTHS = [
    1, 2, 3, 7, 8, 9, 31, 32, 33, 64, 127, 128, 255, 256, 257, 512, 1000, 1024, 1032, 2048, 4095, 4096, 4104, 7168,
    8192, 8200, 16384, 16392, 32768, 65536, 65537, 65544, 131072, 200003,
]  # fmt: skip
DTYPES = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3, "float64": 1e-13}


def rows(count: int, D: int, dtype: torch.dtype, seed: int, pad: int = 0) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    wide = torch.randn(count, D + pad, generator=generator, device="cuda", dtype=torch.float64)
    return wide.to(dtype)[:, :D]


def backward_reference(grad, x, weight, eps):
    grad, x, weight = grad.double(), x.double(), weight.double()
    scale = (x.square().mean(1, keepdim=True) + eps).rsqrt()
    product = grad * weight
    grad_x = scale * (product - x * scale.square() * (product * x).mean(1, keepdim=True))
    # What is subtracted from what in grad_x, and added up in grad_weight, decides the errors.
    size_x = scale * (
        product.abs() + x.abs() * scale.square() * (product * x).abs().mean(1, keepdim=True)
    )
    terms = grad * x * scale
    return (grad_x, size_x), (terms.sum(0), terms.abs().sum(0))


def check_gradients(found, grad, x, weight, eps, limit):
    for one, (expected, size) in zip(found, backward_reference(grad, x, weight, eps), strict=True):
        assert one.shape == expected.shape
        assert ((one.double() - expected).abs() <= limit * (1 + size)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("D", WIDTHS)
@pytest.mark.parametrize("pad", [0, 1, 16])
def test_rows_of_every_width(D, pad, dtype):
    """Forward and backward; rows side by side, and with a gap that leaves them aligned or not."""
    kind, limit = getattr(torch, dtype), DTYPES[dtype]
    x, grad = rows(37, D, kind, 1, pad), rows(37, D, kind, 2, pad)
    weight = rows(1, D, kind, 3)[0]
    eps = 1e-5
    out = anyop.rms_norm(x, weight, eps)
    X, W = x.double(), weight.double()
    expected = X * (X.square().mean(1, keepdim=True) + eps).rsqrt() * W
    assert ((out.double() - expected).abs() <= limit * (1 + expected.abs())).all()
    grad_x, grad_weight = anyop.rms_norm_backward(grad, x, weight, eps)
    check_gradients((grad_x, grad_weight), grad, x, weight, eps, limit)
    only_x = anyop.rms_norm_backward(grad, x, weight, eps, grad_weight=False)
    only_weight = anyop.rms_norm_backward(grad, x, weight, eps, grad_x=False)
    assert only_x[1] is None and only_weight[0] is None
    assert torch.equal(only_x[0], grad_x) and torch.equal(only_weight[1], grad_weight)
    again = anyop.rms_norm_backward(grad, x, weight, eps)
    assert torch.equal(again[0], grad_x) and torch.equal(again[1], grad_weight)


@pytest.mark.parametrize("count", [0, 1, 2, 131, 132, 133, 265, 5000, 70001])
def test_any_number_of_rows(count):
    for D in (64, 1000, 1001):
        x, grad = rows(count, D, torch.float32, 1), rows(count, D, torch.float32, 2)
        weight = rows(1, D, torch.float32, 3)[0]
        X, W = x.double(), weight.double()
        expected = X * (X.square().mean(1, keepdim=True) + 1e-6).rsqrt() * W
        assert (
            (anyop.rms_norm(x, weight).double() - expected).abs().max().item() < 1e-5
            if count
            else True
        )
        check_gradients(anyop.rms_norm_backward(grad, x, weight), grad, x, weight, 1e-6, 2e-6)


def test_a_row_of_zeros_is_zero_with_the_smallest_eps():
    x = torch.zeros(3, 40, device="cuda")
    assert torch.equal(anyop.rms_norm(x, torch.ones(40, device="cuda"), 1e-300), x)


@pytest.mark.parametrize("numel", [1, 7, 8, 9, 4095, 4096, 4097, (1 << 20) + 3])
@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float16", "float64", "int64", "int16", "uint8", "bool"]
)
def test_add_of_every_length_and_offset(numel, dtype):
    kind = getattr(torch, dtype)
    generator = torch.Generator("cuda").manual_seed(numel)
    base = [
        torch.randint(0, 9, (numel + 3,), generator=generator, device="cuda").to(kind)
        for _ in range(2)
    ]
    for first, second in ((0, 0), (1, 0), (1, 1), (0, 3)):
        x, y = base[0][first : first + numel], base[1][second : second + numel]
        alpha = 1 if dtype == "bool" else 2
        found, expected = anyop.add(x, y, alpha=alpha), torch.add(x, y, alpha=alpha)
        assert found.dtype == expected.dtype and torch.equal(found, expected)
        out = torch.empty(numel + 1, dtype=kind, device="cuda")[1:]
        assert anyop.add(x, y, out=out) is out and torch.equal(out, torch.add(x, y))


def test_add_broadcasts_views_of_every_kind():
    base = torch.randn(8, 12, 16, device="cuda")
    views = [
        base, base.permute(2, 1, 0), base[:, ::3], base[..., ::2], base[2:3], base[:, :1, 4:8],
        base[0, 0].expand(12, 16), base[:, :, :1], base[:1, :1, :1], base.sum(),
    ]  # fmt: skip
    compared = 0
    for x in views:
        for y in views:
            try:
                expected = x + y
            except RuntimeError:
                continue
            assert torch.equal(anyop.add(x, y), expected)
            out = torch.empty(expected.shape[::-1], device="cuda").permute(
                tuple(range(expected.ndim))[::-1]
            )
            assert torch.equal(anyop.add(x, y, out=out), expected)
            compared += 1
    assert compared >= 40


def test_more_than_two_to_the_31_elements():
    """Places are 64-bit. 6 GB of one byte each."""
    free, _ = torch.cuda.mem_get_info()
    numel = (1 << 31) + 4099
    if free < 4 * numel:
        pytest.skip(f"{free >> 30} GiB are free, {4 * numel >> 30} are needed")
    x = torch.zeros(numel, dtype=torch.uint8, device="cuda")
    x[-5:], x[0] = 7, 3
    out = anyop.add(x, x)
    assert int(out[0]) == 6 and out[-5:].tolist() == [14] * 5 and int(out[1:-5].max()) == 0
    wide = x[: numel // 64 * 64].view(torch.float16).view(-1, 32)
    wide[-1] = 1
    normal = anyop.rms_norm(wide, torch.full((32,), 2, dtype=torch.float16, device="cuda"))
    assert normal[-1].tolist() == [2.0] * 32
