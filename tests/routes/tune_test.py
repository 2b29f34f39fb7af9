# SPDX-License-Identifier: Apache-2.0
"""anyop tune: the fastest right implementation is found, wrong ones never are, and the router does what was meant.

Backends of the tests are Python functions whose speed is known: they say how long they slept.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time

import anyop
import numpy as np
import pytest
from anyop import tune
from anyop._load import core
from anyop.tune import run as tune_run
from anyop.tune.candidates import Candidate
from anyop.tune.choice import Measured, Rule, Term, choose, chosen_rule
from anyop.tune.proof import better_rules
from anyop.tune.run import Settings
from anyop.tune.stated_kinds import given_shapes
from anyop.tune.workload import Kind


class Clock:
    """The CPU time of this process and what backends slept: how busy the machine is changes neither."""

    slept_ns = 0
    monotonic = staticmethod(time.monotonic)

    def perf_counter_ns(self):
        return time.process_time_ns() + self.slept_ns

    def sleep(self, seconds):
        self.slept_ns += round(seconds * 1e9)


CLOCK = Clock()


@pytest.fixture(autouse=True)
def no_routes(monkeypatch):
    monkeypatch.setattr("anyop.tune.clock.time", CLOCK)
    monkeypatch.setattr(tune_run, "_load", str)  # that others run here is no claim of these tests
    yield
    anyop.load_routes(None)


def numbers(view) -> np.ndarray:
    return np.asarray(view)


def right(values) -> None:
    x, weight, eps, out = numbers(values[0]), numbers(values[1]), values[2], numbers(values[-1])
    wide = x.astype(np.float64)
    out[...] = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + eps) * weight


@pytest.fixture
def backend():
    """Registers rms_norm's backends for a test: backend(name, run, priority)."""
    made = []

    def register(name, run, priority=-10, when=None):
        def kernel(values, device_type, device_id, stream):
            run(values)

        core.register_python(
            "rms_norm", name, name, "test", when, 1, priority, True, lambda: kernel
        )
        made.append(name)

    yield register
    for name in made:
        core.unregister("rms_norm", name)


MEASURED = pytest.mark.drawn(3, group="calls that are measured")


def sleeping(seconds, where=lambda D: True):
    def run(values):
        right(values)
        if where(values[0].shape[-1]):
            CLOCK.sleep(seconds)

    return run


def tuned(tmp_path, shapes, backends=("*",), counts=()):
    """Tunes, and returns what came of it, the file's text and all notes."""
    kinds = [given_shapes(text, "cpu") for text in shapes]
    for kind, count in zip(kinds, counts):
        kind.count = count
    notes = []
    settings = Settings(str(tmp_path / "routes.txt"), backends, 0.02, sources=shapes)
    found = tune.tune(kinds, settings, lambda event: notes.append(event.get("note", "")))
    return found, (tmp_path / "routes.txt").read_text(), "\n".join(filter(None, notes))


def runs(D, rows=2):
    x = np.ones((rows, D), np.float32)
    return anyop.explain("rms_norm", x, x[0]).chosen


# ---- from calls to a file ----


@MEASURED
def test_a_slow_default_is_replaced(tmp_path, backend):
    backend("slow", sleeping(0.002), priority=10)
    assert runs(8) == "slow"
    found, text, notes = tuned(tmp_path, ["rms_norm: rows=2 D=8"], ("slow", "cpu"))
    assert "rms_norm = cpu, slow" in text and not notes
    assert found.totals["tuned"] < min(found.totals["default"], found.totals["slow"])
    assert min(found.totals["default"], found.totals["slow"]) > 0.002e9
    anyop.load_routes(tmp_path / "routes.txt")
    assert runs(8) == runs(4096) == "cpu"


@MEASURED
def test_a_wrong_backend_and_one_that_raises_are_never_chosen(tmp_path, backend):
    def wrong(values):
        right(values)
        numbers(values[-1])[0, 3] += 0.001

    def raising(values):
        raise RuntimeError("no luck today")

    backend("slow", sleeping(0.001), priority=10)
    backend("wrong", wrong)
    backend("raising", raising)
    found, text, notes = tuned(tmp_path, ["rms_norm: rows=2 D=8"], ("slow", "wrong", "raising"))
    assert "\nrms_norm =" not in text and "the default stays" in text
    assert "wrong is excluded" in notes and "out is off by" in notes
    assert "raising is excluded" in notes and "no luck today" in notes
    assert found.missing.keys() == {"wrong", "raising"}


@MEASURED
def test_a_wrong_default_is_left_even_for_what_is_slower(tmp_path, backend):
    backend("wrong", lambda values: numbers(values[-1]).fill(7.0), priority=10)
    backend("slow", sleeping(0.001))
    _, text, notes = tuned(tmp_path, ["rms_norm: rows=2 D=8"], ("slow", "wrong"))
    assert "\nrms_norm = slow\n" in text and "wrong is excluded" in notes


@MEASURED
def test_what_is_faster_at_some_sizes_gets_those(tmp_path, backend):
    backend("small", sleeping(0.002, lambda D: D > 100), priority=10)
    backend("large", sleeping(0.002, lambda D: D <= 100))
    shapes = [f"rms_norm: rows=2 D={D}" for D in (4, 16, 1000)]
    found, text, _ = tuned(tmp_path, shapes, ("small", "large"))
    assert "[when device=cpu D>128]\nrms_norm = large, small\n" in text
    assert found.totals["tuned"] < 0.6 * min(found.totals["small"], found.totals["large"])
    anyop.load_routes(tmp_path / "routes.txt")
    assert [runs(D) for D in (1, 128, 129, 5000)] == ["small", "small", "large", "large"]


@MEASURED
def test_conditions_of_backends_are_respected(tmp_path, backend):
    backend("slow", sleeping(0.001), priority=10)
    backend("quick", right, when="D<=64")
    _, text, _ = tuned(
        tmp_path, ["rms_norm: rows=2 D=8", "rms_norm: rows=2 D=99"], ("slow", "quick")
    )
    assert "not quick: takes D<=64, and D is 99" in text and "rms_norm = quick, slow" in text
    anyop.load_routes(tmp_path / "routes.txt")
    assert (runs(8), runs(99)) == ("quick", "slow")


@MEASURED
def test_a_recorded_workload_is_tuned_by_its_counts(tmp_path, backend):
    backend("slow", sleeping(0.0005), priority=10)
    record = tmp_path / "run.jsonl"
    anyop.record(record)
    wide = np.ones((4, 64), np.float32)
    for _ in range(3):
        anyop.rms_norm(wide[:, :32], np.ones(32, np.float32), out=wide[:, :32])
    anyop.record(None)
    kinds, _ = tune.read_record(record)
    found = tune.tune(
        kinds, Settings(str(tmp_path / "r.txt"), ("cpu", "slow"), 0.02), lambda event: None
    )
    (measured,) = found.measured["rms_norm", "cpu"]
    assert measured.kind.inputs["x"].strides == (64, 1) and measured.weight == 3
    assert "3 calls" in (tmp_path / "r.txt").read_text()
    assert found.totals["slow"] > 3 * 0.5e6


@MEASURED
def test_tuning_is_no_part_of_a_record_and_leaves_no_routes(tmp_path):
    record = tmp_path / "run.jsonl"
    anyop.record(record)
    tuned(tmp_path, ["rms_norm: rows=2 D=8"], ("cpu",))
    anyop.rms_norm(np.ones(4, np.float32), np.ones(4, np.float32))
    assert not record.read_text() and runs(8) == "cpu"


@pytest.mark.parametrize(
    "text",
    [
        "topk: B=3 D=50 k=4",
        "add: X=3x4 Y=4 dtype=int32",
        "embedding: N=5 V=7 D=8",
        "softmax: X=3x5 dim=-1 dtype=float64",
        "attention: B=1 H=2 G=1 S=3 T=4 D=8 E=8 causal=true",
        "rms_norm_backward: rows=3 D=5",
        "cast: X=5 dtype=float32",
        "masked_mean: B=2 T=3 D=4",
    ],
)
@pytest.mark.drawn(4)
def test_every_own_kernel_is_right_by_its_own_reference(text, tmp_path):
    operator = text.split(":")[0]
    found, _, notes = tuned(tmp_path, [text], ("cpu",))
    assert not notes and [m.right[0].name for m in found.measured[operator, "cpu"]] == ["cpu"]


@MEASURED
def test_a_sum_may_round_as_often_as_it_is_long_and_no_more(tmp_path):
    def linear(factor):  # off by so much, of 1 + |expected|
        def run(values):
            x, weight, bias = (numbers(values[at]).astype(np.float64) for at in range(3))
            numbers(values[3])[...] = (
                x @ weight.T + bias + factor * (1 + np.abs(x @ weight.T + bias))
            )

        return lambda: lambda values, *place: run(values)

    # float32's tolerance is 2e-5; K = 1280 is ten times the sums of the standard tests.
    for name, factor in (("near", 1.5e-4), ("far", 4e-4)):
        core.register_python("linear", name, name, "test", None, 1, -10, True, linear(factor))
    try:
        text = "linear: rows=3 K=1280 N=2"
        found, _, notes = tuned(tmp_path, [text], ("near", "far"))
    finally:
        core.unregister("linear", "near")
        core.unregister("linear", "far")
    (m,) = found.measured["linear", "cpu"]
    assert m.find("near").right and not m.find("far").right and "far is excluded" in notes


# ---- rules ----


def made(D, rows=4, dtype="float32", default="a", count=1, **times) -> Measured:
    """A kind of rms_norm with these times of its candidates; None: it is wrong, missing: it does not take it."""
    kind = given_shapes(f"rms_norm: rows={rows} D={D} dtype={dtype}", "cpu")
    candidates = [
        Candidate(n, n, True, "wrong" if t is None else "", 0.0, t or 0.0, t or 0.0)
        for n, t in times.items()
    ]
    measured = Measured(kind, default, candidates)
    measured.weight = count
    return measured


def words(rules: list[Rule]) -> list[str]:
    return [f"{' '.join(map(str, rule.terms))}: {rule.name}".lstrip(": ") for rule in rules]


def test_no_rule_where_the_default_is_as_fast():
    assert choose([made(8, a=100, b=98), made(16, a=100, b=99)]) == []


def test_no_rule_by_the_minimum_alone():
    """On a busy machine some rounds are lucky: what is slower by the median is not faster."""
    m = made(8, a=100, b=120)
    m.find("a").min_ns, m.find("b").min_ns = 10, 9
    assert choose([m]) == []
    m.find("b").median_ns, m.find("b").min_ns = 50, 11
    assert choose([m]) == [], "faster by the median alone"
    m.find("b").min_ns = 9
    assert words(choose([m])) == ["b"]


def test_no_rule_against_its_own_figures():
    """The calls as a whole ran faster on b, on a busy machine; alone, this operator is 20 times slower on it."""
    for times in ({"default": 10, "tuned": 10, "b": 5}, {"default": 10, "tuned": 9, "b": 5}):
        assert better_rules(times, [made(8, a=0.7, b=16)], []) == ("", None)
    tied = better_rules({"default": 10, "tuned": 10, "b": 5}, [made(8, a=100, b=101)], [])
    assert tied == ("b", [Rule((), "b")])
    kinds = [made(8, a=9, b=1)]
    taken_back = better_rules({"default": 5, "tuned": 10, "b": 10}, kinds, choose(kinds))
    assert taken_back == ("default", []), "no rule is against no figures"


def test_a_busy_machine_is_said(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr("os.getloadavg", lambda: (50.0, 0.0, 0.0))
    assert "load average 50.0 on" in tune_run._load()
    monkeypatch.setattr("os.getloadavg", lambda: (0.1, 0.0, 0.0))
    assert tune_run._load() == ""


def test_one_rule_where_one_wins_everywhere():
    assert words(choose([made(8, a=100, b=50), made(16, a=100, b=97.5)])) == ["b"]


def test_bounds_lie_between_what_was_measured():
    kinds = [made(D, a=D, b=300) for D in (100, 200, 1000, 5000)]
    assert words(choose(kinds)) == ["D>512: b"]
    kinds = [made(D, a=300, b=D) for D in (100, 200, 1000, 5000)]
    assert words(choose(kinds)) == ["D<=512: b"]
    kinds = [made(D, a=9, b=1 if D == 200 else 99) for D in (100, 200, 210, 5000)]
    assert words(choose(kinds)) == ["D>128 D<=204: b"]


def test_dtypes_are_told_apart():
    kinds = [
        made(D, dtype=t, a=5, b=1 if t == "bfloat16" else 9)
        for D in (8, 64)
        for t in ("float32", "bfloat16")
    ]
    assert words(choose(kinds)) == ["dtype=bfloat16: b"]


def test_exact_sizes_where_nothing_simpler_tells():
    kinds = [
        made(D, rows, a=5, b=1 if (D, rows) == (64, 64) else 99)
        for D in (8, 64, 512)
        for rows in (8, 64, 512)
    ]
    assert words(choose(kinds)) == ["D=64 rows=64 dtype=float32: b"]


def test_a_wrong_default_is_replaced_wherever_it_is_wrong():
    kinds = [made(8, a=1, b=50), made(4096, a=None, b=50)]
    assert words(choose(kinds)) == ["D>256: b"]


def test_the_workloads_time_decides():
    assert words(choose([made(8, a=1, b=9, count=100), made(9, a=9, b=1)])) == ["D>8: b"]
    kinds = [made(8, a=10, b=1), made(16, a=1000, b=1000, count=1000)]
    assert choose(kinds) == [], "what saves less than a hundredth is no rule"


def test_random_measurements_are_never_made_worse():
    generator = random.Random(5)
    for _ in range(25):
        kinds = [
            made(D, rows, dtype, "abc"[generator.randrange(3)], generator.randrange(1, 9),
                 **{n: generator.choice((None, *(generator.uniform(1, 100),) * 6)) for n in "abc"})
            for D in (3, 64, 1000) for rows in (1, 40) for dtype in ("float32", "float16")
        ]  # fmt: skip
        kinds = [m for m in kinds if m.right]
        rules = choose(kinds)

        def cost(m, rules=rules):
            rule = chosen_rule(rules, m)
            return m.weight * m.cost_ns(rule.name if rule else None)

        total = sum(map(cost, kinds))
        for name in (None, *"abc"):
            assert total <= sum(m.weight * m.cost_ns(name) for m in kinds) * (1 + 1e-9)
        assert len(rules) == 12 or total < float("inf"), "a wrong result is chosen"


def test_terms_say_what_the_router_says():
    assert str(Term("D", "<=", 8)) == "D<=8"
    for D in (8, 9):
        assert Term("D", "<=", 8).holds({"D": D}) == (D == 8)
        assert Term("D", ">", 8).holds({"D": D}) == (D == 9)
        assert not Term("K", ">", 0).holds({"D": D})


# ---- what is given ----


def test_given_shapes():
    kind = given_shapes("topk: B=2 C=3 D=50 k=4 largest=false dtype=float16", "cpu")
    assert isinstance(kind, Kind) and kind.inputs["x"].shape == (2, 3, 50)
    assert (kind.inputs["k"], kind.inputs["largest"], kind.inputs["x"].dtype) == (
        4,
        False,
        "float16",
    )
    assert kind.results["values"].shape == (2, 3, 4)
    assert given_shapes("add: X=3x4 Y=4 device=cuda", "cpu").device == "cuda"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("topk: D=5", "says nothing of k"),
        ("topk: D=5 k=9", "do not allow these sizes"),
        ("rms_norm: D", "expected a name, = and a value"),
        ("rms_norm: D=x", "expected a size such as"),
        ("rms_norm: rows=3", "says nothing of D"),
        ("rms_norm: D=3 dtype=int8", "it takes no int8 here"),
        ("rms_norm: D=3 eps=many", "expected a value of type float"),
        ("add: Z=3", "there are X, Y"),
        ("rmsnorm: D=3", "rmsnorm"),
    ],
)
def test_wrong_shapes_are_said(text, says):
    with pytest.raises((ValueError, AttributeError, LookupError), match=says):
        kind = given_shapes(text, "cpu")
        assert kind is None, kind


# ---- the command ----


def command(*arguments, cwd) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "anyop", "tune", *arguments], capture_output=True, text=True, timeout=120, cwd=cwd
    )  # fmt: skip


def test_the_command_writes_what_load_routes_reads(tmp_path):
    done = command(
        "rms_norm: rows=2 D=8", "silu: X=64", "--backends", "cpu", "--seconds", "0.01", cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "speed-up" in done.stdout and "one after the other, in turns: tuned" in done.stdout
    assert not done.stderr, "no bar where nobody looks"
    anyop.load_routes(tmp_path / "routes.txt")
    assert "# machine: " in (tmp_path / "routes.txt").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "give a record, or shapes"),
        (["nope.jsonl"], "No such file"),
        (["rms_norm: D=3 q=3 r=3", "--ops", "topk"], "nothing of the workload is left"),
        (["nope: D=3"], "nope"),
        (["rms_norm: D=3", "--backends", "nope"], "no backend fits 'nope'"),
        (["rms_norm: D=3", "--backends", "triton"], "no kind of call could be measured"),
        (["rms_norm: D=3", "--seconds", "x"], "expected a number of seconds"),
        (["rms_norm: D=3", "--library", "nope.so"], "nope.so"),
    ],
)
def test_mistakes_of_the_command_are_said(words, says, tmp_path):
    done = command(*words, cwd=tmp_path)
    assert done.returncode != 0 and says in done.stdout + done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "routes.txt").exists()
