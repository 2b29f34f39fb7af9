# SPDX-License-Identifier: Apache-2.0
"""Weights in fewer bits: 4 bits are those of a model with rounded weights, perplexity is transformers'."""

from __future__ import annotations

import math
import shutil

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("ml_dtypes", reason="the program reads bfloat16 by ml_dtypes")
pytest.importorskip("safetensors", reason="safetensors is not installed")

from safetensors.numpy import load_file, save_file  # noqa: E402

from examples.generate.__main__ import SMALL, main  # noqa: E402
from examples.generate.checkpoint import GROUP, four_bits  # noqa: E402
from examples.generate.generate_test import prompts, tokens, written  # noqa: E402
from examples.generate.tiny_models import write_tiny  # noqa: E402

TEXT = "Return the sum of all numbers, or raise ValueError where there are none.\n" * 4


def rounded(matrix: np.ndarray) -> np.ndarray:
    """What four_bits keeps of it."""
    packed, scale = four_bits(matrix)
    numbers = np.stack([packed & 15, packed >> 4], -1).reshape(matrix.shape).astype(np.float32) - 8
    return numbers * np.repeat(scale, GROUP, 0)[: matrix.shape[1]].T


@pytest.mark.parametrize("kind", ["gemma2", "llama 3, biases", "phi"])
def test_tokens_of_4_bits_are_those_of_rounded_weights(kind, tmp_path):
    write_tiny(kind, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "rounded")
    file = tmp_path / "rounded" / "model.safetensors"
    tensors = load_file(file)
    for name, matrix in tensors.items():
        if ".layers." in name and matrix.ndim == 2:
            tensors[name] = rounded(matrix)
            assert np.abs(tensors[name] - matrix).max() <= np.abs(matrix).max() / 13
    save_file(tensors, file)
    expected = tokens(written(tmp_path / "rounded", prompts()))
    for framework in ("numpy", "torch"):
        assert tokens(written(tmp_path / "whole", prompts(), framework, quantize="w4")) == expected
    assert tokens(written(tmp_path / "whole", prompts())) != expected


def test_experts_have_8_bits_and_not_4(tmp_path, capsys):
    write_tiny("qwen3 moe", tmp_path)
    (tmp_path / "text").write_text(TEXT)
    words = ["--model", str(tmp_path), "--perplexity", str(tmp_path / "text"), "--quantize"]
    for framework in ("numpy", "torch"):
        assert main([*words, "fp8", "--framework", framework]) == 0
        plain, fewer = (float(line.split()[2]) for line in capsys.readouterr().out.splitlines())
        assert 0.8 * plain < fewer < 1.25 * plain
        assert fewer != plain
    assert main([*words, "w4"]) == 2
    assert "--quantize w4: experts have no kernel of 4 bits" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["fp8", "w4"])
def test_perplexity_is_that_of_transformers_and_little_more(kind, tmp_path, capsys):
    (tmp_path / "text").write_text(TEXT)
    words = ["--perplexity", str(tmp_path / "text"), "--quantize", kind]
    assert main(words) == 0
    plain, fewer = (float(line.split()[2]) for line in capsys.readouterr().out.splitlines())
    model = transformers.AutoModelForCausalLM.from_pretrained(SMALL, dtype="float32")
    row = torch.tensor([[256, *TEXT.encode()]])
    with torch.no_grad():
        expected = math.exp(model(row, labels=row).loss)
    assert plain == pytest.approx(expected, rel=1e-3)
    assert 0.9 * plain < fewer < 1.2 * plain
    assert fewer != plain
