# SPDX-License-Identifier: Apache-2.0
"""Every overload of ATen that can be given arguments, from every framework, against torch: results, arguments, memory.

ANYOP_TEST_FULL=1 tries all overloads from all frameworks, and float32 replaced by bfloat16, complex64, int64 and bool.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
sys.path.insert(0, str(Path(__file__).parent))

import oracle
import run
from anyop import aten
from drawn import drawn

if oracle.version() < (2, 10):
    reason = "found.txt was vetted on torch 2.11 and 2.13; 2.9's own mvlgamma_ of integers ends the process"
    pytest.skip(reason, allow_module_level=True)

FULL = bool(os.environ.get("ANYOP_TEST_FULL"))
GROUPS = 100
# One overload in so many, drawn by the commit; in full runs each.
STEPS = {"NumPy": 4, "JAX": 8, "torch": 10, "Paddle": 10}
MODULES = {"NumPy": "numpy", "JAX": "jax", "torch": "torch", "Paddle": "paddle"}
INSTALLED = [name for name, module in MODULES.items() if importlib.util.find_spec(module)]
NAMES = [*oracle.overloads()]
CHOSEN = {framework: {*drawn(NAMES, step, framework)} for framework, step in STEPS.items()}

OTHERS = {  # kernels of other devices, sparse tensors, oneDNN's, fp8 matrices
    "_conv_depthwise2d",
    "_scaled_mm",
    "batch_norm_elemt",
    "cudnn_convolution",
    "hspmm",
    "mkldnn_adaptive_avg_pool2d",
    "sparse_sampled_addmm",
    "sspaddmm",
}


def groups() -> list[list[str]]:
    """Overloads in alphabetical order, those of a name together."""
    bases = sorted({overload.base for overload in oracle.overloads().values()})
    group = {base: number * GROUPS // len(bases) for number, base in enumerate(bases)}
    found: list[list[str]] = [[] for _ in range(GROUPS)]
    for name, overload in oracle.overloads().items():
        found[group[overload.base]].append(name)
    return found


def label(names: list[str]) -> str:
    return f"{names[0].partition('.')[0]}-{names[-1].partition('.')[0]}"


def tried(framework: str) -> dict[str, run.Outcome]:
    """What came of the overloads of one framework's run."""
    return {name: run.outcome(framework, name, FULL) for name in NAMES if name in CHOSEN[framework]}


@pytest.mark.parametrize("names", groups(), ids=label)
def test_overloads(names):
    """A part of them from each framework; the whole is counted below."""
    failures = [
        f"{framework}: {outcome.why}"
        for framework in INSTALLED
        for name in names
        if name in CHOSEN[framework]
        and (outcome := run.outcome(framework, name, FULL)).state == "failed"
    ]
    if failures:
        pytest.fail(f"{len(failures)} overloads fail:\n" + "\n".join(failures[:10]), pytrace=False)


@pytest.mark.parametrize("framework", INSTALLED)
def test_counts(framework, report):
    """Enough overloads have been compared, and for each of the others there is a reason."""
    outcomes = tried(framework)
    states = Counter(outcome.state for outcome in outcomes.values())
    number = sum(outcome.calls for outcome in outcomes.values())
    close = sum(outcome.close for outcome in outcomes.values())
    report.append(
        f"{framework}: {len(outcomes):,} overloads of torch {oracle.torch.__version__}, {number:,} calls: "
        + ", ".join(f"{count:,} {state}" for state, count in states.most_common())
        + f"; {close} results are not the same bits"
    )
    right = states["values"] + states["refused"]
    assert right >= least(framework) * len(outcomes), states
    assert not [n for n, outcome in outcomes.items() if outcome.why == "no arguments known"]


def least(framework: str) -> float:
    """The share of overloads that must have been right; of a sample a little less than of all."""
    if not run.has_glue():
        return 0.6
    of_all = 0.83 if oracle.version() >= (2, 13) else 0.8  # 2.13 has no names of dimensions
    return of_all if FULL else of_all - 0.05


def test_what_is_not_tried(report):
    """The list of overloads without arguments, with reasons, and of those without values."""
    outcomes = tried("NumPy")
    reasons: dict[str, list[str]] = {}
    for name, outcome in outcomes.items():
        if outcome.state == "untestable":
            reasons.setdefault(outcome.why, []).append(name)
        elif outcome.state != "values":
            reasons.setdefault(f"tried, {outcome.state}", []).append(name)
    for why, names in sorted(reasons.items(), key=lambda item: -len(item[1])):
        report.append(f"{len(names)} {why}: {' '.join(names)}")
    assert "" not in reasons and sum(map(len, reasons.values())) < 0.2 * len(outcomes)


def test_names_of_infiniops():
    """What InfiniOps wraps one by one (scripts/torch_ops.yaml of its repository) is all here."""
    lines = (Path(__file__).parent / "infiniops_names.txt").read_text().splitlines()
    names = " ".join(line for line in lines if not line.startswith("#")).split()
    assert len(names) > 540 and {*names} <= {*dir(aten)}
    assert all(callable(getattr(aten, name)) for name in names)
    outcomes = tried("NumPy")
    right = {oracle.overloads()[n].base for n, o in outcomes.items() if o.state == "values"}
    left = {oracle.overloads()[n].base for n in NAMES if n not in outcomes}  # some were not drawn
    # And what only makes memory.
    assert {*names} - right - left <= OTHERS | {"empty"}
