# SPDX-License-Identifier: Apache-2.0
"""Asks for each operator that a model calls, once for each kind of call, what runs it and where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import anyop

from . import InputError, model
from .frameworks import NumPy


class Explaining:
    """Stands in for the module anyop."""

    def __init__(self, framework: NumPy) -> None:
        self.concrete = framework.concrete
        self.asked: set = set()
        self.found: Counter[tuple[str, str]] = Counter()

    def __getattr__(self, name: str):
        def call(*args, **kwargs):
            kind = name, *(tuple(getattr(x, "shape", ())) for x in args)
            if kind not in self.asked:
                self.asked.add(kind)
                route = anyop.explain(name, *map(self.concrete, args), **kwargs)
                where = str(route).splitlines()[0].partition(" on ")[2]
                self.found[name, where] += 1
            return getattr(anyop, name)(*args, **kwargs)

        return call


@contextmanager
def explained(framework: NumPy, wanted: bool) -> Iterator[list[str]]:
    """A list that gets a line for each operator and place when the block ends."""
    lines: list[str] = []
    if not wanted:
        yield lines
        return
    if (framework.name, framework.device) == ("jax", "cuda"):
        raise InputError("--explain: of JAX's traced steps anyop.explain knows the CPU's alone")
    model.anyop = note = Explaining(framework)
    try:
        yield lines
    finally:
        model.anyop = anyop
        for (name, where), kinds in sorted(note.found.items()):
            lines.append(f"{name:20} {where}, for {kinds} kinds of shapes")
