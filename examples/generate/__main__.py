# SPDX-License-Identifier: Apache-2.0
"""Command line: python -m examples.generate --prompt "The function" --prompt "Returns"."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import anyop

from . import InputError
from .checkpoint import arranged, read_weights
from .config import Config, read_config
from .engine import Engine, Sequence
from .frameworks import KINDS
from .model import PAGE, Sampling
from .quantized import KINDS as QUANTIZED
from .quantized import MATRICES, perplexity, quantized
from .text import read_tokenizer

SMALL = Path(__file__).parent / "small"
FIXED, SPLIT = "cuda_tiles_sm90,cuda_tiles,cpu", 1024  # products by one tile, parts of keys
PROMPTS = ["Return the", "The kernel", "This module"]


def main(words: list[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # any text can be shown anywhere
    try:
        return run(arguments(words))
    except InputError as error:
        print(f"generate: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ngenerate: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, as in "| head", has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.generate",
        description="Writes on behind prompts, by a model of a Hugging Face folder.",
    )
    add = parser.add_argument
    add("--model", metavar="DIR", type=Path, default=SMALL, help="(default: the small one here)")
    add("--prompt", metavar="TEXT", action="append", help="may be given many times")
    add("--tokens", metavar="N", type=positive, default=200, help="at most, for each prompt")
    add("--framework", choices=list(KINDS), default="numpy")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: torch and jax")
    add("--dtype", choices=("float32", "bfloat16"), help="(default: bfloat16 on cuda)")
    add("--temperature", metavar="X", type=float, default=0.7, help="0: the likeliest token")
    add("--top-k", metavar="N", type=int, default=50, help="0: all (default: %(default)s)")
    add("--top-p", metavar="X", type=float, default=0.95, help="(default: %(default)s)")
    add("--seed", metavar="N", type=int, default=0)
    add("--rows", metavar="N", type=positive, default=8, help="sequences at once")
    add("--cache", metavar="N", type=positive, help="tokens of all (default: enough)")
    add(
        "--chunk",
        metavar="N",
        type=positive,
        help="of prompts in one step (default: 512, cuda 2048)",
    )
    add("--quantize", choices=QUANTIZED, help="weights of layers in 8 or 4 bits")
    add("--perplexity", metavar="FILE", type=Path, help="of a text, without and with --quantize")
    add(
        "--fixed", action="store_true", help="rounding does not depend on the batch (--rows counts)"
    )
    add("--layer-kernel", action="store_true", help="each layer of a step is one operator")
    add("--explain", action="store_true", help="say which operator ran where")
    options = parser.parse_args(words)
    if not (options.temperature >= 0 and options.top_k >= 0 and 0 < options.top_p <= 1):
        parser.error("--temperature and --top-k are 0 or more, --top-p is above 0, at most 1")
    return options


def positive(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 1 << 31:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return int(text)


def run(options: argparse.Namespace) -> int:
    begin = perf_counter()
    config, text = read_config(options.model), read_tokenizer(options.model)
    found = read_weights(options.model, config)
    dtype = options.dtype or ("bfloat16" if options.device == "cuda" else "float32")
    framework = KINDS[options.framework](options.device, dtype)
    prompts = [text.encode(prompt) for prompt in options.prompt or PROMPTS]
    if any(not 0 <= token < config.V for ids in prompts for token in ids):
        raise InputError(f"{options.model}: its tokenizer has words beyond the model's {config.V}")
    sequences = [
        Sequence(number, ids, min(len(ids) + options.tokens, config.limit))
        for number, ids in enumerate(prompts)
    ]
    route = nullcontext()
    if options.fixed and options.device == "cuda":
        if dtype == "float32":
            raise InputError("--fixed: cuda has products by one tile in bfloat16 alone")
        config, route = replace(config, split_size=SPLIT), anyop.use(FIXED, ops=["linear"])
    if options.perplexity:
        with route:
            return compare(framework, config, found, text, options)
    with route, explained(options.explain) as lines:
        engine = made(framework, config, found, sequences, options)
        count = sum(tensor.values.size for tensor in found.values())
        say(f"{config.family}, {count:,} parameters, {options.framework} on {options.device}, "
            f"{dtype}: ready in {perf_counter() - begin:.1f} s")  # fmt: skip
        write(engine, sequences, text, options.prompt or PROMPTS)
    for line in lines:
        say(line)
    return 0


def with_whole_layers(config: Config, options) -> Config:
    if not config.has_plain_layers:
        raise InputError(f"--layer-kernel: {config.family} layers of this kind are no one operator")
    if options.quantize or options.fixed:
        raise InputError("--layer-kernel goes with neither --quantize nor --fixed")
    if options.device == "cuda" and not (
        options.dtype != "float32" and config.HD in (64, 128) and config.H <= 8 * config.G
        and config.D % 8 == config.F % 8 == 0
    ):  # fmt: skip
        raise InputError(
            "--layer-kernel on CUDA takes bfloat16, heads of 64 or 128 features, at most 8 of queries for"
            " each of keys, and multiples of 8 features"
        )
    return replace(config, whole_layers=True)


def made(framework, config: Config, found: dict, sequences: list[Sequence], options) -> Engine:
    if options.layer_kernel:
        config = with_whole_layers(config, options)
    outer, layers = arranged(config, found)
    weights = {name: framework.weight(own) for name, own in outer.items() if name != "head"}
    weights["head"] = weights["embed"] if config.tied else framework.weight(outer["head"])
    weights["layers"] = [
        {
            name: quantized(framework, own, options.quantize)
            if options.quantize and name in MATRICES
            else framework.weight(own)
            for name, own in layer.items()
        }
        for layer in layers
    ]
    how = Sampling(options.temperature, options.top_k, options.top_p)
    alone = options.fixed and options.device == "cpu"
    rows = options.rows if alone else min(options.rows, len(sequences))
    length = max(one.limit for one in sequences)
    cache = options.cache or rows * (length + PAGE)
    chunk = options.chunk or (2048 if options.device == "cuda" else 512)
    engine = Engine(framework, config, weights, how, options.seed,
                    rows=rows, length=length, cache=cache, chunk=chunk, alone=alone)  # fmt: skip
    engine.prepare()
    return engine


def compare(framework, config: Config, found: dict, text, options) -> int:
    """Perplexity of the weights as they are, and of those in fewer bits."""
    try:
        tokens = text.encode(options.perplexity.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{options.perplexity}: {error}") from None
    one = Sequence(
        0, tokens, min(len(tokens), config.limit, 1024)
    )  # all their logits are in memory
    if one.limit < 2:
        raise InputError(f"{options.perplexity} has fewer than 2 tokens")
    for kind in dict.fromkeys((None, options.quantize)):
        options.quantize = kind
        found_by = perplexity(made(framework, config, found, [one], options), tokens)
        print(f"{kind or framework.dtype:10} perplexity {found_by:.4f} of {one.limit} tokens")
    return 0


def write(engine: Engine, sequences: list[Sequence], text, prompts: list[str]) -> None:
    """Each token's text as it comes; of several sequences line by line, with the number of the prompt."""
    streams = [text.stream() for _ in sequences]
    lines, alone = list(prompts), len(prompts) == 1
    begin, first, count = perf_counter(), 0.0, 0
    if alone:
        print(prompts[0], end="", flush=True)
    for one, token in engine.write(sequences):
        first, count = first or perf_counter() - begin, count + (token is not None)
        piece = "" if token is None or one.end == "stop token" else streams[one.number](token)
        if alone:
            print(piece, end="\n" if one.end else "", flush=True)
        else:
            lines[one.number] += piece
            *whole, lines[one.number] = (lines[one.number] + "\n" * bool(one.end)).split("\n")
            for line in whole:
                print(f"{one.number + 1}: {line}", flush=True)
        if one.end:
            say(f"{one.number + 1}: ended by {one.end}, {len(one.tokens) - one.prompt} tokens")
    took = perf_counter() - begin
    rest = max(took - first, 1e-9)
    say(f"{count} tokens in {took:.2f} s, the first after {first * 1e3:.0f} ms: "
        f"{max(count - 1, 0) / rest:.0f} tokens a second")  # fmt: skip


@contextmanager
def explained(wanted: bool) -> Iterator[list[str]]:
    """A list that gets a line for each operator and the implementation that takes it."""
    lines: list[str] = []
    handler, logger = logging.Handler(), logging.getLogger("anyop.dispatch")
    handler.emit = lambda record: lines.append(record.getMessage())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    anyop.log_dispatch(int(wanted), stderr=False)
    try:
        yield lines
    finally:
        anyop.log_dispatch(0)
        logger.removeHandler(handler)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
