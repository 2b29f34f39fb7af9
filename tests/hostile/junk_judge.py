# SPDX-License-Identifier: Apache-2.0
"""What may come of a call of junk: the right value, or a documented error that names the operator; else a fault."""

from __future__ import annotations

import contextlib
import re
import warnings
from typing import Any

import numpy as np
from anyop.adapter.constants import promoted
from anyop.cases.dtype_choices import is_floating
from anyop.cases.sizes import evaluate
from anyop.cases.values import in_float64
from anyop.testing.dlpack import DlpackArray
from junk_draft import NOTHING, Draft
from junk_objects import OneOf

DOCUMENTED = (ValueError, TypeError, IndexError, NotImplementedError, MemoryError)
OF_DATA = re.compile(
    r"\w+\[[\d, ]+\] is | is unknown, expected |an index is outside|alpha has a fraction|softcap is "
)  # the kernel had begun
FORBIDDEN = re.compile(
    r"/\w+/\w+\.|\.(?:cc|cpp|cu|hpp)\b|std::|c10::|torch::Tensor|TORCH_|INTERNAL ASSERT|static_cast"
)

OWN_TEXTS = (  # of the objects that are passed
    "this array is busy", "DLPack only supports", "weakly-referenced object", "Cannot export readonly array",
    "mine", "an uninitialized parameter", "iter() returned non-iterator", "only one element variable can be converted",
)  # fmt: skip
NO_METHOD = re.compile(r"'[\w.]+' object is not callable$|__dlpack__\(\) missing \d required")


class Fault(Exception):
    """What is wrong with a call."""


def judge(draft: Draft) -> str:
    """Makes the call. "right" or "refused"; Fault where it is neither."""
    function = draft.bridge.entry(draft)
    plain = _plain(draft)
    # Into arguments; of those without results the end and the text are judged.
    writes = any(param["mutated"] for param in draft.subject.tensors)
    memory = [(p, p.memory.tobytes()) for p in draft.placed]
    positional, arguments = list(draft.positional), dict(draft.arguments)

    draft.raised.clear()

    def call() -> Any:
        with contextlib.ExitStack() as stack:
            for context in draft.contexts:
                stack.enter_context(context)
            return function(*positional, **arguments)

    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = draft.run(call) if draft.run else call()
    except BaseException as error:
        _check_error(draft, error)
        began = (
            bool(draft.raised)
            or _text(error) == "mine"
            or (draft.is_fake and "Please convert all Tensors" in _text(error))  # as torch.add does
            or OF_DATA.search(_text(error)[:1000]) is not None
        )  # hostile code ran
        if not began and not all(p.is_untouched() for p in draft.outputs.values()):
            raise Fault(f"a result was written although the call was refused: {error!r}") from None
        _check_memory(memory, (draft.may_change or writes) and began)
        return "refused"
    draft.busy = True  # what is asked from here on is asked by the judge, and changes nothing
    if getattr(draft, "action", "") == "change":
        plain = _before_or_after(plain, _plain(draft))
    _check_returned(draft, found, plain, arguments)
    _check_memory(memory, draft.may_change or writes)
    return "right"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""


def _check_memory(memory: list, may_change: bool) -> None:
    for placed, before in memory:
        if placed.memory.tobytes() != before and not may_change:
            raise Fault("an argument was changed, or bytes around it")


# ---- errors ----


def _check_error(draft: Draft, error: BaseException) -> None:
    name, text = draft.subject.name, _text(error)
    if any(error is own for own in draft.raised) or any(own in text for own in OWN_TEXTS):
        return
    if type(error) is TypeError and NO_METHOD.search(text):
        return  # Python's word of an object whose __dlpack__ is no method
    swallowed = [own for own in draft.raised if not isinstance(own, Exception)]
    if swallowed and not draft.bridge.swallows(draft):
        raise Fault(
            f"{type(swallowed[0]).__name__} of an argument became {type(error).__name__}: {text[:300]}"
        )
    if isinstance(error, RecursionError) and draft.may_recurse:
        return
    if draft.bridge.is_its_own(draft, error):
        return
    if type(error) not in DOCUMENTED:
        raise Fault(f"raised {type(error).__module__}.{type(error).__name__}: {text[:500]}")
    if not text.startswith(f"{name}: "):
        raise Fault(
            f"the text of {type(error).__name__} does not begin with the operator: {text[:500]}"
        )
    if isinstance(error, MemoryError):
        return  # behind the operator's name, result and shape stand the framework's own words
    if found := FORBIDDEN.search(text.replace(draft.subject.metadata["schema"], "")):
        raise Fault(f"the text shows {found[0]!r}: {text[:500]}")


# ---- values ----


def _plain(draft: Draft) -> dict[str, Any]:
    """What the arguments stand for before the call, by name; NOTHING where no call may accept them."""
    params = draft.subject.inputs
    given = dict(zip((p["name"] for p in params), draft.positional)) | draft.arguments
    may_be_numbers = [params[at]["name"] for at in promoted(draft.subject.metadata)]
    may_be_numbers += draft.subject.metadata.get("numbers", [])
    found = {}
    for param in params:
        name = param["name"]
        if name not in given:
            continue
        if name in may_be_numbers and type(given[name]) in (bool, int, float):
            found[name] = given[name]
            continue
        found[name] = draft.meaning(param["kind"], given[name])
        none = given[name] is None and not param["optional"]  # torch's False
        if draft.by_ops and (found[name] is NOTHING or none):
            found[name] = draft.bridge.reads(draft, param, given[name])
    return found


def _before_or_after(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Where an argument's code changed others, a call may have read each of them before or behind that."""
    return {
        name: OneOf((value, after[name]))
        if isinstance(value, np.ndarray) and isinstance(after[name], np.ndarray)
        else value
        for name, value in before.items()
    }


def _check_returned(draft: Draft, found: Any, plain: dict, arguments: dict) -> None:
    subject = draft.subject
    known = {p["name"] for p in subject.inputs + subject.results} | {"out"}
    if unknown := [name for name in arguments if name not in known]:
        raise Fault(f"was accepted with the unknown keyword {unknown[0][:40]!r}")
    swallowed = [own for own in draft.raised if not isinstance(own, Exception)]
    if swallowed and not draft.bridge.swallows(draft):
        raise Fault(f"was accepted although an argument raised {type(swallowed[0]).__name__}")
    if (draft.is_dead and draft.way) or draft.is_unread:
        return  # jax.eval_shape takes tracers of a trace that is over; what torch read is not known
    for name, value in plain.items():
        if value is NOTHING:
            raise Fault(f"was accepted, and {name} stands for nothing; gave {_short(found)}")
    problems = ["was accepted, and an argument stands for nothing"]
    for way in _ways(plain):
        problem = _differs(draft, found, way)
        if problem is None:
            break
        problems.append(problem)
    else:
        raise Fault(problems[-1])
    if not all(placed.is_guarded() for placed in draft.given):
        raise Fault("bytes outside of a result were written")
    for name, placed in draft.outputs.items():
        if not placed.is_guarded() and arguments.get(name) is not None:
            raise Fault(f"bytes outside of {name} were written")


def _ways(plain: dict[str, Any]) -> list[dict[str, Any]]:
    """One for each thing that an ambiguous value may stand for."""
    ways = [plain]
    for name, value in plain.items():
        if isinstance(value, OneOf):
            ways = [{**way, name: one} for way in ways for one in value if one is not NOTHING]
        for at, item in enumerate(value if isinstance(value, list) else ()):
            if isinstance(item, OneOf):
                ways = [
                    {**way, name: [*way[name][:at], one, *way[name][at + 1 :]]}
                    for way in ways
                    for one in item
                    if one is not NOTHING
                ]
    return ways


def _short(found: Any) -> str:
    try:
        return repr(found)[:100]
    except Exception:
        return type(found).__name__


def _differs(draft: Draft, found: Any, plain: dict[str, Any]) -> str | None:
    """How results differ from those of NumPy's plain call and of the reference; None where they do not."""
    subject = draft.subject
    before = {
        name: np.array(v, order="C") if isinstance(v, np.ndarray) else v
        for name, v in plain.items()
    }
    unwanted = {
        p["name"]: False for p in subject.results if draft.arguments.get(p["name"]) is False
    }
    try:
        with np.errstate(all="ignore"):
            expected = subject.function(**before, **unwanted)
    except Exception as error:
        if isinstance(error, MemoryError) or "array is too big" in str(error):
            return None  # JAX and Paddle make nothing of nothing, whatever its sizes
        is_unseen = draft.is_fake or draft.way == "eval_shape" or _is_left_out(draft, found)
        if is_unseen and OF_DATA.search(str(error)[:1000]):
            return None  # only a call that has values sees it
        return f"was accepted, and the same values in plain arrays are refused: {error}; gave {_short(found)}"
    count = len(subject.results)
    if count == 0:
        return None if found is None else f"gave {_short(found)}, expected nothing"
    expected = list(expected) if count > 1 else [expected]
    got = list(found) if type(found) is tuple else [found]
    if draft.by_ops and found is None:  # torch.ops returns nothing where all results are given
        got = [draft.arguments.get(param["name"]) for param in subject.results]
    if len(got) != count:
        return f"{len(got)} results, expected {count}"
    # NumPy makes what lies between an argument and an empty result: of terabytes.
    vast = any(
        isinstance(v, np.ndarray) and max(v.shape, default=0) > 2**24 for v in plain.values()
    )
    reference = None if vast else _reference(draft, plain)
    draft.terms = _terms(subject, plain)
    for at, param in enumerate(subject.results):
        problem = _compare(
            draft, param, got[at], expected[at], reference[at] if reference else None
        )
        if problem:
            return problem
    return None


def _is_left_out(draft: Draft, found: Any) -> bool:
    """Whether XLA makes empty results without a call of any kernel: a constant stands there."""
    results = found if type(found) is tuple else (found,)
    return draft.bridge.name == "jax" and all(0 in getattr(r, "shape", ()) for r in results)


def _compare(draft: Draft, param: dict, got: Any, expected: Any, reference: Any) -> str | None:
    name = param["name"]
    if expected is None or got is None:
        return None if got is expected else f"{name} is {_short(got)}, expected {_short(expected)}"
    if draft.is_fake:
        return None
    is_given = got is draft.arguments.get(name)
    if not draft.bridge.owns(got) and not is_given and not isinstance(got, np.ndarray):
        return f"{name} is a {type(got).__name__}"
    lent = got.array if isinstance(got, DlpackArray) else got  # its own shape is C's
    array = draft.bridge.array(lent)
    shape = tuple(getattr(got, "shape", expected.shape)) if array is None else array.shape
    if shape != expected.shape:
        return f"{name} has shape {shape}, expected {expected.shape}"
    if array is None:
        return None
    if array.dtype != expected.dtype:
        return f"{name} is of {array.dtype}, expected {expected.dtype}"
    tolerance = draft.subject.metadata["tolerance"].get(array.dtype.name, 0.0)
    if problem := _far(array, expected, 2 * tolerance):
        return f"{name}{problem} from NumPy"
    if reference is not None and (
        problem := _far(array, np.asarray(reference), tolerance, draft.terms)
    ):
        return f"{name}{problem} by the reference"
    return None


def _terms(subject: Any, plain: dict[str, Any]) -> float:
    """How large a product with a huge number, such as weight_offset, can be: all of it may cancel."""
    numbers = [abs(v) for v in plain.values() if isinstance(v, float) and 1e3 < abs(v) < np.inf]
    if not numbers:
        return 0.0
    sizes = [np.abs(in_float64(v)) for v in plain.values() if isinstance(v, np.ndarray)]
    largest = max((np.max(s, initial=0, where=np.isfinite(s)) for s in sizes), default=0.0)
    eps = next((plain.get("eps", p["default"]) for p in subject.inputs if p["name"] == "eps"), 1.0)
    small = isinstance(eps, float) and 1e-30 < eps < 1
    scale = 1 / np.sqrt(eps) if small else 1.0  # the most that a norm multiplies with
    return max(numbers) * float(largest) * float(scale)


def _far(
    array: np.ndarray, expected: np.ndarray, tolerance: float, terms: float = 0.0
) -> str | None:
    if expected.shape != array.shape:
        return f" has shape {array.shape}, expected {expected.shape}"
    with np.errstate(all="ignore"):
        rounded = in_float64(expected.astype(array.dtype))
        got, wanted = in_float64(array), in_float64(np.asarray(expected))
        same = got == rounded
        if is_floating(array.dtype.name):
            same |= np.isnan(got) & np.isnan(rounded)
            # A huge argument makes huge terms: where they cancel, their own rounding is left.
            sizes = np.abs(wanted)
            terms = max(terms, np.max(sizes, initial=0, where=np.isfinite(sizes)))
            unit = 2.0**-52 if array.dtype == np.float64 else 2.0**-23
            room = tolerance * (1 + sizes) + 4 * unit * terms
            farthest = in_float64((wanted + np.sign(got) * room).astype(array.dtype))
            is_near = (np.abs(got - wanted) <= room) | (got == farthest)  # both may be inf
            same |= np.isfinite(rounded) & is_near
    if same.all():
        return None
    at = tuple(map(int, np.argwhere(~same)[0]))
    return f"{list(at)} is {got[at]}, expected {wanted[at]}"


def _reference(draft: Draft, plain: dict[str, Any]) -> list | None:
    """What the float64 reference gives; None for values that it does not speak of."""
    subject = draft.subject
    ranges = (subject.metadata["test"] or {}).get("range", {})
    arguments = {}
    for param in subject.inputs:
        value = plain.get(param["name"], param["default"])
        if isinstance(value, np.ndarray):
            value = in_float64(value)
            if param["name"] in ranges and not _within(draft, value, ranges[param["name"]]):
                return None
        elif param["kind"] == "Tensor" and type(value) in (int, float) and not abs(value) <= 1:
            return None  # a number that the dtype may not have
        elif isinstance(value, str) and param["kind"] == "float":
            value = float(value)
        elif param["kind"] == "float" and value is not None and not 1e-30 < abs(value) < 1e30:
            return None  # float32 has no such eps
        arguments[param["name"]] = value
    _round_sum(subject, plain, arguments)
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = subject.reference(**arguments)
    except Exception:
        return None
    return [found] if len(subject.results) == 1 else list(found)


def _round_sum(subject: Any, plain: dict[str, Any], arguments: dict[str, Any]) -> None:
    """Operators that return x + residual compute with what is returned, rounded; a large weight_offset shows it."""
    x, residual = plain.get("x"), plain.get("residual")
    if not isinstance(x, np.ndarray) or not isinstance(residual, np.ndarray):
        return
    if any(result["name"] == "sum" for result in subject.results):
        with np.errstate(all="ignore"):
            total = (arguments["x"] + arguments["residual"]).astype(x.dtype)
            arguments["x"], arguments["residual"] = in_float64(total), np.zeros(residual.shape)


def _within(draft: Draft, value: np.ndarray, bounds: list) -> bool:
    try:
        low, high = (
            b if isinstance(b, float) else evaluate(b, draft.case.point.sizes) for b in bounds
        )
    except Exception:
        return False
    return not value.size or bool((value >= low).all() and (value <= high).all())
