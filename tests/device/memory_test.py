# SPDX-License-Identifier: Apache-2.0
"""Device memory and pinned memory: statistics, reuse, limits, running out and recovering."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.anyplatform, pytest.mark.usefixtures("platform")]
MIB = 1 << 20


@pytest.fixture(autouse=True)
def clean(platform):
    gc.collect()
    torch.anyop.synchronize()
    torch.anyop.empty_cache()


def test_allocated_memory_is_counted():
    before = torch.anyop.memory_allocated()
    x = torch.empty(3 * MIB, dtype=torch.uint8, device="anyop")
    held = torch.anyop.memory_allocated() - before
    assert 3 * MIB <= held < 3 * MIB + 4096
    assert torch.anyop.memory_reserved() >= torch.anyop.memory_allocated()
    y = x.view(-1)[10:]
    del x
    assert torch.anyop.memory_allocated() - before == held, "a view holds the memory"
    del y
    assert torch.anyop.memory_allocated() == before


RESULTS = {
    "empty": lambda x: torch.empty_like(x),
    "unary": lambda x: torch.tanh(x),
    "product": lambda x: x @ x,
    "composite": lambda x: torch.nn.functional.linear(x, x),
    "softmax": lambda x: torch.softmax(x, 0),
    "copy": lambda x: x.clone(),
    "cat": lambda x: torch.cat([x[:100], x[100:]]),
    "sort": lambda x: x.sort()[0],
    "index": lambda x: x[x > -9],
    "cpu": lambda x: torch.ones(512, 512).to("anyop"),
    "out": lambda x: torch.add(x, x, out=torch.empty(0, device="anyop")),
    "resize": lambda x: torch.empty(0, device="anyop").resize_(512, 512),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_are_the_devices_memory(name):
    """Counted, aligned, and given back; not only what torch.empty makes."""
    x = torch.ones(512, 512, device="anyop")
    RESULTS[name](x)
    before = torch.anyop.memory_allocated()
    found = RESULTS[name](x)
    assert torch.anyop.memory_allocated() - before == MIB and found.data_ptr() % 256 == 0
    del found
    assert torch.anyop.memory_allocated() == before


def test_peaks():
    torch.anyop.reset_peak_memory_stats()
    before = torch.anyop.max_memory_allocated()
    assert before == torch.anyop.memory_allocated()
    del_me = [torch.empty(MIB, dtype=torch.uint8, device="anyop") for _ in range(4)]
    del del_me
    assert torch.anyop.max_memory_allocated() - before >= 4 * MIB
    assert torch.anyop.memory_allocated() == before
    torch.anyop.reset_peak_memory_stats()
    assert torch.anyop.max_memory_allocated() == before


def test_freed_memory_is_kept_and_given_back():
    x = torch.empty(32 * MIB, dtype=torch.uint8, device="anyop")
    address, reserved = x.data_ptr(), torch.anyop.memory_reserved()
    del x
    assert torch.anyop.memory_reserved() == reserved
    x = torch.empty(32 * MIB, dtype=torch.uint8, device="anyop")
    assert x.data_ptr() == address and torch.anyop.memory_reserved() == reserved
    del x
    torch.anyop.empty_cache()
    assert torch.anyop.memory_reserved() <= reserved - 32 * MIB


def test_statistics_agree():
    x = torch.empty(MIB, device="anyop")
    stats = torch.anyop.memory_stats()
    assert stats["allocated_bytes.all.current"] == torch.anyop.memory_allocated() >= x.nbytes
    assert stats["reserved_bytes.all.current"] == torch.anyop.memory_reserved()
    assert stats["allocated_bytes.all.peak"] == torch.anyop.max_memory_allocated()
    assert (
        "anyop" in torch.anyop.memory_summary().lower()
        or "allocated" in torch.anyop.memory_summary()
    )
    free, total = torch.anyop.mem_get_info()
    assert 0 < free <= total
    assert x.nbytes <= total - free
    assert torch.accelerator.memory_allocated() == torch.anyop.memory_allocated()


@pytest.mark.usefixtures("two_devices")
def test_statistics_are_a_devices_own():
    before = torch.anyop.memory_allocated(0), torch.anyop.memory_allocated("anyop:1")
    x = torch.empty(MIB, dtype=torch.uint8, device="anyop:1")
    assert torch.anyop.memory_allocated(0) == before[0]
    assert torch.anyop.memory_allocated(1) >= before[1] + x.nbytes


def test_running_out_raises_and_recovers():
    before = torch.anyop.memory_allocated()
    for _ in range(3):
        with pytest.raises(torch.OutOfMemoryError, match=r"(?i)out of memory|allocate"):
            torch.empty(1 << 48, dtype=torch.uint8, device="anyop")
        assert torch.ones(1000, device="anyop").sum().item() == 1000
    assert torch.anyop.memory_allocated() == before
    with pytest.raises(RuntimeError):
        torch.empty(-1, device="anyop")


@pytest.mark.host
def test_a_limit_is_kept_and_the_cache_freed_first(program):
    found = program(
        """
held = [torch.empty(1 << 20, dtype=torch.uint8, device="anyop") for _ in range(40)]
del held  # 40 MiB in the cache; the next needs them
x = torch.zeros(50 << 20, dtype=torch.uint8, device="anyop")
try:
    torch.empty(50 << 20, dtype=torch.uint8, device="anyop")
except torch.OutOfMemoryError as error:
    print("refused", error)
del x
print("recovered", torch.ones(50 << 20, dtype=torch.uint8, device="anyop")[-1].item())
""",
        ANYOP_DEVICE_MEMORY_LIMIT=str(64 << 20),
    )
    assert "refused" in found and "recovered 1" in found


def test_addresses_are_aligned():
    tensors = [
        torch.empty(n, dtype=torch.uint8, device="anyop") for n in (1, 3, 63, 65, 511, 513, 70_001)
    ]
    assert all(x.data_ptr() % 256 == 0 for x in tensors)
    spans = sorted((x.data_ptr(), x.data_ptr() + x.nbytes) for x in tensors)
    assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:]))
    assert torch.empty(0, device="anyop").data_ptr() == 0


def test_tensors_do_not_overlap():
    tensors = [torch.full((n,), float(n), device="anyop") for n in range(1, 400, 7)]
    for victim in tensors[::3]:
        victim.fill_(-1.0)
    tensors = [x for i, x in enumerate(tensors) if i % 3]
    more = [torch.full((n,), -2.0, device="anyop") for n in range(1, 400, 5)]
    assert all(torch.all(x == float(len(x))) for x in tensors)
    assert all(torch.all(x == -2) for x in more)


def test_no_growth():
    def step():
        x = torch.randn(100, 100, device="anyop", requires_grad=True)
        (x @ x).relu().sum().backward()

    step()
    held, reserved = torch.anyop.memory_allocated(), torch.anyop.memory_reserved()
    for _ in range(200):
        step()
    assert (torch.anyop.memory_allocated(), torch.anyop.memory_reserved()) == (held, reserved)


def test_pinned_memory_before_the_first_tensor(program):
    """Torch's C++ takes it by itself (DDP does), from the allocator of CUDA where there is one."""
    program(
        "assert torch.empty(10, pin_memory=True).is_pinned() and not torch.empty(10).is_pinned()"
    )


def test_pinned_memory():
    x = torch.randn(100)
    assert not x.is_pinned()
    pinned = x.pin_memory()
    assert pinned.is_pinned() and pinned.is_cpu and torch.equal(pinned, x)
    assert pinned.pin_memory() is pinned and pinned[10:].is_pinned()
    assert torch.empty(10, pin_memory=True).is_pinned()
    assert torch.randn(3, 4).T.pin_memory().stride() == (1, 4)
    there = pinned.to("anyop", non_blocking=True)
    assert torch.equal(there.cpu(), x) and not torch.ones(1, device="anyop").is_pinned()
    with pytest.raises(RuntimeError, match="pin"):
        there.pin_memory()
