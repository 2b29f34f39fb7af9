# SPDX-License-Identifier: Apache-2.0
"""Tokens of tiny models of each family equal transformers', alone and in a batch, from every framework."""

from __future__ import annotations

import os
import shutil

import anyop
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("ml_dtypes", reason="the program reads bfloat16 by ml_dtypes")

from examples.generate import InputError, model  # noqa: E402
from examples.generate.__main__ import arguments, made, main  # noqa: E402
from examples.generate.checkpoint import read_weights  # noqa: E402
from examples.generate.config import read_config  # noqa: E402
from examples.generate.engine import Sequence  # noqa: E402
from examples.generate.frameworks import KINDS as FRAMEWORKS  # noqa: E402
from examples.generate.frameworks import NumPy  # noqa: E402
from examples.generate.tiny_models import KINDS, write_tiny  # noqa: E402

NEAR = (
    2.0**-17
)  # logits that differ by so much of themselves are as good: they are added in another order
COUNT = 200 if os.environ.get("ANYOP_TEST_FULL") else 20
DRAWN = {"count": 20, "temperature": 1.0, "top-k": 20, "top-p": 0.9, "min-p": 0.01, "seed": 7}
LENGTHS = (1, 13, 70)  # of prompts: the last of more than a page, and of more tokens than a chunk


def prompts() -> list[list[int]]:
    draw = np.random.default_rng(1)
    return [draw.integers(256, size=length).tolist() for length in LENGTHS]


def engine_of(folder, sequences, framework="numpy", **options):
    options = {"chunk": 48, "temperature": 0, "dtype": "float32"} | options
    given = arguments(
        [f"--{key}" if value is True else f"--{key}={value}" for key, value in options.items()]
    )
    config, found = read_config(folder), read_weights(folder, read_config(folder))
    return made(FRAMEWORKS[framework](given.device, given.dtype), config, found, sequences, given)


def asked(given, count=COUNT) -> list[Sequence]:
    return [Sequence(n, list(ids), len(ids) + count) for n, ids in enumerate(given)]


def written(folder, given, framework="numpy", count=COUNT, **options) -> list[Sequence]:
    sequences = asked(given, count)
    engine = engine_of(folder, sequences, framework, **options)
    for _ in engine.write(sequences):
        pass
    assert len(engine.free) * 64 == engine.room  # all pages have come back
    return sequences


def tokens(sequences: list[Sequence]) -> list[list[int]]:
    return [one.tokens[one.prompt :] for one in sequences]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder of each kind, written when it is first asked for."""
    found = {}

    def folder(kind):
        if kind not in found:
            path = tmp_path_factory.mktemp("model")
            found[kind] = path, write_tiny(kind, path)
        return found[kind]

    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_tokens_are_those_of_transformers(folders, kind):
    folder, model = folders(kind)
    for one in written(folder, prompts()):
        # A greedy token depends on those before it alone: one pass gives all.
        with torch.no_grad():
            logits = model(torch.tensor([one.tokens]), use_cache=False).logits[
                0, one.prompt - 1 : -1
            ]
        chosen = logits.gather(1, torch.tensor(one.tokens[one.prompt :])[:, None])[:, 0]
        best = logits.max(1).values
        assert (chosen >= best - NEAR * best.abs()).all()
        if not one.end.startswith("stop"):
            assert len(one.tokens) == one.prompt + COUNT
        assert len(set(one.tokens[one.prompt :])) > 3, "a model that repeats itself tests little"


def test_older_files_of_gpt_2_name_tensors_otherwise(folders, tmp_path):
    """Without the model's name before them, and with the mask of attention beside the weights."""
    from safetensors.numpy import load_file, save_file

    folder = shutil.copytree(folders("gpt2")[0], tmp_path / "model")
    file = folder / "model.safetensors"
    tensors = {name.removeprefix("transformer."): x for name, x in load_file(file).items()}
    assert tensors.keys() != load_file(file).keys()
    save_file(tensors | {"h.0.attn.bias": np.ones((1, 1, 8, 8), np.float32)}, file)
    assert tokens(written(folder, prompts())) == tokens(written(folders("gpt2")[0], prompts()))


def test_tokens_of_a_sequence_depend_neither_on_its_batch_nor_on_pieces(folders):
    folder, _ = folders("gemma3")
    together = tokens(written(folder, prompts()))
    assert together == [tokens(written(folder, [ids]))[0] for ids in prompts()]
    assert together == tokens(written(folder, prompts(), chunk=7, rows=2))
    drawn = tokens(written(folder, prompts(), **DRAWN))
    assert drawn != together
    assert drawn == tokens(written(folder, prompts(), **DRAWN, rows=2, chunk=7))
    assert drawn != tokens(written(folder, prompts(), **DRAWN | {"seed": 8}))


@pytest.mark.parametrize("options", [{}, {"quantize": "w4"}, {"dtype": "bfloat16"}], ids=str)
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_fixed_logits_of_a_sequence_have_the_bits_that_they_have_alone(
    folders, framework, options, monkeypatch
):
    """On the CPU sequences are alone; 48 tokens are a piece."""
    if framework == "numpy" and "dtype" in options:
        pytest.skip("NumPy has no bfloat16")
    folder, seen, logits_of = folders("gemma2")[0], [], model.logits_of

    def noted(*args):
        seen.append(logits_of(*args))
        return seen[-1]

    def bits(given):
        seen.clear()
        sequences = asked(given, 12)
        engine = engine_of(folder, sequences, framework, fixed=True, **options)
        list(engine.write(sequences))
        return [np.asarray(x.tolist()).tobytes() for x in seen]

    monkeypatch.setattr(model, "logits_of", noted)
    given = [*prompts(), [7] * 15]
    together = bits(given)
    assert len(together) == 12 + 12 + 13 + 12
    assert together == [logits for ids in given for logits in bits([ids])]


def test_steps_ahead_and_rows_without_a_sequence_change_nothing(folders, monkeypatch, tmp_path):
    """As on CUDA: the next step runs before the tokens of this one are read, for a power of two of rows."""

    class Ahead(NumPy):
        ahead, few_sizes, few_pieces = 1, True, True

    monkeypatch.setitem(FRAMEWORKS, "ahead", Ahead)
    given = [prompts()[2][: 50 + n] for n in range(5)]
    folder = shutil.copytree(folders("qwen2")[0], tmp_path / "model")
    stop = written(folder, given)[1].tokens[57]
    (folder / "generation_config.json").write_text(f'{{"eos_token_id": [257, {stop}]}}')
    assert "stop token" in [one.end for one in written(folder, given)]
    for options in ({}, DRAWN, {"rows": 3}, {"cache": 7 * 64}):
        plain = written(folder, given, **options)
        ahead = written(folder, given, "ahead", **options)
        assert [one.tokens for one in plain] == [one.tokens for one in ahead]
        assert [one.end for one in plain] == [one.end for one in ahead]


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax", "paddle"])
def test_layers_of_one_operator_give_the_same_tokens(folders, framework):
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    for kind in ("llama", "qwen2", "qwen3"):
        folder, _ = folders(kind)
        expected = tokens(written(folder, prompts()))
        assert tokens(written(folder, prompts(), framework, **{"layer-kernel": True})) == expected


@pytest.mark.parametrize("words", [["--quantize", "w4"], ["--fixed"]])
def test_layers_that_are_no_one_operator_are_refused(folders, words):
    for kind, more in (("gemma2", []), ("llama", words)):
        config = read_config(folders(kind)[0])
        with pytest.raises(InputError, match="--layer-kernel"):
            made(None, config, {}, [], arguments(["--layer-kernel", *more]))


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_explain_names_the_kernels(folders, framework, capfd):
    folder, _ = folders("gemma2")
    words = ["--model", str(folder), "--framework", framework, "--tokens", "3", "--explain"]
    assert main(words) == 0
    anyop.log_dispatch(0)
    lines = capfd.readouterr().err.splitlines()
    for operator in ("append_kv", "attention_paged", "linear_gated", "mul", "sample"):
        assert f"anyop: {operator} on cpu:0: cpu (default)" in lines


@pytest.mark.parametrize("kind", ["gemma2", "qwen3 moe", "gpt2", "phi"])  # the most differences
@pytest.mark.parametrize("framework", ["torch", "jax", "paddle"])
def test_all_frameworks_give_the_same_tokens(folders, framework, kind):
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    folder, _ = folders(kind)
    for options in ({}, DRAWN):
        expected = tokens(written(folder, prompts(), **options))
        assert tokens(written(folder, prompts(), framework, **options)) == expected
