# SPDX-License-Identifier: Apache-2.0
"""What bench/gpu/cuda_rows.py times: for each operator its call, its formula, torch's own kernel and its bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import anyop
import torch
from torch.nn import functional as F

EPS = 1e-6
Tensors = tuple[torch.Tensor, ...]


@dataclass
class Case:
    """One operator with its tensors. Bytes: each input and result once, but for what need not be read."""

    operator: str
    shape: str
    tensors: Tensors
    call: Callable[..., Any]
    formula: Callable[..., Any]  # what a model writes; in float64 it is the reference
    torch: Callable[..., Any] | None = None
    bytes: int = 0  # 0: of all tensors and results
    tolerance: float = 1.0  # times that of the dtype


def wide(*tensors):
    """As a kernel computes: float32, float64 for float64."""
    found = [t.double() if t.dtype == torch.float64 else t.float() for t in tensors]
    return found if len(found) > 1 else found[0]


def rms(v, w):
    return v * torch.rsqrt(v.square().mean(-1, keepdim=True) + EPS) * w


def normal(v):
    centred = v - v.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + EPS)


def rms_norm(x, w):
    return rms(*wide(x, w)).to(x.dtype)


def layer_norm(x, w, b):
    v, weight, bias = wide(x, w, b)
    return (normal(v) * weight + bias).to(x.dtype)


def fused_add_rms_norm(x, r, w):
    total = sum(wide(x, r)).to(x.dtype)
    return rms(*wide(total, w)).to(x.dtype), total


def fused_add_layer_norm(x, r, w, b):
    total = sum(wide(x, r)).to(x.dtype)
    return layer_norm(total, w, b), total


def rms_norm_backward(g, x, w):
    grad, v, weight = wide(g, x, w)
    scale = torch.rsqrt(v.square().mean(-1, keepdim=True) + EPS)
    product = grad * weight
    own = scale * (product - v * scale.square() * (product * v).mean(-1, keepdim=True))
    return own.to(x.dtype), (grad * v * scale).sum(0).to(x.dtype)


def layer_norm_backward(g, x, w):
    grad, v, weight = wide(g, x, w)
    centred = v - v.mean(-1, keepdim=True)
    scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + EPS)
    n, product = centred * scale, grad * weight
    slope, level = (product * n).mean(-1, keepdim=True), product.mean(-1, keepdim=True)
    own = scale * (product - level - n * slope)
    return own.to(x.dtype), (grad * n).sum(0).to(x.dtype), grad.sum(0).to(x.dtype)


def torchs_rms_backward(g, x, w):
    scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + EPS)
    call = torch.ops.aten._fused_rms_norm_backward
    return lambda *_: call(g, x, [x.shape[-1]], scale, w, [True, True])


def torchs_layer_backward(g, x, w):
    _, mean, rstd = torch.native_layer_norm(x, [x.shape[-1]], w, w, EPS)
    call = torch.ops.aten.native_layer_norm_backward
    return lambda *_: call(g, x, [x.shape[-1]], mean, rstd, w, w, [True, True, True])


def norms(rows: int, D: int, make) -> Iterator[Case]:
    """The norms and their gradients."""
    shape, x, r, w, b = f"{rows}x{D}", make(rows, D), make(rows, D), make(D), make(D)
    yield Case("rms_norm", shape, (x, w), lambda x, w: anyop.rms_norm(x, w, EPS), rms_norm,
               lambda x, w: F.rms_norm(x, (D,), w, EPS))  # fmt: skip
    yield Case("layer_norm", shape, (x, w, b), lambda *t: anyop.layer_norm(*t, EPS), layer_norm,
               lambda x, w, b: F.layer_norm(x, (D,), w, b, EPS))  # fmt: skip
    yield Case(
        "fused_add_rms_norm", shape, (x, r, w), lambda *t: anyop.fused_add_rms_norm(*t, EPS),
        fused_add_rms_norm,
    )  # fmt: skip
    yield Case(
        "fused_add_layer_norm", shape, (x, r, w, b),
        lambda *t: anyop.fused_add_layer_norm(*t, EPS), fused_add_layer_norm,
        tolerance=2,  # the sum is rounded, too
    )  # fmt: skip
    yield Case(
        "rms_norm_backward", shape, (r, x, w), lambda *t: anyop.rms_norm_backward(*t, EPS),
        rms_norm_backward, torchs_rms_backward(r, x, w) if x.is_cuda else None,
    )  # fmt: skip
    yield Case(
        "layer_norm_backward", shape, (r, x, w), lambda *t: anyop.layer_norm_backward(*t, EPS),
        layer_norm_backward, torchs_layer_backward(r, x, w), tolerance=2,
    )  # fmt: skip


def softmax(x):
    return wide(x).softmax(-1).to(x.dtype)


def softmax_backward(g, out):
    grad, v = wide(g, out)
    return (v * (grad - (grad * v).sum(-1, keepdim=True))).to(out.dtype)


def log_softmax(x):
    return wide(x).log_softmax(-1).to(x.dtype)


def softmaxes(rows: int, D: int, make) -> Iterator[Case]:
    """Over rows."""
    shape, x, g = f"{rows}x{D}", make(rows, D), make(rows, D)
    out = x.softmax(-1)
    yield Case("softmax", shape, (x,), anyop.softmax, softmax, lambda x: torch.softmax(x, -1))
    yield Case("log_softmax", shape, (x,), anyop.log_softmax, log_softmax,
               lambda x: torch.log_softmax(x, -1))  # fmt: skip
    yield Case(
        "softmax_backward", shape, (g, out), anyop.softmax_backward, softmax_backward,
        lambda g, out: torch.ops.aten._softmax_backward_data(g, out, -1, out.dtype),
    )  # fmt: skip


def cross_entropy(x, target):
    return -wide(x).log_softmax(-1).gather(-1, target[:, None]).squeeze(-1)


def cross_entropy_with_grad(x, target):
    logs = wide(x).log_softmax(-1)
    own = torch.arange(x.shape[-1], device=x.device) == target[:, None]
    loss = -logs.gather(-1, target[:, None]).squeeze(-1)
    return loss, torch.where(own, logs.exp() - 1, logs.exp()).to(x.dtype)


def torchs_cross_entropy_with_grad(x, target):
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        loss = F.cross_entropy(leaf, target, reduction="none")
        return loss.detach(), *torch.autograd.grad(loss, leaf, torch.ones_like(loss))


def losses(rows: int, V: int, make) -> Iterator[Case]:
    """Of rows of logits; each is read once, and its gradient written."""
    shape, x = f"{rows}x{V}", make(rows, V)
    target = torch.randint(V, (rows,), device=x.device)
    size = x.numel() * x.element_size()
    yield Case("cross_entropy", shape, (x, target), lambda *t: anyop.cross_entropy(*t)[0],
               cross_entropy, lambda x, t: F.cross_entropy(x, t, reduction="none"),
               bytes=size)  # fmt: skip
    yield Case("cross_entropy_with_grad", shape, (x, target), anyop.cross_entropy_with_grad,
               cross_entropy_with_grad, torchs_cross_entropy_with_grad, bytes=2 * size)  # fmt: skip
    lse, ones = wide(x).logsumexp(-1), torch.ones(rows, device=x.device)
    yield Case("cross_entropy_backward", shape, (x, target),
               lambda x, t: anyop.cross_entropy_backward(x, t, lse, ones),
               lambda *t: cross_entropy_with_grad(*t)[1], bytes=2 * size)  # fmt: skip


def group_norms(N: int, C: int, make) -> Iterator[Case]:
    """Images of 64 x 64 (1,280 channels: 16 x 16), 32 groups, with SiLU and without, both orders of channels."""
    side = 16 if C >= 1280 else 64
    x, w, b = make(N, C, side, side), make(C), make(C)
    shape = f"{N}x{C}x{side}x{side}"
    last = x.to(memory_format=torch.channels_last)
    for name, act in (("", lambda v: v), ("_silu", F.silu)):
        activation = "silu" if name else "none"

        def formula(x, w, b, act=act):
            return act(F.group_norm(wide(x), 32, *wide(w, b))).to(x.dtype)

        def first(x, w, b, activation=activation):
            return anyop.group_norm(x, 32, w, b, activation=activation)[0]

        def of_last(x, w, b, activation=activation):
            rows = x.permute(0, 2, 3, 1)
            found = anyop.group_norm_channels_last(rows, 32, w, b, activation=activation)[0]
            return found.permute(0, 3, 1, 2)

        def torchs(x, w, b, act=act):
            return act(F.group_norm(x, 32, w, b))

        yield Case(f"group_norm{name}", shape, (x, w, b), first, formula, torchs)
        yield Case(f"group_norm{name} last", shape, (last, w, b), of_last, formula, torchs)


def masked_softmaxes(rows: int, D: int, make) -> Iterator[Case]:
    """Of scores, rows x D for each of 32 heads."""
    x = make(1, 32, rows, D)
    mask = torch.rand(1, 1, rows, D, device=x.device) < 0.2

    def masked(x, mask):
        return (wide(x) * 0.5).masked_fill(mask, float("-inf")).softmax(-1).to(x.dtype)

    yield Case("scaled_masked_softmax", f"1x32x{rows}x{D}", (x, mask),
               lambda x, mask: anyop.scaled_masked_softmax(x, mask, 0.5), masked)  # fmt: skip
    scores = x[0, :, : min(rows, D), : min(rows, D)].contiguous()
    S = scores.shape[-1]
    above = torch.ones(S, S, dtype=torch.bool, device=x.device).triu(1)
    size = scores.numel() * scores.element_size()
    yield Case(
        "scaled_upper_triang_masked_softmax", f"32x{S}x{S}", (scores,),
        lambda x: anyop.scaled_upper_triang_masked_softmax(x, 0.5), lambda x: masked(x, above),
        bytes=size + size // 2,
    )  # fmt: skip


def halves(x):
    return wide(x).chunk(2, -1)


def silu_and_mul(x):
    gate, up = halves(x)
    return (F.silu(gate) * up).to(x.dtype)


def silu_and_mul_backward(g, x):
    (gate, up), grad = halves(x), wide(g)
    s = torch.sigmoid(gate)
    slope = s * (1 + gate * (1 - s))
    return torch.cat([grad * up * slope, grad * gate * s], -1).to(x.dtype)


def gelu_and_mul(x):
    gate, up = halves(x)
    return (F.gelu(gate, approximate="tanh") * up).to(x.dtype)


def bias_gelu(x, bias):
    return F.gelu(sum(wide(x, bias))).to(x.dtype)


def activations(rows: int, D: int, make) -> Iterator[Case]:
    """Element by element; D of the result."""
    shape, x, y, both, b = f"{rows}x{D}", make(rows, D), make(rows, D), make(rows, 2 * D), make(D)
    yield Case("silu_and_mul", shape, (both,), anyop.silu_and_mul, silu_and_mul)
    yield Case("silu_and_mul_backward", shape, (x, both), anyop.silu_and_mul_backward,
               silu_and_mul_backward)  # fmt: skip
    yield Case("gelu_and_mul", shape, (both,),
               lambda x: anyop.gelu_and_mul(x, "tanh"), gelu_and_mul)  # fmt: skip
    for name, own in (("relu", torch.relu), ("silu", F.silu), ("gelu", F.gelu)):
        yield Case(name, shape, (x,), getattr(anyop, name),
                   lambda x, own=own: own(wide(x)).to(x.dtype), own)  # fmt: skip
    yield Case("bias_gelu", shape, (x, b), anyop.bias_gelu, bias_gelu)
    yield Case("add", shape, (x, y), anyop.add, lambda x, y: sum(wide(x, y)).to(x.dtype), torch.add)
    yield Case("mul", shape, (x, y), anyop.mul,
               lambda x, y: torch.mul(*wide(x, y)).to(x.dtype), torch.mul)  # fmt: skip
    yield Case("mul by a column", shape, (x, y[:, :1].contiguous()), anyop.mul,
               lambda x, y: torch.mul(*wide(x, y)).to(x.dtype), torch.mul)  # fmt: skip
    yield Case("cast to float32", shape, (x,), lambda x: anyop.cast(x, torch.float32),
               lambda x: x.float(), lambda x: x.float())  # fmt: skip


def turned(x, cos, sin):
    v, c, s = wide(x), wide(cos)[:, None], wide(sin)[:, None]
    left, right = v.chunk(2, -1)
    return (v * c + torch.cat([-right, left], -1) * s).to(x.dtype)


def turned_back(g, cos, sin):
    """The gradient of turned, before it is rounded."""
    v, c, s = wide(g), wide(cos)[:, None], wide(sin)[:, None]
    left, right = (v * s).chunk(2, -1)
    return v * c + torch.cat([right, -left], -1)


def through_norm(back, x, w):
    """The gradients of rms with respect to x and w."""
    v, weight = wide(x, w)
    scale = torch.rsqrt(v.square().mean(-1, keepdim=True) + EPS)
    n, g = v * scale, back * weight
    of_x = scale * (g - n * (g * n).mean(-1, keepdim=True))
    return of_x.to(x.dtype), (back * n).flatten(0, -2).sum(0).to(w.dtype)


def qk_norm_rope_backward(g, h, q, k, w, u, cos, sin):
    of_q, of_w = through_norm(turned_back(g, cos, sin), q, w)
    of_k, of_u = through_norm(turned_back(h, cos, sin), k, u)
    return of_q, of_k, of_w, of_u


def ropes(rows: int, D: int, make) -> Iterator[Case]:
    """Tokens by D // 128 heads of 128, and 8 of k."""
    q, k, g, h = (make(1, rows, heads, 128) for heads in (D // 128, 8, D // 128, 8))
    angles = torch.arange(rows, device=q.device)[:, None] * 10000 ** (
        -torch.arange(64, device=q.device) / 64
    )
    cos, sin = (torch.cat([f(angles)] * 2, -1).to(q.dtype) for f in (torch.cos, torch.sin))
    shape = f"{rows}x({D // 128}+8)x128"
    yield Case("rope", f"{rows}x{D // 128}x128", (q, cos, sin), anyop.rope, turned)
    yield Case(
        "rope_backward", f"{rows}x{D // 128}x128", (g, cos, sin), anyop.rope_backward,
        lambda g, cos, sin: turned_back(g, cos, sin).to(g.dtype),
    )  # fmt: skip
    yield Case("rope_qk", shape, (q, k, cos, sin), anyop.rope_qk,
               lambda q, k, cos, sin: (turned(q, cos, sin), turned(k, cos, sin)))  # fmt: skip
    w = make(128)
    yield Case(
        "qk_norm_rope", shape, (q, k, w, w, cos, sin), anyop.qk_norm_rope,
        lambda q, k, w, u, cos, sin: (
            turned(rms(*wide(q, w)), cos, sin).to(q.dtype),
            turned(rms(*wide(k, u)), cos, sin).to(k.dtype),
        ),
    )  # fmt: skip
    yield Case("qk_norm_rope_backward", shape, (g, h, q, k, w, w, cos, sin),
               anyop.qk_norm_rope_backward, qk_norm_rope_backward)  # fmt: skip


def quantised(v, group):
    """Values that are scaled to 448, and their scales."""
    groups = v.unflatten(-1, (-1, group))
    scale = groups.abs().amax(-1, keepdim=True) / 448
    return (groups / scale).flatten(-2).to(torch.float8_e4m3fn), scale.squeeze(-1)


def quantisers(rows: int, D: int, make) -> Iterator[Case]:
    """To float8_e4m3fn, a scale for each row or 128 columns. One step of float8 is an eighth."""
    x, both, w = make(rows, D), make(rows, 2 * D), make(D)
    for group in (D, 128):
        shape = f"{rows}x{D} by {group}"
        yield Case("quant_fp8", shape, (x,), lambda x, n=group: anyop.quant_fp8(x, group=n),
                   lambda x, n=group: quantised(wide(x), n), tolerance=16)  # fmt: skip
        yield Case(
            "rms_norm_quant", shape, (x, w),
            lambda x, w, n=group: anyop.rms_norm_quant(x, w, None, EPS, group=n),
            lambda x, w, n=group: quantised(rms(*wide(x, w)), n), tolerance=16,
        )  # fmt: skip
        yield Case(
            "silu_and_mul_quant", shape, (both,),
            lambda x, n=group: anyop.silu_and_mul_quant(x, group=n),
            lambda x, n=group: quantised(F.silu(halves(x)[0]) * halves(x)[1], n), tolerance=16,
        )  # fmt: skip


def tables(rows: int, D: int, make) -> Iterator[Case]:
    """Rows of a table of 128,256, their gradient, and the order of rows."""
    V = 128256
    table, g = make(V, D), make(rows, D)
    indices = torch.randint(V, (rows,), device=g.device)
    size = g.element_size()
    yield Case("embedding", f"{rows} of {V}x{D}", (indices, table), anyop.embedding,
               lambda i, w: F.embedding(i, w), lambda i, w: F.embedding(i, w),
               bytes=2 * rows * D * size)  # fmt: skip
    yield Case(
        "embedding_backward", f"{rows} of {V}x{D}", (g, indices),
        lambda g, i: anyop.embedding_backward(g, i, V),
        lambda g, i: torch.zeros(V, D, dtype=wide(g).dtype, device=g.device)
        .index_add_(0, i, wide(g)).to(g.dtype),
        lambda g, i: torch.ops.aten.embedding_dense_backward(g, i, V, -1, False),
        bytes=(rows + V) * D * size,
    )  # fmt: skip
    yield Case("topk", f"{rows}x{D} 8", (g,), lambda x: anyop.topk(x, 8)[0],
               lambda x: torch.topk(x, 8)[0], lambda x: torch.topk(x, 8)[0])  # fmt: skip
    yield Case("sort", f"{rows}x{D}", (g,), lambda x: anyop.sort(x)[0],
               lambda x: torch.sort(x, stable=True)[0],
               lambda x: torch.sort(x, stable=True)[0])  # fmt: skip


FAMILIES: dict[str, tuple[Callable[..., Iterator[Case]], str]] = {
    "norms": (norms, "16384x4096,8192x8192,8192x7168,2048x65536,64x8192"),
    "softmaxes": (softmaxes, "16384x4096,8192x32768,2048x131072,64x128256"),
    "losses": (losses, "4096x128256,4096x151936,4096x32000"),
    "group_norms": (group_norms, "16x320,16x1280,8x512"),
    "masked": (masked_softmaxes, "2048x2048,4096x4096"),
    "activations": (activations, "16384x14336,8192x28672,8192x2048,64x14336"),
    "ropes": (ropes, "16384x4096,8192x8192,64x8192"),
    "quantisers": (quantisers, "16384x7168,8192x8192,64x8192"),
    "tables": (tables, "16384x4096,64x4096"),
}
