# SPDX-License-Identifier: Apache-2.0
"""The backends of the calls within a ``with`` block: ``with anyop.use("aten"): …``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ContextDecorator
from contextvars import ContextVar

from anyop._load import core

# "backends=patterns" joined by ";", the last that fits an operator holds; None: no scope.
current: ContextVar[str | None] = ContextVar("anyop.use", default=None)
core.set_scope_variable(current.get)

active = 0  # blocks that any thread or task is in; while there is none, nobody asks for `current`


class use(ContextDecorator):
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
        backends = [backend] if isinstance(backend, str) else list(backend)
        patterns = [ops] if isinstance(ops, str) else ["*"] if ops is None else list(ops)
        for word in (*backends, *patterns):
            if not isinstance(word, str) or not word.strip() or set(word) & set(";="):
                raise ValueError(f"use: {word!r} is no name of a backend or operator")
        self.text = f"{','.join(backends)}={','.join(patterns)}"
        core.check_scope(self.text)
        self._tokens: list = []

    def _recreate_cm(self) -> use:
        return self  # as a decorator: its blocks nest

    def __enter__(self) -> use:
        outer = current.get()
        self._tokens.append(enter(self.text if outer is None else f"{outer};{self.text}"))
        return self

    def __exit__(self, *error: object) -> None:
        leave(self._tokens.pop())


def enter(text: str | None):
    """Make this the scope of the thread or task, until leave()."""
    global active
    token = current.set(text)
    active += 1
    core.enter_scope()
    return token


def leave(token) -> None:
    """End what enter() began."""
    global active
    current.reset(token)
    active -= 1
    core.leave_scope()


class resumed:
    """Within the block, the scope is that of another place and time: a gradient runs in that of its forward call."""

    def __init__(self, text: str | None) -> None:
        self.text = text

    def __enter__(self) -> None:
        self._token = enter(self.text) if self.text is not None or active else None

    def __exit__(self, *error: object) -> None:
        if self._token is not None:
            leave(self._token)
