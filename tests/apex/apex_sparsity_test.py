# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.sparsity: masks against all patterns, a model that is pruned and trained."""

import subprocess
import sys
from itertools import combinations, product

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from anyop.torch.apex.contrib.sparsity import create_mask  # noqa: E402


def groups(mask):
    """Input channels four by four, behind all else."""
    return mask.movedim(1, -1).reshape(-1, mask.shape[1] // 4, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(8, 16), (8, 16, 3), (8, 16, 3, 5)])
def test_two_of_four_are_the_greatest(shape, dtype):
    torch.manual_seed(0)
    weight = torch.randn(shape).to(dtype)
    mask = create_mask(weight)
    assert mask.shape == weight.shape and mask.dtype is dtype
    assert (groups(mask).sum(-1) == 2).all()
    kept = groups(weight.abs().double() * mask.double()).sum(-1)
    exact = groups(weight.abs().double()).sort(-1).values[..., 2:].sum(-1)
    assert torch.equal(kept, exact)


def test_rows_that_end_within_a_group():
    mask = create_mask(torch.tensor([[1.0, 3, 2, 4, 9, 8, 7], [4, 3, 2, 1, 0, 0, 0]]))
    assert mask[0].tolist() == [0, 1, 0, 1, 1, 1, 0]
    assert mask[1].tolist() == [1, 1, 0, 0, 1, 1, 0]
    assert create_mask(torch.tensor([1.0, 0, 3, 2])).tolist() == [0, 0, 1, 1]


def test_blocks():
    """The best pattern is that of all which are possible; the greedy one fills rows and columns in order."""
    torch.manual_seed(0)
    weight = torch.randn(8, 12)
    best, greedy = (create_mask(weight, f"m4n2_2d_{how}") for how in ("best", "greedy"))
    rows = [[i in ones for i in range(4)] for ones in combinations(range(4), 2)]
    patterns = np.array([p for p in product(rows, repeat=4) if (np.sum(p, 0) == 2).all()], float)
    assert len(patterns) == 90
    for r, c in product(range(0, 8, 4), range(0, 12, 4)):
        own = weight[r : r + 4, c : c + 4].abs().double().numpy()
        mask = best[r : r + 4, c : c + 4].double().numpy()
        assert (mask.sum(0) == 2).all() and (mask.sum(1) == 2).all()
        np.testing.assert_allclose((own * mask).sum(), (own * patterns).sum((1, 2)).max())
        expected = np.zeros((4, 4))
        for at in np.argsort(-own, axis=None):
            i, j = divmod(at, 4)
            if expected[i].sum() < 2 and expected[:, j].sum() < 2:
                expected[i, j] = 1
        np.testing.assert_array_equal(greedy[r : r + 4, c : c + 4].numpy(), expected)


def test_patterns_that_there_are_not():
    with pytest.raises(ValueError, match=r"^pattern is 'm8n2', expected one of m4n2_1d, "):
        create_mask(torch.ones(4, 4), "m8n2")
    with pytest.raises(ValueError, match=r"^the tensor has 5 dimensions, expected 1 to 4$"):
        create_mask(torch.ones(1, 4, 1, 1, 1))


PROGRAM = """
import torch
from torch import nn
import anyop.torch
anyop.torch.apex.install()
from apex.contrib.sparsity import ASP
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 24),
                      nn.ReLU(), nn.Linear(24, 10))
x, y = torch.randn(64, 16, 4, 4), torch.randint(0, 10, (64,))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
weights = model[0].weight, model[3].weight
dense = [w.detach().clone() for w in weights]

def is_pruned():
    return [bool(((w.movedim(1, -1).reshape(-1, 4) != 0).sum(-1) <= 2).all()) for w in weights]

RUN
"""
KEPT = """
ASP.init_model_for_pruning(model, verbosity=0, allow_recompute_mask=True, allow_permutation=False)
ASP.init_optimizer_for_pruning(optimizer)
assert not ASP.is_sparsity_enabled() and is_pruned() == [False, False]
ASP.compute_sparse_masks()
assert ASP.is_sparsity_enabled() and is_pruned() == [True, True]
ASP.restore_pruned_weights()
assert not ASP.is_sparsity_enabled()
assert all(torch.equal(w, d) for w, d in zip(weights, dense))
ASP.compute_sparse_masks()
ASP.compute_sparse_masks()  # anew, of the dense weights
losses = []
for _ in range(30):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert is_pruned() == [True, True] and losses[-1] < losses[0] / 2, losses
assert (model[5].weight != 0).all()  # 10 rows: not a multiple of 8
assert "0.__weight_mma_mask" in model.state_dict()
"""
TRAINED = """
from apex.contrib.sparsity.permutation_lib import Permutation
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 10))
weights = model[0].weight, model[2].weight
optimizer = torch.optim.AdamW(model.parameters())
ASP.prune_trained_model(model, optimizer)
assert Permutation.get_permutation_stats() == (["2.weight"], ["0.weight", "0.bias"], [])
assert ASP.is_sparsity_enabled() and is_pruned() == [True, True]
try:
    ASP.restore_pruned_weights()
except AssertionError as error:
    assert "allow_recompute_mask == False" in str(error)
else:
    raise SystemExit("was restored")
"""


@pytest.mark.parametrize("run", [KEPT, TRAINED], ids=["kept", "trained"])
def test_a_model_is_pruned(run):
    """ASP has one model in a process."""
    command = [sys.executable, "-c", PROGRAM.replace("RUN", run)]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
