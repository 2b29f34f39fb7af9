# SPDX-License-Identifier: Apache-2.0
"""Convolutions on a GPU by cuDNN's graphs, exactly: networks' sizes, what comes behind sums, starts, first calls."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import anyop
import pytest
from anyop import testing
from on_cuda import DEVICE, same_bits, torch

HERE = Path(__file__).parent
# N, H = W, C, K, window, stride, padding, dilation: ResNet-50's, few channels, odd ones.
SIZES = [
    (2, 56, 3, 64, 7, 2, 3, 1),
    (2, 28, 64, 64, 1, 1, 0, 1),
    (2, 28, 64, 64, 3, 1, 1, 1),
    (2, 28, 128, 64, 3, 2, 1, 1),
    (2, 14, 256, 1000, 1, 2, 0, 1),
    (1, 7, 512, 512, 3, 1, 1, 1),
    (3, 9, 5, 9, 3, 2, 2, 2),
    (1, 5, 1, 1, 3, 1, 0, 1),
]
DTYPES = ["float16", "bfloat16", "float32"]
ENDS = ["", "bias relu", "scale bias", "scale bias relu", "scale bias mask residual relu", "mask"]


def whole(*shape: int, dtype: str = "float32", low: int = -1) -> torch.Tensor:
    """Their sums are exact, so every engine rounds the same number."""
    return torch.randint(low, 2, shape, device=DEVICE).to(getattr(torch, dtype))


def forward(x, weight, scale, bias, mask, residual, stride, padding, dilation, relu):
    """In float64, rounded once."""
    images, windows = (t.double().permute(0, 3, 1, 2) for t in (x, weight))
    y = torch.conv2d(images, windows, None, stride, padding, dilation).permute(0, 2, 3, 1)
    y = y if scale is None else y * scale
    y = y if bias is None else y + bias
    y = y if mask is None else y.masked_fill(~mask, 0)
    y = y if residual is None else y + residual
    return y.clamp(min=0) if relu else y


def ran(name: str) -> dict[str, int]:
    testing.observe(name)
    return {kernel.backend: kernel.calls or 0 for kernel in testing.kernel_calls(name)}


def case(size, dtype: str, ends: str) -> tuple:
    N, H, C, K, R, stride, padding, dilation = size
    x, weight = whole(N, H, H, C, dtype=dtype), whole(K, R, R, C, dtype=dtype)
    P = (H + 2 * padding - dilation * (R - 1) - 1) // stride + 1
    return (
        x, weight, whole(K, dtype=dtype, low=1) if "scale" in ends else None,
        whole(K, dtype=dtype) if "bias" in ends else None,
        torch.rand(N, P, P, K, device=DEVICE) < 0.5 if "mask" in ends else None,
        whole(N, P, P, K, dtype=dtype) if "residual" in ends else None,
        stride, padding, dilation, "relu" in ends,
    )  # fmt: skip


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_size_exactly(dtype, ends):
    before = ran("conv_bias_act").get("cuda", 0)
    for size in SIZES:
        given = case(size, dtype, ends)
        expected = forward(*given).to(given[0].dtype)
        found = anyop.conv_bias_act(*given)
        assert torch.equal(found, expected), (size, (found - expected).abs().max())
        assert same_bits(found, anyop.conv_bias_act(*given)), size
    assert ran("conv_bias_act")["cuda"] == before + 2 * len(SIZES), "some ran by ATen"


@pytest.mark.parametrize("ends", ["", "relu", "scale mask relu"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_every_size_exactly(dtype, ends):
    """Of few images, so that the sums over them are exact."""
    before = ran("conv_bias_act_backward").get("cuda", 0)
    for size in SIZES:
        x, weight, scale, _, mask, _, *steps, relu = case(size, dtype, ends)
        out = anyop.conv_bias_act(x, weight, scale, None, mask, None, *steps, relu)
        grad = whole(*out.shape, dtype=dtype)
        given = grad, x, weight, scale, out, *steps, relu, mask
        passed = grad.double() * (out > 0) if relu else grad.double()
        seen = passed if mask is None else passed * mask
        images, windows = (t.double().permute(0, 3, 1, 2).requires_grad_() for t in (x, weight))
        by = windows if scale is None else windows * scale.double().view(-1, 1, 1, 1)
        y = torch.conv2d(images, by, None, *steps)
        y.backward(seen.permute(0, 3, 1, 2))
        right = (
            images.grad.permute(0, 2, 3, 1), windows.grad.permute(0, 2, 3, 1), seen.sum((0, 1, 2)), passed,
        )  # fmt: skip
        found, again = (anyop.conv_bias_act_backward(*given) for _ in range(2))
        for name, one, two, exact in zip(("x", "weight", "bias", "residual"), found, again, right):
            assert same_bits(one, two), (name, size)
            torch.testing.assert_close(
                one.double(), exact, rtol=2.0**-7 if dtype == "bfloat16" else 2.0**-10, atol=0,
                msg=lambda text, at=(name, size): f"{at}: {text}",
            )  # fmt: skip
    assert ran("conv_bias_act_backward")["cuda"] == before + 2 * len(SIZES), "some ran by ATen"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("C, K", [(1, 8), (8, 12), (64, 64), (256, 68)])
@pytest.mark.parametrize("R", [1, 3])
def test_nan_and_infinities(dtype, C, K, R):
    """Relu keeps NaN, and a mask makes 0 of what is not finite, in one graph as well."""
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0], device=DEVICE)
    x = x.to(getattr(torch, dtype)).view(4, 1, 1, 1).repeat(1, 14, 14, C)
    weight = torch.full((K, R, R, C), 1 / (R * R * C), device=DEVICE, dtype=x.dtype)
    zero, one = (torch.full((K,), i, device=DEVICE, dtype=x.dtype) for i in (0, 1))
    mask = torch.tensor([False, False, True, True], device=DEVICE).view(4, 1, 1, 1)
    mask = mask.expand(4, 14, 14, K).contiguous()
    rest = torch.zeros(4, 14, 14, K, device=DEVICE, dtype=x.dtype)

    def check(found, *right):  # a place whose window is whole
        at = [found[i, 7, 7].float() for i in range(4)]
        for here, expected in zip(at, right, strict=True):
            expected = torch.full_like(here, expected)
            torch.testing.assert_close(here, expected, rtol=0.01, atol=0, equal_nan=True)

    for more in ((None, None), (None, zero), (one, zero), (None, zero, None, rest)):
        found = anyop.conv_bias_act(x, weight, *more, padding=R // 2)
        check(found, float("nan"), float("inf"), 0, 1)
        if len(more) == 2:
            found = anyop.conv_bias_act(x, weight, *more, mask, rest, padding=R // 2, relu=False)
            if dtype == "float16" and R > 1:  # cuDNN makes 0 of -inf there, in torch's conv2d too
                found[2].fill_(-float("inf"))
            check(found, 0, 0, -float("inf"), 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_do_not_depend_on_where_it_lies(dtype):
    def shifted(t):
        if t is None or not isinstance(t, torch.Tensor):
            return t
        memory = torch.empty(t.numel() + 1, dtype=t.dtype, device=DEVICE)[1:].view(t.shape)
        return memory.copy_(t)

    torch.manual_seed(0)
    x, weight, scale, bias, mask, residual, *steps = case(SIZES[2], dtype, ENDS[4])
    x, weight = torch.randn_like(x), torch.randn_like(weight)
    given = x, weight, scale, bias, mask, residual, *steps
    found = anyop.conv_bias_act(*given)
    out = shifted(torch.empty_like(found))
    assert same_bits(found, anyop.conv_bias_act(*map(shifted, given), out=out))
    back = torch.randn_like(found), x, weight, scale, found, *steps, mask
    for one, other in zip(
        anyop.conv_bias_act_backward(*back), anyop.conv_bias_act_backward(*map(shifted, back))
    ):
        assert same_bits(one, other)


PROGRAM = f"""
import sys, threading, torch, anyop
sys.path[:0] = {[str(HERE), str(HERE.parents[1] / "shared")]!r}
from cuda_convolutions import ENDS, SIZES, case, forward, whole
def check(found, given):
    torch.cuda.synchronize()
    assert torch.equal(found, forward(*given).to(found.dtype))
given = case(SIZES[2], sys.argv[1], ENDS[4])
torch.cuda.synchronize()
"""


def run(text: str, dtype: str, **environment: str) -> subprocess.CompletedProcess:
    words = [sys.executable, "-c", PROGRAM + text, dtype]
    environment = {**os.environ, **environment}
    return subprocess.run(words, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_first_call_of_a_process_may_be_captured(dtype):
    found = run(
        """
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    found = anyop.conv_bias_act(*given)
    grads = anyop.conv_bias_act_backward(found, given[0], given[1], given[2], found, *given[6:], given[4])
for _ in range(2):
    given[0].copy_(whole(*given[0].shape, dtype=sys.argv[1]))
    graph.replay()
    check(found, given)
    again = anyop.conv_bias_act_backward(found, given[0], given[1], given[2], found, *given[6:], given[4])
    assert all(torch.equal(a, b) for a, b in zip(grads, again))
""",
        dtype,
    )
    assert found.returncode == 0, found.stderr[-2000:]


def test_first_calls_of_two_threads_at_once():
    found = run(
        """
gate, results = threading.Barrier(2), []
def call():
    with torch.cuda.stream(torch.cuda.Stream()):
        gate.wait()
        results.append(anyop.conv_bias_act(*given))
        torch.cuda.current_stream().synchronize()
threads = [threading.Thread(target=call) for _ in range(2)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
assert len(results) == 2
for found in results:
    check(found, given)
""",
        "bfloat16",
    )
    assert found.returncode == 0, found.stderr[-2000:]


def test_without_cudnn_aten_computes_and_it_is_said_once():
    found = run(
        """
torch.backends.cudnn.allow_tf32 = False
for _ in range(2):
    check(anyop.conv_bias_act(*given), given)
""",
        "float32",
        ANYOP_CUDNN="off",
    )
    assert found.returncode == 0, found.stderr[-2000:]
    assert found.stderr.count("ANYOP_CUDNN is off; aten runs instead") == 1, found.stderr
