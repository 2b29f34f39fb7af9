# SPDX-License-Identifier: Apache-2.0
"""The gates of `make lint` that tools/ holds: lengths, columns of pages, and subjects of commits."""

from __future__ import annotations

import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import commits  # noqa: E402
import lengths  # noqa: E402
import test_full  # noqa: E402
import wrap  # noqa: E402

C_TEXT = """namespace a {{

int Short(int x) {{
  return x;
}}

template <typename T>
void Long(T x,
          T y) {{
  if (x) {{
    Short(x);
  }}
{body}}}

struct Held {{
  void Member() {{
{deep}  }}
}};

}}  // namespace a
"""


def test_lengths_of_functions():
    text = C_TEXT.format(body="  Short(1);\n" * 70, deep="    Short(1);\n" * 70)
    assert dict(lengths.functions_of_c(text)) == {"Short": 3, "Long": 76, "Member": 72}
    python = "def f():\n    def g():\n        pass\n\n    return g\n"
    assert dict(lengths.functions_of_python(python)) == {"f": 5, "g": 2}


def test_mypy_is_strict_for_what_the_docs_import():
    texts = [path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))]
    found = re.findall(r"\b(?:import|from) (anyop(?:\.\w+)*)", "\n".join(texts))
    overrides = (ROOT / "pyproject.toml").read_text().partition("# What users import.")[2]
    strict = re.findall(r'"([^"]+)"', overrides.partition("]\n")[2].partition("\n]\n")[0])
    assert {"anyop", "anyop.torch.device"} <= set(found)
    assert not [name for name in set(found) if not any(fnmatch(name, each) for each in strict)]


def test_exceptions_of_lengths_only_shrink(tmp_path):
    (tmp_path / "a.cc").write_text(
        C_TEXT.format(body="  Short(1);\n" * 70, deep="    Short(1);\n" * 70)
    )
    (tmp_path / "b.py").write_text("x = 1\n" * 501)
    wrong = lengths.mistakes(tmp_path, {})
    assert [line.partition(",")[0] for line in wrong] == [
        "a.cc: Long has 76 lines",
        "a.cc: Member has 72 lines",
        "b.py: the file has 501 lines",
    ]
    allowed = {("a.cc", "Long"): 76, ("a.cc", "Member"): 72, ("b.py", "-"): 501}
    assert lengths.mistakes(tmp_path, allowed) == []
    (line,) = lengths.mistakes(tmp_path, allowed | {("a.cc", "Long"): 75})
    assert line == "a.cc: Long has 76 lines, expected 75 at most: split it"
    (line,) = lengths.mistakes(tmp_path, allowed | {("a.cc", "Short"): 70})
    assert line == "tools/lengths.txt: a.cc Short is short enough: delete its line"


def test_no_folder_is_crowded(tmp_path):
    assert lengths.crowded(ROOT) == []
    for folder, count in (("src/core", 30), ("src/device", 31), ("ops/norm", 31), ("ops", 31)):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            (tmp_path / folder / f"f{number}.cc").touch()
            (tmp_path / folder / f"page{number}.md").touch()
    said = "the folder has 31 sources, expected 30 at most: divide it by subject"
    assert lengths.crowded(tmp_path) == [f"ops: {said}", f"src/device: {said}"]


def test_subjects_of_commits(tmp_path):
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", tmp_path, *who, *words], check=True, capture_output=True)

    assert commits.mistakes(tmp_path) == []  # no repository
    git("init", "-q")
    assert commits.mistakes(tmp_path) == []  # and no commit
    git("commit", "--allow-empty", "-m", "a" * 73)
    assert len(commits.mistakes(tmp_path)) == 1
    git("commit", "--allow-empty", "-m", "b" * 72, "-m", "c" * 99)
    assert len(commits.mistakes(tmp_path)) == 1  # not the last commit alone
    git("init", "-q", "--bare", "elsewhere")
    git("remote", "add", "origin", str(tmp_path / "elsewhere"))
    (line,) = commits.mistakes(tmp_path)
    assert "73 characters, expected 72" in line
    git("push", "-q", "origin", "HEAD:main")
    assert commits.mistakes(tmp_path) == []


LONG = "word " * 30


def test_long_paragraphs_and_items_are_wrapped_and_nothing_else():
    code = f"    {LONG}\n\n```\n{LONG}\n\n- {LONG}\n```\n"
    kept = f"# {LONG}\n\n{code}\n| {LONG}|\n\n![{LONG}](a.svg)\n\n- an\n  item\n"
    assert wrap.wrapped(kept) == kept
    lines = wrap.wrapped(f"{LONG}\n\n- {LONG}\n  goes on\n  - {LONG}\n1. one\n").splitlines()
    assert max(map(len, lines)) <= wrap.COLUMNS
    assert [line.partition("wor")[0] for line in lines] == [
        "", "", "", "- ", "  ", "  - ", "    ", "1. one",
    ]  # fmt: skip
    assert "".join(lines).count("word") == 90


def test_no_line_begins_with_a_mark_or_breaks_code():
    for mark in ("-", "+", "#", "1.", "|", ">", "==="):
        page = wrap.wrapped(f"{'x' * 60} {'y' * 37} {mark} next {LONG}")
        assert f"\n{mark}" not in page and max(map(len, page.splitlines())) <= wrap.COLUMNS
    code = f"`anyop tune {'x ' * 20}`"
    assert code in wrap.wrapped(f"{'y' * 90} {code} next\n")


def test_what_further_builds_run_and_leave_out_is_there():
    named = [*test_full.THREADS, *test_full.PYTHON_TESTS]
    paths = [word.partition("=")[2] or word for word in named]
    assert len(paths) > 12 and [path for path in paths if not [*ROOT.glob(path)]] == []
