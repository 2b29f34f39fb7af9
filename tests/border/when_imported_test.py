# SPDX-License-Identifier: Apache-2.0
"""anyop._when_imported: an action runs behind the import of a module, once, and not where somebody only asks for it."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import pytest
from anyop._when_imported import when_imported


@pytest.fixture
def told(request, tmp_path, monkeypatch):
    """A module that is there, its name, and what actions were given."""
    name = f"watched_{request.node.name}"
    (tmp_path / f"{name}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name, (given := [])
    assert all(module.value == 1 for _, module in given)
    sys.modules.pop(name, None)


def test_every_action_runs_once_behind_the_import(told):
    name, given = told
    for number in range(2):
        when_imported(name, lambda module, number=number: given.append((number, module)))
    assert importlib.util.find_spec(name) and not given
    assert importlib.import_module(name) is sys.modules[name]
    assert [number for number, _ in given] == [0, 1]
    when_imported(name, lambda module: given.append((2, module)))
    importlib.reload(sys.modules[name])
    assert [number for number, _ in given] == [0, 1, 2]


def test_an_import_that_fails_is_none(told, tmp_path):
    name, given = told
    when_imported(name, lambda module: given.append((0, module)))
    file = tmp_path / f"{name}.py"
    file.write_text("raise RuntimeError('not yet')\n")
    with pytest.raises(RuntimeError, match="not yet"):
        importlib.import_module(name)
    assert not given
    file.write_text("value = 1  # now it is\n")
    importlib.import_module(name)
    assert len(given) == 1


def test_a_module_that_is_not_there():
    when_imported("watched_and_absent", lambda module: None)
    assert importlib.util.find_spec("watched_and_absent") is None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("watched_and_absent")
