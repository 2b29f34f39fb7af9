# SPDX-License-Identifier: Apache-2.0
"""Decoders of fourteen families as data: the weights of each, and the numbers that it has by itself.

A weight is made of tensors of the folder, one below the other. Each is given by its name and its rows and columns in
letters, those of checkpoint.py. Behind these + says that it has a bias, ' that it is stored transposed, % that its rows
go by heads. Names that begin with a point are those of each layer, behind the name for "layers". A norm may be without.
"""

from __future__ import annotations

from typing import Any

LLAMA = {
    "embed": "model.embed_tokens VD", "layers": "model.layers", "norm": "model.norm D", "head": "lm_head VD",
    "attention_norm": ".input_layernorm D",
    "qkv": ".self_attn.q_proj QD .self_attn.k_proj KD .self_attn.v_proj KD", "out": ".self_attn.o_proj DQ",
    "ffn_norm": ".post_attention_layernorm D",
    "gate_up": ".mlp.gate_proj FD .mlp.up_proj FD", "down": ".mlp.down_proj DF",
}  # fmt: skip
EMBED = {name: LLAMA[name] for name in ("embed", "layers", "norm", "head")}
PLAIN = LLAMA.keys() - EMBED.keys()  # weights of a layer
HEADS = {"q_norm": ".self_attn.q_norm A", "k_norm": ".self_attn.k_norm A"}
BIASES = {"qkv": ".self_attn.q_proj QD+ .self_attn.k_proj KD+ .self_attn.v_proj KD+"}
BEHIND = {
    "attention_after": ".post_attention_layernorm D",
    "ffn_after": ".post_feedforward_layernorm D",
}
EXPERTS = {"router": ".mlp.gate ED", "w2": ".mlp.experts.{e}.down_proj DM",
           "w13": ".mlp.experts.{e}.gate_proj MD .mlp.experts.{e}.up_proj MD"}  # fmt: skip
DENSE = ("gate_up", "down")  # what experts stand in place of
GEMMA = {
    "weights": LLAMA | BEHIND | {"ffn_norm": ".pre_feedforward_layernorm D"}, "norm_offset": 1.0,
    "hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True, "embedding_multiplier": 0,
}  # fmt: skip
LAYER_NORM = {"norm": "layer_norm"}
# Weights and norms of a family, and what its config.json means where it says nothing.
FAMILIES: dict[str, dict[str, Any]] = {
    "gemma2": GEMMA,
    "gemma3_text": GEMMA | {"weights": GEMMA["weights"] | HEADS},
    "gpt2": LAYER_NORM | {
        "weights": {
            "embed": "wte VD", "places": "wpe PD", "layers": "h", "norm": "ln_f D+", "head": "lm_head VD",
            "attention_norm": ".ln_1 D+", "qkv": ".attn.c_attn XD+'", "out": ".attn.c_proj DQ+'",
            "ffn_norm": ".ln_2 D+", "up": ".mlp.c_fc FD+'", "down": ".mlp.c_proj DF+'",
        },
        "hidden_act": "gelu_new", "tie_word_embeddings": True, "intermediate_size": 0,
    },
    "gpt_neox": LAYER_NORM | {
        "weights": {
            "embed": "gpt_neox.embed_in VD", "layers": "gpt_neox.layers", "norm": "gpt_neox.final_layer_norm D+",
            "head": "lm_head VD", "attention_norm": ".input_layernorm D+",
            "qkv": ".attention.query_key_value XD%", "out": ".attention.dense DQ",
            "ffn_norm": ".post_attention_layernorm D+",
            "up": ".mlp.dense_h_to_4h FD+", "down": ".mlp.dense_4h_to_h DF+",
        },
        "hidden_act": "gelu", "attention_bias": True, "use_parallel_residual": True, "rotary_pct": 0.25,
    },
    "granite": {"attention_multiplier": 1.0},
    "llama": {},
    "mistral": {},
    "olmo": LAYER_NORM | {
        "weights": LLAMA | {"norm": "", "attention_norm": ".", "ffn_norm": "."}, "rms_norm_eps": 1e-5,
    },
    "olmo2": {
        "weights": EMBED | {own: LLAMA[own] for own in ("qkv", "out", *DENSE)} | BEHIND
        | {"q_norm": ".self_attn.q_norm Q", "k_norm": ".self_attn.k_norm K"},
    },
    "phi": LAYER_NORM | {
        "weights": EMBED | BIASES | {
            "norm": "model.final_layernorm D+", "head": "lm_head VD+", "attention_norm": ".input_layernorm D+",
            "out": ".self_attn.dense DQ+", "up": ".mlp.fc1 FD+", "down": ".mlp.fc2 DF+",
        },
        "hidden_act": "gelu_new", "use_parallel_residual": True, "rotary_pct": 0.5,
    },
    "phi3": {"weights": LLAMA | {"qkv": ".self_attn.qkv_proj XD", "gate_up": ".mlp.gate_up_proj YD"}},
    "qwen2": {"weights": LLAMA | BIASES, "use_sliding_window": False},
    "qwen3": {"weights": LLAMA | HEADS, "use_sliding_window": False},
    "qwen3_moe": {
        "weights": LLAMA | HEADS | EXPERTS, "use_sliding_window": False,
        "num_experts": int, "moe_intermediate_size": int, "num_experts_per_tok": int,
    },
}  # fmt: skip
# Layer i of those with windows sees all tokens; of other families none does.
SEES_ALL = {
    "gemma2": lambda i, raw: i % 2 == 1,
    "gemma3_text": lambda i, raw: (i + 1) % raw.get("sliding_window_pattern", 6) == 0,
    "qwen2": lambda i, raw: i < raw["max_window_layers"],
    "qwen3": lambda i, raw: i < raw["max_window_layers"],
}
# Of each setting of config.json its name here, and what it is where neither that file nor the family's row says it: a
# type where one of them has to.
SETTINGS: dict[str, tuple[str, Any]] = {
    "vocab_size": ("V", int),
    "hidden_size": ("D", int),
    "intermediate_size": ("F", int),  # 0: 4 D
    "num_hidden_layers": ("L", int),
    "num_attention_heads": ("H", int),  # of queries
    "num_key_value_heads": ("G", 0),  # 0: H
    "head_dim": ("HD", 0),  # 0: D / H
    "max_position_embeddings": ("limit", int),  # tokens that the model was made for
    "sliding_window": ("window", 0),
    "num_experts": ("E", 0),
    "moe_intermediate_size": ("FE", 0),  # features inside an expert
    "num_experts_per_tok": ("chosen", 0),
    "norm_topk_prob": ("renormalize", False),  # weights of a token's experts sum to 1
    "hidden_act": ("activation", "silu"),
    "rms_norm_eps": ("eps", float),
    "query_pre_attn_scalar": ("query_scalar", 0.0),  # 0: HD
    "attention_multiplier": ("scale", 0.0),  # of scores; 0: query_scalar to the power of -1/2
    "attn_logit_softcapping": ("softcap", 0.0),  # of scores; 0: none
    "final_logit_softcapping": ("logit_cap", 0.0),  # 0: none
    "embedding_multiplier": ("embed_scale", 1.0),  # 0: D to the power of 1/2
    "residual_multiplier": ("residual_scale", 1.0),
    "logits_scaling": ("logit_divisor", 1.0),
    "attention_bias": ("bias", False),  # of the products of attention
    "use_parallel_residual": ("parallel", False),  # both blocks of a layer read the same sum
    "tie_word_embeddings": ("tied", False),  # the head is the embedding
}
SAME = {  # settings by another name, which comes first
    "activation_function": "hidden_act", "hidden_activation": "hidden_act", "layer_norm_eps": "rms_norm_eps",
    "layer_norm_epsilon": "rms_norm_eps", "n_embd": "hidden_size", "n_head": "num_attention_heads",
    "n_inner": "intermediate_size", "n_layer": "num_hidden_layers", "n_positions": "max_position_embeddings",
    "num_local_experts": "num_experts", "rotary_emb_base": "rope_theta",
}  # fmt: skip
REFUSED = {  # unless they are so
    "mlp_bias": False, "use_bidirectional_attention": False, "quantization_config": {}, "clip_qkv": 0,
    "qk_layernorm": False, "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}  # fmt: skip
