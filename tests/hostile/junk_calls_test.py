# SPDX-License-Identifier: Apache-2.0
"""Calls of every operator with junk for every argument: the right value or a documented error, from each framework.

ANYOP_TEST_FULL=1 draws more than 100,000 by the commit, so that runs together try all; in short the draw is always the
same, so that a change fails by its own fault; ANYOP_TEST_SEED draws others. Each runs in a process that may die.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import sys
import types
from functools import cache
from pathlib import Path

import anyop
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import junk_watch

# Further builds (tools/test_full.py names theirs by ANYOP_TEST_PACKAGE) run the slice of `make test`.
FULL = bool(os.environ.get("ANYOP_TEST_FULL")) and "ANYOP_TEST_PACKAGE" not in os.environ
COUNTS = {"numpy": 1500, "torch": 600, "jax": 120, "paddle": 360}
IN_FULL = {"numpy": 50_000, "torch": 30_000, "jax": 12_000, "paddle": 20_000}
NAMES = anyop.list_ops("anyop")
INSTALLED = [name for name in COUNTS if importlib.util.find_spec(name)]


@cache
def seed() -> str:
    """ANYOP_TEST_SEED, else the commit where all is tried, else one that is always the same."""
    if given := os.environ.get("ANYOP_TEST_SEED"):
        return given
    if not FULL:
        return "4"
    words = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "no-commit"


@cache
def outcome(framework: str) -> junk_watch.Outcome:
    """All calls of a framework, once."""
    return junk_watch.run_calls(framework, seed(), (IN_FULL if FULL else COUNTS)[framework])


def fail_with(framework: str, what: list[str]) -> None:
    if what:
        lines = "\n".join(what[:10])
        pytest.fail(f"ANYOP_TEST_SEED={seed()}, {framework}: {len(what)}\n{lines}", pytrace=False)


@pytest.mark.parametrize("framework", INSTALLED)
def test_nothing_dies_or_hangs(framework, report):
    found = outcome(framework)
    report.append(f"junk from {framework}, ANYOP_TEST_SEED={seed()}: {found.text()}")
    fail_with(framework, found.deaths + found.hangs)
    assert found.calls + found.unfit > 0.9 * COUNTS[framework]
    assert found.right > 0.02 * found.calls, "too few calls were good enough to have a value"


@pytest.mark.parametrize("framework", INSTALLED)
@pytest.mark.parametrize("name", [*NAMES, ""])
def test_values_and_texts(framework, name):
    """No wrong value, no written argument, no odd error; "" is what concerns no operator."""
    fail_with(
        framework,
        [
            f"{f['call']}\n    {f['what']}\n    again: python tests/hostile/junk_worker.py {framework} {seed()} "
            f"{f['position']}"
            for f in outcome(framework).faults
            if f["operator"] == name
        ],
    )


def test_what_torch_itself_does(report):
    """What the judge takes from torch.ops, torch's own operators do, too: it is none of anyop's doing."""
    torch = pytest.importorskip("torch")
    x, ops = torch.ones(2, 3), torch.ops.aten

    class Raises(int):
        def __getattr__(self, name):
            raise KeyboardInterrupt

    class Float(list):
        def __getattr__(self, name):
            return float

    def raising(method: str) -> object:
        def number(self):
            raise KeyboardInterrupt

        return type("Number", (), {method: number})()

    truth = ctypes.pointer(ctypes.c_float(1))
    assert ops.any.dim(x, 0, truth).ndim == 2, "whatever has a truth is a bool"
    assert ops.softmax.int(x, np.float32(1.5)).shape == (2, 3), "every number is an int"
    assert torch.equal(ops.clamp_min(x, Raises(2)), x + 1), "a KeyboardInterrupt is forgotten"
    with pytest.raises(RuntimeError, match=r"^Unknown keyword argument 'x$"):
        ops.sum.default(x, **{"x\0": 1})
    with pytest.raises(TypeError, match="float expected at most 1 argument, got 4"):
        ops.relu(Float())
    # These KeyboardInterrupts are forgotten, too.
    for method in ("__index__", "__float__"):
        with pytest.raises(RuntimeError, match=r"type 'Optional.float.' for argument 'eps'"):
            ops.rms_norm(x, [3], None, raising(method))
    with pytest.raises(RuntimeError, match=r"type 'Optional.int.' for argument 'dtype'"):
        ops.sum.default(x, dtype=raising("__int__"))
    assert ops.sum.default(x, dtype=True).dtype == torch.int8, "a number is a dtype"
    assert torch.equal(ops.gelu(x, approximate=b"none"), ops.gelu(x)), "bytes are a str"
    with pytest.raises(RuntimeError, match="Unable to cast Python instance of type <class 'str'>"):
        ops.gelu(x, **{"\ud800": 1})
    with torch.inference_mode():
        inference = torch.ones(3)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        ops.mul.Tensor(inference, torch.ones(3, requires_grad=True))
    report.append(
        "junk from torch.ops: its conversions and lost exceptions are torch's, shown by aten"
    )


@pytest.mark.parametrize(("offset", "dtype"), [(1024.0, "float16"), (2.0**31, "bfloat16")])
def test_the_reference_takes_the_rounded_sum(offset, dtype):
    """x + residual is rounded, then normalised; a large weight_offset makes of that more than any tolerance."""
    import junk_judge
    import ml_dtypes  # noqa: F401  bfloat16
    from anyop import testing

    subject = next(
        s
        for s in testing.find_subjects(Path(__file__).parents[2] / "ops")
        if s.name == "fused_add_layer_norm"
    )
    random, far = np.random.default_rng(0), 0
    tolerance = subject.metadata["tolerance"][dtype]
    for _ in range(40):
        plain = {n: random.uniform(-2, 2, (3, 33)).astype(dtype) for n in ("x", "residual")}
        plain["weight_offset"] = offset
        with np.errstate(all="ignore"):
            out, total = anyop.fused_add_layer_norm(**plain)
            unrounded = subject.reference(
                *(v.astype("f8") for v in list(plain.values())[:2]), None, None, 1e-5, offset
            )
        draft = types.SimpleNamespace(subject=subject, case=None)
        expected = junk_judge._reference(draft, plain)
        assert junk_judge._far(out, expected[0], tolerance) is None
        assert junk_judge._far(total, expected[1], 0.0) is None
        far += junk_judge._far(out, unrounded[0], tolerance) is not None
    assert far, "the sums of these rows need no rounding"


def test_what_the_judge_asks_changes_nothing():
    """isinstance asks a result for its __class__, whose code may change the results beside it."""
    import junk_judge
    import junk_objects
    import junk_worker

    calls = junk_worker.Calls("numpy", "asked")
    drafts = (calls.draft(position) for position in range(2000))
    draft = next(draft for draft in drafts if draft and junk_judge.judge(draft) == "right")
    draft.action, draft.arguments["x"] = "change", np.ones((2, 3))
    junk_objects._behave(draft, None, None, "__class__", [])
    assert draft.arguments["x"].shape == (2, 3)


SABOTAGE = """
import sys
sys.path.insert(0, {folder!r})
import junk_judge, junk_worker, numpy as np
calls = junk_worker.Calls("numpy", "sabotage")
kinds = set()
for position in range(600):
    draft = calls.draft(position)
    if draft is None:
        continue
    function = draft.subject.function
    def broken(*args, _function=function, **kwargs):
        {body}
    draft.bridge.entry = lambda draft: broken
    try:
        junk_judge.judge(draft)
    except junk_judge.Fault as fault:
        kinds.add(str(fault))
print(*kinds, sep="\\n")
"""

BROKEN = {
    "wrong values": (
        "found = _function(*args, **kwargs)\n"
        "        return found + 1 if isinstance(found, np.ndarray) and found.dtype.kind == 'f' else found",
        "from NumPy",
    ),
    "takes everything": (
        "try:\n            return _function(*args, **kwargs)\n"
        "        except Exception:\n            return np.zeros(1)",
        "stands for nothing",
    ),
    "no names in texts": (
        "try:\n            return _function(*args, **kwargs)\n"
        "        except ValueError:\n            raise ValueError('bad') from None",
        "does not begin with the operator",
    ),
    "writes an argument": (
        "for value in args:\n            if type(value) is np.ndarray and value.size and value.flags.writeable:\n"
        "                value.view(np.uint8).reshape(-1)[0] ^= 1\n"
        "        return _function(*args, **kwargs)",
        "an argument was changed",
    ),
    "an internal error": (
        "try:\n            return _function(*args, **kwargs)\n"
        "        except TypeError:\n            raise SystemError('bad') from None",
        "raised builtins.SystemError",
    ),
}


@pytest.mark.drawn(2)
@pytest.mark.parametrize("broken", BROKEN)
def test_the_judge_sees_faults(broken):
    """An operator that is broken on purpose is found out."""
    body, says = BROKEN[broken]
    program = SABOTAGE.format(folder=str(Path(__file__).parent), body=body)
    words = [sys.executable, "-c", program]
    process = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert says in process.stdout, process.stdout[-2000:] + process.stderr[-2000:]


def test_huge_terms_may_cancel_in_all_of_a_result():
    """In rows of two, layer_norm's gradient is what rounding leaves of grad_out * (weight + weight_offset)."""
    import junk_judge
    from anyop import testing

    subjects = testing.find_subjects(Path(__file__).parents[2] / "ops")
    subject = next(s for s in subjects if s.name == "layer_norm_backward")
    random, far = np.random.default_rng(0), 0
    for _ in range(40):
        plain = {n: random.uniform(-2, 2, (3, 2)).astype("f4") for n in ("grad_out", "x")}
        plain |= {"weight": random.uniform(-2, 2, 2).astype("f4"), "weight_offset": 2.0**31}
        found = anyop.layer_norm_backward(**plain)[0]
        draft = types.SimpleNamespace(subject=subject, case=None)
        expected = junk_judge._reference(draft, plain)[0]
        terms = junk_judge._terms(subject, plain)
        tolerance = subject.metadata["tolerance"]["float32"]
        assert junk_judge._far(found, expected, tolerance, terms) is None
        assert junk_judge._far(found + terms * 1e-5, expected, tolerance, terms)
        far += junk_judge._far(found, expected, tolerance) is not None
    assert far, "nothing cancels in these rows"


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    "what", ["os.abort()", "os.kill(os.getpid(), 9)", "time.sleep(100)", "while True: pass"]
)
def test_deaths_and_hangs_are_named(what, tmp_path, monkeypatch):
    """A process that dies or stands still in a call is noticed, with that call's name, and the next call is made."""
    import junk_worker

    calls = junk_worker.Calls("numpy", "death")
    number = next(n for n in range(3, 10) if calls.draft(n))  # the junk of others does not fit
    program = f"""
import os, sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
import junk_worker
sys.argv[1:3] = ["numpy", "death"]
label = junk_worker.Calls("numpy", "death").label({number})
def judge(draft):
    if draft.notes[0] == label:
        {what}
    return "refused"
import junk_judge
junk_judge.judge = judge
junk_worker.main()
"""
    (tmp_path / "junk_worker.py").write_text(program)
    monkeypatch.setattr(junk_watch, "CPU_SECONDS", 1)
    monkeypatch.setattr(junk_watch, "WALL_SECONDS", 8)
    monkeypatch.setattr(junk_watch, "HERE", tmp_path)
    found = junk_watch.run_calls("numpy", "death", 10)
    named = found.deaths + found.hangs
    hangs = "sleep" in what or "while" in what
    assert (len(found.deaths), len(found.hangs)) == ((0, 1) if hangs else (1, 0)), found
    assert found.calls + found.unfit == 10 and f"death {number}" in named[0], found
