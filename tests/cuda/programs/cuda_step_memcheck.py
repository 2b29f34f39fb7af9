# SPDX-License-Identifier: Apache-2.0
"""Whole steps of examples/generate under NVIDIA's compute-sanitizer: prompts in pieces, graphs, sampling, fewer bits.

    python tests/cuda/programs/cuda_step_memcheck.py [--tools memcheck,synccheck,racecheck,initcheck] [--layers 2]

A small random Qwen 3 in bfloat16, and one with a mixture of experts. Each way of writing runs as it is, by graphs, and
step by step: then torch gives every tensor memory of its own, so that memcheck sees where each ends. Ends with 1 where
a tool found something. A program, not a file of tests: it takes minutes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOUND = 99  # how a process ends whose tool found something
WAYS = {
    "the likeliest": ["--temperature", "0"],
    "drawn of some": ["--temperature", "1", "--top-k", "20", "--min-p", "0.01"],
    "drawn of all": ["--temperature", "1", "--top-k", "0", "--top-p", "1"],
    "experts": ["--temperature", "1"],
    "one tile": ["--temperature", "0", "--fixed"],
    "fp8": ["--temperature", "0", "--quantize", "fp8"],
    "w4": ["--temperature", "0", "--quantize", "w4"],
}


def write_model(folder: Path, layers: int, **experts: int) -> None:
    import torch
    import transformers

    kind = transformers.Qwen3MoeConfig if experts else transformers.Qwen3Config
    config = kind(
        **experts, vocab_size=1024, hidden_size=256, intermediate_size=512, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, head_dim=64, max_position_embeddings=512,
        initializer_range=0.1, eos_token_id=None, bos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    shutil.copy(ROOT / "examples" / "generate" / "small" / "tokenizer.json", folder)


def write(folder: Path, way: str, eager: bool, device: str) -> int:
    """In a process under a tool. One of three prompts has two pages and three pieces, and ends on a third page."""
    sys.path.insert(0, str(ROOT))
    from examples.generate import __main__ as program
    from examples.generate.frameworks import NumPy, Torch

    if eager:
        Torch.compiled = NumPy.compiled
    model = folder / ("experts" if way == "experts" else "dense")
    words = ["--model", str(model), "--framework", "torch", "--device", device, "--tokens", "6"]
    words += ["--dtype", "bfloat16", "--chunk", "48", *WAYS[way]]
    for length in (125, 1, 40):
        words += ["--prompt", "a" * length]
    return program.main(words)


def passes(tool: str, folder: Path, way: str, eager: bool, device: str) -> bool:
    """Whether all was written, and the tool found nothing."""
    words = ["compute-sanitizer", "--tool", tool, "--error-exitcode", str(FOUND)]
    if tool != "initcheck":
        words += ["--kernel-name", "kns=anyop"]
    words = words if device == "cuda" else []
    words += [sys.executable, __file__, "--device", device, "--write", str(folder), "--way", way]
    words += ["--eager"] * eager
    apart = (
        {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if eager else {}
    )  # a graph cannot be captured so
    begin = time.perf_counter()
    run = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        env={**os.environ, **apart},
    )  # fmt: skip
    right = run.returncode == 0 and "18 tokens in" in run.stdout
    name = f"{tool}: {way}, {'step by step' if eager else 'graphs'}"
    took = time.perf_counter() - begin
    print(f"{name}: {'passed' if right else 'FAILED'}, {took:.0f} s", flush=True)
    if not right:
        print("\n".join(run.stdout.splitlines()[-60:]), flush=True)
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tools", default="memcheck,synccheck")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda", help="cpu: no tool")
    for name in ("--write", "--way"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--eager", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        return write(Path(options.write), options.way, options.eager, options.device)
    if options.device == "cuda" and not shutil.which("compute-sanitizer"):
        print("skipped: there is no compute-sanitizer on PATH; it comes with the CUDA toolkit")
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_model(folder / "dense", options.layers)
        experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
        write_model(folder / "experts", options.layers, **experts)
        found = [
            passes(tool, folder, way, eager, options.device)
            for tool in options.tools.split(",")
            for way in WAYS
            for eager in (True, False)
        ]
    return int(not all(found))


if __name__ == "__main__":
    sys.exit(main())
