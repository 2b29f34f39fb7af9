# SPDX-License-Identifier: Apache-2.0
"""Command line: python -m examples.qwen3 --device anyop."""

from __future__ import annotations

import argparse
import sys

from . import InputError


def main(words: list[str] | None = None) -> int:
    options = parse_arguments(words)
    try:
        from .session import (
            run,
        )  # imports torch and transformers, which bad arguments need not wait for

        return run(options)
    except InputError as error:
        print(f"qwen3: {error}", file=sys.stderr)
        return 2


def parse_arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.qwen3",
        description="Qwen3 of transformers infers and trains on a device of torch; "
        "on anyop, results are compared with the same model on cpu or cuda.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--device", choices=("anyop", "cpu", "cuda"), default="anyop")
    add("--model", metavar="DIR", help="a checkpoint of Qwen3 (default: random weights)")
    add("--size", choices=("tiny", "0.6b"), default="tiny", help="of random weights")
    add("--dtype", choices=("float32", "bfloat16", "float16"), help="(default: the weights')")
    add("--rows", metavar="N", type=positive, default=2, help="prompts, and texts to learn")
    add("--length", metavar="N", type=positive, default=32, help="tokens of each")
    add("--tokens", metavar="N", type=positive, default=32, help="to generate for each prompt")
    add("--steps", metavar="N", type=natural, default=5, help="of training; 0: do not train")
    add("--adamw", choices=("fused", "foreach", "plain"), default="foreach")
    add("--rate", metavar="X", type=float, help="of learning (default: tiny 1e-2, else 1e-5)")
    add("--ddp", action="store_true", help="several processes, started by torchrun")
    add("--no-compare", action="store_true", help="with nothing; on anyop only")
    add("--shards", metavar="N", type=positive, default=1, help=argparse.SUPPRESS)
    add("--save", metavar="FILE", help=argparse.SUPPRESS)  # results, for the comparison
    options = parser.parse_args(words)
    if options.length < 2:
        parser.error("--length: a text to learn has at least 2 tokens")
    if options.rate is None:
        options.rate = 1e-2 if options.model is None and options.size == "tiny" else 1e-5
    return options


def positive(text: str) -> int:
    if natural(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return int(text)


def natural(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) >= 1 << 31:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
