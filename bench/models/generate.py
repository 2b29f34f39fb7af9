# SPDX-License-Identifier: Apache-2.0
"""Times examples/generate from each framework against transformers' generate() on torch, in one run.

    python bench/models/generate.py [--size 0.1b] [--rows 1] [--context 128] [--tokens 16] [--device cpu]
                                    [--dtype float32] [--layer-kernel] [--quantize fp8,w4] [--static] [--replaced]

A random model of the size is written to a temporary folder (or --model names one). All sides read the same prompts of
`context` tokens and write `tokens` more, greedily, in turns. A step's time is that of the tokens behind the first, each
for all rows; the first token's is that of the prompts. In float32 tokens are compared before anything is timed.
One line of JSON for each side is added to bench/results/generate.jsonl.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import anyop
import anyop.torch
import numpy as np
import torch
from harness import environment, write  # makes examples importable

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers

from examples.generate.__main__ import arguments, made
from examples.generate.checkpoint import read_weights
from examples.generate.config import Config, read_config
from examples.generate.engine import Sequence
from examples.generate.frameworks import KINDS

SIZES = {  # hidden, inner, layers, heads, of keys, head, words
    "tiny": (64, 128, 2, 4, 2, 16, 256),
    "0.1b": (768, 2048, 12, 12, 4, 64, 32000),
    "0.6b": (1024, 3072, 28, 16, 8, 128, 151936),
    "8b": (4096, 12288, 36, 32, 8, 128, 151936),
}
PAUSE_S = 0.02  # lets the other library's waiting threads go to sleep


def random_model(size: str, dtype: str, device: str = "cpu") -> torch.nn.Module:
    D, F, layers, H, G, HD, V = SIZES[size]
    config = transformers.Qwen3Config(
        vocab_size=V, hidden_size=D, intermediate_size=F, num_hidden_layers=layers,
        num_attention_heads=H, num_key_value_heads=G, head_dim=HD, tie_word_embeddings=size != "8b",
        initializer_range=0.05, eos_token_id=None, bos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(device):  # where billions of numbers are drawn in no time
        return transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))


class Ours:
    """One framework's engine, made once."""

    def __init__(
        self, name: str, config: Config, found: dict, options, prompts: list[list[int]], *more: str
    ):
        self.prompts, self.count = prompts, options.tokens
        words = ["--rows", str(options.rows), "--device", options.device, "--temperature", "0"]
        words += ["--dtype", options.dtype, *more]
        begin = time.perf_counter()
        framework = KINDS[name](options.device, options.dtype)
        self.engine = made(framework, config, found, self.sequences(), arguments(words))
        self.made_s = time.perf_counter() - begin

    def sequences(self) -> list[Sequence]:
        return [Sequence(n, list(p), len(p) + self.count) for n, p in enumerate(self.prompts)]

    def __call__(self) -> tuple[float, float, list[list[int]]]:
        """Seconds to the first token of all, seconds behind it, and the tokens."""
        sequences, marks = self.sequences(), [time.perf_counter()]
        for n, _ in enumerate(self.engine.write(sequences), 1):
            if n == len(sequences):
                marks.append(time.perf_counter())
        marks.append(time.perf_counter())
        tokens = [one.tokens[one.prompt :] for one in sequences]
        return marks[1] - marks[0], marks[2] - marks[1], tokens


class Transformers:
    def __init__(self, folder: Path, options, prompts: list[list[int]]):
        kind = getattr(torch, options.dtype)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=kind)
        self.model = self.model.to(options.device).eval()
        self.prompts, self.count = torch.tensor(prompts, device=options.device), options.tokens
        self.more: dict = {}
        self.fuse: bool | None = None

    def static(self) -> Transformers:
        """The same model with a static cache, for which transformers compiles the step on CUDA."""
        made = copy.copy(self)
        made.more = {"cache_implementation": "static"}
        return made

    def replaced(self, fuse: bool) -> Transformers:
        """The same model by anyop.torch.replace, while it is this side's turn."""
        made = copy.copy(self)
        made.fuse = fuse
        return made

    def __call__(self) -> tuple[float, float, list[list[int]]]:
        if self.fuse is None:
            return self.write()
        with anyop.torch.replace(self.model, fuse=self.fuse, verbose=False):
            return self.write()

    def write(self) -> tuple[float, float, list[list[int]]]:
        marks = [time.perf_counter()]

        def clock(tokens, scores, **_):  # transformers asks it behind each token whether to stop
            if len(marks) == 1 and tokens.is_cuda:
                torch.cuda.synchronize()  # the first token is there when its kernels have run
            marks.append(time.perf_counter())
            return torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)

        tokens = self.model.generate(
            self.prompts, attention_mask=torch.ones_like(self.prompts), max_new_tokens=self.count,
            min_new_tokens=self.count, do_sample=False, pad_token_id=0, stopping_criteria=[clock],
            **self.more,
        )[:, self.prompts.shape[1] :].tolist()  # fmt: skip
        return marks[1] - marks[0], time.perf_counter() - marks[1], tokens


def measured(sides: dict, rounds: int) -> dict[str, list[tuple[float, float]]]:
    times = {name: [] for name in sides}
    order = list(sides)
    for _ in range(rounds):
        for name in order:
            time.sleep(PAUSE_S)
            times[name].append(sides[name]()[:2])
        order.reverse()
    return times


def main() -> None:
    options = parse_arguments()
    anyop.set_num_threads(options.threads)
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.model or temporary)
        if not options.model:
            random_model(options.size, options.dtype, options.device).save_pretrained(folder)
        run(options, folder)


def run(options: argparse.Namespace, folder: Path) -> None:
    config, begin = read_config(folder), time.perf_counter()
    found = read_weights(folder, config)
    checked_s = time.perf_counter() - begin
    prompts = (
        np.random.default_rng(0).integers(3, config.V, (options.rows, options.context)).tolist()
    )
    ways = {
        "": [],
        **{f", {kind}": ["--quantize", kind] for kind in options.quantize.split(",") if kind},
    }
    if options.layer_kernel:
        ways[", decoder_layer"] = ["--layer-kernel"]
    sides = {
        name + way: Ours(name, config, found, options, prompts, *more)
        for way, more in ways.items()
        for name in options.frameworks.split(",")
    }
    sides["transformers"] = Transformers(folder, options, prompts)
    if options.static:
        sides["transformers, static"] = sides["transformers"].static()
    if options.replaced:
        sides["transformers, replaced"] = sides["transformers"].replaced(fuse=False)
        sides["transformers, joined"] = sides["transformers"].replaced(fuse=True)
    tokens = {name: side()[2] for name, side in sides.items()}
    tokens = {
        name: found for name, found in tokens.items() if ", fp8" not in name and ", w4" not in name
    }
    if options.dtype == "float32" and len({str(found) for found in tokens.values()}) > 1:
        raise SystemExit("tokens differ, nothing was timed")
    rows = []
    for name, times in measured(sides, options.rounds).items():
        steps_ms = [rest / (options.tokens - 1) * 1e3 for _, rest in times]
        first_ms = [first * 1e3 for first, _ in times]
        row = {"size": Path(options.model).name if options.model else options.size}
        row |= {key: getattr(options, key) for key in ("rows", "context", "tokens", "dtype")}
        row |= {"device": options.device, "threads": options.threads, "side": name}
        row |= {"gpu": torch.cuda.get_device_name()} if options.device == "cuda" else {}
        row |= {
            "step_ms": round(min(steps_ms), 4),
            "step_ms_median": round(statistics.median(steps_ms), 4),
        }
        row |= {"first_ms": round(min(first_ms), 3)}
        if isinstance(sides[name], Ours):
            row |= {"weights_checked_s": round(checked_s, 3)}
            row |= {"ready_s": round(sides[name].made_s, 3)}
        rows.append(row)
        step_ms, a_second = row["step_ms"], options.rows / row["step_ms"] * 1e3
        print(f"{name:22} step {step_ms:9.3f} ms (median {row['step_ms_median']:.3f}), "
              f"{a_second:7.0f} tokens a second, first {row['first_ms']:9.2f} ms")  # fmt: skip
    if not options.dry:
        write("generate", rows, environment(anyop, np, torch, transformers))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--size", choices=list(SIZES), default="0.1b")
    add("--model", metavar="DIR", help="instead of random weights")
    add("--frameworks", default="numpy,torch", help="of numpy,torch,jax,paddle")
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--dtype", choices=("float32", "bfloat16"), default="float32")
    add("--rows", type=int, default=1)
    add("--context", type=int, default=128)
    add("--tokens", type=int, default=16)
    add("--threads", type=int, default=2)
    add("--rounds", type=int, default=3)
    add(
        "--static",
        action="store_true",
        help="transformers with a static cache too, compiled on cuda",
    )
    add("--replaced", action="store_true", help="transformers by anyop.torch.replace too")
    add("--layer-kernel", action="store_true", help="ours with each layer as one operator too")
    add("--quantize", default="", help="ours with weights in fewer bits too, of fp8,w4")
    add("--dry", action="store_true", help="write no results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
