# SPDX-License-Identifier: Apache-2.0
"""The draw of short runs: runs of different commits try everything, one commit always the same."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import drawn as draw
import pytest


class Item:
    """A test, with what its mark says."""

    def __init__(self, name: str, *parts: int, **group: str):
        self.nodeid = name
        self.mark = SimpleNamespace(args=parts, kwargs=group) if parts else None

    def get_closest_marker(self, name: str):
        return self.mark


@pytest.fixture
def conftest(monkeypatch):
    path = Path(__file__).parents[2] / "conftest.py"
    spec = importlib.util.spec_from_file_location("root_conftest", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(draw, "FULL", False)
    return module


def test_what_is_marked_is_drawn_by_function_or_group(conftest, monkeypatch):
    """One part of each, never none; whoever looks at several commits sees all."""
    few = [Item(f"a.py::test_few[{number}]", 3) for number in range(7)]
    heavy = [Item(f"{file}.py::test", 2, group="heavy") for file in "bcde"]
    seen = set()
    for seed in range(40):
        draw.seed.cache_clear()
        monkeypatch.setenv("ANYOP_TEST_SEED", str(seed))
        left = conftest.marked_left([*few, Item("a.py::test_other"), *heavy])
        kept = [one.nodeid for one in [*few, *heavy] if one not in left]
        assert sum("few" in name for name in kept) in (2, 3) and len(left) + len(kept) == 11
        assert sum("few" not in name for name in kept) == 2
        seen.update(kept)
    draw.seed.cache_clear()
    assert seen == {one.nodeid for one in [*few, *heavy]}


def test_what_belongs_together_is_drawn_as_a_whole(conftest, monkeypatch):
    files = {name: [Item(f"{name}.py::{k}", 3, together=name) for k in "xyz"] for name in "abcdefg"}
    items, seen = [item for tests in files.values() for item in tests], set()
    for seed in range(40):
        draw.seed.cache_clear()
        monkeypatch.setenv("ANYOP_TEST_SEED", str(seed))
        left = conftest.together_left([Item("h.py::x"), Item("h.py::y", 3), *items])
        assert not conftest.marked_left(items) and len(left) in (12, 15)
        kept = {item.nodeid[0] for item in items if item not in left}
        assert all(left.isdisjoint(files[name]) for name in kept)
        seen |= kept
    draw.seed.cache_clear()
    assert seen == set(files)


@pytest.fixture
def by_seed(monkeypatch):
    def found(seed: int, call):
        draw.seed.cache_clear()
        monkeypatch.setenv("ANYOP_TEST_SEED", str(seed))
        monkeypatch.setattr(draw, "FULL", False)
        return call()

    yield found
    draw.seed.cache_clear()


@pytest.mark.parametrize(("there", "least", "most"), [(9, 9, 9), (40, 4, 6), (400, 14, 18)])
def test_an_eighth_of_the_operators_runs_or_sixteen(there, least, most, conftest, by_seed):
    """On the average: each is drawn for itself."""
    items = [Item(f"a.py::test[{number}]") for number in range(there)]
    conftest.operator_of = lambda item: item.nodeid
    left = [by_seed(seed, lambda: conftest.operators_left(items)) for seed in range(100)]
    assert least <= there - sum(map(len, left)) / 100 <= most
    assert there == 400 or not set.intersection(*left)


@pytest.mark.parametrize(("size", "parts"), [(1, 4), (3, 4), (21, 4), (100, 7)])
def test_commits_together_try_all(size, parts, by_seed):
    cases = list(range(size))
    seen = [by_seed(seed, lambda: draw.drawn(cases, parts)) for seed in range(200)]
    assert set().union(*seen) == set(cases)
    assert all(1 <= len(found) <= -(-size // min(parts, size)) for found in seen)
    assert by_seed(7, lambda: draw.drawn(cases, parts)) == seen[7]


def test_a_budget_holds_however_many_there_are(by_seed):
    for size in (0, 1, 5, 400):
        found = by_seed(3, lambda size=size: draw.few(range(size), 5))
        assert min(size, 1) <= len(found) <= 5


def test_the_long_form_tries_all(monkeypatch):
    monkeypatch.setattr(draw, "FULL", True)
    assert draw.drawn(range(9), 4) == list(range(9)) == draw.few(range(9), 2)
