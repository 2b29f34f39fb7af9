# SPDX-License-Identifier: Apache-2.0
"""Times a call on Paddle's tensors, with and without a gradient and in a static graph, against Paddle's operators.

    python bench/calls/paddle_call.py [--rounds 15]

rms_norm of 4x64; the peer is composed of Paddle's operators: x * rsqrt(mean(x * x) + eps) * weight. Twice in one run:
with the glue and, in a process of its own, without. One line of JSON for each call goes to
bench/results/paddle_call.jsonl.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import ROOT, environment, spread, take_turns, write

CALLS = 1000
# What is asked of each call: (call, peer, at most).
FIGURES = [
    ("anyop out=", "composed", 0.04),
    ("anyop allocating", "composed", 0.1),
    ("anyop forward with a gradient", "composed forward with a gradient", 0.3),
    ("anyop forward + backward", "composed forward + backward", None),
    ("anyop in a static graph", "composed in a static graph", None),
]
FIGURES_WITHOUT_GLUE = [(call, peer, None) for call, peer, _ in FIGURES]
IMPORT_MS = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    with_glue = os.environ.get("ANYOP_PADDLE_GLUE") != "0"
    measure(rounds, with_glue)
    if with_glue:
        again = dict(os.environ, ANYOP_PADDLE_GLUE="0")
        subprocess.run([sys.executable, __file__, "--rounds", str(rounds)], env=again, check=True)


def measure(rounds: int, with_glue: bool) -> None:
    import anyop
    import anyop.paddle
    import paddle
    from anyop.native.glues import paddle_glue

    assert (paddle_glue.load() is not None) == with_glue, paddle_glue.problem
    anyop.set_num_threads(1)
    plain, recorded = no_gradient(anyop, paddle), with_gradient(anyop, paddle)
    check(plain, recorded)
    times = take_turns(plain, rounds, CALLS) | take_turns(recorded, rounds, CALLS // 4)
    imports = import_times() if with_glue else {}
    show_and_write(times, imports, with_glue, environment(anyop, paddle))


def import_times(runs: int = 5) -> dict[str, list[float]]:
    """In processes of their own, with Python's byte code kept from the first one, which does not count."""
    code = """
import time
began = time.perf_counter_ns()
import paddle
between = time.perf_counter_ns()
import anyop.paddle
print(between - began, time.perf_counter_ns() - between)
"""
    kept = dict(os.environ, PYTHONPYCACHEPREFIX=str(ROOT / "build" / "bench" / "pycache"))
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    found = []
    for _ in range(runs + 1):
        done = subprocess.run(
            [sys.executable, "-c", code], env=kept, check=True, capture_output=True, text=True
        )
        found.append([float(word) for word in done.stdout.split()[-2:]])
    theirs, ours = zip(*found[1:])
    return {"import paddle": list(theirs), "import anyop.paddle": list(ours)}


def composed(paddle):
    def rms_norm(x, weight, eps):
        return x * paddle.rsqrt(paddle.mean(x * x, axis=-1, keepdim=True) + eps) * weight

    return rms_norm


def no_gradient(anyop, paddle) -> dict:
    theirs = composed(paddle)
    x, w, y = paddle.randn([4, 64]), paddle.randn([64]), paddle.randn([4, 64])
    to_static, spec = paddle.jit.to_static, paddle.static.InputSpec([None, 64])

    def graph_of(function):
        def program(x):
            return function(x, w, 1e-6)

        return to_static(program, full_graph=True, input_spec=[spec])

    our_graph, their_graph = graph_of(anyop.rms_norm), graph_of(theirs)
    return {
        "loop": lambda: None,
        "composed": lambda: theirs(x, w, 1e-6),
        "anyop out=": lambda: anyop.rms_norm(x, w, 1e-6, out=y),
        "anyop allocating": lambda: anyop.rms_norm(x, w, 1e-6),
        "paddle.add": lambda: paddle.add(x, x),
        "composed in a static graph": lambda: their_graph(x),
        "anyop in a static graph": lambda: our_graph(x),
    }


def with_gradient(anyop, paddle) -> dict:
    theirs = composed(paddle)
    x, w, seed = paddle.randn([4, 64]), paddle.randn([64]), paddle.randn([4, 64])
    x.stop_gradient = w.stop_gradient = False

    def both(forward):
        def run():
            return paddle.grad(forward(x, w, 1e-6), [x, w], seed)

        return run

    return {
        "composed forward with a gradient": lambda: theirs(x, w, 1e-6),
        "anyop forward with a gradient": lambda: anyop.rms_norm(x, w, 1e-6),
        "composed forward + backward": both(theirs),
        "anyop forward + backward": both(anyop.rms_norm),
    }


def check(plain: dict, recorded: dict) -> None:
    """Every side of one kind gives one result."""
    pairs = [
        (plain["composed"](), plain[name]())
        for name in ("anyop out=", "anyop allocating", "anyop in a static graph")
    ]
    pairs += zip(recorded["composed forward + backward"](), recorded["anyop forward + backward"]())
    for expected, found in pairs:
        assert float((found - expected).abs().max()) < 1e-5


def show_and_write(times: dict, imports: dict, with_glue: bool, where: dict) -> None:
    loop_ns = min(times.pop("loop"))
    print(f"{'with' if with_glue else 'without'} the glue {'':29}{'min ns':>12}{'median':>12}")
    rows = []
    for name, values in (times | imports).items():
        row = spread([value if name in imports else value - loop_ns for value in values])
        rows.append({"call": name, "glue": with_glue, **row})
        print(f"{name:44}{row['min_ns']:12.0f}{row['median_ns']:12.0f}")
    best = {row["call"]: row["min_ns"] for row in rows}
    print(f"\n{'ratio of minima':78}{'found':>7}{'at most':>9}")
    for call, peer, limit in FIGURES if with_glue else FIGURES_WITHOUT_GLUE:
        ratio = best[call] / best[peer]
        verdict = "" if limit is None else f"{limit:9.2f}  {'met' if ratio <= limit else 'MISSED'}"
        print(f"{call + ' / ' + peer:78}{ratio:7.3f}{verdict}")
        rows.append(
            {"ratio_of": call, "to": peer, "glue": with_glue, "ratio": round(ratio, 3), "at_most": limit}
        )  # fmt: skip
    if imports:
        found_ms = best["import anyop.paddle"] / 1e6
        print(f"import anyop.paddle beyond paddle's own: {found_ms:.0f} ms, at most {IMPORT_MS} ms")
    print("written to", write("paddle_call", rows, where).relative_to(ROOT), flush=True)


if __name__ == "__main__":
    main()
