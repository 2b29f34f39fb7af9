# SPDX-License-Identifier: Apache-2.0
"""The key `flops` of an operator file: how many floating-point operations one call does."""

from __future__ import annotations

import re

from ..schema.binding import Binding
from ..schema.expressions import Expr, groups, letters, parse_expression, refuse_texts
from ..schema.operator_sections import text_of
from ..schema.source import Mistake, Source, check_one_of, listed


def read_flops(source: Source, binding: Binding) -> tuple[str, Expr] | None:
    """The text and its expression over sizes and groups; None without the key."""
    if "flops" not in source.data:
        return None
    with source.at(None, "flops"):
        text = text_of(source.data["flops"], "flops")
        expression = parse_expression(re.sub(r"\(\s*\*\s*\)", "(_)", text))  # numel(*)
        refuse_texts(expression, f"flops '{text}'")
        sizes = [name for name in binding.sizes if name not in binding.element_sizes]
        for letter in letters(expression):
            _check_known(f"letter '{letter}'", letter, sizes, text)
        for group in groups(expression):
            _check_group(group, binding, text)
    return text, expression


def _check_group(group: str | tuple[str, ...], binding: Binding, text: str) -> None:
    if isinstance(group, tuple):
        if not any(set(group) == set(join) for join in binding.joins):
            raise Mistake(
                f"broadcast of {listed(group, 'and')} in flops '{text}'",
                "one that a result has",
                "write the broadcast as the shape of the result does",
            )
        return
    known = [name for name in binding.groups if name not in binding.element_groups]
    _check_known(f"group '*{group.strip('_')}'", group, known, text)


def _check_known(what: str, name: str, known: list[str], text: str) -> None:
    check_one_of(
        name, known, f"{what} in flops '{text}'", "one that a shape binds", "use only these"
    )
