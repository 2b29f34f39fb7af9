# SPDX-License-Identifier: Apache-2.0
"""Which implementations take a kind of call, and which of them give the right numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

import anyop
from anyop._routes import implementations
from anyop.cases.sizes import product
from anyop.tune.arguments import Draw, error_of

_WIDER = (
    {"float16": "float64", "bfloat16": "float64", "float32": "float64", "complex64": "complex128"},
    {"float16": "float32", "bfloat16": "float32"},
    {},
)
# The schema's tolerance is for the sizes of the standard tests. Rounding errors of longer sums grow at most with their
# length; and where the operator's own kernel is off further in the call's dtype, others may be four times as far off.
# Never beyond a hundred tolerances.
_TESTED_SUM, _BESIDE_OWN, _AT_MOST = 128, 4, 100


@dataclass
class Candidate:
    """One implementation for one kind of call."""

    name: str
    backend: str
    takes: bool = False
    why_not: str = ""  # it does not take the call, or is not right: then it is never routed to
    error: float = 0.0
    min_ns: float = 0.0
    median_ns: float = 0.0

    @property
    def right(self) -> bool:
        """Takes the call and gave the reference's numbers."""
        return self.takes and not self.why_not


class Judge:
    """Compares implementations with the reference: the operator's own CPU kernel in the widest dtype it has."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.operator = draw.kind.operator
        self.function = draw.subject.function
        self.own = next(
            (
                i["name"]
                for i in implementations(self.operator)
                if not i["form"] and i["device"] == "cpu"
            ),
            None,
        )
        self._native: dict[str, float] | None = None
        self.expected = self._expect()

    def candidates(self, patterns: Sequence[str]) -> list[Candidate]:
        """Those of the call's device that patterns of backends or names allow, judged."""
        found = []
        for i in implementations(self.operator):
            if i["device"] not in ("any", self.draw.kind.device):
                continue
            if any(fnmatchcase(n, p) for p in patterns for n in (i["name"], i["backend"])):
                names = [i["name"], *(f"{i['name']}:{n}" for n in range(i["choices"]))]
                found += [self._judge(Candidate(name, i["backend"])) for name in names]
        return found

    def default(self) -> str | None:
        """What runs when no rule says anything; None when nothing takes the call."""
        return self._chosen(self.draw.inputs())[0]

    def _judge(self, candidate: Candidate) -> Candidate:
        inputs = self.draw.inputs()
        arguments = {**inputs, **self.draw.places(inputs)}
        with anyop.use(candidate.name, ops=self.operator):
            chosen, why = self._chosen(arguments, candidate.name)
            candidate.takes = chosen == candidate.name
            if not candidate.takes:
                candidate.why_not = why
                return candidate
            try:
                found = self.draw.values(inputs, self.function(**arguments))
            except Exception as error:  # a kernel may raise anything
                candidate.why_not = f"raised {type(error).__name__}: {_line(error)}"
                return candidate
        candidate.error = max(map(error_of, found.values(), self.expected.values()), default=0.0)
        candidate.why_not = self._wrong(found)
        return candidate

    def _chosen(self, arguments: dict[str, Any], name: str = "") -> tuple[str | None, str]:
        try:
            explained = anyop.explain(self.operator, **arguments)
        except (NotImplementedError, TypeError, ValueError) as error:
            return None, _line(error)
        why = [c["why_not"] for c in explained.candidates if c["name"] == name.partition(":")[0]]
        return explained.runs, next(iter(why), "is not there")

    def _wrong(self, found: dict[str, np.ndarray]) -> str:
        """What is wrong with the values; empty when nothing is."""
        for name, array in found.items():
            limits = self.draw.subject.on(self.draw.kind.device).metadata["tolerance"]
            tolerance = limits.get(array.dtype.name, 0.0)
            error = error_of(array, self.expected[name])
            if error <= tolerance:
                continue
            longer = tolerance * max(1.0, self._summed(name) / _TESTED_SUM)
            allowed = min(max(longer, _BESIDE_OWN * self._own_error(name)), _AT_MOST * tolerance)
            if not error <= allowed:
                return f"wrong: {name} is off by {error:.1e}, allowed {allowed:.1e}"
        return ""

    def _summed(self, name: str) -> int:
        """The largest size or group that a result's shape lacks: what is summed up in each element."""
        metadata, sizes = self.draw.subject.metadata, self.draw.kind.sizes()
        text = next((p["shape"]["text"] for p in metadata["results"] if p["name"] == name), None)
        if text is None:
            return 1  # an argument that is changed
        words = set(re.findall(r"\*\w*|\w+", text))
        lost = [n for letter, n in sizes.values.items() if letter not in words]
        groups = sizes.groups.items()
        lost += [product(s) for group, s in groups if f"*{group}".replace("*_", "*") not in words]
        return max(lost, default=1)

    def _own_error(self, name: str) -> float:
        """How far the own CPU kernel is off in the dtype of the call; 0 without one."""
        if self._native is None:
            found = self._run(self.own, {}) if self.own else None
            self._native = {
                n: error_of(array, self.expected[n]) for n, array in (found or {}).items()
            }
        return self._native.get(name, 0.0)

    def _expect(self) -> dict[str, np.ndarray]:
        """The reference's values."""
        for wide in _WIDER if self.own else ():
            found = self._run(self.own, wide)
            if found is not None:
                return found
        inputs = self.draw.inputs()
        return self.draw.values(inputs, self.function(**{**inputs, **self.draw.places(inputs)}))

    def _run(self, name: str, wide: dict[str, str]) -> dict[str, np.ndarray] | None:
        """What that implementation gives on the CPU; None when it does not take such dtypes."""
        inputs = self.draw.widened(self.draw.inputs(), wide)
        unwanted = {n: False for n, spec in self.draw.kind.results.items() if spec is None}
        with anyop.use(name, ops=self.operator):
            if self._chosen({**inputs, **unwanted})[0] != name:
                return None
            results = self.function(**inputs, **unwanted)
        listed = results if isinstance(results, tuple) else (results,)
        found = {n: a for n, a in zip(self.draw.kind.results, listed) if a is not None}
        for n in self.draw.subject.metadata["mutated"]:
            for at, array in enumerate(_listed(inputs.get(n))):
                if array is not None:
                    found[f"{n}[{at}]"] = array
        return found


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]
