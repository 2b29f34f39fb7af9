# SPDX-License-Identifier: Apache-2.0
"""examples/generate on CUDA: tokens of each family by graphs, which are captured once and serve other prompts.

compute-sanitizer python -m pytest tests/cuda/programs/cuda_generate.py -k llama
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest
from on_cuda import torch

pytest.importorskip("transformers", reason="transformers is not installed")
sys.path.insert(0, str(Path(__file__).parents[3]))
from examples.generate.__main__ import main
from examples.generate.generate_test import DRAWN, NEAR, asked, engine_of, prompts, tokens, written
from examples.generate.quantized_test import rounded
from examples.generate.tiny_models import KINDS, write_tiny


def logits_behind(model, one):
    """Those that transformers has for each token that was written: it depends on those before it alone."""
    with torch.no_grad():
        logits = model(torch.tensor([one.tokens]), use_cache=False).logits[0]
    return logits[one.prompt - 1 : -1].double()


def chosen_and_best(logits, one):
    chosen = torch.tensor(one.tokens[one.prompt :])[:, None]
    return logits.gather(1, chosen)[:, 0], logits.max(1).values


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_tokens_of_float32_are_those_of_transformers(kind, tmp_path):
    model = write_tiny(kind, tmp_path)
    for one in written(tmp_path, prompts(), "torch", device="cuda"):
        chosen, best = chosen_and_best(logits_behind(model, one), one)
        assert (chosen >= best - NEAR * best.abs()).all()


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_of_bfloat16_are_as_near_as_transformers_own(kind, tmp_path):
    """A logit that transformers rounds by d may be that far below the best, which may be as far above."""
    model = write_tiny(kind, tmp_path)
    sequences = written(tmp_path, prompts(), "torch", device="cuda", dtype="bfloat16")
    exact = [logits_behind(model, one) for one in sequences]
    model.bfloat16()
    for one, logits in zip(sequences, exact, strict=True):
        room = 2 * (logits_behind(model, one) - logits).abs().max()
        chosen, best = chosen_and_best(logits, one)
        assert (chosen >= best - 2 * room).all()


@pytest.mark.parametrize("kind", ["qwen3", "qwen3 moe"])
def test_graphs_serve_other_prompts_and_take_no_more_memory(kind, tmp_path):
    """Captured before the first prompt; 1, 2 and 3 sequences run on those of 1, 2 and 3 rows.

    The router, the experts and the draw are in them: other tokens go to other experts.
    """
    write_tiny(kind, tmp_path)
    first, others = asked(prompts()), asked([[7] * 90, [1, 2, 3], [9] * 30])
    engine = engine_of(tmp_path, others, "torch", device="cuda")
    assert sorted(engine.steps) == [1, 2, 3]
    steps = dict(engine.steps)
    list(engine.write(first))
    gc.collect()
    had = torch.cuda.memory_reserved()
    list(engine.write(others))
    assert engine.steps == steps
    assert torch.cuda.memory_reserved() == had
    for given in (first, others):
        for one in given:
            (alone,) = written(tmp_path, [one.tokens[: one.prompt]], "torch", device="cuda")
            assert one.tokens == alone.tokens


@pytest.mark.parametrize("kind", ["llama", "qwen3 moe"])
def test_drawn_tokens_are_those_of_the_cpu(kind, tmp_path):
    """Random words are the same everywhere; float32 is near enough that the same tokens are drawn."""
    write_tiny(kind, tmp_path)
    for options in (DRAWN, {"count": 20, "temperature": 0.4, "top-k": 0, "seed": 37}):
        cuda = tokens(written(tmp_path, prompts(), "torch", device="cuda", **options))
        assert cuda == tokens(written(tmp_path, prompts(), "torch", **options))
        other = options | {"seed": 38}
        assert cuda != tokens(written(tmp_path, prompts(), "torch", device="cuda", **other))


@pytest.mark.parametrize("kind", ["fp8", "w4"])
def test_perplexity_of_fewer_bits_is_that_of_the_cpu(kind, tmp_path, capsys):
    (tmp_path / "text").write_text("Return the sum of all numbers.\n" * 8)
    words = ["--framework", "torch", "--perplexity", str(tmp_path / "text"), "--quantize", kind]
    for device in ("cpu", "cuda"):
        assert main([*words, "--device", device, "--dtype", "bfloat16"]) == 0
    found = [float(line.split()[2]) for line in capsys.readouterr().out.splitlines()]
    assert found[2:] == pytest.approx(found[:2], rel=0.02)


def test_experts_of_8_bits_run_in_graphs(tmp_path):
    """The same tokens twice; the first of each is that of the CPU, behind which codes of 8 bits may differ."""
    write_tiny("qwen3 moe", tmp_path)
    options = {"device": "cuda", "quantize": "fp8"}
    together = tokens(written(tmp_path, prompts(), "torch", **options))
    assert together == tokens(written(tmp_path, prompts(), "torch", **options))
    cpu = tokens(written(tmp_path, prompts(), "torch", quantize="fp8"))
    assert [one[0] for one in together] == [one[0] for one in cpu]


def test_graphs_of_4_bits_write_as_rounded_weights_do(tmp_path):
    model = write_tiny("gemma2", tmp_path)
    sequences = written(tmp_path, prompts(), "torch", device="cuda", quantize="w4")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("proj.weight"):
                weight.copy_(torch.from_numpy(rounded(weight.numpy())))
    for one in sequences:
        chosen, best = chosen_and_best(logits_behind(model, one), one)
        assert (chosen >= best - NEAR * best.abs()).all()


def test_fixed_tokens_of_bfloat16_do_not_depend_on_the_batch(tmp_path, capsys):
    write_tiny("qwen3", tmp_path)
    common = ["--model", str(tmp_path), "--framework", "torch", "--device", "cuda", "--fixed"]
    common += ["--temperature", "0", "--tokens", "60"]
    texts = ["a" * 200, "Return", "one two three"]

    def out(*chosen):
        assert main([*common, *(word for text in chosen for word in ("--prompt", text))]) == 0
        return capsys.readouterr().out.rstrip("\n").split("\n")

    together = out(*texts)
    for number, text in enumerate(texts, 1):
        own = [line.partition(": ")[2] for line in together if line.startswith(f"{number}: ")]
        assert own == out(text)
