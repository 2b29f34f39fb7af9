# SPDX-License-Identifier: Apache-2.0
"""An operator under test: its function, its metadata and the reference beside its source."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import anyop

_SCHEMA = re.compile(r"""^\s*schema\s*=\s*["']+\s*(?:(\w+)\s*::)?\s*(\w+)\s*\(""", re.MULTILINE)


@dataclass(frozen=True)
class Subject:
    """One operator. `dataclasses.replace(subject, function=...)` puts another function in its place."""

    name: str  # as anyop.metadata takes it and errors say it: "rms_norm", "acme.rms_norm"
    file: Path  # <op>.toml
    function: Callable[..., Any]
    metadata: dict[str, Any]

    @cached_property
    def reference(self) -> Callable[..., Any]:
        """The function `reference` of <op>_test.py. Its absence is an error: nothing would be compared."""
        path = self.file.with_name(f"{self.file.stem}_test.py")
        if not path.is_file():
            raise LookupError(f"{self.name} has no reference: {path.name} is missing beside it")
        function = getattr(_load(path), "reference", None)
        if not callable(function):
            raise LookupError(f"{self.name} has no reference: {path.name} has no such function")
        return function

    def on(self, device: str) -> Subject:
        """The same with what [tolerance] and [test] say of kernels of that device: "cuda"."""
        wider = self.metadata.get("tolerance_on", {}).get(device, {})
        finite = device in (self.metadata["test"] or {}).get("finite", ())
        if not wider and not finite:
            return self
        limits = {**self.metadata["tolerance"], **wider}
        made = replace(self, metadata={**self.metadata, "tolerance": limits, "finite": finite})
        if "reference" in self.__dict__:
            made.__dict__["reference"] = self.reference  # loaded once
        return made

    @property
    def inputs(self) -> list[dict[str, Any]]:
        """All arguments, in the schema's order."""
        return self.metadata["inputs"]

    @property
    def tensors(self) -> list[dict[str, Any]]:
        """The arguments that are tensors or lists of tensors."""
        return [param for param in self.inputs if param["kind"] == "Tensor"]

    @property
    def attributes(self) -> list[dict[str, Any]]:
        """The other arguments."""
        return [param for param in self.inputs if param["kind"] != "Tensor"]

    @property
    def results(self) -> list[dict[str, Any]]:
        """The results, in the schema's order."""
        return self.metadata["results"]


def find_subjects(folder: str | os.PathLike) -> Iterator[Subject]:
    """Every operator whose file lies below folder, in the order of paths; all must be loaded already."""
    for file in sorted(Path(folder).rglob("*.toml")):
        match = _SCHEMA.search(file.read_text(encoding="utf-8"))
        if match:
            namespace, name = match[1] or "anyop", match[2]
            full = name if namespace == "anyop" else f"{namespace}.{name}"
            function = getattr(getattr(anyop.ops, namespace, None), name, None)
            if function is None:
                raise LookupError(f"{full} of {file.name} is not loaded; call anyop.load first")
            yield Subject(full, file, function, anyop.metadata(full))


def _load(path: Path) -> Any:
    name = f"anyop_reference_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with siblings(path.parent):
        spec.loader.exec_module(module)
    return module


_beside: dict[str, dict[str, Any]] = {}  # folder -> the modules of it that were imported


@contextlib.contextmanager
def siblings(folder: Path) -> Iterator[None]:
    """What lies in the folder can be imported, as pytest's own mode allows; other folders may have such names."""
    place = str(folder.resolve())
    mine = _beside.setdefault(place, {})
    before = set(sys.modules)
    sys.modules.update(mine)
    sys.path.insert(0, place)
    try:
        yield
    finally:
        sys.path.remove(place)
        for name in set(sys.modules) - before:
            if _lies_in(place, name.partition(".")[0]):
                mine[name] = sys.modules.pop(name)


def _lies_in(folder: str, name: str) -> bool:
    """Whether the module is a sibling of tests; those are named by pytest, or anyop_reference_..."""
    path = os.path.join(folder, name)
    test = name.startswith("test_") or name.endswith("_test") or name == "conftest"
    return not test and (os.path.isfile(f"{path}.py") or os.path.isdir(path))
