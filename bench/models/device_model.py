# SPDX-License-Identifier: Apache-2.0
"""Times Qwen3 on torch's device "anyop" against the device below it, cpu or cuda: a token, and a step of training.

    python bench/models/device_model.py [--size tiny|0.6b] [--rounds 60] [--write]

Random weights: tiny on the CPU, by default; the size of Qwen3-0.6B in bfloat16 for a GPU. Each side is a process of its
own, so the native one knows nothing of anyop; two of each, for two equal ones differ by some percent. They take turns,
and while one works the others wait. Results are compared before anything is timed: every operator is torch's own, so
all bits must agree. A shared machine changes its speed from second to second, so "neighbours" is the median ratio of
turns that came one behind the other. With --write one line of JSON for each goes to bench/results/device_model.jsonl.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import ROOT, environment, spread, write  # makes examples importable

# Work of one turn, and what is asked of anyop: time against native.
SIZES = {
    "tiny": {"rows": 2, "length": 32, "tokens": 8, "steps": 2},  # short: others use the machine
    "0.6b": {"rows": 1, "length": 128, "tokens": 8, "steps": 2},
}
FIGURES = {
    ("tiny", "training step"): 1.25,
    ("0.6b", "token"): 1.06,
    ("0.6b", "training step"): 1.08,
}
CASES = ("token", "training step")


def main() -> None:
    options = parse_arguments()
    if options.worker:
        return serve(options.worker, options.size)
    import torch

    on_host = os.environ.get("ANYOP_DEVICE_PLATFORM") == "host"
    native = "cuda" if torch.cuda.is_available() and not on_host else "cpu"
    workers = [(side, Worker(side, options.size)) for side in ("anyop", native) * 2]
    rows = measure(workers, native, options)
    for _, worker in workers:
        worker.end()
    if options.write:
        import anyop
        import transformers

        gpu = {"gpu": torch.cuda.get_device_name()} if native == "cuda" else {}
        where = environment(anyop, torch, transformers) | gpu
        print("written to", write("device_model", rows, where).relative_to(ROOT))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


class Worker:
    """A process that has the model on one device and does what it is told, when it is told."""

    def __init__(self, device: str, size: str):
        command = [sys.executable, __file__, "--worker", device, "--size", size]
        variables = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, what: str):
        """Its answer; SystemExit where it has ended."""
        with contextlib.suppress(BrokenPipeError):
            print(what, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"a worker has ended with code {self._process.wait()}")
        return json.loads(answer)

    def end(self) -> None:
        self._process.stdin.close()
        self._process.wait()


def measure(
    workers: list[tuple[str, Worker]], native: str, options: argparse.Namespace
) -> list[dict]:
    results = [(side, worker.ask("results")) for side, worker in workers]
    ours, theirs = ([found for side, found in results if (side == "anyop") == us] for us in (1, 0))
    if theirs[0] != theirs[1]:
        print(f"two processes of {native} differ in their results: some kernel sums by chance")
    elif any(found != theirs[0] for found in ours):
        raise SystemExit(f"results differ, nothing was timed: {results}")
    rows = []
    for case in CASES:
        times_ns: list[list[float]] = [[] for _ in workers]
        order = list(range(len(workers)))
        for _ in range(options.rounds):
            for at in order:
                times_ns[at].append(workers[at][1].ask(case))
            order.reverse()
        sides = [side for side, _ in workers]
        rows.append(compare(case, sides, times_ns, native, options.size))
    return rows


def compare(case: str, sides: list[str], times_ns: list, native: str, size: str) -> dict:
    """A row, printed: the two processes of a side together, and what two of the same differ by."""
    found, apart = {}, {}
    for side in ("anyop", native):
        both = [times for name, times in zip(sides, times_ns, strict=True) if name == side]
        found[side] = spread([*itertools.chain(*both)])
        medians = [statistics.median(times) for times in both]
        apart[side] = round(max(medians) / min(medians), 3)
    row = {"size": size, "case": case, "native": native, **found, "processes_differ_by": apart}
    row["ratio"] = round(found["anyop"]["min_ns"] / found[native]["min_ns"], 3)
    row["ratio_of_medians"] = round(found["anyop"]["median_ns"] / found[native]["median_ns"], 3)
    row["ratio_of_neighbours"] = round(statistics.median(neighbours(times_ns)), 3)
    row["at_most"] = FIGURES.get((size, case))
    for side, times in found.items():
        print(
            f"{size} {case:14}{side:6}{times['min_ns'] / 1e6:10.3f} ms, median "
            f"{times['median_ns'] / 1e6:10.3f}; two processes differ by {apart[side]:.3f}"
        )
    asked = f"; at most {row['at_most']} asked for" if row["at_most"] else ""
    print(
        f"    anyop / {native}: {row['ratio']}, medians {row['ratio_of_medians']}, "
        f"neighbours {row['ratio_of_neighbours']}{asked}",
        flush=True,
    )
    return row


def neighbours(times_ns: list) -> list[float]:
    """Each turn of anyop's against the native one just before or behind it; workers alternate."""
    pairs = zip(times_ns[::2], times_ns[1::2], strict=True)
    return [a / n for ours, native in pairs for a, n in zip(ours, native, strict=True)]


def serve(device: str, size: str) -> None:
    """In a worker: a line of what to do comes in, an answer in JSON goes out."""
    if device == "anyop":
        import anyop.torch.device  # noqa: F401
    import torch

    from examples.qwen3 import inference, model, training

    torch.set_num_threads(1)
    work = SIZES[size]
    how = argparse.Namespace(model=None, size=size, dtype=None, rate=1e-4, adamw="foreach")
    qwen3 = model.make(how).to(device)
    prompt = model.numbers(qwen3, 1, work["length"]).to(device)
    trainer = training.Trainer(
        qwen3, model.numbers(qwen3, work["rows"], work["length"]).to(device), how, 1, False
    )
    wait = getattr(torch, device).synchronize

    def token() -> int:
        qwen3.eval()
        inference.generate(qwen3, prompt, work["tokens"])
        return work["tokens"]

    def step() -> int:
        qwen3.train()
        for _ in range(work["steps"]):
            trainer.step()
        return work["steps"]

    def results() -> list:
        tokens = inference.generate(qwen3.eval(), prompt, work["tokens"])
        qwen3.train()
        return [tokens.tolist(), [trainer.step().item() for _ in range(5)]]

    calls = {"token": token, "training step": step}
    for line in sys.stdin:
        what = line.strip()
        if what == "results":
            answer = results()
        else:
            wait()
            begin_ns = time.perf_counter_ns()
            count = calls[what]()
            wait()
            answer = (time.perf_counter_ns() - begin_ns) / count
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
