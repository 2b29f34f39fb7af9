# SPDX-License-Identifier: Apache-2.0
"""anyop.torch.flashinfer.sampling and .fused_moe: FlashInfer's calls, and what they mean."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import anyop  # noqa: E402
from anyop.torch.flashinfer import fused_moe, sampling  # noqa: E402

B, V = 400, 50
LOGITS = 2 * torch.randn(1, V, generator=torch.Generator().manual_seed(0)).expand(B, V)
PROBS = LOGITS.softmax(-1)
ORDER = LOGITS[0].argsort(descending=True, stable=True)
DRAWS = {
    "sampling_from_probs": (PROBS, {}, V),
    "sampling_from_logits": (LOGITS, {}, V),
    "top_k_sampling_from_probs": (PROBS, {"top_k": 3}, 3),
    "top_p_sampling_from_probs": (PROBS, {"top_p": 0.9}, int((PROBS[0, ORDER].cumsum(0) < 0.9).sum()) + 1),
    "min_p_sampling_from_probs": (PROBS, {"min_p": 0.01}, int((PROBS[0] >= 0.01 * PROBS[0].max()).sum())),
    "top_k_top_p_sampling_from_probs": (PROBS, {"top_k": 3, "top_p": 1.0}, 3),
    "top_k_top_p_sampling_from_logits": (LOGITS, {"top_k": 2, "top_p": 1.0}, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWS)
def test_what_is_drawn(name):
    """Of what the filter keeps; by seeds, by a generator; rows of one seed draw for themselves."""
    x, filters, kept = DRAWS[name]
    draw = getattr(sampling, name)
    found = draw(x, **filters, seed=7, offset=3)
    assert found.dtype is torch.int32
    assert set(found.tolist()) <= set(ORDER[:kept].tolist())
    assert len(set(found.tolist())) >= min(kept, 5) > 1
    assert torch.equal(found, draw(x, **filters, seed=7, offset=3))
    assert not torch.equal(found, draw(x, **filters, seed=7, offset=4))
    each = torch.arange(B)
    own = draw(x, **filters, seed=each, offset=torch.zeros(B, dtype=torch.int64))
    again = draw(x[:9], **filters, seed=each[:9], offset=torch.zeros(9, dtype=torch.int64))
    assert torch.equal(own[:9], again)
    drawn = [draw(x, **filters, generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2)]
    assert torch.equal(*drawn[:2])
    assert not torch.equal(*drawn[1:])
    rows = torch.zeros(B, dtype=torch.int64)
    by_rows = draw(x[:1], **filters, indices=rows, seed=7, offset=3)
    assert by_rows.dtype is torch.int64
    assert torch.equal(by_rows.int(), found)


def test_filters_of_each_row_and_their_order():
    k, p = torch.tensor([1, 2, 50]).repeat(2), torch.tensor([1.0, 1.0, 0.0]).repeat(2)
    for order in ("top_k_first", "joint"):
        draw = sampling.top_k_top_p_sampling_from_probs
        found, valid = draw(PROBS[:6], k, p, filter_apply_order=order, return_valid=True)
        assert valid.all()
        assert found[[0, 2, 3, 5]].tolist() == [ORDER[0]] * 4
    # Of 0.4, 0.3, 0.3 the first two are 0.57 of what top_k keeps, 0.4 of all: joint needs both.
    probs = torch.tensor([[0.4, 0.3, 0.3]]).expand(99, 3)
    assert set(draw(probs, 2, 0.5, seed=0, offset=0).tolist()) == {0}
    assert set(draw(probs, 2, 0.5, None, "joint", seed=0, offset=0).tolist()) == {0, 1}
    with pytest.raises(ValueError, match="filter_apply_order is 'both'"):
        draw(probs, 2, 0.5, filter_apply_order="both")


def test_bad_rows_and_seeds():
    bad = torch.tensor([[0.5, float("nan")], [0.0, 0.0], [0.0, 1.0]])
    tokens, valid = sampling.sampling_from_probs(bad, return_valid=True)
    assert tokens.tolist() == [-1, -1, 1]
    assert valid.tolist() == [False, False, True]
    with pytest.raises(ValueError, match="contains NaN"):
        sampling.sampling_from_probs(bad, check_nan=True)
    for given in ({"seed": 1}, {"seed": 1, "offset": torch.zeros(1)}):
        with pytest.raises(ValueError, match="seed and offset must both"):
            sampling.sampling_from_probs(PROBS, **given)


def test_what_filters_leave():
    x = PROBS[:2].half()
    kept = torch.zeros(V).index_fill_(0, ORDER[:3], 1).bool()
    found = sampling.top_k_renorm_probs(PROBS[:2], 3)
    torch.testing.assert_close(found[0], torch.where(kept, PROBS[0], 0) / PROBS[0, kept].sum())
    masked = sampling.top_k_mask_logits(LOGITS[:2], torch.tensor([3, 3]))
    assert torch.equal(masked[1], torch.where(kept, LOGITS[0], -torch.inf))
    assert sampling.top_p_renorm_probs(x, 0.0)[0, ORDER[0]] == 1
    temperature = torch.tensor([1.0, 0.5])
    torch.testing.assert_close(sampling.softmax(LOGITS[:2]), PROBS[:2])
    found = sampling.softmax(LOGITS[:2], temperature)
    torch.testing.assert_close(found, (LOGITS[:2] / temperature[:, None]).softmax(-1))
    torch.testing.assert_close(found[1:], sampling.softmax(LOGITS[1:2], 0.5))


def test_a_chain():
    """FlashInfer's own example: the first token is accepted, the second drawn from the difference."""
    draft = torch.tensor([[[0.0, 0.2, 0.0, 0.8], [0.9, 0.1, 0.0, 0.0]]])
    draft[0, 0] = torch.tensor([0.0, 0.0, 0.5, 0.5])
    target = torch.tensor([[[0.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.7, 0.1, 0.1, 0.1]]])
    counts = [torch.ones(1, dtype=torch.int32) for _ in range(2)]
    given = draft, torch.tensor([[2, 1]]), target
    tokens, accepted, emitted = sampling.chain_speculative_sampling(*given, *counts)
    assert tokens.tolist() == [[2, 0, -1]]
    assert accepted is counts[0]
    assert emitted is counts[1]
    assert (accepted.tolist(), emitted.tolist()) == ([2], [2])


def experts(dtype=torch.float32, gates=2):
    random = torch.Generator().manual_seed(0)
    shapes = (9, 20), (6, gates * 12, 20), (6, 20, 12), (6, gates * 12), (6, 20)
    return [torch.randn(*shape, generator=random).to(dtype) / 4 for shape in shapes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_experts_with_ups_first_over_ranks(dtype):
    x, fc1, fc2, *_ = experts(dtype)
    weights, ids = torch.rand(9, 2), torch.randint(0, 6, (9, 2))
    w13 = torch.cat([fc1[:, 12:], fc1[:, :12]], 1)
    wanted = anyop.fused_moe(x, w13, fc2, weights, ids.int())
    found = fused_moe.cutlass_fused_moe(x, ids, weights, fc1, fc2, dtype, None)
    assert torch.equal(found, wanted)
    out = torch.empty(9, 20, dtype=torch.float64)
    assert fused_moe.cutlass_fused_moe(x, ids, weights, fc1, fc2, dtype, [], output=out) is out
    assert torch.equal(out, wanted.double())
    parts = [
        fused_moe.cutlass_fused_moe(
            x, ids, weights, fc1[part], fc2[part], torch.float32, [], ep_size=2, ep_rank=rank, enable_pdl=True
        )
        for rank, part in enumerate((slice(3), slice(3, 6)))
    ]  # fmt: skip
    rounding = 1e-6 if dtype is torch.float32 else 2**-7
    torch.testing.assert_close(sum(parts), wanted.float(), rtol=rounding, atol=rounding)


def test_activations_of_experts():
    x, fc1, fc2, *biases = experts()
    weights, ids = torch.rand(9, 2), torch.randint(0, 6, (9, 2))
    call, kinds = fused_moe.cutlass_fused_moe, fused_moe.ActivationType

    def wanted(gate):
        out = torch.zeros(9, 20)
        for t in range(9):
            for e, weight in zip(ids[t], weights[t]):
                up, both = (fc1[e] @ x[t] + biases[0][e]).chunk(2)
                out[t] += weight * (fc2[e] @ gate(both, up) + biases[1][e])
        return out

    gelu, silu = torch.nn.functional.gelu, torch.nn.functional.silu
    for given, gate in (
        ({"activation_type": kinds.Geglu}, lambda g, u: gelu(g) * u),
        ({"activation_type": kinds.GegluTanh}, lambda g, u: gelu(g, approximate="tanh") * u),
        ({"swiglu_limit": 0.2}, lambda g, u: silu(g.clamp(max=0.2)) * u.clamp(-0.2, 0.2)),
        ({"activation_type": kinds.SwigluBias, "swiglu_alpha": 1.7}, lambda g, u: g * (1.7 * g).sigmoid() * (u + 1)),
        ({"swiglu_beta": 1.0}, lambda g, u: silu(g) * (u + 1)),
    ):  # fmt: skip
        found = call(x, ids, weights, fc1, fc2, torch.float32, [], *biases, **given)
        torch.testing.assert_close(found, wanted(gate), rtol=1e-5, atol=1e-5)
    x, fc1, fc2, *_ = experts(gates=1)
    found = call(x, ids, weights, fc1, fc2, torch.float32, [], activation_type=kinds.Relu2)
    assert torch.equal(found, anyop.fused_moe(x, fc1, fc2, weights, ids.int(), activation="relu2"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"quant_scales": [torch.ones(1)]}, "has no quant_scales"),
        ({"input_sf": torch.ones(1)}, "has no input_sf"),
        ({"min_latency_mode": True}, "has no min_latency_mode"),
        ({"activation_type": 1}, "has no activation_type 1"),
        ({"swiglu_beta": 2.0}, r"has no swiglu_beta 2\.0"),
        ({"swiglu_alpha": torch.ones(6)}, "has no swiglu_alpha of each expert: give one number"),
    ],
)
def test_what_experts_do_not_have(given, message):
    x, fc1, fc2, *_ = experts()
    weights, ids = torch.rand(9, 2), torch.randint(0, 6, (9, 2))
    with pytest.raises(NotImplementedError, match=message):
        fused_moe.cutlass_fused_moe(x, ids, weights, fc1, fc2, torch.float32, **given)
    with pytest.raises(TypeError, match="unexpected keyword argument 'tiles'"):
        fused_moe.cutlass_fused_moe(x, ids, weights, fc1, fc2, torch.float32, tiles=1)
