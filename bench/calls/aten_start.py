# SPDX-License-Identifier: Apache-2.0
"""What comes before the first call of ATen: seconds for table and glue, from nothing and cached; and the other way.

    python bench/calls/aten_start.py [--files 20]

The other way is a C++ file for each operator, compiled with torch's headers: measured on some files and extrapolated
to the 525 operators of InfiniOps. 20 take about 5 min. One line of JSON for each goes to bench/results/aten_call.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import ROOT, environment, write

INFINIOPS = 525
_STEPS = """
import json, resource, time
def cpu():
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in both)
import torch, numpy as np
found, last = {}, [cpu(), time.perf_counter()]
def lap(name):
    now = [cpu(), time.perf_counter()]
    found[name] = {"cpu_s": round(now[0] - last[0], 3), "wall_s": round(now[1] - last[1], 3)}
    last[:] = now
import anyop
from anyop.aten import _table
lap("import anyop")
_table.table_path()
lap("table")
from anyop.native.glues import aten_glue
assert aten_glue.find_loaded(), aten_glue.problem
lap("glue")
x = np.ones((4, 4), np.float32)
assert anyop.aten.add(x, x)[0, 0] == 2
lap("first call")
print(json.dumps(found))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=20)
    options = parser.parse_args()
    import anyop
    import torch

    rows = start() + files(torch, options.files)
    path = write("aten_call", rows, environment(anyop, torch))
    print("written to", path.relative_to(ROOT), flush=True)


def start() -> list[dict]:
    """With nothing in the cache, and with all of it there; torch's own import is not counted."""
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        for when in ("from nothing", "cached", "cached"):
            command = [sys.executable, "-c", _STEPS]
            away = os.environ | {"ANYOP_CACHE_DIR": cache}
            said = subprocess.run(command, env=away, check=True, stdout=subprocess.PIPE).stdout
            steps = json.loads(said)
            print(
                when,
                *(f"  {step:14}{s['cpu_s']:6.2f} CPU s" for step, s in steps.items()),
                sep="\n",
            )
            rows.append({"start": when, **steps})
    return rows


def files(torch, count: int) -> list[dict]:
    from anyop.aten import _table
    from peers.aten_files import HEADER, compile_seconds, write_files

    include = str(Path(torch.__file__).parent / "include")
    with tempfile.TemporaryDirectory() as folder:
        chosen = write_files(_table.metadata()["overloads"], Path(folder), count)
        seconds = [compile_seconds(path, include) for path in chosen]
    total = sum(seconds)
    row = {
        "files": len(seconds),
        "header": HEADER,
        "cpu_s": round(total, 1),
        "cpu_s_each": [round(min(seconds), 1), round(max(seconds), 1)],
        "extrapolated_to": INFINIOPS,
        "extrapolated_cpu_s": round(total / len(seconds) * INFINIOPS),
    }
    print(f"a file for each operator, <{HEADER}>: {len(seconds)} files, {total:.0f} CPU s of g++")
    print(f"extrapolated to {INFINIOPS} files: {row['extrapolated_cpu_s']:,} CPU s")
    return [row]


if __name__ == "__main__":
    main()
