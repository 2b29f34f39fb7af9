# SPDX-License-Identifier: Apache-2.0
"""The standard tests of a whole folder whose operators are loaded: from every framework here, and its own pytest files.

What happens is told as plain dictionaries, one at a time, so that it can be sent to another process:
{"at": text}, {"row": {…}} of each operator and framework, {"note": text}, {"compiled": operator, "for": device} of one
that only a device which is not here could run, {"pytest": exit code, "output": text}.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import anyop
from anyop._paths import is_installed
from anyop.builder.folder import DEVICE_SUFFIXES
from anyop.cases.callers import CALLERS, Caller, TorchCudaCaller, missing
from anyop.cases.dtype_choices import has_ml_dtypes
from anyop.cases.subject import Subject, find_subjects, siblings
from anyop.testing.standard import Row, has_reference, try_arrays, try_device, try_framework

Tell = Callable[[dict[str, Any]], None]


def try_folder(
    folder: str, tell: Tell, only: str = "", frameworks: list[str] | None = None
) -> None:
    """Tests every operator below folder whose name contains `only`; LookupError where there is none."""
    every = {subject.name: subject for subject in find_subjects(folder)}
    subjects = [subject for name, subject in every.items() if only in name]
    if not subjects:
        raise LookupError(
            f"no operator of {', '.join(every) or 'this folder'} has '{only}' in its name"
        )
    _note_what_is_missing(subjects, tell)
    wanted = list(CALLERS) if frameworks is None else frameworks

    ran: set[str] = set()

    def at(text: str) -> None:
        tell({"at": text})

    def show(row: dict[str, Any]) -> None:
        if not row["skipped"]:
            ran.add(row["operator"])
        tell({"row": row})

    if "numpy" in wanted:
        for subject in subjects:
            if any(kernel["backend"] == "cpu" for kernel in subject.metadata["kernels"]):
                backward = _backward(subject, every)
                show(_row(try_arrays, subject, backward, at, "torch" in wanted))
    for caller in _callers(wanted, subjects, tell, at):
        attempt = try_framework if caller.backend == "cpu" else try_device
        for subject in subjects:
            with _on_cpu(caller):
                show(_row(attempt, subject, _backward(subject, every), caller, at))
    for subject in subjects:
        if subject.name not in ran and (devices := _devices_only(subject)):
            tell({"compiled": subject.name, "for": " and ".join(devices)})
    _run_pytest(folder, subjects, not only, tell)


def _devices_only(subject: Subject) -> list[str]:
    """The devices that the library's kernels are for, where none is for the CPU."""
    there = anyop.backends(subject.name)
    found = {k["device"] for k in subject.metadata["kernels"] if k["backend"] in there}
    return sorted(found) if found <= {*DEVICE_SUFFIXES} else []


def _row(attempt: Callable[..., Row], subject: Subject, *more: Any) -> dict[str, Any]:
    """What attempt(subject, …) gives. A schema that lacks what its tests need is that operator's failure."""
    try:
        row = attempt(subject, *more)
    except LookupError as error:
        text = str(error).removeprefix(f"{subject.name}: ")
        row = Row(subject.name, "-", "-", failures=[f"{subject.name}: {text}"])
    if not (row.cases or row.failures or row.skipped):
        row.skipped = "none of its dtypes is there"
    return asdict(row)


def _backward(subject: Subject, every: dict[str, Subject]) -> Subject | None:
    """The operator of [backward]; None where there is none, or where it needs results of another forward."""
    stated = subject.metadata["backward"]
    if not stated or not set(stated["saves"]) <= {
        p["name"] for p in subject.inputs + subject.results
    }:
        return None
    name = stated["name"].replace("::", ".")
    return every.get(name) or every.get(f"{subject.metadata['namespace']}.{name}")


def _note_what_is_missing(subjects: list[Subject], tell: Tell) -> None:
    for subject in subjects:
        if not has_reference(subject):
            test = f"{subject.file.stem}_test.py"
            tell({"note": f"{subject.name}: no function `reference` in {test}, so no value was compared; shapes, "
                          "dtypes, guard bytes, equal bits by every way of calling, and refusals were"})  # fmt: skip
    if not has_ml_dtypes():
        mend = "python -m pip install ml_dtypes"
        tell({"note": f"ml_dtypes is not installed: bfloat16 and float8 were left out ({mend})"})


def _callers(
    wanted: list[str], subjects: list[Subject], tell: Tell, at: Callable
) -> Iterator[Caller]:
    """All but NumPy that work here; of the others a note."""
    reasons = {name: missing(name) for name in wanted}
    if any(reasons.values()):
        tell({"note": "not tested from: " + "; ".join(filter(None, reasons.values()))})
    for name in wanted:
        if name == "numpy" or reasons[name]:
            continue
        at(f"importing {name}")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                caller = CALLERS[name]()
        except Exception as error:  # an installed framework may be broken in any way
            tell({"note": f"{name} cannot be imported: {type(error).__name__}: {error}"})
            continue
        yield caller
        cuda = any(k["backend"] == "cuda" for s in subjects for k in s.metadata["kernels"])
        if name == "torch" and cuda:
            if caller.framework.cuda.is_available():
                yield TorchCudaCaller()
            else:
                tell(
                    {"note": "there is no CUDA device that torch can use: CUDA kernels did not run"}
                )


def _on_cpu(caller: Caller) -> contextlib.AbstractContextManager:
    """JAX makes its arrays on a GPU where it can; the CPU's kernels are what is tested."""
    if caller.name != "jax":
        return contextlib.nullcontext()
    return caller.framework.default_device(caller.framework.devices("cpu")[0])


def _run_pytest(folder: str, subjects: list[Subject], everything: bool, tell: Tell) -> None:
    """The folder's own tests, in this process, which has the operators."""
    files = {s.file.with_name(f"{s.file.stem}_test.py") for s in subjects}
    if everything:
        tests = {*Path(folder).rglob("*_test.py"), *Path(folder).rglob("test_*.py")}
        files |= {f for f in tests if "/." not in f"/{f.relative_to(folder)}"}  # not in .venv
    paths = sorted(map(str, filter(Path.is_file, files)))
    if not paths:
        return
    if not is_installed("pytest"):
        mend = "python -m pip install pytest"
        tell({"note": f"pytest is not installed: the folder's own tests did not run ({mend})"})
        return
    import pytest

    class Watch:
        """Says which test runs, and lets it import what lies beside it."""

        @pytest.hookimpl(hookwrapper=True)
        def pytest_make_collect_report(self, collector: Any) -> Iterator[None]:
            with siblings(collector.path.parent):
                yield

        @pytest.hookimpl(hookwrapper=True)
        def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
            tell({"at": f"own tests: {item.path.name}::{item.name}"})
            with siblings(item.path.parent):
                yield

    tell({"at": "own tests"})
    output = io.StringIO()
    options = ["-q", "--no-header", "-p", "no:cacheprovider", "--import-mode=importlib"]
    with contextlib.redirect_stdout(output):
        code = int(pytest.main([*options, *paths], plugins=[Watch()]))
    tell({"pytest": code, "output": output.getvalue()})
