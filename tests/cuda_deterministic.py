# SPDX-License-Identifier: Apache-2.0
"""Kernels for CUDA that declare determinism, anyop's own and Triton's, give the same bits in every run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import anyop
import numpy as np
import pytest
from anyop import testing
from anyop.testing.torch_memory import fits_torch, on_device
from anyop.testing.values import build

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is ml_dtypes'")
if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device that torch can use", allow_module_level=True)

SUBJECTS = {s.name: s for s in testing.find_subjects(Path(__file__).parents[1] / "ops")}
DECLARED = [
    (name, kernel["backend"])
    for name, subject in SUBJECTS.items()
    for kernel in subject.metadata["kernels"]
    if kernel["deterministic"] and kernel["backend"] in ("cuda", "triton")
]
RUNS = 10


def is_float(choice) -> bool:
    return choice.is_uniform and bool({"float32", "bfloat16"} & set(choice.names.values()))


@pytest.mark.parametrize(("name", "backend"), DECLARED)
def test_same_bits(name, backend):
    subject = SUBJECTS[name]
    there = on_device(subject.function, "cuda")
    testing.observe(name)
    for choice in filter(is_float, testing.dtype_choices(subject.metadata)):
        cases = [c for c in testing.good_cases(subject, choice) if c.what in ("large", "base")]
        for case in filter(fits_torch, cases):
            case = replace(case, choice=choice)

            def bits() -> list[bytes]:
                arguments = build(subject, case).arguments  # noqa: B023
                with np.errstate(all="ignore"), anyop.use(backend):
                    found = there(**arguments)
                if found is None:  # it writes arguments
                    found = tuple(arguments[p["name"]] for p in subject.tensors if p["mutated"])
                return [a.tobytes() for a in (found if isinstance(found, tuple) else (found,))]

            expected = bits()
            for _ in range(RUNS):
                assert bits() == expected, (case.label, str(choice))
    if not any(k.backend == backend and k.calls for k in testing.kernel_calls(name)):
        pytest.skip(f"{backend} takes none of these cases of {name}, which all broadcast")


def test_there_are_some():
    assert {("rms_norm", "cuda"), ("rms_norm_backward", "cuda"), ("add", "cuda")} <= set(DECLARED)
