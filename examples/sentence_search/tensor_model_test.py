# SPDX-License-Identifier: Apache-2.0
"""The model gives the vectors of float64 NumPy in every framework, whatever the batch."""

from __future__ import annotations

import anyop
import numpy as np
import pytest

from .folder import model_folder
from .frameworks import KINDS, Framework, Jax, Torch
from .index import embed
from .reference import reference
from .session import Model, make_encoder
from .tiny_bert import write_tiny_bert

# Of vectors of length 1; float32 in another order of addition differs by about 3e-7.
TOLERANCE = 2e-6
TEXTS = ["", "a", "sort a list", "measure the time of small code " * 3, "text " * 99] * 2 + ["hash"]
VARIANTS = {
    "mean, gelu": ({}, "mean"),
    "first token, tanh gelu": ({"hidden_act": "gelu_new"}, "cls"),
    "odd sizes, relu": ({"hidden_act": "relu", "hidden_size": 33, "num_attention_heads": 3}, "mean"),
}  # fmt: skip


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS)
def model(request, tmp_path) -> Model:
    settings, pooling = request.param
    path = write_tiny_bert(tmp_path / "model", max_position_embeddings=50, **settings)
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(f'{{"pooling_mode": "{pooling}"}}')
    return Model.read(model_folder(str(path)))


@pytest.mark.parametrize("name", KINDS)
def test_vectors_are_those_of_the_reference(model, name):
    pytest.importorskip(name, reason=f"{name} is not installed")
    tokens = model.tokenizer.encode(TEXTS)
    assert max(len(text.ids) for text in tokens) == 50  # no length that JAX pads to
    expected = [reference(model.config, model.weights, text.ids) for text in tokens]
    encoder = make_encoder(anyop, model, KINDS[name]())
    for batch_size in (1, 3, 32):
        found = embed(encoder, tokens, batch_size)
        assert found.dtype == np.float32
        assert np.abs(found - expected).max() <= TOLERANCE
    # The comparison would be empty if all vectors were alike.
    assert np.linalg.norm(found[2] - found[3]) > 0.1


def test_batches_are_padded_only_for_compilers():
    ids = np.arange(12).reshape(3, 4)
    mask = ids >= 0
    assert Framework().padded(ids, mask, 50) == (ids, mask)
    pytest.importorskip("jax", reason="jax is not installed")
    for limit, columns in ((50, 32), (20, 20)):
        more_ids, more_mask = Jax().padded(ids, mask, limit)
        assert more_ids.shape == more_mask.shape == (4, columns)
        assert (more_ids[:3, :4] == ids).all() and (more_ids[3] == more_ids[2]).all()
        assert more_mask.sum() == 16 and more_mask[:, :4].all()


def test_a_single_text_is_doubled_for_torch_compile_alone():
    pytest.importorskip("torch", reason="torch is not installed")
    ids = np.zeros((1, 4), np.int64)
    assert len(Torch().padded(ids, ids == 0, 50)[0]) == 1
    assert len(Torch(compiled=True).padded(ids, ids == 0, 50)[0]) == 2
