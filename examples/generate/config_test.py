# SPDX-License-Identifier: Apache-2.0
"""Settings as older checkpoints have them are read as transformers 5 writes them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from examples.generate import InputError
from examples.generate.checkpoint import layout
from examples.generate.config import Layer, read_config, rope_table

SIZES = {
    "vocab_size": 264,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 512,
    "hidden_act": "silu",
}
LLAMA_3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA_3["original_max_position_embeddings"] = 64
FULL, WINDOW = Layer("full", 0), Layer("sliding", 9)


def read(folder, **settings):
    (folder / "config.json").write_text(json.dumps(SIZES | settings))
    return read_config(folder)


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_positions_of_llama_3(tmp_path, key):
    older = {"rope_theta": 5e5, "rope_scaling": {key: "llama3", **LLAMA_3}}
    newer = {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA_3}}
    found = [
        rope_table(read(tmp_path, model_type="llama", **settings).rope["full"], 300)
        for settings in (older, newer)
    ]
    np.testing.assert_array_equal(*found)
    plain = rope_table(read(tmp_path, model_type="llama", rope_theta=5e5).rope["full"], 300)
    assert np.abs(plain[0] - found[0][0]).max() > 0.1


def test_two_kinds_of_positions_of_gemma_3(tmp_path):
    common = {"model_type": "gemma3_text", "head_dim": 16, "query_pre_attn_scalar": 16}
    common |= {"sliding_window": 9}
    linear = {"rope_type": "linear", "factor": 8.0}
    older = read(tmp_path, **common, rope_theta=1e6, rope_local_base_freq=1e4, rope_scaling=linear)
    both = {
        "full_attention": {"rope_theta": 1e6, **linear},
        "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
    }
    kinds = [f"{layer.kind}_attention" for layer in older.layers]
    newer = read(tmp_path, **common, rope_parameters=both, layer_types=kinds)
    assert older.layers == newer.layers == (WINDOW,) * 5 + (FULL, WINDOW)
    for kind in ("full", "sliding"):
        tables = [rope_table(config.rope[kind], 300) for config in (older, newer)]
        np.testing.assert_array_equal(*tables)
    assert older.tied


@pytest.mark.parametrize(
    ("settings", "layers"),
    [
        ({"model_type": "mistral", "sliding_window": 9}, (WINDOW,) * 7),
        ({"model_type": "mistral", "sliding_window": None}, (FULL,) * 7),
        ({"model_type": "phi3", "sliding_window": 9}, (WINDOW,) * 7),
        ({"model_type": "qwen2", "sliding_window": 9, "max_window_layers": 2}, (FULL,) * 7),
        (
            {"model_type": "qwen3", "sliding_window": 9, "max_window_layers": 2,
             "use_sliding_window": True},
            (FULL,) * 2 + (WINDOW,) * 5,
        ),
        (
            {"model_type": "gemma2", "sliding_window": 9, "query_pre_attn_scalar": 16},
            (WINDOW, FULL) * 3 + (WINDOW,),
        ),
    ],
    ids=str,
)  # fmt: skip
def test_which_layers_see_a_window(tmp_path, settings, layers):
    assert read(tmp_path, **settings).layers == layers


def test_settings_of_gpt_2_have_names_of_their_own(tmp_path):
    own = {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64, "layer_norm_epsilon": 1e-5}
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "gpt2", "vocab_size": 264, **own})
    )
    found = read_config(tmp_path)
    assert (found.D, found.L, found.H, found.G, found.HD, found.limit) == (48, 2, 4, 4, 12, 64)
    assert (found.F, found.activation, found.tied, found.rope) == (4 * 48, "gelu_tanh", True, {})
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "gpt2", "vocab_size": 264, **own, "scale_attn_weights": False})
    )
    with pytest.raises(InputError, match="scale_attn_weights False is not supported"):
        read_config(tmp_path)


def test_share_of_a_head_that_is_turned(tmp_path):
    def columns(**settings):
        return rope_table(read(tmp_path, **settings).rope["full"], 3)[0].shape[1]

    newer = {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.75}}
    for family, usual, name in (("gpt_neox", 4, "rotary_pct"), ("phi", 8, "partial_rotary_factor")):
        assert columns(model_type=family) == usual
        assert columns(model_type=family, **{name: 1.0}) == 16
        assert columns(model_type=family, **newer) == 12


def test_a_mixture_needs_all_its_sizes(tmp_path):
    sizes = {"num_experts": 4, "moe_intermediate_size": 8, "num_experts_per_tok": 2}
    found = read(tmp_path, model_type="qwen3_moe", **sizes, mlp_only_layers=[1])
    assert [layer.experts for layer in found.layers] == [4, 0, 4, 4, 4, 4, 4]
    assert [*layout(found)[1]][-3:] == ["router", "w2", "w13"]
    assert [*layout(found)[2]][-4:] == ["gate_up", "down", "q_norm", "k_norm"]
    for name in sizes:
        with pytest.raises(InputError, match=f"has no {name}"):
            read(tmp_path, model_type="qwen3_moe", **{**sizes, name: None})


def test_tokens_that_stop(tmp_path):
    assert read(tmp_path, model_type="llama", eos_token_id=2).stops == {2}
    assert read(tmp_path, model_type="llama").stops == set()
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    assert read(tmp_path, model_type="llama", eos_token_id=2).stops == {2, 7}
