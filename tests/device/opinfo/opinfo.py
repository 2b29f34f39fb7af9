# SPDX-License-Identifier: Apache-2.0
"""Runs torch's OpInfo on the device "anyop" and on a device that torch knows, and compares.

    python tests/device/opinfo/opinfo.py [--platform host] [--dtype float32] [--jobs 2] [--samples 5] [--ops add]
                                         [--write]

An entry is right when results, gradients, and the in-place and out= forms are the reference's, on the right device;
random ones start from the same seed. The first run has ANYOP_FALLBACK=error; what then asks for the CPU fallback runs
again with it and is listed apart. A process that dies or hangs costs its entry alone.
--write adds lines to bench/results/device_opinfo.jsonl.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
import warnings
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from opinfo_judge import PARTS, Count, run_entry

DTYPES = ("float32", "int64", "bfloat16", "complex64")
SECONDS = 60  # for one entry
Task = tuple[str, str]  # dtype, entry


def start(platform: str) -> str:
    """Loads the device; its name."""
    os.environ["ANYOP_DEVICE_PLATFORM"] = platform
    import anyop.torch.device  # noqa: F401

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    return torch._C._get_privateuse1_backend_name()


def run(
    platform: str, reference: str, samples: dict[str, int | None], tasks: list[Task]
) -> dict[str, Count]:
    """By dtype, in this process; samples: how many of each entry, None: all."""
    sides = reference, start(platform)
    from torch.testing._internal.common_methods_invocations import op_db

    wanted, total = set(tasks), defaultdict(Count)
    for info in op_db:
        for dtype in DTYPES:
            if (dtype, info.formatted_name) in wanted:
                faulthandler.dump_traceback_later(SECONDS, exit=True)
                found = run_entry(info, getattr(torch, dtype), samples[dtype], sides)
                total[dtype].add(found)
    faulthandler.cancel_dump_traceback_later()
    return dict(total)


def run_piece(job: partial, how: str, tasks: list[Task]) -> dict[str, Count]:
    """In a process of its own; where it dies, its tasks are halved until the one at fault is alone."""
    try:
        with ProcessPoolExecutor(1, mp_context=get_context(how)) as pool:
            return pool.submit(job, tasks).result()
    except BrokenProcessPool:
        if len(tasks) == 1:
            return {tasks[0][0]: Count.of_death(tasks[0][1], SECONDS)}
    return merged(run_piece(job, how, half) for half in (tasks[::2], tasks[1::2]))


def merged(found) -> dict[str, Count]:
    total = defaultdict(Count)
    for counts in found:
        for dtype, count in counts.items():
            total[dtype].add(count)
    return dict(total)


def run_apart(job: partial, tasks: list[Task], jobs: int) -> dict[str, Count]:
    pieces = [tasks[i::jobs] for i in range(min(jobs, len(tasks)))]
    # A copy need not import torch's list of operators, four seconds long; of several threads none may make copies.
    how = "fork" if jobs == 1 else "spawn"
    with ThreadPoolExecutor(jobs) as threads:
        return merged(threads.map(partial(run_piece, job, how), pieces))


def run_all(job: partial, tasks: list[Task], jobs: int) -> tuple[dict, dict]:
    """Counts by dtype without the CPU fallback, and with it those of the entries that ask for it."""
    os.environ["ANYOP_FALLBACK"] = "error"
    first = run_apart(job, tasks, jobs)
    asking = [(dtype, name) for dtype, count in first.items() for name in count.fallback]
    del os.environ["ANYOP_FALLBACK"]
    return first, run_apart(job, asking, jobs) if asking else {}


def row(dtype: str, count: Count, fallen: Count | None, options: argparse.Namespace) -> dict:
    """One line of the results' file."""
    fallen = fallen or Count()
    return {
        "dtype": dtype,
        "platform": options.platform,
        "reference": options.reference,
        "samples_each": options.samples[dtype] or "all",
        "entries": dict(count.entries),
        "calls": dict(count.calls),
        "fallback": dict(count.fallback),
        "fallback_entries": dict(fallen.entries),
        "other_bits": [" ".join(key) for key in dict.fromkeys(count.near)],
        "wrong": count.reasons(),
        "wrong_with_fallback": fallen.reasons(),
    }


def report(found: dict) -> str:
    entries, calls = Counter(found["entries"]), Counter(found["calls"])
    lines = [
        f"OpInfo {found['dtype']} on {found['platform']} against {found['reference']}: "
        f"{entries['right']} of {entries['compared']} entries right, {entries['bitwise']} bitwise; of "
        f"{entries['all']}, {entries['without the dtype']} without the dtype, "
        f"{entries['nothing compared']} compare nothing, {len(found['fallback'])} need the CPU fallback"
    ]
    for part in PARTS:
        right, bitwise = calls[f"{part} right"], calls[f"{part} bitwise"]
        if compared := calls[f"{part} compared"]:
            lines.append(f"  {part}: {right:,} of {compared:,} calls right, {bitwise:,} bitwise")
    unstable = calls["torch itself gives other values each time"]
    lines.append(f"  other strides: {calls['other strides']}; not judged, unstable: {unstable}")
    if found["other_bits"]:
        lines.append(f"  right in other bits: {', '.join(found['other_bits'])}")
    if found["fallback"]:
        right = Counter(found["fallback_entries"])["right"]
        lines.append(f"  right with the CPU fallback: {right}: {', '.join(found['fallback'])}")
    for title in ("wrong", "wrong_with_fallback"):
        lines += [f"  {title.upper()} {name}: {text}" for name, text in found[title].items()]
    return "\n".join(lines)


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--platform", default="host")
    parser.add_argument("--reference", help="device to compare with; cuda on platform cuda")
    parser.add_argument("--dtype", default="float32", help=f"some of {','.join(DTYPES)}; or all")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--samples", default="5", help="of each entry, or one for each dtype; 0: all"
    )
    parser.add_argument("--ops", help="names of entries; all unless told")
    parser.add_argument("--part", default="0/1", help="of the entries one in so many: 2/4")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--json", action="store_true", help="print a line for each dtype, too")
    options = parser.parse_args()
    options.reference = options.reference or ("cuda" if options.platform == "cuda" else "cpu")
    options.dtypes = DTYPES if options.dtype == "all" else options.dtype.split(",")
    counts = [int(n) or None for n in options.samples.split(",")]
    counts = counts * len(options.dtypes) if len(counts) == 1 else counts
    options.samples = dict(zip(options.dtypes, counts, strict=True))
    return options


def all_names() -> list[str]:
    from torch.testing._internal.common_methods_invocations import op_db

    return list(dict.fromkeys(info.formatted_name for info in op_db))


def main() -> None:
    options = options_of()
    at, parts = map(int, options.part.split("/"))
    names = (options.ops.split(",") if options.ops else all_names())[at::parts]
    tasks = [(dtype, name) for name in names for dtype in options.dtypes]
    job = partial(run, options.platform, options.reference, options.samples)
    first, fallen = run_all(job, tasks, options.jobs)
    rows = [row(dtype, first[dtype], fallen.get(dtype), options) for dtype in options.dtypes]
    for found in rows:
        print(report(found), flush=True)
        if options.json:
            print("row " + json.dumps(found), flush=True)
    if options.write:
        write(rows)


def write(rows: list[dict]) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))
    import anyop
    import harness

    harness.write("device_opinfo", rows, harness.environment(anyop, torch))


if __name__ == "__main__":
    main()
