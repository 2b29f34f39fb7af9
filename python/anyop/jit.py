# SPDX-License-Identifier: Apache-2.0
"""Operators from a snippet: ``anyop.jit.load(name, source=..., functions=[...])`` compiles once and returns
callables.
"""

from __future__ import annotations

import functools
import os
import re
import threading
import types
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from anyop import _operators
from anyop._paths import check_utf8
from anyop.builder.build import build_inputs
from anyop.builder.choices import Choices
from anyop.builder.folder import SUFFIXES, hash_texts, library_name

_NAME = re.compile(r"(?:(\w+)(?:::|\.))?(\w+)\s*\(")
_loaded: dict[str, tuple[str, str]] = {}  # namespace -> key and library of what is there
# By name: of two threads with one text, the second finds what the first has loaded.
_locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)


def load(
    name: str,
    *,
    source: str | None = None,
    sources: Iterable[str | os.PathLike[str]] = (),
    functions: Iterable[str] = (),
    schemas: Iterable[Mapping[str, Any] | str] = (),
    backend: str | None = None,
    flags: Iterable[str] = (),
    arch: str | Iterable[str] | None = None,
    toolchains: Mapping[str, str] | None = None,
    verbose: bool = False,
) -> types.SimpleNamespace:
    """Compile kernels and return their operators, as attributes; the second time they come from the cache.

    name:       of the library and, where a schema names none, of the namespace: ``anyop.ops.<name>``,
                ``torch.ops.<name>``.
    source:     C++ or CUDA text, which sees ``anyop/kernel.h``; sources: files instead, compiled where they lie.
    functions:  names of C++ functions in the source. Their parameters say how they are called: ``const
                AnyopTensor*`` and ``const float*`` are tensors that are read, ``AnyopTensor*`` and ``float*`` ones
                that are written, ``int64_t``, ``double``, ``bool`` and ``const char*`` are numbers and texts,
                ``AnyopCall*`` is the call and ``void* stream`` its stream. They return nothing or an
                ``AnyopStatus``. A raw pointer's tensor is contiguous and of that dtype; sizes are not checked, for
                nothing states them.
    schemas:    what an operator's file says, each a dict (``{"schema": "scale(Tensor x) -> Tensor", "shapes":
                {...}}``) or the file's text: results are allocated and everything is checked. The kernel is
                ``<name>_<op>_<backend>``.
    backend:    "cpu", "cuda" or "hip"; default: that of the files, "cuda" for a source with ``__global__``, else "cpu".
    flags, arch, toolchains, verbose: as of ``anyop.build``.

    Where the namespace holds other operators already, such as those of an earlier text of the same cell of a
    notebook, the new ones get a namespace of their own; ``.namespace`` of the result says which. Raises what
    ``anyop.build`` raises.
    """
    request = _Request(name, source, sources, functions, schemas, backend)
    choices = Choices.check(
        arch=arch, flags=flags, toolchains=toolchains, verbose=verbose, suffixes=request.suffixes
    )
    texts = request.texts()
    key = hash_texts([*texts, *choices.facts(name)])

    def build(namespace: str) -> str:
        write = functools.partial(request.write, namespace=namespace)
        return build_inputs(name, [*texts, namespace], choices, write)

    with _locks[name]:
        is_ours = _loaded[name][0] == key if name in _loaded else _is_free(name)
        namespace = name if is_ours else f"{name}_{key[:8]}"
        library = build(namespace)
        there = _loaded.get(namespace, (key, library))
        if there != (key, library):  # the same text, but another header
            namespace = f"{name}_{hash_texts([key, library])[:8]}"
            library = build(namespace)
        _operators.load(library)
        _loaded[namespace] = key, library
    return request.result(namespace, library)


class _Request:
    """What load was asked for."""

    def __init__(
        self,
        name: str,
        source: str | None,
        sources: Iterable[str | os.PathLike[str]],
        functions: Iterable[str],
        schemas: Iterable[Mapping[str, Any] | str],
        backend: str | None,
    ) -> None:
        self.name = library_name("", name)
        if source is not None and not isinstance(source, str):
            raise ValueError(f"source is {source!r}, expected a text")
        sources = _list(sources, "sources", (str, os.PathLike))
        functions = _list(functions, "functions", (str,))
        schemas = _list(schemas, "schemas", (str, Mapping))
        if (source is None) == (not sources):
            raise ValueError("give either source, a text, or sources, a list of files")
        if bool(functions) == bool(schemas):
            raise ValueError("give either functions, names in the source, or schemas")
        self.source, self.functions, self.schemas = source, functions, schemas
        self.files = [os.path.abspath(path) for path in sources]
        for path in self.files:
            if not os.path.isfile(path):
                raise FileNotFoundError(f"no source file at {path}")
        if backend is not None and backend not in SUFFIXES:
            raise ValueError(f"backend {backend!r}, expected one of {', '.join(SUFFIXES)}")
        self.backend = backend or self._find_backend()

    @property
    def suffixes(self) -> set[str]:
        """Of the files that are compiled."""
        return {os.path.splitext(path)[1] for path in self.files} or {SUFFIXES[self.backend]}

    def texts(self) -> list[str]:
        """All that the library is made from, for its key."""
        contents = []
        for path in self.files:
            with open(path, encoding="utf-8", errors="surrogateescape") as stream:
                contents += [path, stream.read()]
        texts = [self.backend, self.source or "", repr(contents)]
        texts += [repr(self.functions), repr(self.schemas)]
        for given in (self.source or "", *self.functions, *map(str, self.schemas)):
            check_utf8(given, "the source or a schema is")
        return texts

    def write(self, folder: str, namespace: str) -> None:
        """The folder of operators that is built."""
        from anyop.builder.snippet import Snippet

        Snippet(self.name, namespace, self.backend, self.source, self.files).write(
            folder, self.functions, self.schemas
        )

    def result(self, namespace: str, library: str) -> types.SimpleNamespace:
        """The operators as attributes, with .namespace and .path."""
        names = [(namespace, function) for function in self.functions]
        for schema in self.schemas:
            stated = schema if isinstance(schema, str) else str(schema["schema"])
            found = _NAME.search(stated)
            assert found, "the builder has read it"
            names.append((found[1] or namespace, found[2]))
        functions = {name: getattr(_operators.ops.__dict__[space], name) for space, name in names}
        return types.SimpleNamespace(**functions, namespace=namespace, path=library)

    def _find_backend(self) -> str:
        for backend, suffix in SUFFIXES.items():
            if backend != "cpu" and any(path.endswith(suffix) for path in self.files):
                return backend
        return "cuda" if "__global__" in (self.source or "") else "cpu"


def _list(values: Iterable[Any], what: str, kinds: tuple[type, ...]) -> tuple[Any, ...]:
    values = values if isinstance(values, (str, Mapping)) else tuple(values)
    if not isinstance(values, tuple) or not all(isinstance(value, kinds) for value in values):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"{what} is {values!r}, expected a list of {names}")
    return values


def _is_free(namespace: str) -> bool:
    return namespace not in _operators.ops.__dict__
