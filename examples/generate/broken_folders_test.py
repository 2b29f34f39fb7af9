# SPDX-License-Identifier: Apache-2.0
"""A broken folder is named, with file and tensor, before anything is allocated; a full cache ends a sequence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("ml_dtypes", reason="the program reads bfloat16 by ml_dtypes")

from examples.generate import __main__ as command  # noqa: E402
from examples.generate.tiny_models import write_tiny  # noqa: E402

SHARD = "model-00002-of-00002.safetensors"


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A model in two files."""
    folder = tmp_path_factory.mktemp("whole")
    write_tiny("qwen3", folder, max_shard_size="200KB")
    assert (folder / SHARD).exists()
    return folder


@pytest.fixture
def folder(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "model"))


def said(capsys, folder: Path, monkeypatch) -> str:
    """What the program says of the folder. It has made no engine, and so taken no memory."""
    monkeypatch.setattr(command, "made", lambda *_: pytest.fail("the model was made"))
    assert command.main(["--model", str(folder), "--tokens", "2"]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.startswith("generate: ")
    return found.err.removeprefix("generate: ").replace(f"{folder}/", "").rstrip("\n")


def change(path: Path, **settings) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def rewrite(path: Path, edit) -> None:
    """The tensors of a file, changed."""
    from safetensors.numpy import load_file, save_file

    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


def tensor_in(shard: Path) -> str:
    from safetensors.numpy import load_file

    return next(name for name in load_file(shard) if name.endswith("down_proj.weight"))


def test_settings_of_config_are_named(capsys, folder, monkeypatch):
    path = folder / "config.json"
    whole = path.read_text()
    for settings, message in (
        ({"model_type": "mamba"}, "config.json: model_type 'mamba', expected one of gemma2, "),
        ({"hidden_act": "relu"}, "config.json: activation 'relu' is not supported"),
        (
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}},
            "config.json: positions of type 'yarn' are not supported",
        ),
        ({"mlp_bias": True}, "config.json: mlp_bias True is not supported"),
        (
            {"hidden_size": 48.0},
            "config.json: hidden_size is 48.0, expected a whole number above 0",
        ),
        ({"rms_norm_eps": "a"}, "config.json: rms_norm_eps is 'a', expected a number above 0"),
        ({"vocab_size": None}, "config.json has no vocab_size"),
        (
            {"num_hidden_layers": 10**9},
            "config.json: 1000000000 layers of 0 experts, expected at most",
        ),
        (
            {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 1e9}},
            "config.json: partial_rotary_factor is 1000000000.0, expected a share",
        ),
        (
            {
                "sliding_window": 9,
                "use_sliding_window": True,
                "layer_types": ["chunked_attention"] * 3,
            },
            "config.json: layer_types ['chunked_attention', ",
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 0}},
            "config.json has a setting of the wrong kind: divide by zero",
        ),
        ({"hidden_act": ["silu"]}, "config.json has a setting of the wrong kind: "),
    ):
        change(path, **settings)
        assert said(capsys, folder, monkeypatch).startswith(message)
        path.write_text(whole)
    made = json.loads(whole)
    del made["num_hidden_layers"]
    path.write_text(json.dumps(made))
    assert said(capsys, folder, monkeypatch) == "config.json has no num_hidden_layers"
    path.write_text(whole[:50])
    assert said(capsys, folder, monkeypatch).startswith("config.json is no JSON: ")


def test_missing_files_are_named(capsys, folder, monkeypatch):
    shutil.copy(folder / SHARD, folder / "kept")
    first = tensor_in(folder / SHARD)
    (folder / SHARD).unlink()
    message = said(capsys, folder, monkeypatch)
    assert message.startswith(f"{SHARD} is missing: ") and message.endswith(" more are in it")
    shutil.move(folder / "kept", folder / SHARD)

    rewrite(folder / SHARD, lambda tensors: tensors.pop(first))
    assert said(capsys, folder, monkeypatch).endswith(f": no file has the tensor {first}")
    (folder / "tokenizer.json").rename(folder / "kept")
    assert said(capsys, folder, monkeypatch).startswith("tokenizer.json: No such file")
    (folder / "kept").rename(folder / "tokenizer.json")
    (folder / "model.safetensors.index.json").unlink()
    assert "has neither model.safetensors nor" in said(capsys, folder, monkeypatch)


def test_an_index_and_a_tokenizer_that_do_not_fit_are_named(capsys, folder, monkeypatch):
    path = folder / "tokenizer.json"
    whole = path.read_text()
    path.write_text(whole.replace("256", "264"))
    assert said(capsys, folder, monkeypatch) == "the model's tokenizer has words beyond its 264"
    path.write_text("{}")
    assert said(capsys, folder, monkeypatch).startswith("tokenizer.json: ")
    path.write_text(whole)
    for wrong in ([SHARD], {"lm_head.weight": 2}):
        change(folder / "model.safetensors.index.json", weight_map=wrong)
        message = said(capsys, folder, monkeypatch)
        assert message.startswith("model.safetensors.index.json: weight_map does not name")


def test_wrong_tensors_are_named(capsys, folder, monkeypatch):
    shard = folder / SHARD
    name, bytes_of = tensor_in(shard), shard.read_bytes()
    for edit, message in (
        (
            lambda found: found.update({name: found[name][:, 1:].copy()}),
            f"{SHARD}: {name} has shape (48, 79), config.json asks for (48, 80)",
        ),
        (
            lambda found: found.update({name: found[name].astype(np.int32)}),
            f"{SHARD}: {name} is I32, expected one of F32, F16, BF16",
        ),
        (
            lambda found: found.update({"model.extra": np.zeros(1, np.float32)}),
            f"{SHARD}: model.extra has no place in a qwen3 model",
        ),
    ):
        rewrite(shard, edit)
        assert said(capsys, folder, monkeypatch) == message
        shard.write_bytes(bytes_of)
    shard.write_bytes(bytes_of[:-100])
    assert f"{SHARD} is no whole safetensors file" in said(capsys, folder, monkeypatch)
    shard.write_bytes(b"12345")
    assert f"{SHARD} is no whole safetensors file" in said(capsys, folder, monkeypatch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", [float("nan"), -float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_named(capsys, folder, monkeypatch, dtype, value):
    from safetensors.torch import load_file, save_file

    shard = folder / SHARD
    name, tensors = tensor_in(shard), load_file(shard)
    tensors = {key: tensor.to(dtype) for key, tensor in tensors.items()}
    tensors[name][3, 5] = value
    save_file(tensors, shard)
    assert said(capsys, folder, monkeypatch) == f"{SHARD}: {name} holds a NaN or an infinite number"


def test_logits_that_are_no_numbers_end_a_sequence(capsys, folder):
    """Finite weights whose products are infinite."""
    for shard in folder.glob("*.safetensors"):
        rewrite(
            shard,
            lambda found: found.update(
                {name: found[name] * np.float32(1e38) for name in found if "lm_head" in name}
            ),
        )
    words = ["--model", str(folder), "--prompt", "a", "--prompt", "b", "--tokens", "9"]
    assert command.main(words) == 0
    said = capsys.readouterr().err
    for number in (1, 2):
        assert f"{number}: ended by logits that are no numbers, 0 tokens" in said


def test_full_cache_ends_the_longest_sequence(capsys, whole):
    prompts = ["a" * 100, "b" * 40]  # two pages and one; three more are needed, and one is there
    words = ["--temperature", "0", *(word for prompt in prompts for word in ("--prompt", prompt))]
    assert command.main(["--model", str(whole), "--tokens", "90", "--cache", "256", *words]) == 0
    said = capsys.readouterr().err
    assert "1: ended by the cache is full (256 tokens)" in said
    assert "2: ended by length, 90 tokens" in said or "2: ended by stop token" in said
    assert command.main(["--model", str(whole), "--cache", "64", "--prompt", "c" * 64]) == 2
    assert "prompt 1 has 65 tokens; the cache has room for 64" in capsys.readouterr().err
    words = ["--perplexity", str(whole / "config.json"), "--cache", "64"]
    assert command.main(["--model", str(whole), *words]) == 2
    assert "tokens; the cache has room for 64" in capsys.readouterr().err


@pytest.mark.parametrize("error", [MemoryError, RuntimeError])  # NumPy's; torch's and XLA's
def test_what_the_machine_has_no_room_for_is_said(error, capsys, whole, monkeypatch):
    def full(*_):
        raise error("cannot allocate\nat line 127")

    monkeypatch.setattr(command.KINDS["numpy"], "zeros", full)
    assert command.main(["--model", str(whole)]) == 2
    assert capsys.readouterr().err == "generate: weights and caches have no room: cannot allocate\n"
