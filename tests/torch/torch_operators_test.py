# SPDX-License-Identifier: Apache-2.0
"""Every operator as torch.ops.anyop.<op>: torch's own checks, results as those of anyop.<op>."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import anyop.torch
import pytest
import torch
from anyop import testing
from anyop.cases.dtype_choices import is_floating
from anyop.testing.torch_cases import torch_call, torch_calls
from torch.utils._pytree import tree_leaves, tree_map

# What returns nothing is for the test beside it, and for third_party_test.py.
SUBJECTS = {
    s.name: s for s in testing.find_subjects(Path(__file__).parents[2] / "ops") if s.results
}
OPCHECKED = ("base", "absent", "broadcast", "expand")
ALL_CHECKS = (
    "test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic",
)  # fmt: skip
subjects = pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS)


def packet(subject):
    return getattr(getattr(torch.ops, subject.metadata["namespace"]), subject.metadata["name"])


def differentiable(subject, args):
    """The arguments, with gradients wanted where the operator has them."""
    if subject.metadata["backward"] is None:
        return args
    gives = anyop.metadata(subject.metadata["backward"]["name"])["results"]
    wanted = {param["name"].removeprefix("grad_") for param in gives}
    return tuple(
        value.requires_grad_()
        if param["name"] in wanted and value is not None and is_floating(str(value.dtype))
        else value
        for param, value in zip(subject.inputs, args)
    )


@subjects
def test_torch_checks_the_operator(subject):
    """Schema, autograd registration, fake kernel, and tracing with symbolic sizes: torch.library.opcheck."""
    seen = set()
    calls = list(torch_calls(subject, OPCHECKED))
    for label, args, kwargs in [*islice(calls, 1), *calls[-2:]]:
        if label not in seen:
            seen.add(label)
            args = differentiable(subject, args)
            # test_schema compares inputs before and after, which torch cannot with floats of 8 bits
            small = any("float8" in str(getattr(value, "dtype", "")) for value in args)
            tests = ALL_CHECKS[small:]
            results = torch.library.opcheck(packet(subject).default, args, kwargs, test_utils=tests)
            assert set(results.values()) == {"SUCCESS"}, (label, results)
            assert len(results) == len(tests), (label, results)
    assert seen


@subjects
def test_results_are_those_of_the_function(subject):
    """Both entries; in every dtype, and of many combinations in some."""
    choices = testing.dtype_choices(subject.metadata)
    choices = [c for at, c in enumerate(choices) if c.is_uniform or at % 7 == 0]
    for choice in choices:
        case = testing.good_cases(subject, choice)[0]
        label, args, kwargs = torch_call(subject, case)
        expected = tree_leaves(subject.function(*args, **kwargs))
        found = tree_leaves(packet(subject)(*args, **kwargs))
        assert len(found) == len(expected) >= 1, label
        for a, b in zip(found, expected):
            assert a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride(), label
            assert bits(a) == bits(b), label
    assert choices


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@subjects
def test_results_go_where_they_are_wanted(subject):
    op = packet(subject)
    if "out" not in op.overloads():
        assert any(param["optional"] for param in subject.results), "only these lack it"
        return
    for label, args, kwargs in torch_calls(subject, ("base", "empty", "absent")):
        again = tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, (args, kwargs))
        expected = tree_leaves(op(*again[0], **again[1]))  # which may write its arguments
        names = [param["name"] for param in subject.results]
        places = {name: torch.empty_like(tensor) for name, tensor in zip(names, expected)}
        versions = [place._version for place in places.values()]
        assert op.out(*args, **kwargs, **places) is None
        for place, tensor, version in zip(places.values(), expected, versions):
            assert bits(place) == bits(tensor), label
            assert place._version == version + 1, label
