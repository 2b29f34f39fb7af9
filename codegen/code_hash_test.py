# SPDX-License-Identifier: Apache-2.0
"""A hash of code: what a compiler reads counts; comments, blank lines, quoted includes and places do not."""

import pytest

from .code_hash import code_of, hash_of_code

TEXT = """#include <math.h>
#include "a/b.h"

// Doubles.
int f(int x) { return 2 * x; }  /* of x */
const char* name = "a // b";
"""


def code(folder, text, name="k.cu"):
    (folder / name).write_text(text)
    return code_of(folder / name)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('#include "a/b.h"', '  # include "c.h"'),
        ("// Doubles.", "/* Twice\n// of it. */\n\n\n"),
        ("// Doubles.", "// Twice\\\nof it."),
        ("  /* of x */", ""),
    ],
)
def test_what_is_no_code(tmp_path, old, new):
    assert TEXT.replace(old, new) != TEXT
    assert code(tmp_path, TEXT.replace(old, new)) == code(tmp_path, TEXT)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("<math.h>", "<cmath>"),
        ("2 * x", "3 * x"),
        ("a // b", "a // c"),
        ("a // b", "a /* b */"),
        ('"a // b"', 'R"q(" // b)q"'),
        ("2 * x", "2'0 * '/' // '"),
    ],
)
def test_what_is_code(tmp_path, old, new):
    assert code(tmp_path, TEXT.replace(old, new)) != code(tmp_path, TEXT)


def test_literals_end_where_they_end(tmp_path):
    for literal in ('"\\"//"', 'R"q(")" //)q"', "1'000", "'\"'", "'\\''"):
        assert code(tmp_path, f"x = {literal}; // said\ny") == f"x = {literal};\ny".encode()


def test_other_files_count_whole(tmp_path):
    text = "# said\n\nx = 1\n"
    assert code(tmp_path, text, "k.py") == text.encode()


def test_neither_order_nor_borders_are_lost():
    assert hash_of_code([b"a", b"b"]) == hash_of_code([b"b", b"a"])
    assert (
        len({hash_of_code(codes) for codes in ([b"a"], [b"a", b"a"], [b"aa"], [b"a", b"b"])}) == 4
    )
