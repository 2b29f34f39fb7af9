# SPDX-License-Identifier: Apache-2.0
"""The standard tests' good inputs as torch tensors, for what torch itself tests of an operator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anyop.cases.callers import to_torch
from anyop.cases.dtype_choices import DtypeChoice, dtype_choices
from anyop.cases.good_cases import Case, good_cases
from anyop.cases.subject import Subject
from anyop.cases.values import build

Call = tuple[str, tuple, dict[str, Any]]  # what it is, positional arguments, those by keyword


def torch_call(subject: Subject, case: Case) -> Call:
    """One call of torch.ops.<namespace>.<op>: arguments behind a `*` by keyword, absent ones left out or None."""
    import torch

    found = {name: to_torch(value) for name, value in build(subject, case).arguments.items()}
    args, kwargs = [], {}
    for param in subject.inputs:
        name = param["name"]
        if name in found and param["kind"] == "ScalarType" and isinstance(found[name], str):
            found[name] = getattr(torch, found[name])
        if param["keyword_only"]:
            if name in found:
                kwargs[name] = found[name]
        elif name in found or not param["has_default"]:
            args.append(found.get(name))
        else:
            args.append(_default(param))
    return f"{subject.name}-{case.choice}-{case.label}", tuple(args), kwargs


def _default(param: dict[str, Any]) -> Any:
    import torch

    value = param["default"]
    if param["kind"] == "float" and isinstance(value, str):
        return float(value)  # JSON writes infinities as text
    return getattr(torch, value) if param["kind"] == "ScalarType" and value else value


def torch_calls(
    subject: Subject, what: tuple[str, ...], choice: DtypeChoice | None = None
) -> Iterator[Call]:
    """Calls of these classes of good cases (anyop.testing.CASE_CLASSES); of the first dtypes if none are chosen."""
    choice = choice or dtype_choices(subject.metadata)[0]
    for case in good_cases(subject, choice):
        if case.what in what:
            yield torch_call(subject, case)
