# SPDX-License-Identifier: Apache-2.0
"""Times every operator a model calls: which backend, how often, how long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter_ns


@dataclass
class Record:
    backend: str
    calls: int = 0
    elapsed_ns: int = 0


class Recorder:
    """Stands in for the module anyop and notes the calls of its operators inside measure()."""

    def __init__(self, anyop, backend: str = "cpu"):
        self._anyop, self._backend = anyop, backend
        self.records: dict[str, Record] = {}
        self.total_ns = 0
        self._measuring = False

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Time that counts: operators, and everything else that happens inside."""
        begin_ns = perf_counter_ns()
        self._measuring = True
        try:
            yield
        finally:
            self._measuring = False
            self.total_ns += perf_counter_ns() - begin_ns

    def __getattr__(self, name: str):
        """Wraps an operator on its first use; later uses find the wrapper as an attribute."""
        backends = self._anyop.backends(name)
        backend = self._backend if self._backend in backends else backends[0]
        timed = self.timed(name, backend, getattr(self._anyop, name))
        setattr(self, name, timed)
        return timed

    def timed(self, name: str, backend: str, function: Callable) -> Callable:
        """The function, with its calls inside measure() noted under that name."""
        record = self.records[name] = Record(backend)

        def call(*args, **kwargs):
            if not self._measuring:
                return function(*args, **kwargs)
            begin_ns = perf_counter_ns()
            result = function(*args, **kwargs)
            record.elapsed_ns += perf_counter_ns() - begin_ns
            record.calls += 1
            return result

        return call

    def clear(self) -> None:
        """Forget what was measured so far."""
        self.total_ns = 0
        for record in self.records.values():
            record.calls = record.elapsed_ns = 0

    def line(self) -> str:
        """All operators and their shares in one line, dearest first."""
        ran = sorted(self.records.items(), key=lambda item: -item[1].elapsed_ns)
        shares = [
            f"{name} {record.elapsed_ns / max(self.total_ns, 1):.0%} {record.backend}"
            for name, record in ran
            if record.calls
        ]
        return f"{self.total_ns / 1e6:.1f} ms: {', '.join(shares)}"

    def table(self) -> list[str]:
        """Lines of operator, backend, calls, milliseconds and share of the time, dearest first."""
        total_ns = max(self.total_ns, 1)
        lines = [f"{'operator':14}{'backend':10}{'calls':>8}{'ms':>11}{'share':>9}"]
        ran = [(name, record) for name, record in self.records.items() if record.calls]
        for name, record in sorted(ran, key=lambda item: -item[1].elapsed_ns):
            lines.append(
                f"{name:14}{record.backend:10}{record.calls:8,}"
                f"{record.elapsed_ns / 1e6:11,.1f}{record.elapsed_ns / total_ns:9.1%}"
            )
        rest_ns = total_ns - sum(record.elapsed_ns for _, record in ran)
        lines.append(f"{'tokenizer, Python':32}{rest_ns / 1e6:11,.1f}{rest_ns / total_ns:9.1%}")
        return lines
