# SPDX-License-Identifier: Apache-2.0
"""What kernels.py times: for each operator its call, torch's best expression of it, and what must be moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import anyop
import torch
from torch.nn import functional as F

EPS, FLOAT8 = 1e-6, torch.float8_e4m3fn
aten = torch.ops.aten


@dataclass
class Case:
    """Two calls of the same tensors; torch's, given float64, is the reference. moved: in tensors of x's size."""

    name: str
    tensors: tuple[torch.Tensor, ...]
    ours: Callable[..., Any]
    torchs: Callable[..., Any]
    moved: float = 2
    tolerance: float = 1  # times the operator's

    @property
    def operator(self) -> str:
        return self.name.split()[0]


def norms(x, y, w, b) -> Iterator[Case]:
    D = x.shape[-1]

    def rms(x, w):
        return F.rms_norm(x, (D,), w, EPS)

    def layer(x, w, b):
        return F.layer_norm(x, (D,), w, b, EPS)

    yield Case("rms_norm", (x, w), lambda *t: anyop.rms_norm(*t, EPS), rms)
    yield Case("layer_norm", (x, w, b), lambda *t: anyop.layer_norm(*t, EPS), layer)
    yield Case("fused_add_rms_norm", (x, y, w), lambda *t: anyop.fused_add_rms_norm(*t, EPS),
               lambda x, y, w: (rms(s := x + y, w), s), 4, 2)  # fmt: skip
    yield Case("fused_add_layer_norm", (x, y, w, b),
               lambda *t: anyop.fused_add_layer_norm(*t, EPS),
               lambda x, y, w, b: (layer(s := x + y, w, b), s), 4, 2)  # fmt: skip
    yield Case("l2_normalize", (x,), anyop.l2_normalize, lambda x: F.normalize(x, dim=-1))
    yield from norm_forms(x, w, b)


def norm_forms(x, w, b) -> Iterator[Case]:
    """Weights around 1, results and weights of another type, and forms that keep something for their gradients."""
    D, dims = x.shape[-1], (x.shape[-1],)
    other = torch.float32 if x.dtype != torch.float32 else torch.bfloat16
    name = str(other).removeprefix("torch.")
    for operator, own, rest in (
        ("rms_norm", F.rms_norm, (w,)),
        ("layer_norm", F.layer_norm, (w, b)),
    ):
        ours = getattr(anyop, operator)
        yield Case(f"{operator} offset", (x, *rest),
                   lambda *t, f=ours: f(*t, EPS, weight_offset=1.0),
                   lambda x, w, *b, f=own: f(x, dims, w + 1, *b, EPS))  # fmt: skip
        yield Case(f"{operator} to {name}", (x, *rest), lambda *t, f=ours: f(*t, EPS, dtype=name),
                   lambda *t, f=own: f(t[0], dims, *t[1:], EPS).to(other), tolerance=2)  # fmt: skip
        if x.dtype in (torch.float16, torch.bfloat16):  # which torch takes for layer_norm alone
            yield Case(f"{operator} of float32 weights", (x, *(t.float() for t in rest)),
                       lambda *t, f=ours: f(*t, EPS),
                       lambda *t, f=own: f(t[0].to(t[1].dtype), dims, *t[1:], EPS).to(t[0].dtype)
                       if f is F.rms_norm else f(t[0], dims, *t[1:], EPS))  # fmt: skip
    rms = lambda x, w: aten._fused_rms_norm(x, [D], w, EPS)  # noqa: E731
    yield Case("native_rms_norm", (x, w), lambda *t: anyop.native_rms_norm(*t, EPS), rms)
    yield Case("native_layer_norm", (x, w, b), lambda *t: anyop.native_layer_norm(*t, EPS), saved)
    yield Case("rms_norm_from_output", (x, w), lambda *t: anyop.rms_norm_from_output(*t, EPS), rms)
    yield Case("layer_norm_from_output", (x, w, b),
               lambda *t: anyop.layer_norm_from_output(*t, EPS), lambda *t: saved(*t)[::2])  # fmt: skip


def saved(x, w, b):
    """What torch's layer_norm keeps for its gradient."""
    return torch.native_layer_norm(x, [x.shape[-1]], w, b, EPS)


def norm_gradients(x, y, w, b) -> Iterator[Case]:
    """Torch's side by autograd where it has no operator; the forward pass is not timed."""
    D = x.shape[-1]
    _, mean, rstd = saved(x, w, b)
    graphs = {}

    def rms(g, x, w):
        if x.dtype not in graphs:
            leaves = x.clone().requires_grad_(), w.clone().requires_grad_()
            with torch.enable_grad():
                graphs[x.dtype] = F.rms_norm(leaves[0], (D,), leaves[1], EPS), leaves
        out, leaves = graphs[x.dtype]
        return torch.autograd.grad(out, leaves, g, retain_graph=True)

    def layer(g, x, w, b):
        kept = (mean, rstd) if x.dtype == w.dtype == mean.dtype else saved(x, w, b)[1:]
        if x.dtype in (torch.float16, torch.bfloat16):
            kept = mean, rstd
        return aten.native_layer_norm_backward(g, x, [D], *kept, w, b, [True] * 3)

    def added(gradients, more):
        return gradients[0] + more, *gradients[1:]

    ours, layers = anyop.rms_norm_backward, anyop.layer_norm_backward
    yield Case("rms_norm_backward", (y, x, w), lambda *t: ours(*t, EPS), rms, 3, 2)
    yield Case("layer_norm_backward", (y, x, w, b), lambda g, x, w, b: layers(g, x, w, EPS), layer,
               3, 2)  # fmt: skip
    yield Case("fused_add_rms_norm_backward", (x, y, w),
               lambda s, g, w: anyop.fused_add_rms_norm_backward(s, g, s, w, EPS),
               lambda s, g, w: added(rms(g, s, w), s), 3, 2)  # fmt: skip
    yield Case("fused_add_layer_norm_backward", (x, y, w, b),
               lambda s, g, w, b: anyop.fused_add_layer_norm_backward(s, g, s, w, EPS),
               lambda s, g, w, b: added(layer(g, s, w, b), s), 3, 2)  # fmt: skip
    # A result in 16 bits is half a step from what torch keeps, is divided by weights from 0.5 on, and
    # columns add as many as there are rows.
    limit = max(8, len(x) ** 0.5)
    out, scale = anyop.rms_norm_from_output(x, w, EPS)
    yield Case("rms_norm_from_output_backward", (y, out, scale, w, x),
               lambda g, out, scale, w, x: anyop.rms_norm_from_output_backward(g, out, scale, w),
               lambda g, out, scale, w, x: rms(g, x, w), 3, limit)  # fmt: skip
    out, scale = anyop.layer_norm_from_output(x, w, b, EPS)
    yield Case("layer_norm_from_output_backward", (y, out, scale, w, b, x),
               lambda g, out, scale, w, b, x:
                   anyop.layer_norm_from_output_backward(g, out, scale, w, b),
               lambda g, out, scale, w, b, x: layer(g, x, w, b), 3, limit)  # fmt: skip

    def normalize(g, x):
        norm = x.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        n = x / norm
        return (g - n * (g * n).sum(-1, keepdim=True)) / norm

    yield Case("l2_normalize_backward", (y, x), anyop.l2_normalize_backward, normalize, 3)


def softmaxes(x, y, *_) -> Iterator[Case]:
    for dim, more in ((-1, ""), (0, " dim=0")):
        out, logs = x.softmax(dim), x.log_softmax(dim)
        yield Case("softmax" + more, (x,), lambda x, d=dim: anyop.softmax(x, d),
                   lambda x, d=dim: torch.softmax(x, d))  # fmt: skip
        yield Case("log_softmax" + more, (x,), lambda x, d=dim: anyop.log_softmax(x, d),
                   lambda x, d=dim: torch.log_softmax(x, d))  # fmt: skip
        yield Case("softmax_backward" + more, (y, out),
                   lambda g, y, d=dim: anyop.softmax_backward(g, y, d),
                   lambda g, y, d=dim: aten._softmax_backward_data(g, y, d, y.dtype), 3)  # fmt: skip
        yield Case("log_softmax_backward" + more, (y, logs),
                   lambda g, y, d=dim: anyop.log_softmax_backward(g, y, d),
                   lambda g, y, d=dim: aten._log_softmax_backward_data(g, y, d, y.dtype), 3)  # fmt: skip
    # As scores: 4 heads, or 1, of rows that see D columns, and a triangle of as many numbers.
    scores = x.view(1, 4 if len(x) % 4 == 0 else 1, -1, x.shape[-1])
    mask = torch.rand(1, 1, *scores.shape[2:]) < 0.2
    infinity = float("-inf")
    yield Case("scaled_softmax", (scores,), lambda x: anyop.scaled_softmax(x, 0.5),
               lambda x: torch.softmax(x * 0.5, -1), tolerance=2)  # fmt: skip
    yield Case("scaled_masked_softmax", (scores, mask),
               lambda x, m: anyop.scaled_masked_softmax(x, m, 0.5),
               lambda x, m: torch.softmax((x * 0.5).masked_fill_(m, infinity), -1),
               tolerance=2)  # fmt: skip
    yield Case("scaled_softmax_backward", (y, x.softmax(-1)),
               lambda g, y: anyop.scaled_softmax_backward(g, y, 0.5),
               lambda g, y: aten._softmax_backward_data(g, y, -1, y.dtype).mul_(0.5), 3)  # fmt: skip
    S = next(s for s in (1024, 512, 64) if s * s <= x.numel())
    square, grad = (t.reshape(-1)[: t.numel() // S // S * S * S].view(-1, S, S) for t in (x, y))
    above = torch.ones(S, S, dtype=torch.bool).triu(1)
    out = square.masked_fill(above, infinity).softmax(-1)
    yield Case("scaled_upper_triang_masked_softmax", (square, above),
               lambda x, m: anyop.scaled_upper_triang_masked_softmax(x, 0.5),
               lambda x, m: torch.softmax((x * 0.5).masked_fill_(m, infinity), -1), 1.5, 2)  # fmt: skip
    yield Case("scaled_upper_triang_masked_softmax_backward", (grad, out),
               lambda g, y: anyop.scaled_upper_triang_masked_softmax_backward(g, y, 0.5),
               lambda g, y: aten._softmax_backward_data(g, y, -1, y.dtype).mul_(0.5), 2)  # fmt: skip


def gated(own):
    """own(gate) * up and its gradient, as eager torch computes them."""

    def forward(x):
        gate, up = x.chunk(2, -1)
        return own(gate) * up

    return forward


def gated_gradient(own, backward):
    def run(g, x):
        gate, up = x.chunk(2, -1)
        return torch.cat([backward(g * up, gate), g * own(gate)], -1)

    return run


def activations(x, y, w, b) -> Iterator[Case]:
    out, pairs = x.relu(), torch.cat([x, y], -1)
    yield Case("relu", (x,), anyop.relu, torch.relu)
    yield Case("relu_backward", (y, out), anyop.relu_backward,
               lambda g, out: aten.threshold_backward(g, out, 0), 3)  # fmt: skip
    yield Case("silu", (x,), anyop.silu, F.silu)
    yield Case("silu_backward", (y, x), anyop.silu_backward, aten.silu_backward, 3)
    for form in ("none", "tanh"):
        own = lambda x, f=form: F.gelu(x, approximate=f)  # noqa: E731
        back = lambda g, x, f=form: aten.gelu_backward(g, x, approximate=f)  # noqa: E731
        yield Case(f"gelu {form}", (x,), lambda x, f=form: anyop.gelu(x, approximate=f), own)
        yield Case(f"gelu_backward {form}", (y, x),
                   lambda g, x, f=form: anyop.gelu_backward(g, x, approximate=f), back, 3)  # fmt: skip
        yield Case(f"bias_gelu {form}", (x, b), lambda x, b, f=form: anyop.bias_gelu(x, b, f),
                   lambda x, b, own=own: own(x + b), tolerance=2)  # fmt: skip
        yield Case(f"bias_gelu_backward {form}", (y, x, b),
                   lambda g, x, b, f=form: anyop.bias_gelu_backward(g, x, b, f),
                   lambda g, x, b, back=back: (r := back(g, x + b), r.sum(0)), 3, 2)  # fmt: skip
        yield Case(f"gelu_and_mul {form}", (pairs,), lambda x, f=form: anyop.gelu_and_mul(x, f),
                   gated(own), 3, 2)  # fmt: skip
        yield Case(f"gelu_and_mul_backward {form}", (y, pairs),
                   lambda g, x, f=form: anyop.gelu_and_mul_backward(g, x, f),
                   gated_gradient(own, back), 5, 2)  # fmt: skip
    yield Case("silu_and_mul", (pairs,), anyop.silu_and_mul, gated(F.silu), 3, 2)
    yield Case("silu_and_mul_backward", (y, pairs), anyop.silu_and_mul_backward,
               gated_gradient(F.silu, aten.silu_backward), 5, 2)  # fmt: skip


def arithmetic(x, y, w, b) -> Iterator[Case]:
    column = y[:, :1].contiguous()
    for name, ours, torchs in (("add", anyop.add, torch.add), ("mul", anyop.mul, torch.mul)):
        yield Case(name, (x, y), ours, torchs, 3)
        yield Case(f"{name} row", (x, w), ours, torchs)
        yield Case(f"{name} column", (x, column), ours, torchs)
    yield Case("add transposed", (x, y.t().contiguous().t()), anyop.add, torch.add, 3)
    yield Case("add alpha", (x, y), lambda x, y: anyop.add(x, y, alpha=0.5),
               lambda x, y: torch.add(x, y, alpha=0.5), 3)  # fmt: skip
    yield Case("add_backward row", (x, w, y), anyop.add_backward,
               lambda x, w, g: (g.clone(), g.sum(0)), 2, 2)  # fmt: skip
    yield from cross_types(x, y, w)
    yield Case("mul_backward", (x, y, w), lambda x, y, w: anyop.mul_backward(x, w, y),
               lambda x, y, w: (y * w, (y * x).sum(0)), 3, 2)  # fmt: skip
    for name in ("float32", "bfloat16", "float16", "float64", "int32"):
        target = getattr(torch, name)
        if target != x.dtype:
            yield Case(f"cast to {name}", (x,), lambda x, n=name: anyop.cast(x, n),
                       lambda x, t=target: x.to(t), 1 + target.itemsize / x.element_size())  # fmt: skip
    tokens = x.view(-1, min(128, x.shape[0]), x.shape[1])
    mask = torch.rand(tokens.shape[:2]) < 0.7
    mask[:, 0] = True
    yield Case("masked_mean", (tokens, mask), anyop.masked_mean,
               lambda x, m: (x * m[..., None]).sum(1) / m.sum(1, keepdim=True), 1, 4)  # fmt: skip
    yield Case("masked_mean_backward", (tokens[:, 0].contiguous(), mask), anyop.masked_mean_backward,
               lambda g, m: (g / m.sum(1, keepdim=True))[:, None] * m[..., None], 1, 2)  # fmt: skip


def cross_types(x, y, w) -> Iterator[Case]:
    """Operands of two types, as torch promotes them."""
    other = torch.float32 if x.dtype != torch.float32 else torch.bfloat16
    name = str(other).removeprefix("torch.")
    cast, counts, most = y.to(other), (y * 8).int(), max(x.element_size(), other.itemsize)
    moved = 1 + (most + other.itemsize) / x.element_size()
    for operator, ours, torchs in (("add", anyop.add, torch.add), ("mul", anyop.mul, torch.mul)):
        yield Case(f"{operator} {name}", (x, cast), ours, torchs, moved)
        yield Case(f"{operator} int32", (x, counts), ours, torchs, 2 + 4 / x.element_size())
    yield Case("cast_backward", (cast, x), anyop.cast_backward, lambda g, x: g.to(x.dtype),
               1 + other.itemsize / x.element_size())  # fmt: skip
    if x.dtype == torch.float32:  # once a shape
        for name in ("int32", "int64"):
            pair = tuple((t * 8).to(getattr(torch, name)) for t in (x, y))
            yield Case(f"add of {name}", pair, anyop.add, torch.add, 3 * pair[0].element_size() / 4)


def turned(x, cos, sin):
    left, right = x.chunk(2, -1)
    return x * cos[:, None] + torch.cat([-right, left], -1) * sin[:, None]


def paired(x, cos, sin):
    """Neighbours are a pair, and alike in the table."""
    c, s = (t[:, None, ::2] for t in (cos, sin))
    left, right = x[..., ::2], x[..., 1::2]
    return torch.stack([left * c - right * s, right * c + left * s], -1).flatten(-2)


def normed(x, w):
    return F.rms_norm(x, (x.shape[-1],), w, EPS)


def ropes(x, y, w, b) -> Iterator[Case]:
    T, H = x.shape[0], x.shape[1] // 128
    q, g, k = x.view(1, T, H, 128), y.view(1, T, H, 128), y[:, :1024].reshape(1, T, -1, 128)
    angles = torch.arange(T)[:, None] * 10000 ** (-torch.arange(64) / 64)
    cos, sin = (torch.cat([f(angles)] * 2, -1).to(x.dtype) for f in (torch.cos, torch.sin))
    u = w[:128].clone()
    yield Case("rope", (q, cos, sin), anyop.rope, turned, tolerance=4)
    yield Case("rope_backward", (g, cos, sin), anyop.rope_backward,
               lambda g, c, s: turned(g, c, -s), tolerance=4)  # fmt: skip
    yield Case("rope_qk", (q, k, cos, sin), anyop.rope_qk,
               lambda q, k, c, s: (turned(q, c, s), turned(k, c, s)), 2.5, 4)  # fmt: skip
    yield Case("rope_qk_backward", (q, k, cos, sin), anyop.rope_qk_backward,
               lambda q, k, c, s: (turned(q, c, -s), turned(k, c, -s)), 2.5, 4)  # fmt: skip
    twice = (t[:, :64].repeat_interleave(2, -1) for t in (cos, sin))
    yield Case("rope interleaved", (q, *twice),
               lambda *t: anyop.rope(*t, interleaved=True), paired, tolerance=4)  # fmt: skip
    at = torch.randperm(T)[None]
    yield Case("rope at positions", (q, cos, sin, at), anyop.rope,
               lambda x, c, s, at: turned(x, c[at[0]], s[at[0]]), tolerance=4)  # fmt: skip
    yield Case("qk_norm_rope", (q, k, u, u, cos, sin), anyop.qk_norm_rope,
               lambda q, k, w, u, c, s: (turned(normed(q, w), c, s), turned(normed(k, u), c, s)),
               2.5, 8)  # fmt: skip
    grads = {}

    def back(g, h, q, k, w, u, c, s):
        if q.dtype not in grads:
            leaves = [t.clone().requires_grad_() for t in (q, k, w, u)]
            with torch.enable_grad():
                outs = [turned(normed(t, v), c, s)
                        for t, v in (leaves[0::2], leaves[1::2])]  # fmt: skip
            grads[q.dtype] = outs, leaves
        outs, leaves = grads[q.dtype]
        return torch.autograd.grad(outs, leaves, (g, h), retain_graph=True)

    yield Case("qk_norm_rope_backward", (g, k, q, k, u, u, cos, sin),
               anyop.qk_norm_rope_backward, back, 3.75, 8)  # fmt: skip


def quantised(v, group):
    groups = v.unflatten(-1, (-1, group))
    scale = groups.abs().amax(-1, keepdim=True).float() / 448
    return (groups / scale).flatten(-2).to(FLOAT8), scale.squeeze(-1)


def quantisers(x, y, w, b) -> Iterator[Case]:
    """A step of float8 is an eighth."""
    pairs, half = torch.cat([x, y], -1), x.element_size()
    for n in (x.shape[-1], 128):
        yield Case(f"quant_fp8 {n}", (x,), lambda x, n=n: anyop.quant_fp8(x, group=n),
                   lambda x, n=n: quantised(x, n), 1 + 1 / half)  # fmt: skip
        yield Case(f"rms_norm_quant {n}", (x, w),
                   lambda x, w, n=n: anyop.rms_norm_quant(x, w, None, EPS, group=n),
                   lambda x, w, n=n: quantised(normed(x, w), n), 1 + 1 / half)  # fmt: skip
        yield Case(f"silu_and_mul_quant {n}", (pairs,),
                   lambda x, n=n: anyop.silu_and_mul_quant(x, group=n),
                   lambda x, n=n: quantised(gated(F.silu)(x), n), 2 + 1 / half)  # fmt: skip
    yield Case(f"fused_add_rms_norm_quant {n}", (x, y, w),
               lambda x, y, w, n=n: anyop.fused_add_rms_norm_quant(x, y, w, None, EPS, group=n),
               lambda x, y, w, n=n: ((r := quantised(normed(s := x + y, w), n))[0], s, r[1]),
               3 + 1 / half)  # fmt: skip


def tables(x, y, w, b) -> Iterator[Case]:
    rows, D = x.shape
    V = 4 * rows
    table, indices = torch.cat([x, y] * 2), torch.randint(V, (rows,))
    yield Case("embedding", (indices, table), anyop.embedding, F.embedding, 0.5)
    for name, at in (("", indices), (" few", indices % 50)):
        yield Case("embedding_backward" + name, (y, at),
                   lambda g, i: anyop.embedding_backward(g, i, V),
                   lambda g, i: aten.embedding_dense_backward(g, i, V, -1, False),
                   5, 100 if name else 1)  # fmt: skip
    for k in (8, 64):
        yield Case(f"topk {k}", (x,), lambda x, k=k: anyop.topk(x, k)[0],
                   lambda x, k=k: torch.topk(x, k)[0], 1)  # fmt: skip
    yield Case("topk 8 smallest", (x,), lambda x: anyop.topk(x, 8, largest=False)[0],
               lambda x: torch.topk(x, 8, largest=False)[0], 1)  # fmt: skip
    yield Case("sort", (x,), lambda x: anyop.sort(x)[0],
               lambda x: torch.sort(x, stable=True)[0], 1)  # fmt: skip
    values, at = torch.topk(x, 8)
    yield Case("topk_backward", (values, at), lambda g, i: anyop.topk_backward(g, i, D),
               lambda g, i: g.new_zeros(rows, D).scatter_(-1, i, g), 1)  # fmt: skip


FAMILIES = norms, norm_gradients, softmaxes, activations, arithmetic, ropes, quantisers, tables


def cases(dtype: torch.dtype, rows: int, D: int) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    x, y = (torch.randn(rows, D, generator=generator).to(dtype) for _ in range(2))
    w, b = (torch.rand(D, generator=generator).add_(0.5).to(dtype) for _ in range(2))
    for family in FAMILIES:
        if dtype == torch.float64 and family is quantisers:
            continue
        yield from family(x, y, w, b)
    yield Case("copy", (x,), torch.clone, torch.clone)
