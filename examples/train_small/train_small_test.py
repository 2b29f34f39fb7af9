# SPDX-License-Identifier: Apache-2.0
"""What is trained is a Llama of transformers' and learns; the weights of examples/generate write what it would."""

from __future__ import annotations

import codecs

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("ml_dtypes", reason="the program reads bfloat16 by ml_dtypes")
pytest.importorskip("safetensors", reason="safetensors is not installed")

from examples.generate import __main__ as generate  # noqa: E402
from examples.train_small import __main__ as program  # noqa: E402

TEXTS = ["Return the sum of all numbers.", "Raise ValueError if there are none.", "é"] * 3


def test_loss_falls_and_the_model_is_transformers_llama(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(program, "LAYERS", 2)
    monkeypatch.setattr(program, "texts", lambda: iter(TEXTS))
    monkeypatch.setattr(program, "CHECK", 3)
    words = ["--steps", "8", "--rows", "4", "--length", "12", "--every", "1", "--rate", "1e-2"]
    assert program.main([*words, "--out", str(tmp_path)]) == 0
    losses = [
        float(line.split()[3].rstrip(","))
        for line in capsys.readouterr().err.splitlines()
        if line.startswith("step")
    ]
    assert len(losses) == 8
    assert losses[-1] < 0.7 * losses[0]

    words = (tmp_path / "tokenizer.json").read_text()
    assert words == (generate.SMALL / "tokenizer.json").read_text()
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype="float32")
    tokens = torch.randint(256, (2, 12))
    weights = {"embed": model.model.embed_tokens.weight, "norm": model.model.norm.weight}
    for layer, own in enumerate(model.model.layers):
        attention, inner = own.self_attn, own.mlp
        parts = {
            "attention_norm": [own.input_layernorm],
            "qkv": [attention.q_proj, attention.k_proj, attention.v_proj],
            "out": [attention.o_proj],
            "ffn_norm": [own.post_attention_layernorm],
            "gate_up": [inner.gate_proj, inner.up_proj],
            "down": [inner.down_proj],
        }
        for name, modules in parts.items():
            weights[f"{layer}.{name}"] = torch.cat([module.weight for module in modules])
    with torch.no_grad():
        found = program.logits_of(weights, program.rope_table(12, "cpu"), tokens)
        torch.testing.assert_close(found, model(tokens).logits, rtol=1e-4, atol=1e-4)


def test_the_small_model_writes_what_transformers_would(capsys):
    size = (generate.SMALL / "model.safetensors").stat().st_size
    assert size <= 6_000_000
    assert generate.main(["--prompt", "Return the", "--tokens", "20", "--temperature", "0"]) == 0
    found = capsys.readouterr()
    assert "tokens a second" in found.err
    model = transformers.AutoModelForCausalLM.from_pretrained(generate.SMALL, dtype="float32")
    prompt = torch.tensor([[256, *b"Return the"]])
    whole = model.generate(prompt, max_new_tokens=20, do_sample=False)[0, 1:].tolist()
    decoder = codecs.getincrementaldecoder("utf-8")(
        "replace"
    )  # the last character may not be whole
    assert found.out == decoder.decode(bytes(token for token in whole if token < 256)) + "\n"


def test_texts_are_of_the_tree_and_of_python(tmp_path):
    library = tmp_path / "lib"
    (library / "test").mkdir(parents=True)
    (library / "test" / "hidden.py").write_text('"""' + "A test's own words. " * 5 + '"""')
    (library / "wrong.py").write_text("def")
    (library / "shown.py").write_text(
        'def f():\n    """' + "What f does, in a sentence. " * 2 + '"""'
    )
    every = list(program.texts(library))
    assert every[-1].startswith("What f does")
    assert any(text.startswith("# anyop") for text in every)
    assert not any("A test's own" in text for text in every)
