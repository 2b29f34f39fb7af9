# SPDX-License-Identifier: Apache-2.0
"""torch.compile: code that calls anyop.<op> is traced as a call of torch.ops.<namespace>.<op>.

Dynamo takes almost as long to import as torch; it is told when it is there, not before.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

from anyop.torch import scope
from anyop.torch.dispatch import call
from anyop.torch.operators import Operator

_DYNAMO = "torch._dynamo"
_waiting: list[Operator] = []
_traced: dict[str, Operator] = {}


def install(operator: Operator) -> None:
    """Let Dynamo trace the operator's C function, now or as soon as Dynamo is imported."""
    _waiting.append(operator)
    if _is_complete(sys.modules.get(_DYNAMO)):
        _start()
    elif not any(isinstance(finder, _Watcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watcher())


def _is_complete(module: ModuleType | None) -> bool:
    spec = getattr(module, "__spec__", None)
    return module is not None and not getattr(spec, "_initializing", False)


def _start() -> None:
    """Dynamo is there: tell it what waits."""
    if not _traced:
        scope.trace_blocks()
    while _waiting:
        _substitute(_waiting.pop())


def _substitute(operator: Operator) -> None:
    name = operator.name
    _traced[name] = operator

    def traced(*args: Any, **kwargs: Any) -> Any:
        return call(_traced[name], args, kwargs)

    torch.compiler.substitute_in_graph(operator.function, skip_signature_check=True)(traced)


class _Watcher(importlib.abc.MetaPathFinder):
    """Notices that torch._dynamo is imported, and leaves all finding to the other finders."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _DYNAMO:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def run_and_tell(module: ModuleType) -> None:
            run(module)
            _start()

        spec.loader.exec_module = run_and_tell
        return spec
