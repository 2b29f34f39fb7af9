# SPDX-License-Identifier: Apache-2.0
"""docs/devices.md calls no device more than its committed report shows, and a report of other sources shows nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import device_labels as labels  # noqa: E402

from codegen.device_sources import sources_of  # noqa: E402

about = labels.load(ROOT, "python/anyop/command/_device_report.py")
EPYC = "AMD EPYC 7763 64-Core Processor"


def test_no_label_says_more_than_its_report():
    shown = {row.device: row.label for row in labels.rows()}
    said = labels.said(labels.PAGE.read_text())
    assert said.keys() == shown.keys(), "python3 tools/device_labels.py writes the table"
    steps = labels.LADDER.index
    more = {d: (s, shown[d]) for d, s in said.items() if steps(s) > steps(shown[d])}
    assert not more, f"label, and what is shown: {more}; python3 tools/device_labels.py"


REPORT = {
    "sources": sources_of("maca", ROOT),
    "device": {"name": "maca", "chip": "false MetaX MACA 0 over host", "driver": 0, "runtime": 0},
    "checks": {str(at): {"good": True} for at in range(24)},
    "operators": {},
    "machine": {"processor": EPYC},
    "utc": "2026-11-27T00:00:00Z",
}


def label(folder: Path, **changes) -> str:
    (folder / "maca.json").write_text(json.dumps(REPORT | changes))
    (found,) = (row.label for row in labels.rows(reports=folder) if row.device == "maca")
    return found


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "false runtime"),
        ({"evidence": "silicon"}, "false runtime"),  # what the device said counts
        ({"sources": "0" * 16}, "public sources only"),
        ({"sources": None}, "public sources only"),
        ({"checks": REPORT["checks"] | {"7": {"good": False}}}, "public sources only"),
        ({"checks": {"0": {"good": True}}}, "public sources only"),
        ({"operators": {"relu": {"good": False}}}, "public sources only"),
        ({"device": REPORT["device"] | {"chip": "MetaX C500", "runtime": 3}}, "silicon"),
    ],
)
def test_what_a_report_shows(changes, expected, tmp_path):
    assert label(tmp_path, **changes) == expected


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ({"name": "opencl", "chip": "NVIDIA H200"}, "silicon"),
        ({"name": "opencl", "chip": "pthread-znver3"}, "vendor's library, no chip"),
        ({"name": "opencl", "chip": "cpu-AMD EPYC 7763"}, "vendor's library, no chip"),
        (
            {"name": "opencl", "chip": "AMD EPYC 7763 64-Core Processor"},
            "vendor's library, no chip",
        ),
        ({"name": "hip", "devices": 0}, "vendor's library, no chip"),
        ({"name": "hip", "chip": "false AMD ROCm over NVIDIA H100"}, "false runtime on silicon"),
        ({"name": "hip", "chip": "false AMD ROCm over false NVIDIA CUDA"}, "false runtime"),
        ({"name": "hip", "chip": "AMD Instinct MI300X", "driver": 0x0FA15E00}, "false runtime"),
        ({"name": "mychip", "chip": "mychip 0, simulated"}, "false runtime"),
        ({"name": "mlu", "chip": "Cambricon MLU", "runtime": 0}, "public sources only"),
        ({"name": "host", "chip": "the host"}, "vendor's library, no chip"),
    ],
)
def test_how_far_a_run_went(device, expected):
    assert about.evidence(device, EPYC) == expected


def test_a_hash_is_of_a_rows_own_text_and_the_files_of_its_shape(tmp_path):
    root = tmp_path
    for part in ("include/anyop", "src/device/cuda_like"):
        (root / part).mkdir(parents=True)
        for file in (ROOT / part).iterdir():
            if file.is_file():
                (root / part / file.name).write_bytes(file.read_bytes())
    folder = root / "src" / "device" / "cuda_like"
    devices = ("row.cuda", "hip", "maca", "ascend")
    before = {name: sources_of(name, root) for name in devices}
    assert len(set(before.values())) == 4 and sources_of("mychip", root) is None

    def changed(file: str, old: str, new: str) -> set[str]:
        text = (folder / file).read_text()
        assert old in text
        (folder / file).write_text(text.replace(old, new, 1))
        found = {name for name in devices if sources_of(name, root) != before[name]}
        (folder / file).write_text(text)
        return found

    assert changed("runtimes.toml", 'vendor = "MetaX MACA"', 'vendor = "MetaX"') == {"maca"}
    assert changed("acl.cc", "\n", "\nint more;\n") == {"ascend"}
    assert changed("memory.cc", "\n", "\nint more;\n") == set(devices)
    assert changed("memory.cc", "\n", "\n// Said otherwise.\n") == set()


def test_nothing_is_called_supported_that_has_not_run_on_silicon():
    for name in ("devices.md", "vendor.md"):
        text = (ROOT / "docs" / name).read_text().lower()
        lines = [line for line in text.splitlines() if "supported" in line]
        assert not [line for line in lines if "nothing is called supported" not in line], name
