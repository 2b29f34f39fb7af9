# SPDX-License-Identifier: Apache-2.0
"""The rules of [dtypes]: what element type a tensor may have, and whether that can be decided."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .dtypes import DTYPES, promote
from .source import Mistake, listed, nearest

if TYPE_CHECKING:
    from .params import Param


@dataclass(frozen=True)
class DtypeRule:
    """What element type a tensor may have. Exactly one of the five ways is in use."""

    names: tuple[str, ...] = ()  # one of these,
    same_as: str | None = None  # or that of this parameter; both together: either
    promote: tuple[str, ...] | None = None  # torch's promotion of two parameters,
    with_dtype: str | None = None  # or of one with this dtype
    attribute: str | None = None  # the value of this ScalarType parameter,
    otherwise: str | None = None  # where that is None the dtype of this one
    first_given: tuple[str, str] | None = None  # that of this optional tensor, else of the second

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the tensors that the rule looks at."""
        second = self.first_given and self.first_given[1]
        return tuple(p for p in (self.same_as, *(self.promote or ()), self.otherwise, second) if p)

    @property
    def mask(self) -> int:
        """The names as a bit set of AnyopDtype."""
        names = (self.with_dtype,) if self.with_dtype else self.names
        return sum(1 << DTYPES.index(name) for name in names)


def parse_rule(value: object, parameters: Sequence[str], attributes: Sequence[str]) -> DtypeRule:
    """Reads one entry of [dtypes]; `attributes` are the ScalarType parameters."""
    if isinstance(value, list):
        return _parse_list(value, parameters)
    if not isinstance(value, str):
        raise Mistake(
            f"{value!r}",
            'a list of dtypes, or text such as "x" or "promote(x, y)"',
            "write a list of names or a rule",
        )
    if match := re.fullmatch(r"\s*promote\(\s*(\w+)\s*,\s*(\w+)\s*\)\s*", value):
        if match[2] in DTYPES and match[2] not in parameters:
            return DtypeRule(promote=(match[1],), with_dtype=match[2])
        return DtypeRule(promote=(match[1], match[2]))
    if match := re.fullmatch(r"\s*(\w+)\s+or\s+(\w+)\s*", value):
        if match[1] in parameters:
            return DtypeRule(first_given=(match[1], match[2]))
        return DtypeRule(attribute=match[1], otherwise=match[2])
    if value in attributes:
        return DtypeRule(attribute=value)
    return _parse_list([value], parameters)


def _parse_list(value: list, parameters: Sequence[str]) -> DtypeRule:
    if not value or not all(isinstance(name, str) for name in value):
        raise Mistake(
            f"{value!r}",
            "a list of at least one dtype name",
            "name the dtypes that the kernels compute",
        )
    if len(set(value)) < len(value):
        raise Mistake("a dtype is listed twice", "each one once", "remove one")
    same = [name for name in value if name in parameters]
    if len(same) > 1:
        raise Mistake(
            f"two arguments {listed(same, 'and')} in one list",
            "one argument at most",
            "use promote(x, y), or name one",
        )
    known = [*DTYPES, *parameters]
    for name in value:
        if name not in known:
            raise Mistake(
                f"'{name}' is neither a dtype nor an argument",
                "either",
                nearest(name, known, f"dtypes are {listed(DTYPES)}"),
            )
    names = tuple(name for name in value if name not in parameters)
    return DtypeRule(names=names, same_as=same[0] if same else None)


def check_rule(
    param: Param, rule: DtypeRule, params: dict[str, Param], earlier: dict[str, Param]
) -> None:
    """The rule must be decidable when the core meets the parameter."""
    for name in rule.parameters:
        other = params.get(name)
        if other is None or not other.is_tensor:
            raise Mistake(
                f"the dtype of '{param.name}' names '{name}'",
                "a tensor",
                nearest(name, params, "name a tensor argument"),
            )
        if name not in earlier:
            raise Mistake(
                f"the dtype of '{param.name}' names '{name}', which comes later",
                "an earlier argument",
                f"state the dtypes of '{param.name}' and let '{name}' name it",
            )
        if other.optional or other.optional_elements:
            raise Mistake(
                f"the dtype of '{param.name}' names '{name}', which may be absent",
                "an argument that is always given",
                "name a required one",
            )
        if other.is_list and param.output:
            other.alike = True
        elif other.is_list and not (param.is_list and param.shape.length == other.shape.length):
            raise Mistake(
                f"the dtype of '{param.name}' names the list '{name}'",
                "a tensor, or from a result or a list of the same length",
                "list the dtypes",
            )
    if rule.attribute:
        _check_attribute_rule(param, rule, params)
    if rule.first_given:
        _check_first_given(param, *rule.first_given, params, earlier)
    if not param.is_tensor and (rule.parameters or rule.attribute):
        raise Mistake(
            f"the dtypes of '{param.name}' are a rule",
            "a list of dtypes that it may be",
            "list them",
        )
    if param.output and not (rule.parameters or rule.attribute) and len(rule.names) > 1:
        raise Mistake(
            f"the dtype of the result '{param.name}' could be {listed(rule.names)}",
            "one",
            "name one dtype, an argument, promote(x, y), or a ScalarType argument",
        )


def _check_attribute_rule(param: Param, rule: DtypeRule, params: dict[str, Param]) -> None:
    attribute = params.get(rule.attribute)
    if attribute is None or attribute.kind != "ScalarType" or attribute.is_list:
        raise Mistake(
            f"the dtype of '{param.name}' names '{rule.attribute}'",
            "a ScalarType argument or an optional tensor before 'or'",
            nearest(rule.attribute, params, "correct the name"),
        )
    if not param.output:
        raise Mistake(
            f"the dtype of the argument '{param.name}' is chosen by '{rule.attribute}'",
            "that for results only",
            "list the dtypes",
        )
    if attribute.optional and not rule.otherwise:
        raise Mistake(
            f"the dtype of '{param.name}' is chosen by '{rule.attribute}', which may be None",
            "a dtype for that case",
            f'write "{rule.attribute} or x"',
        )
    if rule.otherwise and not attribute.optional:
        raise Mistake(
            f"'{rule.attribute} or {rule.otherwise}', but '{rule.attribute}' is never None",
            "no 'or'",
            f'write "{rule.attribute}", or ScalarType? in the schema',
        )


def _check_first_given(
    param: Param, name: str, otherwise: str, params: dict[str, Param], earlier: dict[str, Param]
) -> None:
    """'weight or x': weight is one tensor among the inputs that may be absent."""
    first, what = params[name], f"'{name} or {otherwise}'"
    if not first.is_tensor or first.is_list or first.output:
        raise Mistake(
            f"the dtype of '{param.name}' names '{name}'",
            "a ScalarType argument or an optional tensor before 'or'",
            "correct the name",
        )
    if not first.optional:
        raise Mistake(f"{what}, but '{name}' is never None", "no 'or'", f'write "{name}"')
    if name not in earlier:
        raise Mistake(
            f"the dtype of '{param.name}' names '{name}', which comes later",
            "an earlier argument",
            f"state the dtypes of '{param.name}' and let '{name}' name it",
        )


def possible_dtypes(rule: DtypeRule, params: dict[str, Param]) -> tuple[str, ...]:
    """Every dtype that the rule can come to, in the order of AnyopDtype."""
    found = set(rule.names)
    for name in (rule.same_as, rule.attribute, rule.otherwise, *(rule.first_given or ())):
        found |= set(params[name].possible) if name else set()
    if rule.promote:
        pair = [params[name].possible for name in rule.promote]
        a, b = pair if len(pair) > 1 else (*pair, (rule.with_dtype,))
        found |= {promote(x, y) for x in a for y in b}
    return tuple(name for name in DTYPES if name in found)
