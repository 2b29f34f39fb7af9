# SPDX-License-Identifier: Apache-2.0
"""Runs an action as soon as a module is imported: now where it is, else right after, without importing it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

Action = Callable[[ModuleType], object]

_waiting: dict[str, list[Action]] = {}


def when_imported(name: str, action: Action) -> None:
    """Action gets the module. It is not told of one whose import has begun and not ended."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if module is not None and not getattr(spec, "_initializing", False):
        action(module)
        return
    _waiting.setdefault(name, []).append(action)
    if _Watcher not in sys.meta_path:
        sys.meta_path.insert(0, _Watcher)


class _Watcher:
    """Notices that a module is imported, and leaves all finding to the other finders.

    Who only asks for the module's spec, to know whether it is there, is not taken for an import.
    """

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _waiting:
            return None
        others = [finder for finder in sys.meta_path if finder is not _Watcher]
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((found for found in specs if found is not None), None)
        run = getattr(spec and spec.loader, "exec_module", None)
        if run is None:
            return spec

        def run_and_tell(module: ModuleType) -> None:
            run(module)
            for action in _waiting.pop(module.__name__, ()):
                action(module)

        spec.loader.exec_module = run_and_tell  # type: ignore[method-assign]
        return spec
