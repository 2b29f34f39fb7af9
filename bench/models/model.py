# SPDX-License-Identifier: Apache-2.0
"""Times the model of examples/sentence_search against transformers' BertModel on torch, in one run.

    python bench/models/model.py [--model DIR] [--texts 32] [--tokens 128] [--threads 2] [--rounds 20]

Both sides get the same token numbers and mask and return vectors of unit length in float32. They
take turns, so that a slow minute of the machine falls on both. Results are compared before anything
is timed. One line of JSON is added to bench/results/model.jsonl.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import anyop
import numpy as np
import torch
import transformers
from harness import environment, spread, take_turns, write  # makes examples importable

from examples.sentence_search.folder import ModelFolder, model_folder, packaged_model
from examples.sentence_search.model import Encoder
from examples.sentence_search.recorder import Recorder
from examples.sentence_search.weights import read_config, read_weights

TOLERANCE = 1e-5
PAUSE_S = 0.01  # lets the other library's waiting threads go to sleep


def main() -> None:
    options = parse_arguments()
    anyop.set_num_threads(options.threads)
    torch.set_num_threads(options.threads)
    folder = packaged_model() if options.model is None else model_folder(options.model)
    config = read_config(folder)
    encoder = Encoder(anyop, config, read_weights(folder, config))
    random = np.random.default_rng(0)
    ids = random.integers(1, config.V, (options.texts, options.tokens))
    mask = np.ones(ids.shape, dtype=bool)
    sides = {
        "anyop": lambda: encoder(ids, mask),
        "torch": torch_side(folder, config.pooling, ids, mask),
    }
    difference = float(np.abs(sides["anyop"]() - sides["torch"]()).max())
    if not difference <= TOLERANCE:
        raise SystemExit(f"results differ by {difference:.1e}, nothing was timed")
    times_ns = take_turns(sides, options.rounds, pause_s=PAUSE_S)
    result = summary(options, times_ns, difference)
    show(result, shares(encoder, ids, mask))
    write("model", [result], environment(anyop, np, torch, transformers))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", metavar="DIR", help="default: the packaged all-MiniLM-L6-v2")
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    return parser.parse_args()


def torch_side(folder: ModelFolder, pooling: str, ids, mask) -> Callable[[], np.ndarray]:
    model = transformers.BertModel.from_pretrained(
        folder.path, local_files_only=True, add_pooling_layer=False, dtype=torch.float32
    ).eval()
    inputs = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask).long()}
    weights = inputs["attention_mask"][..., None].float()

    def run() -> np.ndarray:
        with torch.inference_mode():
            hidden = model(**inputs).last_hidden_state
            pooled = (
                (hidden * weights).sum(1) / weights.sum(1) if pooling == "mean" else hidden[:, 0]
            )
            return torch.nn.functional.normalize(pooled, dim=1).numpy()

    return run


def shares(encoder: Encoder, ids, mask) -> list[str]:
    """Where our time goes; measured apart, since the recorder takes time itself."""
    encoder.ops = recorder = Recorder(anyop)
    with recorder.measure():
        encoder(ids, mask)
    return recorder.table()


def summary(options, times_ns: dict[str, list[float]], difference: float) -> dict:
    ours, theirs = times_ns["anyop"], times_ns["torch"]
    ratios = [their_ns / our_ns for our_ns, their_ns in zip(ours, theirs, strict=True)]
    return {
        **{name: getattr(options, name) for name in ("texts", "tokens", "threads", "rounds")},
        "dtype": "float32",
        **{name: spread(times) for name, times in times_ns.items()},
        "speedup_of_min": round(min(theirs) / min(ours), 3),
        "speedup_median_of_rounds": round(statistics.median(ratios), 3),
        "largest_difference": difference,
    }


def show(result: dict, table: list[str]) -> None:
    size = f"{result['texts']} x {result['tokens']} tokens, {result['threads']} threads"
    print(f"BERT forward, float32, {size}, {result['rounds']} rounds in turns")
    for name in ("anyop", "torch"):
        least, median = (result[name][key] / 1e6 for key in ("min_ns", "median_ns"))
        print(f"  {name:6} min {least:9.2f} ms   median {median:9.2f} ms")
    print(f"  torch / anyop: {result['speedup_of_min']:.2f} of the minima, ", end="")
    print(f"{result['speedup_median_of_rounds']:.2f} median of the rounds")
    print(f"  largest difference {result['largest_difference']:.1e}, allowed {TOLERANCE:.0e}\n")
    print("\n".join(table))


if __name__ == "__main__":
    main()
