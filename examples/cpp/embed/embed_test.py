# SPDX-License-Identifier: Apache-2.0
"""The C and C++ programs give Python's tokens and vectors, and refuse bad files in one line."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import struct
import subprocess
import sys
from pathlib import Path

import anyop
import numpy as np
import pytest

pytest.importorskip("tokenizers", reason="the model of the tests is written with tokenizers")
pytest.importorskip("safetensors", reason="the model of the tests is written with safetensors")

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from drawn import drawn  # noqa: E402

from examples.sentence_search import InputError, index  # noqa: E402
from examples.sentence_search.folder import model_folder, packaged_model  # noqa: E402
from examples.sentence_search.model import Encoder  # noqa: E402
from examples.sentence_search.tiny_bert import write_tiny_bert  # noqa: E402
from examples.sentence_search.tokens import Tokenizer  # noqa: E402
from examples.sentence_search.weights import read_config, read_weights  # noqa: E402

pytestmark = pytest.mark.drawn(6, together="embeddings in C++")
# Of numbers below 1: float32 rounds by 6e-8, and what differs are batches and memory only.
TOLERANCE = 1e-6
# Errors of memory and arithmetic end the program with a status that no test expects.
SANITIZED = "-O0 -fsanitize=address,undefined -fno-sanitize-recover=all"  # -O0 compiles fast
TEXTS = [
    "",
    " \t\r\n",
    "how long does a small piece of code take to run?",
    "Ünïcödé ÀÉÎÕÜ ñ ç ß ẞ İstanbul ı ŒUVRE ΣΊΣΥΦΟΣ Ёлка",
    "e\u0301 n\u0303 combining \u1e9b\u0323 \u0344 \ud55c\uad6d\uc5b4 \u1112\u1161\u11ab ﬁ",
    "機械学習の演算子を一度だけ書く 汉字𠀀𪜀丽 カタカナ",
    "🙂 👩‍👩‍👧‍👦 🇫🇷 🏴‍☠️ 👍🏽 emoji🎉inside🎊words",
    "שָׁלוֹם עולם مرحبا بالعالم हिन्दी ภาษาไทย",
    "\x01\x07control\u200bchar\u200dacters\ufeff\ufffd\u00ad\ue000 soft",
    "a\u00a0b\u2003c\u3000d\u2028e\u0085f",
    "snake_case C++ $5+$6=11; a^b|c~d `e` <f> «g» ¿h? i…j — k–l",
    "[CLS] [SEP] [MASK] [PAD]x[UNK][cls] [ SEP ] written out",
    "supercalifragilisticexpialidocious" * 5,
    "x" * 100 + " " + "x" * 101,
    "no-space-" * 300,
    "word " * 254,  # exactly the limit of the packaged model
    "word " * 255,
    "far too long " * 400,
]


def cmake(*words: object) -> str:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    found = subprocess.run(
        ["cmake", *map(str, words)], env=environment, capture_output=True, text=True
    )
    output = " ".join((found.stdout + found.stderr).split())
    if "not found: sudo apt-get install" in output:
        pytest.skip(output[output.index("CMake Error") :])
    assert found.returncode == 0, output
    return output


@pytest.fixture(scope="session")
def programs(tmp_path_factory) -> Path:
    """The folder of both programs, built as users build them, with sanitizers."""
    build = tmp_path_factory.mktemp("embed")
    # All sources at once: most of the time goes to what they include.
    options = [
        f"-Danyop_DIR={anyop.cmake_dir()}",
        "-DCMAKE_BUILD_TYPE=None",
        "-DCMAKE_UNITY_BUILD=ON",
    ]
    options += [f"-DCMAKE_{language}_FLAGS={SANITIZED}" for language in ("C", "CXX")]
    package = importlib.util.find_spec("nlohmann_json")
    if package:
        options.append(f"-DJSON_INCLUDE={package.submodule_search_locations[0]}/include")
    cmake("-G", "Ninja", "-S", Path(__file__).parent, "-B", build, *options)
    cmake("--build", build, "-j2")
    return build


@pytest.fixture
def model(tmp_path) -> Path:
    return write_tiny_bert(tmp_path / "model")


def run(program: Path, *arguments: object, **options) -> subprocess.CompletedProcess:
    words = [program, *(word if isinstance(word, bytes) else str(word) for word in arguments)]
    return subprocess.run(words, capture_output=True, timeout=120, **options)


def refusal(found: subprocess.CompletedProcess) -> str:
    """The one line that says what was wrong."""
    assert found.returncode == 2, found.stderr
    (line,) = found.stderr.decode().splitlines()
    assert line.startswith(("embed: ", "token_vectors: "))
    assert not found.stdout
    return line


def rows(found: subprocess.CompletedProcess, kind: type) -> list[list]:
    assert found.returncode == 0, found.stderr
    return [list(map(kind, line.split())) for line in found.stdout.decode().splitlines()]


def in_python(folder, texts: list[str]) -> tuple[list[list[int]], np.ndarray]:
    """Tokens and vectors as examples/sentence_search computes them."""
    config = read_config(folder)
    tokens = Tokenizer(folder.read("tokenizer.json"), config.limit).encode(texts)
    encoder = Encoder(anyop, config, read_weights(folder, config))
    return [text.ids.tolist() for text in tokens], index.embed(encoder, tokens, 8)


def assert_equal(programs: Path, folder, texts: list[str]) -> np.ndarray:
    ids, expected = in_python(folder, texts)
    program, path = programs / "embed", folder.path
    assert rows(run(program, "--ids", path, *texts), int) == ids
    found = np.array(rows(run(program, "--vectors", path, *texts), float))
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= TOLERANCE
    return found


def test_packaged_model_gives_the_vectors_of_python(programs):
    try:
        folder = packaged_model()
    except InputError as error:
        pytest.skip(str(error))
    found = assert_equal(programs, folder, TEXTS)
    # The comparison would be empty if all vectors were alike.
    assert np.linalg.norm(found[2] - found[3]) > 0.5


def test_every_character_gives_the_tokens_of_python(programs):
    try:
        folder = packaged_model()
    except InputError as error:
        pytest.skip(str(error))
    later_changed = (0x166D, 0x1734, 0x1885, 0x1886, 0xA9BD, 0x111C9)  # text.cc says how
    kept = [c for c in range(1, 0x30000) if not 0xD800 <= c < 0xE000 and c not in later_changed]
    kept = drawn([c for c in kept if c != ord("\n")], 4, "characters")
    texts = [f"a{chr(c)}b {chr(c)}" for c in kept]
    tokens = Tokenizer(folder.read("tokenizer.json"), 256).encode(texts)
    found = run(programs / "embed", "--ids", folder.path, input="\n".join(texts).encode())
    for text, expected, ids in zip(texts, tokens, rows(found, int), strict=True):
        assert ids == expected.ids.tolist(), ascii(text)


VARIANTS = {
    "gelu": {},
    "tanh gelu": {"hidden_act": "gelu_new"},
    "relu, large eps": {"hidden_act": "relu", "layer_norm_eps": 1e-2},
    "one head": {"num_attention_heads": 1},
    "odd sizes": {"hidden_size": 33, "num_attention_heads": 3, "intermediate_size": 37},
    "half precision": {"dtype": np.float16},
    "double precision, names begin with bert.": {"dtype": np.float64, "prefix": "bert."},
}


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_other_models_give_the_vectors_of_python(programs, tmp_path, settings):
    path = write_tiny_bert(tmp_path / "model", **settings)
    assert_equal(programs, model_folder(str(path)), TEXTS)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_side_files_are_honoured(programs, model, pooling):
    (model / "1_Pooling").mkdir()
    mode = json.dumps({f"pooling_mode_{pooling}_token{'s' * (pooling == 'mean')}": True})
    (model / "1_Pooling" / "config.json").write_text(mode)
    (model / "sentence_bert_config.json").write_text('{"max_seq_length": 7}')
    (model / "modules.json").write_text('[{"type": "sentence_transformers.models.Pooling"}]')
    assert_equal(programs, model_folder(str(model)), TEXTS)


@pytest.mark.parametrize(
    "off", ["clean_text", "handle_chinese_chars", "strip_accents", "lowercase"]
)
def test_each_setting_of_the_normalizer_is_honoured(programs, model, off):
    path = model / "tokenizer.json"
    content = json.loads(path.read_text())
    content["normalizer"] |= {"strip_accents": True, off: False}
    words = ("機", "械", "機械", "é", "e", "É", "E", "İ", "i̇", "\x01a", "Σ", "σ")
    for word in words:
        content["model"]["vocab"].setdefault(word, len(content["model"]["vocab"]))
    path.write_text(json.dumps(content))
    ids = Tokenizer(path.read_bytes(), 64).encode([" ".join(words), *TEXTS])
    config = json.loads((model / "config.json").read_text())
    config["vocab_size"] = len(content["model"]["vocab"])
    (model / "config.json").write_text(json.dumps(config))
    found = run(programs / "embed", "--ids", model, " ".join(words), *TEXTS)
    assert rows(found, int) == [text.ids.tolist() for text in ids]


def test_cosines_are_those_of_the_vectors(programs, model):
    texts = ["sort a list", "open a file", "sort a list"]
    _, vectors = in_python(model_folder(str(model)), texts)
    output = run(programs / "embed", model, *texts).stdout.decode()
    expected = [f"{v.astype(float) @ vectors[0]:6.3f}  {t}" for v, t in zip(vectors, texts)]
    assert output.splitlines() == expected


def test_truncation_is_stated(programs, model):
    found = run(programs / "embed", model, "time " * 500)
    assert found.returncode == 0
    assert found.stderr == b"a text has 502 tokens, the model reads the first 64\n"


def test_c_program_gives_the_first_step_of_python(programs, model):
    folder = model_folder(str(model))
    weights = read_weights(folder, read_config(folder))
    ids = np.array([2, 8, 9, 3])
    x = anyop.embedding(ids, weights["embeddings.word_embeddings.weight"])
    x = anyop.add(x, weights["embeddings.position_embeddings.weight"][: len(ids)])
    x = anyop.add(x, weights["embeddings.token_type_embeddings.weight"][:1])
    norm = (weights[f"embeddings.LayerNorm.{part}"] for part in ("weight", "bias"))
    expected = anyop.layer_norm(x, *norm, 1e-12)
    found = rows(run(programs / "token_vectors", model / "model.safetensors", *ids), float)
    assert np.abs(np.array(found) - expected).max() <= TOLERANCE


# --- bad input ------------------------------------------------------------------------------------


def write_weights(model: Path, header: bytes, data: bytes = b"", claimed: int | None = None):
    size = struct.pack("<Q", len(header) if claimed is None else claimed)
    (model / "model.safetensors").write_bytes(size + header + data)


def entry(**changes) -> bytes:
    name = "embeddings.word_embeddings.weight"
    return json.dumps(
        {name: {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]} | changes}
    ).encode()


BAD_WEIGHTS = {
    "empty": (b"", b"", None, None),
    "header beyond the file": (b"{}", b"", 3, "its header claims 3 bytes"),
    "header of 2**64-1 bytes": (b"{}", b"", (1 << 64) - 1, "its header claims 18446744073709551615"),
    "no JSON": (b"{", b"", None, "its header is not JSON"),
    "a list": (b"[]", b"", None, "its header is not an object"),
    "deep": (b"[" * 100_000, b"", None, "its header is not JSON"),
    "not UTF-8": (b'{"\xff": 1}', b"", None, "its header is not JSON"),
    "nothing": (b"{}", b"", None, "it lacks embeddings.word_embeddings.weight"),
    "entry is a number": (b'{"x": 1}', b"", None, "the data of x is not within the file"),
    "name of two lines": (b'{"x\\ny": 1}', b"", None, "the data of x y is not within the file"),
    "too little data": (entry(), b"\0" * 15, None, "is not within the file"),
    "too much data": (entry(), b"\0" * 17, None, "it has 17 bytes of data, its header describes 16"),
    "negative offset": (entry(data_offsets=[-1, 15]), b"\0" * 16, None, "is not within the file"),
    "offset of 2**64": (entry(data_offsets=[0, 1 << 64]), b"", None, "is not within the file"),
    "offsets swapped": (entry(data_offsets=[16, 0]), b"\0" * 16, None, "is not within the file"),
    "three offsets": (entry(data_offsets=[0, 8, 16]), b"\0" * 16, None, "is not within the file"),
    "no shape": (entry(shape=None), b"\0" * 16, None, "has no dtype or shape"),
    "no dtype": (entry(dtype=7), b"\0" * 16, None, "has no dtype or shape"),
    "another shape": (entry(), b"\0" * 16, None, "has shape [2,2], expected ["),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_WEIGHTS.values(), ids=BAD_WEIGHTS)
def test_damaged_weights_are_named(programs, model, case):
    header, data, claimed, message = case
    write_weights(model, header, data, claimed)
    if message is None:
        (model / "model.safetensors").write_bytes(b"")
        message = "it is too short for a header"
    assert message in refusal(run(programs / "embed", model, "text"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "I32"}, "is I32, supported: F32, F16, BF16, F64"),
        ({"shape": [2, 3]}, "has shape [2,3], which its data does not fill"),
        ({"shape": [1 << 62, 1 << 62]}, "which its data does not fill"),
        ({"shape": [1] * 100 + [4]}, "0 to 32 dimensions"),
        ({"shape": [4]}, "the embeddings are no matrices"),
    ],
)
def test_tensors_that_cannot_be_are_named(programs, model, changes, message):
    write_weights(model, entry(**changes), b"\0" * 16)
    found = run(programs / "token_vectors", model / "model.safetensors", 0)
    assert message in refusal(found)


def test_weights_with_changed_bytes_never_crash(programs, model):
    """Whatever the header says, there are vectors, or one line and status 2."""
    path, draw = model / "model.safetensors", random.Random(5)
    content = path.read_bytes()
    header_end = 8 + int.from_bytes(content[:8], "little")
    refused = 0
    for _ in range(60):
        changed = bytearray(content[: draw.choice([len(content), draw.randrange(len(content))])])
        for _ in range(draw.randrange(1, 4)):
            changed[draw.randrange(min(len(changed), header_end))] = draw.choice(
                b'0919{}[]",:-e\xff'
            )
        path.write_bytes(changed)
        found = run(programs / "embed", model, "text")
        assert found.returncode in (0, 2), found.stderr
        refused += found.returncode == 2 and bool(refusal(found))
    assert refused > 30


def test_missing_files_are_named(programs, model):
    assert "nowhere/config.json is no file" in refusal(run(programs / "embed", "nowhere", "a"))
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        (model / name).unlink()
        assert f"{name} is no file" in refusal(run(programs / "embed", model, "a"))
    os.mkfifo(model / "config.json")  # reading it would wait for ever
    assert "config.json is no file" in refusal(run(programs / "embed", model, "a"))


def test_missing_tensors_are_named(programs, model):
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    found = refusal(run(programs / "embed", model, "a"))
    assert "it lacks encoder.layer.2.attention.self.query.weight" in found


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("config.json", {"model_type": "gpt2"}, 'model_type is "gpt2", expected "bert"'),
        ("config.json", {"hidden_size": 0}, "hidden_size is 0, expected a positive integer"),
        ("config.json", {"hidden_size": -32}, "hidden_size is -32, expected a positive"),
        ("config.json", {"hidden_size": 2**40}, "hidden_size is 1099511627776, expected"),
        ("config.json", {"hidden_size": "\ud800"}, "config.json is not JSON"),
        ("config.json", {"num_attention_heads": 5}, "hidden_size is 32, expected a multiple"),
        ("config.json", {"layer_norm_eps": "x"}, 'layer_norm_eps is "x", expected a number'),
        ("config.json", {"hidden_act": "swish"}, 'hidden_act is "swish", expected gelu'),
        ("config.json", {"vocab_size": 20}, "is not below config.json's vocab_size 20"),
        ("tokenizer.json", {"model": {"type": "BPE"}}, "its model is not supported, only WordP"),
        ("tokenizer.json", {"normalizer": None}, "its normalizer is not supported, only Bert"),
        ("tokenizer.json", {"pre_tokenizer": 3}, "its pre_tokenizer is not supported, only Bert"),
        ("tokenizer.json", {"post_processor": None}, "its post_processor is not supported"),
        ("tokenizer.json", {"added_tokens": []}, "its template is not supported"),
        ("tokenizer.json", {"added_tokens": [7]}, "an added token has no content"),
        ("tokenizer.json", {"added_tokens": [{"content": "x", "id": -1}]}, "the number of x is"),
        (
            "tokenizer.json",
            {"added_tokens": [{"content": "x", "id": 1, "lstrip": True}]},
            "added tokens that are lstrip are not supported",
        ),
    ],
)
def test_unsupported_settings_are_named(programs, model, name, settings, message):
    content = json.loads((model / name).read_text())
    (model / name).write_text(json.dumps(content | settings))
    assert message in refusal(run(programs / "embed", model, "text"))


def test_weights_that_are_not_numbers_are_refused(programs, model):
    path = model / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-2000] + b"\xff" * 2000)
    assert "not finite" in refusal(run(programs / "embed", model, "text"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no model is given"),
        (["--colour", "x"], "unknown option"),
        (["MODEL", b"caf\xe9"], "the text is not valid UTF-8 (byte 3)"),
        (["MODEL", b"\xed\xa0\x80"], "the text is not valid UTF-8 (byte 0)"),
        (["MODEL", b"ab\xf4\x90\x80\x80"], "the text is not valid UTF-8 (byte 2)"),
        (["MODEL", b"cut \xe6\xa9"], "the text is not valid UTF-8 (byte 4)"),
    ],
)
def test_bad_arguments_are_one_clear_line(programs, model, arguments, message):
    words = [model if word == "MODEL" else word for word in arguments]
    assert message in refusal(run(programs / "embed", *words))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "expected a file and 1 to 512 token numbers"),
        (["x"], "a token number is no integer"),
        (["9" * 30], "a token number is no integer"),
        ([99999], "embedding: indices[0] is 99999, expected 0 <= index < "),
        ([0] * 65, "more tokens than the model has positions"),
    ],
)
def test_bad_token_numbers_are_refused(programs, model, ids, message):
    assert message in refusal(run(programs / "token_vectors", model / "model.safetensors", *ids))


def test_without_matrix_products_says_so(programs, model):
    environment = os.environ | {"ANYOP_BLAS": str(model / "missing.so")}
    assert "ANYOP_BLAS" in refusal(run(programs / "embed", model, "text", env=environment))
