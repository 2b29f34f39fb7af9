# SPDX-License-Identifier: Apache-2.0
"""The scope of anyop.use in JAX: of a call while it is traced, of a program by the key under which JAX keeps it.

A call's scope is the task's, JAX's keys are the thread's. They differ where an async task waits inside a block while
another one runs, and where a context is copied to another thread.
"""

from __future__ import annotations

from anyop import _scope

if _scope.active:  # this import may come from inside a block that began before JAX was there
    _scope.tell_jax()


def check(name: str, use: str | None) -> None:
    """RuntimeError where JAX would keep what is traced in one scope for calls in another."""
    key = _scope.jax_keys.get("use")
    told = key and key.value
    if told != use:
        raise RuntimeError(
            f"{name}: is traced in {_text(use)}, but this thread told JAX {_text(told)}: blocks around traced "
            "functions hold for threads, so nothing may be awaited in them; put anyop.use inside the function"
        )


def _text(use: str | None) -> str:
    return "no scope" if use is None else f"the scope {use!r}"
