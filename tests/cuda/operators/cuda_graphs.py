# SPDX-License-Identifier: Apache-2.0
"""Every operator with a CUDA kernel in a CUDA graph, on a side stream behind a long kernel, and without waiting.

The kernel is forced by a route. Inputs are the standard cases' and rows that several blocks share; they change between
replays, and every result must have the bits of an eager call.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anyop
import pytest
from anyop import testing
from anyop.cases.good_cases import Case
from anyop.cases.subject import Subject
from anyop.testing.torch_memory import DeviceMemory, fits_device, takes_less
from drawn import few
from on_cuda import DEVICE, SUBJECTS, behind_a_spin, same_bits, torch
from row_points import largest, row_case

KERNELS = [
    (name, kernel["backend"])
    for name, subject in SUBJECTS.items()
    for kernel in subject.metadata["kernels"]
    if kernel["device"] == "cuda" and kernel["form"] == "source" and subject.results
]
CLASSES = ("base", "absent", "attribute", "broadcast", "expand", "view", "large")
ROWS = [(65_537, 2), (4_104, 300), (264, 5_000)]  # columns, rows
MOST = 1 << 23  # elements of the largest tensor


def chosen(subject: Subject) -> list[testing.DtypeChoice]:
    choices = testing.dtype_choices(subject.metadata)
    uniform = [choice for choice in choices if choice.is_uniform]
    others = [choice for choice in choices if not choice.is_uniform]
    return few(uniform, 4, subject.name) + few(others, 2, subject.name)


def cases_of(subject: Subject) -> list[Case]:
    """Those whose tensors can be written anew: no two elements in one place."""
    found = []
    for choice in chosen(subject):
        every = [c for c in testing.good_cases(subject, choice) if c.what in CLASSES]
        every = few(every, 16, f"{subject.name} {choice}")
        wide = [row_case(subject, choice, *size) for size in ROWS]
        every += [c for c in wide if c and largest(subject, c.point) <= MOST]
        found += [
            replace(case, label=f"{choice} {case.label}")
            for case in every
            if fits_device(subject, case)
            and not any(layout.endswith("zero") for layout in case.layouts.values())
        ]
    return found


def listed(value: Any) -> list:
    return value if isinstance(value, list) else [value]


class Calls:
    """One call for each case, into whose tensors other values can be put: set 0, 1, 2."""

    SETS = 3

    def __init__(self, subject: Subject, backend: str, most: int = 100) -> None:
        self.name, self.function, self.backend = subject.name, subject.function, backend
        self.cases: list[Case] = []
        self.calls, self.values = [], []  # arguments; each tensor with its values
        for case in cases_of(subject):
            built = [
                testing.build(subject, replace(case, label=f"{case.label} {number}")).arguments
                for number in range(self.SETS)
            ]
            memory = DeviceMemory(DEVICE)
            given = {name: memory.there(value) for name, value in built[0].items()}
            if len(self.cases) == most or not self.takes(given):
                continue
            self.cases.append(case)
            self.calls.append(given)
            for name in given:
                fresh = [listed(DeviceMemory(DEVICE).there(one[name])) for one in built]
                for tensor, *values in zip(listed(given[name]), *fresh, strict=True):
                    if isinstance(tensor, torch.Tensor):
                        self.values.append((tensor, [value.clone() for value in values]))
        if not self.cases:
            pytest.skip(f"{backend} takes none of the cases")
        torch.cuda.synchronize()  # other streams read these values

    def takes(self, given: dict) -> bool:
        """Whether the kernel is one for such a call: by its conditions, and by what it says when it is called."""
        with anyop.use(self.backend):
            if anyop.explain(self.name, **given).chosen != self.backend:
                return False
            try:
                self.function(**given)
            except NotImplementedError as error:
                assert takes_less(error, "cuda")
                return False
            return True

    def put(self, number: int | None) -> None:
        """The values of a set, or zeros, on the current stream."""
        for tensor, values in self.values:
            tensor.zero_() if number is None else tensor.copy_(values[number])

    def run(self) -> list[torch.Tensor]:
        """All results of all calls."""
        found = []
        with anyop.use(self.backend):
            for given in self.calls:
                results = self.function(**given)
                found += results if isinstance(results, tuple) else (results,)
        return [result for result in found if result is not None]

    def check(self, found: list[torch.Tensor], expected: list[torch.Tensor], what: str) -> None:
        assert len(found) == len(expected)
        wrong = [at for at, pair in enumerate(zip(found, expected)) if not same_bits(*pair)]
        each = len(found) // len(self.cases)
        assert not wrong, f"{what}: {[self.cases[at // each].label for at in wrong[:8]]}"


@pytest.mark.parametrize(("name", "backend"), KERNELS)
def test_replays_with_other_inputs_have_the_bits_of_eager_calls(name, backend):
    calls = Calls(SUBJECTS[name], backend)
    expected = []
    for number in range(calls.SETS):
        calls.put(number)
        expected.append(calls.run())
        calls.put(number)  # some arguments were written
        calls.check(calls.run(), expected[-1], "twice")
    calls.put(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # refuses what waits
        found = calls.run()
    for number in (1, 2, 0):
        calls.put(number)
        graph.replay()
        torch.cuda.synchronize()
        calls.check(found, expected[number], f"set {number}")


@pytest.mark.parametrize(("name", "backend"), KERNELS)
def test_a_side_stream_is_used_and_not_waited_for(name, backend):
    """Inputs are zero until a spin ends: another stream would read zeros; a call that waits outlives the spin."""
    calls = Calls(SUBJECTS[name], backend, 12)  # a stream holds some 1,000 launches
    calls.put(1)
    expected = calls.run()  # kernels are loaded from here on
    used: list[torch.Tensor] = []

    def call(_stream: torch.cuda.Stream) -> None:
        calls.put(1)
        used[:] = [result.clone() for result in calls.run()]

    for _ in behind_a_spin(lambda: calls.put(None), call):
        calls.check(used, expected, "behind the spin")


def test_every_cuda_kernel_is_here():
    assert {name for name, _ in KERNELS} >= {"add", "rms_norm", "softmax", "rope", "sort"}
    assert len(KERNELS) >= 60
