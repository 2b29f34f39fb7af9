# SPDX-License-Identifier: Apache-2.0
"""Finds, runs and judges commands. Not in __init__.py: there, the command `list` would hide Python's."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NoReturn

from anyop._nearest import did_you_mean

_MISTAKES = (ValueError, LookupError, ImportError, OSError, RuntimeError)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, with the nearest name, and where help is."""

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """An unknown option is said first: it may be what is missing."""
        known = self._options()
        for word in words[: words.index("--")] if "--" in words else words:
            option = word.partition("=")[0]
            if option.startswith("--") and option not in known:
                self.error(f"unknown option '{option}'{did_you_mean(option, known)}")
        return self.parse_args(words)

    def _options(self) -> set[str]:
        """Of all sub-commands too."""
        found = set(self._option_string_actions)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    found |= parser._options()
        return found

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = list(action.choices)
            text = f"'{value}', expected {', '.join(map(str, known))}{did_you_mean(value, known)}"
            raise argparse.ArgumentError(action, text)


def commands() -> list[str]:
    """Their names as they are typed, sorted."""
    files = (os.path.splitext(name) for name in os.listdir(os.path.dirname(__file__)))
    return sorted(
        stem.replace("_", "-") for stem, end in files if end == ".py" and not stem.startswith("_")
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; arguments are the process's own by default."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0].startswith("-"):
        return _without_command(words)
    if words[0] not in commands():
        print(f"anyop: {_unknown(words[0])}", file=sys.stderr)
        return 2
    parser = parser_of(words[0])
    try:
        options = parser.parse(words[1:])
    except SystemExit as done:  # of --help or a mistake, which is printed already
        return int(done.code or 0)
    return _run(parser.prog, _module(words[0]), options)


def parser_of(command: str) -> _Parser:
    """What reads the words behind a command."""
    module = _module(command)
    parser = _Parser(
        prog=f"anyop {command}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    return parser


def _run(prog: str, module: ModuleType, options: argparse.Namespace) -> int:
    try:
        code = module.run(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, such as `head`, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt as stop:
        print(f"\n{prog}: {stop.args[0] if stop.args else 'interrupted'}", file=sys.stderr)
        return 130
    except _MISTAKES as error:
        if isinstance(error, (NotImplementedError, RecursionError)) or type(error) is KeyError:
            raise  # ours
        print(f"{prog}: {_text(error)}", file=sys.stderr)
        return 1


def _text(error: Exception) -> str:
    """Without Python's "[Errno 2]"."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.strerror}: {error.filename}"
    return str(error) or type(error).__name__


def _without_command(words: list[str]) -> int:
    if words == ["--version"]:
        import anyop

        print(f"anyop {anyop.__version__}")
        return 0
    if words[:1] in (["-h"], ["--help"]):
        print(_help())
        return 0
    if words:
        near = did_you_mean(words[0], ("--help", "--version"))
        print(f"anyop: unknown option '{words[0]}'{near} (see anyop --help)", file=sys.stderr)
    else:
        print(_help(), file=sys.stderr)
    return 2


def _module(command: str) -> ModuleType:
    return importlib.import_module(f"anyop.command.{command.replace('-', '_')}")


def _help() -> str:
    lines = [
        "usage: anyop COMMAND ...",
        "",
        "Operators written once, called from every framework.",
        "",
    ]
    for name in commands():
        about = (_module(name).__doc__ or "").strip().splitlines()
        lines.append(f"  {name:<16}{about[0] if about else ''}")
    lines += ["", "anyop COMMAND --help shows more; anyop --version prints the version."]
    return "\n".join(lines)


def _unknown(word: str) -> str:
    fix = did_you_mean(word, commands()) or f"; there are {', '.join(commands())}"
    return f"unknown command '{word}'{fix}"
