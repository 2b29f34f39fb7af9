# SPDX-License-Identifier: Apache-2.0
"""The rules of [dtypes] against the parameters: whether a type can be decided, and which it may come to."""

from __future__ import annotations

from .dtype_rules import DtypeRule
from .dtypes import DTYPES, promote
from .params import Param
from .source import Mistake, listed, nearest


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
