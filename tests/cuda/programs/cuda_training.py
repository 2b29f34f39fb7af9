# SPDX-License-Identifier: Apache-2.0
"""A byte-level Llama trains on this project's own pages by anyop with torch's losses, to 1e-3, in less memory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device that torch can use", allow_module_level=True)
pytest.importorskip("transformers", reason="transformers is not installed")

import anyop  # noqa: E402
import anyop.torch  # noqa: E402
from anyop import testing  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
import byte_training  # noqa: E402

LENGTH, ROWS, STEPS = 128, 8, 300


@pytest.fixture(scope="module")
def text():
    return byte_training.pages().cuda()


def model_of(implementation: str):
    return byte_training.llama(256, LENGTH, implementation).cuda()


def losses_of(model, text, is_half: bool) -> torch.Tensor:
    return byte_training.losses(model, text, ROWS, LENGTH, STEPS, 3e-4, is_half)


def losses(text, implementation: str, is_half: bool) -> torch.Tensor:
    return losses_of(model_of(implementation), text, is_half)


def gradients_by_cuda() -> int:
    """How many of attention's gradients kernels of anyop's have computed."""
    testing.observe("attention_backward")
    counted = testing.kernel_calls("attention_backward")
    return sum(kernel.calls or 0 for kernel in counted if kernel.backend.startswith("cuda"))


@pytest.fixture(scope="module")
def exact(text):
    return losses(text, "sdpa", is_half=False)


def by_anyop(text, is_half: bool) -> torch.Tensor:
    anyop.torch.attention.register()
    before = gradients_by_cuda()
    found = losses(text, "anyop", is_half)
    assert gradients_by_cuda() == before + 2 * STEPS
    return found


def test_losses_over_300_steps(text, exact):
    assert exact[-20:].mean() < 0.75 * exact[:20].mean()
    torch.testing.assert_close(by_anyop(text, is_half=False), exact, rtol=0, atol=1e-3)


def test_losses_under_autocast(text, exact):
    """In bfloat16 no farther from those of float32 than twice what torch's are."""
    right, found = losses(text, "sdpa", is_half=True), by_anyop(text, is_half=True)
    assert (found - exact).square().mean() <= 4 * (right - exact).square().mean()


def test_losses_with_everything_replaced(text, exact):
    model = model_of("sdpa")
    replaced = anyop.torch.replace(model, fuse=True, timed=False, verbose=False)
    assert replaced.swapped["Linear"] and replaced.swapped["LlamaForCausalLM"] == 1
    torch.testing.assert_close(losses_of(model, text, is_half=False), exact, rtol=0, atol=1e-3)


def test_losses_of_a_replaced_model_under_autocast(text, exact):
    right, model = losses(text, "sdpa", is_half=True), model_of("sdpa")
    anyop.torch.replace(model, fuse=True, timed=False, verbose=False)
    found = losses_of(model, text, is_half=True)
    assert (found - exact).square().mean() <= 4 * (right - exact).square().mean()


def test_a_step_needs_less_memory_than_the_logits_take():
    """1 GiB of logits in float32, which torch has twice at least; by the GPU's own figures and by torch's."""
    theirs, ours = (byte_training.llama(256, 1024, V=32768, layers=2).cuda() for _ in range(2))
    anyop.torch.replace(ours, timed=False, verbose=False)
    taken = []
    for model in (ours, theirs):
        torch.cuda.reset_peak_memory_stats()
        had = torch.cuda.memory_allocated()
        of_gpu = byte_training.step_bytes(model, 8, 1024)
        taken.append((of_gpu, torch.cuda.max_memory_allocated() - had))
    print(
        "MiB of the GPU and of torch's allocator, ours and theirs:",
        [[n >> 20 for n in t] for t in taken],
    )
    assert max(taken[0]) < 1 << 30
    assert min(taken[1]) > 2 << 30
