# SPDX-License-Identifier: Apache-2.0
"""Command line: python -m examples.sentence_search --query "…"."""

from __future__ import annotations

import argparse
import os
import sys

from . import InputError

QUERY = "measure how long a small piece of code takes to run"


def main() -> int:
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # any text can be shown anywhere
    try:
        return run(parse_arguments())
    except InputError as error:
        print(f"sentence_search: {error}", file=sys.stderr)
        return 2
    except MemoryError:
        print("sentence_search: out of memory: give a smaller --batch-size", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, as in "| head", has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


class OneLineParser(argparse.ArgumentParser):
    def error(self, message):
        raise InputError(f"{message} (see --help)")


def parse_arguments() -> argparse.Namespace:
    parser = OneLineParser(
        prog="python -m examples.sentence_search",
        description="Search text by meaning: a BERT encoder on anyop operators.",
    )
    parser.add_argument("--query", metavar="TEXT", help=f'what to look for (default: "{QUERY}")')
    parser.add_argument("-i", "--interactive", action="store_true", help="ask for queries")
    parser.add_argument("--corpus", metavar="DIR", help="text files (default: Python's docstrings)")
    parser.add_argument("--model", metavar="DIR", help="a BERT: safetensors, tokenizer, config")
    parser.add_argument("--top", metavar="N", type=positive, default=5, help="passages to show")
    parser.add_argument(
        "--batch-size", metavar="N", type=positive, default=32, help="while indexing"
    )
    parser.add_argument("--threads", metavar="N", type=positive, help="of anyop's pool")
    parser.add_argument(
        "--framework",
        choices=("numpy", "torch", "jax", "paddle", "all"),
        default="numpy",
        help="whose arrays are used; all: compare those that are installed",
    )
    parser.add_argument(
        "--device", metavar="NAME", default="cpu", help="of anyop, such as opencl (default: cpu)"
    )
    parser.add_argument("--compile", action="store_true", help="run the model by torch.compile")
    parser.add_argument("--no-cache", action="store_true", help="neither read nor write an index")
    options = parser.parse_args()
    if options.compile and options.framework != "torch":
        parser.error("--compile needs --framework torch")
    if options.device != "cpu" and (options.compile or options.framework not in ("numpy", "torch")):
        parser.error("--device needs --framework numpy or torch, and no --compile")
    if options.interactive and options.framework == "all":
        parser.error("--interactive needs one framework")
    return options


def positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 1 << 31:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return int(text)


def run(options: argparse.Namespace) -> int:
    query = options.query if options.query is not None or options.interactive else QUERY
    if query is not None:
        query = checked(query)
    if options.framework == "all":
        from .comparison import compare

        return compare(options, query)
    from .session import Session  # imports NumPy and anyop, which bad arguments need not wait for

    session = Session(options)
    if query is not None:
        print("\n".join(session.answer(query)))
    print("\n".join(session.report()), flush=True)
    if options.interactive:
        prompt(session)
    return 0


def checked(query: str) -> str:
    """The query as UTF-8 text, whatever the locale took its bytes for."""
    try:
        query = os.fsencode(query).decode()
    except UnicodeError:
        raise InputError("the query is not valid UTF-8 text") from None
    if not query.strip():
        raise InputError("the query is empty: say what to look for")
    return query


def prompt(session) -> None:
    """Answer queries until the end of input or Ctrl-C."""
    sys.stdin.reconfigure(errors="surrogateescape")  # checked() refuses what is no text
    while prompt_once(session):
        pass


def prompt_once(session) -> bool:
    """Answer one query; False when there are no more."""
    try:
        query = checked(input("query> "))
        print("\n".join(session.answer(query)))
        print(f"answered in {session.last_query()}\n", flush=True)
    except (EOFError, KeyboardInterrupt):
        print()
        return False
    except InputError as error:
        print(f"sentence_search: {error}", file=sys.stderr, flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
