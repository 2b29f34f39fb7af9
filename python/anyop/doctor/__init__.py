# SPDX-License-Identifier: Apache-2.0
"""Looks at this machine: what anyop needs, what is there, and the command that mends what is missing.

Nothing here raises or waits long: every part runs in a thread of its own, every program at most some seconds.
"""

from __future__ import annotations

import importlib
import threading
from typing import Any

from anyop.doctor.finding import MISSING, PROBLEM, Finding

PARTS = ("compilers", "frameworks", "devices", "runtimes", "cache_state", "settings")
_NEEDED = ("compilers", "cache_state")  # where nothing is known of these, nothing can be promised
_SECONDS = 6  # of all parts together; a program has two, the driver four


def examine() -> list[Finding]:
    """Everything that was found, part by part. A part that fails or takes too long is a finding too."""
    found: dict[str, list[Finding]] = {}

    def look(part: str) -> None:
        try:
            module = importlib.import_module(f"anyop.doctor.{part}")
            found[part] = list(module.findings())
        except Exception as error:  # whatever is wrong with this machine
            found[part] = [_failed(part, f"{type(error).__name__}: {error}")]

    threads = [threading.Thread(target=look, args=(part,), daemon=True) for part in PARTS]
    for thread in threads:
        thread.start()
    for part, thread in zip(PARTS, threads):
        thread.join(_SECONDS)
        if thread.is_alive():
            found[part] = [_failed(part, f"no answer within {_SECONDS} s")]
    return [finding for part in PARTS for finding in found[part]]


def _failed(part: str, text: str) -> Finding:
    return Finding(part, part, PROBLEM, text, needed=part in _NEEDED)


def can_build(findings: list[Finding]) -> bool:
    """Whether a folder of C++ operators can be built here."""
    return not any(f.needed and f.state in (MISSING, PROBLEM) for f in findings)


def system() -> dict[str, Any]:
    """The Python and the machine, in a few words."""
    import os
    import platform
    import sys

    import anyop

    return {
        "anyop": anyop.__version__,
        "folder": os.path.dirname(os.path.abspath(anyop.__file__)),
        "python": platform.python_version(),
        "executable": sys.executable,
        "machine": platform.machine(),
        "system": " ".join(part for part in (platform.system(), *platform.libc_ver()) if part),
        "threads": anyop.get_num_threads(),
    }
