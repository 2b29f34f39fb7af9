# SPDX-License-Identifier: Apache-2.0
"""Trains a byte-level Llama of 2.8 million parameters on this tree's docs and Python's docstrings.

    python -m examples.train_small --device cuda --steps 600 --out FOLDER

Every step of the model is an anyop operator, gradients included. Weights and the optimiser's numbers are float32; on
CUDA products, norms and attention are bfloat16. The folder is one of Hugging Face's: config.json, model.safetensors in
bfloat16, and tokenizer.json: a token below 256 is that byte of UTF-8, 256 stands before each text, 257 behind it.
Sizes: B texts of T tokens, D features, H heads of queries, G of keys, HD features of a head, F features inside the
feed-forward part, V tokens.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import anyop
import torch
from safetensors.torch import save_file

TREE, LIBRARY = Path(__file__).resolve().parents[2], Path(os.__file__).parent
PAGES = ("*.md", "docs/*.md", "examples/*/README.md")
NOT_PUBLIC = {"test", "tests", "idlelib", "idle_test", "site-packages", "lib2to3", "turtledemo"}
SHORTEST = 40  # characters of a docstring
V, BEGIN, END = 264, 256, 257  # a multiple of 8, which products on GPUs like
D, H, G, HD, F, LAYERS, EPS, THETA = 192, 6, 2, 32, 512, 7, 1e-6, 10000.0
WIDTH = (H + 2 * G) * HD  # of queries, keys and values
CHECK = 20  # every such text is not learned from


def texts(library: Path = LIBRARY) -> Iterator[str]:
    """Pages of this tree by section, and docstrings of the standard library's public modules."""
    for pattern in PAGES:
        for page in sorted(TREE.glob(pattern)):
            yield from ("#" + part for part in page.read_text().lstrip("#").split("\n#"))
    seen = set()
    for path in sorted(library.rglob("*.py")):
        if NOT_PUBLIC & set(path.relative_to(library).parts[:-1]):
            continue
        for text in docstrings(path):
            if len(text) >= SHORTEST and text not in seen:
                seen.add(text)
                yield text


def docstrings(path: Path) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of old files
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            return  # some are made to be wrong
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def tokens_of(chosen: list[str]) -> torch.Tensor:
    """All texts in one row, each between BEGIN and END."""
    row = [token for text in chosen for token in (BEGIN, *text.encode(), END)]
    return torch.tensor(row, dtype=torch.int16)


def parameters(device: str) -> dict[str, torch.Tensor]:
    """Random weights. What adds to the vectors of tokens begins smaller, the more layers there are."""
    shapes = {"embed": (V, D), "norm": (D,)}
    for layer in range(LAYERS):
        own = {"attention_norm": (D,), "qkv": (WIDTH, D), "out": (D, H * HD)}
        own |= {"ffn_norm": (D,), "gate_up": (2 * F, D), "down": (D, F)}
        shapes |= {f"{layer}.{name}": shape for name, shape in own.items()}
    made = {}
    for name, shape in shapes.items():
        last = name.rpartition(".")[2]
        std = 0.02 if last == "embed" else shape[-1] ** -0.5
        std = std / math.sqrt(2 * LAYERS) if last in ("out", "down") else std
        weight = torch.ones(shape) if len(shape) == 1 else torch.randn(shape) * std
        made[name] = weight.to(device).requires_grad_()
    return made


def rope_table(positions: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    frequency = THETA ** (-torch.arange(0, HD, 2) / HD)
    angles = (torch.arange(positions)[:, None] * frequency).repeat(1, 2)
    return angles.cos().to(device), angles.sin().to(device)


def logits_of(weights: dict, rope: tuple, tokens: torch.Tensor) -> torch.Tensor:
    """(B, T, V) for tokens (B, T)."""
    B, T = tokens.shape
    x, delta = anyop.embedding(tokens, weights["embed"]), None
    for layer in range(LAYERS):
        own = {name: weights[f"{layer}.{name}"] for name in ("qkv", "out", "gate_up", "down")}
        h, x = normed(x, delta, weights[f"{layer}.attention_norm"])
        qkv = anyop.linear(h, own["qkv"]).view(B, T, H + 2 * G, HD)
        q, k = anyop.rope_qk(qkv[:, :, :H], qkv[:, :, H : H + G], *rope)
        q, k, v = (heads.transpose(1, 2) for heads in (q, k, qkv[:, :, H + G :]))
        out = anyop.attention(q, k, v, causal=True).transpose(1, 2).reshape(B, T, H * HD)
        h, x = normed(x, anyop.linear(out, own["out"]), weights[f"{layer}.ffn_norm"])
        delta = anyop.linear(anyop.silu_and_mul(anyop.linear(h, own["gate_up"])), own["down"])
    return anyop.linear(normed(x, delta, weights["norm"])[0], weights["embed"])


def normed(x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor):
    """The sum of both normalised, and the sum."""
    if delta is None:
        return anyop.rms_norm(x, weight, EPS), x
    return anyop.fused_add_rms_norm(delta, x, weight, EPS)


def loss_of(weights: dict, rope: tuple, rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The mean of -log p of each token behind the first, rows (B, T + 1)."""
    lower = {name: weight.to(dtype) for name, weight in weights.items()}
    logits = logits_of(lower, rope, rows[:, :-1].contiguous())
    return torch.nn.functional.cross_entropy(logits.float().view(-1, V), rows[:, 1:].reshape(-1))


def drawn(row: torch.Tensor, B: int, T: int, random: torch.Generator) -> torch.Tensor:
    """B pieces of T + 1 tokens, from anywhere."""
    at = torch.randint(len(row) - T - 1, (B, 1), generator=random) + torch.arange(T + 1)
    return row[at.to(row.device)].long()


def train(options: argparse.Namespace) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    every = list(texts())
    learned, checked = (
        tokens_of([text for n, text in enumerate(every) if (n % CHECK == 0) == held])
        for held in (False, True)
    )
    weights, rope = parameters(options.device), rope_table(options.length, options.device)
    say(f"{len(learned):,} tokens to learn, {len(checked):,} to check, "
        f"{sum(weight.numel() for weight in weights.values()):,} parameters")  # fmt: skip
    optimiser = torch.optim.AdamW(
        [
            {"params": [w for w in weights.values() if w.dim() > 1], "weight_decay": 0.1},
            {"params": [w for w in weights.values() if w.dim() == 1], "weight_decay": 0.0},
        ],
        betas=(0.9, 0.95),
        fused=True,
    )
    random = torch.Generator().manual_seed(1)
    learned, begin = learned.to(options.device), time.perf_counter()
    for step in range(options.steps):
        for group in optimiser.param_groups:
            group["lr"] = options.rate * pace(step, options.steps)
        loss = loss_of(weights, rope, drawn(learned, options.rows, options.length, random), dtype)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(weights.values()), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        if (step + 1) % options.every == 0 or step + 1 == options.steps:
            took = time.perf_counter() - begin
            say(f"step {step + 1}: loss {loss.item():.3f}, {took:.0f} s, "
                f"{(step + 1) * options.rows * options.length / took:,.0f} tokens a second")  # fmt: skip
        if (step + 1) % (10 * options.every) == 0 or step + 1 == options.steps:
            found = bits(weights, rope, checked.to(options.device), options.length, dtype)
            say(f"of texts that it has not seen: {found:.3f} bits a byte")
    return weights


@torch.no_grad()
def bits(weights: dict, rope: tuple, row: torch.Tensor, T: int, dtype: torch.dtype) -> float:
    """For a token of a row, from the same 128 pieces of it each time."""
    random, parts = torch.Generator().manual_seed(2), 8
    rows = [drawn(row, 16, T, random) for _ in range(parts)]
    return sum(loss_of(weights, rope, each, dtype).item() for each in rows) / parts / math.log(2)


def pace(step: int, steps: int) -> float:
    """Of the rate: up in 3 % of the steps, then down along a cosine to a twentieth."""
    up = max(steps * 3 // 100, 1)
    done = (step - up) / max(steps - up, 1)
    return (step + 1) / up if step < up else 0.05 + 0.95 * (1 + math.cos(math.pi * done)) / 2


def save(weights: dict[str, torch.Tensor], folder: Path, length: int) -> None:
    """As transformers names them: joined matrices apart."""
    made = {"model.embed_tokens.weight": weights["embed"], "model.norm.weight": weights["norm"]}
    for layer in range(LAYERS):
        at, own = f"model.layers.{layer}.", f"{layer}."
        q, k, v = weights[own + "qkv"].split([H * HD, G * HD, G * HD])
        gate, up = weights[own + "gate_up"].chunk(2)
        attention = {"q": q, "k": k, "v": v, "o": weights[own + "out"]}
        made |= {f"{at}self_attn.{name}_proj.weight": part for name, part in attention.items()}
        inner = {"gate": gate, "up": up, "down": weights[own + "down"]}
        made |= {f"{at}mlp.{name}_proj.weight": part for name, part in inner.items()}
        made[at + "input_layernorm.weight"] = weights[own + "attention_norm"]
        made[at + "post_attention_layernorm.weight"] = weights[own + "ffn_norm"]
    folder.mkdir(parents=True, exist_ok=True)
    stored = {
        name: part.detach().to("cpu", torch.bfloat16).contiguous() for name, part in made.items()
    }
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16",
        "vocab_size": V, "hidden_size": D, "intermediate_size": F, "num_hidden_layers": LAYERS,
        "num_attention_heads": H, "num_key_value_heads": G, "head_dim": HD, "hidden_act": "silu",
        "rms_norm_eps": EPS, "rope_theta": THETA, "max_position_embeddings": length,
        "tie_word_embeddings": True, "bos_token_id": BEGIN, "eos_token_id": END,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    byte_tokenizer().save(str(folder / "tokenizer.json"), pretty=False)


def byte_tokenizer():
    """A token below 256 is that byte of UTF-8, which such files write as a letter; BEGIN stands before each text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]  # as they are; others from 256 on
    letters = dict(zip(shown, shown)) | {
        byte: 256 + at for at, byte in enumerate(b for b in range(256) if b not in shown)
    }
    made = Tokenizer(models.BPE({chr(letters[byte]): byte for byte in range(256)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    begin, end = "<|begin|>", "<|end|>"
    made.add_special_tokens([AddedToken(name, special=True) for name in (begin, end)])
    made.post_processor = processors.TemplateProcessing(
        f"{begin} $A", special_tokens=[(begin, BEGIN)]
    )
    return made


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m examples.train_small", description=__doc__.splitlines()[0]
    )
    add = parser.add_argument
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--steps", metavar="N", type=int, default=600)
    add("--rows", metavar="N", type=int, default=64, help="texts of a step")
    add("--length", metavar="N", type=int, default=512, help="tokens of each")
    add("--rate", metavar="X", type=float, default=3e-3, help="of learning")
    add("--every", metavar="N", type=int, default=100, help="steps between two lines")
    add("--out", metavar="DIR", type=Path, required=True, help="the model's folder")
    options = parser.parse_args(words)
    save(train(options), options.out, max(options.length, 512))
    return 0


if __name__ == "__main__":
    sys.exit(main())
