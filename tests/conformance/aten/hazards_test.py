# SPDX-License-Identifier: Apache-2.0
"""The hazards of hazards_*.py, each in a process of its own kind: a crash ends that process, not the tests."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

import prepared
import pytest

pytest.importorskip("torch", reason="torch is not installed")

HERE = Path(__file__).parent
MODULES = ("hazards_memory", "hazards_values", "hazards_state")
SECONDS = 240


def cases(module: str) -> list[str]:
    """Names of a module's cases, without running it."""
    tree = ast.parse((HERE / f"{module}.py").read_text())
    found = [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any(getattr(mark, "id", "") == "case" for mark in node.decorator_list)
    ]
    hosts = next(
        (n for n in tree.body if isinstance(n, ast.Assign) and n.targets[0].id == "HOSTS"), None
    )
    return found + [f"under_{key.value}" for key in (hosts.value.keys if hosts else [])]


def run(module: str, names: list[str]) -> tuple[dict[str, str], str]:
    """What became of each case; what the process said at its end."""
    command = [sys.executable, str(HERE / "hazards_case.py"), module, *names]
    process = prepared.run("torch", command, timeout=SECONDS)
    found: dict[str, str] = {}
    for line in process.stdout.splitlines():
        word, _, rest = line.partition(" ")
        name, _, why = rest.partition(": ")
        if word == "begin":
            found[name] = f"the process ended with {process.returncode}: {process.stderr[-1500:]}"
        elif word in ("right", "wrong"):
            found[name] = why or word
    return found, process.stderr


@cache
def outcomes(module: str) -> dict[str, str]:
    """All cases; after a crash the rest runs in a new process."""
    left, found = cases(module), {}
    while left:
        some, error = run(module, left)
        if not some:
            found |= dict.fromkeys(left, f"did not start: {error[-1500:]}")
        found |= some
        left = [name for name in left if name not in found]
    return found


@pytest.mark.parametrize(("module", "name"), [(m, n) for m in MODULES for n in cases(m)])
def test_hazard(module, name):
    if name == "jax_is_immutable":
        pytest.importorskip("jax", reason="JAX is not installed")
    assert outcomes(module)[name] == "right"


FIRST = """
import sys
sys.path.insert(0, {folder!r})
import torch
from hazards_state import fake_mode, right_calls
with fake_mode(), torch.device("meta"), torch.inference_mode():
    right_calls()
right_calls()
import anyop.aten
x = torch.ones(2, requires_grad=True)
assert anyop.aten.add(x, 1).requires_grad
"""


def test_the_first_use_may_be_under_modes():
    """Opening the table reads torch's registry and its tensors' layout; modes must not disturb that."""
    program = FIRST.format(folder=str(HERE))
    process = prepared.run("torch", [sys.executable, "-c", program])
    assert process.returncode == 0, process.stderr[-3000:]
