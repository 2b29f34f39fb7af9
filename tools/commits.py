# SPDX-License-Identifier: Apache-2.0
"""Checks that the subject of each commit that no remote has is at most 72 characters long.

Without a remote it reads the last 40; without git, or outside a repository, nothing.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LONGEST = 72
LAST = 40


def git(root: Path, *arguments: str) -> str | None:
    """What git says; None where it cannot."""
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None


def mistakes(root: Path) -> list[str]:
    which = ["HEAD", "--not", "--remotes"] if git(root, "remote") else [f"-{LAST}"]
    subjects = git(root, "log", "--no-merges", "--format=%h %s", *which) or ""
    pairs = (line.partition(" ")[::2] for line in subjects.splitlines())
    return [
        f"{commit}: the subject has {len(subject)} characters, expected {LONGEST} at most: {subject}"
        for commit, subject in pairs
        if len(subject) > LONGEST
    ]


if __name__ == "__main__":
    wrong = mistakes(Path(__file__).resolve().parent.parent)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    sys.exit(bool(wrong))
