# SPDX-License-Identifier: Apache-2.0
"""Build a folder of operators and run the standard tests of its schemas, from every framework here.

Each operator is called with good and bad arguments of every kind that its schema allows, and compared with the function
`reference` of <op>_test.py; the folder's own tests follow where pytest is installed. Exit code 1 when anything failed.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

_FRAMEWORKS = ("numpy", "torch", "jax", "paddle", "cupy")
_SHOWN = 8  # failures of one row


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `anyop test` takes."""
    parser.add_argument("dir", metavar="DIR", help="a folder of <op>.toml, kernels and tests")
    parser.add_argument(
        "-k", metavar="TEXT", default="", help="only operators with TEXT in the name"
    )
    parser.add_argument(
        "--framework",
        action="append",
        choices=_FRAMEWORKS,
        help="only this one, instead of all that are installed; may be repeated",
    )
    parser.add_argument(
        "--seconds",
        metavar="S",
        type=_positive,
        default=300,
        help="end it where one call, own test or import takes longer, and name it (default: 300)",
    )
    parser.add_argument("--library", metavar="LIB", help="test this library, without building")
    parser.add_argument("--verbose", action="store_true", help="show the commands of the build")


def _positive(text: str) -> float:
    """Of --seconds; a ValueError is argparse's to word."""
    if not 0 < float(text) < 1e6:
        raise ValueError
    return float(text)


def run(options: argparse.Namespace) -> int:
    """Builds here, tests in a process of its own: a kernel may end it."""
    import anyop
    from anyop._paths import is_installed
    from anyop.command._child import events
    from anyop.command._library import build_for_here

    if not is_installed("numpy"):
        raise ImportError("NumPy is needed: python -m pip install numpy")
    if not os.path.isdir(options.dir):
        raise FileNotFoundError(f"no folder of operators at {options.dir}")
    library = options.library or build_for_here(options.dir, options.verbose)

    def work(tell: Any) -> None:
        from anyop.testing.folder import try_folder

        anyop.load(library)
        try_folder(options.dir, tell, options.k, options.framework)

    report = _Report()
    try:
        for event in events(work, options.seconds):
            report.take(event)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted at {report.at}") from None
    return report.finish()


class _Report:
    """Prints the table while it comes, then what failed."""

    def __init__(self) -> None:
        self.at = "the start"
        self.failures: list[str] = []
        self.rows = self.tested = self.compiled = 0

    def take(self, event: dict[str, Any]) -> None:
        """One event of anyop.testing.folder, or of the child's end."""
        if "at" in event:
            self.at = event["at"]
        elif "row" in event:
            self._row(event["row"])
        elif "note" in event:
            print(f"note: {event['note']}", flush=True)
        elif "compiled" in event:
            self.compiled += 1
            print(
                f"{event['compiled']}: compiled, not run: its kernel is for {event['for']}, of which none is here"
            )
        elif "pytest" in event:
            self._pytest(event["pytest"], event["output"])
        elif "error" in event:
            self.failures.append(event["error"])
        elif "died" in event:
            self.failures.append(f"{self.at}: the process {event['died']}")

    def _row(self, row: dict[str, Any]) -> None:
        counts = ("dtypes", "cases", "values", "guard_bytes", "refusals", "gradients")
        if not self.rows:
            titles = (f"{name.replace('_', ' '):>12}" for name in counts)
            print(f"{'operator':<24}{'on':<6}{'from':<16}{''.join(titles)}")
        self.rows += 1
        line = f"{row['operator']:<24}{row['backend']:<6}{row['framework'].split('+')[0]:<16}"
        if row["skipped"]:
            print(f"{line}  skipped: {row['skipped']}", flush=True)
            return
        self.tested += 1
        verdict = f"  {len(row['failures'])} FAILED" if row["failures"] else ""
        print(line + "".join(f"{row[name]:>12,}" for name in counts) + verdict, flush=True)
        self.failures += row["failures"][:_SHOWN]
        if len(row["failures"]) > _SHOWN:
            more = len(row["failures"]) - _SHOWN
            self.failures.append(f"{row['operator']}: {more} more from {row['framework']}")

    def _pytest(self, code: int, output: str) -> None:
        if code not in (0, 5):  # 5: no test in these files
            self.failures.append(f"the folder's own tests:\n{output.rstrip()}")
        elif code == 0:
            print(f"own tests: {output.rstrip().splitlines()[-1]}")

    def finish(self) -> int:
        """Prints the failures; the exit code."""
        if not (self.tested or self.compiled or self.failures):
            self.failures.append("no operator was tested")
        for failure in self.failures:
            print(f"FAILED {failure}")
        well = "passed" if self.tested else "compiled, not run"
        print("failed" if self.failures else well, flush=True)
        return 1 if self.failures else 0
