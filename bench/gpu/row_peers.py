# SPDX-License-Identifier: Apache-2.0
"""Other projects' Triton kernels for what bench/gpu/row_cases.py times: Liger (liger-kernel) and FlagGems (flag_gems).

Their kernels are called directly, without autograd; what a gradient needs from the forward call is made before. One
that writes its inputs gets copies, and reset() puts the values there again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from row_cases import EPS, Case

Call = Callable[[], Any]


def resetting(call: Call, *copies: tuple[torch.Tensor, torch.Tensor]) -> Call:
    """The call with the values that its own copies must have before it."""

    def reset() -> None:
        for own, values in copies:
            own.copy_(values)

    call.reset = reset  # type: ignore[attr-defined]
    return call


def ligers_cross_entropy_with_grad(case: Case) -> Call:
    """Its gradient is written over the logits in forward."""
    from liger_kernel.transformers import LigerCrossEntropyLoss

    x, target = case.tensors
    own, loss = x.clone().requires_grad_(), LigerCrossEntropyLoss(reduction="none")

    def call():
        with torch.enable_grad():
            return loss(own, target).detach(), own.detach()

    return resetting(call, (own, x))


@cache
def liger() -> dict[str, Callable[[Case], Call]]:
    """By operator; ImportError where Liger is not installed."""
    from liger_kernel.ops.fused_add_rms_norm import fused_add_rms_norm_forward
    from liger_kernel.ops.geglu import geglu_forward
    from liger_kernel.ops.layer_norm import layer_norm_backward, layer_norm_forward
    from liger_kernel.ops.rms_norm import rms_norm_backward, rms_norm_forward
    from liger_kernel.ops.rope import rope_forward
    from liger_kernel.ops.softmax import _softmax_backward, _softmax_forward
    from liger_kernel.ops.swiglu import swiglu_fused_gate_up_backward, swiglu_fused_gate_up_forward

    def rms_backward(case: Case) -> Call:
        g, x, w = case.tensors
        _, x, rstd, *settings, casting = rms_norm_forward(x, w, EPS, 0.0, "llama", None)
        return lambda: rms_norm_backward(g, x, w, rstd, 0.0, casting, *settings, False, None)

    def layer_backward(case: Case) -> Call:
        g, x, w = case.tensors
        _, x, mean, rstd, *_ = layer_norm_forward(x, w, w, EPS)
        return lambda: layer_norm_backward(g, x, w, w, mean, rstd)

    def softmax_backward(case: Case) -> Call:
        g, out = case.tensors
        _, *settings = _softmax_forward(out)
        return lambda: _softmax_backward(g, out, *settings)

    def gelu_and_mul(case: Case) -> Call:
        gate, up = (half.contiguous() for half in case.tensors[0].chunk(2, -1))
        return lambda: geglu_forward(gate, up)[2]

    def rope(case: Case) -> Call:
        q, k, cos, sin = case.tensors
        own_q, own_k = q.clone(), k.clone()

        def call():
            turned = rope_forward(own_q.transpose(1, 2), own_k.transpose(1, 2), cos, sin)[:2]
            return tuple(heads.transpose(1, 2) for heads in turned)

        return resetting(call, (own_q, q), (own_k, k))

    return {
        "rms_norm": plain(lambda x, w: rms_norm_forward(x, w, EPS, 0.0, "llama", None)[0]),
        "layer_norm": plain(lambda x, w, b: layer_norm_forward(x, w, b, EPS)[0]),
        "fused_add_rms_norm": plain(
            lambda x, r, w: fused_add_rms_norm_forward(x, r, w, EPS, 0.0, "llama")[:2]
        ),
        "rms_norm_backward": rms_backward,
        "layer_norm_backward": layer_backward,
        "softmax": plain(lambda x: _softmax_forward(x)[0]),
        "softmax_backward": softmax_backward,
        "cross_entropy_with_grad": ligers_cross_entropy_with_grad,
        "silu_and_mul": plain(lambda x: swiglu_fused_gate_up_forward(x)[1]),
        "silu_and_mul_backward": plain(lambda g, x: swiglu_fused_gate_up_backward(x, g)),
        "gelu_and_mul": gelu_and_mul,
        "rope_qk": rope,
    }


@cache
def flag_gems() -> dict[str, Callable[[Case], Call]]:
    """By operator; ImportError where FlagGems is not installed."""
    from flag_gems import fused, ops
    from flag_gems.fused.swiglu import dswiglu
    from flag_gems.ops.rms_norm import rms_norm_backward, rms_norm_forward

    def added(case: Case) -> Call:
        x, r, w = case.tensors
        own_x, own_r = x.clone(), r.clone()
        call = lambda: fused.fused_add_rms_norm(own_x, own_r, w.shape, w, EPS)  # noqa: E731
        return resetting(call, (own_x, x), (own_r, r))

    def rms_backward(case: Case) -> Call:
        g, x, w = case.tensors
        _, scale = rms_norm_forward(x, w.shape, w, EPS)
        return lambda: rms_norm_backward(g, x, scale, w.shape, w, EPS)

    def layer_backward(case: Case) -> Call:
        g, x, w = case.tensors
        _, mean, rstd = ops.layer_norm(x, w.shape, w, w, EPS)
        wanted = [True] * 3
        return lambda: ops.layer_norm_backward(g, x, w.shape, mean, rstd, w, w, wanted)

    def rope(case: Case) -> Call:
        q, k, *tables = case.tensors
        cos, sin = (table.chunk(2, -1)[0].contiguous() for table in tables)
        return lambda: fused.apply_rotary_pos_emb(q, k, cos, sin)

    def quant_fp8(case: Case) -> Call:
        (x,), group = case.tensors, int(case.shape.split()[-1])
        return lambda: ops.per_token_group_quant_fp8(x, group)

    return {
        "rms_norm": plain(lambda x, w: rms_norm_forward(x, w.shape, w, EPS)[0]),
        "layer_norm": plain(lambda x, w, b: ops.layer_norm(x, w.shape, w, b, EPS)[0]),
        "fused_add_rms_norm": added,
        "rms_norm_backward": rms_backward,
        "layer_norm_backward": layer_backward,
        "softmax": plain(lambda x: ops.softmax(x, -1)),
        "log_softmax": plain(lambda x: ops.log_softmax(x, -1)),
        "softmax_backward": plain(lambda g, out: ops.softmax_backward(g, out, -1, out.dtype)),
        "silu_and_mul": plain(lambda x: fused.silu_and_mul(*x.chunk(2, -1))),
        "silu_and_mul_backward": plain(dswiglu),
        "gelu_and_mul": plain(lambda x: fused.gelu_and_mul(*x.chunk(2, -1), "tanh")),
        "relu": plain(ops.relu),
        "silu": plain(ops.silu),
        "gelu": plain(ops.gelu),
        "add": plain(ops.add),
        "mul": plain(ops.mul),
        "rope_qk": rope,
        "quant_fp8": quant_fp8,
    }


def plain(function: Callable) -> Callable[[Case], Call]:
    """One that takes the case's tensors as they are."""
    return lambda case: lambda: function(*case.tensors)


PEERS = {"liger": liger, "flag_gems": flag_gems}


@cache
def missing(side: str) -> str:
    """Why nothing of a peer is timed; empty where it can be. A package may raise anything where it finds no GPU."""
    try:
        PEERS[side]()
    except Exception as error:
        return f"{side} is left out: {type(error).__name__}: {error}"
    return ""


def peer(side: str, case: Case) -> Call | None:
    """The peer's call of this operator, if it has one; what it needs beforehand is made here and may raise."""
    make = None if missing(side) else PEERS[side]().get(case.operator)
    return make(case) if make else None
