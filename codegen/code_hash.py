# SPDX-License-Identifier: Apache-2.0
"""A hash of what sources say: neither of where they lie, nor of their comments, nor of which files they include."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)
_LIKE_C = {".c", ".cc", ".cl", ".cu", ".h"}
_LITERAL = (
    r"""R"(?P<mark>\w*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|\b[0-9][\w.']*|'(?:\\.|[^'\\\n])*'"""
)
_COMMENT_OR_LITERAL = re.compile(rf"//(?:\\\n|[^\n])*|/\*.*?\*/|(?P<literal>{_LITERAL})", re.DOTALL)


def hash_of_code(codes: Iterable[bytes]) -> str:
    """The same in any order."""
    digests = sorted(hashlib.sha256(code).digest() for code in codes)
    return hashlib.sha256(b"".join(digests)).hexdigest()[:16]


def code_of(file: Path) -> bytes:
    """Of C and its like without comments, blank lines and quoted includes; of other files all."""
    content = file.read_bytes()
    if file.suffix not in _LIKE_C:
        return content
    text = content.decode("utf-8", "replace")
    text = _COMMENT_OR_LITERAL.sub(lambda found: found["literal"] or " ", text)
    lines = (line.rstrip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not INCLUDE.match(line)).encode()
