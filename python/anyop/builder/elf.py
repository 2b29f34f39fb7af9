# SPDX-License-Identifier: Apache-2.0
"""What a builder asks of an ELF file, by pyelftools: its machine, what it exports, needs and leaves undefined."""

from __future__ import annotations

import contextlib
import io
import zlib
from collections import namedtuple
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from anyop.cache.dependencies import open_regular

MACHINES = {
    3: "i386",
    21: "ppc64le",
    22: "s390x",
    40: "arm",
    62: "x86_64",
    183: "aarch64",
    243: "riscv64",
}
_MAGIC = b"\x7fELF\x02\x01"  # for 64 bits, little-endian
_HIDDEN = ("STV_INTERNAL", "STV_HIDDEN")


class NotElf(ValueError):
    """The file is no 64-bit little-endian ELF file, or it is damaged."""


# A name of a symbol table; the version is an undefined one's, such as "GLIBC_2.34", else empty.
Symbol = namedtuple("Symbol", "name defined local weak hidden version")


class Elf:
    """An ELF file that is read into memory. Raises OSError, NotElf."""

    def __init__(self, path: str) -> None:
        from elftools.elf.elffile import ELFFile

        self.path = path
        with open(path, "rb", opener=open_regular) as stream:
            data = stream.read()
        if data[:6] != _MAGIC or len(data) < 64:
            raise NotElf(f"{path} is no 64-bit ELF file")
        self.machine = _machine(data)
        with self._damage():
            self._file = ELFFile(io.BytesIO(data))
            self.kind = str(self._file["e_type"])  # ET_DYN, ET_REL

    def symbols(self, table: str = "dynamic") -> list[Symbol]:
        """The symbols of the "dynamic" table, or of the "static" one that an object file has."""
        kind = {"dynamic": "SHT_DYNSYM", "static": "SHT_SYMTAB"}[table]
        with self._damage():
            versions = self._versions() if table == "dynamic" else {}
            return [
                Symbol(
                    symbol.name,
                    symbol["st_shndx"] != "SHN_UNDEF",
                    symbol["st_info"]["bind"] == "STB_LOCAL",
                    symbol["st_info"]["bind"] == "STB_WEAK",
                    symbol["st_other"]["visibility"] in _HIDDEN,
                    versions.get(number, ""),
                )
                for section in self._sections(kind)
                for number, symbol in enumerate(section.iter_symbols())
            ]

    @cached_property
    def exported(self) -> set[str]:
        """Names that other libraries can use."""
        return {s.name for s in self.symbols() if s.defined and not s.local and not s.hidden}

    @property
    def undefined(self) -> set[str]:
        """Names that must come from other libraries; weak ones need not."""
        return {s.name for s in self.symbols() if not s.defined and not s.weak and s.name}

    @property
    def needed(self) -> list[str]:
        """Libraries that the loader brings (DT_NEEDED)."""
        with self._damage():
            tags = (tag for section in self._sections("SHT_DYNAMIC") for tag in section.iter_tags())
            return [tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"]

    @property
    def sections(self) -> set[str]:
        """Their names."""
        with self._damage():
            return {section.name for section in self._file.iter_sections()}

    def contents(self, section: str) -> list[bytes]:
        """Of all sections of that name."""
        with self._damage():
            return [found.data() for found in self._file.iter_sections() if found.name == section]

    def _sections(self, kind: str) -> list[Any]:
        return list(self._file.iter_sections(type=kind))

    def _versions(self) -> dict[int, str]:
        """Number of an undefined symbol -> the version that is needed."""
        names = {
            need["vna_other"]: need.name
            for section in self._sections("SHT_GNU_verneed")
            for _, needs in section.iter_versions()
            for need in needs
        }
        return {
            number: names.get(symbol["ndx"], "")
            for section in self._sections("SHT_GNU_versym")
            for number, symbol in enumerate(section.iter_symbols())
        }

    @contextlib.contextmanager
    def _damage(self) -> Iterator[None]:
        """What a damaged file makes of its reader."""
        from elftools.common.exceptions import ELFError

        try:
            yield
        except (
            ELFError,
            AttributeError,
            TypeError,
            ValueError,
            LookupError,
            ArithmeticError,
        ) as error:
            raise NotElf(f"{self.path} is damaged: {error}") from None


def seal(path: str) -> None:
    """Write a checksum behind a library: anyop's loader compares it (anyop/library_file.h), others pass it over, and
    strip drops it.
    """
    with open(path, "r+b") as stream:
        stream.write(b"ANYOPCRC%08x" % zlib.crc32(stream.read()))


def machine_of(path: str) -> str | None:
    """The machine of an ELF file, None for any other file. Reads its first bytes only. Raises OSError."""
    with open(path, "rb") as stream:
        head = stream.read(20)
    return _machine(head) if head[:6] == _MAGIC and len(head) == 20 else None


def _machine(head: bytes) -> str:
    number = int.from_bytes(head[18:20], "little")
    return MACHINES.get(number, f"machine {number}")
