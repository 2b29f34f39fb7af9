# SPDX-License-Identifier: Apache-2.0
"""Writes the table of labels into docs/devices.md: how far each device was run, by the reports that are committed.

    python3 tools/device_labels.py        # after a report came (anyop device-check ... --report), or sources changed

A report in bench/results/devices holds for the sources that it has hashes of. Of a device whose sources are others now,
the next lower label is left. `cuda` has its operators' hashes in bench/results/cuda_tests.jsonl.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from functools import cache
from itertools import dropwhile
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from codegen.device_sources import sources_of  # noqa: E402
from codegen.gpu_record import all_hashes, on_gpus  # noqa: E402
from codegen.operators.operator_file import read_operator  # noqa: E402

PAGE = ROOT / "docs" / "devices.md"
REPORTS = ROOT / "bench" / "results" / "devices"
BEGIN = "| device | vendor | label | report |\n|---|---|---|---|\n"
# From the least to the most.
LADDER = (
    "public sources only", "compiled", "headers compared", "false runtime", "false runtime on silicon",
    "vendor's library, no chip", "silicon",
)  # fmt: skip
# What tests show of the sources as they are, in each run, without a report.
ALWAYS = {
    "cuda": "compiled",  # where nvcc is
    "opencl": "compiled",
    "row.cuda": "headers compared",  # tests/runtimes/runtimes_vendors_test.py
    "hip": "headers compared",
    "ascend": "headers compared",  # tests/runtimes/runtimes_acl_test.py
}
VENDORS = {"cuda": "NVIDIA CUDA, built in", "opencl": "any with OpenCL 1.2"}


class Row(NamedTuple):
    """A line of the table."""

    device: str
    vendor: str
    label: str
    report: str

    def text(self) -> str:
        return f"| `{self.device}` | {self.vendor} | *{self.label}* | {self.report} |\n"


def load(root: Path, path: str) -> ModuleType:
    """A module of the tree, whether or not anyop is installed."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, root / path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows(root: Path = ROOT, reports: Path = REPORTS) -> list[Row]:
    """Those of all devices, by what is in the tree now."""
    about = load(root, "python/anyop/command/_device_report.py")
    found = {device: (label, "") for device, label in ALWAYS.items()}
    vendors = VENDORS | _vendors(root)
    for device in vendors:
        found.setdefault(device, (LADDER[0], ""))
    for file in sorted(reports.glob("*.json")):
        report = json.loads(file.read_text(encoding="utf-8"))
        device = report["device"].get("name")
        label = label_of(report, about, root)
        if device in found and LADDER.index(label) > LADDER.index(found[device][0]):
            place = f"[{file.name}](../bench/results/devices/{file.name})"
            found[device] = (label, f"{place}, {report['utc'][:10]}: {report['device']['chip']}")
    if gpu := _tested_on_gpu(root):
        found["cuda"] = ("silicon", gpu)
    return [Row(d, v, *found[d]) for d, v in vendors.items()]


def label_of(report: dict, about: ModuleType, root: Path) -> str:
    """What a report shows of the sources as they are now; the least where it is of others, or something was wrong."""
    here = sources_of(report["device"].get("name", ""), root)
    good = all(check["good"] for kind in ("checks", "operators") for check in report[kind].values())
    if not (here and here == report["sources"] and good and len(report["checks"]) >= 24):
        return LADDER[0]
    return about.evidence(report["device"], report["machine"]["processor"])


def _vendors(root: Path) -> dict[str, str]:
    """By device, of the rows of cuda_like."""
    found, name = {}, ""
    text = (root / "src" / "device" / "cuda_like" / "runtimes.toml").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith("["):
            name = line.strip("[]")
            name = "row.cuda" if name == "cuda" else name
        elif line.startswith("vendor"):
            found[name] = line.partition('"')[2].rpartition('"')[0]
    return found


@cache  # of all operators, a second
def _tested_on_gpu(root: Path) -> str:
    """Where the operators with CUDA kernels that are as they were ran; empty where none is."""
    record = root / "bench" / "results" / "cuda_tests.jsonl"
    known = on_gpus(record)
    operators = [read_operator(path) for path in sorted((root / "ops").glob("*/*.toml"))]
    same = [
        n for n, h in all_hashes(operators, root).items() if known.get(n, {}).get("sources") == h
    ]
    gpus = sorted({known[name]["gpu"] for name in same})
    return f"[{record.name}](../bench/results/{record.name}): {' and '.join(gpus)}" if gpus else ""


def said(page: str) -> dict[str, str]:
    """The label of each device in the page's table."""
    body = page.partition(BEGIN)[2].partition("\n\n")[0]
    cells = [line.split("|") for line in body.splitlines()]
    return {cell[1].strip(" `"): cell[3].strip(" *") for cell in cells}


def main() -> int:
    """Writes the table where it is another."""
    page = PAGE.read_text(encoding="utf-8")
    before, there, rest = page.partition(BEGIN)
    if not there:
        sys.exit(f"{PAGE} has no table of labels")
    lines = rest.splitlines(keepends=True)
    after = "".join(dropwhile(lambda line: line.startswith("|"), lines))
    PAGE.write_text(
        before + BEGIN + "".join(row.text() for row in rows()) + after, encoding="utf-8"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
