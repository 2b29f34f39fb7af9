# SPDX-License-Identifier: Apache-2.0
"""OpenCL on the host's CPU (PoCL): all programs cold and from the cache; a query of the demo beside NumPy's path.

    python bench/models/opencl_host.py

Programs: one small float32 case of each operator with a kernel in OpenCL C, checked, in a process of its own; its
seconds without the import. The query: the model of examples/sentence_search on five tokens, two threads, both ways in
turns in one process. One line of JSON for each goes to bench/results/opencl_host.jsonl.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import anyop
import numpy as np
from harness import ROOT, environment, spread, take_turns, write

POCL = "Portable Computing Language"
TEXT, ROUNDS = "find the time", 400
LIMITS = {"cold": 60, "cached": 1.5, "query": 5}  # seconds, seconds, times NumPy's path
PROGRAMS = """
import json, sys, time
from anyop import testing
from anyop.conformance.device_table import Device
from anyop.conformance.on_chip import kernels_on, through_chip, use
device = Device("opencl")
subjects = [s for s in testing.find_subjects("ops") if kernels_on(s, "opencl")]
cases = []
for subject in subjects:
    use(device)
    choices = testing.dtype_choices(subject.metadata)
    choice = next(c for c in choices if set(c.names.values()) <= {"float32", "bool", "int64", None})
    cases.append((through_chip(subject, device), testing.standard_cases(subject, choice)[0]))
begin = time.perf_counter()
for subject, case in cases:
    testing.check_case(subject, case)
print(json.dumps({"operators": len(cases), "seconds": round(time.perf_counter() - begin, 3)}))
"""


def programs() -> list[dict]:
    """Cold, then twice from the cache, of which the faster."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        own = {
            "ANYOP_CACHE_DIR": f"{folder}/anyop",
            "POCL_CACHE_DIR": f"{folder}/pocl",
            "ANYOP_OPENCL_DEVICE": POCL,
        }
        for what, runs in (("cold", 1), ("cached", 2)):
            found = [run(own) for _ in range(runs)]
            best = min(found, key=lambda row: row["seconds"])
            kept = len([*Path(folder, "anyop", "opencl").iterdir()])
            rows.append({"what": f"programs {what}", "programs": kept, **best})
            print(
                f"{what}: {kept} programs in {best['seconds']} s, asked {LIMITS[what]}", flush=True
            )
    return rows


def run(own: dict[str, str]) -> dict:
    words = [sys.executable, "-c", PROGRAMS]
    done = subprocess.run(words, cwd=ROOT, env=os.environ | own, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def query() -> dict:
    """Both encoders must agree before they are timed."""
    from examples.sentence_search.folder import packaged_model
    from examples.sentence_search.frameworks import Framework
    from examples.sentence_search.model import Encoder
    from examples.sentence_search.on_device import NumpyOnDevice
    from examples.sentence_search.session import Model

    os.environ["ANYOP_OPENCL_DEVICE"] = POCL
    anyop.set_num_threads(2)
    model = Model.read(packaged_model())
    here = Encoder(anyop, model.config, model.weights, Framework())
    there = Encoder(anyop, model.config, model.weights, NumpyOnDevice("opencl"))
    ids = np.array([model.tokenizer.encode([TEXT])[0].ids])
    mask = np.ones(ids.shape, bool)
    if not np.abs(here(ids, mask) - there(ids, mask)).max() <= 1e-5:
        raise SystemExit("the vectors differ, nothing was timed")
    sides = {"numpy": lambda: here(ids, mask), "opencl": lambda: there(ids, mask)}
    times = {name: spread(t) for name, t in take_turns(sides, ROUNDS).items()}
    ratios = {
        which: round(times["opencl"][f"{which}_ns"] / times["numpy"][f"{which}_ns"], 2)
        for which in ("min", "median")
    }
    print(f"query: {times}, {ratios}, asked {LIMITS['query']}", flush=True)
    return {"what": "query", "tokens": ids.shape[1], **times, "ratio": ratios}


if __name__ == "__main__":
    write("opencl_host", [*programs(), query()], environment(np, anyop))
