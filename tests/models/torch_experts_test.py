# SPDX-License-Identifier: Apache-2.0
"""transformers' models with experts_implementation="anyop": their logits, tokens and gradients are those of eager."""

from __future__ import annotations

import copy
import logging
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
    from transformers.models.deepseek_v4 import modeling_deepseek_v4 as deepseek_v4
    from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss
    from transformers.models.minimax_m3_vl import modeling_minimax_m3_vl as minimax_m3_vl

from anyop.torch import experts

SIZES = serving.SIZES | {"num_experts_per_tok": 3}
KINDS = {
    "Qwen3Moe": {"num_experts": 8, "moe_intermediate_size": 24, "norm_topk_prob": True},
    "Mixtral": {"num_local_experts": 6},
    "GptOss": {"num_local_experts": 8, "intermediate_size": 24, "swiglu_limit": 1.5},
    "DeepseekV3": {
        "n_routed_experts": 8, "n_group": 4, "topk_group": 2, "moe_intermediate_size": 24, "first_k_dense_replace": 1,
        "num_hidden_layers": 3, "q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
        "v_head_dim": 16, "num_key_value_heads": 4, "head_dim": 8,
    },
}  # fmt: skip
LAYERS = 2  # of experts, in each
TOKENS = torch.randint(3, 200, (2, 17), generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True, scope="module")
def known():
    anyop.torch.experts.register()


@pytest.fixture
def calls(monkeypatch):
    """The tokens of each call of anyop.fused_moe that came to an end."""
    seen, own = [], anyop.fused_moe

    def fused_moe(x, *given, **options):
        out = own(x, *given, **options)
        seen.append(len(x))
        return out

    monkeypatch.setattr(anyop, "fused_moe", fused_moe)
    return seen


def model(kind, implementation, dtype=torch.float32, **more):
    """The same weights each time, large enough that scores differ."""
    config = getattr(transformers, f"{kind}Config")(**SIZES | KINDS[kind] | more)
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(
        config, experts_implementation=implementation, dtype=dtype
    ).eval()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            weight.mul_(6 if weight.dim() > 1 else 1)
            if name.endswith("_bias"):
                weight.normal_(generator=torch.Generator().manual_seed(2))
    return made


def copied(given, implementation):
    made = copy.deepcopy(given)
    made.set_experts_implementation(implementation)
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_greedy_tokens(kind, calls):
    eager, ours = model(kind, "eager"), model(kind, "anyop")
    with torch.no_grad():
        wanted, found = (m(TOKENS).logits for m in (eager, ours))
    torch.testing.assert_close(found, wanted, rtol=2e-4, atol=2e-4)
    assert calls == [TOKENS.numel()] * LAYERS
    how = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    tokens = [m.generate(TOKENS, **how) for m in (eager, ours)]
    assert torch.equal(*tokens)
    assert calls[LAYERS:] == [TOKENS.numel()] * LAYERS + [len(TOKENS)] * (5 * LAYERS)


@pytest.mark.parametrize("kind", ["Qwen3Moe", "GptOss"])
def test_bfloat16_is_nearer_to_float64_than_its_rounding(kind, calls):
    """A layer alone: the router of a whole model may choose other experts for other roundings."""
    made = model(kind, "anyop", torch.bfloat16)
    layer = next(m for m in made.modules() if type(m).__name__.endswith("Experts"))
    x = torch.randn(19, 64).bfloat16()
    weights, ids = torch.rand(19, 3).bfloat16(), torch.randint(0, 8, (19, 3))
    with torch.no_grad():
        found = layer(x, ids, weights)
        exact = copied(made, "eager").double()
        exact = next(m for m in exact.modules() if type(m).__name__.endswith("Experts"))
        wanted = exact(x.double(), ids, weights.double())
    assert len(calls) == 1
    assert found.dtype is torch.bfloat16
    # Hidden features and the result are rounded, each by 2^-9 of its size at most.
    torch.testing.assert_close(found.double(), wanted, rtol=2**-8, atol=2**-8 * wanted.abs().max())


@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind, caplog):
    experts._log_once.cache_clear()
    models = model(kind, "eager"), model(kind, "anyop")
    with caplog.at_level(logging.WARNING, "anyop.torch.experts"):
        for each in models:
            each(TOKENS, labels=TOKENS).loss.backward()
    for (name, wanted), found in zip(models[0].named_parameters(), models[1].parameters()):
        if wanted.grad is None:
            assert found.grad is None
            continue
        size = wanted.grad.abs().max()
        torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-3, atol=1e-4 * size, msg=name)
    assert not caplog.records  # nothing fell back


@pytest.mark.parametrize("count", [1, 2, 9])
def test_interleaved_experts_of_few_slots_and_ids_outside(count, calls):
    made = model("GptOss", "anyop")
    layer = next(m for m in made.modules() if type(m).__name__ == "GptOssExperts")
    x, weights, ids = torch.randn(count, 64), torch.rand(count, 2), torch.randint(0, 8, (count, 2))
    with torch.no_grad():
        torch.testing.assert_close(
            layer(x, ids, weights),
            layer.forward.__wrapped__(layer, x, ids, weights),
            rtol=1e-4,
            atol=1e-4,
        )
        outside = torch.where(torch.arange(2) == 0, 8, ids)  # as experts of other devices are
        alone = layer(x, ids[:, 1:], weights[:, 1:])
        torch.testing.assert_close(layer(x, outside, weights), alone, rtol=1e-4, atol=1e-4)
        nothing = torch.zeros(0, 2, dtype=torch.int64)
        assert layer(x[:0], nothing, weights[:0]).shape == (0, 64)
    assert calls[-1] == 0


@pytest.mark.parametrize(
    "module", [gpt_oss, minimax_m3_vl, deepseek_v4], ids=lambda m: m.__name__.split(".")[2]
)
def test_gates_are_those_of_transformers(module):
    """What each class does between the products is what its entry says of fused_moe."""
    own = next(c for n, c in vars(module).items() if n in experts._GATES)
    activation, alpha, limit = experts._GATES[own.__name__]
    made = own.__new__(own)
    torch.nn.Module.__init__(made)
    made.has_gate, made.has_post_expert_norm = True, False
    made.act_fn = torch.nn.SiLU() if activation == "silu" else None
    setattr(made, limit, 1.5)
    if alpha:
        setattr(made, alpha, 1.25)
    gate = experts.gate_of(made)
    assert gate == experts.Gate(activation, 1.25 if alpha else 1.0, 1.5)
    x = 3 * torch.randn(9, 16, dtype=torch.float64)
    one = torch.eye(16, dtype=torch.float64)[None]
    w13 = experts._separated(one, 1) if own is gpt_oss.GptOssExperts else one
    weights, ids = torch.ones(9, 1), torch.zeros(9, 1, dtype=torch.int32)
    w2 = torch.zeros(1, 16, 8, dtype=torch.float64)
    w2[0, :8] = torch.eye(8)
    found = anyop.fused_moe(
        x, w13, w2, weights, ids, activation=gate.activation, alpha=gate.alpha, limit=gate.limit
    )
    torch.testing.assert_close(found[:, :8], made._apply_gate(x))


@pytest.mark.parametrize(
    ("activation", "name"), [("relu", "ReLU"), ("gelu_new", "NewGELUActivation")]
)
def test_other_activations_are_transformers_own_and_logged_once(activation, name, calls, caplog):
    experts._log_once.cache_clear()
    eager, ours = (model("Mixtral", how, hidden_act=activation) for how in ("eager", "anyop"))
    with torch.no_grad(), caplog.at_level(logging.WARNING, "anyop.torch.experts"):
        wanted, found = (m(TOKENS).logits for m in (eager, ours))
    torch.testing.assert_close(found, wanted, rtol=2e-4, atol=2e-4)
    assert calls == []
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        f"fused_moe: MixtralExperts uses transformers' grouped_mm: fused_moe has no such gate, with {name}"
    ]


def test_a_call_without_a_kernel_is_transformers_own(monkeypatch):
    def fused_moe(*_, **__):
        raise NotImplementedError("no kernel")

    monkeypatch.setattr(anyop, "fused_moe", fused_moe)
    eager, ours = model("Mixtral", "eager"), model("Mixtral", "anyop")
    with torch.no_grad():
        torch.testing.assert_close(ours(TOKENS).logits, eager(TOKENS).logits, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(
    ("activation", "wanted"),
    [("silu", "silu"), ("swish", "silu"), ("gelu", "gelu"), ("gelu_pytorch_tanh", "gelu_tanh"), ("relu2", None)],
)  # fmt: skip
def test_activations_by_their_names(activation, wanted):
    made = model("Mixtral", "anyop", hidden_act=activation)
    layer = next(m for m in made.modules() if type(m).__name__ == "MixtralExperts")
    assert experts.gate_of(layer) == (wanted and experts.Gate(wanted))
    layer.has_gate = False
    assert experts.gate_of(layer) == (None if wanted else experts.Gate("relu2"))


def test_compiled_with_one_graph(calls):
    eager, ours = model("Mixtral", "eager"), model("Mixtral", "anyop")
    layers = [
        next(m for m in each.modules() if type(m).__name__ == "MixtralExperts")
        for each in (eager, ours)
    ]
    x, weights, ids = torch.randn(9, 64), torch.rand(9, 3), torch.randint(0, 6, (9, 3))
    with torch.no_grad():
        wanted = layers[0](x, ids, weights)
        found = torch.compile(layers[1], fullgraph=True, backend="aot_eager")(x, ids, weights)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_without_transformers_or_with_an_older_one(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers.integrations.moe", None)
    with pytest.raises(ImportError, match=r"transformers 5 or newer: pip install transformers"):
        anyop.torch.experts.register()
