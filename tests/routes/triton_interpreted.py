# SPDX-License-Identifier: Apache-2.0
"""Run by backend_triton_test.py with TRITON_INTERPRET=1: the standard cases of every operator with a Triton kernel.

    TRITON_INTERPRET=1 ANYOP_FALLBACK=silent python tests/routes/triton_interpreted.py [--all] [operator ...]

Of each dtype every eighth case, with --all every one, which takes minutes. Prints a line of JSON: by operator how many
cases, how many calls Triton ran, and the failures.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import anyop
from anyop import testing
from anyop.backend.triton import NAME

OPS = Path(__file__).parents[2] / "ops"
DTYPES = ("float32", "float16", "bfloat16")


def has_kernel(subject: testing.Subject) -> bool:
    return any(kernel["backend"] == "triton" for kernel in subject.metadata["kernels"])


def on_triton(function):
    def call(*positional, **named):
        with anyop.use("triton"):
            return function(*positional, **named)

    return call


def try_operator(subject: testing.Subject, step: int) -> dict:
    there = replace(subject, function=on_triton(subject.function))
    begin, failures, cases = time.time(), [], 0
    testing.observe(subject.name)
    for choice in testing.dtype_choices(subject.metadata):
        if not choice.is_uniform or not set(filter(None, choice.names.values())) & set(DTYPES):
            continue
        for case in testing.standard_cases(subject, choice)[::step]:
            if step > 1 and case.what == "large":  # a thousand rows take the interpreter seconds
                continue
            cases += 1
            try:
                testing.check_case(there, case)
            except testing.CheckError as error:
                failures.append(str(error))
    ran = {kernel.backend: kernel.calls for kernel in testing.kernel_calls(subject.name)}
    return {"cases": cases, "ran": ran, "failures": failures[:5], "seconds": time.time() - begin}


if __name__ == "__main__":
    subjects = {s.name: s for s in testing.find_subjects(OPS) if has_kernel(s)}
    assert all(NAME in anyop.backends(name) for name in subjects)
    words = sys.argv[1:]
    step = 1 if "--all" in words else 8
    wanted = [word for word in words if word != "--all"] or sorted(subjects)
    print(json.dumps({name: try_operator(subjects[name], step) for name in wanted}))
