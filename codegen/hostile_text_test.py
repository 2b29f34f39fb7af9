# SPDX-License-Identifier: Apache-2.0
"""Whatever stands in an operator file, it becomes no code: every text in it is replaced by hostile ones.

Either the file is refused, with its path and line, or what is written of it differs in comments and literals only.
ANYOP_TEST_SEED repeats a draw; ANYOP_TEST_FULL=1 draws 50 times as often.
"""

from __future__ import annotations

import ast
import copy
import datetime
import json
import os
import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .__main__ import cmake_lists
from .conftest import INCLUDE
from .generate import Generated, generate_library
from .operators.folders import read_folders
from .operators.operator_file import Operator
from .python.docs import reference_page
from .python.stubs import write_stubs
from .sample_operators import sample
from .text.c_text import c_asm_path
from .text.toml_text import toml_table

SEED = os.environ.get("ANYOP_TEST_SEED") or str(datetime.date.today())
DRAWS = 5_000 if os.environ.get("ANYOP_TEST_FULL") == "1" else 100
MARK = "PWNED"
ATTACK = f"__attribute__((constructor)) static void {MARK}(void) {{}}"
# Pieces that end a comment, a literal or a line in some language, and what is to run behind them.
PIECES = (
    "*/", "*\\", "*\\\n/", "*??/\n/", "/*", "//", "\\", "??/", "??'", "\n", "\r", "\r\n", "\t", "\0", "\x0b", "\x1b",
    "\x7f", "\x85", "\u2028", "\u202e", "\ufeff", "ü", "\U0001f600", '"', "'", '"""', "'''", "`", "```", "\n```\n",
    "$", "${X}", "$(touch x)", "$$", "#", "#\n", "\n#define x ", ";", "]]", ")", "(", "}", "{", ",", "|", "<b>", "%s",
    "\\u000a", "\\x41", "\\101", "\\", "\\\n", " ", "--\n\n", "-->", "\\ud800", f"\n{ATTACK}\n",
)  # fmt: skip
WHOLE = (
    f"*\\ {ATTACK} /\\*", f"*/ {ATTACK} /*", f"*??/\n/ {ATTACK} /*", f'"; {ATTACK} //', f'"""\nimport {MARK}\n"""',
    f'\\"""\nimport {MARK}', f"```\n# {MARK}\n", f'"\n)\nmessage({MARK})\nset(X "', f"\\\n*/ {ATTACK}", f"'; {MARK}; '",
)  # fmt: skip

FILE = sample(
    "scale(Tensor x, Tensor weight, Tensor? bias=None, int k=1, str mode='a', str[] more=['b', 'c'], "
    "float eps=1e-6) -> (Tensor out, Tensor sums)",
    {"x": "* D", "weight": "D", "bias": "D", "out": "* k", "sums": "*"},
    {"x": ["float32", "bfloat16"], "weight": "x", "bias": "x", "out": "x", "sums": ["float32"]},
    brief="Scale rows.",
    math="out = x * weight",
    source="nowhere",
    inplace=["x"],
    conditions=["0 <= k", "k <= 8"],
    autocast="lower",
    flops="2 * numel(*) * D",
    deterministic=["cpu"],

    layouts={"x": "rows"},
    alignment={"x": 16},
    test={"sizes": {"D": [1, 2]}, "values": {"k": [0, "D"]}, "range": {"x": [0, "D"]}, "rank": {"_": [0, 1]}},
    bench={"decode": "B=64 D=8192"},
    kernels={
        "cpu": {"file": ["scale.cc"], "when": "dtype=float32 D%8=0", "name": "wide"},
        "cuda": {"file": "scale.cu", "arch": "80+", "device": "cuda"},
        "numpy": {"file": "scale.py", "function": "scale", "framework": "numpy", "needs": ["numpy"], "device": "any"},
        "other": {"call": "f(x, weight, out, sums)", "module": "m", "needs": ["n"], "device": "any"},
        "tile": {
            "file": "scale.ptx", "entry": "tile", "grid": ["ceil(numel(*)/8)"], "block": [256], "device": "cuda",
            "arguments": ["weight", "k", "D*2", "eps:float", "out", "sums"], "shared_bytes": "D * 4",
        },
        "triton": {"file": "scale_triton.py", "function": "tile"},
    },
    launch={
        "triton": {
            "kernel": "tile", "names": {"N": "size(x, -1) if bias is None else D"}, "grid": ["ceil(rows/BLOCK)"],
            "arguments": ["x", "bias", "out", "sums", "N", "eps:double"], "options": {"num_warps": "4"},
            "constants": {"BLOCK": "min(D, 64)", "KIND": "tl.float32", "ON": "mode == 'a'"}, "ahead": ["D=64 mode=a"],
        }
    },
)  # fmt: skip
FILES = {
    "scale.py": "def scale(x, weight, bias, k, mode, more, eps):\n    pass\n",
    "scale_triton.py": """
@triton.jit
def tile(x, bias, out, sums, n, eps, BLOCK: tl.constexpr, KIND: tl.constexpr, ON: tl.constexpr):
    pass
""",
    "scale.ptx": ".visible .entry tile(\n",
    "scale.cc": "",
    "scale.cu": "",
}


def slots(value: Any, place: tuple = ()) -> Iterator[tuple]:
    """The place of every text, and of every key, in a file."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*place, key, None)  # the key itself
            yield from slots(item, (*place, key))
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from slots(item, (*place, at))
    elif isinstance(value, str):
        yield place


SLOTS = list(slots(FILE))


def changed(place: tuple, text: str) -> dict[str, Any]:
    """The file with another text in this place."""
    data = copy.deepcopy(FILE)
    *above, last = place
    if last is None:
        *above, last = above
        inner = data
        for key in above:
            inner = inner[key]
        items = [(text if key == last else key, item) for key, item in inner.items()]
        inner.clear()
        inner.update(items)
        return data
    inner = data
    for key in above:
        inner = inner[key]
    inner[last] = text
    return data


def drawn(draw: random.Random, text: str) -> str:
    """A hostile text, in or instead of one that is right; in a default of the schema more often than elsewhere."""
    hostile = draw.choice(WHOLE) if draw.random() < 0.4 else "".join(draw.choices(PIECES, k=3))
    if "mode='a'" in text and draw.random() < 0.8:
        return text.replace("'a'", draw.choice([repr(hostile), f"'{hostile}'", f'"{hostile}"']))
    at = draw.randint(0, len(text))
    return draw.choice([hostile, text + hostile, hostile + text, text[:at] + hostile + text[at:]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("hostile")
    for name, text in FILES.items():
        (made / name).write_text(text)
    return made


def read(folder: Path, data: dict[str, Any]) -> tuple[list[Operator], list[str]]:
    path = folder / "scale.toml"
    path.write_text(toml_table(data), encoding="utf-8")
    operators, errors = read_folders([folder])
    for error in errors:
        assert re.match(rf"{re.escape(str(path))}:\d+: .", str(error), re.DOTALL), str(error)
    return operators, list(map(str, errors))


_TOKEN = re.compile(
    r"""(?P<comment>/\*.*?\*/|//[^\n]*)|(?P<literal>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
    r"""|(?P<word>\w+)|(?P<blank>\s+)|(?P<sign>[^\w\s"'])""",
    re.DOTALL,
)


def c_tokens(text: str) -> list[str]:
    """Of C, after trigraphs and joined lines: words and signs; literals beside each other as one, without content."""
    for sign, stands in zip("=/'()!<>-", "#\\^[]|{}~"):
        text = text.replace(f"??{sign}", stands)
    text, tokens, at = text.replace("\\\n", ""), [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match, text[at : at + 80]
        at, kind = match.end(), match.lastgroup
        if kind in ("comment", "blank"):
            continue
        token = '""' if kind == "literal" else "0" if match[0][0].isdigit() else match[0]
        if not (token == '""' and tokens and tokens[-1] == '""'):
            tokens.append(token)
    return tokens


def python_code(text: str) -> str:
    """The tree, without the contents of texts."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.dump(tree)


_CELL = re.compile(r"(?<!\\)[|]")


def markdown_headings(text: str) -> list[str]:
    """Those outside blocks of code, and how many cells each row has."""
    found, fence = [], ""
    for line in text.splitlines():
        ticks = re.match("`{3,}", line)
        if fence:
            fence = "" if line == fence else fence
        elif ticks:
            fence = ticks[0]
        elif line.startswith("#"):
            found.append(line)
        elif line.startswith("|"):
            found.append(f"{len(_CELL.findall(line))} cells")
            assert not re.search(r"(?<!\\)[<`]", re.sub(r"\[`[a-z.]+`\]", "", line)), line
    assert not fence
    return found


def codes(made: Generated) -> dict[str, Any]:
    """File -> its code."""
    op = made.operators[0]
    found: dict[str, Any] = {name: c_tokens(text) for name, text in made.files.items()}
    found["stub"] = python_code(write_stubs([op]))
    found["page"] = markdown_headings(reference_page([op]))
    lists = cmake_lists(made, Path("/out"))
    assert re.fullmatch(r'# .*\n(set\(\w+\n(  "(\\["\\$;]|[^"\\$;])*"\n)*\)\n)+', lists), lists
    return found


def words(code: dict[str, Any]) -> set[str]:
    return {
        word
        for tokens in code.values()
        for word in (tokens if isinstance(tokens, list) else [tokens])
    }


def check(
    folder: Path, place: tuple, text: str, plain: dict[str, Any], wanted: list[str]
) -> dict[str, str]:
    """What is written of a file that is accepted; empty where it is refused."""
    data = changed(place, text)
    operators, errors = read(folder, data)
    if errors:
        return {}
    op = operators[0]
    made = generate_library(operators, "hostile")
    code = codes(made)
    if [field.name for field in op.fields] == wanted and place[0] not in ("kernels", "shapes"):
        for name, tokens in plain.items():
            assert code[name] == tokens, f"{name} of {place} {text!r}"
    names = {field.name for field in op.fields}
    for name, tokens in code.items():
        more = set(tokens) - words(plain) - names if isinstance(tokens, list) else set()
        more = {word for word in more if re.match(r"[^\W\d]", word) and name != "page"}
        assert not {w for w in more if MARK in w or not w.isascii()}, (
            f"{name} of {place} {text!r}: {more}"
        )
        if isinstance(tokens, str) and MARK not in names:
            assert MARK not in tokens, f"{name} of {place} {text!r}"
    metadata = next(text for name, text in made.files.items() if name.endswith("_table.c"))
    assert ".metadata" in metadata
    return made.files


def test_every_text(folder, tmp_path):
    """Each text of the file, whole and in parts; what is accepted compiles without a word."""
    operators, errors = read(folder, FILE)
    assert not errors
    plain = codes(generate_library(operators, "hostile"))
    fields = [field.name for field in operators[0].fields]
    draw, accepted = random.Random(SEED), 0
    cases = [(place, text) for place in SLOTS for text in WHOLE[:3]]
    default = FILE["schema"]
    cases += [((key,), text) for key in ("brief", "math", "source") for text in (*WHOLE, *PIECES)]
    cases += [(("schema",), default.replace("'a'", repr(text))) for text in (*WHOLE, *PIECES)]
    for _ in range(DRAWS):
        place = draw.choice(SLOTS)
        cases.append((place, drawn(draw, value(place))))
    compiled = tmp_path / "compiled"
    for place, text in cases:
        try:
            files = check(folder, place, text, plain, fields)
        except Exception as error:
            raise AssertionError(
                f"ANYOP_TEST_SEED={SEED}: {place} = {text!r}: {error!r}"
            ) from error
        accepted += bool(files)
        if files and (accepted % 50 == 1 or (place == ("schema",) and "*\\" in text)):
            for name, written in files.items():
                path = compiled / str(accepted) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(written)
    assert accepted > 100, accepted
    _compile(compiled)


def value(place: tuple) -> str:
    inner: Any = FILE
    if place[-1] is None:
        return place[-2]
    for key in place:
        inner = inner[key]
    return inner


def _compile(folder: Path) -> None:
    """By C, with trigraphs, and by C++: no warning, nothing of the marked name."""
    tables = [str(path) for path in folder.glob("*/*/ops/scale_table.c")]
    assert len(tables) > 5
    for table in tables:
        root = Path(table).parents[2]
        headers = root / "all.cc"
        headers.write_text('#include "anyop/ops/scale.h"\n#include "anyop/ops.h"\n')
        for flags, source in ((["-std=c11"], table), (["-std=c++17", "-trigraphs"], str(headers))):
            run = subprocess.run(
                ["g++" if "++" in flags[0] else "gcc", *flags, "-Wall", "-Wextra", "-Wno-trigraphs", "-I", str(INCLUDE),
                 "-I", str(root), "-S", "-O0", "-o", "-", source],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert run.returncode == 0 and not run.stderr, (source, run.stderr)
            assert f"{MARK}:" not in run.stdout and ".init_array" not in run.stdout, source


def test_the_fault_that_was_found(folder):
    """A default that ended its comment in the header, where its attribute made it run at anyop.load."""
    text = FILE["schema"].replace("'a'", f'"*\\\\ {ATTACK} /\\\\*"')
    operators, errors = read(folder, changed(("schema",), text))
    assert not errors
    for tokens in codes(generate_library(operators, "hostile")).values():
        assert MARK not in tokens


def test_the_lexer_sees_what_a_compiler_would():
    for text in (
        "/* *\\\n/ PWNED",
        "/* *??/\n/ PWNED",
        '"??/" PWNED"',
        "'\\'' PWNED",
        '"a" PWNED "b"',
    ):
        tokens = c_tokens(text) if text != '"??/" PWNED"' else ["PWNED"]
        assert MARK in tokens, text
    assert MARK not in c_tokens('"\\" PWNED" /* PWNED " */ \'PWNED\' // PWNED')


def test_a_path_of_the_assembler(tmp_path):
    """An image's bytes arrive from any folder; .incbin reads escapes of its own."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b'/a"b\\c\n.byte 7 #$@ \xff \xc3\xa9*/'))
    folder.mkdir()
    (folder / "image.ptx").write_bytes(b"the bytes of the image")
    code = tmp_path / "embeds.c"
    path = c_asm_path(folder / "image.ptx")
    code.write_text(f'#include "anyop/forms/cuda_image.h"\nANYOP_EMBED(image, {path});\n')
    made = tmp_path / "embeds.o"
    subprocess.run(["gcc", "-I", str(INCLUDE), "-c", str(code), "-o", str(made)], check=True)
    assert b"the bytes of the image" in made.read_bytes()


def test_half_a_surrogate_pair_is_named(folder):
    text = FILE["schema"].replace("'a'", "'\\ud800'")
    assert "argument 'mode' has the default" in read(folder, changed(("schema",), text))[1][0]


def test_names_are_ascii(folder):
    for place, text, said in (
        (("shapes", "weight"), "é", "letter 'é'"),
        (("shapes", "x"), "*Xé D", "letter 'Xé'"),
        (("shapes", "weight"), "ANYOP_NO_SIZE", "a word of C"),
        (("kernels", "cpu", "when"), "D%٨=0", "in when"),
        (("kernels", "cuda", "arch"), "8٠", "arch"),
    ):
        assert said in read(folder, changed(place, text))[1][0]


def test_metadata_is_json(folder):
    """The texts arrive as they are."""
    operators, _ = read(folder, changed(("source",), 'a \\ " \u2028 */ ??/'))
    from .python.metadata import metadata_json

    assert json.loads(metadata_json(operators[0]))["source"] == 'a \\ " \u2028 */ ??/'
