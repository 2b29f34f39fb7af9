# SPDX-License-Identifier: Apache-2.0
"""fused_moe and its gradient on a GPU, each kernel forced by a route, against a loop over experts in float64; and a
served layer, from the routing to the drawn token, in one captured graph.
"""

from __future__ import annotations

import anyop
import anyop.torch
import pytest
from on_cuda import DEVICE, same_bits, torch

IS_HOPPER = torch.cuda.get_device_capability() == (9, 0)
# The choices of cuda_sm90: its own, tiles of many rows, and of few with 1 to 8 blocks a cluster.
KERNELS = ["cuda", *["cuda_sm90", *[f"cuda_sm90:{i}" for i in range(5)]] * IS_HOPPER]
# T, E, k, H, I: one token, more experts than tokens, more than a tile of an expert, long sums, odd multiples of 8; on
# Hopper (700, 5, ...) goes by segment_sm90.h.
SHAPES = [
    (1, 8, 2, 256, 128), (2, 60, 4, 512, 192), (63, 128, 8, 2048, 768), (65, 384, 8, 256, 264), (700, 3, 2, 136, 72),
    (700, 5, 2, 328, 200), (1000, 1, 1, 264, 520), (8192, 8, 2, 512, 256), (300, 128, 6, 1032, 200),
]  # fmt: skip
FORMS = {
    "silu": {}, "gelu_tanh": {"activation": "gelu_tanh"}, "relu2": {"activation": "relu2"},
    "gpt-oss": {"activation": "swigluoai", "alpha": 1.702, "limit": 7.0, "transposed": 1},
    "up first": {"activation": "gelu", "up_first": True},
}  # fmt: skip
EPS = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # a step at 1
GRADIENTS = ("x", "w13", "w2", "weights", "bias13", "bias2")


class Layer:
    """Half of all tokens go to one expert first, some slots to none, some twice to the same."""

    def __init__(self, T, E, k, H, I, dtype, form, biases):  # noqa: E741
        generator = torch.Generator(DEVICE).manual_seed(T + E)
        self.form, kind = FORMS[form], getattr(torch, dtype)

        def normal(*shape):
            return torch.randn(shape, generator=generator, device=DEVICE)

        width = I if form == "relu2" else 2 * I
        self.x, self.grad = (normal(T, H).to(kind) for _ in range(2))
        w13, w2 = (normal(E, width, H) * H**-0.5).to(kind), (normal(E, H, I) * I**-0.5).to(kind)
        if self.form.get("transposed"):
            w13, w2 = (w.transpose(1, 2).contiguous() for w in (w13, w2))
        self.w13, self.w2 = w13, w2
        self.weights = torch.rand((T, k), generator=generator, device=DEVICE)
        ids = torch.randint(-1, E + 1, (T, k), generator=generator, device=DEVICE)
        ids[: T // 2, 0] = E // 2
        ids[::5] = ids[::5, :1].clone()
        self.ids = ids.int()
        self.biases = [normal(E, n).to(kind) if biases else None for n in (width, H)]

    def given(self):
        return self.x, self.w13, self.w2, self.weights, self.ids, *self.biases

    def exact(self):
        """In float64, of what autograd differentiates: the result, and the gradients in the order of GRADIENTS."""
        leaves = [self.x, self.w13, self.w2, self.weights, *self.biases]
        leaves = [t if t is None else t.double().requires_grad_() for t in leaves]
        x, w13, w2, weights, bias13, bias2 = leaves
        if self.form.get("transposed"):
            w13, w2 = w13.transpose(1, 2), w2.transpose(1, 2)
        out = torch.zeros_like(x)
        for e in range(w13.shape[0]):
            t, slot = (self.ids == e).nonzero(as_tuple=True)
            sums = x[t] @ w13[e].t() + (0 if bias13 is None else bias13[e])
            rows = activated(sums, **self.form) @ w2[e].t() + (0 if bias2 is None else bias2[e])
            out = out.index_add(0, t, weights[t, slot, None] * rows)
        wanted = [t for t in leaves if t is not None]
        return out.detach(), torch.autograd.grad(out, wanted, self.grad.double())


def activated(sums, activation="silu", alpha=1.0, limit=None, up_first=False, transposed=0):
    if activation == "relu2":
        return sums.relu() ** 2
    gate, up = sums.chunk(2, 1)[:: -1 if up_first else 1]
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    if activation.startswith("gelu"):
        form = "tanh" if activation == "gelu_tanh" else "none"
        return torch.nn.functional.gelu(gate, approximate=form) * up
    return gate * torch.sigmoid(alpha * gate) * (up + (activation == "swigluoai"))


def assert_near(found, exact, limit, what, size=0.0, alone=True):
    """By the root of the mean square, or a greater size; and no number is far off alone: for its expert, where there
    is a matrix for each, for one may have many rows and the others few.
    """
    error, squares = (found.double() - exact).abs(), exact.square()
    assert error.isfinite().all(), what
    if exact.numel():
        assert error.square().mean().sqrt() <= limit * squares.mean().sqrt().clamp(min=size), what
    if exact.numel() and alone:
        own = squares.mean((1, 2), keepdim=True) if exact.dim() == 3 else squares.mean()
        worst = (error / (own.sqrt().clamp(min=size) + exact.abs()).clamp(min=1e-300)).max().item()
        assert worst <= 12 * limit, f"{what}: {worst / limit:.1f} limits"


def test_the_kernels_are_there():
    names = {k["name"] for k in anyop.metadata("fused_moe")["kernels"]}
    assert {"cuda", "cuda_sm90"} <= names


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_against_float64(shape, form, dtype):
    """Three roundings in a row: of hidden features (of gradients), of an expert's row, of the result; gradients know
    the rounded sums in front of the activation besides. Each is off by 0.29 of a step in the mean square.
    """
    layer = Layer(*shape, dtype, form, biases=form == "gpt-oss")
    out, gradients = layer.exact()
    names = [n for n, t in zip(GRADIENTS, [1, 1, 1, 1, *layer.biases]) if t is not None]
    for kernel in KERNELS:
        with anyop.use(kernel):
            found = anyop.fused_moe(*layer.given(), **layer.form)
            again, hidden, order, offsets = anyop.native_fused_moe(*layer.given(), **layer.form)
        assert same_bits(found, again), kernel
        assert_near(found, out, EPS[dtype], kernel)
        call = (layer.grad, *layer.given()[:4], hidden, order, offsets, layer.biases[1])
        with anyop.use(kernel.split(":")[0]):
            back, twice = (anyop.fused_moe_backward(*call, **layer.form) for _ in range(2))
        assert all(map(same_bits, back, twice)), kernel
        back = dict(zip(GRADIENTS, back))
        # A weight's is the product of a row of grad_out and an expert's row, which may cancel where slots are few.
        uncancelled = layer.x.shape[1] ** 0.5 * out.square().mean().sqrt().item()
        for name, exact in zip(names, gradients, strict=True):
            size = uncancelled if name == "weights" else 0.0
            # A rounded sum may lie on the other side of the limit, where there is no gradient.
            alone = "limit" not in layer.form
            assert_near(back[name], exact, 2 * EPS[dtype], f"{kernel}: {name}", size, alone)


@pytest.mark.parametrize("kernel", KERNELS)
def test_no_tokens_and_no_experts_with_rows(kernel):
    for T in (0, 5):
        layer = Layer(T, 8, 2, 256, 128, "bfloat16", "silu", False)
        layer.ids.fill_(-1)
        with anyop.use(kernel):
            out = anyop.fused_moe(*layer.given())
        assert out.shape == (T, 256) and not out.any()


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_nan_stays_in_its_token(kernel):
    layer = Layer(200, 8, 2, 256, 128, "bfloat16", "silu", False)
    layer.ids.clamp_(0, 7)
    with anyop.use(kernel):
        clean = anyop.fused_moe(*layer.given())
        layer.x[17], layer.weights[30] = torch.nan, torch.nan
        found = anyop.fused_moe(*layer.given())
    bad = torch.tensor([17, 30], device=DEVICE)
    assert found[bad].isnan().all()
    found[bad] = clean[bad]
    assert same_bits(found, clean)


@pytest.mark.skipif(not IS_HOPPER, reason="cuda_sm90 is for Hopper")
def test_what_tma_does_not_read_goes_to_the_other_kernel():
    """H, I of no multiples of 8, weights at odd addresses."""
    for H, I in ((260, 128), (256, 132)):  # noqa: E741
        layer = Layer(33, 8, 2, H, I, "bfloat16", "silu", False)
        found = {}
        for kernel in ("cuda", "cuda_sm90"):
            with anyop.use(kernel):
                found[kernel] = anyop.fused_moe(*layer.given())
        assert_near(found["cuda"], layer.exact()[0], EPS["bfloat16"], "out")
        assert same_bits(*found.values())
    layer = Layer(33, 8, 2, 256, 128, "bfloat16", "silu", False)
    expected = layer.exact()[0]
    moved = torch.empty(layer.w2.numel() + 1, dtype=layer.w2.dtype, device=DEVICE)[1:]
    layer.w2 = moved.view_as(layer.w2).copy_(layer.w2)
    assert_near(anyop.fused_moe(*layer.given()), expected, EPS["bfloat16"], "out")


BLOCKS = [
    (1, 8, 2, 256, 128), (3, 64, 8, 528, 256), (64, 16, 4, 272, 144), (700, 5, 2, 256, 384), (300, 128, 6, 1040, 128),
    (8000, 3, 2, 144, 256), (512, 64, 4, 784, 640),
]  # fmt: skip


@pytest.mark.skipif(not IS_HOPPER, reason="cuda_sm90 is for Hopper")
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "relu2"])
@pytest.mark.parametrize("shape", BLOCKS)
def test_weights_of_8_bits_in_blocks(shape, activation):
    """As by `cuda`, but where a code is the next one. Tiles of a segment's own height (the last shape) and those of
    256 rows give the same bits.
    """
    layer = Layer(*shape, "bfloat16", "relu2" if activation == "relu2" else "silu", False)
    generator = torch.Generator(DEVICE).manual_seed(shape[0])
    weights = [(16 * w).to(torch.float8_e4m3fn) for w in (layer.w13, layer.w2)]
    blocks = [(w.shape[0], -(-w.shape[1] // 128), -(-w.shape[2] // 128)) for w in weights]
    scales = [torch.rand(b, generator=generator, device=DEVICE) / 16 for b in blocks]
    call = (layer.x, *weights, *scales, layer.weights, layer.ids)
    found = {}
    for kernel in KERNELS:
        with anyop.use(kernel):
            found[kernel] = anyop.fused_moe_fp8_block(*call, activation=activation)
            again = anyop.fused_moe_fp8_block(*call, activation=activation)
        assert same_bits(found[kernel], again), kernel
        assert_near(found[kernel], found["cuda"].double(), 2.0**-6, kernel)
    if shape == BLOCKS[-1]:
        assert same_bits(found["cuda_sm90"], found["cuda_sm90:0"])


@pytest.mark.parametrize("T", [1, 37, 600])
def test_a_served_layer_in_one_graph(T):
    """Replays with other logits, tokens, seeds and offsets have the bits of eager calls."""
    E, k, H, I, V = 60, 4, 256, 128, 5000  # noqa: E741
    layer = Layer(T, E, k, H, I, "bfloat16", "silu", False)
    head = torch.randn(V, H, device=DEVICE).bfloat16()
    inputs = [
        torch.empty(T, E, device=DEVICE), torch.empty(T, H, device=DEVICE, dtype=torch.bfloat16),
        *(torch.empty(T, device=DEVICE, dtype=torch.int64) for _ in range(2)),
    ]  # fmt: skip
    top_p = torch.full((T,), 0.9, device=DEVICE)

    def put(number):
        generator = torch.Generator(DEVICE).manual_seed(number)
        for tensor in inputs:
            if tensor.is_floating_point():
                tensor.normal_(generator=generator)
            else:
                tensor.random_(generator=generator)
        if number == 2:
            inputs[0][:, 3] = 9  # all tokens to one expert

    def step():
        logits, x, seed, offset = inputs
        weights, ids = anyop.moe_route(logits, top_k=k)
        order, inverse, offsets = anyop.moe_sort(ids, E)
        out = anyop.fused_moe(x, layer.w13, layer.w2, weights, ids)
        token, logprob = anyop.sample(anyop.linear(out, head).float(), seed, offset, top_p=top_p)
        return weights, ids, order, inverse, offsets, out, token, logprob

    expected = []
    for number in range(4):
        put(number)
        expected.append([result.clone() for result in step()])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # refuses what waits
        found = step()
    for number in (2, 0, 3, 1):
        put(number)
        graph.replay()
        torch.cuda.synchronize()
        assert all(map(same_bits, found, expected[number])), number
    assert len({tuple(results[-2].tolist()) for results in expected}) == 4
    assert all((results[-2] >= 0).all() for results in expected)
