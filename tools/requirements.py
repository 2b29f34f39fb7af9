# SPDX-License-Identifier: Apache-2.0
"""Prints requirements of pyproject.toml for make: build, runtime, lint, demo, generate, a framework, an extra."""

import re
import shlex
import sys
from pathlib import Path

LINT = ("ruff", "mypy", "clang-format", "clang-tidy")
TOOLS = ("cmake", "ninja")
PROGRAMS = ("demo", "generate")  # of examples/
FRAMEWORKS = {"torch": "torch", "jax": "jax", "paddle": "paddlepaddle"}  # name: package


def list_of(text: str, section: str, key: str) -> list[str]:
    """The strings of one list; python3 may be 3.10, which reads no TOML."""
    body = text.split(f"\n[{section}]\n", 1)[1].split("\n[", 1)[0]
    items = re.search(rf"^{key} = \[\n(.*?)^\]", body, re.S | re.M).group(1)
    return [line.strip().rstrip(",")[1:-1] for line in items.splitlines() if line.strip()]


def requirements(text: str, what: str) -> list[str]:
    extras = "project.optional-dependencies"
    if what == "runtime":
        return list_of(text, "project", "dependencies")
    dev = list_of(text, extras, "dev")
    if what == "build":
        return list_of(text, "build-system", "requires") + [r for r in dev if r.startswith(TOOLS)]
    if what == "lint":
        return [r for r in dev if r.startswith(LINT)]
    if what in FRAMEWORKS:
        return [r for r in dev if r.startswith(FRAMEWORKS[what])]
    return list_of(text, "tool.anyop" if what in PROGRAMS else extras, what)


if __name__ == "__main__":
    content = "\n" + (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    wanted = [r for what in sys.argv[1:] for r in requirements(content, what)]
    print(*(shlex.quote(r) for r in dict.fromkeys(wanted)))
