# SPDX-License-Identifier: Apache-2.0
"""anyop tune and records of torch's tensors on a CUDA device."""

from __future__ import annotations

import anyop
import pytest
from anyop import tune

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device that torch can use", allow_module_level=True)


def test_a_recorded_workload_is_tuned_on_the_device(tmp_path):
    wide = torch.randn(64, 2048, device="cuda", dtype=torch.bfloat16)
    weight = torch.ones(1024, device="cuda", dtype=torch.bfloat16)
    scores = torch.randn(512, 4096, device="cuda")
    anyop.record(tmp_path / "run.jsonl")
    for _ in range(3):
        expected = anyop.rms_norm(wide[:, :1024], weight)
    anyop.softmax(scores, -1)
    anyop.record(None)
    kinds, notes = tune.read_record(tmp_path / "run.jsonl")
    assert [(k.operator, k.device, k.count) for k in kinds] == [
        ("rms_norm", "cuda", 3),
        ("softmax", "cuda", 1),
    ]
    assert kinds[0].inputs["x"].strides == (2048, 1) and not notes
    said = []
    path = str(tmp_path / "routes.txt")
    found = tune.tune(kinds, tune.Settings(path, ("cuda", "aten"), 0.05), said.append)
    notes = [event["note"] for event in said if "note" in event]
    busy = ("is faster among all calls", "others run on this machine")
    assert all(any(text in note for text in busy) for note in notes), notes
    (norm,) = found.measured["rms_norm", "cuda"]
    assert {c.name for c in norm.right} == {"cuda", "aten"} and norm.kind.count == 3
    assert found.totals["tuned"] <= 1.1 * found.totals["aten"]
    anyop.load_routes(path)
    try:
        torch.testing.assert_close(anyop.rms_norm(wide[:, :1024], weight), expected)
    finally:
        anyop.load_routes(None)


def test_a_wrong_kernel_on_the_device_is_excluded(tmp_path):
    def wrong(x, dim):
        return torch.softmax(x, dim).roll(1, -1)

    anyop.register("softmax", "wrong", wrong, framework="torch", device="cuda", priority=50)
    try:
        kind = tune.given_shapes("softmax: X=8x64 dim=-1", "cuda")
        notes = []
        settings = tune.Settings(str(tmp_path / "routes.txt"), ("wrong", "aten"), 0.05)
        found = tune.tune([kind], settings, lambda event: notes.append(event.get("note", "")))
    finally:
        anyop.unregister("softmax", "wrong")
    assert any("wrong is excluded" in note for note in notes)
    assert [rule.name for rule in found.rules["softmax", "cuda"]] == ["aten"]
