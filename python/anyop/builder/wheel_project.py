# SPDX-License-Identifier: Apache-2.0
"""What a wheel says of itself: name, version and METADATA, from the folder's pyproject.toml and the caller.

pyproject-metadata would read more keys, but it takes texts of two lines and licences of any words with a warning, and
writes a version in another form than the caller's. Here each is an error that says what was found and expected.
"""

from __future__ import annotations

import keyword
import os
import re
import sys
from dataclasses import dataclass
from typing import Any

from anyop.cache.dependencies import open_regular

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")  # PEP 508
_NUMBER = r"(0|[1-9][0-9]*)"
_VERSION = re.compile(  # PEP 440, in its one normal form
    rf"({_NUMBER}!)?{_NUMBER}(\.{_NUMBER})*((a|b|rc){_NUMBER})?(\.post{_NUMBER})?(\.dev{_NUMBER})?"
    r"(\+[a-z0-9]+(\.[a-z0-9]+)*)?"
)
# Packages that a wheel of operators must not stand before.
_TAKEN = {
    "anyop",
    "cupy",
    "jax",
    "jaxlib",
    "ml_dtypes",
    "numpy",
    "paddle",
    "pip",
    "setuptools",
    "torch",
    "tvm_ffi",
}
_KEYS = ("name", "version", "description", "license", "requires-python", "dependencies")


@dataclass
class Project:
    """The distribution and the package in it."""

    name: str  # "acme-kernels"
    version: str
    description: str = ""
    license: str = ""
    requires_python: str = ">=3.10"
    dependencies: tuple[str, ...] = ()

    @property
    def package(self) -> str:
        """What users import: "acme_kernels"."""
        return re.sub(r"[-_.]+", "_", self.name).lower()

    def metadata(self, anyop_version: str) -> str:
        """The text of METADATA."""
        lines = ["Metadata-Version: 2.1", f"Name: {self.name}", f"Version: {self.version}"]
        lines += [f"Summary: {self.description}"] if self.description else []
        lines += [f"License: {self.license}"] if self.license else []
        lines += [f"Requires-Python: {self.requires_python}"]
        lines += [
            f"Requires-Dist: {text}" for text in (f"anyop>={anyop_version}", *self.dependencies)
        ]
        return "\n".join(lines) + "\n"


def read_project(folder: str, name: str | None, version: str | None) -> Project:
    """The project of a folder; name and version of the caller go before those of pyproject.toml. Raises ValueError."""
    path = os.path.join(folder, "pyproject.toml")
    table = _read(path) if os.path.exists(path) else {}
    place = f"{path} [project]"
    found = {
        key: _text(place, key, table[key])
        for key in _KEYS[:-1]
        if key in table and key != "license"
    }
    found["license"] = _license(place, table.get("license", ""))
    needs = table.get("dependencies", [])
    if not isinstance(needs, list):
        raise ValueError(f"{place} dependencies is {needs!r}, expected a list of texts")
    for key, given in (("name", name), ("version", version)):
        if given is not None:
            found[key] = _text("the wheel's", key, given)
        if key not in found:
            raise ValueError(
                f"the wheel needs a {key}: --{key} ({key}= in Python), or [project] {key} in {path}"
            )
    project = Project(
        found["name"], found["version"], found.get("description", ""), found["license"],
        found.get("requires-python", ">=3.10"), tuple(_text(place, "dependencies", need) for need in needs),
    )  # fmt: skip
    _check(project)
    return project


def _check(project: Project) -> None:
    name, package = project.name, project.package
    if not _NAME.fullmatch(name) or len(name) > 100:
        raise ValueError(
            f"the wheel's name is {name!r}, expected letters, digits, '-', '_' and '.', "
            "with a letter or digit at both ends"
        )
    if not package.isidentifier() or keyword.iskeyword(package):
        raise ValueError(
            f"the wheel's name is {name!r}, but Python cannot import a package {package!r}"
        )
    if package in _TAKEN or package in sys.stdlib_module_names:
        raise ValueError(
            f"the wheel's name is {name!r}, but {package} is another package; choose a name of your own"
        )
    if not _VERSION.fullmatch(project.version):
        raise ValueError(
            f"the wheel's version is {project.version!r}, expected one as 1.2.3 or 1.2.3rc1 (PEP 440)"
        )


def _read(path: str) -> dict[str, Any]:
    try:
        import tomllib
    except ImportError:  # Python 3.10
        import tomli as tomllib
    with open(path, "rb", opener=open_regular) as stream:
        try:
            table = tomllib.load(stream).get("project", {})
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: {error}") from None
    if not isinstance(table, dict):
        raise ValueError(f"{path}: project is {table!r}, expected a table [project]")
    return table


def _text(place: str, key: str, value: Any) -> str:
    """One line; a second one would be another field of METADATA."""
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError(f"{place} {key} is {value!r}, expected a text of one line")
    return value.strip()


def _license(place: str, value: Any) -> str:
    """PEP 639's expression; the older table's text, but no file."""
    if isinstance(value, dict):
        value = value.get("text", "")
    return _text(place, "license", value)
