# SPDX-License-Identifier: Apache-2.0
"""DataLoader: pinned batches, copies that overlap, workers that are forked or spawned beside the device."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.anyplatform, pytest.mark.usefixtures("platform")]
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

ROWS = 64


def train(loader) -> float:
    total = 0.0
    for x, y in loader:
        there = x.to("anyop", non_blocking=True), y.to("anyop", non_blocking=True)
        total += (there[0].sum(1) * there[1]).sum().item()
    return total


def data():
    x = torch.arange(ROWS * 3.0).view(ROWS, 3)
    return TensorDataset(x, torch.arange(ROWS)), (x.sum(1) * torch.arange(ROWS)).sum().item()


@pytest.mark.filterwarnings("ignore:This process")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pinned", [False, True])
def test_batches_arrive(workers, pinned):
    """The workers are forked from a process that has used the device; they touch CPU tensors alone."""
    torch.ones(1, device="anyop").add_(1)
    dataset, expected = data()
    loader = DataLoader(dataset, batch_size=10, num_workers=workers, pin_memory=pinned)
    assert all(x.is_pinned() is pinned and x.is_cpu for x, _ in loader)
    assert train(loader) == expected


def test_nested_batches_are_pinned():
    items = [{"x": torch.ones(2), "more": [torch.zeros(1), "text"]} for _ in range(4)]
    (batch,) = DataLoader(items, batch_size=4, pin_memory=True)
    assert batch["x"].is_pinned() and batch["more"][0].is_pinned() and batch["more"][1][0] == "text"


def test_a_loader_under_the_default_device():
    dataset, expected = data()
    loader = DataLoader(dataset, batch_size=16, shuffle=True, generator=torch.Generator())
    assert train(loader) == pytest.approx(expected)
    with torch.device("anyop"):
        batches = list(DataLoader(TensorDataset(torch.arange(8.0)), batch_size=4))
    assert batches[0][0].is_anyop
