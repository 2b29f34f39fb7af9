# SPDX-License-Identifier: Apache-2.0
"""For all tests: refuses another build than ANYOP_TEST_PACKAGE names; prints what tests cost and whose they are.

Costs are CPU seconds of the test's process and of the processes that it waited for, prepared ones too, so that a busy
machine does not change them.
"""

from __future__ import annotations

import gc
import itertools
import os
import random
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

# Threads of torch, Paddle and OpenBLAS that have nothing to do sleep at once: those of several processes of tests would
# spin on each other's processors, for most of the time of many tests. Read when these are loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # 2**4 ticks of the clock, the least

sys.path.insert(0, str(Path(__file__).parent / "tests" / "shared"))
# What lies beside an operator's test can be imported, as under `anyop test`.
sys.path += map(str, (Path(__file__).parent / "ops").iterdir())
import prepared
from drawn import FULL, drawn, part
from order import long_first

LEAST_OPERATORS = 10  # that a function of tests has, from which on it is drawn
PARTS = 8  # of which one is tried, of such a function;
MOST_OPERATORS = 16  # or so of more than 128, however many there are,
MOST_CASES = 80  # with a part of their dtypes
BUDGET_S = 2  # of CPU time, for an operator through all frameworks; printed, never asserted
# What the processes of tests would build one after the other, and wait for.
FIRST_BUILD = "import torch; from anyop.native.glues import aten_glue; aten_glue.load()"
_CLOCK = pytest.StashKey[float]()
_BUILD = pytest.StashKey[subprocess.Popen]()
_costs: Counter = Counter()  # CPU seconds by test
_shares: Counter = Counter()  # by operator


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False  # the order is that of order.py
    expected = os.environ.get("ANYOP_TEST_PACKAGE")
    if not expected:
        return
    from anyop import _anyop

    found = os.path.dirname(os.path.realpath(_anyop.__file__))
    if found != os.path.realpath(expected):
        raise RuntimeError(f"these tests are for {expected}, but Python found {found}")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Where several processes run all tests, this one builds meanwhile what they need first."""
    config = session.config
    spread = (
        getattr(config.option, "numprocesses", None) and "PYTEST_XDIST_WORKER" not in os.environ
    )
    if spread and config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        config.stash[_BUILD] = subprocess.Popen(
            [sys.executable, "-c", FIRST_BUILD],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _BUILD in session.config.stash:
        session.config.stash[_BUILD].wait()


def cpu_seconds() -> float:
    return sum(os.times()[:4]) + prepared.cpu_seconds()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """A test draws the same numbers whichever tests ran before it: which ones do differs from run to run."""
    random.seed(0)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is imported stays, millions of objects: gc need not look at them, now or later.

    A gc.collect() in a test looked at all of them, and took a second.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None):
    item.config.stash[_CLOCK] = cpu_seconds()
    result = yield
    if nextitem is not None and nextitem.path != item.path and gc.get_count()[2] > 0:
        gc.collect()
        gc.freeze()
    return result


def operator_of(item: pytest.Item) -> str | None:
    """The operator that a test is written for: one of its parameters is it, or its name."""
    given = getattr(item, "callspec", None)
    if given is None or "anyop" not in sys.modules:
        return None
    known = sys.modules["anyop"].list_ops("anyop")
    names = [getattr(value, "name", value) for value in given.params.values()]
    return next((name for name in names if isinstance(name, str) and name in known), None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of the standard tests of every operator one part, by the commit, so that their time stays what it is.

    Functions that are tried with ten operators or more are meant, and what is marked as drawn. Whoever names tests (-k,
    ::) gets all of them.
    """
    if not (FULL or config.option.keyword or any("::" in argument for argument in config.args)):
        left = marked_left(items) | together_left(items) | operators_left(items)
        if left:
            items[:] = [item for item in items if item not in left]
            config.hook.pytest_deselected(items=list(left))
    if "PYTEST_XDIST_WORKER" in os.environ:
        long_first(items)


def marked_left(items: list[pytest.Item]) -> set[pytest.Item]:
    """drawn(parts, group): of the cases of a function, or of a group of tests, all but one part."""
    groups: dict[str, list[pytest.Item]] = defaultdict(list)
    parts = {}
    for item in items:
        mark = item.get_closest_marker("drawn")
        if mark and "together" not in mark.kwargs:
            name = mark.kwargs.get("group") or item.nodeid.partition("[")[0]
            groups[name].append(item)
            parts[name] = mark.args[0]
    for name, group in groups.items():
        group.sort(key=lambda item: item.nodeid)
        kept = set(drawn(group, parts[name], name))
        groups[name] = [item for item in group if item not in kept]
    return set(itertools.chain.from_iterable(groups.values()))


def together_left(items: list[pytest.Item]) -> set[pytest.Item]:
    """drawn(parts, together=name): the tests of one name have dear things in common; of such names all but one part."""
    names: dict[int, dict[str, set[pytest.Item]]] = defaultdict(lambda: defaultdict(set))
    for item in items:
        mark = item.get_closest_marker("drawn")
        if mark and "together" in mark.kwargs:
            names[mark.args[0]][mark.kwargs["together"]].add(item)
    left: set[pytest.Item] = set()
    for parts, tests in names.items():
        kept = drawn(sorted(tests), parts, "together")
        left = left.union(*(tests[name] for name in tests if name not in kept))
    return left


def operators_left(items: list[pytest.Item]) -> set[pytest.Item]:
    """Of functions that are tried with many operators, what is not drawn."""
    operators: dict[str, set[str]] = defaultdict(set)  # by function
    named = {}
    for item in items:
        if operator := operator_of(item):
            function = item.nodeid.partition("[")[0]
            named[item] = (function, operator)
            operators[function].add(operator)
    kept: dict[str, list[pytest.Item]] = defaultdict(list)
    for (function, operator), group in itertools.groupby(
        sorted(named, key=named.__getitem__), named.get
    ):
        own, there = list(group), len(operators[function])
        parts = max(PARTS, -(-there // MOST_OPERATORS))
        if there < LEAST_OPERATORS or "cuda_" in function:
            kept[""] += own
        elif len(own) > 1:  # its dtypes: at least one
            kept[function] += drawn(own, parts, function + operator)
        elif part(parts, function + operator) == 0:
            kept[function] += own
    chosen = set(kept.pop("", []))
    for function, own in kept.items():
        chosen.update(drawn(own, -(-len(own) // MOST_CASES), function))
    return {item for item in named if item not in chosen}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    before, item.config.stash[_CLOCK] = item.config.stash[_CLOCK], cpu_seconds()
    report.cpu_s = item.config.stash[_CLOCK] - before
    report.operator = operator_of(item)
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """In the process that prints; pytest-xdist brings the reports of others there."""
    _costs[report.nodeid] += getattr(report, "cpu_s", 0)
    if operator := getattr(report, "operator", None):
        _shares[operator] += report.cpu_s


def pytest_terminal_summary(terminalreporter) -> None:
    write = terminalreporter.write_line
    terminalreporter.section(f"CPU time: {_costs.total():.0f} s, the slowest twenty")
    for name, seconds in _costs.most_common(20):
        write(f"{seconds:8.1f} s  {name}")
    if not _shares:
        return
    terminalreporter.section(f"CPU time of operators: {_shares.total():.0f} s")
    texts = [f"{name} {s:.1f}{' !' if s > BUDGET_S else ''}" for name, s in _shares.most_common()]
    for at in range(0, len(texts), 4):
        write("".join(f"{text:<30}" for text in texts[at : at + 4]).rstrip())
    over = sum(s > BUDGET_S for s in _shares.values())
    write(f"{over} of {len(_shares)} above {BUDGET_S} s (!)")
