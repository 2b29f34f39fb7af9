# SPDX-License-Identifier: Apache-2.0
"""The decoder, in operators that NumPy's, torch's, JAX's and Paddle's arrays share: one step of any number of tokens.

Sizes: T tokens of a step, those of all B sequences one behind the other; D features, H heads of queries, G of keys and
values, HD features of a head, V words; N pages of P places hold keys and values, at most M of them are one sequence's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import anyop

from .config import Config, Layer

PAGE = 64  # P
GROUP = 128  # columns of a 4-bit weight that share a scale
MOST_ROWS = 8  # sequences of a step whose layers are one operator each

Array = Any  # of the framework


class Sampling(NamedTuple):
    temperature: float = 0.0  # 0: the likeliest token
    top_k: int = 0  # only so many of the likeliest; 0: all
    top_p: float = 1.0  # only the likeliest that together have this probability
    min_p: float = 0.0  # only what is at least this share as likely as the likeliest


def decode(xp, config: Config, how: Sampling, weights: dict, caches: list, state: dict):
    """One token more of each sequence: the caches, and the state of the next step.

    state: tokens (B); lengths (B), keys that are in the cache; table (B, M), its pages; active (B), 0 where there is no
    sequence, else 1; rows (B), which are 0, 1, ...; seed (B), of its draws. It is all that a step reads.
    """
    lengths, active, table = state["lengths"], state["active"], state["table"]
    at = state["rows"] * table.shape[1] + lengths // PAGE
    page = anyop.embedding(at, table.reshape(-1, 1)).reshape(-1)
    slots = (page * PAGE + lengths % PAGE + 1) * active - 1  # -1: nothing is written
    step = {**state, "positions": lengths, "slots": slots, "lengths": (lengths + 1) * active}
    caches, tokens = advance(xp, config, how, weights, caches, step)
    return caches, {**state, "tokens": tokens, "lengths": lengths + active}


def advance(xp, config: Config, how: Sampling, weights: dict, caches: list, step: dict):
    """Any number of tokens of each sequence: the caches, and the token (B) behind the last of each.

    step: as state, with lengths after this step; positions and slots of its tokens (T). Where they are not one of each
    sequence, starts (B + 1), where those of each begin, and last (B), its last one.
    """
    caches, x = forward(config, weights, caches, step)
    if "last" in step:
        x = anyop.embedding(step["last"], x)
    logits = logits_of(xp, config, weights, x)
    tokens, _ = anyop.sample(logits, step["seed"], step["lengths"], *how, logprob=False)
    return caches, tokens


def scored(config: Config, weights: dict, caches: list, step: dict):
    """The caches, and of each token (T) minus the logarithm of how probable that in targets (T) is behind it."""
    caches, x = forward(config, weights, caches, step)
    if config.logit_divisor != 1:
        x = anyop.mul(x, 1 / config.logit_divisor)
    losses, _ = anyop.linear_cross_entropy(
        x, weights["head"], step["targets"], softcap=config.logit_cap
    )
    return caches, losses


def logits_of(xp, config: Config, weights: dict, x: Array) -> Array:
    logits = anyop.cast(anyop.linear(x, weights["head"]), "float32")
    if config.logit_divisor != 1:
        logits = anyop.mul(logits, 1 / config.logit_divisor)
    if config.logit_cap:
        logits = anyop.mul(xp.tanh(anyop.mul(logits, 1 / config.logit_cap)), config.logit_cap)
    return logits


def forward(config: Config, weights: dict, caches: list, step: dict):
    """The caches with keys and values of all tokens, and the vectors (T, D) that logits are made of."""
    x, delta, written = anyop.embedding(step["tokens"], weights["embed"]), None, []
    if config.embed_scale != 1:
        x = anyop.mul(x, config.embed_scale)
    whole = config.whole_layers and "starts" not in step and len(step["tokens"]) <= MOST_ROWS
    for layer, own, cache in zip(config.layers, weights["layers"], caches, strict=True):
        rope = weights["rope"][layer.kind]
        if whole:
            x, delta, cache = at_once(config, own, rope, cache, x, delta, step)
        else:
            x, h = added(config, x, delta, own.get("attention_norm"))
            h, cache = attend(config, layer, own, rope, cache, h, step)
            delta = finished(config, h, own.get("attention_after"))
            x, h = added(config, x, delta, own.get("ffn_norm"))
            h = experts(config, own, h) if "router" in own else gated(config, own, h)
            delta = finished(config, h, own.get("ffn_after"))
        written.append(cache)
    return written, added(config, x, delta, weights["norm"])[1]


def at_once(config: Config, own: dict, rope: tuple, cache: tuple, x: Array, delta, step: dict):
    """A layer of one token of each sequence by one operator: x, what is to be added to it, and the cache."""
    x, delta, *made = anyop.decoder_layer(
        *cache, x, delta, own["attention_norm"], own["qkv"], own["out"], own["ffn_norm"],
        own["gate_up"], own["down"], *rope, step["table"], step["lengths"], heads=config.H,
        q_norm=own.get("q_norm"), k_norm=own.get("k_norm"), qkv_bias=own.get("qkv_bias"),
        eps=config.eps, scale=config.scale,
    )  # fmt: skip
    return x, delta, tuple(made) or cache


def added(config: Config, x: Array, delta: Array | None, weight: Array | None):
    """The sum of both, and what a block reads: that normalised, or itself where the family norms behind blocks."""
    more = {"weight_offset": config.norm_offset}
    if delta is None:
        return x, x if weight is None else anyop.rms_norm(x, weight, config.eps, **more)
    if weight is None:
        x = anyop.add(x, delta)
        return x, x
    h, x = anyop.fused_add_rms_norm(delta, x, weight, config.eps, **more)
    return x, h


def finished(config: Config, delta: Array, weight: Array | None) -> Array:
    """What a block adds to x."""
    if weight is not None:
        delta = anyop.rms_norm(delta, weight, config.eps, weight_offset=config.norm_offset)
    return delta if config.residual_scale == 1 else anyop.mul(delta, config.residual_scale)


def attend(
    config: Config, layer: Layer, own: dict, rope: tuple, cache: tuple, h: Array, step: dict
):
    """What the tokens read of each other and of the cache, once their keys and values are in it; and the cache."""
    H, G, HD, T = config.H, config.G, config.HD, h.shape[0]
    qkv = product(h, own["qkv"], own.get("qkv_bias")).reshape(T, H + 2 * G, HD)
    q, k, v = qkv[:, :H], qkv[:, H : H + G], qkv[:, H + G :]
    if config.qk_norm == "head":
        q, k = anyop.qk_norm_rope(
            q, k, own["q_norm"], own["k_norm"], *rope, step["positions"], config.eps,
            weight_offset=config.norm_offset,
        )  # fmt: skip
    else:
        if config.qk_norm == "row":
            q = anyop.rms_norm(q.reshape(T, H * HD), own["q_norm"], config.eps).reshape(T, H, HD)
            k = anyop.rms_norm(k.reshape(T, G * HD), own["k_norm"], config.eps).reshape(T, G, HD)
        q, k = anyop.rope_qk(q, k, *rope, step["positions"])
    # JAX's arrays never change: there the operator gives new ones, in the memory of the old.
    cache = anyop.append_kv(*cache, k, v, step["slots"]) or cache
    out, _ = anyop.attention_paged(
        q, *cache, step["table"], step["lengths"], step.get("starts"),
        scale=config.scale, window_left=layer.window - 1, softcap=config.softcap,
        split_size=config.split_size,
    )  # fmt: skip
    return product(out.reshape(T, H * HD), own["out"], own.get("out_bias")), cache


def gated(config: Config, own: dict, h: Array) -> Array:
    """The activation of the first half of the products, times the second, by the last matrix."""
    weight, activation = own["gate_up"], config.activation
    if not isinstance(weight, dict):
        h = anyop.linear_gated(h, weight, activation)
    elif activation == "silu":
        h = anyop.silu_and_mul(product(h, weight))
    else:
        h = anyop.gelu_and_mul(product(h, weight), "tanh" if "tanh" in activation else "none")
    return product(h, own["down"])


def experts(config: Config, own: dict, h: Array) -> Array:
    """A mixture of experts: of each token the weighted sum of what its best ones give."""
    logits = anyop.linear(h, own["router"])
    how = {"top_k": config.chosen, "renormalize": config.renormalize}
    weights, ids = anyop.moe_route(logits, **how)
    w13, w2, activation = own["w13"], own["w2"], config.activation
    if not isinstance(w13, dict):
        return anyop.fused_moe(h, w13, w2, weights, ids, activation=activation)
    return anyop.fused_moe_w8a8(
        h, w13["fp8"], w2["fp8"], w13["scale"], w2["scale"], weights, ids,
        activation=activation, out_dtype=dtype_of(h),
    )  # fmt: skip


def product(x: Array, weight: Array | dict, bias: Array | None = None) -> Array:
    """A row of x by each row of weight, which may be in 8 or 4 bits (quantized.py)."""
    if not isinstance(weight, dict):
        return anyop.linear(x, weight, bias)
    if "w4" in weight:
        return anyop.linear_w4(x, weight["w4"], weight["scale"], None, bias, GROUP)
    values, scale = anyop.quant_fp8(x)  # a scale for each token
    own = weight["fp8"], scale.reshape(-1), weight["scale"]
    return anyop.linear_w8a8(values, *own, bias, out_dtype=dtype_of(x))


def dtype_of(x: Array) -> str:
    return str(x.dtype).rpartition(".")[2]
