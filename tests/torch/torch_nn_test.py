# SPDX-License-Identifier: Apache-2.0
"""anyop.torch.nn: arguments, parameters and state dicts are torch.nn's, results and gradients equal torch's."""

from __future__ import annotations

import copy
import io
import pickle

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import anyop.torch  # noqa: E402

nn = anyop.torch.nn
# Float32 sums in another order; one or two roundings more or fewer of 16 bits.
TOLERANCE = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}
DTYPES = [torch.float32, torch.bfloat16]
# Name: class, arguments, shape of the input.
LAYERS = {
    "Linear": ("Linear", (7, 5), {}, (2, 3, 7)),
    "Linear without bias": ("Linear", (7, 5, False), {}, (4, 7)),
    "Linear of one row": ("Linear", (7, 5), {}, (7,)),
    "RMSNorm": ("RMSNorm", (9,), {}, (2, 3, 9)),
    "RMSNorm with eps": ("RMSNorm", (9, 0.5), {}, (3, 9)),
    "RMSNorm of two dimensions": ("RMSNorm", ([3, 5], 1e-4), {}, (2, 3, 5)),
    "RMSNorm without weight": ("RMSNorm", (9, 1e-5, False), {}, (2, 9)),
    "LayerNorm": ("LayerNorm", (9,), {}, (2, 3, 9)),
    "LayerNorm without bias": ("LayerNorm", (9,), {"bias": False, "eps": 0.1}, (4, 9)),
    "LayerNorm without weights": ("LayerNorm", (9, 1e-5, False), {}, (4, 9)),
    "LayerNorm of three dimensions": ("LayerNorm", ((2, 3, 5),), {}, (4, 2, 3, 5)),
    "SiLU": ("SiLU", (), {}, (3, 5)),
    "ReLU": ("ReLU", (), {}, (3, 5)),
    "GELU": ("GELU", (), {}, (3, 5)),
    "GELU by tanh": ("GELU", ("tanh",), {}, (3, 5)),
    "Softmax": ("Softmax", (-1,), {}, (3, 4, 5)),
    "Softmax over the middle": ("Softmax", (), {"dim": 1}, (3, 4, 5)),
    "LogSoftmax": ("LogSoftmax", (0,), {}, (3, 4, 5)),
}


def both(case, dtype=torch.float32):
    """The module of anyop and of torch with the same random parameters, and the shape of an input."""
    name, arguments, options, shape = LAYERS[case]
    torch.manual_seed(3)
    expected = getattr(torch.nn, name)(*arguments, **options).to(dtype)
    for parameter in expected.parameters():
        torch.nn.init.normal_(parameter)
    found = getattr(nn, name)(*arguments, **options).to(dtype)
    found.load_state_dict(expected.state_dict(), strict=True)
    return found, expected, shape


def assert_close(found, expected):
    assert found.dtype is expected.dtype and found.shape == expected.shape
    tolerance = TOLERANCE[expected.dtype]
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", LAYERS)
def test_results_equal_torch(case, dtype):
    found, expected, shape = both(case, dtype)
    x = torch.randn(shape, dtype=dtype)
    with torch.no_grad():
        assert_close(found(x), expected(x))
        swapped = torch.randn(shape[::-1], dtype=dtype).permute(*range(len(shape))[::-1])
        assert_close(found(swapped), expected(swapped))
        empty = torch.empty(0, *shape, dtype=dtype)
        if len(shape) < 3 and "dim" not in LAYERS[case][2]:
            assert found(empty).shape == expected(empty).shape


@pytest.mark.parametrize("case", LAYERS)
def test_gradients_equal_torch(case):
    found, expected, shape = both(case, torch.float64)
    x = torch.randn(shape, dtype=torch.float64)
    grad = torch.randn_like(expected(x))
    results = []
    for module in (found, expected):
        leaf = x.clone().requires_grad_()
        module(leaf).backward(grad)
        results.append([leaf.grad, *(parameter.grad for parameter in module.parameters())])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
        assert ours.abs().max() > 0


@pytest.mark.parametrize("case", LAYERS)
def test_is_torchs_module_but_for_forward(case):
    found, expected, _ = both(case)
    assert repr(found) == repr(expected) and isinstance(found, type(expected))
    expected.load_state_dict(found.state_dict(), strict=True)
    assert list(found.state_dict()) == list(expected.state_dict())
    name, arguments, options, shape = LAYERS[case]
    torch.manual_seed(5)
    first = getattr(nn, name)(*arguments, **options)
    torch.manual_seed(5)
    second = getattr(torch.nn, name)(*arguments, **options)
    for ours, theirs in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    x = torch.randn(shape)
    with torch.no_grad():
        for other in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
            assert type(other) is type(found) and torch.equal(other(x), found(x))


def test_state_dicts_go_through_files():
    model = torch.nn.Sequential(torch.nn.Embedding(11, 6), torch.nn.Linear(6, 4))
    ours = torch.nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 4))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    ours.load_state_dict(torch.load(file, weights_only=True))
    indices = torch.tensor([[0, 10], [3, 3]])
    with torch.no_grad():
        assert_close(ours(indices), model(indices))
    with pytest.raises(RuntimeError, match="Missing key"):
        nn.Linear(6, 4).load_state_dict({"weight": torch.zeros(4, 6)})


@pytest.mark.parametrize("name", ["Linear", "RMSNorm", "LayerNorm", "Embedding"])
def test_device_and_dtype(name):
    arguments = (4, 3) if name in ("Linear", "Embedding") else (4,)
    module = getattr(nn, name)(*arguments, device="meta", dtype=torch.bfloat16)
    assert all(p.is_meta and p.dtype is torch.bfloat16 for p in module.parameters())


def test_input_that_does_not_fit_normalized_shape_is_refused():
    x = torch.randn(2, 5, 3)
    for module in (nn.LayerNorm([3, 5]), nn.RMSNorm([3, 5])):
        with pytest.raises(ValueError, match=r"input has shape \(2, 5, 3\), expected \(\*, 3, 5\)"):
            module(x)
    for module in (nn.LayerNorm(4, elementwise_affine=False), nn.RMSNorm(4)):
        with pytest.raises(ValueError, match=r"expected \(\*, 4\)"):
            module(x)
        with pytest.raises(ValueError, match=r"expected \(\*, 4\)"):
            module(torch.tensor(1.0))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("SiLU", {"inplace": True}),
        ("ReLU", {"inplace": True}),
        ("Embedding", {"max_norm": 1.0}),
        ("Embedding", {"sparse": True}),
        ("Embedding", {"scale_grad_by_freq": True}),
    ],
)
def test_what_no_operator_does_is_refused_at_once(name, options):
    arguments = (4, 3) if name == "Embedding" else ()
    with pytest.raises(NotImplementedError, match=next(iter(options))):
        getattr(nn, name)(*arguments, **options)
    with pytest.raises(ValueError, match="Softmax: dim must be given"):
        nn.Softmax(None)


@pytest.mark.parametrize("padding_idx", [None, 2, -1])
def test_embedding_equals_torch(padding_idx):
    torch.manual_seed(1)
    expected = torch.nn.Embedding(5, 3, padding_idx=padding_idx)
    torch.manual_seed(1)
    found = nn.Embedding(5, 3, padding_idx=padding_idx)
    assert torch.equal(found.weight, expected.weight) and repr(found) == repr(expected)
    indices = torch.tensor([[2, 0, 4], [4, 2, 1]])
    for turned in (indices, indices.t(), indices.int()):
        found.zero_grad(), expected.zero_grad()
        ours, theirs = found(turned), expected(turned)
        assert torch.equal(ours, theirs)
        grad = torch.randn_like(theirs)
        ours.backward(grad), theirs.backward(grad)
        torch.testing.assert_close(found.weight.grad, expected.weight.grad)
        assert (found.weight.grad == 0).all(1).sum() == (1 if padding_idx is None else 2)
    with pytest.raises(ValueError, match="embedding"), torch.no_grad():
        found(torch.tensor([5]))
    frozen = nn.Embedding.from_pretrained(expected.weight.detach(), padding_idx=padding_idx)
    assert type(frozen) is nn.Embedding and not frozen(indices).requires_grad


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_silu_and_mul(dtype):
    x = torch.randn(3, 4, 10, dtype=dtype)
    gate, value = x.chunk(2, -1)
    expected = (torch.nn.functional.silu(gate.double()) * value).to(dtype)
    assert_close(nn.SiluAndMul()(x), expected)
    assert_close(nn.SiluAndMul()(x.permute(1, 0, 2)), expected.permute(1, 0, 2))
    wide = torch.randn(10, 4, dtype=dtype).t()
    assert_close(nn.SiluAndMul()(wide), nn.SiluAndMul()(wide.contiguous()))


@pytest.mark.parametrize("masked", ["none", "causal", "bool", "added"])
def test_attention_equals_torch(masked):
    torch.manual_seed(2)
    q, k, v = (torch.randn(2, 5, heads, 8).transpose(1, 2) for heads in (4, 2, 2))
    mask = {"bool": torch.rand(5, 5) > 0.3, "added": torch.randn(2, 1, 5, 5)}.get(masked)
    if masked == "bool":
        mask |= torch.eye(5, dtype=torch.bool)
    causal = masked == "causal"
    found, expected = [], []
    for results, attend in (
        (found, nn.Attention(scale=0.4, causal=causal)),
        (expected, torch.nn.functional.scaled_dot_product_attention),
    ):
        leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
        named = {} if attend is not torch.nn.functional.scaled_dot_product_attention else {
            "attn_mask": mask, "scale": 0.4, "is_causal": causal, "enable_gqa": True
        }  # fmt: skip
        out = attend(*leaves, **named) if named else attend(*leaves, mask)
        (out * torch.arange(8.0)).sum().backward()
        results += [out.detach(), *(leaf.grad for leaf in leaves)]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-5)
    assert repr(nn.Attention(0.4, True)) == "Attention(scale=0.4, causal=True)"
    with torch.no_grad():
        strided = q.transpose(2, 3).contiguous().transpose(2, 3)
        again = nn.Attention(0.4, causal)(strided, k, v, mask)
    torch.testing.assert_close(again, found[0], rtol=1e-6, atol=1e-6)


def test_frozen_parameters_and_functional_call():
    module = nn.Linear(4, 3)
    module.weight.requires_grad_(False)
    module(torch.randn(2, 4)).sum().backward()
    assert module.weight.grad is None and torch.equal(module.bias.grad, torch.full((3,), 2.0))
    other = {"weight": torch.ones(3, 4), "bias": torch.zeros(3)}
    found = torch.func.functional_call(module, other, torch.ones(1, 4))
    assert torch.equal(found, torch.full((1, 3), 4.0))


def test_compiled_modules_equal_eager_ones():
    model = torch.nn.Sequential(
        nn.Embedding(13, 8, padding_idx=1), nn.RMSNorm(8), nn.Linear(8, 12), nn.SiluAndMul(),
        nn.LayerNorm([6]), nn.GELU("tanh"), nn.Softmax(-1),
    )  # fmt: skip
    indices = torch.tensor([[1, 0, 12], [3, 1, 4]])
    compiled = torch.compile(model, fullgraph=True)
    grads = []
    for run in (model, compiled):
        model.zero_grad()
        out = run(indices)
        (out * torch.arange(6.0)).sum().backward()
        grads.append([out.detach(), *(parameter.grad for parameter in model.parameters())])
    for eager, traced in zip(*grads, strict=True):
        torch.testing.assert_close(traced, eager, rtol=1e-5, atol=1e-6)
