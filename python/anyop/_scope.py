# SPDX-License-Identifier: Apache-2.0
"""The backends of the calls within a ``with`` block: ``with anyop.use("aten"): …``."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Sequence
from contextlib import ContextDecorator
from contextvars import ContextVar
from typing import Any

from anyop._load import core

# Blocks that a thread or task is in; while there is none, nobody asks for `current`.
active: set[int] = set()


class _Block:
    """A scope that was entered. It counts while any context holds it: a task that was started inside may outlive it."""

    __slots__ = ("outer", "owner", "text")

    def __init__(self, text: str | None, owner: object, outer: _Block | None) -> None:
        self.text, self.owner, self.outer = text, owner, outer
        active.add(id(self))
        core.enter_scope()

    def __del__(self, entered: Any = active, leave: Any = core.leave_scope) -> None:
        if id(self) in entered:
            entered.discard(id(self))
            leave()

    def without(self, owner: object) -> _Block | None:
        """The blocks that are left when owner's last one ends; those of generators may end out of order."""
        if self.owner is owner:
            return self.outer
        if self.outer is None:
            raise RuntimeError("use: a block ends in another thread or task than it began in")
        return _Block(self.text, self.owner, self.outer.without(owner))


_innermost: ContextVar[_Block | None] = ContextVar("anyop.use", default=None)


class _Current:
    """The scope of the thread or task: "backends=patterns" joined by ";", the last that fits an operator holds."""

    @staticmethod
    def get() -> str | None:
        """Its text; None: no scope."""
        block = _innermost.get()
        return block.text if block else None


current = _Current()
core.set_scope_variable(current.get)


class _Rules:
    """A block with these rules beside those around it."""

    text: str

    def __enter__(self) -> Any:
        # Rules that this one hides are left out: functions that call each other make no longer and longer texts.
        outer = "" if self.text.endswith("=*") else current.get() or ""
        rules = [rule for rule in outer.split(";") if rule and rule != self.text]
        enter(";".join([*rules, self.text]), self)
        return self

    def __exit__(self, *error: object) -> None:
        leave(self)


class use(_Rules, ContextDecorator):  # noqa: N801
    """Within the block, calls of operators run on these backends.

    backend: a name, or several: the first that takes a call runs it ("triton,cuda" or ["triton", "cuda"]).
    ops: names of operators or patterns with * and ?; default all.

    It holds for the thread and the async task that enter it, before ANYOP_OP_* and route files; an inner block
    before an outer one. What cannot run there is decided by ANYOP_FALLBACK. Gradients run in the scope of their
    forward call. What is traced inside (jax.jit, torch.compile, torch.export, Paddle's to_static) keeps it.
    Raises ValueError for an unknown backend, or a pattern that fits no operator.
    """

    def __init__(
        self, backend: str | Sequence[str], ops: str | Sequence[str] | None = None
    ) -> None:
        backends, patterns = _names("backend", backend), _names("ops", "*" if ops is None else ops)
        self.text = f"{backends}={patterns}"
        core.check_scope(self.text)

    def __call__(self, function: Any) -> Any:
        """The function within such a block, at each call."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def run(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return await function(*args, **kwargs)

            return run
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError("use: a generator runs after its call has ended; put a block inside it")
        return super().__call__(function)

    def _recreate_cm(self) -> _Rules:  # type: ignore[override]
        """Of each call of a decorated function: Dynamo traces only blocks whose object is made in what it traces."""
        block = _Rules()
        block.text = self.text
        return block


def _names(argument: str, value: Any) -> str:
    """One name or several, joined by commas."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"use: {argument} is {value!r:.60}, expected a name or a list of names")
    for name in names or [""]:
        if not name.strip() or set(name) & set(";="):
            raise ValueError(f"use: {argument} has {name!r:.60}, expected a name")
    return ",".join(names)


def now() -> str | None:
    """The text of the scope that a call is in; None: in none. Cheap while there is no scope anywhere."""
    return current.get() if active else None


def enter(text: str | None, owner: object) -> None:
    """Make this the scope of the thread or task, until leave(owner). One owner may be in any number of blocks."""
    _innermost.set(_Block(text, owner, _innermost.get()))
    tell_jax()


def leave(owner: object) -> None:
    """End what enter() began."""
    block = _innermost.get()
    if block is None:
        raise RuntimeError("use: a block ends in another thread or task than it began in")
    _innermost.set(block.without(owner))
    tell_jax()


jax_keys: dict[str, Any] = {}  # what JAX compares before it takes a trace or a program that it has


def tell_jax() -> None:
    """Make the scope part of JAX's keys. They belong to the thread, not to the task: see anyop.jax.scope."""
    make = getattr(sys.modules.get("jax"), "make_user_context", None)
    if make is None:
        return
    if "use" not in jax_keys:
        jax_keys.setdefault("use", make())
    jax_keys["use"](current.get()).__enter__()  # never left: the next call sets what is right then


class resumed:  # noqa: N801
    """Within the block, the scope is that of another place and time: a gradient runs in that of its forward call."""

    def __init__(self, text: str | None) -> None:
        self.text = text

    def __enter__(self) -> None:
        self._entered = self.text is not None or bool(active)
        if self._entered:
            enter(self.text, self)

    def __exit__(self, *error: object) -> None:
        if self._entered:
            leave(self)
