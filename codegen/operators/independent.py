# SPDX-License-Identifier: Apache-2.0
"""The key `independent`: sizes whose elements do not depend on one another, which devices may share."""

from __future__ import annotations

from ..schema.binding import Binding
from ..schema.expressions import Expr, letters
from ..schema.operator_sections import texts_of
from ..schema.params import Param
from ..schema.source import Mistake, Source, check_one_of


def read_independent(
    source: Source,
    inputs: list[Param],
    outputs: list[Param],
    conditions: list[tuple[str, Expr]],
    binding: Binding,
) -> list[str]:
    """The letters; none without the key. A group `*` needs none: it is independent by itself."""
    with source.at(None, "independent"):
        found = texts_of(source.data.get("independent", []), "independent")
    sizes = [name for name in binding.sizes if name not in binding.element_sizes]
    tensors = [param for param in inputs + outputs if param.is_tensor]
    with source.at(None, "independent"):
        for letter in found:
            what = f"independent size '{letter}'"
            check_one_of(letter, sizes, what, "one that a shape binds", "use only these")
            _check_terms(letter, tensors)
            for text, expression in conditions:
                if letter in letters(expression):
                    raise _counted(letter, f"the condition '{text}'")
        for result in outputs:
            if (
                not result.optional
            ):  # where it is wanted, the sizes that it has not are not independent
                _check_result(found, result)
    return found


def _check_result(found: list[str], result: Param) -> None:
    for letter in found:
        if letter not in (*result.shape.before, *result.shape.after):
            raise Mistake(
                f"independent size '{letter}', which result '{result.name}' has not",
                "one that all results have",
                "leave it out: the result adds up what is computed for each",
            )


def _check_terms(letter: str, tensors: list[Param]) -> None:
    """A size of its own, once in each shape."""
    for param in tensors:
        terms = [*param.shape.before, *param.shape.after]
        if any(term != letter and letter in letters(term) for term in terms):
            raise _counted(letter, f"the shape of '{param.name}'")
        if terms.count(letter) > 1:
            raise Mistake(
                f"independent size '{letter}' is twice in the shape of '{param.name}'",
                "it once",
                "leave it out, or give the sizes two letters",
            )


def _counted(letter: str, where: str) -> Mistake:
    return Mistake(
        f"independent size '{letter}' is counted in {where}",
        "one that is only a size",
        "leave it out: a part of it would be counted wrong",
    )
