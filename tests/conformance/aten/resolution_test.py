# SPDX-License-Identifier: Apache-2.0
"""Which overload a call takes: torch's own answer, or both refuse, for thousands of generated calls."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import anyop.aten  # noqa: E402
from resolution_calls import Call, Maker, names_of_several  # noqa: E402
from resolution_strict import is_widened, odd_values  # noqa: E402

PER_OVERLOAD = 60 if os.environ.get("ANYOP_TEST_FULL") else 8


def torchs_answer(name: str, call: Call) -> str | None:
    """The overload that torch.ops.aten.<name> takes; None: it refuses."""
    args, kwargs = call.values("torch")
    try:
        overload = torch._C._jit_resolve_packet(f"aten::{name}", *args, **kwargs)
    except (RuntimeError, TypeError, ValueError, OverflowError):
        return None
    return f"{name}.{overload}" if overload not in ("", "default") else name


def our_answer(name: str, call: Call, of: str) -> str | None:
    try:
        return anyop.aten.resolve(name, *call.values(of)[0], **call.values(of)[1])
    except (TypeError, ValueError, OverflowError, NotImplementedError):
        return None


def odd(full: str, call: Call) -> list:
    """What in a call fits an overload's schema not to the letter."""
    name, _, overload = full.partition(".")
    return odd_values(torch._C._get_schema(f"aten::{name}", overload), *call.values("torch"))


def verdict(expected: str | None, found: str | None, call: Call, ours: set[str]) -> str:
    if expected is not None and expected not in ours:
        return "TorchScript's own, refused" if found is None else "wrong: TorchScript's own, taken"
    if expected == found:
        return "both refuse" if found is None else "the same overload"
    if expected is None:
        widened = any(is_widened(*one) for one in odd(found, call))
        return (
            "a number for SymInt[N], a seed, an array of sizes: taken"
            if widened
            else "wrong: taken, torch refuses"
        )
    if found is None:
        loose = odd(expected, call)
        return "not to the letter, refused" if loose else "wrong: refused, torch takes"
    if len(odd(found, call)) < len(odd(expected, call)):
        return "not to the letter, another that fits better"
    return "wrong: another overload"


def compare(per_overload: int) -> tuple[Counter, dict[str, list[str]]]:
    counts, examples = Counter(), {}
    for name in names_of_several():
        ours = {name if o in ("", "default") else f"{name}.{o}" for o in overloads(name)}
        for call in Maker(name).calls(per_overload):
            for of in ("torch", "numpy"):
                expected, found = torchs_answer(name, call), our_answer(name, call, of)
                said = verdict(expected, found, call, ours)
                counts[said] += 1
                text = f"{name}({call}) [{of}]: torch {expected}, anyop {found}"
                examples.setdefault(said, []).append(text)
    return counts, examples


def overloads(name: str) -> list[str]:
    return [full.partition(".")[2] for full in anyop.aten.overloads(name)]


def test_the_overload_is_torchs(report):
    counts, examples = compare(PER_OVERLOAD)
    total = f"{sum(counts.values()):,} calls of {len(names_of_several()):,} names resolved"
    report.append(f"{total}: " + "; ".join(f"{n:,} {said}" for said, n in counts.most_common()))
    wrong = [text for said in examples if said.startswith("wrong") for text in examples[said]]
    assert not wrong, f"{len(wrong)} wrong:\n" + "\n".join(wrong[:40])
    assert counts["the same overload"] > 15_000 and counts["both refuse"] > 10_000
    loose = counts["not to the letter, refused"]
    loose += counts["not to the letter, another that fits better"]
    assert loose < 0.02 * sum(counts.values())
