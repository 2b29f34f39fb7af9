# SPDX-License-Identifier: Apache-2.0
"""The pages of docs/ against the sources: each page is in the index, each variable that is read has its line, each link
leads somewhere, each command of make has its line of help.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FOLDERS = ("python", "src", "bindings", "include", "ops")
NOT_VARIABLES = {"ANYOP_WITH_CUDA", "ANYOP_WITH_HIP", "ANYOP_WITH_MLU"}  # macros of compilers


def sources():
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".cc", ".h") and not path.stem.endswith("_test"):
                yield path.read_text()


def read_by_the_sources() -> set[str]:
    """Names that stand alone between quotes, and those that are put together of parts."""
    texts = list(sources())
    names = {name for text in texts for name in re.findall(r"[\"'](ANYOP_[A-Z_]*[A-Z])[\"']", text)}
    every = "\n".join(texts)
    stems = re.findall(r"\bNativeLibrary\(\s*\"(\w+)\"", every)
    assert {"torch_glue", "paddle_glue"} <= set(
        stems
    ) and 'f"ANYOP_{backend.upper()}_ARCH"' in every
    names |= {f"ANYOP_{stem.upper()}" for stem in stems}
    names |= {f"ANYOP_{backend}_ARCH" for backend in ("CUDA", "HIP", "MLU")}
    names |= {f"ANYOP_TOOLCHAIN_{backend}" for backend in ("HOST", "CUDA", "HIP", "MLU")}
    return names - NOT_VARIABLES


def on_the_page() -> set[str]:
    found = re.findall(r"`(ANYOP_[A-Z_]*[A-Z])`", (DOCS / "variables.md").read_text())
    return {name for name in found if not name.startswith("ANYOP_OP_")}


def test_every_variable_has_its_line():
    read = {name for name in read_by_the_sources() if not name.startswith("ANYOP_OP_")}
    assert len(read) > 25
    assert read - on_the_page() == set()
    assert "`ANYOP_OP_<OPERATOR>`" in (DOCS / "variables.md").read_text()
    of_tests = {name for name in on_the_page() if name.startswith("ANYOP_TEST_")}
    assert on_the_page() - of_tests - read == set(), "nothing reads them"
    files = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "tools").rglob("*.py"), ROOT / "conftest.py"]
    files += [*(ROOT / "tests").rglob("*.cc"), *(ROOT / "src").rglob("*_test.cc")]
    tests = "".join(path.read_text() for path in files if path != Path(__file__))
    asked = r"(?:environ(?:\.\w+\(|\[)|getenv\()[\"'](ANYOP_TEST_\w+)"
    assert {name for name in of_tests if name not in tests} == set()
    assert set(re.findall(asked, tests)) - of_tests == set()


def test_every_page_is_in_the_index():
    index = (DOCS / "README.md").read_text()
    pages = {path.name for path in DOCS.glob("*.md")} - {"README.md"}
    assert {page for page in pages if f"]({page})" not in index} == set()


def test_the_glossary_has_each_word_once_in_order():
    rows = [line for line in (DOCS / "glossary.md").read_text().splitlines() if line[:2] == "| "]
    words = [row.split("|")[1].strip().casefold() for row in rows[1:]]
    assert len(words) > 25 and words == sorted(set(words))
    assert [row for row in rows if row.count(" | ") != 1] == []


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda p: p.name
)
def test_links_lead_somewhere(page):
    text = page.read_text()
    targets = re.findall(r"\]\(([\w./-]+\.\w+)(?:#[\w-]*)?\)", text)
    targets += [str(ROOT / name) for name in re.findall(r"(?<![\w/(\[])docs/[\w-]+\.md", text)]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_make_help_names_every_command():
    rules = (ROOT / "Makefile").read_text()
    phony = set(re.search(r"^\.PHONY: (.*)$", rules, re.M)[1].split()) - {"needs", "debian"}
    shown = subprocess.run(
        ["make", "-s", "-C", ROOT, "help"], capture_output=True, text=True, check=True
    ).stdout
    assert phony == set(re.findall(r"^  ([a-z-]+) +\S", shown, re.M))


def test_every_example_has_a_page():
    folders = [
        path for path in (ROOT / "examples").iterdir() if path.is_dir() and path.name[0] != "_"
    ]
    assert [folder.name for folder in folders if not (folder / "README.md").is_file()] == []
