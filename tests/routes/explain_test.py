# SPDX-License-Identifier: Apache-2.0
"""anyop.explain says what runs: 1,000 random calls under random routes, scopes and spies, each explained, then made.

With a CUDA device that torch can use, half of the calls are on it.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path

import anyop
import numpy as np
import pytest
from anyop import testing
from anyop._load import core
from drawn import FULL

pytest.importorskip("ml_dtypes", reason="bfloat16 and float8 in NumPy are ml_dtypes arrays")

SUBJECTS = list(testing.find_subjects(Path(__file__).parents[2] / "ops"))
SPIES = ("spy_a", "spy_b", "spy_c")
DRAWS = 1000 if FULL else 200


def cuda():
    """torch, where it has a CUDA device."""
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


@cache
def cases(name: str, at: int) -> list[testing.Case]:
    subject = next(subject for subject in SUBJECTS if subject.name == name)
    return testing.good_cases(subject, testing.dtype_choices(subject.metadata)[at])


def conditions(draw: random.Random, subject: testing.Subject) -> str:
    """Words that the operator understands: some hold, some do not."""
    words = []
    if draw.random() < 0.5:
        words.append(f"dtype={draw.choice(['float32', 'float16|bfloat16', 'float64', 'int64'])}")
    sizes = subject.metadata["symbols"]["sizes"]
    if sizes and draw.random() < 0.6:
        sign = draw.choice(["<", "<=", ">", ">=", "=", "!="])
        words.append(f"{draw.choice(sizes)}{sign}{draw.choice([0, 1, 8, 64, 128])}")
    tensors = [p["name"] for p in subject.inputs if p["kind"] == "Tensor" and not p["list"]]
    if tensors and draw.random() < 0.3:
        tensor = draw.choice(tensors)
        words.append(
            draw.choice([f"contiguous({tensor})=1", f"rank({tensor})<2", f"numel({tensor})%2=0"])
        )
    return " ".join(words)


def spy(draw: random.Random, subject: testing.Subject, name: str) -> None:
    """An implementation that only says that it ran: its calls are counted by the router."""
    when, missing = conditions(draw, subject), draw.random() < 0.15

    def resolve():
        return "is away" if missing else lambda values, device_type, device_id, stream: None

    device = draw.choice([0, 1, 2])
    priority = draw.choice([-200, -1, 3])
    core.register_python(
        subject.name,
        name,
        name,
        "spy",
        when or None,
        device,
        priority,
        draw.random() < 0.5,
        resolve,
    )


def routes(draw: random.Random, subject: testing.Subject) -> str:
    """A route file about the operator."""
    lines = []
    for _ in range(draw.randrange(3)):
        when = conditions(draw, subject)
        lines.append(f"[when {when}]" if when else "[always]")
        pattern = draw.choice([subject.name, "*", subject.name[:3] + "*"])
        names = draw.sample([*SPIES, "cpu", "aten"], draw.randrange(1, 4))
        lines.append(f"{pattern} = {', '.join(names)}")
    return "\n".join(lines) + "\n"


def arguments(draw: random.Random, subject: testing.Subject) -> dict:
    at = draw.randrange(len(testing.dtype_choices(subject.metadata)))
    given = testing.build(subject, draw.choice(cases(subject.name, at))).arguments
    torch = cuda()
    if torch is None or draw.random() < 0.5:
        return given

    def moved(value):
        if isinstance(value, list):
            return [moved(item) for item in value]
        if not isinstance(value, np.ndarray):
            return value
        plain = value.copy()
        if plain.dtype.kind == "V" or plain.dtype.name == "bfloat16":
            return torch.from_numpy(plain.view(np.uint16)).view(torch.bfloat16).cuda()
        return torch.from_numpy(plain).cuda()

    return {name: moved(value) for name, value in given.items()}


def ran(name: str, before: dict[str, int]) -> list[str]:
    now = {found.backend: found.calls for found in testing.kernel_calls(name)}
    return [backend for backend, calls in now.items() if calls > before.get(backend, 0)]


def test_what_is_explained_is_what_runs(tmp_path, monkeypatch, capfd):
    draw, seen, refused = random.Random(7), Counter(), 0
    for name in SPIES:  # so that rules may name them when the operator has them not
        core.register_python("relu", name, f"{name}_far", "spy", None, 10, -500, False, lambda: "")
    fit = [
        s
        for s in SUBJECTS
        if not any("float8" in str(c) for c in testing.dtype_choices(s.metadata))
    ]
    assert len(fit) >= 20
    file = tmp_path / "routes.txt"
    try:
        for _ in range(DRAWS):
            subject = draw.choice(fit)
            testing.observe(subject.name)
            for name in SPIES:
                if draw.random() < 0.5:
                    spy(draw, subject, name)
                else:
                    remove(subject.name, name)
            file.write_text(routes(draw, subject))
            try:
                anyop.load_routes(file)
            except ValueError as error:  # a name that this operator has not
                assert "has no backend" in str(error) or "fits" in str(error), error
                refused += 1
                continue
            anyop.use_deterministic(draw.random() < 0.1)
            given = arguments(draw, subject)
            scope = draw.choice([None, None, draw.choice([*SPIES, "aten", "cpu"])])
            with anyop.use(scope) if scope else nullcontext():
                found = anyop.explain(subject.name, **given)
                before = {k.backend: k.calls for k in testing.kernel_calls(subject.name)}
                with np.errstate(all="ignore"):
                    try:
                        subject.function(**given)
                    except NotImplementedError as error:
                        assert found.chosen is None and "has no kernel" in str(error), (
                            found,
                            error,
                        )
                        seen["nothing"] += 1
                        continue
            assert ran(subject.name, before) == [found.chosen], (found, given)
            whys = {c["name"]: c["why_not"] for c in found.candidates}
            assert whys.pop(found.chosen) == "" and all(whys.values()), found
            seen[found.chosen] += 1
    finally:
        anyop.load_routes(None)
        anyop.use_deterministic(False)
        for subject in SUBJECTS:
            for name in SPIES:
                remove(subject.name, name)
    assert refused < DRAWS / 3 and seen.total() == DRAWS - refused
    assert set(seen) >= {*SPIES, "cpu", "aten"}, seen
    assert min(seen[name] for name in (*SPIES, "cpu", "aten")) >= (5 if FULL else 3), seen
    print(json.dumps(seen))


def test_a_number_is_the_tensor_that_a_call_makes_of_it():
    x = np.ones((2, 3), np.float32)
    assert str(anyop.explain("mul", x, 2.0)) == str(anyop.explain("mul", x, x))
    assert str(anyop.explain("mul", y=2.0, x=x)).startswith("mul on cpu:0: cpu")
    with pytest.raises(TypeError, match="y is a str, expected a tensor"):
        anyop.explain("mul", x, "2")


def remove(op: str, name: str) -> None:
    with suppress(ValueError):  # it is not there
        core.unregister(op, name)
