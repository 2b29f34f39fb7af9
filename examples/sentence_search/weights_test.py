# SPDX-License-Identifier: Apache-2.0
"""Configurations and weights that cannot be used are refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from . import InputError, folder, weights
from .tiny_bert import CONFIG, write_tiny_bert

BAD_CONFIGS = {
    "model_type is 'gpt2', supported: bert": {"model_type": "gpt2"},
    "model_type is None": {"model_type": None},
    "hidden_act is 'swish', supported: gelu": {"hidden_act": "swish"},
    r"hidden_act is \['gelu'\]": {"hidden_act": ["gelu"]},
    "position_embedding_type is 'relative_key'": {"position_embedding_type": "relative_key"},
    "is_decoder is True": {"is_decoder": True},
    "hidden_size is None, expected a positive": {"hidden_size": None},
    "hidden_size is 0, expected a positive": {"hidden_size": 0},
    "hidden_size is '32', expected a positive": {"hidden_size": "32"},
    "num_hidden_layers is True": {"num_hidden_layers": True},
    "hidden_size 32 is no multiple of 5 heads": {"num_attention_heads": 5},
    "layer_norm_eps is 'x'": {"layer_norm_eps": "x"},
    "layer_norm_eps is nan": {"layer_norm_eps": float("nan")},
    "pad_token_id is -1": {"pad_token_id": -1},
    "pad_token_id is 100000": {"pad_token_id": 100000},
}


@pytest.mark.parametrize(("message", "settings"), BAD_CONFIGS.items(), ids=BAD_CONFIGS)
def test_bad_configurations_are_named(tmp_path, message, settings):
    write_tiny_bert(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | settings))
    with pytest.raises(InputError, match=f"config.json: {message}"):
        weights.read_config(folder.model_folder(str(tmp_path)))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", "{", "config.json of the model is not JSON"),
        ("config.json", "[]", "config.json of the model is not an object"),
        ("modules.json", '[{"type": "st.models.Dense"}]', "modules.json: Dense is not supported"),
        ("modules.json", '["x"]', "modules.json: x is not supported"),
        ("1_Pooling/config.json", '{"pooling_mode_max_tokens": true}', "max_tokens.* not supp"),
        ("1_Pooling/config.json", '{"pooling_mode": "lasttoken"}', "lasttoken.* not supported"),
        ("1_Pooling/config.json", "{}", r"pooling \[\] is not supported"),
        ("sentence_bert_config.json", '{"max_seq_length": 0}', "max_seq_length is 0"),
        ("sentence_bert_config.json", '{"max_seq_length": "9"}', "max_seq_length is '9'"),
    ],
)
def test_bad_side_files_are_named(tmp_path, name, content, message):
    write_tiny_bert(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        weights.read_config(folder.model_folder(str(tmp_path)))


def test_limit_is_the_smaller_of_folder_and_positions(tmp_path):
    def limit() -> int:
        return weights.read_config(folder.model_folder(str(tmp_path))).limit

    write_tiny_bert(tmp_path, max_position_embeddings=512)
    assert limit() == 256
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 128}')
    assert limit() == 128
    write_tiny_bert(tmp_path)
    assert limit() == CONFIG["max_position_embeddings"] == 64


def read_changed(tmp_path: Path, change) -> None:
    write_tiny_bert(tmp_path)
    found = folder.model_folder(str(tmp_path))
    config = weights.read_config(found)
    tensors = weights.read_weights(found, config)
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    weights.read_weights(found, config)


def test_bad_weights_are_named(tmp_path):
    word = "embeddings.word_embeddings.weight"
    with pytest.raises(InputError, match=f"lacks {word}$"):
        read_changed(tmp_path, lambda tensors: tensors.pop(word))
    with pytest.raises(InputError, match=r"lacks encoder.layer.0.* and 31 more"):
        read_changed(
            tmp_path,
            lambda tensors: [tensors.pop(n) for n in list(tensors) if n.startswith("encoder")],
        )
    with pytest.raises(InputError, match=rf"{word} has shape \(3, 32\), expected \(\d+, 32\)"):
        read_changed(tmp_path, lambda tensors: tensors.update({word: tensors[word][:3].copy()}))
    with pytest.raises(InputError, match=f"{word} is I32, supported: F32"):
        read_changed(
            tmp_path, lambda tensors: tensors.update({word: tensors[word].astype(np.int32)})
        )


@pytest.mark.parametrize("content", [b"", b"\0" * 8, b"\xff" * 100])
def test_damaged_weights_are_refused(tmp_path, content):
    write_tiny_bert(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(content)
    found = folder.model_folder(str(tmp_path))
    with pytest.raises(InputError, match=r"model.safetensors cannot be read"):
        weights.read_weights(found, weights.read_config(found))


def test_truncated_weights_are_refused(tmp_path):
    write_tiny_bert(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    found = folder.model_folder(str(tmp_path))
    with pytest.raises(InputError, match=r"model.safetensors cannot be read"):
        weights.read_weights(found, weights.read_config(found))
