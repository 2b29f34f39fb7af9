# SPDX-License-Identifier: Apache-2.0
"""Prints what the tests of ATen's overloads have counted, behind every run, whatever its options."""

from __future__ import annotations

import pytest

_REPORT = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_REPORT] = []


@pytest.fixture
def report(request: pytest.FixtureRequest) -> list[str]:
    """Lines to be printed at the end."""
    return request.config.stash[_REPORT]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In one of several processes (pytest-xdist): the lines go to the one that prints them."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["aten"] = session.config.stash[_REPORT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error) -> None:
    node.config.stash[_REPORT] += getattr(node, "workeroutput", {}).get("aten", [])


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    if lines := config.stash[_REPORT]:
        terminalreporter.section("ATen's overloads")
        for line in lines:
            terminalreporter.write_line(line)
