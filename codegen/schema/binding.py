# SPDX-License-Identifier: Apache-2.0
"""Which letters the shapes of an operator bind, in the order in which the core meets them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from .dtypes import DTYPES
from .expressions import Expr, groups, joined_texts, letters, linear, texts
from .params import Param
from .shapes import Shape
from .source import Mistake, listed, nearest

At = Callable[..., AbstractContextManager[None]]


@dataclass
class Binding:
    """The symbols and groups of one operator. Symbols are the sizes, then the attributes."""

    sizes: list[str] = field(default_factory=list)  # bound by shapes
    attributes: list[str] = field(default_factory=list)  # int arguments in shapes or conditions
    groups: list[str] = field(default_factory=list)  # "_" is the unnamed one
    joins: list[tuple[str, ...]] = field(default_factory=list)  # broadcasts of groups
    texts: list[str] = field(default_factory=list)  # "mode", "dtype(x)": compared with texts
    element_sizes: list[str] = field(default_factory=list)  # bound anew for each element of a list
    element_groups: list[str] = field(default_factory=list)

    @property
    def symbols(self) -> list[str]:
        return self.sizes + self.attributes


def bind(
    inputs: list[Param], outputs: list[Param], conditions: list[tuple[str, Expr]], at: At
) -> Binding:
    """Walks inputs, conditions, results as the core does; refuses letters used before bound."""
    binder = _Binder(inputs)
    for _, condition in conditions:
        binder.choices(condition)
    for param in sorted(inputs, key=lambda param: param.is_list):  # the core walks lists last
        if param.shape:
            with at("shapes", param.name):
                binder.input(param, param.shape)
    for param in inputs:  # such as the gradient of a broadcast result
        if param.shape:
            with at("shapes", param.name):
                binder.join(param, f"shape '{param.shape.text}' of '{param.name}'")
    for text, condition in conditions:
        with at(None, "conditions", text):
            binder.condition(text, condition)
    for param in outputs:
        with at("shapes", param.name):
            binder.output(param)
    return binder.finish()


class _Binder:
    def __init__(self, inputs: list[Param]) -> None:
        self.inputs = {param.name: param for param in inputs}
        self.result = Binding()
        self.always: set[str] = set()  # letters, and groups as "*X", that are bound in every call
        self.list_of: dict[str, str] = {}  # letter bound for each element -> length of its list
        self.choices_of: dict[str, list[str]] = {}  # text argument -> what it may be

    def input(self, param: Param, shape: Shape) -> None:
        """Binds what an argument's shape binds."""
        _check_form(param, shape, self.inputs)
        param.expanded = shape.expand
        here: set[str] = set()  # what this argument itself has bound so far
        if shape.length:
            self._bind_size(shape.length, param, None, here)
        for term in shape.before:
            self._input_term(param, shape, term, here)
        self._input_group(param, shape, here)
        for term in shape.after:
            self._input_term(param, shape, term, here)
        if not param.optional:
            self.always |= here

    def _input_term(self, param: Param, shape: Shape, term: Expr, here: set[str]) -> None:
        for name, value in texts(term):
            if name.startswith("dtype("):
                raise Mistake(
                    f"{name} == '{value}' in the shape '{shape.text}' of argument '{param.name}'",
                    "it in conditions and in shapes of results",
                    "compare in a condition",
                )
        self._texts(term, f"shape '{shape.text}' of '{param.name}'")
        solved = linear(term)
        if solved and solved[0] not in self.inputs and not shape.expand:
            self._bind_size(solved[0], param, shape.length, here)
        else:
            self._require(term, f"shape '{shape.text}' of '{param.name}'", shape.length, here)

    def _bind_size(self, letter: str, param: Param, length: str | None, here: set[str]) -> None:
        if letter in self.result.groups:
            raise Mistake(
                f"'{letter}' is both a size and the group *{letter}", "two letters", "rename one"
            )
        if letter not in self.result.sizes:
            self.result.sizes.append(letter)
            if length:
                self.list_of[letter] = length
                self.result.element_sizes.append(letter)
        self._same_list(letter, letter, length)
        here.add(letter)

    def _input_group(self, param: Param, shape: Shape, here: set[str]) -> None:
        name = shape.group
        if not isinstance(name, str):
            return
        if shape.expand:
            self._require_group(name, f"shape '{shape.text}' of '{param.name}'", shape.length, here)
            return
        if name in self.result.sizes:
            raise Mistake(
                f"'{name}' is both a size and the group *{name}", "two letters", "rename one"
            )
        if name not in self.result.groups:
            self.result.groups.append(name)
            if shape.length:
                self.list_of["*" + name] = shape.length
                self.result.element_groups.append(name)
        self._same_list("*" + name, "*" + name.strip("_"), shape.length)
        here.add("*" + name)

    def choices(self, condition: Expr) -> None:
        """Notes what `mode in ('sum', 'mean')` allows."""
        found = list(texts(condition))
        names = {name for name, _ in found}
        if len(names) == 1 and condition == joined_texts(found):
            self.choices_of.setdefault(found[0][0], [value for _, value in found])

    def condition(self, text: str, condition: Expr) -> None:
        self._require(condition, f"condition '{text}'", None, set())
        self._texts(condition, f"condition '{text}'")

    def output(self, param: Param) -> None:
        shape = param.shape
        where = f"shape '{shape.text}' of the result '{param.name}'"
        if shape.length or shape.expand:
            raise Mistake(
                where,
                "neither [N] nor expand()",
                "write the sizes of the new tensor",
            )
        self.join(param, where)
        shape = param.shape
        self._share(shape)
        for term in shape.terms:
            self._require(term, where, None, set())
            self._texts(term, where)
        if isinstance(shape.group, str):
            self._require_group(shape.group, where, None, set())

    def _share(self, shape: Shape) -> None:
        """What a result takes from the elements of a list is the same for all of them."""
        for letter in {letter for term in shape.terms for letter in letters(term)}:
            if self.list_of.pop(letter, None):
                self.result.element_sizes.remove(letter)
        if isinstance(shape.group, str) and self.list_of.pop("*" + shape.group, None):
            self.result.element_groups.remove(shape.group)

    def join(self, param: Param, where: str) -> None:
        """Notes the broadcast in a shape, if there is one."""
        shape = param.shape
        if shape.whole:
            shape = param.shape = dataclasses.replace(
                shape, group=self._groups_of(shape.whole, where), whole=()
            )
        if isinstance(shape.group, tuple):
            self._join(shape.group, where)

    def _groups_of(self, arguments: tuple[str, ...], where: str) -> tuple[str, ...]:
        """broadcast(x, y) as broadcast(*X, *Y)."""
        found = []
        for name in arguments:
            shape = self.inputs[name].shape if name in self.inputs else None
            if shape is None:
                raise Mistake(
                    f"'{name}' in {where}",
                    "a tensor argument",
                    nearest(name, self.inputs, "write broadcast(*X, *Y)"),
                )
            if shape.terms or shape.length or shape.expand or not isinstance(shape.group, str):
                raise Mistake(
                    f"broadcast of '{name}' with shape '{shape.text}'",
                    "an argument whose shape is only a group",
                    "write broadcast(*X, *Y) ...",
                )
            found.append(shape.group)
        if len(set(found)) < len(found):
            raise Mistake(
                f"{where} broadcasts one group with itself",
                "a group of its own for each argument",
                "write *X and *Y in the arguments",
            )
        return tuple(found)

    def _join(self, names: tuple[str, ...], where: str) -> None:
        if not any("*" + name in self.always for name in names):
            self._require_group(names[0], where, None, set())
        for name in names:  # the core leaves out a group of an absent optional argument
            self._require_group(name, where, None, {"*" + group for group in self.result.groups})
        joins = self.result.joins
        if any(set(join) == set(names) for join in joins):
            return
        for join in joins:
            if both := sorted(set(join) & set(names)):
                raise Mistake(
                    f"group *{both[0]} in two broadcasts",
                    "one broadcast of a group",
                    "an argument can be expanded to one shape only",
                )
        joins.append(names)
        for param in self.inputs.values():
            if param.shape and param.shape.group in names and not param.shape.expand:
                if param.mutated:
                    raise Mistake(
                        f"the mutated argument '{param.name}' is expanded by {where}",
                        "a plain shape",
                        "elements that repeat cannot be written",
                    )
                param.expanded = True

    def _require(self, expr: Expr, where: str, length: str | None, here: set[str]) -> None:
        """Every letter, argument and group of an expression must be known by now."""
        for letter in letters(expr):
            if letter in self.inputs:
                self._attribute(letter, where)
            else:
                self._known(letter, letter, where, length, here)
        for name in groups(expr):
            if isinstance(name, tuple):
                raise Mistake(
                    f"a broadcast in {where}", "rank(X) or numel(X) of one group", "name one group"
                )
            self._require_group(name, where, length, here)

    def _require_group(self, name: str, where: str, length: str | None, here: set[str]) -> None:
        self._known("*" + name, "*" + name.strip("_"), where, length, here)

    def _known(self, key: str, text: str, where: str, length: str | None, here: set[str]) -> None:
        what = "group" if key.startswith("*") else "letter"
        if key not in self.always | here:
            if key.strip("*") in self.result.sizes + self.result.groups:
                raise Mistake(
                    f"{what} '{text}' in {where} is bound by optional arguments only",
                    "one that is bound in every call",
                    "bind it in a required argument",
                )
            names = (
                self.result.sizes + list(self.inputs) if what == "letter" else self.result.groups
            )
            fix = "bind it in an earlier argument, where it stands alone or as 2*D or B+1"
            fix = nearest(key, names, fix) if len(key) > 1 and what == "letter" else fix
            raise Mistake(
                f"unbound {what} '{text}' in {where}",
                f"a {what} that an earlier argument binds",
                fix,
            )
        self._same_list(key, text, length)

    def _same_list(self, key: str, text: str, length: str | None) -> None:
        owner = self.list_of.get(key)
        if owner and owner != length:
            raise Mistake(
                f"'{text}' outside the lists [{owner}]",
                "a letter of its own",
                f"'{text}' has another value for each element of them: use another letter",
            )

    def _texts(self, expr: Expr, where: str) -> None:
        """What is compared with a text is a text, of the choices that a condition states, or a dtype."""
        for name, value in texts(expr):
            inner = re.fullmatch(r"dtype\((\w+)\)", name)
            param = self.inputs.get(inner[1] if inner else name)
            kind, what = (
                ("Tensor", "a tensor") if inner else ("str", "a str argument that every call has")
            )
            if (
                param is None
                or param.kind != kind
                or param.is_list
                or (param.optional and not inner)
            ):
                fitting = [p.name for p in self.inputs.values() if p.kind == kind and not p.is_list]
                raise Mistake(
                    f"'{inner[1] if inner else name}' compared with '{value}' in {where}",
                    f"{what} ({listed(fitting)})",
                    nearest(inner[1] if inner else name, fitting, "compare another"),
                )
            self._choice(param, name, value, list(DTYPES) if inner else self.choices_of.get(name))
            if name not in self.result.texts:
                self.result.texts.append(name)

    def _choice(self, param: Param, name: str, value: str, choices: list[str] | None) -> None:
        if choices is None:
            raise Mistake(
                f"'{name}' compared with '{value}', and no condition states its choices",
                "all texts that it may be",
                f"write conditions = [\"{name} in ('{value}', ...)\"]",
            )
        default = param.default if param.kind == "str" and param.has_default else value
        for word, what in (
            (value, f"text '{value}' of {name}"),
            (default, f"default '{default}' of '{name}'"),
        ):
            if word not in choices:
                raise Mistake(
                    what, f"one of {listed(choices)}", nearest(str(word), choices, "correct it")
                )

    def _attribute(self, name: str, where: str) -> None:
        param = self.inputs[name]
        if param.kind != "int" or param.is_list or param.optional:
            kind = param.kind + ("[]" if param.is_list else "") + ("?" if param.optional else "")
            raise Mistake(
                f"'{name}' in {where} is an argument of type {kind}",
                "a letter or an int argument",
                "use another letter, or rename the argument",
            )
        if name not in self.result.attributes:
            self.result.attributes.append(name)

    def finish(self) -> Binding:
        result = self.result
        places = [*self.inputs]
        result.texts.sort(key=lambda name: places.index(name.removeprefix("dtype(").rstrip(")")))
        if len(result.symbols) > 64:
            raise Mistake(
                f"{len(result.symbols)} letters and int arguments in shapes",
                "at most 64",
                "use fewer",
            )
        if len(result.groups) + len(result.joins) > 8:
            raise Mistake(
                f"{len(result.groups) + len(result.joins)} groups and broadcasts",
                "at most 8",
                "use fewer",
            )
        return result


def _check_form(param: Param, shape: Shape, inputs: dict[str, Param]) -> None:
    """What the shape of an argument may not be, whatever its letters."""
    if (shape.whole or isinstance(shape.group, tuple)) and (shape.length or shape.expand):
        raise Mistake(
            f"broadcast() in the shape '{shape.text}' of argument '{param.name}'",
            "it in a plain shape",
            "give the argument its own group *X",
        )
    if param.is_list and not shape.length:
        raise Mistake(
            f"shape '{shape.text}' of the list '{param.name}'",
            "the list's length in front",
            f"write '[N] {shape.text}'",
        )
    if shape.length and not param.is_list:
        raise Mistake(
            f"'[{shape.length}]' in the shape of '{param.name}', which is no list",
            "a plain shape",
            "remove it or write Tensor[]",
        )
    if shape.length in inputs:
        raise Mistake(
            f"the length of the list '{param.name}' is the argument '{shape.length}'",
            "a letter",
            "use a letter of its own",
        )
    if shape.expand and param.mutated:
        raise Mistake(
            f"the mutated argument '{param.name}' is expanded",
            "a plain shape",
            "elements that repeat cannot be written",
        )
