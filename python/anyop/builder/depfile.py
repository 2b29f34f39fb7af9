# SPDX-License-Identifier: Apache-2.0
"""The files that a compiler says it read (-MD)."""

from __future__ import annotations

import re

_WORD = re.compile(r"(?:\\.|\$\$|[^\s\\])+", re.S)


def read_depfile(text: str) -> list[str]:
    """The prerequisites of every rule in a file of make's form."""
    found: list[str] = []
    for rule in re.split(r"(?<!\\)\n", text):
        words = [_plain(word) for word in _WORD.findall(rule.replace("\\\n", " "))]
        targets = next((i for i, word in enumerate(words) if word.endswith(":")), None)
        if targets is not None:
            found += words[targets + 1 :]
    return found


def _plain(word: str) -> str:
    r"""Without make's escapes: `\ `, `\#`, `$$`."""
    return re.sub(r"\\([ #:\t])", r"\1", word).replace("$$", "$")
