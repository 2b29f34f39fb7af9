# SPDX-License-Identifier: Apache-2.0
"""Python files that came as text with an operator, as modules."""

from __future__ import annotations

import linecache
import sys
import threading
import types

_loading = threading.RLock()
_modules: dict[tuple[str, str], types.ModuleType] = {}  # by file name and source


def load_source(op: str, file: str, source: str) -> types.ModuleType:
    """The module of a file whose text came with the operator; run once in a process."""
    with _loading:
        if (file, source) in _modules:
            return _modules[file, source]
        name = f"anyop_{op.replace('.', '_')}_{file.removesuffix('.py')}"
        place = f"<{op}: {file}>"
        # Triton's compiler and tracebacks read the source through linecache; without a time it stays.
        linecache.cache[place] = (len(source), None, source.splitlines(True), place)
        module = types.ModuleType(name)
        module.__file__ = place
        sys.modules[name] = module
        try:
            exec(compile(source, place, "exec"), module.__dict__)
        except BaseException:
            del sys.modules[name]
            raise
        _modules[file, source] = module
        return module
