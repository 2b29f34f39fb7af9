# SPDX-License-Identifier: Apache-2.0
"""Threads that share weights: no product is wrong or elsewhere; own streams, gradients and memory."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.anyplatform, pytest.mark.usefixtures("platform")]
THREADS, PRODUCTS = 4, 3000


def test_products_of_shared_weights(report):
    """12,000 products by 4 threads: the prototype that relabelled tensors had 9,648 on the wrong device."""
    weights = [torch.randn(16, 16) for _ in range(4)]
    there, start = [w.to("anyop") for w in weights], threading.Barrier(THREADS)
    expected = [torch.ones(4, 16).to("anyop") @ w for w in there]

    def work(number):
        x, wrong, elsewhere = torch.ones(4, 16, device="anyop"), 0, 0
        start.wait()
        for i in range(PRODUCTS):
            found = x @ there[i % 4] if i % 2 else torch.mm(x, there[i % 4])
            elsewhere += not found.is_anyop or not there[i % 4].is_anyop
            wrong += not torch.equal(found, expected[i % 4])
        return wrong, elsewhere

    with ThreadPoolExecutor(THREADS) as pool:
        counts = list(pool.map(work, range(THREADS)))
    wrong, elsewhere = map(sum, zip(*counts))
    report.append(f"threads: {THREADS * PRODUCTS:,} products, {wrong} wrong, {elsewhere} elsewhere")
    assert (wrong, elsewhere) == (0, 0)


def together(work, count=THREADS):
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


def test_threads_train_models_of_their_own():
    def work(number):
        model = torch.nn.Linear(8, 8).to("anyop")
        with torch.no_grad():
            model.weight.fill_(0.01)
            model.bias.zero_()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        x = torch.ones(4, 8, device="anyop")
        for _ in range(30):
            optimizer.zero_grad()
            (model(x) - 1).square().mean().backward()
            optimizer.step()
        return model.weight.detach().cpu()

    results = together(work)
    assert all(torch.equal(results[0], found) for found in results)


def test_threads_on_streams_and_devices_of_their_own():
    count = torch.anyop.device_count()

    def work(number):
        device = torch.device("anyop", number % count)
        with torch.anyop.device(device), torch.anyop.stream(torch.anyop.Stream(device)):
            source = torch.full((500,), float(number)).pin_memory()
            for _ in range(40):
                x = torch.zeros(500, device="anyop").copy_(source, non_blocking=True)
                found = (x * 2).cpu()
                if x.device != device or not torch.all(found == 2 * number):
                    return False
        return True

    assert all(together(work, 6))


def test_memory_under_threads():
    gc.collect()  # what tests before have left is not counted
    before = torch.anyop.memory_allocated()

    def work(number):
        held = []
        for i in range(600):
            held.append(torch.full((1 + (i * 37 + number) % 3000,), float(number), device="anyop"))
            if len(held) > 20 and not torch.all(held.pop(i % 20) == number):
                return False
        return all(torch.all(x == number) for x in held)

    assert all(together(work, 6))
    assert torch.anyop.memory_allocated() == before


def test_threads_pass_tensors_on():
    """A tensor made in one thread is used and dies in another."""
    tensors = together(
        lambda number: [torch.full((64,), float(i), device="anyop") for i in range(200)]
    )
    sums = together(lambda number: [x.sum().item() for x in tensors[(number + 1) % THREADS]])
    assert sums == [[64.0 * i for i in range(200)]] * THREADS
