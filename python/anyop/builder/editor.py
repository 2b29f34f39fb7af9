# SPDX-License-Identifier: Apache-2.0
"""What an editor needs to understand kernels: the generated headers, before they compile, and compile_commands.json."""

from __future__ import annotations

import json
import os

from anyop.builder.choices import Choices
from anyop.builder.errors import MissingToolError
from anyop.builder.plan import Plan


def write_for_editors(name: str, source: str, choices: Choices, out: str) -> None:
    """Into the folder `out`, without a compiler's help; where there is none, what a ready library brings must do."""
    try:
        plan = Plan(name, source, choices)
    except MissingToolError:
        return
    texts = {
        f"include/{path}": text for path, text in plan.made.files.items() if path.endswith(".h")
    }
    texts["compile_commands.json"] = json.dumps(_commands(plan, source, out), indent=1) + "\n"
    for path, text in texts.items():
        _write(os.path.join(out, path), text)


def _commands(plan: Plan, source: str, out: str) -> list[dict]:
    """One for each file of the user's, with the folders that it stands for in the private one."""
    folders = {**plan.links, "gen": os.path.join(out, "include")}
    found = []
    for step in plan.steps:
        words = list(step.command)
        file = words[-3] if words[-4:-3] == ["-c"] else ""
        link, _, rest = file.partition("/")
        if link not in plan.links or link == "include":
            continue
        path = os.path.join(folders[link], rest)
        words = [f"-I{folders[word[2:]]}" if word[2:] in folders else word for word in words[:-7]]
        found.append({"directory": source, "file": path, "arguments": [*words, "-c", path]})
    return found


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    part = f"{path}.{os.getpid()}.part"
    with open(part, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.replace(part, path)
