# SPDX-License-Identifier: Apache-2.0
"""What a run of tests found, as lines of a file: ANYOP_TEST_RECORD=bench/results/cuda_tests.jsonl."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter, defaultdict
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[2]
OPERATORS_ON_GPU = "tests/cuda/operators/cuda_operators.py"
GPUS = "nvidia-smi --query-gpu=name --format=csv,noheader"


def record_outcomes(stats: dict, record: Path) -> None:
    """Append a line for each file of tests: its outcomes, versions and the device."""
    files: dict[str, Counter] = defaultdict(Counter)
    reasons: dict[str, Counter] = defaultdict(Counter)
    passed = set()  # operators, which stand first in the brackets of a test
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in stats.get(outcome, []):
            file = report.nodeid.partition("::")[0]
            files[file][outcome] += 1
            if outcome == "passed" and file == OPERATORS_ON_GPU:
                passed.add(re.split(r"[\[\]-]", report.nodeid + "[")[1])
            elif outcome == "skipped":
                reasons[file][report.longrepr[2].removeprefix("Skipped: ")] += 1
    said = {"commit": os.environ.get("ANYOP_TEST_COMMIT"), "gpu": None, "versions": {}}
    if gpus := subprocess.run(GPUS, shell=True, capture_output=True, text=True).stdout.split("\n"):
        said["gpu"] = gpus[0] or None
    for name in (
        "torch",
        "jax",
        "cupy-cuda12x",
        "cupy-cuda13x",
        "triton",
        "apache-tvm-ffi",
        "numpy",
    ):
        try:
            said["versions"][name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    with record.open("a") as lines:
        tests = files.get(OPERATORS_ON_GPU, Counter())
        if tests["passed"] and not tests["failed"] and not tests["error"]:
            from codegen.gpu_record import all_hashes  # where the tests lie in the tree
            from codegen.operators.operator_file import read_operator

            operators = [read_operator(path) for path in sorted((ROOT / "ops").glob("*/*.toml"))]
            hashes = all_hashes([op for op in operators if op.name in passed], ROOT)
            lines.write(json.dumps({"sources": hashes, **said}) + "\n")
        for file, counts in sorted(files.items()):
            line = {"tests": file, **counts, "reasons": reasons[file], **said}
            lines.write(json.dumps(line) + "\n")
