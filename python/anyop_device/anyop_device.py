# SPDX-License-Identifier: Apache-2.0
"""What `import torch` calls (entry point torch.backends), so that torch.randn(4, device="anyop") needs no other import.

It never builds and never raises. Without a library of the device, or where another backend has torch's place for one,
torch stays as it is. All else is in the package anyop, whose file is run without importing the package.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Iterable
from types import ModuleType


def autoload() -> None:
    """Load and name the device, or let torch.anyop say why there is none."""
    try:
        spec = importlib.util.find_spec("anyop")
        places = spec.submodule_search_locations if spec and spec.origin else None
        package = os.path.abspath(places[0]) if places else ""
        early = _run(package, "native", "device_module.py") if places else None
    except Exception:  # without anyop, or with a broken one, there is nothing to say
        return
    if early is None:
        return
    try:
        others = _others(sys._getframe(1).f_locals.get("backend_extensions"))
        why = early.autoload(package, others, functools.partial(_run, package))
    except Exception as error:
        why = str(error)
    if why is not None:
        try:
            early.stand_in(why)
        except Exception:  # an anyop that is older or newer
            return


def _others(entries: Iterable | None) -> list[str]:
    """The backends that torch loads behind this one: who would be refused, and `import torch` would fail."""
    if entries is None:  # not called by torch's loop, whose variable that is
        from importlib.metadata import entry_points

        entries = entry_points(group="torch.backends")
    names, ours = [], False
    for entry in entries:
        if entry.value.partition(":")[0] == __name__:
            ours = True
        elif ours:
            names.append(entry.name)
    return names


def _run(package: str, *path: str) -> ModuleType:
    """A module of anyop, by itself."""
    spec = importlib.util.spec_from_file_location(
        f"_anyop_{path[-1][:-3]}", os.path.join(package, *path)
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
