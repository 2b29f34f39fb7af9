# SPDX-License-Identifier: Apache-2.0
"""Counts what moving the kernel takes: lines that are not blank and not a comment, for each of the three bindings.

    python examples/from_pybind11/lines.py

The kernel itself (ops/bias_gelu_rows.h) is the same file for all three and is not counted.
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
SIDES = {
    "anyop": ("ops/bias_gelu.toml", "ops/bias_gelu.cc"),
    "tvm-ffi": ("before/bias_gelu_tvm_ffi.cc",),
    "pybind11": ("before/bias_gelu_pybind.cc",),
}
_COMMENT = {".toml": "#", ".cc": "//"}


def count(path: Path) -> int:
    """Lines of code of a file that has whole-line comments only."""
    lines = (line.strip() for line in path.read_text().splitlines())
    return sum(bool(line) and not line.startswith(_COMMENT[path.suffix]) for line in lines)


def counts() -> dict[str, int]:
    """Of each side, its files together."""
    return {side: sum(count(HERE / name) for name in names) for side, names in SIDES.items()}


if __name__ == "__main__":
    for side, lines in counts().items():
        print(f"{side:10} {lines:3}  {', '.join(SIDES[side])}")
