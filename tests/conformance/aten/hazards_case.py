# SPDX-License-Identifier: Apache-2.0
"""What the hazards share: a register of cases, and the program that runs them in a process that may crash.

    python tests/conformance/aten/hazards_case.py hazards_memory [case …]

Prints "begin <case>" before each case and "right <case>" or "wrong <case>: <why>" after it.
"""

from __future__ import annotations

import faulthandler
import importlib
import re
import sys
from collections.abc import Callable
from typing import Any

CASES: dict[str, Callable[[], None]] = {}
CLEAR = (TypeError, ValueError, RuntimeError, IndexError, NotImplementedError, OverflowError)
CLEAR += (MemoryError, BufferError)


def case(function: Callable[[], None]) -> Callable[[], None]:
    CASES[function.__name__] = function
    return function


def refuses(call: Callable[[], Any], *kinds: type[BaseException], says: str = "") -> str:
    """The text of the error that a call must raise: one for a user, with nothing of C++'s stack."""
    kinds = kinds or CLEAR
    try:
        found = call()
    except kinds as error:
        text = str(error)
        assert text or isinstance(error, MemoryError), "an error without a text"
        for trace in ("Exception raised from", "frame #", "SymbolizedError"):
            assert trace not in text, f"a backtrace in the text: {text[:300]}"
        assert re.search(says, text), f"expected {says!r} in {text[:300]!r}"
        return text
    raise AssertionError(f"expected an error, got {found!r:.200}")


def right_or_refused(call: Callable[[], Any], expected: Any) -> None:
    """Either a clear error or the right value; nothing between."""
    import numpy as np

    try:
        found = call()
    except CLEAR as error:
        assert str(error), "an error without a text"
        return
    np.testing.assert_array_equal(found, expected)


def main(module: str, names: list[str]) -> None:
    faulthandler.enable()
    importlib.import_module(module)
    held = sys.modules["hazards_case"].CASES
    for name in names or held:
        print(f"begin {name}", flush=True)
        try:
            held[name]()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}".replace("\n", " | ")
            print(f"wrong {name}: {text[:600]}", flush=True)
        else:
            print(f"right {name}", flush=True)
    print("end", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
