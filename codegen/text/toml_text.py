# SPDX-License-Identifier: Apache-2.0
"""The one way of values into TOML: keys, texts, numbers, lists, tables."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any


def toml_table(values: Mapping[str, Any]) -> str:
    """A line for each key."""
    return "".join(f"{_key(key)} = {toml_value(value)}\n" for key, value in values.items())


def toml_value(value: Any) -> str:
    """One value. ValueError: TOML has none of its kind."""
    if isinstance(value, Mapping):
        return (
            "{"
            + ", ".join(f"{_key(key)} = {toml_value(item)}" for key, item in value.items())
            + "}"
        )
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (int, float)):
        return repr(value)
    raise ValueError(f"a schema has the value {value!r}, expected texts, numbers, lists and dicts")


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise ValueError(f"a schema has the key {key!r}, expected a text")
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _text(key)


def _text(text: str) -> str:
    """JSON's text, which TOML reads alike, but for the one control character that JSON does not escape."""
    if text != text.encode("utf-8", "ignore").decode():
        raise ValueError(f"a schema has the text {text!r}, expected UTF-8")
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
