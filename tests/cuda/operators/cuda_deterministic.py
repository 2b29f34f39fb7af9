# SPDX-License-Identifier: Apache-2.0
"""Kernels for CUDA that declare determinism, anyop's own and Triton's, give the same bits in every run, whatever the
memory holds that they are given for results and scratch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import anyop
import numpy as np
import pytest
from anyop import testing
from anyop.cases.good_cases import Case
from anyop.cases.subject import Subject
from anyop.cases.values import build
from anyop.testing.torch_memory import fits_torch, on_device, takes_less
from drawn import few
from on_cuda import SUBJECTS, torch
from row_points import row_case

DECLARED = [
    (name, kernel["backend"])
    for name, subject in SUBJECTS.items()
    for kernel in subject.metadata["kernels"]
    if kernel["deterministic"] and kernel["device"] == "cuda" and kernel["backend"] != "aten"
]
RUNS = 10


def cases_of(subject: Subject) -> Iterator[Case]:
    """float32 and bfloat16, or a few of an operator whose tensors always differ; a long row too."""
    choices = testing.dtype_choices(subject.metadata)
    some = [c for c in choices if c.is_uniform and {"float32", "bfloat16"} & set(c.names.values())]
    for choice in some or few(choices, 3, subject.name):
        cases = [c for c in testing.good_cases(subject, choice) if c.what in ("large", "base")]
        cases += filter(None, [row_case(subject, choice, 4104, 5)])
        yield from filter(fits_torch, cases)


def copied(value):
    if isinstance(value, list):
        return [copied(each) for each in value]
    return value.copy() if isinstance(value, np.ndarray) else value


def caller(subject: Subject, case: Case, backend: str) -> Callable[[], list[bytes]]:
    """Of all results; of none where no kernel on CUDA takes the case."""
    there, arguments = on_device(subject.function, "cuda"), build(subject, case).arguments

    def bits() -> list[bytes]:
        given = {name: copied(value) for name, value in arguments.items()}
        try:
            with np.errstate(all="ignore"), anyop.use(backend):
                found = there(**given)
        except NotImplementedError as error:
            assert takes_less(error, "cuda"), error
            return []
        if found is None:  # it writes arguments
            found = tuple(given[p["name"]] for p in subject.tensors if p["mutated"])
        found = found if isinstance(found, tuple) else (found,)
        return [a.tobytes() for each in found for a in (each if isinstance(each, list) else [each])]

    return bits


def ran(name: str, backend: str) -> None:
    if not any(k.backend == backend and k.calls for k in testing.kernel_calls(name)):
        pytest.skip(f"{backend} takes none of these cases of {name}")


@pytest.mark.parametrize(("name", "backend"), DECLARED)
def test_same_bits(name, backend):
    testing.observe(name)
    for case in cases_of(SUBJECTS[name]):
        bits = caller(SUBJECTS[name], case, backend)
        expected = bits()
        for _ in range(RUNS):
            assert bits() == expected, (case.label, str(case.choice))
    ran(name, backend)


def fill_free_memory(value: float) -> None:
    """What torch's allocator gives next holds this number: small blocks and large ones."""
    sizes = [1 << 17] * 64 + [1 << 24] * 2
    blocks = [torch.full((size,), value, device="cuda") for size in sizes]
    del blocks


@pytest.mark.parametrize(("name", "backend"), DECLARED)
def test_what_the_memory_held_never_shows(name, backend):
    """Scratch and results are written before they are read, and wholly."""
    testing.observe(name)
    for case in cases_of(SUBJECTS[name]):
        bits = caller(SUBJECTS[name], case, backend)
        fill_free_memory(0)
        expected = bits()
        fill_free_memory(torch.nan)
        assert bits() == expected, (case.label, str(case.choice))
    ran(name, backend)


def test_there_are_some():
    assert {("rms_norm", "cuda"), ("rms_norm_backward", "cuda"), ("add", "cuda")} <= set(DECLARED)
    assert {("attention", "cuda_sm90"), ("linear", "cuda_tiles")} <= set(DECLARED)
