# SPDX-License-Identifier: Apache-2.0
"""A byte-level Llama trains on this project's own pages by anyop's attention with torch's losses, to 1e-3."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device that torch can use", allow_module_level=True)
pytest.importorskip("transformers", reason="transformers is not installed")

import anyop  # noqa: E402
import anyop.torch  # noqa: E402
from anyop import testing  # noqa: E402

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers

PAGES = sorted((Path(__file__).parents[1] / "docs").glob("*.md"))
LENGTH, ROWS, STEPS = 128, 8, 300


@pytest.fixture(scope="module")
def text():
    return torch.tensor(list(b"".join(page.read_bytes() for page in PAGES)), device="cuda")


def losses(text, implementation: str, is_half: bool) -> torch.Tensor:
    """Of 300 steps of AdamW, each on eight pieces of the pages."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=LENGTH,
        attn_implementation=implementation,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    draw, found = torch.Generator().manual_seed(1), []
    for _ in range(STEPS):
        starts = torch.randint(0, len(text) - LENGTH, (ROWS,), generator=draw).tolist()
        tokens = torch.stack([text[at : at + LENGTH] for at in starts])
        with torch.autocast("cuda", torch.bfloat16, enabled=is_half):
            loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return torch.stack(found).float().cpu()


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
