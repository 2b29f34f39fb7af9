# SPDX-License-Identifier: Apache-2.0
"""transformers' models with attn_implementation="anyop": their logits, tokens and gradients are those of eager."""

from __future__ import annotations

import copy
import sys
import warnings

import anyop
import anyop.torch
import pytest
import serving
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers

from transformers import masking_utils

KINDS = serving.KINDS | {
    "chunks": lambda: transformers.Llama4TextConfig(
        **serving.SIZES, attention_chunk_size=8, num_local_experts=2, num_experts_per_tok=1
    ),
}
TOKENS = torch.randint(3, 200, (2, 33), generator=torch.Generator().manual_seed(1))
PADDED = torch.ones_like(TOKENS).index_put_((torch.tensor(0), torch.arange(5)), torch.tensor(0))
ALONE = torch.ones_like(TOKENS)


@pytest.fixture(autouse=True, scope="module")
def known():
    anyop.torch.attention.register()


@pytest.fixture
def calls(monkeypatch):
    """What anyop.attention was given: whether a mask, and the options."""
    seen, own = [], anyop.attention

    def attention(q, k, v, mask, scale, causal, **options):
        seen.append({"mask": mask is not None, "causal": causal} | options)
        return own(q, k, v, mask, scale, causal, **options)

    monkeypatch.setattr(anyop, "attention", attention)
    return seen


def model(config, implementation, factory=transformers.AutoModelForCausalLM):
    """The same weights each time, large enough that scores differ."""
    torch.manual_seed(0)
    made = factory.from_config(copy.deepcopy(config), attn_implementation=implementation).eval()
    with torch.no_grad():
        for weight in made.parameters():
            weight.mul_(6 if weight.dim() > 1 else 1)
    return made


def both(kind):
    config = KINDS[kind]()
    return model(config, "eager"), model(config, "anyop")


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_greedy_tokens(kind, calls):
    eager, ours = both(kind)
    how = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    for mask in (ALONE, PADDED):
        with torch.no_grad():
            wanted = eager(TOKENS, attention_mask=mask).logits[mask.bool()]
            found = ours(TOKENS, attention_mask=mask).logits[mask.bool()]
        torch.testing.assert_close(found, wanted, rtol=2e-4, atol=2e-4)
        tokens = [m.generate(TOKENS, attention_mask=mask, **how) for m in (eager, ours)]
        assert torch.equal(*tokens)
    assert len(calls) == 2 * 2 * (1 + 6)  # masks, layers, calls


@pytest.mark.parametrize("kind", ["causal", "window", "softcap", "sinks"])
def test_bounds_are_given_without_a_mask(kind, calls):
    _, ours = both(kind)
    ours.generate(TOKENS, attention_mask=ALONE, max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert not any(call["mask"] for call in calls)
    prefill = calls[:2]
    assert all(call["causal"] for call in prefill)
    windows = {"causal": [-1, -1], "window": [8, 8]}.get(kind, [7, -1])
    assert [call["window_left"] for call in prefill] == windows
    assert {call["softcap"] for call in calls} == {5.0 if kind == "softcap" else 0.0}
    assert {call["sinks"] is not None for call in calls} == {kind == "sinks"}


@pytest.mark.parametrize("kind", ["causal", "window"])
def test_more_tokens_behind_a_cache(kind, calls):
    """As speculative decoding does: several queries, the last of which is the last key."""
    eager, ours = both(kind)
    with torch.no_grad():
        cache = ours(TOKENS[:, :20]).past_key_values
        calls.clear()
        found = ours(TOKENS[:, 20:], past_key_values=cache).logits
        wanted = eager(TOKENS).logits[:, 20:]
    torch.testing.assert_close(found, wanted, rtol=2e-4, atol=2e-4)
    assert [call["mask"] for call in calls] == [False, False]
    offset = {"causal": 20, "window": 8}[kind]  # a window's cache has dropped what nobody sees
    assert [call["offset"] for call in calls] == [offset, offset]


def test_a_static_cache(calls):
    eager, ours = both("causal")
    how = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    how |= {"cache_implementation": "static", "disable_compile": True}
    tokens = [m.generate(TOKENS, attention_mask=PADDED, **how) for m in (eager, ours)]
    assert torch.equal(*tokens)


def test_a_mask_that_a_model_cuts_is_read(calls):
    """What a mask says is lost with its slice, which is a mask as good."""
    ours = model(KINDS["causal"](), "anyop")
    layer = ours.model.layers[0].self_attn
    made = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS["anyop"](
        batch_size=2, q_length=4, kv_length=9, q_offset=5, kv_offset=0
    )
    q, k = torch.randn(2, 4, 4, 16), torch.randn(2, 2, 9, 16)
    told, _ = anyop.torch.attention.forward(layer, q, k, k, made)
    read, _ = anyop.torch.attention.forward(layer, q, k, k, made[:, :, :, :])
    assert [call["mask"] for call in calls] == [False, True]
    torch.testing.assert_close(told, read, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["causal", "sinks"])
def test_gradients(kind):
    models = both(kind)
    for each in models:
        each(TOKENS, attention_mask=ALONE, labels=TOKENS).loss.backward()
    for (name, wanted), found in zip(models[0].named_parameters(), models[1].parameters()):
        size = wanted.grad.abs().max()
        torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-3, atol=1e-4 * size, msg=name)


def test_encoders_and_learned_position_biases():
    config = transformers.T5Config(
        vocab_size=200, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, dropout_rate=0.0
    )
    eager, ours = (model(config, name, transformers.AutoModel) for name in ("eager", "anyop"))
    for mask in (ALONE, PADDED):
        given = {"input_ids": TOKENS, "attention_mask": mask, "decoder_input_ids": TOKENS[:, :7]}
        with torch.no_grad():
            wanted, found = eager(**given), ours(**given)
        torch.testing.assert_close(found[0], wanted[0], rtol=2e-4, atol=2e-4)
    with pytest.raises(NotImplementedError, match="has no gradient of position biases: train this"):
        ours(**given)


def test_compiled():
    ours = model(KINDS["window"](), "anyop")
    compiled = torch.compile(ours, backend="aot_eager")
    with torch.no_grad():
        wanted, found = ours(TOKENS).logits, compiled(TOKENS).logits
    torch.testing.assert_close(found, wanted, rtol=2e-4, atol=2e-4)


def test_dropout_is_refused():
    ours = model(transformers.LlamaConfig(**serving.SIZES, attention_dropout=0.1), "anyop").train()
    with pytest.raises(ValueError, match=r"has no dropout, and the model asks for 0\.1: set its"):
        ours(TOKENS)


def test_without_transformers(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"needs transformers 4\.56 or newer: pip install"):
        anyop.torch.attention.register()
