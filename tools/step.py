# SPDX-License-Identifier: Apache-2.0
"""Runs one step of the Makefile: a line with what and how long; all output when it fails.

python3 tools/step.py [--show] "what is done" command [argument...]

--show lets the command print for itself. Otherwise its output is kept back; lines such as ninja's
[3/40] are shown as progress, in place on a terminal.
"""

import re
import subprocess
import sys
import threading
import time

_PROGRESS = re.compile(
    r"\s*(\[\s*\d+/\d+\]|\[\s*\d+%\]|Collecting |Downloading |Building |Installing )"
)
_TERMINAL = sys.stdout.isatty()
_EVERY_SECONDS = 0.2 if _TERMINAL else 20  # between lines of progress


class Progress:
    """The last interesting line of the command, shown with the seconds that have gone by."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.detail = ""
        self.begin = time.monotonic()
        self._done = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)
        self._ticker.start()

    def _tick(self) -> None:
        while not self._done.wait(_EVERY_SECONDS):
            self._show(f"{self.what} … {self.seconds()} {self.detail}"[:100])

    def _show(self, text: str) -> None:
        end = "" if _TERMINAL else "\n"
        start = "\r\x1b[K" if _TERMINAL else ""
        print(f"{start}{text}", end=end, flush=True)

    def seconds(self) -> str:
        return f"{time.monotonic() - self.begin:.0f} s"

    def finish(self, outcome: str) -> None:
        self._done.set()
        self._ticker.join()
        self._show(f"{self.what}: {outcome} {self.seconds()}")
        if _TERMINAL:
            print(flush=True)


def run(what: str, command: list[str]) -> int:
    """Run command behind a line of progress."""
    progress = Progress(what)
    output: list[str] = []
    try:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
        )
    except OSError as error:
        progress.finish("failed after")
        print(f"{command[0]}: {error.strerror}")
        return 127
    for line in process.stdout:
        output.append(line)
        if _PROGRESS.match(line):
            progress.detail = " ".join(line.split())
    status = process.wait()
    progress.finish("done in" if status == 0 else "failed after")
    if status:
        print("".join(output[-200:]), end="")
    return status


def main() -> int:
    arguments = sys.argv[1:]
    show = arguments[:1] == ["--show"]
    what, *command = arguments[show:]
    if not show:
        return run(what, command)
    print(f"{what} …", flush=True)
    begin = time.monotonic()
    status = subprocess.call(command)
    outcome = "done in" if status == 0 else "failed after"
    print(f"{what}: {outcome} {time.monotonic() - begin:.0f} s", flush=True)
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print()
        sys.exit(130)
