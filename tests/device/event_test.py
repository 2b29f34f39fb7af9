# SPDX-License-Identifier: Apache-2.0
"""Events: order between streams, waiting, and time."""

from __future__ import annotations

import time

import pytest
from slow_stream import sleep

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.anyplatform, pytest.mark.usefixtures("platform")]


@pytest.fixture(params=["torch.anyop.Event", "torch.Event"])
def event(request):
    if request.param == "torch.Event":
        return lambda **options: torch.Event("anyop", **options)
    return torch.anyop.Event


def test_an_event_comes_with_its_work(event, while_it_sleeps):
    done = event()
    assert done.query(), "nothing was recorded"

    def record():
        done.record()
        return not done.query()

    assert while_it_sleeps(record), "recording does not wait"
    done.synchronize()
    assert done.query()


def test_time_between_events(event):
    first, last = event(enable_timing=True), event(enable_timing=True)
    start = time.perf_counter()
    first.record()
    sleep(150)
    last.record()
    last.synchronize()
    assert 148 <= first.elapsed_time(last) <= (time.perf_counter() - start) * 1e3 + 1
    plain = event()
    plain.record()
    plain.synchronize()
    with pytest.raises((RuntimeError, ValueError)):
        first.elapsed_time(plain)


def test_a_stream_waits_for_an_event(event, while_it_sleeps):
    side, done = torch.anyop.Stream(), event()

    def wait():
        done.record()
        side.wait_event(done)
        return not side.query()

    assert while_it_sleeps(wait), "the caller does not wait, its stream does"
    side.synchronize()
    assert done.query()


def test_an_event_recorded_again_means_the_last(event, while_it_sleeps):
    done = event()
    done.record()
    done.synchronize()

    def record():
        done.record()
        return not done.query()

    assert while_it_sleeps(record)
    done.synchronize()
    assert done.query()


def test_an_event_waits_in_a_stream_by_its_own_method(event, while_it_sleeps):
    side, done = torch.anyop.Stream(), event()

    def wait():
        done.record(torch.anyop.current_stream())
        done.wait(side)
        return not side.record_event().query()

    assert while_it_sleeps(wait)
    side.synchronize()
    assert done.query()


def test_the_stream_gives_events():
    side = torch.anyop.Stream()
    found = side.record_event()
    found.synchronize()
    assert found.query() and side.query()


def test_an_event_dies_while_its_work_runs(event):
    for _ in range(20):
        done = event()
        sleep(2)
        done.record()
        del done
    torch.anyop.synchronize()
