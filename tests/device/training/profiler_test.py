# SPDX-License-Identifier: Apache-2.0
"""torch's profiler and torch.utils.benchmark see work on the device."""

from __future__ import annotations

import json

import pytest
from slow_stream import sleep

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.anyplatform, pytest.mark.usefixtures("platform")]


def test_ranges_and_operators():
    x = torch.randn(32, 32, device="anyop")
    with (
        torch.profiler.profile(record_shapes=True) as profile,
        torch.profiler.record_function("my range"),
    ):
        for _ in range(3):
            x @ x
        torch.relu_(x)
    found = {event.key: event.count for event in profile.key_averages()}
    assert found["my range"] == 1 and found["aten::relu_"] == 1
    assert found["aten::matmul"] == found["aten::mm"] == 3, "an operator is one event"
    shapes = [e.input_shapes for e in profile.key_averages(True) if e.key == "aten::mm"]
    assert shapes[0][:2] == [[32, 32], [32, 32]]


def test_a_trace(tmp_path):
    x = torch.randn(8, 8, device="anyop", requires_grad=True)
    with torch.profiler.profile(with_stack=True, profile_memory=True) as profile:
        (x @ x).sum().backward()
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {event.get("name") for event in events}
    assert {"aten::mm", "aten::sum"} <= names and any("MmBackward0" in str(name) for name in names)


def test_the_older_profiler_and_schedules():
    x = torch.randn(8, 8, device="anyop")
    with torch.autograd.profiler.profile() as profile:
        x @ x
    assert any(event.name == "aten::mm" for event in profile.function_events)
    seen = []
    with torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1),
        on_trace_ready=lambda p: seen.append(
            [e.count for e in p.key_averages() if e.key == "aten::mm"]
        ),
    ) as profile:
        for _ in range(5):
            x @ x
            profile.step()
    assert seen == [[2]]


def test_activities_of_other_devices_do_no_harm():
    activities = torch.profiler.supported_activities()
    x = torch.randn(8, 8, device="anyop")
    with torch.profiler.profile(activities=activities) as profile:
        x @ x
        torch.anyop.synchronize()
    assert any(event.key == "aten::mm" for event in profile.key_averages())


def test_benchmark_waits_for_the_device():
    """Its timer synchronises: asynchronous work is in the time."""
    from torch.utils import benchmark

    timer = benchmark.Timer("sleep(30)", globals={"sleep": sleep})
    assert timer.timeit(2).mean >= 0.029
    x = torch.randn(64, 64, device="anyop")
    found = benchmark.Timer("x @ x", globals={"x": x}).blocked_autorange(min_run_time=0.02)
    assert found.median > 0
