# SPDX-License-Identifier: Apache-2.0
"""The contract of [backward], resolved once for each operator: what is saved, and how the backward is called.

Every parameter of the backward operator is found by its name: grad_<result>, a saved input or result, an attribute, or
the letter of a size. Its results are grad_<input>.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from anyop.adapter.dtypes import is_floating
from anyop.adapter.operators import Operator

# By layout: those of which every tensor has it.
_FITS = {
    "strided": ("strided", "rows", "dense", "contiguous"), "rows": ("rows", "contiguous"),
    "dense": ("dense", "contiguous"), "contiguous": ("contiguous",),
}  # fmt: skip


class Gradient:
    """How one operator is differentiated."""

    backward: Any  # of the framework's own class

    def __init__(self, forward: Operator, backward: Operator) -> None:
        self.forward, self.backward = forward, backward
        saves = forward.metadata["backward"]["saves"]
        self.saved_inputs = tuple(at for at in forward.tensors if forward.names[at] in saves)
        results = [param["name"] for param in forward.results]
        self.saved_results = tuple(at for at, name in enumerate(results) if name in saves)
        inputs = backward.names[: backward.count]  # a saved result may be one of them, by its name
        takes = {name.removeprefix("grad_") for name in inputs if name.startswith("grad_")}
        gives = [name.removeprefix("grad_") for name in backward.names[backward.count :]]
        given = [p for p in backward.inputs if p["name"].removeprefix("grad_") in results]
        grads = [p for p in given if p["name"].startswith("grad_")]
        self.optional = {results.index(p["name"][5:]) for p in grads if p["optional"]}
        required = {results.index(p["name"][5:]) for p in grads} - self.optional
        # Those of results that nothing depends on are None rather than zeros, where they are optional; zeros for the
        # others are made like the results, which must be saved.
        self.takes_none = not required or (
            bool(self.optional) and required <= {*self.saved_results}
        )
        self.grads = tuple(at for at, name in enumerate(results) if name in takes)
        # Of each that is made so its place among grads, and that of the result among what is saved.
        self.made_like = tuple(
            (self.grads.index(at), len(self.saved_inputs) + self.saved_results.index(at))
            for at in sorted(required if self.takes_none else ())
        )
        self.no_grads = tuple(at for at in range(len(results)) if at not in self.grads)
        shares = forward.metadata["backward"].get("shares", {})
        # Of each input that has a gradient the number of the backward's result that it is.
        self.inputs = {forward.index[name]: bit for bit, name in enumerate(gives)}
        self.inputs |= {
            forward.index[name]: self.inputs[forward.index[source]]
            for name, source in shares.items()
        }
        self.kept: list[int] = []  # attributes, by their place among the inputs
        self.letters: list[str] = []  # sizes
        self._places = [self._place(name) for name in backward.names[: backward.count]]
        self.pick = picker(self._places)
        self._kept_of = picker(self.kept)
        self._sizes = [self._size(letter) for letter in self.letters]
        self.tidy = self._tidy()
        self.refused = tuple(
            at
            for at in forward.tensors
            if at not in self.inputs and can_require(forward.inputs[at])
        )

    def keep(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """What is no tensor and the backward needs: attributes, then sizes."""
        kept = self._kept_of(inputs)
        return (*kept, *(size(inputs) for size in self._sizes)) if self._sizes else kept

    def arguments(self, grads: tuple, saved: tuple, kept: tuple) -> tuple[Any, ...]:
        """The backward's inputs, in its order."""
        for at, like in self.made_like:
            if grads[at] is None:
                zeros = self.forward.framework.zeros_like(saved[like])
                grads = (*grads[:at], zeros, *grads[at + 1 :])
        return self.tidy(self.pick((*grads, *saved, *kept)))

    def mask(self, needed: Sequence[bool]) -> int:
        """The bits of the backward's results that are needed; -1 where it has no choice."""
        if not self.backward.has_optional_results:
            return -1
        wanted = {bit for at, bit in self.inputs.items() if at < len(needed) and needed[at]}
        return sum(1 << bit for bit in wanted)

    def place(self, found: Any, count: int) -> tuple[Any, ...]:
        """The backward's results as gradients of the first count inputs."""
        gradients = [None] * count
        found = found if isinstance(found, tuple) else (found,)
        for at, bit in self.inputs.items():
            if at < count:
                gradients[at] = found[bit]
        return tuple(gradients)

    def _place(self, name: str) -> int:
        """Where a parameter of the backward lies in (*grads, *saved, *kept, *sizes)."""
        forward, counts = self.forward, len(self.grads)
        results = [param["name"] for param in forward.results]
        if name.startswith("grad_") and name[5:] in results:
            return self.grads.index(results.index(name[5:]))
        saved = len(self.saved_inputs) + len(self.saved_results)
        if name in results:
            return counts + len(self.saved_inputs) + self.saved_results.index(results.index(name))
        if name not in forward.index:
            self.letters.append(name)
            attributes = sum(
                self._is_attribute(n) for n in self.backward.names[: self.backward.count]
            )
            return counts + saved + attributes + len(self.letters) - 1
        at = forward.index[name]
        if at in forward.tensors:
            return counts + self.saved_inputs.index(at)
        self.kept.append(at)
        return counts + saved + len(self.kept) - 1

    def _size(self, letter: str) -> Callable[[Sequence[Any]], Any]:
        """Finds the value of a letter in the shapes of the inputs."""
        tensors = [(at, self.forward.inputs[at]) for at in self.forward.tensors]
        plain = [(at, p["shape"]) for at, p in tensors if not (p["optional"] or p["list"])]
        for at, shape in plain:
            for part, first in (("before", 0), ("after", -len(shape["after"]))):
                if letter in shape[part] and not shape["expand"]:
                    dim = first + shape[part].index(letter)
                    return lambda inputs, at=at, dim=dim: inputs[at].shape[dim]  # type: ignore[misc]

        def solve(inputs: Sequence[Any]) -> Any:
            bound = self.forward.framework.sizes()
            for at, shape in plain:
                if not shape["expand"]:
                    bound.match(shape, inputs[at].shape, lambda: letter)
            return bound.values[letter]

        return solve

    def _is_attribute(self, name: str) -> bool:
        at = self.forward.index.get(name, self.forward.count)
        return at < self.forward.count and at not in self.forward.tensors

    def _tidy(self) -> Callable[[tuple], tuple]:
        """Brings the backward's inputs into the form that it takes: layouts, and integers among floats."""
        stricter = [at for at in self.backward.tensors if self._is_stricter(at)]
        integers = [at for at in self.backward.tensors if self._may_be_integer(at)]
        if not stricter and not integers:
            return lambda arguments: arguments
        framework = self.forward.framework
        contiguous, dtype_name = framework.contiguous, framework.dtype_name
        if stricter == [0] and not integers and not self.takes_none:
            return lambda arguments: (contiguous(arguments[0]), *arguments[1:])
        grads = [at for at in self.backward.tensors if self.backward.names[at].startswith("grad_")]

        def tidy(arguments: tuple) -> tuple:
            found = list(arguments)
            for at in stricter:
                if found[at] is not None:
                    found[at] = contiguous(found[at])
            for at in integers:  # x * 2 with integers: the forward promoted them
                if found[at] is not None and not is_floating(dtype_name(found[at])):
                    found[at] = framework.cast(found[at], dtype_name(found[grads[0]]))
            return tuple(found)

        return tidy

    def _is_stricter(self, at: int) -> bool:
        """Whether the backward takes fewer layouts. A gradient has any; what was saved has one the forward took."""
        param = self.backward.inputs[at]
        known = {p["name"]: p for p in (*self.forward.inputs, *self.forward.results)}
        saved = known.get(param["name"], {})
        had = "strided" if saved.get("copied") else saved.get("layout", "strided")
        return had not in _FITS[param["layout"]]

    def _may_be_integer(self, at: int) -> bool:
        """Whether the forward takes integers and the backward floats alone, for what is saved under one name."""
        param = self.backward.inputs[at]
        had = [p for p in self.forward.inputs if p["name"] == param["name"]]
        only_floats = all(map(is_floating, param["possible_dtypes"]))
        return only_floats and any(not is_floating(n) for p in had for n in p["possible_dtypes"])


def picker(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple]:
    """An itemgetter that gives a tuple for any number of places."""
    if len(places) > 1:
        return itemgetter(*places)
    if not places:
        return lambda values: ()
    (only,) = places
    return lambda values: (values[only],)


def can_require(param: Mapping[str, Any]) -> bool:
    """Whether an input could require a gradient: floating tensors can."""
    return any(is_floating(name) for name in param["possible_dtypes"])


def find(forward: Operator, operators: Mapping[str, Operator]) -> Gradient | str:
    """How an operator is differentiated, or why it cannot be.

    Where [backward] names another forward, it is the Gradient of that one, whose first results are the operator's.
    """
    stated = forward.metadata["backward"]
    if stated is None:
        return "has no gradient"
    if stated["forward"]:
        return _by_way_of(forward, stated["forward"], operators)
    lists = [p["name"] for p in forward.inputs if p["kind"] == "Tensor" and p["list"]]
    if set(lists) & set(stated["saves"]):
        return "saves a list of tensors for its gradient, which no adapter offers yet"
    backward = _named(stated["name"], forward, operators)
    if backward is None:
        return f"has a gradient by {stated['name'].replace('::', '.')}, which is not loaded"
    return Gradient(forward, backward)


def _named(name: str, beside: Operator, operators: Mapping[str, Operator]) -> Operator | None:
    """The operator that one of a schema means; within its own namespace it may be stated without."""
    prefix = "" if beside.namespace == "anyop" else beside.namespace + "."
    name = name.replace("::", ".")
    return operators.get(prefix + name) or operators.get(name.removeprefix("anyop."))


def _by_way_of(operator: Operator, name: str, operators: Mapping[str, Operator]) -> Gradient | str:
    """The Gradient of the forward that runs instead when one is recorded."""
    other = _named(name, operator, operators)
    if other is None:
        return f"has a gradient by way of {name.replace('::', '.')}, which is not loaded"
    found = find(other, operators)
    own, its = ([param["name"] for param in o.results] for o in (operator, other))
    same = operator.names[: operator.count] == other.names[: other.count]
    if not same or own != its[: len(own)] or operator.has_optional_results:
        return f"has a gradient by way of {other.name}, which does not begin as it does"
    if isinstance(found, str):
        return f"has a gradient by way of {other.name}, which {found}"
    return found


def name_called(error: Exception, running: Operator, called: Operator) -> None:
    """Where another forward runs instead, its errors begin with the name of the operator that was called."""
    text, prefix = error.args[0] if len(error.args) == 1 else None, f"{running.name}: "
    if isinstance(text, str) and text.startswith(prefix):
        error.args = (f"{called.name}: {text.removeprefix(prefix)}",)
