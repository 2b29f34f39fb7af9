# SPDX-License-Identifier: Apache-2.0
"""What 200 more operators cost: import of anyop and anyop.torch behind torch, and resident memory, beside those of now.

    python bench/calls/growth.py

The operators are made up: the project's own files under other names, without kernels (growth_test.py has some).
Each figure is the least of ten processes' CPU times. One line of JSON for each goes to bench/results/growth.jsonl.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import anyop
from harness import ROOT, environment, write

MORE, RUNS = 200, 10
LIMITS = {  # CPU milliseconds and MB more than torch alone, with the operators of now and with 200 more
    "import anyop": (8, 8), "import anyop.torch": (60, 90), "resident": (10, 20),
}  # fmt: skip
PROGRAM = """
import json, resource, sys, time
import torch

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6

was, begin = resident(), time.process_time()
import anyop
imported = time.process_time()
for library in sys.argv[1:]:
    anyop.load(library)
loaded = time.process_time()
import anyop.torch
end = time.process_time()
print(json.dumps({
    "operators": len(anyop.list_ops()), "import anyop": 1e3 * (imported - begin),
    "import anyop.torch": 1e3 * (end - loaded), "resident": resident() - was,
}))
"""


def made_up(folder: Path, numbers: Iterable[int] = range(MORE)) -> str:
    """A library of operators, the project's own in turn."""
    files = sorted((ROOT / "ops").glob("*/*.toml"))
    for number in numbers:
        text = files[number % len(files)].read_text(encoding="utf-8")
        text = re.sub(r'(?m)^schema = "(\w+)\(', rf'schema = "grown::\1_{number}(', text)
        text = re.sub(r"(?ms)^\[kernels\].*?(?=^\[|\Z)", "[kernels]\n", text)
        text = re.sub(
            r"(?ms)^\[(backward|tangent|bench|test|(tolerance|launch)[.\w]*)\].*?(?=^\[|\Z)",
            "",
            text,
        )
        keys = r"(?ms)^(deterministic|aten_overloads|aten) = .*?(?=^[\w\[]|\Z)"  # of many lines
        text = re.sub(keys, "", text)
        (folder / f"{files[number % len(files)].stem}_{number}.toml").write_text(text)
    return anyop.build(folder, out=folder / "libgrown.so")


def measure(libraries: list[str]) -> dict[str, float]:
    runs = []
    for _ in range(RUNS):
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM, *libraries], capture_output=True, text=True, check=True
        )
        runs.append(json.loads(ran.stdout))
    return {key: min(run[key] for run in runs) for key in runs[0]}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        sides = [measure([]), measure([made_up(Path(folder))])]
    lines = []
    for side, found in enumerate(sides):
        for what, limits in LIMITS.items():
            unit, most = "MB" if what == "resident" else "ms", limits[side]
            met = "met" if found[what] <= most else "MISSED"
            asked = f"at most {most} asked for: {met}"
            print(f"{found['operators']:4} operators  {what:20}{found[what]:8.1f} {unit}, {asked}")
            lines.append(
                {"what": what, "operators": found["operators"], "found": round(found[what], 1),
                 "unit": unit, "at_most": most}
            )  # fmt: skip
    write("growth", lines, environment(anyop))


if __name__ == "__main__":
    main()
