# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's names on Paddle's tensors: eagerly, in to_static, and under the torch proxy where there is no torch."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

paddle = pytest.importorskip("paddle", reason="PaddlePaddle is not installed")

from anyop.torch.flashinfer import fused_moe, sampling  # noqa: E402

T, E, K, H, I = 9, 6, 2, 32, 24  # noqa: E741
# As a library would be that was written for FlashInfer.
PROGRAM = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, Block())
import paddle
paddle.compat.enable_torch_proxy(silent=True)
import torch
from anyop.torch.flashinfer.fused_moe import cutlass_fused_moe
from anyop.torch.flashinfer.sampling import top_k_top_p_sampling_from_logits
from anyop.torch import flashinfer

x, fc1, fc2 = (torch.ones(shape).to(torch.float16) / 8 for shape in ([3, 16], [4, 16, 16], [4, 16, 8]))
ids, weights = torch.tensor([[0, 1]] * 3), torch.tensor([[0.5, 0.25]] * 3)
out = cutlass_fused_moe(x, ids, weights, fc1, fc2, torch.float32, None)
assert type(out) is paddle.Tensor and out.dtype is paddle.float32, out
gate = 16 / 64
expected = 0.75 * 8 * gate * gate / (1 + 2.718281828459045 ** -gate) / 8
assert abs(float(out.max()) - expected) < 1e-3 * expected, (out, expected)
tokens = top_k_top_p_sampling_from_logits(torch.tensor([[0.0, 9.0, 1.0]] * 5), 1, 0.9)
assert tokens.tolist() == [1] * 5
assert not hasattr(flashinfer, "gemm")
try:
    from anyop.torch import deep_gemm
except ImportError as error:
    assert "is for PyTorch, and torch is Paddle here" in str(error)
print("passed")
"""


def experts() -> tuple:
    random = np.random.default_rng(0)
    shapes = (T, H), (E, 2 * I, H), (E, H, I)
    made = [paddle.to_tensor(random.standard_normal(s).astype(np.float16) / 4) for s in shapes]
    ids = paddle.to_tensor(random.integers(0, E, (T, K)))
    return (*made, ids, paddle.to_tensor(random.random((T, K), np.float32)))


@pytest.mark.parametrize("static", [False, True], ids=["eager", "to_static"])
def test_experts_of_float16(static):
    """Rounded in the end, by 2^-11, and where hidden features are: 2 * I terms of 0.01, each off by 2^-12 of itself,
    are off by 2e-5 together; six times that is allowed."""
    x, fc1, fc2, ids, weights = experts()

    def layer(x, ids, weights, fc1, fc2):
        return fused_moe.cutlass_fused_moe(x, ids, weights, fc1, fc2, paddle.float16, None)

    call = paddle.jit.to_static(layer, full_graph=True) if static else layer
    found = call(x, ids, weights, fc1, fc2)
    assert found.dtype is paddle.float16
    wide = [tensor.numpy().astype(np.float64) for tensor in (x, fc1, fc2)]
    expected = np.zeros((T, H))
    for t in range(T):
        for e, weight in zip(ids.numpy()[t], weights.numpy()[t]):
            up, gate = np.split(wide[1][e] @ wide[0][t], 2)
            expected[t] += weight * (wide[2][e] @ (gate / (1 + np.exp(-gate)) * up))
    np.testing.assert_allclose(found.numpy(), expected, rtol=2**-10, atol=2**-13)


def draws() -> dict[str, tuple]:
    random = np.random.default_rng(0)
    logits = (2 * random.standard_normal((64, 40))).astype(np.float32)
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    drafts = random.integers(0, 40, (16, 3)).astype(np.int32)
    chain = probs[:48].reshape(16, 3, 40), drafts, probs.reshape(16, 4, 40)
    k, p = np.arange(64, dtype=np.int32), np.linspace(0, 1, 64, dtype=np.float32)
    return {
        "sampling_from_logits": (logits,),
        "sampling_from_probs": (probs,),
        "top_p_sampling_from_probs": (probs, 0.8),
        "top_k_sampling_from_probs": (probs, k),
        "min_p_sampling_from_probs": (probs, 0.1),
        "top_k_top_p_sampling_from_logits": (logits, k, p),
        "top_k_top_p_sampling_from_probs": (probs, 9, 0.8),
        "chain_speculative_sampling": chain,
        "softmax": (logits, p + 1),
        "top_p_renorm_probs": (probs, p),
        "top_k_renorm_probs": (probs, k),
        "top_k_mask_logits": (logits, 5),
    }


@pytest.mark.parametrize("seeded", ["numbers", "tensors"])
@pytest.mark.parametrize("name", draws())
def test_results_are_those_of_pytorch(name, seeded):
    """The same kernels and the same random words; softmax is anyop's too."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    given, more = draws()[name], {}
    if "sampl" in name:
        B = len(given[0])
        more = {"seed": 2**64 - 7, "offset": 3}
        if seeded == "tensors":
            more = {"seed": np.arange(B), "offset": np.full(B, 5)}
    results = []
    for convert in (torch.as_tensor, paddle.to_tensor):
        made = [convert(x) if isinstance(x, np.ndarray) else x for x in given]
        by_name = {k: convert(x) if isinstance(x, np.ndarray) else x for k, x in more.items()}
        found = getattr(sampling, name)(*made, **by_name)
        results.append([x.numpy() for x in (found if isinstance(found, tuple) else [found])])
    for of_torch, of_paddle in zip(*results, strict=True):
        np.testing.assert_array_equal(of_torch, of_paddle)


def test_seeds_of_paddles_own():
    probs = paddle.full([200, 50], 0.02)
    drawn = []
    for seed in (1, 1, 2):
        paddle.seed(seed)
        drawn.append(sampling.sampling_from_probs(probs).tolist())
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(set(drawn[0])) > 30
    with pytest.raises(NotImplementedError, match="give seed and offset"):
        sampling.sampling_from_probs(probs, generator=paddle.seed(1))
    with pytest.raises(TypeError, match="ndarray is no tensor of PyTorch or Paddle"):
        sampling.sampling_from_probs(np.ones((2, 3), np.float32))


def test_under_the_proxy_without_torch():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        env={**os.environ}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.stdout.strip() == "passed", done.stderr[-3000:]
