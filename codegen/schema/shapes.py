# SPDX-License-Identifier: Apache-2.0
"""The shape language: terms, at most one group of sizes among them, a list's length, expand."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .expressions import Expr, parse_expression
from .names import check_letter
from .source import Mistake

Group = None | str | tuple  # "_" is the unnamed one; a tuple is a broadcast of groups


@dataclass(frozen=True)
class Shape:
    """Terms, at most one group among them, and more terms."""

    text: str
    before: tuple[Expr, ...]
    group: Group
    after: tuple[Expr, ...]
    length: str | None = None  # "[N]": a list of N tensors
    expand: bool = False  # must be broadcastable to this, and is handed over so
    whole: tuple[str, ...] = ()  # broadcast(x, y): arguments, before their groups are looked up

    @property
    def terms(self) -> tuple[Expr, ...]:
        return self.before + self.after


def parse_shape(text: str) -> Shape:
    """One entry of [shapes]."""
    length, rest = None, text.strip()
    if match := re.fullmatch(r"\[\s*(\w*)\s*\]\s*(.*)", rest):
        length, rest = match[1], match[2].strip()
        if not re.fullmatch(r"[A-Za-z]\w*", length):
            raise Mistake(
                f"'[{length}]' in shape '{text}'",
                "a letter for the length of a list",
                "write it like '[N] *P'",
            )
        check_letter(length)
    expand = False
    if match := re.fullmatch(r"expand\((.*)\)", rest):
        expand, rest = True, match[1]
    if match := re.fullmatch(r"broadcast\(([^*]*)\)", rest):
        return Shape(text, (), None, (), length, whole=_words(match[1], text))
    before, group, after = _parse_terms(rest, text)
    if len(before) + len(after) > 32:
        raise Mistake(
            f"{len(before) + len(after)} terms in shape '{text}'", "at most 32", "use a group"
        )
    return Shape(text, before, group, after, length, expand)


def _words(inside: str, text: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in inside.split(","))
    if (
        len(words) < 2
        or len(set(words)) < len(words)
        or not all(re.fullmatch(r"[A-Za-z_]\w*", word) for word in words)
    ):
        raise Mistake(
            f"'broadcast({inside})' in shape '{text}'",
            "two or more different groups",
            "write broadcast(*X, *Y)",
        )
    return words


def _parse_terms(rest: str, text: str) -> tuple[tuple[Expr, ...], Group, tuple[Expr, ...]]:
    before: list[Expr] = []
    after: list[Expr] = []
    group: Group = None
    for term in _blanks(rest):
        if term.startswith(("*", "broadcast(")):
            if group is not None:
                raise Mistake(
                    f"two groups in shape '{text}'",
                    "one at most",
                    "two could not be told apart: name the sizes of one",
                )
            group = _parse_group(term, text)
        else:
            if term.startswith("expand("):
                raise Mistake(
                    f"'{term}' in shape '{text}'",
                    "expand(...) around the whole shape",
                    "write expand( at the front",
                )
            (before if group is None else after).append(parse_expression(term))
    return tuple(before), group, tuple(after)


def _parse_group(term: str, text: str) -> Group:
    if match := re.fullmatch(r"broadcast\((.*)\)", term):
        inside = [part.strip() for part in match[1].split(",")]
        if not all(part.startswith("*") and len(part) > 1 for part in inside):
            raise Mistake(f"'{term}' in shape '{text}'", "named groups", "write broadcast(*X, *Y)")
        return _words(",".join(part[1:] for part in inside), text)
    name = term[1:]
    if name and not re.fullmatch(r"[A-Za-z]\w*", name):
        raise Mistake(
            f"'{term}' in shape '{text}'",
            "'*' or '*X'",
            "put a blank behind '*' when it stands for leading sizes",
        )
    if name:
        check_letter(name)
    return name or "_"


def _blanks(text: str) -> list[str]:
    """Splits at blanks outside brackets."""
    terms, depth = [""], 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if char.isspace() and depth == 0:
            terms.append("")
        else:
            terms[-1] += char
    return [term for term in terms if term]
