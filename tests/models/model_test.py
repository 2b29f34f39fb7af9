# SPDX-License-Identifier: Apache-2.0
"""Embeddings of examples/sentence_search equal those of transformers' BertModel on torch."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported

torch = pytest.importorskip("torch", reason="the reference runs on torch")
transformers = pytest.importorskip(
    "transformers", reason="the reference is transformers' BertModel"
)
pytest.importorskip("tokenizers", reason="the example reads texts with tokenizers")
pytest.importorskip("safetensors", reason="the example reads weights with safetensors")

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import anyop  # noqa: E402
from drawn import few  # noqa: E402

from examples.sentence_search import InputError, index  # noqa: E402
from examples.sentence_search.folder import model_folder, packaged_model  # noqa: E402
from examples.sentence_search.frameworks import Torch  # noqa: E402
from examples.sentence_search.model import Encoder  # noqa: E402
from examples.sentence_search.tensor_model import TensorEncoder  # noqa: E402
from examples.sentence_search.tiny_bert import WORDS, write_tiny_bert  # noqa: E402
from examples.sentence_search.tokens import Tokenizer  # noqa: E402
from examples.sentence_search.weights import read_config, read_weights  # noqa: E402

# Of vectors of length 1; float32 in another order of addition differs by about 3e-7.
TOLERANCE = 1e-5
SPECIAL_SENTENCES = [
    "",
    " \t\n",
    "a",
    "timer",
    "Ünïcödé",
    "measure how long a small piece of code takes to run",
    "🙂",
    "👩‍👩‍👧‍👦 🇫🇷 🏴‍☠️ 👍🏽",
    "emoji 🎉 inside 🎊 words",
    "機械学習の演算子を一度だけ書く",
    "שלום עולם مرحبا بالعالم",
    "\x00\x07control\u200bcharacters\ufeff",
    "supercalifragilisticexpialidocious" * 5,
    "no-space-" * 300,
    "word " * 254,  # exactly 256 tokens
    "word " * 255,  # one too many
    "far too long " * 400,
    "[CLS] [SEP] [MASK] [PAD] written out",
]


def sentences(count: int) -> list[str]:
    """The special ones, then sentences of 1 to 60 words drawn with a fixed seed."""
    random = np.random.default_rng(3)
    words = (*WORDS, "kernel", "tensor", "runs", "quickly", "on", "every", "processor", "?", "2024")
    texts = list(SPECIAL_SENTENCES)
    while len(texts) < count:
        texts.append(" ".join(random.choice(words, random.integers(1, 61))))
    return texts


def embed(
    folder, texts: list[str], batch_size: int = 32, kind=Encoder, **options
) -> tuple[np.ndarray, list]:
    config = read_config(folder)
    tokens = Tokenizer(folder.read("tokenizer.json"), config.limit).encode(texts)
    encoder = kind(anyop, config, read_weights(folder, config), **options)
    return index.embed(encoder, tokens, batch_size), tokens


def reference(path: str, texts: list[str], limit: int, pooling: str = "mean") -> np.ndarray:
    """BertModel, pooling and normalisation in torch, one text at a time: nothing is padded."""
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=f"{path}/tokenizer.json")
    model = transformers.BertModel.from_pretrained(
        path, local_files_only=True, add_pooling_layer=False, dtype=torch.float32
    ).eval()
    vectors = []
    with torch.inference_mode():
        for text in texts:
            ids = tokenizer([text], truncation=True, max_length=limit, padding=False)["input_ids"]
            hidden = model(torch.tensor(ids)).last_hidden_state
            pooled = hidden.mean(dim=1) if pooling == "mean" else hidden[:, 0]
            vectors.append(torch.nn.functional.normalize(pooled, dim=1))
    return torch.cat(vectors).numpy()


def assert_equal(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape and found.dtype == np.float32
    assert np.abs(found - expected).max() <= TOLERANCE
    cosine = (found.astype(np.float64) * expected).sum(axis=1)
    assert cosine.min() >= 0.99999


def test_packaged_model_equals_transformers():
    try:
        folder = packaged_model()
    except InputError as error:
        pytest.skip(str(error))
    texts = sentences(200)
    texts = texts[: len(SPECIAL_SENTENCES)] + few(texts[len(SPECIAL_SENTENCES) :], 46, "sentences")
    found, tokens = embed(folder, texts)
    assert sum(text.truncated for text in tokens) == 3
    assert max(len(text.ids) for text in tokens) == 256
    assert_equal(found, reference(folder.path, texts, limit=256))
    # The comparison would be empty if all vectors were alike.
    assert np.linalg.norm(found[3] - found[5]) > 0.5


@pytest.mark.parametrize("batch_size", [1, 7, 200])
def test_batches_do_not_change_a_vector(tmp_path, batch_size):
    folder = model_folder(str(write_tiny_bert(tmp_path / "model")))
    texts = sentences(60)
    found, _ = embed(folder, texts, batch_size)
    alone = np.concatenate([embed(folder, [text])[0] for text in texts])
    assert np.abs(found - alone).max() <= TOLERANCE


VARIANTS = {
    "gelu": {},
    "tanh gelu": {"hidden_act": "gelu_new"},
    "relu": {"hidden_act": "relu"},
    "large eps": {"layer_norm_eps": 1e-2},
    "one head": {"num_attention_heads": 1},
    "odd sizes": {"hidden_size": 33, "num_attention_heads": 3, "intermediate_size": 37},
    "three types": {"type_vocab_size": 3},
    "names begin with bert.": {"prefix": "bert."},
}


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_variants_equal_transformers(tmp_path, settings):
    path = write_tiny_bert(tmp_path / "model", **settings)
    texts = sentences(40)
    found, tokens = embed(model_folder(str(path)), texts)
    assert max(len(text.ids) for text in tokens) == 64  # of the positions, fewer than the default
    assert_equal(found, reference(str(path), texts, limit=64))


def test_first_token_pooling_equals_transformers(tmp_path):
    path = write_tiny_bert(tmp_path / "model")
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    texts = sentences(40)
    found, _ = embed(model_folder(str(path)), texts)
    assert_equal(found, reference(str(path), texts, limit=64, pooling="cls"))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_weights_equal_transformers(tmp_path, dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="writes bfloat16 weights")
    path = write_tiny_bert(tmp_path / "model", dtype=getattr(ml_dtypes, dtype, np.float16))
    texts = sentences(40)
    found, _ = embed(model_folder(str(path)), texts)
    assert_equal(found, reference(str(path), texts, limit=64))


@pytest.mark.drawn(4)
@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_torch_tensors_give_the_same_vectors(tmp_path, compiled, pooling):
    path = write_tiny_bert(tmp_path / "model")
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(f'{{"pooling_mode": "{pooling}"}}')
    folder, texts = model_folder(str(path)), sentences(45)
    expected, _ = embed(folder, texts, 10)
    found, _ = embed(folder, texts, 10, TensorEncoder, framework=Torch(compiled))
    assert np.abs(found - expected).max() <= 2e-6
    assert_equal(found, reference(str(path), texts, limit=64, pooling=pooling))
