# SPDX-License-Identifier: Apache-2.0
"""The standard tests on any device of include/anyop/device.h, from NumPy alone: memory of a case goes there and back.

Results that are not given are made here, of the shapes and dtypes that the CPU's kernel gives. Each array lies in a
copy of its whole memory, at an address of the same alignment, so that the guards around it see what the kernel wrote.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import anyop
from anyop.cases.dtype_choices import choices_here
from anyop.cases.good_cases import standard_cases
from anyop.cases.placed import OUTPUT_FILL
from anyop.cases.subject import Subject, find_subjects
from anyop.conformance.device_checks import Wrong
from anyop.conformance.device_table import DEVICE_TO_HOST, HOST_TO_DEVICE, Device, use
from anyop.testing.check import CheckError, check_case
from anyop.testing.dlpack import DlpackArray
from anyop.testing.torch_memory import fits_device, takes_less

_PAGE = 4096


def kernels_on(subject: Subject, device: str) -> list[str]:
    """Names of the operator's implementations for a device, as the core tells them apart: opencl, opencl_small."""
    return [
        name
        for name in anyop.backends(subject.name)
        if name == device or name.startswith(f"{device}_")
    ]


def operators_on(folder: str, device: Device, only: str) -> list[str]:
    """Names of a folder's operators that have a kernel for the device."""
    if not Path(folder).is_dir():
        raise FileNotFoundError(
            f"no folder of operators at {folder}; the tests' references lie in anyop's sources (git clone)"
        )
    subjects = (subject for subject in find_subjects(folder) if only in subject.name)
    return [subject.name for subject in subjects if kernels_on(subject, device.name)]


def operator_checks(
    folder: str, names: list[str], seconds: int
) -> dict[str, Callable[[Device], str]]:
    """Checks of `anyop device-check`: "op relu"."""
    return {
        f"op {subject.name}": partial(_try_operator, subject, seconds)
        for subject in find_subjects(folder)
        if subject.name in names
    }


def _try_operator(subject: Subject, seconds: int, device: Device) -> str:
    """All standard cases that the device's kernel takes; Wrong names the first that is not right."""
    use(device)
    there, name = through_chip(subject, device), anyop_name(device)
    cases = values = less = 0
    wrong = []
    for choice in choices_here(subject.metadata):
        for case in standard_cases(subject, choice):
            if not fits_device(subject, case):
                continue
            signal.alarm(seconds)
            try:
                values += check_case(there, case).values
                cases += 1
            except CheckError as error:
                if takes_less(error, device.name, name):
                    less += 1
                else:
                    wrong.append(str(error))
    if wrong or not cases:
        raise Wrong(
            f"{len(wrong)} of {cases + len(wrong)} cases: {(wrong or ['none was taken'])[0]}"
        )
    return f"{cases} cases, {values} values" + (
        f"; {less} that its kernel does not take" if less else ""
    )


def anyop_name(device: Device) -> str:
    """What the core calls a kind of device in messages."""
    return {2: "cuda", 10: "hip", 12: "anyop"}.get(device.table.device_type, device.name)


def through_chip(subject: Subject, device: Device) -> Subject:
    """The operator as testing.check_case takes it, run on arrays in memory of the device."""
    function = on_chip(subject.function, device, [param["name"] for param in subject.results])
    made = replace(subject.on(device.name), function=function)
    if "reference" in subject.__dict__:
        made.__dict__["reference"] = subject.reference  # loaded once
    return made


def on_chip(function: Callable[..., Any], device: Device, results: list[str]) -> Callable[..., Any]:
    """The function of NumPy arrays that calls this one with memory of the device."""

    def call(*positional: Any, **named: Any) -> Any:
        wanted = [name for name in results if named.get(name) is None]
        if wanted:
            made = function(*map(_copied, positional), **{k: _copied(v) for k, v in named.items()})
            like = dict(zip(results, made if isinstance(made, tuple) else (made,)))
            for name in wanted:
                named[name] = np.zeros_like(like[name])
                named[name].reshape(-1).view(np.uint8)[...] = OUTPUT_FILL
        with _Memory(device) as memory:
            there = {name: memory.there(value) for name, value in named.items()}
            function(*map(memory.there, positional), **there)
            memory.download()
        found = tuple(None if named[name] is False else named[name] for name in results)
        return found if len(found) > 1 else found[0] if found else None

    return call


def _copied(value: Any) -> Any:
    """The CPU's kernel may change it, and takes it row by row."""
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return np.array(value, order="C") if isinstance(value, np.ndarray) else value


class _Memory:
    """The arrays of one call on the device, and the way back."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.owners: dict[int, tuple[np.ndarray, int]] = {}  # bytes here, their address there
        self.taken: list[int] = []

    def __enter__(self) -> _Memory:
        return self

    def __exit__(self, *_: object) -> None:
        self.device.synchronize_device(0)
        for memory in self.taken:
            self.device.free(0, memory)

    def there(self, value: Any) -> Any:
        """A tensor for an array, also in a list; all else as it is."""
        if isinstance(value, list):
            return [self.there(item) for item in value]
        if not isinstance(value, np.ndarray):
            return value
        owner = value
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        if id(owner) not in self.owners:
            self.owners[id(owner)] = self._upload(owner)
        flat, address = self.owners[id(owner)]
        offset = value.ctypes.data - flat.ctypes.data if value.size else 0
        data = address + offset if flat.size else None
        return DlpackArray(value, device=(self.device.table.device_type, 0), data=data)

    def _upload(self, owner: np.ndarray) -> tuple[np.ndarray, int]:
        flat = owner.reshape(-1).view(np.uint8) if owner.size else np.zeros(0, np.uint8)
        if not flat.size:
            return flat, 0
        memory = self.device.made("allocate", 0, flat.size + _PAGE)
        self.taken.append(memory)
        address = memory + (flat.ctypes.data - memory) % _PAGE
        self.device.copy(0, address, flat.ctypes.data, flat.size, HOST_TO_DEVICE)
        return flat, address

    def download(self) -> None:
        """Waits, and brings all bytes back to where they came from."""
        self.device.synchronize_device(0)
        for flat, address in self.owners.values():
            if flat.size:
                self.device.copy(0, flat.ctypes.data, address, flat.size, DEVICE_TO_HOST)
