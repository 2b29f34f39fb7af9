# SPDX-License-Identifier: Apache-2.0
"""An operator under test: its function, its metadata and the reference beside its source."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
    spec.loader.exec_module(module)
    return module
