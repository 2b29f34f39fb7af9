# SPDX-License-Identifier: Apache-2.0
"""Expressions of a launch: what C computes in a call is what the builder computes ahead of it."""

from __future__ import annotations

import itertools
import shutil
import subprocess

import pytest

from ..conftest import INCLUDE
from ..schema.source import Mistake
from .launch_expression import evaluate, launch_c, parse_launch

TEXTS = (
    "a + b * 3 - -b", "a // b if b != 0 else 0", "a % b if b else -7", "ceil(a/b) if b != 0 else 1",
    "min(a, b, 5)", "max(a, b, -5)", "next_power_of_2(a)", "next_power_of_2(a) if a <= 16 else 4096 // max(b, 1)",
    "a < b", "a >= b", "a == b or a > 3", "not (a == b and b != 2)", "b != 0 and a // b > 1",
    "b == 0 or a % b == 0", "a <= b and not b", "(a > b) + (b > a) * 2",
    "max(1, min(2048 // next_power_of_2(a), 32))", "True",
)  # fmt: skip
VALUES = (-17, -3, -1, 0, 1, 2, 3, 5, 16, 17, 1023, 1024, 2**31 - 1)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc on this machine")
def test_c_computes_what_python_does(tmp_path):
    known = {"a": "a", "b": "b"}
    lines = [f'  printf("%lld\\n", (long long){launch_c(parse_launch(t), known)});' for t in TEXTS]
    body = "\n".join(lines)
    (tmp_path / "all.c").write_text(
        '#include <stdio.h>\n#include "anyop/forms/size_math.h"\n'
        f"static void All(int64_t a, int64_t b) {{\n{body}\n}}\n"
        f"int main(void) {{\n  static const int64_t v[] = {{{', '.join(map(str, VALUES))}}};\n"
        f"  for (int i = 0; i < {len(VALUES)}; ++i)\n    for (int j = 0; j < {len(VALUES)}; ++j) All(v[i], v[j]);\n}}\n"
    )
    command = ["gcc", "-Wall", "-Werror", "-I", str(INCLUDE), "-o", "all", "all.c"]
    subprocess.run(command, cwd=tmp_path, check=True)
    ran = subprocess.run([tmp_path / "all"], capture_output=True, text=True, check=True)
    found = iter(map(int, ran.stdout.split()))
    for a, b in itertools.product(VALUES, VALUES):
        for text in TEXTS:
            expected = evaluate(parse_launch(text), {"a": a, "b": b})
            assert next(found) == expected, f"{text} of a={a} b={b}"


@pytest.mark.parametrize(
    "text",
    ["a / b", "f(a)", "a.b", "a[0]", "lambda: a", "a < b < 3", "1.5", "'x'", "x is y", "2147483648", "ceil(a)", ""],
)  # fmt: skip
def test_others_are_refused(text):
    with pytest.raises(Mistake, match="unusable expression"):
        parse_launch(text)
