# SPDX-License-Identifier: Apache-2.0
"""aten_metadata.json: every overload of the installed torch taken apart, for tests, headers and stubs.

    {"torch": "2.13.0", "commit": "cf30…", "codes": {"dtype": [["uint8", 0], …], …},
     "overloads": {"add.Tensor": {…}, …}}

An overload has name, overload, schema, kind, tags, callable, params, results, and why_not or needs_glue where there is
a reason. A parameter or result has the fields of codegen/aten/overload.py's Value; what is false, empty or None is left
out. "default" is there where there is one, None too; those of dtypes and memory formats are names.
"""

from __future__ import annotations

import json
from typing import Any

from .overload import Value, read_overload
from .registry import Registry

_LISTS_SINCE = (2, 10)  # torch's C shim converts no lists and no text before


def facts(registry: Registry) -> dict[str, Any]:
    """All that the file holds."""
    names = {
        kind: {code: name for name, code in reversed(codes)}
        for kind, codes in registry.codes.items()
    }
    lists = tuple(map(int, registry.version.split(".")[:2])) >= _LISTS_SINCE
    overloads = {}
    for schemas in registry.operators.values():
        for schema in schemas:
            full = schema[: schema.index("(")]
            overloads[full] = {
                **dict(zip(("name", "overload"), full.partition(".")[::2])),
                "schema": schema,
                "tags": registry.tags[full],
                **_taken_apart(schema, names, lists),
            }
    return {
        "torch": registry.version,
        "commit": registry.commit,
        "codes": registry.codes,
        "overloads": overloads,
    }


def facts_text(registry: Registry) -> str:
    """The file."""
    return json.dumps(facts(registry), separators=(",", ":")) + "\n"


def _taken_apart(schema: str, names: dict[str, dict[int, str]], lists: bool) -> dict[str, Any]:
    try:
        found = read_overload(schema)
        params = [_value(param, names) for param in found.params]
        results = [_value(result, names) for result in found.results]
    except (ValueError, SyntaxError) as error:  # of a later torch: the others can be called
        why_not = f"its schema is not understood: {error}"
        empty = {"kind": "unknown", "params": [], "results": []}
        return {"callable": False, "why_not": why_not, **empty}
    needs_glue = "" if found.why_not else found.needs_glue(lists)
    entry = {"kind": found.kind, "callable": not found.why_not}
    entry |= {"why_not": found.why_not} if found.why_not else {}
    entry |= {"needs_glue": needs_glue} if needs_glue else {}
    return entry | {"params": params, "results": results}


def _value(value: Value, names: dict[str, dict[int, str]]) -> dict[str, Any]:
    entry = {field: held for field, held in vars(value).items() if held and field != "default"}
    if value.default is not None:
        default = value.plain_default
        coded = value.kind in names and default is not None
        entry["default"] = names[value.kind].get(default, default) if coded else default
    return entry
