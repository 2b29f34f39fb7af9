# SPDX-License-Identifier: Apache-2.0
"""anyop.torch.replace of transformers' decoders: tokens, logits and gradients stay the model's own."""

from __future__ import annotations

import copy
import functools
import gc
import os
import pickle
import warnings

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="the models are transformers'")

import anyop.torch  # noqa: E402
from anyop.testing import kernel_calls, observe  # noqa: E402

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers

FULL = bool(os.environ.get("ANYOP_TEST_FULL"))
SIZES = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
FAMILIES = {  # name of the configuration: settings
    "Llama": {},
    "Qwen2": {},
    "Qwen3": {"head_dim": 8},
    "Mistral": {"sliding_window": 8},
    "Gemma2": {"head_dim": 8, "sliding_window": 8},
    "Gemma3Text": {"head_dim": 8, "sliding_window": 8},
    "Phi": {},
    "Phi3": {},
    "Granite": {"residual_multiplier": 0.5, "embedding_multiplier": 2.0},
    "Olmo": {},
    "Olmo2": {},
    "GPT2": {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 256},
    "GPTNeoX": {"num_key_value_heads": None},
}
PROMPTS = torch.randint(3, 61, (2, 9), generator=torch.Generator().manual_seed(0))
GREEDY = {"max_new_tokens": 200 if FULL else 20, "do_sample": False, "pad_token_id": 0}


def tiny(family, **more):
    """A causal model whose random weights are large enough that logits differ."""
    config = getattr(transformers, family + "Config")(**SIZES | FAMILIES.get(family, {}) | more)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():  # ones and zeros hide a formula
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


REPLACED = []


def replace(model, **more):
    REPLACED.append(anyop.torch.replace(model, **{"verbose": False, "timed": False} | more))
    return REPLACED[-1]


@pytest.fixture(autouse=True)
def undone():
    """Functions of transformers' files are their own again."""
    yield
    while REPLACED:
        REPLACED.pop().undo()


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_are_the_models(family):
    model = tiny(family)
    before = model.config._attn_implementation
    with torch.no_grad():
        expected, logits = model.generate(PROMPTS, **GREEDY), model(PROMPTS).logits
        with replace(model) as replaced:
            found, ours = model.generate(PROMPTS, **GREEDY), model(PROMPTS).logits
        undone = model(PROMPTS).logits
    assert torch.equal(found, expected) and found.unique().numel() > 5
    torch.testing.assert_close(ours, logits, rtol=1e-4, atol=1e-4)
    assert torch.equal(undone, logits) and model.config._attn_implementation == before
    assert replaced.swapped["attention"] == 2
    assert replaced.swapped["rope"] == (0 if family == "GPT2" else 2)
    layers = sum(n for name, n in replaced.swapped.items() if name.endswith("DecoderLayer"))
    assert layers == (0 if family in ("Phi", "Olmo", "Olmo2", "GPT2", "GPTNeoX") else 2)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_logits_of_bfloat16_are_as_near_as_the_models(family):
    """To float32 logits: at most twice as far as transformers' own of bfloat16."""
    model = tiny(family).bfloat16()
    wide = copy.deepcopy(model).float()(PROMPTS).logits
    theirs = (model(PROMPTS).logits - wide).abs()
    replace(model)
    ours = (model(PROMPTS).logits - wide).abs()
    assert ours.max() <= 2 * theirs.max() and ours.mean() <= 2 * theirs.mean()


def gradients(model, **more):
    """Of all parameters, with the loss, by labels in training mode."""
    model.train().zero_grad()
    torch.manual_seed(1)
    loss = model(PROMPTS, labels=PROMPTS, **more).loss
    loss.backward()
    return [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_and_gradients_are_the_models(family):
    """GPT-2 has dropout in its attention: the same random numbers, as those calls are transformers'."""
    model = tiny(family)
    expected = gradients(model)
    with replace(model):
        found = gradients(model)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_near_to_those_of_float64(family):
    """Transformers' own of float32 are off by at most 1.2e-6 of a parameter's norm, those of anyop's by 2e-6."""
    model = tiny(family)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    exact = gradients(copy.deepcopy(model).double())
    with replace(model, fuse=True):
        found = gradients(model)
    for ours, right in zip(found, exact, strict=True):
        # Biases of keys change no probability: their gradients are rounding.
        assert (ours - right).norm() <= 5e-6 * right.norm() + 1e-8
        assert ours.dtype is torch.float32


def test_gradient_checkpointing_changes_nothing():
    model = tiny("Qwen3")
    expected = gradients(model)
    replace(model)
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable()
    for ours, theirs in zip(gradients(model, use_cache=False), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-5)


@torch.no_grad()
def test_a_static_cache_and_one_compiled_graph():
    model = tiny("Llama")
    expected, logits = model.generate(PROMPTS, **GREEDY), model(PROMPTS).logits
    replace(model, fuse=True)
    how = GREEDY | {"cache_implementation": "static", "disable_compile": True}
    assert torch.equal(model.generate(PROMPTS, **how), expected)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    found = compiled(PROMPTS, use_cache=False).logits
    torch.testing.assert_close(found, logits, rtol=1e-4, atol=1e-4)


WAYS = {
    "no cache": {"use_cache": False},
    "beams": {"num_beams": 3},
    "static": {"cache_implementation": "static", "disable_compile": True},
    "padded": {"attention_mask": (torch.arange(9) >= torch.tensor([[4], [0]])).long()},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", ["Qwen3", "Gemma2"])
@torch.no_grad()
def test_other_ways_to_generate(family, way):
    """Beams and windows move the cache's rows and forget its keys; padding is a mask of no bound."""
    model, how = tiny(family), GREEDY | WAYS[way]
    expected = model.generate(PROMPTS, **how)
    replace(model, fuse=True)
    assert torch.equal(model.generate(PROMPTS, **how), expected)


@torch.no_grad()
def test_copies_and_pickles_stay_replaced():
    model = tiny("Qwen3")
    expected = model(PROMPTS).logits
    replaced = replace(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.config._attn_implementation == "anyop"
        assert [type(m) for m in other.modules()] == [type(m) for m in model.modules()]
        torch.testing.assert_close(other(PROMPTS).logits, expected, rtol=1e-4, atol=1e-4)
    replaced.undo()
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(model(PROMPTS).logits, expected)


def test_attention_is_chosen_by_its_kind_and_left_where_it_is_another_formula(monkeypatch):
    model = tiny("Llama")
    replaced = replace(model, modules=["attention"])
    assert replaced.swapped == {"attention": 2} and model.config._attn_implementation == "anyop"
    assert not replace(model, modules=["attention"]).swapped
    replaced.undo()
    module = transformers.models.llama.modeling_llama
    own = module.eager_attention_forward
    monkeypatch.setattr(
        module, "eager_attention_forward", lambda *a, **k: (own(*a, **k)[0] + 1, None)
    )
    replaced = replace(model, modules=["attention"])
    reason = "LlamaAttention does not compute attention"
    assert replaced.left == {("attention", reason): 2} and not replaced.swapped
    assert model.config._attn_implementation == "sdpa"
    gpt2 = tiny("GPT2")
    replace(gpt2)
    assert gpt2.config._attn_implementation == "anyop_with_dropout"


JOINED = {"Llama": 2, "Qwen2": 2, "Gemma2": 2, "Gemma3Text": 2, "Olmo2": 2, "Phi": 0}  # gated parts


@pytest.mark.parametrize("family", JOINED)
def test_fused_products_give_the_same_tokens_states_and_gradients(family):
    model = tiny(family)
    states = {name: value.clone() for name, value in model.state_dict().items()}
    expected, wanted = gradients(model), model.eval().generate(PROMPTS, **GREEDY)
    kept = list(map(id, model.parameters()))
    with replace(model, fuse=True) as replaced:
        assert replaced.joined["q_proj, k_proj, v_proj"] == 2
        assert replaced.joined["gate_proj, up_proj"] == JOINED[family]
        assert list(map(id, model.parameters())) == kept
        for ours, theirs in zip(gradients(model), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-5)
        assert torch.equal(model.eval().generate(PROMPTS, **GREEDY), wanted)
        same_states(model, states)
    assert torch.equal(model.generate(PROMPTS, **GREEDY), wanted)
    same_states(model, states)
    assert len({p.untyped_storage().data_ptr() for p in model.parameters()}) == len(kept)


def same_states(model, states):
    found = model.state_dict()
    assert list(found) == list(states)
    assert all(torch.equal(found[name], value) for name, value in states.items())


def calls(run, *operators):
    """How often run calls each of the operators."""

    def counts():
        for name in operators:
            observe(name)
        return [sum(kernel.calls or 0 for kernel in kernel_calls(name)) for name in operators]

    before = counts()
    run()
    return [now - then for now, then in zip(counts(), before, strict=True)]


def products(run):
    return calls(run, "linear", "linear_gated")


@torch.no_grad()
def test_joined_weights_follow_every_change(tmp_path):
    """A step is o, down and qkv of each layer, the head, and a gated product a layer."""
    plain, other = tiny("Qwen2"), tiny("Qwen2")
    for parameter in other.parameters():
        parameter.mul_(-0.5)
    ours = copy.deepcopy(plain)
    replaced = replace(ours, fuse=True)

    def same(ours=ours, fused=True):
        with torch.no_grad():
            found = ours(PROMPTS).logits
            torch.testing.assert_close(found, plain(PROMPTS).logits, rtol=1e-3, atol=1e-3)
        assert products(lambda: ours(PROMPTS)) == ([7, 2] if fused else [11, 0])

    same()
    for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        same(copied)
        copied.model.layers[0].mlp.up_proj.weight.zero_()
    same()
    for model in (plain, ours):
        model.load_state_dict(other.state_dict())
    same()
    for model in (plain, ours):
        model.load_state_dict(tiny("Qwen2").state_dict(), assign=True)
    same()
    for model in (plain, ours):
        model.model.layers[1].self_attn.k_proj.bias.add_(1)
        model.double().float()
    same()
    torch.save(ours.state_dict(), tmp_path / "states.pt")
    plain.load_state_dict(torch.load(tmp_path / "states.pt"))
    same()
    with torch.inference_mode():
        same()
    seen = []
    handle = ours.model.layers[0].mlp.gate_proj.register_forward_hook(lambda *_: seen.append(1))
    ours(PROMPTS)
    handle.remove()
    assert seen == [1]
    replaced.undo()
    assert products(lambda: ours(PROMPTS)) == [0, 0]


@torch.no_grad()
def test_joined_results_are_of_their_own_input():
    """k and v asked with another input, or with one that was changed since, multiply themselves."""
    model = tiny("Llama")
    attention = model.model.layers[0].self_attn
    replace(model, fuse=True)
    x, y = torch.randn(2, 3, 32), torch.randn(2, 3, 32)
    attention.q_proj(x)
    wanted = y @ attention.k_proj.weight.T
    torch.testing.assert_close(attention.k_proj(y), wanted, rtol=1e-4, atol=1e-4)
    attention.q_proj(x)
    x.add_(1)
    wanted = x @ attention.v_proj.weight.T
    torch.testing.assert_close(attention.v_proj(x), wanted, rtol=1e-4, atol=1e-4)


def test_what_is_not_joined_says_why():
    model = tiny("Llama", mlp_bias=True)
    model.model.layers[0].self_attn.v_proj = torch.nn.Sequential(
        model.model.layers[0].self_attn.v_proj
    )
    replaced = replace(model, fuse=True)
    assert replaced.left["gate_proj, up_proj", "linear_gated has no bias"] == 2
    assert replaced.left["q_proj, k_proj, v_proj", "one is no plain Linear"] == 1
    assert "      1 times q_proj, k_proj, v_proj joined" in str(replaced).splitlines()


def turns(run):
    return calls(run, "rope_qk")[0]


@torch.no_grad()
def test_rotations_are_anyops_while_one_of_the_models_is_replaced():
    module = transformers.models.llama.modeling_llama
    gc.collect()  # replaced models of other tests
    own, first, second = module.apply_rotary_pos_emb, tiny("Llama"), tiny("Llama")
    expected = first(PROMPTS).logits
    assert turns(lambda: first(PROMPTS)) == 0
    replaced = [replace(model, modules=["rope"]) for model in (first, second)]
    assert replaced[0].swapped == {"rope": 2} and module.apply_rotary_pos_emb is not own
    found = []
    assert turns(lambda: found.append(first(PROMPTS).logits)) == 2
    torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-4)
    assert not replace(first, modules=["rope"]).swapped
    replaced[0].undo()
    replaced[0].undo()
    assert turns(lambda: second(PROMPTS)) == 2
    replaced[1].undo()
    assert module.apply_rotary_pos_emb is own
    last = tiny("Llama")
    anyop.torch.replace(last, modules=["rope"], verbose=False)
    del last
    gc.collect()
    assert module.apply_rotary_pos_emb is own


@torch.no_grad()
def test_rotations_for_other_calls_are_the_models_own():
    """Other dimensions, other types, positions of each sequence."""
    module = transformers.models.llama.modeling_llama
    own, random = module.apply_rotary_pos_emb, torch.Generator().manual_seed(0)
    q, k = (torch.randn(3, 2, 5, 8, generator=random) for _ in range(2))
    cos, sin = torch.randn(2, 3, 5, 8, generator=random)
    model = tiny("Llama")
    with replace(model, modules=["rope"]):
        ours = module.apply_rotary_pos_emb
        calls = [
            (1, (q, k, cos, sin), {}),
            (1, (q, k, cos[:1], sin[:1]), {}),
            (0, (q.transpose(1, 2), k.transpose(1, 2), cos, sin), {"unsqueeze_dim": 2}),
            (0, (q.bfloat16(), k.bfloat16(), cos, sin), {}),
        ]
        for run, given, more in calls:
            assert turns(functools.partial(ours, *given, **more)) == run
            for mine, theirs in zip(ours(*given, **more), own(*given, **more), strict=True):
                assert mine.dtype is theirs.dtype
                torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_another_rotation_is_left():
    """Cohere's pairs are neighbours."""
    replaced = replace(tiny("Cohere"), modules=["rope"])
    reason = "transformers.models.cohere.modeling_cohere has another formula"
    assert replaced.left == {("rope", reason): 2} and not replaced.swapped


def test_a_layer_of_another_formula_is_left(monkeypatch):
    """Known by its children, found out by its results, or by what its attention is given."""
    kind = transformers.models.llama.modeling_llama.LlamaDecoderLayer
    own = kind.forward
    formulas = {
        "right": own,
        "another result": lambda self, x, **more: own(self, x, **more) + x,
        "another argument": lambda self, x, more=0, **kwargs: own(self, x, more=1, **kwargs),
    }
    for name, forward in formulas.items():
        monkeypatch.setattr(kind, "forward", forward)
        replaced = replace(tiny("Llama"))
        reason = "LlamaDecoderLayer", "it does not compute a residual and a norm"
        assert replaced.left.get(reason, 0) == (0 if name == "right" else 2), name
        assert replaced.swapped["LlamaDecoderLayer"] == (2 if name == "right" else 0)


@torch.no_grad()
def test_a_norm_with_a_hook_is_called_by_its_layer():
    model = tiny("Granite")
    expected, seen = model(PROMPTS).logits, []
    replace(model)
    assert calls(lambda: model(PROMPTS), "fused_add_rms_norm", "rms_norm") == [2, 3]
    norm = model.model.layers[0].post_attention_layernorm
    norm.register_forward_hook(lambda *_: seen.append(1))
    assert calls(lambda: model(PROMPTS), "fused_add_rms_norm", "rms_norm") == [1, 4]
    assert seen.pop() == 1
    torch.testing.assert_close(model(PROMPTS).logits, expected, rtol=1e-4, atol=1e-4)
    assert seen == [1]
    with torch.autocast("cpu", torch.bfloat16):
        assert model(PROMPTS).logits.isfinite().all()
    model.model.layers[1].post_attention_layernorm.bfloat16()
    assert model(PROMPTS).logits.isfinite().all()
