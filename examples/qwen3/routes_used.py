# SPDX-License-Identifier: Apache-2.0
"""Which backends of the device served a model's operators, and how often."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from anyop.torch import device

SHOWN = 5


@contextmanager
def counted(lines: list[str]) -> Iterator[None]:
    """Adds a line for each backend about the calls inside the block. Counting takes time: measure no speed there."""
    before = {op: device.calls(op) for op in device.registered_ops()}
    device.count_calls(True)
    try:
        yield
    finally:
        device.count_calls(False)
    used: defaultdict[str, Counter] = defaultdict(Counter)
    for op, had in before.items():
        for backend, count in device.calls(op).items():
            if count > had[backend]:
                used[backend][op] = count - had[backend]
    lines += [describe(backend, ops) for backend, ops in used.items()]


def describe(backend: str, ops: Counter) -> str:
    often = ", ".join(f"{op} {count:,}" for op, count in ops.most_common(SHOWN))
    more = ", ..." if len(ops) > SHOWN else ""
    calls, overloads = sum(ops.values()), len(ops)
    return f"{backend}, {calls:,} calls of {overloads} overloads: {often}{more}"
