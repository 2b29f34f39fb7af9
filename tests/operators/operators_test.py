# SPDX-License-Identifier: Apache-2.0
"""The standard tests of every operator and dtype, written from the schemas, and how many of them there must be."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from functools import cache, partial
from pathlib import Path

import anyop
import numpy as np
import pytest
from anyop import testing
from anyop.cases.callers import to_torch
from anyop.cases.dtype_choices import numpy_dtype
from anyop.cases.good_cases import has_special
from anyop.cases.sizes import Misfit, Sizes, evaluate, match
from anyop.cases.values import shapes_of
from anyop.testing.check import Checked
from anyop.testing.refusals import CLASSES, classes
from anyop.testing.refuse_torch import torch_missing
from drawn import FULL, part

pytest.importorskip("ml_dtypes", reason="bfloat16 and float8 in NumPy are ml_dtypes arrays")

SUBJECTS = {s.name: s for s in testing.find_subjects(Path(__file__).parents[2] / "ops")}


def _choices(subject) -> list:
    """Its combinations of dtypes; a subject whose file lacks something fails in its test, not here."""
    try:
        return testing.dtype_choices(subject.metadata)
    except LookupError:
        return [None]


CHOICES = [
    pytest.param(subject, choice, id=f"{name}-{choice}")
    for name, subject in SUBJECTS.items()
    for choice in _choices(subject)
]
MIN_REFUSALS = 60  # of every operator
# What no operator of the tree has; tests/third_party/third_party_test.py has operators that do.
NOT_IN_THE_TREE = {"count of a list"}


def subjects(test):
    return pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS)(test)


def show(failures: list[str]) -> None:
    if failures:
        pytest.fail(
            f"{len(failures)} failures, the first:\n" + "\n".join(failures[:8]), pytrace=False
        )


def test_every_operator_is_tested():
    assert sorted(SUBJECTS) == sorted(anyop.list_ops("anyop"))
    assert {p.values[0].name for p in CHOICES} == set(SUBJECTS)


@pytest.mark.parametrize(("subject", "choice"), CHOICES)
def test_good_inputs(subject, choice, tally):
    assert choice, testing.dtype_choices(subject.metadata)
    total, failures, kinds = Checked(), [], Counter()
    for case in testing.standard_cases(subject, choice):
        kinds[case.what] += 1
        try:
            total.add(testing.check_case(subject, case))
        except testing.CheckError as error:
            failures.append(str(error))
    tally[subject.name].update(
        {
            "dtypes": 1, "cases": kinds.total(), "calls": total.calls, "values": total.values,
            "guard bytes": total.guard_bytes,
        }
    )  # fmt: skip
    show(failures)
    check_case_counts(subject, choice, kinds)
    # Of lists there may be one value for all.
    least = kinds.total() // 2 if subject.metadata["symbols"]["element_groups"] else 1000
    assert total.values > least and total.calls >= 2 * kinds.total()
    assert total.guard_bytes > 10_000 or not subject.results


def _ones_satisfy(conditions, letters) -> bool:
    """Whether sizes of 1 are allowed; where attributes or groups decide, yes."""
    ones = Sizes(dict.fromkeys(letters, 1))
    for condition in conditions:
        with contextlib.suppress(Misfit, KeyError):
            if not evaluate(condition["expression"], ones):
                return False
    return True


def check_case_counts(subject, choice, kinds: Counter) -> None:
    """An empty generator must not look like success."""
    symbols = subject.metadata["symbols"]
    joined = {group for join in symbols["joins"] for group in join}
    applies = {
        "size": symbols["sizes"],
        "group": set(symbols["groups"]) - joined - set(symbols["element_groups"]),
        "broadcast": joined,
        "expand": any(param["shape"]["expand"] for param in subject.tensors),
        "one element": _ones_satisfy(subject.metadata["conditions"], symbols["sizes"]),
        "attribute": [p for p in subject.attributes if p["name"] not in choice.names],
        "absent": any(param["optional"] for param in subject.tensors),
        "list": any(param["list"] for param in subject.tensors),
        "special": has_special(subject, choice),
    }
    for what in testing.CASE_CLASSES:
        expected = bool(applies.get(what, True))
        assert bool(kinds[what]) == expected, f"{what}: {kinds[what]} cases, applies: {expected}"
    # Lists have tensors of all sizes in one case.
    lists = bool(symbols["element_groups"])
    has_few = lists or "sizes" in (subject.metadata["test"] or {})
    assert kinds["size"] + kinds["group"] + kinds["broadcast"] >= 20 or has_few
    # Thinned cases of lists may have one that is empty: the list or a tensor of it.
    assert kinds["empty"] >= (1 if lists else 2)
    assert kinds["view"] >= 2 and kinds.total() >= (30 if lists else 50)


@cache
def refusal_counts(name: str) -> Counter:
    """How many bad calls each class makes, without making them."""
    good = testing.Good(SUBJECTS[name])
    return Counter({c.kind: sum(1 for _ in c.make(good)) for c in classes()})


@subjects
def test_bad_inputs(subject, tally):
    good, failures, counts = testing.Good(subject), [], Counter()
    for refusal in testing.refusals(good):
        counts[refusal.kind] += 1
        try:
            testing.check_refusal(good, refusal)
        except testing.CheckError as error:
            failures.append(str(error))
    tally[subject.name]["refusals"] = counts.total()
    tally["refusals by class"].update(counts)
    show(failures)
    assert counts.total() >= MIN_REFUSALS
    assert counts == +refusal_counts(subject.name)


@subjects
def test_every_class_that_applies_has_bad_inputs(subject):
    counts = refusal_counts(subject.name)
    empty = [c.kind for c in classes() if c.applies(subject) and not counts[c.kind]]
    assert not empty
    assert counts.total() >= MIN_REFUSALS


def test_every_class_occurs():
    """Some operator has bad inputs of each: one to which it applies is drawn, in the long form all are tried."""
    total: Counter = Counter()
    for one in classes():
        apply = [name for name in SUBJECTS if FULL or one.applies(SUBJECTS[name])]
        begin = part(len(apply), one.kind) if apply else 0
        for name in apply[begin:] + apply[:begin]:
            if total[one.kind] and not FULL:
                break
            total += refusal_counts(name)
    assert {c.kind for c in classes()} - set(total) == NOT_IN_THE_TREE & {c.kind for c in classes()}
    if FULL:
        assert sum(refusal_counts(name).total() for name in SUBJECTS) >= 200 * len(SUBJECTS)
    # Every sort of check that the core promises.
    assert {c.check for c in CLASSES.values()} == {
        "arity", "types", "ranges of narrow integers", "dtype sets and equalities", "symbolic shapes", "rank", "device",
        "contiguity", "alignment", "byte_offset", "overflow of sizes", "overlap of outputs with inputs",
        "read-only memory", "immutable arrays",
    }  # fmt: skip


def _listed(value) -> list:
    return value if isinstance(value, list) else [] if value is None else [value]


@subjects
def test_torch_gives_the_same_bits(subject):
    if reason := torch_missing():
        pytest.skip(reason)
    import torch

    for choice in testing.dtype_choices(subject.metadata):
        if any(not hasattr(torch, name) for name in choice.names.values() if name):
            continue
        good = testing.Good(subject, choice)
        own = good.arguments()
        tensors = {n: to_torch(v) for n, v in good.arguments().items()}
        expected, found = subject.function(**own), subject.function(**tensors)
        if not subject.results:  # what it wrote
            written = [param["name"] for param in subject.tensors if param["mutated"]]
            expected, found = (
                tuple(item for name in written for item in _listed(of.get(name)))
                for of in (own, tensors)
            )
        pairs = zip(found, expected) if isinstance(expected, tuple) else [(found, expected)]
        for tensor, array in pairs:
            assert type(tensor) is torch.Tensor and tensor.shape == array.shape
            assert str(tensor.dtype) == f"torch.{array.dtype.name}"
            bits = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
            assert bits.tobytes() == array.tobytes()


@subjects
def test_threads_do_not_change_a_bit(subject):
    """The large cases give one result with 1, 2 and 3 threads: pieces of work do not overlap or leave gaps."""
    before = anyop.get_num_threads()
    choice = testing.dtype_choices(subject.metadata)[0]
    large = [c for c in testing.good_cases(subject, choice) if c.what == "large"]
    assert large
    try:
        for case in large:
            results = []
            for count in (1, 2, 3):
                anyop.set_num_threads(count)
                found = subject.function(**testing.build(subject, case).arguments)
                found = found if isinstance(found, tuple) else (found,)
                results.append([np.asarray(array).tobytes() for array in found])
            assert results[1:] == results[:1] * 2, case.label
    finally:
        anyop.set_num_threads(before)


@subjects
def test_shapes_are_accepted_exactly_when_they_fit(subject):
    """Random changes of good shapes: the core and an oracle written from the documentation agree on each."""
    good, generator = testing.Good(subject), random.Random(subject.name)
    dtypes = {
        p["name"]: good.choice.names[p["name"]]
        for p in subject.attributes
        if p["kind"] == "ScalarType"
    }
    accepted = refused = 0
    for _ in range(150):
        point = good.drawer.solve(wild=True)
        case = good.case_at(point)
        shapes = {p["name"]: shapes_of(p, case) for p in subject.tensors}
        # Of many tensors some stay, or hardly a call would be good.
        most = 6 / sum(map(len, shapes.values()))
        shapes = {
            name: [perturbed(s, generator) if generator.random() < most else s for s in found]
            for name, found in shapes.items()
        }
        shapes |= {p["name"]: shapes[p["name"]][0] for p in subject.tensors if not p["list"]}
        integers = {name: point.sizes.values[name] for name in good.drawer.symbols["attributes"]}
        try:
            match(subject.metadata, shapes, integers, point.sizes.texts)
            fits = True
        except Misfit:
            fits = False
        made = {n: partial(np.zeros, dtype=numpy_dtype(good.choice.names[n])) for n in shapes}
        arrays = {
            n: [made[n](s) for s in found] if isinstance(found, list) else made[n](found)
            for n, found in shapes.items()
        }
        try:
            subject.function(**arrays, **point.attributes, **dtypes)
            accepted += 1
        except ValueError as error:
            if fits and "expected 0 <= index" in str(error):
                continue  # a table without rows has no good index
            refused += 1
            assert not fits, f"{shapes} {point.attributes} fit, but: {error}"
        except IndexError as error:  # a cache without places has no good slot
            assert fits and "< 0" in str(error), error
        else:
            assert fits, f"{shapes} {point.attributes} were accepted"
    assert accepted >= 20 and accepted + refused >= 120
    assert refused or len(subject.tensors) == 1


def perturbed(shape: tuple[int, ...], generator: random.Random) -> tuple[int, ...]:
    """The shape, mostly as it is, else with a size changed, added, doubled or left out."""
    changed, at = list(shape), generator.randrange(len(shape) + 1)
    way = generator.randrange(12)
    if way == 0:
        changed.insert(at, generator.choice((0, 1, 2, 3)))
    elif way in (1, 2) and at < len(shape):
        changed[at] = generator.choice((0, 1, 2, 3, changed[at] + 1, changed[at] * 2))
    elif way == 3 and at < len(shape):
        del changed[at]
    return tuple(changed)
