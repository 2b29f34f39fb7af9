# SPDX-License-Identifier: Apache-2.0
"""Tunes the sentence search of examples/, and runs it by the tuned routes, by default, on each single backend.

    python bench/models/tune.py [--texts 48] [--queries 4] [--batch 16] [--threads 2] [--rounds 7] [--device cuda]
                         [--model DIR | --random] [--backends cpu,aten] [--routes FILE]

The model's run over some passages and queries is recorded; `anyop tune` measures every kind of call in the record; then
all sides run the same program in turns. Vectors are compared before anything is timed. A backend that does not cover an
operator of the model is named. Exit status 1 where a single backend is faster than the tuned routes by more than 3 % of
the fastest and of the median run. --random: MiniLM's sizes with random weights and tokens, for machines without
the model. One line of JSON is added to bench/results/tune.jsonl.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import anyop
import numpy as np
from anyop import tune
from harness import environment, spread, take_turns, write  # makes examples importable

from examples.sentence_search.folder import model_folder, packaged_model
from examples.sentence_search.frameworks import Torch
from examples.sentence_search.index import embed
from examples.sentence_search.model import Encoder
from examples.sentence_search.session import Model, standard_library
from examples.sentence_search.tensor_model import TensorEncoder
from examples.sentence_search.tokens import Tokens
from examples.sentence_search.weights import Config

TOLERANCE = 1e-5  # of vectors of length 1, as in examples/sentence_search/comparison.py
SLOWER = 1.03  # what is within this is noise of the machine
MINILM = Config(384, 12, 1536, 30522, 512, 6, 2, 1e-12, "gelu", 0, 256, "mean")


class TorchCuda(Torch):
    """The framework torch, with all tensors on the current CUDA device."""

    def tensor(self, array):
        return super().tensor(array).cuda()

    def array(self, tensor):
        return tensor.cpu().numpy()


class Program:
    """Embeds passages and queries and finds the nearest: the whole search but for the tokenizer."""

    def __init__(self, options) -> None:
        config, weights, tokens = random_model(options) if options.random else read_model(options)
        self.passages, self.queries = tokens[: options.texts], tokens[options.texts :]
        self.batch = options.batch
        self.encoder = (
            Encoder(anyop, config, weights)
            if options.device == "cpu"
            else TensorEncoder(anyop, config, weights, TorchCuda())
        )

    def __call__(self) -> np.ndarray:
        """Vectors of the passages, then of the queries; every query's best are asked for on the way."""
        vectors = embed(self.encoder, self.passages, self.batch)
        queries = embed(self.encoder, self.queries, 1)
        tensor = self.encoder.tensor
        everything = tensor(vectors)
        for query in queries:
            scores = anyop.linear(tensor(query[None]), everything)
            values, _ = anyop.topk(scores, min(5, len(vectors)))
            values[0].tolist()
        return np.concatenate([vectors, queries])


def main() -> None:
    options = parse_arguments()
    anyop.set_num_threads(options.threads)
    if options.device == "cuda" or any(n in options.backends for n in ("aten", "*")):
        import torch

        torch.set_num_threads(options.threads)
    program = Program(options)
    with tempfile.TemporaryDirectory() as folder:
        routes = options.routes or os.path.join(folder, "routes.txt")
        tuned, kinds = tune_program(program, routes, options, os.path.join(folder, "run.jsonl"))
        sides = make_sides(program, routes, tuned)
        difference = compare(sides)
        times_ns = take_turns(sides, options.rounds)
        rules = sum(map(len, tuned.rules.values()))
    row = summary(options, times_ns, tuned, {"kinds": kinds, "rules": rules}, difference)
    show(row)
    write("tune", [row], environment(anyop, np, *used_torch()))
    ratios = row["tuned_is_faster_than"]
    if any(ratio < 1 / SLOWER for name, ratio in ratios.items() if name != "default"):
        raise SystemExit("a single backend is faster than the tuned routes")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--model", metavar="DIR", help="default: the packaged all-MiniLM-L6-v2")
    model.add_argument("--random", action="store_true", help="random weights and tokens")
    parser.add_argument("--texts", type=int, default=48)
    parser.add_argument("--queries", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="of tuning, for each kind")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--backends", default="*", help="candidates: names or patterns")
    parser.add_argument("--routes", metavar="FILE", help="where the tuned routes are kept")
    return parser.parse_args()


def read_model(options) -> tuple[Config, dict, list[Tokens]]:
    """The model of the example, and passages from all over the standard library; the last are the queries."""
    model = Model.read(model_folder(options.model) if options.model else packaged_model())
    texts = [passage.text for passage in standard_library().read().passages]
    count = options.texts + options.queries
    chosen = [texts[at * len(texts) // count] for at in range(count)]
    return model.config, model.weights, model.tokenizer.encode(chosen)


def random_model(options) -> tuple[Config, dict, list[Tokens]]:
    from examples.sentence_search.tiny_bert import weights

    names = {
        "hidden_size": MINILM.D,
        "intermediate_size": MINILM.M,
        "vocab_size": MINILM.V,
        "max_position_embeddings": MINILM.P,
        "type_vocab_size": MINILM.types,
        "num_hidden_layers": MINILM.layers,
    }
    random = np.random.default_rng(0)
    lengths = random.integers(20, 200, options.texts + options.queries)
    tokens = [Tokens(random.integers(1, MINILM.V, n), int(n)) for n in lengths]
    # 0.3 of the tiny model is too much for 384 features: scores would be all or nothing.
    made = {name: np.asarray(tensor, np.float32) for name, tensor in weights(names).items()}
    made = {name: t * np.float32(0.2) if t.ndim == 2 else t for name, t in made.items()}
    return MINILM, made, tokens


def tune_program(program: Program, routes: str, options, record: str) -> tuple[tune.Tuned, int]:
    """Records one run after a first, and tunes what it called."""
    program()
    anyop.record(record)
    program()
    anyop.record(None)
    kinds, _ = tune.read_record(record)
    settings = tune.Settings(
        routes, options.backends.split(","), options.seconds, sources=["sentence search"]
    )

    def tell(event: dict) -> None:
        print(f"note: {event['note']}" if "note" in event else f"  {event['at']}", flush=True)

    return tune.tune(tune.merged(kinds), settings, tell), len(kinds)


def make_sides(program: Program, routes: str, tuned: tune.Tuned) -> dict[str, Callable]:
    """The program by the tuned routes, by default, and on each single backend that covers it."""

    @contextlib.contextmanager
    def loaded(path: str | None) -> Iterator[None]:
        anyop.load_routes(path)
        try:
            yield
        finally:
            anyop.load_routes(None)

    def side(enter: Callable) -> Callable:
        def run() -> np.ndarray:
            with enter():
                return program()

        return run

    whole = [name for name in tuned.totals if name not in ("default", "tuned")]
    return {
        "tuned": side(lambda: loaded(routes)),
        "default": side(lambda: loaded(None)),
        **{name: side(lambda name=name: anyop.use(name)) for name in whole},
    }


def compare(sides: dict[str, Callable]) -> float:
    """The largest difference of any side's vectors from the default's; SystemExit above the tolerance."""
    expected = sides["default"]()
    differences = {name: float(np.abs(run() - expected).max()) for name, run in sides.items()}
    for name, difference in differences.items():
        if not difference <= TOLERANCE:
            raise SystemExit(f"{name} differs by {difference:.1e}, nothing was timed")
    return max(differences.values())


def summary(options, times_ns: dict, tuned: tune.Tuned, counts: dict, difference: float) -> dict:
    ours = times_ns["tuned"]
    ratios = {
        name: max(
            min(times) / min(ours),
            statistics.median(theirs / mine for theirs, mine in zip(times, ours, strict=True)),
        )
        for name, times in times_ns.items()
        if name != "tuned"
    }
    names = ("device", "texts", "queries", "batch", "threads", "rounds")
    return {
        **{name: getattr(options, name) for name in names},
        "model": "random" if options.random else "all-MiniLM-L6-v2" if not options.model else "own",
        "dtype": "float32",
        **counts,
        **{name: spread(times) for name, times in times_ns.items()},
        "tuned_is_faster_than": {name: round(ratio, 3) for name, ratio in ratios.items()},
        "does_not_cover": {name: gap.split(" (")[0] for name, gap in tuned.missing.items()},
        "largest_difference": difference,
        **({"gpu": used_torch()[0].cuda.get_device_name()} if options.device == "cuda" else {}),
    }


def used_torch() -> tuple:
    import sys

    return (sys.modules["torch"],) if "torch" in sys.modules else ()


def show(row: dict) -> None:
    print(f"sentence search on {row['device']}, {row['texts']} texts and {row['queries']} queries, "
          f"{row['kinds']} kinds of calls, {row['rules']} rules, {row['rounds']} rounds in turns")  # fmt: skip
    for name in ("tuned", *row["tuned_is_faster_than"]):
        least, median = (row[name][key] / 1e6 for key in ("min_ns", "median_ns"))
        ratio = row["tuned_is_faster_than"].get(name)
        print(f"  {name:10} min {least:9.2f} ms   median {median:9.2f} ms"
              + (f"   tuned is {ratio:.2f}x" if ratio else ""))  # fmt: skip
    for name, operator in row["does_not_cover"].items():
        print(f"  {name} does not cover {operator}")
    print(f"  largest difference {row['largest_difference']:.1e}, allowed {TOLERANCE:.0e}")


if __name__ == "__main__":
    main()
