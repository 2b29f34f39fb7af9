# SPDX-License-Identifier: Apache-2.0
"""From measurements to rules: which implementation where, in as few conditions as the times justify.

Rules are added one by one, each where it saves most of the workload's time: an implementation for all calls, or for
those of a dtype, within bounds of one size, or of exactly these sizes. The last rule that fits a call holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from anyop.tune.candidates import Candidate
from anyop.tune.workload import Kind, features

TIE = 1.03  # times within this factor are equal: the default keeps the call
_LEAST_GAIN = 0.01  # of the operator's time, that a further rule must save
_MOST_RULES = 12  # of one operator on one device
_WRONG = 1e4  # what a wrong result costs: so many times the whole workload


@dataclass
class Measured:
    """A kind of call and what is known of its candidates."""

    kind: Kind
    default: str | None
    candidates: list[Candidate]
    weight: float = 0.0  # calls, or what makes each kind count alike
    features: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.features = features(self.kind)

    def find(self, name: str | None) -> Candidate | None:
        """The candidate of that name."""
        return next((c for c in self.candidates if c.name == name), None)

    @property
    def right(self) -> list[Candidate]:
        """Those that may run, the fastest first."""
        return sorted((c for c in self.candidates if c.right), key=lambda c: c.median_ns)

    def cost_ns(self, name: str | None) -> float:
        """Of one call where a rule names this one, and the default behind it; infinite where that is wrong.

        The median. What does not beat the default by median and minimum both saves nothing; what is no slower by
        either costs nothing.
        """
        candidate, default = self.find(name), self.find(self.default)
        if candidate is None or not candidate.takes:
            candidate = default
        if candidate is None or not candidate.right:
            return math.inf
        if default is None or not default.right or default is candidate:
            return candidate.median_ns
        if TIE * candidate.median_ns <= default.median_ns and candidate.min_ns <= default.min_ns:
            return candidate.median_ns
        no_slower = (
            candidate.median_ns <= default.median_ns or candidate.min_ns <= default.min_ns
        ) and candidate.median_ns <= TIE * default.median_ns
        return default.median_ns if no_slower else max(candidate.median_ns, default.median_ns)


@dataclass(frozen=True)
class Term:
    """A word of a condition."""

    name: str
    sign: str  # = <= >
    value: Any

    def __str__(self) -> str:
        return f"{self.name}{self.sign}{self.value}"

    def holds(self, found: dict[str, Any]) -> bool:
        """Whether a kind with these features fits."""
        if self.name not in found:
            return False
        value = found[self.name]
        if self.sign == "=":
            return value == self.value
        return value <= self.value if self.sign == "<=" else value > self.value


@dataclass(frozen=True)
class Rule:
    """Calls that fit all terms run on `name`."""

    terms: tuple[Term, ...]
    name: str

    def holds(self, measured: Measured) -> bool:
        """Whether a kind fits."""
        return all(term.holds(measured.features) for term in self.terms)


def choose(measured: list[Measured]) -> list[Rule]:
    """The rules for one operator on one device; none where the default is as good as anything."""
    names = sorted({c.name for m in measured for c in m.right})
    wrong = _WRONG * sum(m.weight * max(c.median_ns for c in m.right) for m in measured)
    prices = {
        name: [min(m.weight * m.cost_ns(name), wrong) for m in measured] for name in (None, *names)
    }
    costs = list(prices[None])
    rules: list[Rule] = []
    while len(rules) < _MOST_RULES:
        best, saved = None, _LEAST_GAIN * sum(cost for cost in costs if cost < wrong)
        for rule in _possible(measured, costs, prices):
            inside = [at for at, m in enumerate(measured) if rule.holds(m)]
            gain = sum(costs[at] - prices[rule.name][at] for at in inside)
            if gain > saved * (1 + 1e-9):
                best, saved = rule, gain
        if best is None:
            break
        rules = [rule for rule in rules if best.terms] + [best]
        costs = [
            prices[best.name][at] if best.holds(m) else costs[at] for at, m in enumerate(measured)
        ]
    return _used(rules, measured)


def cost_of(rules: list[Rule], measured: list[Measured]) -> float:
    """Nanoseconds of all calls by these rules, by what was measured of each alone."""
    chosen = [(m, chosen_rule(rules, m)) for m in measured]
    return sum(m.weight * m.cost_ns(rule.name if rule else None) for m, rule in chosen)


def chosen_rule(rules: list[Rule], measured: Measured) -> Rule | None:
    """The one that holds for a kind."""
    return next((rule for rule in reversed(rules) if rule.holds(measured)), None)


def _used(rules: list[Rule], measured: list[Measured]) -> list[Rule]:
    holding = [chosen_rule(rules, m) for m in measured]
    return [rule for rule in rules if any(rule is other for other in holding)]


def _possible(
    measured: list[Measured], costs: list[float], prices: dict[str | None, list[float]]
) -> Iterator[Rule]:
    """Rules worth a look, the simplest first."""
    names = [name for name in prices if name is not None]
    conditions = _dtypes(measured)
    for name in names:
        for words in conditions:
            yield Rule(words, name)
    for name in names:
        gains = [cost - price for cost, price in zip(costs, prices[name])]
        for words in conditions:
            inside = [at for at, m in enumerate(measured) if Rule(words, name).holds(m)]
            for feature in _numbers([measured[at] for at in inside]):
                by_value: dict[int, float] = {}
                for at in inside:
                    value = measured[at].features[feature]
                    by_value[value] = by_value.get(value, 0.0) + gains[at]
                yield Rule(words + _bounds(feature, *_best_run(sorted(by_value.items()))), name)
        for m, gain in zip(measured, gains):
            if gain > 0:
                exact = [n for n in m.features if "(" not in n]
                yield Rule(tuple(Term(n, "=", m.features[n]) for n in exact), name)


def _dtypes(measured: list[Measured]) -> list[tuple[Term, ...]]:
    """No condition, and each dtype of each tensor whose dtypes differ."""
    found: dict[str, set] = {}
    for m in measured:
        for name, value in m.features.items():
            if name.startswith("dtype"):
                found.setdefault(name, set()).add(value)
    terms = [
        Term(n, "=", v) for n, values in found.items() if len(values) > 1 for v in sorted(values)
    ]
    return [(), *((term,) for term in terms)]


def _numbers(measured: list[Measured]) -> list[str]:
    """Numbers that all have and that differ."""
    if not measured:
        return []
    first = measured[0].features
    shared = [n for n in first if all(n in m.features for m in measured)]
    differ = [n for n in shared if any(m.features[n] != first[n] for m in measured)]
    return [n for n in differ if not n.startswith("dtype")]


def _best_run(gains: list[tuple[int, float]]) -> tuple[list[int], int, int]:
    """All values, and the first and last of the run of neighbours that saves most."""
    best, total, begin, found = -math.inf, 0.0, 0, (0, 0)
    for at, (_, gain) in enumerate(gains):
        if total <= 0:
            total, begin = 0.0, at
        total += gain
        if total > best:
            best, found = total, (begin, at)
    return [value for value, _ in gains], *found


def _bounds(feature: str, values: list[int], first: int, last: int) -> tuple[Term, ...]:
    """The words that tell these values from their neighbours."""
    if first == last and (feature.startswith(("contiguous", "rank")) or min(values) < 0):
        return (Term(feature, "=", values[first]),)
    terms = []
    if first > 0:
        terms.append(Term(feature, ">", _between(values[first - 1], values[first])))
    if last < len(values) - 1:
        terms.append(Term(feature, "<=", _between(values[last], values[last + 1])))
    return tuple(terms)


def _between(low: int, high: int) -> int:
    """A bound b with low <= b < high: the power of two nearest to the middle, if there is one."""
    if low < 1:
        return (low + high - 1) // 2
    middle = math.sqrt(low * high)
    power = 2 ** round(math.log2(middle))
    return power if low <= power < high else min(max(int(middle), low), high - 1)
