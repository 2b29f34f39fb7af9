# SPDX-License-Identifier: Apache-2.0
"""order.py names files that are there, and sorts by them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from order import SECONDS, SECONDS_A_TEST, long_first


def test_files_that_take_long_are_there():
    root = Path(__file__).parents[2]
    assert [name for name in SECONDS if not (root / name).is_file()] == []


def test_long_files_come_first_and_stay_whole():
    named = max(SECONDS, key=SECONDS.get)
    many = int(SECONDS[named] / SECONDS_A_TEST) + 1
    names = ["a_test.py::one", f"{named}::b", "a_test.py::two", f"{named}::a", "z_test.py::x"]
    items = [SimpleNamespace(nodeid=name) for name in names]
    long_first(items)
    assert [item.nodeid for item in items] == [names[k] for k in (1, 3, 0, 2, 4)]
    items += [SimpleNamespace(nodeid=f"z_test.py::{k}") for k in range(many)]
    long_first(items)
    assert [item.nodeid.partition("::")[0] for item in items][many + 1 :] == [
        named, named, "a_test.py", "a_test.py"
    ]  # fmt: skip
