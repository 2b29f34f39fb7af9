# SPDX-License-Identifier: Apache-2.0
"""Checks that no function is longer than 60 lines and no file longer than 500, but for those in tools/lengths.txt.

A line there is a path, a function's name (- for the file) and how long it may be. It may only shrink: what is longer
than its line says is a mistake, and so is a line that is no longer needed. The C family is read as clang-format leaves
it: a function ends with a brace alone on its line. With --distribution, says how long functions are.

No folder has more than 30 sources. A family of ops/ may: an operator is the files there with its name.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from arrows import ROOT, sources

FUNCTION, FILE, FOLDER = 60, 500, 30
C_FAMILY = {".cc", ".h", ".cu", ".c"}
_NO_FUNCTION = re.compile(
    r"\s*(if|else|for|while|switch|do|try|catch|case|namespace|struct|class|union|enum|extern)\b|#"
)
_NAME = re.compile(r"([\w:~]+|operator\S+)\s*\(")


def functions_of_python(text: str) -> Iterator[tuple[str, int]]:
    """Names and lengths."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def functions_of_c(text: str) -> Iterator[tuple[str, int]]:
    lines = text.splitlines()
    for end, line in enumerate(lines):
        if not re.fullmatch(r" *}", line):
            continue
        indent = len(line) - 1
        # The last line that begins as far left, and the whole signature, of which labels and closing lines are no part.
        start = end - 1
        while start > 0 and (
            len(lines[start]) - len(lines[start].lstrip()) > indent or not lines[start].strip()
        ):
            start -= 1
        head = " ".join(lines[start : start + 8])
        name = _NAME.search(head.partition("{")[0])
        if name and not _NO_FUNCTION.match(lines[start]):
            yield name[1], end - start + 1


def functions(path: Path) -> Iterator[tuple[str, int]]:
    text = path.read_text(encoding="utf-8")
    return functions_of_python(text) if path.suffix == ".py" else functions_of_c(text)


def too_long(path: Path) -> Iterator[tuple[str, int]]:
    """Functions of a file, and "-" for the file itself."""
    if (count := path.read_text(encoding="utf-8").count("\n")) > FILE:
        yield "-", count
    yield from ((name, count) for name, count in functions(path) if count > FUNCTION)


def programs(root: Path) -> list[Path]:
    return [path for path in sources(root) if path.suffix in C_FAMILY or path.suffix == ".py"]


def distribution(root: Path) -> Iterator[str]:
    """A line for each language, and one for all."""
    kinds = {".py": "Python", ".cu": "CUDA"}
    found: dict[str, list[int]] = {}
    for path in programs(root):
        kind = kinds.get(path.suffix, "C and C++")
        found.setdefault(kind, []).extend(count for _, count in functions(path))
    found["all"] = [count for counts in found.values() for count in counts]
    for kind, counts in found.items():
        counts.sort()
        half, most = counts[len(counts) // 2], counts[len(counts) * 95 // 100]
        yield f"{kind}: {len(counts)} functions, half have at most {half} lines, 95 % at most {most}"


def mistakes(root: Path, allowed: dict[tuple[str, str], int]) -> list[str]:
    found: dict[tuple[str, str], int] = {}
    for path in programs(root):
        place = path.relative_to(root).as_posix()
        for name, count in too_long(path):
            found[place, name] = max(count, found.get((place, name), 0))
    wrong = []
    for (place, name), count in found.items():
        most = allowed.get((place, name), FILE if name == "-" else FUNCTION)
        if count > most:
            what = "the file" if name == "-" else name
            wrong.append(f"{place}: {what} has {count} lines, expected {most} at most: split it")
    for place, name in allowed.keys() - found.keys():
        wrong.append(f"tools/lengths.txt: {place} {name} is short enough: delete its line")
    return sorted(wrong)


def crowded(root: Path) -> list[str]:
    """Folders with too many sources."""
    counts = Counter(path.relative_to(root).parent for path in sources(root))
    return sorted(
        f"{folder.as_posix()}: the folder has {count} sources, expected {FOLDER} at most: divide it by subject"
        for folder, count in counts.items()
        if count > FOLDER and folder.parent != Path("ops")
    )


def read_allowed(text: str) -> dict[tuple[str, str], int]:
    rows = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return {(place, name): int(count) for place, name, count in rows}


if __name__ == "__main__":
    if sys.argv[1:] == ["--distribution"]:
        print(*distribution(ROOT), sep="\n")
        sys.exit()
    exceptions = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    wrong = mistakes(ROOT, read_allowed(exceptions)) + crowded(ROOT)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    sys.exit(bool(wrong))
