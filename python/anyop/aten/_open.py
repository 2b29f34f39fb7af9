# SPDX-License-Identifier: Apache-2.0
"""Opens ATen once a process, at the first operator: torch, its table, and the glue for it where there is one."""

from __future__ import annotations

import logging
import threading
from types import ModuleType

from anyop._load import core
from anyop.aten import _table

_lock = threading.Lock()
_is_open = False


def opened() -> ModuleType:
    """The extension module, whose aten_function and aten_resolve work now. Raises what _table.table_path raises."""
    global _is_open
    if not _is_open:
        with _lock:  # a second thread waits for the glue's build
            if not _is_open:
                _table.import_torch()
                from anyop.native.glues import aten_glue

                glue = aten_glue.find_loaded()
                if glue is None:
                    text = "anyop.aten goes without its glue and refuses what needs it: %s"
                    logging.getLogger("anyop").warning(text, aten_glue.problem)
                core.aten_open(_table.table_path(), glue)
                _is_open = True
    return core
