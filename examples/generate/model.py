# SPDX-License-Identifier: Apache-2.0
"""The decoder, in operators that NumPy's, torch's, JAX's and Paddle's arrays share: one step of any number of tokens.

Sizes: T tokens of a step, those of all B sequences one behind the other; D features, H heads of queries, G of keys and
values, HD features of a head, V words; N pages of P places hold keys and values, at most M of them are one sequence's.
"""

from __future__ import annotations

from typing import Any

import anyop

from .checkpoint import GROUP
from .config import Config
from .families import HEADS, PLAIN

PAGE = 64  # P
MOST_ROWS = 8  # sequences of a step whose layers are one operator each

Array = Any  # of the framework


def decode(xp, config: Config, how: list, weights: dict, caches: list, state: dict):
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


def advance(xp, config: Config, how: list, weights: dict, caches: list, step: dict):
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
    x = scaled(x, 1 / config.logit_divisor)
    head, bias = weights["head"], weights.get("head_bias")
    losses, _ = anyop.linear_cross_entropy(x, head, step["targets"], bias, softcap=config.logit_cap)
    return caches, losses


def logits_of(xp, config: Config, weights: dict, x: Array) -> Array:
    logits = anyop.cast(anyop.linear(x, weights["head"], weights.get("head_bias")), "float32")
    logits, cap = scaled(logits, 1 / config.logit_divisor), config.logit_cap
    return scaled(xp.tanh(scaled(logits, 1 / cap)), cap) if cap else logits


def forward(config: Config, weights: dict, caches: list, step: dict):
    """The caches with keys and values of all tokens, and the vectors (T, D) that logits are made of."""
    x, delta, written = anyop.embedding(step["tokens"], weights["embed"]), None, []
    x = scaled(x, config.embed_scale)
    if "places" in weights:
        x = anyop.add(x, anyop.embedding(step["positions"], weights["places"]))
    whole = config.whole_layers and "starts" not in step and len(step["tokens"]) <= MOST_ROWS
    for layer, own, cache in zip(config.layers, weights["layers"], caches, strict=True):
        rope = weights["rope"].get(layer.kind, ())
        if whole:
            x, delta, cache = at_once(config, own, rope, cache, x, delta, step)
        else:
            x, h = added(config, own, "attention_norm", x, delta, to="qkv")
            delta, cache = attend(config, layer.window, own, rope, cache, h, step)
            if config.parallel:
                h = normed(config, own, "ffn_norm", x) if "ffn_norm" in own else h
                delta = anyop.add(delta, feed_forward(config, own, h))
            else:
                delta = finished(config, own, "attention_after", delta)
                x, h = added(config, own, "ffn_norm", x, delta, to="gate_up")
                delta = finished(config, own, "ffn_after", feed_forward(config, own, h))
        written.append(cache)
    return written, added(config, weights, "norm", x, delta)[1]


def has_plain_layers(config: Config) -> bool:
    """Whether at_once computes what the layers do."""
    own = {name for name, text in config.weights.items() if text.startswith(".")}
    return (
        PLAIN <= own <= PLAIN | HEADS.keys()
        and (config.norm, config.activation, config.norm_offset) == ("rms_norm", "silu", 0)
        and (config.softcap, config.residual_scale) == (0, 1)
        and not config.bias
        and all(2 * len(rope) == config.HD for rope in config.rope.values())
        and not any(layer.window for layer in config.layers)
    )


def at_once(config: Config, own: dict, rope: tuple, cache: tuple, x: Array, delta, step: dict):
    """A layer of one token of each sequence by one operator: x, what is to be added to it, and the cache."""
    x, delta, *made = anyop.decoder_layer(
        *cache, x, delta, own["attention_norm"], own["qkv"], own["out"], own["ffn_norm"],
        own["gate_up"], own["down"], *rope, step["table"], step["lengths"],
        heads=config.H, q_norm=own.get("q_norm"), k_norm=own.get("k_norm"),
        qkv_bias=own.get("qkv_bias"), eps=config.eps, scale=config.scale,
    )  # fmt: skip
    return x, delta, tuple(made) or cache


def normed(config: Config, own: dict, name: str, *x: Array, to: str = ""):
    """The norm of x, in fp8 where the weight `to` that reads it is; of two, their sum is normalised, and comes too."""
    operator, norm = "fused_add_" * (len(x) == 2) + config.norm, own[name]
    eps, more = config.eps, {"weight_offset": config.norm_offset}
    if config.norm == "layer_norm":
        return getattr(anyop, operator)(*x, norm, own.get(f"{name}_bias"), eps, **more)
    if config.bits != "fp8" or to not in own:
        return getattr(anyop, operator)(*x, norm, eps, **more)
    values, *total, scales = getattr(anyop, f"{operator}_quant")(*x, norm, None, eps, **more)
    return ((values, scales), *total) if total else (values, scales)


def added(config: Config, own: dict, name: str, x: Array, delta: Array | None, to: str = ""):
    """The sum of both, and what a block reads: that normalised, or itself where the family norms behind blocks."""
    if name not in own:
        x = x if delta is None else anyop.add(x, delta)
        return x, x
    if delta is None:
        return x, normed(config, own, name, x, to=to)
    h, x = normed(config, own, name, delta, x, to=to)
    return x, h


def finished(config: Config, own: dict, name: str, delta: Array) -> Array:
    """What a block adds to x."""
    delta = normed(config, own, name, delta) if name in own else delta
    return scaled(delta, config.residual_scale)


def scaled(x: Array, by: float) -> Array:
    return x if by == 1 else anyop.mul(x, by)


def attend(config: Config, window: int, own: dict, rope: tuple, cache: tuple, h: Array, step: dict):
    """What the tokens read of each other and of the cache, once their keys and values are in it; and the cache."""
    H, G, HD = config.H, config.G, config.HD
    T = step["positions"].shape[0]
    qkv = product(config, own, "qkv", h).reshape(T, H + 2 * G, HD)
    q, k, v = qkv[:, :H], qkv[:, H : H + G], qkv[:, H + G :]
    if "q_norm" in own and own["q_norm"].shape[0] == HD:  # of each head
        q, k = anyop.qk_norm_rope(
            q, k, own["q_norm"], own["k_norm"], *rope, step["positions"], config.eps,
            weight_offset=config.norm_offset,
        )  # fmt: skip
    else:
        if "q_norm" in own:  # of a token's all
            q = anyop.rms_norm(q.reshape(T, H * HD), own["q_norm"], config.eps).reshape(T, H, HD)
            k = anyop.rms_norm(k.reshape(T, G * HD), own["k_norm"], config.eps).reshape(T, G, HD)
        if rope:
            q, k = anyop.rope_qk(q, k, *rope, step["positions"])
    # JAX's arrays never change: there the operator gives new ones, in the memory of the old.
    cache = anyop.append_kv(*cache, k, v, step["slots"]) or cache
    out, _ = anyop.attention_paged(
        q, *cache, step["table"], step["lengths"], step.get("starts"),
        scale=config.scale, window_left=window - 1, softcap=config.softcap,
        split_size=config.split_size,
    )  # fmt: skip
    return product(config, own, "out", out.reshape(T, H * HD)), cache


def feed_forward(config: Config, own: dict, h: Array) -> Array:
    """By experts; or gated, the activation of the first half of the products times the second; or plain."""
    if "router" in own:
        return experts(config, own, h)
    name, activation = "gate_up" if "gate_up" in own else "up", config.activation
    if config.bits:
        operator, _, kind = activation.partition("_")
        more = {"approximate": kind or "none"} if operator == "gelu" else {}
        operator, h = operator + "_and_mul" * (name == "gate_up"), product(config, own, name, h)
        if operator == "silu_and_mul" and config.bits == "fp8":
            h = anyop.silu_and_mul_quant(h)
        else:
            h = getattr(anyop, operator)(h, **more)
    elif name == "gate_up":
        h = anyop.linear_gated(h, own[name], activation)
    else:
        h = anyop.linear_act(h, own[name], own.get("up_bias"), activation=activation)
    return product(config, own, "down", h)


def experts(config: Config, own: dict, h: Array) -> Array:
    """A mixture of experts: of each token the weighted sum of what its best ones give."""
    logits, w13, w2 = anyop.linear(h, own["router"]), own["w13"], own["w2"]
    chosen = anyop.moe_route(logits, top_k=config.chosen, renormalize=config.renormalize)
    if not config.bits:
        return anyop.fused_moe(h, w13, w2, *chosen, activation=config.activation)
    (w13, w13_scales), (w2, w2_scales) = w13, w2
    return anyop.fused_moe_w8a8(
        h, w13, w2, w13_scales, w2_scales, *chosen,
        activation=config.activation, out_dtype=config.dtype,
    )  # fmt: skip


def product(config: Config, own: dict, name: str, x: Array | tuple[Array, Array]) -> Array:
    """A row of x by each row of a weight, and its bias. Of fp8 x may be values and scales already."""
    weight, bias = own[name], own.get(f"{name}_bias")
    if not config.bits:
        return anyop.linear(x, weight, bias)
    if config.bits == "w4":
        return anyop.linear_w4(x, *weight, None, bias, GROUP)
    (weight, weight_scales), (x, scales) = weight, x if isinstance(x, tuple) else anyop.quant_fp8(x)
    return anyop.linear_w8a8(
        x, weight, scales.reshape(-1), weight_scales, bias, out_dtype=config.dtype
    )
