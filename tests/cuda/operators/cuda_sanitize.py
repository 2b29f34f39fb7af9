# SPDX-License-Identifier: Apache-2.0
"""Small calls of every operator with a CUDA kernel under the tools of NVIDIA's compute-sanitizer.

    python tests/cuda/operators/cuda_sanitize.py [--tools memcheck,racecheck,...] [--jobs 12] [--only rms_norm,add]

Each process under a tool takes a share of the operators; torch gives every tensor memory of its own there, so that
memcheck sees where it ends. Ends with 1 where a tool found something or an operator was not run. A program, not a file
of tests: it takes minutes.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyop
from anyop import testing
from anyop.cases.good_cases import Case
from anyop.cases.subject import Subject
from anyop.testing.torch_memory import DeviceMemory, fits_device, takes_less

sys.path.insert(0, str(Path(__file__).parents[2] / "shared"))
from drawn import few
from row_points import largest, row_case

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
FOUND = 99  # how a process ends whose tool found something
# Columns, rows: a warp, a block, several blocks to a row, and so many rows that their sums are shared.
ROWS = [(33, 9), (4104, 5), (65_544, 2), (130, 1000)]
MOST = 1 << 18  # elements of the largest tensor: tools are slow
# What a tool is wrong about. initcheck does not see what cuBLASLt wrote and these kernels read: to it torch.mm and an
# addition are an error too; cuda_deterministic.py gives them memory that holds NaN. racecheck does not see who
# has waited for bar.arrive: two halves of a block that hand each other a number so are nine errors to it.
UNSEEN = {
    "initcheck": {("linear_wgrad_accumulate", "cuda"), ("native_linear_act", "cuda")},
    "racecheck": {(n, "cuda_sm90") for n in ("mla_decode", "mla_sparse", "mla_sparse_fp8")},
}


def subjects() -> dict[str, Subject]:
    return {
        s.name: s
        for s in testing.find_subjects(Path(__file__).parents[3] / "ops")
        if any(kernel["backend"] == "cuda" for kernel in s.metadata["kernels"])
    }


def cases_of(subject: Subject) -> list[Case]:
    """One of each class, and long rows, in two or three dtypes, one of them of 16 bits, which all kernels take."""
    choices = testing.dtype_choices(subject.metadata)
    uniform = [choice for choice in choices if choice.is_uniform]
    halves = [c for c in choices if {"float16", "bfloat16"} & set(c.names.values())]
    others = [choice for choice in choices if not choice.is_uniform]
    picked, found = few(uniform, 2, subject.name) + few(others, 2, subject.name)[:1], []
    if not any(choice in halves for choice in picked):
        picked += few(halves, 1, subject.name)
    for choice in picked:
        classes: dict[str, list[Case]] = {}
        for case in testing.good_cases(subject, choice):
            if fits_device(subject, case) and largest(subject, case.point) <= MOST:
                classes.setdefault(case.what, []).append(case)
        for what, cases in classes.items():
            found += few(cases, 3 if what == "view" else 1, f"{subject.name} {choice}")
        # A column of a table of pages stands for many keys.
        is_paged = any(param["name"] == "page_table" for param in subject.tensors)
        most = 10_000 if is_paged else 1 << 20
        wide = [row_case(subject, choice, *size) for size in ROWS if size[0] < most]
        found += [c for c in wide if c and largest(subject, c.point) <= MOST]
    return found


def backends_of(subject: Subject) -> list[str]:
    """Kernels for every GPU, for Hopper, with one tile: each is asked first for all cases."""
    kernels = subject.metadata["kernels"]
    return [k["backend"] for k in kernels if k["device"] == "cuda" and k["form"] == "source"]


def call_cases(subject: Subject) -> int:
    """How many of the cases CUDA takes."""
    import torch

    count = 0
    for case in cases_of(subject):
        memory = DeviceMemory("cuda")
        built = testing.build(subject, case).arguments
        try:
            subject.function(**{key: memory.there(value) for key, value in built.items()})
        except NotImplementedError as error:
            assert takes_less(error, "cuda")
            continue
        torch.cuda.synchronize()
        count += 1
    return count


def call_all(names: list[str], tool: str) -> None:
    """In a process under a tool: says what it has run."""
    known, cases = subjects(), 0
    for name in names:
        subject = known[name]
        testing.observe(name)
        for backend in backends_of(subject):
            if (name, backend) not in UNSEEN.get(tool, ()):
                with anyop.use(backend):
                    cases += call_cases(subject)
        assert any(k.backend == "cuda" and k.calls for k in testing.kernel_calls(name)), name
        print(f"ran {name}", flush=True)
    print(f"calls {cases}", flush=True)


def under(tool: str, names: list[str], log: Path) -> tuple[int, str]:
    """How the process ended, and what it and the tool wrote, which lies in the file from the start."""
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", str(FOUND)]
    # initcheck must see what cuBLASLt's kernels write for those of anyop; beside racecheck, which sees anyop's alone,
    # some of them do not start.
    if tool not in ("initcheck", "racecheck"):
        command += ["--kernel-name", "kns=anyop"]
    command += [sys.executable, __file__, "--tools", tool, "--call", *names]
    apart = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    with log.open("w") as file:
        run = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, env=apart)
    return run.returncode, log.read_text(errors="replace")


def check(tool: str, names: list[str], jobs: int, folder: Path) -> bool:
    """Whether the tool found nothing and every operator ran."""
    for name, backend in sorted(UNSEEN.get(tool, ())):
        if name in names:
            print(f"{tool}: skipped {backend} of {name}, where the tool is wrong")
    names = [name for name in names if (name, "cuda") not in UNSEEN.get(tool, ())]
    begin, shares = time.perf_counter(), [names[at::jobs] for at in range(min(jobs, len(names)))]
    logs = [folder / f"{tool}_{at}.log" for at in range(len(shares))]
    with ThreadPoolExecutor(jobs) as pool:
        found = list(pool.map(under, [tool] * len(shares), shares, logs))
    text = "\n".join(output for _, output in found)
    calls = sum(map(int, re.findall(r"^calls (\d+)$", text, re.M)))
    left = set(names) - set(re.findall(r"^ran (\w+)$", text, re.M))
    wrong = [output for code, output in found if code]
    print(
        f"{tool}: {len(names) - len(left)} operators, {calls} calls, "
        f"{len(wrong)} of {len(shares)} processes failed, {time.perf_counter() - begin:.0f} s",
        flush=True,
    )
    for output in wrong:
        print("\n".join(output.splitlines()[-60:]))
    if left:
        print(f"{tool}: did not come to {', '.join(sorted(left))}")
    return not wrong and not left


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) * 3 // 4))
    parser.add_argument("--only", default="", metavar="OP,OP", help="default: all operators")
    parser.add_argument("--logs", type=Path, help="a folder; default: one that goes again")
    parser.add_argument("--call", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.call is not None:
        call_all(options.call, options.tools)
        return 0
    if not shutil.which("compute-sanitizer"):
        print("skipped: there is no compute-sanitizer on PATH; it comes with the CUDA toolkit")
        return 0
    names = [n for n in subjects() if not options.only or n in options.only.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        logs = options.logs or Path(folder)
        logs.mkdir(parents=True, exist_ok=True)
        passed = [check(t, names, options.jobs, logs) for t in options.tools.split(",")]
    return int(not all(passed))


if __name__ == "__main__":
    sys.exit(main())
