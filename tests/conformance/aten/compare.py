# SPDX-License-Identifier: Apache-2.0
"""Runs a call by anyop.aten and by torch on the same values, and says how results, arguments and memory differ."""

from __future__ import annotations

from typing import Any, NamedTuple

import calls
import numpy as np
import oracle
import torch
from inputs import Call, arrays
from oracle import Refused

# Their results hold no values yet. What _make_dep_token returns is a mark without values, too.
UNSET = ("empty", "new_empty", "resize", "_resize", "_make_dep_token")
MOVED = ("set_", "set_data", "resize_", "resize_as_")  # besides torch's tag inplace_view
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5, "complex64": 1e-5}


class Seen(NamedTuple):
    """One side: its results and what its arrays hold afterwards, as NumPy arrays."""

    results: list
    arrays: list
    places: list  # for each result and array: how the result lies in it (bytes, strides), or None
    same_objects: list  # for each result: the array that it is, or None


def leaves(value: Any) -> list:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def is_unset(overload: oracle.Overload) -> bool:
    return overload.base.startswith(UNSET)


def is_moved(overload: oracle.Overload) -> bool:
    """Gives its tensor other memory, sizes or strides, which it cannot do to another framework's array."""
    return "inplace_view" in overload.tags or overload.base in MOVED


def run_torch(name: str, args: list, kwargs: dict) -> Any:
    try:
        return oracle.call(name, args, kwargs)
    except Exception as error:
        text = str(error).strip().partition("\n")[0][:150]
        raise Refused(f"{type(error).__name__}: {text}") from None


def torch_side(overload: oracle.Overload, args: tuple, kwargs: dict) -> Seen:
    positional, named = oracle.as_torch(overload, args, kwargs)
    tensors = [leaf for leaf in leaves([positional, named]) if isinstance(leaf, torch.Tensor)]
    originals = [oracle.to_numpy(tensor) for tensor in tensors]  # in-place views change the tensors
    found = leaves(run_torch(overload.name, positional, named))
    if overload.results and overload.results[0].type == "ScalarType":
        found = [oracle.dtype_names()[code] for code in found]
    try:
        results = [oracle.to_numpy(leaf) for leaf in found]
        after = [oracle.to_numpy(tensor) for tensor in tensors]
    except Exception as error:
        text = str(error).partition("\n")[0][:100]
        raise Refused(f"NumPy cannot hold a result: {text}") from None
    same = identities(found, tensors)
    lying = in_memory(found, results, originals, same)
    return Seen(results, after, places(lying, originals), same)


def anyop_side(
    function,
    framework,
    overload: oracle.Overload,
    args: tuple,
    kwargs: dict,
    values: list | None = None,
) -> Seen:
    """values, where given, is filled with the framework's arrays before the call."""
    values = [] if values is None else values

    def put(value):
        if isinstance(value, list):
            return [put(item) for item in value]
        if isinstance(value, np.ndarray):
            values.append(framework.put(value))
            return values[-1]
        return value

    positional = [put(value) for value in args]
    named = {key: put(value) for key, value in kwargs.items()}
    names = [param.name for param in overload.params]
    if "generator" in names[len(args) :] and framework.name != "torch":
        named["generator"] = oracle.SEED
    if not values:
        named["like"] = framework.name.lower()
    before = [framework.get(value) for value in values]  # in-place views change torch's tensors
    torch.manual_seed(oracle.SEED)
    name = overload.name if "." in overload.name else overload.name + ".default"
    found = leaves(function(name, *positional, **named))
    for leaf in found:
        foreign = hasattr(leaf, "__dlpack__") and not framework.owns(leaf)
        assert not foreign, f"a result is {type(leaf)}, not {framework.name}'s"
    results = [framework.get(leaf) if framework.owns(leaf) else _plain(leaf) for leaf in found]
    after = [framework.get(value) for value in values]
    same = identities(found, values)
    return Seen(results, after, places(in_memory(found, results, before, same), before), same)


def _plain(value):
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else value


def identities(found: list, values: list) -> list:
    return [next((n for n, v in enumerate(values) if v is leaf), None) for leaf in found]


def in_memory(found: list, results: list, before: list, same: list) -> list:
    """The results, but where torch returns an argument whose values are conj or neg of its memory: that memory."""
    lazy = [isinstance(leaf, torch.Tensor) and (leaf.is_conj() or leaf.is_neg()) for leaf in found]
    return [
        before[number] if is_lazy and number is not None else result
        for result, number, is_lazy in zip(results, same, lazy)
    ]


def places(results: list, after: list) -> list:
    def place(result, array):
        within = isinstance(result, np.ndarray) and result.size and array.size
        if not within or not np.may_share_memory(result, array):
            return None
        strides = [s for s, size in zip(result.strides, result.shape) if size > 1]
        return result.ctypes.data - array.ctypes.data, strides

    return [[place(result, array) for array in after] for result in results]


def functional(overload: oracle.Overload, args: tuple, kwargs: dict) -> list:
    """What the functional form of an out= or in-place overload returns in torch, by result; [] without one."""
    source = calls.origin(overload.name) if overload.kind in ("out", "in-place") else None
    if source is None or not {*kwargs} <= {param.name for param in source.params}:
        return []
    found = run_torch(source.name, *oracle.as_torch(source, args, kwargs))
    return [*found] if isinstance(found, tuple) else [found]


def with_outs(overload: oracle.Overload, kwargs: dict, results: list) -> dict:
    """Adds memory for results, full of rubbish, in the shapes that the functional form returns."""
    outs = [param for param in overload.params if param.writes]
    if overload.kind != "out" or any(out.name in kwargs for out in outs):
        return kwargs
    if len(results) != len(outs):
        raise Refused(f"out= takes {len(outs)} tensors, its functional form returns {len(results)}")
    filled = {}
    for param, value in zip(outs, results):
        if not all(isinstance(leaf, torch.Tensor) for leaf in leaves(value)):
            raise Refused("a result of the functional form is no tensor")
        filled[param.name] = _rubbish(oracle.to_numpy(value))
    return {**kwargs, **filled}


def _rubbish(value):
    if isinstance(value, list):
        return [_rubbish(item) for item in value]
    return np.full(value.shape, 7, value.dtype)


def difference(found: Any, expected: Any) -> str:
    """Nothing for the same bits, "close", or how they differ."""
    if not isinstance(expected, np.ndarray):
        same = type(found) is type(expected) and (found == expected or found != found)
        return "" if same else f"{found!r} and not {expected!r}"
    if not isinstance(found, np.ndarray):
        return f"{found!r} and not an array of {expected.dtype}"
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return f"{found.dtype}{found.shape} and not {expected.dtype}{expected.shape}"
    if found.tobytes() == expected.tobytes():
        return ""
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, b = found.astype(wide), expected.astype(wide)
    if np.array_equal(a, b, equal_nan=True):
        return ""
    limit = TOLERANCE.get(expected.dtype.name, 1e-10)
    if expected.dtype.kind in "fcV" and np.allclose(a, b, limit, limit, equal_nan=True):
        return "close"
    return f"{a.ravel()[:5]} and not {b.ravel()[:5]}"


class Checked(NamedTuple):
    """What a call has shown."""

    values: int = 0  # results and written arguments that were compared
    close: int = 0  # of them: not the same bits
    shapes: int = 0  # compared by shape and dtype alone
    refusals: int = 0  # to write what nobody may write


def check(function, framework, overload: oracle.Overload, call: Call, sample: int) -> Checked:
    """Raises AssertionError where anyop differs from torch, and Refused where torch takes no such call."""
    args, kwargs = arrays(call, sample)
    forms = functional(overload, args, kwargs)
    kwargs = with_outs(overload, kwargs, forms)
    expected = torch_side(overload, args, kwargs)
    before = [leaf for leaf in leaves([args, kwargs]) if isinstance(leaf, np.ndarray)]
    written = written_arrays(overload, args, kwargs)
    if not framework.writable and wants_to_write(overload, args, kwargs, before, expected):
        return refusal(function, framework, overload, args, kwargs)
    found = anyop_side(function, framework, overload, args, kwargs)
    assert len(found.results) == len(expected.results), f"{len(found.results)} results"
    count = Checked()
    for number, (f, e) in enumerate(zip(found.results, expected.results)):
        count = compare(overload, f, e, f"result {number}", count)
    for number, (f, e) in enumerate(zip(found.arrays, expected.arrays)):
        if f.shape != e.shape or is_moved(overload):
            continue  # judged by the result: the caller's array stays where it is
        added = compare(overload, f, e, f"array {number} afterwards", count)
        if f.tobytes() != before[number].tobytes():
            count = added
    results = (
        found.results
        if any(isinstance(r, np.ndarray) for r in found.results)
        else [array for array, is_written in zip(found.arrays, written) if is_written]
    )
    for number, (f, e) in enumerate(zip(results, map(oracle.to_numpy, leaves(forms)))):
        differs = overload.name in calls.OUT_DIFFERS
        if not differs and isinstance(e, np.ndarray) and (f.dtype, f.shape) == (e.dtype, e.shape):
            compare(overload, f, e, f"result {number}, by the functional form,", count)
    if framework.shares:
        check_memory(overload, found, expected)
    for is_written, then, now in zip(written, before, found.arrays):
        assert is_written or then.tobytes() == now.tobytes(), "an argument was written"
    return count


def wants_to_write(overload, args: tuple, kwargs: dict, before: list, expected: Seen) -> bool:
    """Whether an array is written by the schema, or was by torch."""
    given = [*zip(overload.params, args), *((p, kwargs.get(p.name)) for p in overload.params)]
    named = (p.writes and isinstance(leaf, np.ndarray) for p, v in given for leaf in leaves(v))
    changed = (a.tobytes() != b.tobytes() for a, b in zip(before, expected.arrays))
    return any(named) or any(changed)


def refusal(function, framework, overload, args: tuple, kwargs: dict) -> Checked:
    """Arrays that nobody may write are refused before anything is written."""
    values: list = []
    try:
        anyop_side(function, framework, overload, args, kwargs, values)
    except (TypeError, ValueError) as error:
        assert overload.base in str(error), f"a refusal without the operator's name: {error}"
    else:
        raise AssertionError(f"{framework.name}'s array was to be written, and nothing refused it")
    arrays = [leaf for leaf in leaves([args, kwargs]) if isinstance(leaf, np.ndarray)]
    for value, array in zip(values, arrays):
        assert framework.get(value).tobytes() == array.tobytes(), "an immutable array was written"
    return Checked(refusals=1)


def compare(overload, found, expected, what: str, count: Checked) -> Checked:
    if is_unset(overload) and isinstance(expected, np.ndarray):
        shapes = (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert shapes, f"{what} is {found.dtype}{found.shape}"
        return count._replace(shapes=count.shapes + 1)
    verdict = difference(found, expected)
    assert verdict in ("", "close"), f"{what} is {verdict}"
    if expected is None:
        return count
    return count._replace(values=count.values + 1, close=count.close + bool(verdict))


def check_memory(overload: oracle.Overload, found: Seen, expected: Seen) -> None:
    """Results lie where torch's lie, and what is returned as written is the caller's own object."""
    assert found.places == expected.places, (
        f"results lie at {found.places}, {expected.places} in torch"
    )
    for number, array in enumerate(expected.same_objects):
        if array is None or found.arrays[array].shape != expected.results[number].shape:
            continue
        if overload.kind in ("out", "in-place") and not is_moved(overload):
            assert found.same_objects[number] == array, f"result {number} is another object"


def written_arrays(overload: oracle.Overload, args: tuple, kwargs: dict) -> list[bool]:
    """For each array of a call whether the operator may write it."""
    by_name = {param.name: param.writes or param.hidden_write for param in overload.params}
    given = [*zip(by_name.values(), args), *((by_name[key], kwargs[key]) for key in kwargs)]
    return [
        writes for writes, value in given for leaf in leaves(value) if isinstance(leaf, np.ndarray)
    ]
