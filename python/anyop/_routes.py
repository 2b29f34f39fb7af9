# SPDX-License-Identifier: Apache-2.0
"""Which backend runs an operator: to ask, to change, to log."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from anyop._load import core
from anyop._operators import find


def load_routes(path: str | os.PathLike | None) -> None:
    """Put the rules of a route file in place of all that were loaded before.

    path: a file; the name of a preset ("cpu", "cuda", "triton", "reference", for ATen's overloads "native" and
          "flaggems"; "auto": the one that fits the devices found); None: no rules, priorities alone.

    All rules, of operators and of ATen's overloads, take effect or, with an error, none. Calls in other threads go
    on, by the old or the new rules.
    Raises ValueError with file, line and column for what is wrong in the file.
    """
    if path is not None:
        path = fitting_preset() if path == "auto" else os.fsdecode(path)
    core.load_routes(path)


def fitting_preset() -> str:
    """The preset for the devices of this machine."""
    from anyop.doctor import devices

    names = [found.name for found in devices.findings()]
    return "cuda" if "cuda:0" in names else "cpu"


def backends(op: str) -> list[str]:
    """Names of the operator's implementations, the preferred first, whether or not they can run here.

    ``anyop.explain`` says which do. Raises ValueError for an unknown operator.
    """
    return [found["name"] for found in implementations(op)]


def implementations(op: str) -> list[dict[str, Any]]:
    """What is known of each implementation of an operator, the preferred first."""
    return json.loads(core.implementations(op))


explaining: ContextVar[bool] = ContextVar("anyop.explain", default=False)  # nothing is built


class Route:
    """What a call would run, and why.

    operator, device: of the call.
    backend: what runs it, None when nothing takes it. chosen: the name of that implementation.
    choice: the way that a rule tells it to go, None where it decides; runs: both, as rules name them: "cuda:5".
    reason: the rule that decides: "default", "ANYOP_OP_RMS_NORM", "routes.txt:12", "anyop.use('aten=*')".
    rule: the backends that it names. fallback: whether what runs is beyond these; then why_fallback says why.
    copied: the arguments of which the kernel gets a copy, by the operator's [layouts].
    candidates: name, backend, source, priority, deterministic, when, and why_not ("" of the chosen one) of each;
        declined: why it first left a call of this process to the next, having seen it ("" where it never did).
    """

    operator: str
    device: str
    chosen: str | None
    choice: int | None
    reason: str
    rule: list[str]
    fallback: bool
    why_fallback: str
    copied: list[str]
    candidates: list[dict[str, Any]]

    def __init__(self, found: dict[str, Any]) -> None:
        self.__dict__.update(found)
        runs = [given["backend"] for given in self.candidates if given["name"] == self.chosen]
        self.backend: str | None = runs[0] if runs else None
        choice = f":{self.choice}" if self.choice is not None else ""
        self.runs: str | None = self.chosen and f"{self.chosen}{choice}"

    def __repr__(self) -> str:
        chosen = self.runs or "nothing"
        lines = [f"{self.operator} on {self.device}: {chosen} ({self.reason})"]
        if self.fallback:
            lines.append(f"  falls back: {self.why_fallback}")
        if self.copied:
            lines.append(f"  copies {', '.join(self.copied)}: not contiguous")
        width = max((len(found["name"]) for found in self.candidates), default=0)
        for found in self.candidates:
            why = found["why_not"] or "runs"
            if found["declined"] and found["declined"] != why:
                why += f"; has left a call to the next: {found['declined']}"
            lines.append(f"  {found['name']:{width}}  {why}")
        return "\n".join(lines)


def explain(op: str, *args: Any, **kwargs: Any) -> Route:
    """What ``anyop.<op>(*args, **kwargs)`` would run here and now, without running it: a Route.

    It is decided by what decides calls; no backend is built for it. Raises what the call would raise for bad arguments.
    """
    function = find(op)
    positional, named = tuple(map(_plain, args)), {n: _plain(v) for n, v in kwargs.items()}
    before = explaining.set(True)
    try:
        return Route(json.loads(core.explain(function, positional, named)))
    finally:
        explaining.reset(before)


def _plain(value: Any) -> Any:
    """A value whose memory can be read: arrays of JAX by DLPack."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return _Memory(value) if type(value).__module__.startswith(("jaxlib", "jax.")) else value


class _Memory:
    """An array's memory, whatever its framework."""

    def __init__(self, array: Any) -> None:
        self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__


def use_deterministic(on: bool = True) -> None:
    """Run only implementations that declare to give the same bits in every run.

    On the same device, with the same number of threads.
    A call that none of those takes raises NotImplementedError. For the whole process.
    """
    core.set_deterministic(on)


def is_deterministic() -> bool:
    """Whether use_deterministic is on."""
    return core.is_deterministic()


def log_dispatch(
    level: int = 1, file: str | os.PathLike | None = None, *, stderr: bool = True
) -> None:
    """Log which implementation runs: as ANYOP_LOG_DISPATCH and ANYOP_LOG_FILE do.

    level: 0 nothing, 1 each choice once, 2 every call.
    file: JSON lines are added to it: operator, backend, name, device, reason, fallback.
    stderr: lines of text there. The logger "anyop.dispatch" of Python's logging gets them too, at INFO, with the
            fields of the JSON line as the record's attribute `choice`.
    """
    if level not in (0, 1, 2):
        raise ValueError(f"log_dispatch: level is {level!r}, expected 0, 1 or 2")
    path = None if file is None else os.fsdecode(file)
    core.set_log(level, path, stderr, _log if level else None)


def _log(text: str, line: str) -> None:
    import logging

    logger = logging.getLogger("anyop.dispatch")
    if logger.isEnabledFor(logging.INFO):
        logger.info(text, extra={"choice": json.loads(line)})


@contextmanager
def unrecorded() -> Iterator[None]:
    """Within the block, calls of this thread are no part of a record: nobody's program makes them."""
    core.pause_record(True)
    try:
        yield
    finally:
        core.pause_record(False)


def record(path: str | os.PathLike | None) -> None:
    """Note the calls from now on, with shapes and counts, in a file for ``anyop tune``; None ends it.

    As ANYOP_RECORD does from the start.
    """
    core.set_record(None if path is None else os.fsdecode(path))
