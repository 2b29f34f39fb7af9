# SPDX-License-Identifier: Apache-2.0
"""Build a folder of operators and time them at the sizes of [bench], beside a plain copy of the same bytes.

Each result is compared with the reference first. CUDA kernels are timed with torch's tensors, by events, caches warm.
The share is the copy's least time over the operator's.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
from typing import Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `anyop bench` takes."""
    parser.add_argument("dir", metavar="DIR", help="a folder of <op>.toml and kernels")
    parser.add_argument(
        "--op", metavar="OP", help="only this operator, such as acme.scale or scale"
    )
    parser.add_argument(
        "--rounds", type=_count, default=15, help="turns of each side (default: 15)"
    )
    parser.add_argument("--json", metavar="FILE", help="add a line of JSON for each result")
    parser.add_argument("--library", metavar="LIB", help="time this library, without building")
    parser.add_argument("--verbose", action="store_true", help="show the commands of the build")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}', expected a number above 0")
    return int(text)


def run(options: argparse.Namespace) -> int:
    """Builds here, measures in a process of its own."""
    import anyop
    from anyop._paths import is_installed
    from anyop.command._child import events
    from anyop.command._library import build_for_here

    if not is_installed("numpy"):
        raise ImportError("NumPy is needed: python -m pip install numpy")
    library = options.library or build_for_here(options.dir, options.verbose)
    file = open(options.json, "a", encoding="utf-8") if options.json else None  # noqa: SIM115

    def work(tell: Any) -> None:
        anyop.load(library)
        _measure(options, tell)

    at, failures = "the start", 0
    for event in events(work):
        at = event.get("at", at)
        if "note" in event:
            print(f"note: {event['note']}", flush=True)
        elif "result" in event:
            _show(event["result"])
            if file:
                file.write(json.dumps(event["result"]) + "\n")
                file.flush()
        elif "error" in event or "died" in event:
            failures += 1
            print(
                "FAILED " + event.get("error", f"{at}: the process {event.get('died')}"), flush=True
            )
    return 1 if failures else 0


def _measure(options: argparse.Namespace, tell: Any) -> None:
    """In the child: every case of every operator on every backend."""
    from anyop.cases.machine import environment
    from anyop.testing import find_subjects

    every = list(find_subjects(options.dir))
    subjects = [s for s in every if options.op in (None, s.name, s.metadata["name"])]
    if not subjects:
        raise LookupError(f"no operator '{options.op}' in {options.dir}")
    backends = _backends(subjects, tell)
    where = environment(backends)
    threads = f"{where['threads']} threads of {where['cpus']}, load {where['load_average']}"
    tell({"note": f"{where['cpu']}, {threads}" + (f"; {where['gpu']}" if "gpu" in where else "")})
    for subject in subjects:
        names = subject.metadata["bench"] or {}
        if not names:
            tell({"note": f"{subject.name}: no section [bench], nothing is timed"})
        here = backends & {kernel["backend"] for kernel in subject.metadata["kernels"]}
        for name, backend in itertools.product(names, sorted(here)):
            tell({"at": f"{subject.name} {name} on {backend}"})
            _measure_case(subject, name, backend, options.rounds, where, tell)


def _measure_case(
    subject: Any, name: str, backend: str, rounds: int, where: dict[str, Any], tell: Any
) -> None:
    from anyop.testing.check import CheckError
    from anyop.testing.timing import bench_case, check, time_case

    try:
        case = bench_case(subject, name)
        checked = check(subject, case, backend)
    except (CheckError, LookupError) as error:
        tell({"error": f"{error}; it was not timed"})
        return
    row = {"operator": subject.name, "case": name, "dtype": str(case.choice), "backend": backend}
    times = time_case(subject, case, backend, rounds)
    tell({"result": {**row, **times, "checked": checked, **where}})


def _backends(subjects: list[Any], tell: Any) -> set[str]:
    """Those that run here; of others that the schemas name a note."""
    named = {kernel["backend"] for subject in subjects for kernel in subject.metadata["kernels"]}
    found = named & {"cpu"}
    if "cuda" in named:
        from anyop._paths import is_installed

        torch = is_installed("torch") and importlib.import_module("torch")
        if torch and torch.cuda.is_available():
            found.add("cuda")
        else:
            tell(
                {
                    "note": "CUDA kernels are timed with torch and a device that it can use, and there is none"
                }
            )
    return found


def _show(row: dict[str, Any]) -> None:
    least, median = row["min_ns"] / 1e3, row["median_ns"] / 1e3
    flops = f"{row['flops'] / row['min_ns']:9.1f} GFLOP/s" if row["flops"] else ""
    what = f"{row['operator']:<24}{row['case']:<12}{row['dtype'][:16]:<17}{row['backend']:<5}"
    times = f"{least:>10.1f} us{median:>10.1f} us median{row['bytes_per_s'] / 1e9:>9.2f} GB/s"
    share = f"{row['share_of_copy']:>7.0%} of a copy{flops}  {row['checked']}"
    print(what + times + share, flush=True)
