# SPDX-License-Identifier: Apache-2.0
"""Triton's kernels on the CPU, by its interpreter: for debugging and for tests without a GPU, slowly.

With TRITON_INTERPRET=1 in the environment before Triton is imported, the backend triton takes tensors on the CPU too.
"""

from __future__ import annotations

import gc
import json
import os
from functools import partial

from anyop import _operators
from anyop._load import core
from anyop.backend import python

NAME = "triton_on_cpu"
_CPU = 1  # DLDeviceType


def is_interpreted() -> bool:
    """Whether the environment asks for the interpreter."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


def register_on_cpu() -> None:
    """Where it is asked for: for all operators, and for those that are loaded later."""
    if is_interpreted():
        _operators.on_new_operators.append(_add)
        _add(_operators.list_ops())


def _add(ops: list[str]) -> None:
    """Registers the same sources once more, for the CPU."""
    for op in ops:
        for found in json.loads(core.implementations(op)):
            if found["backend"] == "triton" and found["form"] == "python" and found["text"]:
                core.register_python(
                    op, "triton", NAME, found["source"], found["when"] or None, _CPU, found["priority"],
                    found["deterministic"], partial(_provide, op, found["text"]),
                )  # fmt: skip


def _provide(op: str, text: str) -> python.Run | str:
    """As for a device; what the interpreter leaves behind, closures that hold the call's tensors, is collected."""
    run = python.provide(op, text)
    if isinstance(run, str):
        return run

    def run_and_collect(*call) -> None:
        run(*call)
        gc.collect(1)

    return run_and_collect
