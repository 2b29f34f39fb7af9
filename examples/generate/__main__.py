# SPDX-License-Identifier: Apache-2.0
"""Command line: python -m examples.generate --prompt "The function" --prompt "Returns"."""

from __future__ import annotations

import argparse
import math
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter

import anyop

from . import InputError
from .checkpoint import BITS, load, read_weights
from .config import Config, read_config
from .engine import Engine, Sequence
from .frameworks import KINDS
from .model import has_plain_layers
from .text import read_tokenizer, stream

SMALL = Path(__file__).parent / "small"
FIXED, SPLIT = "cuda_tiles_sm90,cuda_tiles,cpu", 1024  # products by one tile, parts of keys
PROMPTS = ["Return the", "The kernel", "This module"]


def main(words: list[str] | None = None) -> int:
    for out in (sys.stdout, sys.stderr):
        out.reconfigure(errors="backslashreplace")  # any text can be shown anywhere
    try:
        return run(arguments(words))
    except (InputError, ModuleNotFoundError, NotImplementedError) as error:
        say(f"generate: {error}")
        return 2
    except KeyboardInterrupt:
        say("\ngenerate: interrupted")
        return 130
    except BrokenPipeError:  # the reader, as in "| head", has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.generate",
        description="Writes on behind prompts, by a model of a Hugging Face folder.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    count = {"metavar": "N", "type": int}
    for name, how in {
        "model": {"metavar": "DIR", "type": Path, "default": SMALL, "help": "its folder"},
        "prompt": {"metavar": "TEXT", "action": "append", "help": "may be given many times"},
        "tokens": {**count, "default": 200, "help": "at most, for each prompt"},
        "framework": {"choices": list(KINDS), "default": "numpy", "help": "whose arrays"},
        "device": {"choices": ("cpu", "cuda"), "default": "cpu", "help": "cuda: torch and jax"},
        "dtype": {"choices": ("float32", "bfloat16"), "help": "on cuda bfloat16"},
        "temperature": {"type": float, "default": 0.7, "help": "0: the likeliest token"},
        "top-k": {**count, "default": 50, "help": "of so many of the likeliest; 0: of all"},
        "top-p": {"type": float, "default": 0.95, "help": "of the likeliest with this sum"},
        "min-p": {"type": float, "default": 0.0, "help": "of this share of the likeliest"},
        "seed": {**count, "default": 0, "help": "another one draws other tokens"},
        "rows": {**count, "default": 8, "help": "sequences at once"},
        "cache": {**count, "help": "tokens of all together that there is room for"},
        "chunk": {**count, "help": "tokens of prompts in one step; 512, on cuda 2048"},
        "quantize": {"choices": BITS, "help": "weights of layers in 8 or 4 bits"},
        "perplexity": {"metavar": "FILE", "type": Path, "help": "of a text, also by --quantize"},
        "fixed": {"action": "store_true", "help": "rounding does not depend on the batch"},
        "layer-kernel": {"action": "store_true", "help": "a layer of a step is one operator"},
        "explain": {"action": "store_true", "help": "say which operator ran where"},
    }.items():
        parser.add_argument(f"--{name}", **how)
    options = parser.parse_args(words)
    for name in ("tokens", "rows", "cache", "chunk"):
        if getattr(options, name) is not None and not 0 < getattr(options, name) < 1 << 31:
            parser.error(f"--{name} is {getattr(options, name)}, expected a number above 0")
    if not (options.temperature >= 0 and 0 <= options.top_k < 1 << 31 and 0 < options.top_p <= 1
            and 0 <= options.min_p <= 1 and options.seed >= 0):  # fmt: skip
        parser.error("--temperature, --top-k and --seed are 0 or more, --top-p and --min-p shares")
    cuda = options.device == "cuda"
    options.dtype = options.dtype or ("bfloat16" if cuda else "float32")
    options.chunk = options.chunk or (2048 if cuda else 512)
    options.rows = 1 if options.fixed and not cuda else options.rows
    return options


def run(options: argparse.Namespace) -> int:
    begin = perf_counter()
    config, tokenizer = read_config(options.model), read_tokenizer(options.model)
    found = read_weights(options.model, config)
    framework = KINDS[options.framework](options.device, options.dtype)
    anyop.log_dispatch(int(options.explain))
    one_tile = options.fixed and options.device == "cuda"
    if one_tile and options.dtype == "float32":
        raise InputError("--fixed: cuda has products by one tile in bfloat16 alone")
    with anyop.use(FIXED, ops=["linear"]) if one_tile else nullcontext():
        if options.perplexity:
            return compare(framework, config, found, tokenizer, options)
        # What is no text, such as half a character of the command line, becomes "?".
        texts = [text.encode(errors="replace").decode() for text in options.prompt or PROMPTS]
        prompts = [encoded(tokenizer, text, config) for text in texts]
        sequences = [
            Sequence(number, ids, min(len(ids) + options.tokens, config.limit))
            for number, ids in enumerate(prompts)
        ]
        engine = made(framework, config, found, sequences, options)
        parameters = sum(math.prod(tensor.get_shape()) for tensor in found.values())
        say(f"{config.family}, {parameters:,} parameters, {options.framework} on "
            f"{options.device}, {options.dtype}: ready in {perf_counter() - begin:.1f} s")  # fmt: skip
        write(engine, sequences, tokenizer, texts)
    return 0


def encoded(tokenizer, text: str, config: Config) -> list[int]:
    ids = tokenizer.encode(text).ids
    if any(token >= config.V for token in ids):
        raise InputError(f"the model's tokenizer has words beyond its {config.V}")
    return ids


def made(framework, config: Config, found: dict, sequences: list[Sequence], options) -> Engine:
    """Weights as the options ask for, on the device, and room for the sequences."""
    bits, fixed = options.quantize, options.fixed
    if options.layer_kernel and (bits or fixed or not has_plain_layers(config)):
        own = f"{config.family} layers of this kind"
        raise InputError(f"--layer-kernel: not for {own}, --quantize and --fixed")
    if bits == "w4" and any(layer.experts for layer in config.layers):
        raise InputError("--quantize w4: experts have no kernel of 4 bits; fp8 has one")
    config = Config(
        **vars(config), dtype=options.dtype, bits=bits, whole_layers=options.layer_kernel,
        split_size=SPLIT if fixed and options.device == "cuda" else 0,
    )  # fmt: skip
    try:
        weights = load(framework, config, found)
        rows, length = min(options.rows, len(sequences)), max(one.limit for one in sequences)
        return Engine(framework, config, weights, options, rows, length)
    except (MemoryError, RuntimeError) as error:  # NumPy's, and those of torch and XLA
        line, _, _ = str(error).partition("\n")
        raise InputError(f"weights and caches have no room: {line}") from None


def compare(framework, config: Config, found: dict, tokenizer, options) -> int:
    """Perplexity of the weights as they are, and of those in fewer bits."""
    try:
        tokens = encoded(tokenizer, options.perplexity.read_text(encoding="utf-8"), config)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{options.perplexity}: {error}") from None
    one = Sequence(0, tokens, min(len(tokens), config.limit, 1024))
    if one.limit < 2:
        raise InputError(f"{options.perplexity} has fewer than 2 tokens")
    for kind in dict.fromkeys((None, options.quantize)):
        options.quantize = kind
        engine = made(framework, config, found, [one], options)
        found_by = engine.perplexity(tokens[: one.limit])
        print(f"{kind or framework.dtype:10} perplexity {found_by:.4f} of {one.limit} tokens")
    return 0


def write(engine: Engine, sequences: list[Sequence], tokenizer, prompts: list[str]) -> None:
    """Each token's text as it comes; of several sequences line by line, with the number of the prompt."""
    streams, lines = [stream(tokenizer) for _ in sequences], list(prompts)
    alone, begin, first, count = len(prompts) == 1, perf_counter(), 0.0, 0
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


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
