# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.sparsity's permutation search: orders beside all others, models that compute the same afterwards."""

from __future__ import annotations

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from anyop.torch.apex.contrib.sparsity import permutation_search_kernels as kernels  # noqa: E402
from anyop.torch.apex.contrib.sparsity.permutation_lib import Permutation  # noqa: E402
from anyop.torch.apex.contrib.sparsity.permutation_search_kernels import (  # noqa: E402
    channel_swap,
    exhaustive_search,
    permutation_utilities,
)
from anyop.torch.apex.extensions import permutation_search_cuda  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


def kept(matrix):
    """What pruning to 2 of 4 keeps, in float64."""
    stripes = np.abs(matrix.astype(np.float64)).reshape(len(matrix), -1, 4)
    return np.sort(stripes, -1)[..., 2:].sum()


def whole(R, C, seed=0):
    """Whole numbers, of which every sum is exact; columns of like size lie side by side, a poor order."""
    random = np.random.default_rng(seed)
    return (random.integers(1, 20, (R, C)) * (1 + np.arange(C) // (C // 4))).astype(np.float32)


def test_all_orders_of_eight_columns():
    matrix = whole(9, 8)
    orders = exhaustive_search.generate_all_unique_combinations(8, 4)
    assert len(orders) == 35 == exhaustive_search.predict_unique_combinations(8, 4)
    assert len({frozenset(map(frozenset, o.reshape(2, 4).tolist())) for o in orders}) == 35
    assert orders[0].tolist() == list(range(8))
    best = max(kept(matrix[:, order]) for order in orders)
    given = matrix.copy()
    found, seconds, order = exhaustive_search.Exhaustive_Search(matrix)
    assert kept(found) == best > kept(matrix) and seconds >= 0
    np.testing.assert_array_equal(found, matrix[:, order])
    np.testing.assert_array_equal(matrix, given)


@pytest.mark.parametrize("size", [8, 12])
def test_groups_of_stripes_gain(size):
    """Where it ends no group gains; the permutation that columns have already is permuted with them."""
    matrix = whole(17, 24, seed=size)
    before = list(np.random.default_rng(1).permutation(24))
    found, _, order = exhaustive_search.Exhaustive_Search(matrix, size, 3, before)
    places = [before.index(c) for c in order]
    np.testing.assert_array_equal(found, matrix[:, places])
    assert kept(found) > 1.02 * kept(matrix)
    again = exhaustive_search.Exhaustive_Search(found, size)
    assert kept(again[0]) == kept(found)
    assert exhaustive_search.Exhaustive_Search(matrix, size, 3, before)[2] == order


def test_swaps_gain():
    matrix = whole(17, 24)
    found, _, order = channel_swap.Channel_Swap(matrix)
    np.testing.assert_array_equal(found, matrix[:, order])
    assert kept(found) > 1.02 * kept(matrix)
    for src in range(24):
        for dst in range(24):
            total, gain = permutation_utilities.try_swap(found, dst, src)
            swapped = found.copy()
            swapped[:, [src, dst]] = found[:, [dst, src]]
            if src // 4 != dst // 4:
                assert gain == kept(swapped) - kept(found)
                assert gain <= 1e-6 * kept(matrix)
                stripes = [4 * (c // 4) + i for c in (src, dst) for i in range(4)]
                assert total == kept(swapped[:, stripes])
    assert channel_swap.stripes_and_swap_idx_to_columns(2, 5, 7) == (9, 23)
    assert channel_swap.columns_to_stripes_and_swap_idx(9, 23) == (2, 5, 7)


def test_searches_by_name():
    matrix = torch.from_numpy(whole(8, 16))
    options = {"escape_attempts": 2, "progressive_search_time_limit": 0.2}
    for strategy in ("exhaustive", "channel swap", "progressive channel swap", "user defined"):
        order = kernels.accelerated_search_for_good_permutation(
            matrix, options | {"strategy": strategy}
        )
        assert sorted(order) == list(range(16))
        gain = kernels.sum_after_2_to_4(matrix[:, order]) - kernels.sum_after_2_to_4(matrix)
        assert gain == 0 if strategy == "user defined" else gain > 0
    with pytest.raises(ValueError, match=r"^strategy is 'best', expected one of exhaustive, "):
        kernels.accelerated_search_for_good_permutation(matrix, {"strategy": "best"})
    with pytest.raises(ValueError, match="16 columns in groups of 16"):
        exhaustive_search.Exhaustive_Search(matrix)
    nan = torch.full((4, 16), torch.nan)
    for strategy in ("exhaustive", "channel swap"):
        options = {"strategy": strategy, "escape_attempts": 0}
        assert kernels.accelerated_search_for_good_permutation(nan, options) == list(range(16))


def test_utilities():
    matrix = whole(6, 8)
    pruned = permutation_utilities.apply_2_to_4(matrix.copy())
    assert pruned.sum() == kept(matrix) == kernels.sum_after_2_to_4(matrix)
    assert ((pruned.reshape(6, 2, 4) != 0).sum(-1) == 2).all()
    order = np.random.default_rng(0).permutation(8)
    assert permutation_utilities.find_permutation(matrix[:, order], matrix) == order.tolist()


def test_the_extension_takes_flat_arrays():
    matrix, found = whole(7, 12), np.zeros(1, np.float32)
    flat = matrix.ravel()
    assert permutation_search_cuda.sum_after_2_to_4(flat, 7, 12, 4, 12, 1, 2, found) == 0
    assert found[0] == kept(matrix[:, 4:12])
    orders = np.array(exhaustive_search.generate_all_unique_combinations(8, 4))
    groups = np.array([[0, 1], [2, 0]], np.uint32)
    gains, best = np.zeros(2, np.float32), np.zeros(2, np.uint32)
    permutations = orders.astype(np.uint32).ravel()
    permutation_search_cuda.build_permute_map(
        flat, 7, 12, groups.ravel(), 2, 2, permutations, 8, gains, best
    )
    for g, group in enumerate(groups):
        own = np.concatenate([matrix[:, 4 * s : 4 * s + 4] for s in group.tolist()], 1)
        sums = [kept(own[:, order]) for order in orders]
        assert gains[g] == max(sums) - sums[0] and best[g] == np.argmax(sums)
        gain, number = np.zeros(1, np.float32), np.zeros(1, np.uint32)
        permutation_search_cuda.check_permutations(
            flat, 7, 12, group, 2, 1, permutations, 35, gain, number
        )
        assert (gain[0], number[0]) == (gains[g], best[g])
    swaps = np.zeros(32, np.float32)
    permutation_search_cuda.build_swap_map(flat, 7, 12, groups.ravel(), swaps)
    swapped = matrix.copy()
    swapped[:, [9, 2]] = matrix[:, [2, 9]]
    assert swaps[16 + 4 * 1 + 2] == kept(swapped) - kept(matrix)


class Residual(nn.Module):
    """Convolutions with norms, of groups, a sum, parts side by side, an average, products."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.left, self.right = nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(32, 32, 1, groups=2)
        self.each = nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.scale = nn.Parameter(torch.randn(32, 1, 1))
        self.wide, self.side = nn.Conv2d(32, 32, 1), nn.Conv2d(32, 16, 1)
        self.joined, self.after = nn.Conv2d(48, 32, 1), nn.Conv2d(32, 32, 1)
        self.hidden, self.last = nn.Linear(32, 64), nn.Linear(64, 10)
        self.layer_norm = nn.LayerNorm(64)

    def forward(self, x):
        x = F.relu(self.norm(self.first(x))) * self.scale
        x = F.max_pool2d(x + self.left(self.each(x)), 2) * 2
        x = self.right(self.joined(torch.cat([self.wide(x), self.side(x)], 1)))
        x = self.after(x).relu().mean((2, 3)).view(x.size(0), -1)
        return self.last(self.layer_norm(F.gelu(self.hidden(x))))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(6, 32), nn.Linear(32, 5)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x):
        x = self.inner(x)
        return self.out(x + self.attention(x, x, x)[0])


class Closed(nn.Module):
    """Nothing here may be permuted."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(4, 16, 1), nn.Conv2d(16, 16, 1)
        self.group_norm, self.c = nn.GroupNorm(4, 16), nn.Conv2d(16, 16, 1)
        self.d, self.e = nn.Linear(16 * 4, 16), nn.Linear(16, 16)
        self.f = nn.Linear(16, 16)

    def forward(self, x):
        x = self.b(self.a(x).flip(1))
        x = self.c(self.group_norm(x)) + x
        x = self.e(self.d(torch.flatten(x, 1)).roll(1, -1))
        y = self.f(x.transpose(0, 1).contiguous().transpose(0, 1))
        return F.linear(y, self.f.weight), x


class Tied(nn.Module):
    """Runs another way when it trains, and reads a weight twice: one group, which sort closes."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.d = nn.Linear(16, 4)
        self.c.weight = self.b.weight

    def forward(self, x):
        x = self.a(x).relu()
        if self.training:
            return self.d(x.sort(-1).values)
        return self.d(self.c(self.b(x).relu()).relu())


# The model, sizes of its input, weights that must be permuted along their inputs, and how many other dimensions.
MODELS = [
    (Residual, (4, 3, 8, 8), "left wide side joined right hidden last", 23),
    (Attention, (3, 7, 6), "attention.in_proj_weight out", 4),
    (Closed, (3, 4, 2, 2), "", 0),
    (Tied, (3, 8), "", 0),
]


@pytest.mark.parametrize(("model", "sizes", "of_inputs", "others"), MODELS)
def test_a_permuted_model_computes_the_same(model, sizes, of_inputs, others, tmp_path):
    torch.manual_seed(0)
    model = model()
    model = model.double()
    for tensor in model.state_dict().values():
        if tensor.dim() == 1:  # of norms and biases
            nn.init.uniform_(tensor, 0.5, 2)
    x = torch.randn(sizes, dtype=torch.float64)
    before, old = model.eval()(x), {n: t.clone() for n, t in model.state_dict().items()}
    pruned = [
        (name.rpartition(".")[0], model, name, p, None, None)
        for name, p in model.named_parameters()
        if p.dim() > 1 and p.shape[1] > 1
    ]
    path = tmp_path / "graph.json"
    Permutation.set_permutation_params_from_asp(model, pruned, [], 0)
    assert Permutation.permute_model(model, dump_fx_graph=True, save_dumped_fx_graph=str(path))
    assert not model.training
    found, along_others, left = Permutation.get_permutation_stats()
    names = {name if "_weight" in name else f"{name}.weight" for name in of_inputs.split()}
    graph = json.loads(path.read_text())
    assert {m for g in graph if not g["closed"] for m in g["members"]} >= {f"{n}[1]" for n in found}
    assert set(found) == names and left == []
    changed = {n for n, t in model.state_dict().items() if not torch.equal(t, old[n])}
    assert changed == set(found) | set(along_others)
    assert len(along_others) == others
    for one, other in zip(*((r if isinstance(r, tuple) else (r,)) for r in (before, model(x)))):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_states_of_an_optimizer_go_with_their_parameters():
    """A step after the permutation is the permuted step."""
    results = []
    for permutes in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)).double()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        x = torch.randn(16, 8, dtype=torch.float64)
        for step in range(3):
            if step == 2 and permutes:
                sparse = [("2", model[2], "weight", model[2].weight, None, None)]
                Permutation.set_permutation_params_from_asp(model, sparse, [])
                assert Permutation.permute_model(model, optimizer=optimizer)
                assert Permutation.get_permutation_stats()[0] == ["2.weight"]
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        results.append(model(x))
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)


def test_a_model_that_cannot_be_traced_stays():
    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x):
            return self.inner(x) if x.sum() > 0 else x

    model = Branch()
    old = model.inner.weight.clone()
    with pytest.warns(UserWarning, match="torch.fx cannot trace the model"):
        assert not Permutation.permute_model(model)
    assert torch.equal(model.inner.weight, old) and model.training
