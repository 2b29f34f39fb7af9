# SPDX-License-Identifier: Apache-2.0
"""The files of a folder of operators that a build can depend on, and the key that they make."""

from __future__ import annotations

import os
from collections.abc import Iterable

from anyop._paths import check_utf8
from anyop.cache.dependencies import hash_file, sha256

SCHEMA = ".toml"
SUFFIXES = {"cpu": ".cc", "cuda": ".cu", "hip": ".hip", "mlu": ".mlu"}  # of a backend's own sources
DEVICE_SUFFIXES = {backend: suffix for backend, suffix in SUFFIXES.items() if backend != "cpu"}
SOURCES = (".cc", ".cpp", ".cxx", ".c", ".cu", ".hip", ".mlu")
HEADERS = (".h", ".hh", ".hpp", ".hxx", ".cuh", ".inc", ".inl", ".ipp", ".def")
BINARIES = (".o", ".a", ".so", ".cubin", ".fatbin", ".ptx", ".hsaco", ".cl")
TRITON = "_triton.py"  # found by their names; other Python files are dependencies where a schema names them
_KINDS = (SCHEMA, *SOURCES, *HEADERS, *BINARIES)
_MOST_FILES = 10_000
# What makes compilers read other files or flags than those of the command.
_ENVIRONMENT = (
    "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX",
    "LD_RUN_PATH", "CCC_OVERRIDE_OPTIONS", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "HIP_CLANG_PATH",
    "HIPCC_COMPILE_FLAGS_APPEND", "HIPCC_LINK_FLAGS_APPEND",
)  # fmt: skip


def check_folder(path: str | os.PathLike) -> str:
    """The absolute path of a folder. Raises FileNotFoundError, NotADirectoryError, ValueError."""
    folder = os.path.abspath(os.fsdecode(path))
    check_utf8(folder, "the path is")
    if any(char in folder for char in "\n\r\0"):
        raise ValueError(f"the path {folder!r} has a line break, which no build can do with")
    if not os.path.exists(folder):
        raise FileNotFoundError(f"no folder of operators at {folder}")
    if not os.path.isdir(folder):
        raise NotADirectoryError(f"{folder} is a file, expected a folder of operators")
    return folder


def find_files(folder: str) -> list[str]:
    """Paths below the folder, sorted; hidden ones, tests and what no build reads are left out."""
    found = []
    for root, folders, names in os.walk(folder):
        folders[:] = [
            name for name in folders if not name.startswith(".") and name != "__pycache__"
        ]
        for name in names:
            stem, suffix = os.path.splitext(name)
            test = stem.endswith("_test") and suffix != SCHEMA
            kind = suffix in _KINDS or name.endswith(TRITON)
            if kind and not test and name[0] != "." and name != "pyproject.toml":
                if suffix == SCHEMA:  # whose name is written into C
                    check_utf8(name, f"{folder} holds")
                found.append(os.path.join(root, name))
        if len(found) > _MOST_FILES:
            raise ValueError(
                f"{folder} holds more than {_MOST_FILES} sources; give the folder of the operators"
            )
    return sorted(found)


def library_name(folder: str, name: str | None) -> str:
    """The name that is given, which must be a C identifier, or the folder's made one. Raises ValueError."""
    if name is not None:
        if not (
            isinstance(name, str) and name.isascii() and name.isidentifier() and len(name) <= 64
        ):
            raise ValueError(
                f"the name of the library is {name!r}, expected letters, digits and _, at most 64"
            )
        return name
    plain = os.path.basename(folder)
    if not plain.isascii():
        import unicodedata

        plain = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
    plain = "_".join("".join(char if char.isalnum() else " " for char in plain).split())[:64]
    return f"_{plain}" if not plain or plain[0].isdigit() else plain


def make_key(facts: Iterable[str], folder: str, files: Iterable[str]) -> str:
    """SHA-256 of the facts, of the files' places and contents, and of the environment that compilers listen to."""
    places = []
    for path in files:
        places += [os.path.relpath(path, folder), hash_file(path)]
    return hash_texts([*facts, *places])


def hash_texts(texts: Iterable[str]) -> str:
    """SHA-256 of the texts and of the environment that compilers listen to."""
    key = sha256()
    for text in (*texts, *(f"{name}={os.environ.get(name, '')}" for name in _ENVIRONMENT)):
        data = text.encode("utf-8", "surrogateescape")
        key.update(len(data).to_bytes(8, "little") + data)
    return key.hexdigest()


def cpu_identity(flags: Iterable[str]) -> str:
    """What -march=native stands for on this machine; empty where no flag asks for it."""
    if not any("=native" in flag for flag in flags):
        return ""
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as stream:
        processor = stream.read(65536).split("\n\n")[0]
    wanted = ("flags", "Features", "model name", "CPU part", "cpu family", "model")
    return "\n".join(
        line for line in processor.splitlines() if line.split("\t")[0].strip() in wanted
    )
