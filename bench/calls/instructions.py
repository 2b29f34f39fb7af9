# SPDX-License-Identifier: Apache-2.0
"""Counts the instructions of one call from NumPy, torch, JAX, Paddle and of ATen, beside those of an older build.

    python bench/calls/instructions.py [--before FOLDER] [--only numpy torch]

Needs Debian's valgrind. FOLDER holds the older package: <its build>/python, or site-packages. Times differ from run to
run on a shared machine, these counts by less than 1 %. A call is the difference of two loops, divided; what malloc
does depends on what was freed before, up to 7 % of a call, so that it is the median over heaps in several states.
Behind them are those in anyop's own libraries alone, which no heap changes. One line of JSON for each call goes to
bench/results/instructions.jsonl.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import ROOT, environment, write

CALLS, WARM, HEAPS = 40, 25, 5
AT_MOST = 1.01
# Told to valgrind from inside the process.
MARKS = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_START_INSTRUMENTATION; }
void zero(void) { CALLGRIND_ZERO_STATS; }
void dump(void) { CALLGRIND_DUMP_STATS; }
"""


def numpy_calls(anyop) -> dict:
    import numpy as np

    x, w = np.linspace(-1, 1, 256, dtype=np.float32).reshape(4, 64), np.ones(64, np.float32)
    y, lists = np.empty_like(x), [x, x]
    return {
        "rms_norm out=": lambda: anyop.rms_norm(x, w, 1e-6, out=y),
        "rms_norm eps= out=": lambda: anyop.rms_norm(x, w, eps=1e-6, out=y),
        "rms_norm allocating": lambda: anyop.rms_norm(x, w),
        "native_layer_norm": lambda: anyop.native_layer_norm(x, w, w),
        "add broadcasting": lambda: anyop.add(x, w),
        "softmax by aten": lambda: anyop.softmax(x),
        "layer_norm by aten": lambda: anyop.layer_norm(x, w, w),
        "aten.add": lambda add=anyop.aten.add: add(x, x),
        "aten.cat": lambda cat=anyop.aten.cat: cat(lists),
        "aten.add out=": lambda add=anyop.aten.add: add(x, x, out=y),
    }


def torch_calls(anyop) -> dict:
    import torch

    torch.set_num_threads(1)
    import anyop.torch

    x, w, y = torch.randn(4, 64), torch.randn(64), torch.randn(4, 64)
    gx, seed, operator = torch.randn(4, 64, requires_grad=True), torch.randn(4, 64), torch.ops.anyop
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    return {
        "rms_norm out=": lambda: anyop.rms_norm(x, w, 1e-6, out=y),
        "rms_norm allocating": lambda: anyop.rms_norm(x, w),
        "native_layer_norm": lambda: anyop.native_layer_norm(x, w, w),
        "softmax by aten": lambda: anyop.softmax(x),
        "layer_norm by aten": lambda: anyop.layer_norm(x, w, w),
        "torch.ops.anyop.rms_norm": lambda: operator.rms_norm.default(x, w, 1e-6),
        "torch.ops.anyop.l2_normalize": lambda: operator.l2_normalize.default(x, 1e-6),
        "torch.ops.anyop.add": lambda: operator.add.default(x, x),
        "rms_norm and its gradient": lambda: torch.autograd.grad(anyop.rms_norm(gx, w), gx, seed),
        "aten.add": lambda add=anyop.aten.add: add(a, b),
        "aten.topk": lambda topk=anyop.aten.topk: topk(a, 2),
        "aten.add_": lambda add=anyop.aten.add_: add(a, b),
        "aten.mm out=": lambda mm=anyop.aten.mm: mm(a, a, out=b),
    }


def jax_calls(anyop) -> dict:
    import jax

    x, w = jax.numpy.ones((4, 64)), jax.numpy.ones(64)
    compiled = jax.jit(anyop.rms_norm)
    return {
        "jit rms_norm": lambda: compiled(x, w).block_until_ready(),
        "eager rms_norm": lambda: anyop.rms_norm(x, w).block_until_ready(),
    }


def paddle_calls(anyop) -> dict:
    import anyop.paddle
    import paddle

    x, w, y = paddle.randn([4, 64]), paddle.randn([64]), paddle.randn([4, 64])
    return {
        "rms_norm out=": lambda: anyop.rms_norm(x, w, 1e-6, out=y),
        "rms_norm allocating": lambda: anyop.rms_norm(x, w),
    }


GROUPS = {"numpy": numpy_calls, "torch": torch_calls, "jax": jax_calls, "paddle": paddle_calls}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="the folder that has the older anyop in it")
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--counted", choices=GROUPS, help=argparse.SUPPRESS)
    parser.add_argument("--marks", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.counted:
        return run_counted(options.counted, ctypes.CDLL(options.marks))
    if not shutil.which("valgrind"):
        raise SystemExit(
            "bench/calls/instructions.py needs valgrind: sudo apt-get install valgrind"
        )
    import anyop

    here = str(Path(anyop.__file__).parents[1])
    rows = []
    for group in options.only:
        now = count(group, here)
        before = count(group, str(options.before.resolve())) if options.before else {}
        rows += [compare(group, name, now[name], before.get(name)) for name in now]
    print("written to", write("instructions", rows, environment(anyop)).relative_to(ROOT))


def compare(group: str, name: str, found: tuple[int, int], earlier: tuple[int, int] | None) -> dict:
    (now, own), line = found, f"{group:8}{name:30}{found[0]:>10,}"
    row = {"caller": group, "call": name, "instructions": now, "own": own}
    if earlier:
        before, own_before = earlier
        row |= {
            "before": before,
            "own_before": own_before,
            "ratio": round(now / before, 4),
            "at_most": AT_MOST,
        }
        verdict = "met" if now / before <= AT_MOST else "MISSED"
        line += f"{before:>10,} before {now / before:7.4f}, at most {AT_MOST} asked for: {verdict}"
        line += f"; anyop's own {own_before:,} before,"
    print(f"{line} {own:,}" if earlier else f"{line}, anyop's own {own:,}", flush=True)
    return row


def count(group: str, package: str) -> dict[str, tuple[int, int]]:
    """Instructions of each call of a group, in a process that has this package: all, and anyop's own."""
    with tempfile.TemporaryDirectory() as folder:
        marks, out = Path(folder, "marks.so"), Path(folder, "out")
        compiler = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(marks)]
        subprocess.run(compiler, input=MARKS, text=True, check=True)
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no"]
        command += [f"--callgrind-out-file={out}", sys.executable, __file__]
        variables = {"PYTHONPATH": package, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        variables |= {"ANYOP_OP_SOFTMAX": "aten", "ANYOP_OP_LAYER_NORM": "aten"}
        variables["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
        said = subprocess.run(
            [*command, "--counted", group, "--marks", str(marks)],
            env=os.environ | variables,
            capture_output=True,
            text=True,
        )
        if said.returncode != 0:
            raise SystemExit(said.stderr[-3000:])
        names = said.stdout.splitlines()
        texts = [Path(f"{out}.{at + 1}").read_text() for at in range(2 * HEAPS * len(names))]
    counts = [medians([ask(text) for text in texts]) for ask in (total, own)]
    return dict(zip(names, zip(*counts, strict=True), strict=True))


def medians(totals: list[int]) -> list[int]:
    """Of one call, by call, from the dumps of a shorter and a longer loop in each heap."""
    counts = [(many - few) / CALLS for few, many in zip(totals[::2], totals[1::2], strict=True)]
    return [
        round(statistics.median(counts[at : at + HEAPS])) for at in range(0, len(counts), HEAPS)
    ]


def total(dump: str) -> int:
    return int(re.search(r"^(?:totals|summary): (\d+)", dump, re.M)[1])


def own(dump: str) -> int:
    """Of the functions in anyop's libraries and glues, without what they call."""
    found, ours, numbers = 0, False, set()
    lines = iter(dump.splitlines())
    for line in lines:
        if line.startswith(("ob=", "cob=")):
            kind, number, name = re.match(r"(c?ob)=(\(\d+\)) ?(.*)", line).groups()
            if re.search(r"/[^/]*(anyop|_glue)[^/]*$", name):
                numbers.add(number)
            if kind == "ob":
                ours = number in numbers
        elif line.startswith("calls="):
            next(lines)
        elif ours and re.match(r"[+*\d-]", line):
            found += int(line.split()[1])
    return found


def run_counted(group: str, marks: ctypes.CDLL) -> None:
    """Under valgrind: a loop of CALLS and one of twice as many for each call and heap; the call's name is printed."""
    import anyop

    anyop.set_num_threads(1)
    calls = GROUPS[group](anyop)
    for call in calls.values():
        for _ in range(WARM):
            call()
    gc.collect()
    gc.disable()
    marks.begin()
    for name, call in calls.items():
        for heap in range(HEAPS):
            blocks = [
                bytearray(size) for size in random.Random(heap).choices(range(600, 9000), k=99)
            ]
            del blocks[::2]
            for repeat in (range(CALLS), range(2 * CALLS)):
                call()
                marks.zero()
                for _ in repeat:
                    call()
                marks.dump()
        print(name)


if __name__ == "__main__":
    main()
