# SPDX-License-Identifier: Apache-2.0
"""The library of a folder of operators, built with the compilers that this machine has."""

from __future__ import annotations

import os
from collections.abc import Iterator

from anyop.builder.folder import DEVICE_SUFFIXES


def build_for_here(folder: str, verbose: bool = False) -> str:
    """Builds the folder and returns the library. Kernels whose compiler is missing are left out, and a note says so."""
    import anyop
    from anyop.builder.folder import check_folder, find_files

    files = find_files(check_folder(folder))
    missing = list(_missing_compilers(files))
    for backend, names in missing:
        print(
            f"note: {backend} kernels were left out, for there is none of {names} (anyop doctor)",
            flush=True,
        )
    backends = None
    if missing:
        left_out = [backend for backend, _ in missing]
        backends = [name for name in ("cpu", *DEVICE_SUFFIXES) if name not in left_out]
    return anyop.build(folder, backends=backends, verbose=verbose)


def _missing_compilers(files: list[str]) -> Iterator[tuple[str, str]]:
    """(backend, names of its compilers) for each backend that has sources here and no compiler."""
    from anyop.builder.toolchains import choose_toolchain
    from anyop.builder.tools import find_command

    for backend, end in DEVICE_SUFFIXES.items():
        chain = choose_toolchain(backend)
        has_sources = any(os.path.splitext(file)[1] == end for file in files)
        if has_sources and find_command(chain) is None:
            yield backend, ", ".join(chain.names)
