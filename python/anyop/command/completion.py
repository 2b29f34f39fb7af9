# SPDX-License-Identifier: Apache-2.0
"""Print the completion of a shell: eval "$(anyop completion bash)", zsh too; anyop completion fish | source.

The shell then asks this command, `anyop completion words LINE`, for what may stand in the place of the last word:
commands, options, and values that are known. The line's words have tabs between them. Files are the shell's own.
"""

from __future__ import annotations

import argparse

from anyop.command import _main

_BASH = """_anyop() {
  local IFS=$'\\t'
  local line="${COMP_WORDS[*]:0:COMP_CWORD+1}"
  IFS=$'\\n'
  COMPREPLY=($(anyop completion words "$line" 2>/dev/null))
}
complete -o default -F _anyop anyop
"""
_FISH = r"""function _anyop
  anyop completion words (string join \t -- (commandline -opc) "$(commandline -ct)")
end
complete -c anyop -a '(_anyop)'
"""
_SCRIPTS = {
    "bash": _BASH,
    "zsh": f"autoload -U +X bashcompinit && bashcompinit\n{_BASH}",
    "fish": _FISH,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `anyop completion` takes."""
    parser.add_argument("shell", choices=[*_SCRIPTS, "words"])
    parser.add_argument("line", nargs="?", default="", metavar="LINE", help="what is typed")


def run(options: argparse.Namespace) -> int:
    """Prints a script, or a line for each word that fits."""
    if options.shell != "words":
        print(_SCRIPTS[options.shell], end="")
        return 0
    *before, last = options.line.split("\t")[1:] or [""]
    for word in candidates(before):
        if word.startswith(last) and (last or not word.startswith("-")):
            print(word)
    return 0


def candidates(before: list[str]) -> list[str]:
    """What may stand behind these words."""
    if not before:
        return [*_main.commands(), "--help", "--version"]
    if before[0] not in _main.commands():
        return []
    parser: argparse.ArgumentParser = _main.parser_of(before[0])
    for word in before[1:]:
        parser = _commands_of(parser).get(word, parser)
    for action in parser._actions:
        if before[-1] in action.option_strings and action.nargs != 0:
            return list(map(str, action.choices or ()))
    options = [name for action in parser._actions for name in action.option_strings]
    places = [action for action in parser._actions if not action.option_strings]
    return [str(word) for action in places for word in action.choices or ()] + options


def _commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return action.choices
    return {}
