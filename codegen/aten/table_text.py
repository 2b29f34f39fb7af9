# SPDX-License-Identifier: Apache-2.0
"""The table that bindings/aten/table.cc reads: torch's codes, then every operator with its overloads' schemas.

    anyop-aten 1
    torch <version> <commit>
    libraries <folder>
    dtype <name> <code>               also layout, format, device; of several names of a code, torch's own first
    op <name> <flags>                 -, or letters: n a number may stand for a Tensor,
                                      a torch's kernel needs bfloat16 memory that begins at a multiple of 32
    <overload or -><TAB><schema>      in the order in which torch tries them

Before the tab may stand what is written although the schema does not say so: !running_mean,running_var, and ?training
where it is under that argument only.

Names are sorted by bytes. An empty line ends the file, so that a part of it is known as such.
"""

from __future__ import annotations

from collections.abc import Iterator

from .overload import read_overload
from .registry import Registry

HEAD = "anyop-aten 1"
_NEED_ALIGNMENT = ("_weight_int8pack_mm",)  # else they end the process, torch 2.13


def table_text(registry: Registry) -> str:
    """The whole file."""
    return "\n".join([*_lines(registry), "", ""])


def _lines(registry: Registry) -> Iterator[str]:
    yield HEAD
    yield f"torch {registry.version} {registry.commit}"
    yield f"libraries {registry.libraries}"
    for word, codes in registry.codes.items():
        yield from (f"{word} {name} {code}" for name, code in codes)
    for name, schemas in registry.operators.items():
        flags = "n" * (name in registry.numbers) + "a" * (name in _NEED_ALIGNMENT)
        yield f"op {name} {flags or '-'}"
        for schema in schemas:
            overload = schema[: schema.index("(")].partition(".")[2]
            yield f"{overload or '-'}{_hidden_writes(schema)}\t{schema}"


def _hidden_writes(schema: str) -> str:
    written = read_overload(schema).hidden_writes if "running" in schema else {}
    names, switch = ",".join(written), next(iter(written.values()), "always")
    return f"!{names}" * bool(names) + f"?{switch}" * (switch != "always")
