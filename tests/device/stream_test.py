# SPDX-License-Identifier: Apache-2.0
"""Streams: work in order, independent of other streams, never read early, memory not given away too soon."""

from __future__ import annotations

import threading

import pytest
from slow_stream import sleep

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.anyplatform, pytest.mark.usefixtures("platform")]
DELAY = 200


def delayed_copy(values: torch.Tensor, stream, while_it_sleeps) -> torch.Tensor:
    """A tensor that receives values on the stream, late; the caller does not wait."""
    there, source = torch.zeros(values.shape, device="anyop"), values.pin_memory()
    stream.wait_stream(torch.anyop.current_stream())

    def copy():
        there.copy_(source, non_blocking=True)
        return not stream.query()

    with torch.anyop.stream(stream):
        assert while_it_sleeps(copy), "the copy has held the caller"
    return there


def test_the_current_stream():
    default, side = torch.anyop.default_stream(), torch.anyop.Stream()
    assert torch.anyop.current_stream() == default != side
    with torch.anyop.stream(side):
        assert torch.anyop.current_stream() == side
        with torch.anyop.stream(None):
            assert torch.anyop.current_stream() == side
    assert torch.anyop.current_stream() == default
    assert side.device == torch.device("anyop:0")
    other = torch.Stream("anyop")
    with other:
        assert torch.accelerator.current_stream() == other
    assert torch.anyop.current_stream() == default


def test_the_current_stream_is_a_threads_own():
    side, found = torch.anyop.Stream(), []
    with torch.anyop.stream(side):
        thread = threading.Thread(target=lambda: found.append(torch.anyop.current_stream()))
        thread.start()
        thread.join()
    assert found == [torch.anyop.default_stream()]


WAITS = {
    "wait_stream": lambda side, done: torch.anyop.current_stream().wait_stream(side),
    "wait_event": lambda side, done: torch.anyop.current_stream().wait_event(done),
    "event.wait": lambda side, done: done.wait(),
    "event.synchronize": lambda side, done: done.synchronize(),
    "stream.synchronize": lambda side, done: side.synchronize(),
    "synchronize": lambda side, done: torch.anyop.synchronize(),
    "torch.accelerator": lambda side, done: torch.accelerator.synchronize(torch.device("anyop")),
}


@pytest.mark.parametrize("way", WAITS)
def test_a_late_producer_is_never_read_early(way, while_it_sleeps):
    values, side = torch.randn(1000), torch.anyop.Stream()
    there = delayed_copy(values, side, while_it_sleeps)
    done = side.record_event()
    WAITS[way](side, done)
    assert torch.equal((there * 2).cpu(), values * 2)


READS = {
    "cpu": lambda x: x.cpu(),
    "item": lambda x: x[3].item(),
    "tolist": lambda x: x.tolist(),
    "copy": lambda x: torch.zeros(8).copy_(x),
    "operator": lambda x: (x + 1).cpu(),
    "in place": lambda x: x.add_(1).cpu(),
    "out": lambda x: torch.add(x, 1, out=torch.empty_like(x)).cpu(),
    "clone": lambda x: x.clone().cpu(),
    "nonzero": lambda x: x.nonzero().cpu(),
    "mask": lambda x: x[x > 0.5].cpu(),
    "cat": lambda x: torch.cat([x, x]).cpu(),
    "view": lambda x: x.view(2, 4).T.cpu(),
    "other device": lambda x: x.to("anyop:1").cpu() if torch.anyop.device_count() > 1 else x.cpu(),
}


@pytest.mark.parametrize("way", READS)
def test_reads_on_the_same_stream_wait(way):
    values = torch.linspace(0, 1, 8)
    source, there = values.pin_memory(), torch.zeros(8, device="anyop")
    sleep(40)
    there.copy_(source, non_blocking=True)
    found = READS[way](there)
    expected = READS[way](values.clone()) if way != "other device" else values
    assert torch.equal(torch.as_tensor(found), torch.as_tensor(expected))


def test_a_copy_to_pinned_memory_comes_later(while_it_sleeps):
    x, there = torch.full((1000,), 3.0, device="anyop"), torch.zeros(1000).pin_memory()

    def copy():
        there.copy_(x, non_blocking=True)
        return not torch.anyop.current_stream().query()

    assert while_it_sleeps(copy)
    x.fill_(5)  # ordered behind the copy
    torch.anyop.synchronize()
    assert torch.all(there == 3) and torch.all(x.cpu() == 5)


def test_the_source_of_a_copy_may_die():
    there = torch.zeros(100_000, device="anyop")
    for value in range(20):
        source = torch.full((100_000,), float(value)).pin_memory()
        sleep(3)
        there.copy_(source, non_blocking=True)
        del source
        torch.full((100_000,), -1.0).pin_memory()  # would take the freed memory
        assert torch.all(there == value)


def test_streams_do_not_hold_each_other(while_it_sleeps):
    side, usual = torch.anyop.Stream(), torch.anyop.current_stream()

    def work():
        with torch.anyop.stream(usual):
            assert (torch.ones(8, device="anyop") * 2).sum().item() == 16
        return not side.query()

    work()  # CUDA waits for the whole device when it loads a kernel
    with torch.anyop.stream(side):
        assert while_it_sleeps(work)
    side.synchronize()
    assert side.query()


def test_freed_memory_waits_for_the_streams_that_use_it():
    side = torch.anyop.Stream()
    x, there = torch.full((5000,), 7.0, device="anyop"), torch.zeros(5000).pin_memory()
    side.wait_stream(torch.anyop.current_stream())
    with torch.anyop.stream(side):
        sleep(DELAY)
        there.copy_(x, non_blocking=True)
    x.record_stream(side)
    address = x.data_ptr()
    del x
    others = [torch.full((5000,), -1.0, device="anyop") for _ in range(8)]
    assert address not in [other.data_ptr() for other in others]
    side.synchronize()
    assert torch.all(there == 7)


def test_memory_freed_on_its_stream_is_taken_again_there():
    side = torch.anyop.Stream()
    with torch.anyop.stream(side):
        x = torch.empty(5000, device="anyop")
        address = x.data_ptr()
        del x
        same = torch.empty(5000, device="anyop")
    other = torch.empty(5000, device="anyop")
    assert same.data_ptr() == address != other.data_ptr()


def test_many_streams_and_priorities():
    assert torch.anyop.Stream(priority=-1) != torch.anyop.Stream(priority=0)
    x, results = torch.ones(64, 64, device="anyop"), []
    streams = [torch.anyop.Stream() for _ in range(40)]
    for number, stream in enumerate(streams):
        stream.wait_stream(torch.anyop.current_stream())
        with torch.anyop.stream(stream):
            results.append(x * number)
    torch.anyop.synchronize()
    assert [int(found[0, 0].item()) for found in results] == list(range(40))


@pytest.mark.usefixtures("two_devices")
def test_streams_of_two_devices():
    side = torch.anyop.Stream(device="anyop:1")
    with torch.anyop.stream(side):
        assert torch.anyop.current_device() == 1 and torch.anyop.current_stream() == side
        sleep(DELAY)
        x = torch.zeros(8, device="anyop").copy_(torch.ones(8).pin_memory(), non_blocking=True)
    assert torch.anyop.current_device() == 0
    torch.anyop.current_stream().wait_stream(side)
    assert torch.all(x.to("anyop:0").cpu() == 1)
    torch.anyop.synchronize(1)
    assert side.query()
