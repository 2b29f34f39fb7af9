# SPDX-License-Identifier: Apache-2.0
"""Starts programs so that a fork in another thread cannot hold their pipes open.

A child that is forked between the making of a pipe and the closing of its other end keeps that end: who reads the pipe
waits for the child, which may wait for this build.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess

_starting = threading.Lock()
os.register_at_fork(
    before=_starting.acquire, after_in_parent=_starting.release, after_in_child=_starting.release
)


def start(command: Sequence[str], **options) -> subprocess.Popen:
    """A process whose output, errors included, comes by its pipe. Raises OSError."""
    import subprocess

    pipes: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
    }
    with _starting:
        return subprocess.Popen(command, **pipes, **options)
