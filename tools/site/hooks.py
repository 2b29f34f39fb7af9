# SPDX-License-Identifier: Apache-2.0
"""What mkdocs asks for while it builds the site: pages made of the sources, and links that lead to them.

A link to a file outside docs/ leads to a page of that file, a folder's to its README and a list of its files.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
DOCS, HEADERS = ROOT / "docs", ROOT / "include" / "anyop"
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import operator_pages  # noqa: E402
import python_api  # noqa: E402

_LINK = re.compile(r"(?<=\]\()([^)#\s]+)(?=[)#])")
_NAMED = re.compile(r"(?<![\w/(\[`])docs/([\w-]+)\.md")  # the README names pages without a link
_LANGUAGES = {".cmake": "cmake", ".py": "python", ".pyi": "python", ".cc": "cpp", ".h": "cpp", ".cu": "cpp", ".c": "c",
              ".toml": "toml", ".txt": "text", ".sh": "bash"}  # fmt: skip


def on_config(config: Any) -> Any:
    """Folders of pages that are made take their places in the navigation."""
    config.nav = [_filled(item) for item in config.nav]
    return config


def _filled(item: Any) -> Any:
    if isinstance(item, dict):
        return {
            title: [_filled(part) for part in inner] if isinstance(inner, list) else inner
            for title, inner in item.items()
        }
    if item.endswith(".md"):
        return item
    names = sorted(name for name in _pages() if name.startswith(f"{item}/"))
    return {Path(item).name.capitalize(): [{Path(name).stem: name} for name in names]}


def on_files(files: Files, config: Any) -> Files:
    """The pages that nobody wrote, and those of what pages link to."""
    for name, text in _pages().items():
        files.append(File.generated(config, name, content=text))
    waiting = list(files.documentation_pages())
    while waiting:
        page = waiting.pop()
        for link in _LINK.findall(page.content_string):
            path = _target(page.src_uri, link)
            if path is not None and files.get_file_from_path(_page_of(path)) is None:
                waiting.append(File.generated(config, _page_of(path), content=_source(path)))
                files.append(waiting[-1])
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links that are right in the repository lead to the pages of what they name."""
    here = page.file.src_uri

    def moved(match: re.Match[str]) -> str:
        path = _target(here, match[1])
        return match[1] if path is None else os.path.relpath(_page_of(path), Path(here).parent)

    return _LINK.sub(moved, markdown)


@cache
def _pages() -> dict[str, str]:
    """By their places in the site."""
    pages = {
        "index.md": _home((ROOT / "README.md").read_text()),
        "changelog.md": (ROOT / "CHANGELOG.md").read_text(),
        "reference/commands.md": _commands(),
        "reference/index.md": _reference(),
    }
    parts = {"operators": operator_pages.pages(), "python": python_api.pages()}
    parts["headers"] = {name: _source(path) for name, path in _headers().items()}
    for part, made in parts.items():
        pages |= {f"reference/{part}/{name}.md": text for name, text in made.items()}
    return pages


def _home(readme: str) -> str:
    """The README's links are written from the repository's root."""
    text = _NAMED.sub(r"[\1](\1.md)", readme.replace("](docs/", "]("))
    return text.replace("](README.md)", "](reference/index.md)")


def _target(page: str, link: str) -> Path | None:
    """What a link leads to, where its page or its target stands outside docs/."""
    folder = _folder(page)
    path = Path(os.path.normpath(folder / link))
    if ":" in link or not path.is_relative_to(ROOT) or not path.exists():
        return None
    return None if folder.is_relative_to(DOCS) and path.is_relative_to(DOCS) else path


def _folder(page: str) -> Path:
    """Where a page's text stands in the repository."""
    if not page.startswith("source/"):
        return (DOCS / page).parent
    path = ROOT / page.removeprefix("source/").removesuffix(".md")
    return path if path.is_dir() else path.parent


def _page_of(path: Path) -> str:
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    if path.is_relative_to(HEADERS) and path.suffix == ".h":
        return f"reference/headers/{path.relative_to(HEADERS).as_posix()}.md"
    path = path.parent if path.name == "README.md" else path
    return f"source/{path.relative_to(ROOT).as_posix()}.md"


def _source(path: Path) -> str:
    """A file as it is, a folder's README, or the names of its files."""
    name = path.relative_to(ROOT).as_posix()
    path = path.parent if path.name == "README.md" else path
    if path.suffix == ".md":
        return path.read_text()
    if path.is_dir():
        files = sorted(own.name for own in path.iterdir() if own.suffix in _LANGUAGES)
        about = path / "README.md"
        text = about.read_text() if about.exists() else f"# {name}\n"
        return text + "\n" + "\n".join(f"- [{own}]({own})" for own in files) + "\n"
    return f"# {name}\n\n````{_LANGUAGES.get(path.suffix, 'text')}\n{path.read_text()}````\n"


def _commands() -> str:
    """What `anyop COMMAND --help` says."""
    from anyop.command._main import commands

    lines = ["# Commands", ""]
    for words in ([], *([name] for name in commands())):
        called = ["anyop", *words]
        run = [sys.executable, "-m", *called, "--help"]
        said = subprocess.run(run, capture_output=True, text=True, check=True).stdout
        lines += [f"## {' '.join(called)}", "", "```text", said.rstrip(), "```", ""]
    return "\n".join(lines)


def _reference() -> str:
    lines = ["# Reference", "", "| operators | |", "|---|---|"]
    lines += [
        f"| [{name}](operators/{name}.md) | {about} |" for name, about in operator_pages.briefs()
    ]
    lines += ["", "| Python | |", "|---|---|"]
    lines += [
        f"| [{name}](python/{name}.md) | {about} |" for name, about in python_api.MODULES.items()
    ]
    lines += ["", "| C and C++ | |", "|---|---|"]
    for name, path in _headers().items():
        lines.append(f"| [{name}](headers/{name}.md) | {_first_words(path)} |")
    return "\n".join(lines) + "\n"


def _headers() -> dict[str, Path]:
    """By their names below anyop/, those of folders last."""
    paths = sorted(HEADERS.rglob("*.h"), key=lambda path: (path.parent, path.name))
    return {path.relative_to(HEADERS).as_posix(): path for path in paths}


def _first_words(header: Path) -> str:
    """The first sentence of its first comment behind the licence."""
    text = header.read_text().split("\n", 1)[1]
    comment = re.match(r"(?://[^\n]*\n)+|/\*.*?\*/", text, re.S)
    words = re.sub(r"^\s*(//|/\*+|\*/?)|\*/", " ", comment[0], flags=re.M) if comment else ""
    return " ".join(words.split()).partition(". ")[0].rstrip(".").replace("|", "\\|")
