# SPDX-License-Identifier: Apache-2.0
"""The table of ATen and its metadata, for the torch that is installed: found in the cache, else made in a second.

Finding them imports no torch: torch/version.py says which one it is.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import json
import os
import re
import sys
from types import ModuleType
from typing import Any

import anyop.codegen
from anyop import _anyop, _frameworks
from anyop._nearest import did_you_mean
from anyop.cache.dependencies import hash_file, sha256
from anyop.cache.lookup import Request
from anyop.cache.manifest import Manifest
from anyop.cache.obtain import obtain
from anyop.cache.place import cache_dir

TABLE, METADATA = "aten_table.txt", "aten_metadata.json"
_WRITERS = ("registry", "overload", "table_text", "facts")  # of codegen/aten
_MISSING = "anyop.aten needs torch, which is not installed: pip install torch"


def import_torch() -> ModuleType:
    """PyTorch itself. Raises ImportError that says whether it is missing or broken."""
    try:
        return _frameworks.import_real_torch()
    except (ImportError, OSError) as error:  # OSError: of a library that is missing or no library
        absent = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        text = _MISSING if absent else f"anyop.aten needs torch, which cannot be imported: {error}"
        raise ImportError(text, name="torch") from error


def table_path() -> str:
    """The table's file; the metadata lies beside it. Raises ImportError, RuntimeError, OSError, TimeoutError."""
    return obtain(_request(), _make)


def remake() -> str:
    """The same, made anew."""
    from anyop.cache.lookup import variants
    from anyop.cache.place import make_private
    from anyop.cache.store import remove_entry

    request = _request()
    for folder in list(variants(request)):
        make_private(os.path.join(cache_dir(), "building"))
        with contextlib.suppress(FileNotFoundError):  # another process does the same
            remove_entry(cache_dir(), folder)
    return obtain(request, _make)


@functools.cache
def schemas() -> dict[str, list[str]]:
    """Name of an operator -> the schemas of its overloads, in the order in which torch tries them."""
    found: dict[str, list[str]] = {}
    with open(table_path(), encoding="utf-8") as file:
        for line in file:
            if "\t" in line:
                schema = line.rstrip("\n").partition("\t")[2]
                found.setdefault(re.split(r"[.(]", schema, maxsplit=1)[0], []).append(schema)
    return found


@functools.cache
def metadata() -> dict[str, Any]:
    """What aten_metadata.json holds (codegen/aten/facts.py)."""
    with open(os.path.join(os.path.dirname(table_path()), METADATA), encoding="utf-8") as file:
        return json.load(file)


def overload(name: str) -> dict[str, Any]:
    """Metadata of one: "add.Tensor", "relu" or "relu.default", "aten::" before or not. Raises LookupError."""
    wanted = name.removeprefix("aten::").removesuffix(".default")
    found = metadata()["overloads"].get(wanted)
    if found is None:
        raise LookupError(_no_overload(wanted))
    return found


def unknown(name: str) -> str:
    """What to say of an operator that is none."""
    text = f"torch {metadata()['torch']} has no operator aten::{name}"
    return text + did_you_mean(name, schemas())


def _no_overload(wanted: str) -> str:
    name = wanted.partition(".")[0]
    if name not in schemas():
        return unknown(name)
    known = [schema[: schema.index("(")] for schema in schemas()[name]]
    near = did_you_mean(wanted, known)
    return f"no overload aten::{wanted}; there are {', '.join(known)}{near}"


def _request() -> Request:
    """The key: the build of torch, where it lies (the table says it), and who writes."""
    version, commit, folder = _torch()
    library = os.path.join(folder, "lib", "libtorch_cpu.so")
    state = os.stat(library) if os.path.exists(library) else None  # of two builds of one commit
    here = os.path.join(os.path.dirname(os.path.abspath(anyop.codegen.__file__)), "aten")
    writers = [hash_file(os.path.join(here, f"{name}.py")) for name in _WRITERS]
    built = [state.st_size, state.st_mtime_ns] if state else []
    key = repr([_anyop.version, version, commit, folder, built, writers])
    return Request(f"aten_{version}", sha256(key.encode()).hexdigest(), lambda _role: None)


def _torch() -> tuple[str, str, str]:
    """Version, commit and folder of the torch that is loaded, or that an import would load."""
    torch = _frameworks.real_torch()
    if torch is None and "torch" in sys.modules and sys.modules["torch"] is None:
        raise ImportError(_MISSING, name="torch")
    if torch is None:
        found = _on_disk()
        if found:
            return found
        torch = import_torch()
    folder = os.path.dirname(os.path.abspath(torch.__file__))
    return str(torch.__version__), torch.version.git_version or "-", folder


def _on_disk() -> tuple[str, str, str] | None:
    spec = importlib.machinery.PathFinder.find_spec("torch")
    if spec is None or not spec.origin:
        return None
    folder = os.path.dirname(os.path.abspath(spec.origin))
    try:
        with open(os.path.join(folder, "version.py"), encoding="utf-8") as file:
            said = dict(re.findall(r"^(\w+)\b.*= *['\"]([^'\"]+)['\"]", file.read(), re.MULTILINE))
    except OSError:
        return None
    return (
        (said["__version__"], said.get("git_version", "-"), folder)
        if "__version__" in said
        else None
    )


def _make(private: str) -> Manifest:
    from anyop.codegen.aten.facts import facts_text
    from anyop.codegen.aten.registry import read_registry
    from anyop.codegen.aten.table_text import table_text

    registry = read_registry(import_torch())
    for name, text in ((TABLE, table_text(registry)), (METADATA, facts_text(registry))):
        with open(os.path.join(private, "entry", name), "w", encoding="utf-8") as file:
            file.write(text)
    return Manifest(name=f"aten_{registry.version}", library=TABLE)
