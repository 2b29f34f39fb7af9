# SPDX-License-Identifier: Apache-2.0
"""Continuous batching of transformers: sequences of other lengths at once have the tokens that they have alone."""

from __future__ import annotations

import os
import warnings

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="the models are transformers'")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers
if not hasattr(transformers, "ContinuousBatchingConfig"):
    pytest.skip("this transformers has no such batches", allow_module_level=True)

import anyop.torch  # noqa: E402
from anyop.testing import kernel_calls, observe  # noqa: E402
from anyop.torch.models import packed_attention  # noqa: E402

SIZES = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
FAMILIES = {  # GPT-2 and GPT-NeoX have no such batches in transformers itself
    "Llama": {}, "Mistral": {"sliding_window": 8}, "Gemma2": {"head_dim": 8, "sliding_window": 8},
    "Qwen3": {"head_dim": 8},
}  # fmt: skip
PROMPTS = [[5, 6, 7], list(range(8, 22)), [20]]  # the second is longer than a window
COUNT = 6


def tiny(family):
    config = getattr(transformers, family + "Config")(**SIZES | FAMILIES[family])
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


@torch.no_grad()
def alone(model):
    more = {"max_new_tokens": COUNT, "do_sample": False, "pad_token_id": 0}
    return [model.generate(torch.tensor([p]), **more)[0, len(p) :].tolist() for p in PROMPTS]


def together(model):
    made = transformers.GenerationConfig(
        max_new_tokens=COUNT, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    sizes = transformers.ContinuousBatchingConfig(
        num_blocks=8, max_batch_tokens=16, use_cuda_graph=False
    )
    out = model.generate_batch(
        PROMPTS, generation_config=made, continuous_batching_config=sizes, progress_bar=False
    )
    return [one.generated_tokens for one in out.values()]


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_of_a_batch_are_those_alone(family):
    """In pieces of 16 tokens: one of the prompts is read in two."""
    model = tiny(family)
    expected = alone(model)
    before = model.config._attn_implementation
    observe("attention_varlen")

    def calls():
        return sum(kernel.calls or 0 for kernel in kernel_calls("attention_varlen"))

    with anyop.torch.replace(model, verbose=False, timed=False):
        had = calls()
        assert together(model) == expected
        assert calls() - had >= COUNT * SIZES["num_hidden_layers"]
        assert model.config._attn_implementation == "anyop"
        assert alone(model) == expected
    assert model.config._attn_implementation == before


def test_another_call_while_batches_run_is_refused():
    model = tiny("Llama")
    anyop.torch.attention.register()
    model.config._attn_implementation = packed_attention.NAME
    with pytest.raises(ValueError, match="the calls of its batches alone"):
        model(torch.tensor([[1, 2, 3]]))
