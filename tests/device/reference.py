# SPDX-License-Identifier: Apache-2.0
"""What torch's own device computes in a process that has not loaded anyop's.

Beside the device, torch runs no backward of native cuda (pytorch issue 161129). So a test is run a second time, there:
its fixture `same` writes down what its functions give on torch's device, and the test here compares with that.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

# Set in that process alone: the file that `same` writes results to.
RESULTS = "ANYOP_TEST_REFERENCE"
SECONDS = 300


class Reference:
    """The other process, which is started once and runs one test after another."""

    def __init__(self, platform: str, root: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="anyop-reference-")
        self._log = Path(self._folder.name, "log")
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")},
            "ANYOP_DEVICE_PLATFORM": platform,
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        }
        environment.pop("ANYOP_TEST_RECORD", None)
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(self._log)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
            env=environment,
        )
        self._test, self._results = "", []

    def result(self, test: str, number: int) -> Any:
        """What the function of the test's call `number` of `same` gave, and torch's generators seeded with 0."""
        if test != self._test:
            self._test, self._results = test, self._run(test)
        assert number < len(self._results), f"no result of torch's own device: {self._said()}"
        return self._results[number]

    def _run(self, test: str) -> list[Any]:
        import torch

        file = Path(self._folder.name, "results")
        file.unlink(missing_ok=True)
        print(file, test, sep="\t", file=self._process.stdin, flush=True)
        ready, _, _ = select.select([self._process.stdout], [], [], SECONDS)
        assert ready and self._process.stdout.readline(), f"it did not end: {self._said()}"
        return torch.load(file, weights_only=False) if file.exists() else []

    def _said(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]

    def close(self) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._folder.cleanup()


class Notebook:
    """The same seen from that process: keeps what functions give."""

    def __init__(self) -> None:
        self._results: list[Any] = []

    def note(self, result: Any) -> None:
        import torch

        self._results.append(result)
        torch.save(self._results, os.environ[RESULTS])


def main(log: str) -> None:
    import pytest

    answers = os.fdopen(os.dup(1), "w")
    with open(log, "ab", 0) as said:  # so that what is written behind a cut begins the file
        for stream in (1, 2):
            os.dup2(said.fileno(), stream)
    for line in sys.stdin:
        file, test = line.rstrip("\n").split("\t", 1)
        os.environ[RESULTS] = file
        os.truncate(log, 0)
        pytest.main([test, "-q", "-p", "no:cacheprovider", "-p", "no:xdist"])
        sys.stdout.flush()
        sys.stderr.flush()
        print("done", file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
