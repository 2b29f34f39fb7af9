# SPDX-License-Identifier: Apache-2.0
"""Reads of an ELF file what a builder asks: its machine, what it exports, needs and leaves undefined."""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections import namedtuple
from collections.abc import Iterator
from functools import cached_property

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
RELOCATABLE, SHARED = 1, 3
_UNDEFINED, _LOCAL, _WEAK, _HIDDEN = 0, 0, 2, (1, 2)
_SYMBOL_TABLES = {11: "dynamic", 2: "static"}  # SHT_DYNSYM, SHT_SYMTAB
_NEEDED, _SONAME = 1, 14


class NotElf(ValueError):
    """The file is no 64-bit little-endian ELF file, or it is damaged."""


# One section header; all but the name are numbers.
Section = namedtuple("Section", ("name", "kind", "offset", "size", "link", "info", "entry"))
# A name of a symbol table; the version is an undefined one's, such as "GLIBC_2.34", else empty.
Symbol = namedtuple("Symbol", "name defined local weak hidden version")


class Elf:
    """An ELF file that is read into memory. Raises OSError, NotElf."""

    def __init__(self, path: str) -> None:
        self.path = path
        with open(path, "rb", opener=open_regular) as stream:
            self.data = stream.read()
        if self.data[:6] != b"\x7fELF\x02\x01" or len(self.data) < 64:
            raise NotElf(f"{path} is no 64-bit ELF file")
        self.kind, number = struct.unpack_from("<HH", self.data, 16)
        self.machine = MACHINES.get(number, f"machine {number}")

    @cached_property
    def sections(self) -> list[Section]:
        """All section headers."""
        (start,) = struct.unpack_from("<Q", self.data, 40)
        size, count, names = struct.unpack_from("<HHH", self.data, 58)
        try:
            rows = [
                struct.unpack_from("<IIQQQQIIQQ", self.data, start + size * i) for i in range(count)
            ]
            texts = rows[names][4]
            return [
                Section._make((self._text(texts + row[0]), row[1], *row[4:8], row[9]))
                for row in rows
            ]
        except (struct.error, IndexError, ValueError) as error:
            raise NotElf(f"{self.path} is damaged: {error}") from None

    def symbols(self, table: str = "dynamic") -> list[Symbol]:
        """The symbols of the "dynamic" table, or of the "static" one that an object file has."""
        found: list[Symbol] = []
        for section in self.sections:
            if _SYMBOL_TABLES.get(section.kind) == table:
                with self._damage():
                    found += self._symbols(section)
        return found

    @property
    def exported(self) -> set[str]:
        """Names that other libraries can use."""
        return {
            symbol.name
            for symbol in self.symbols()
            if symbol.defined and not symbol.local and not symbol.hidden
        }

    @property
    def undefined(self) -> set[str]:
        """Names that must come from other libraries; weak ones need not."""
        return {s.name for s in self.symbols() if not s.defined and not s.weak and s.name}

    @property
    def needed(self) -> list[str]:
        """Libraries that the loader brings (DT_NEEDED)."""
        for section in self.sections:
            if section.name == ".dynamic":
                with self._damage():
                    strings = self.sections[section.link].offset
                    entries = struct.iter_unpack("<qQ", self._bytes(section))
                    return [self._text(strings + value) for tag, value in entries if tag == _NEEDED]
        return []

    @contextlib.contextmanager
    def _damage(self) -> Iterator[None]:
        """What a damaged file makes of its reader."""
        try:
            yield
        except NotElf:
            raise
        except (struct.error, LookupError, ValueError, OverflowError) as error:
            raise NotElf(f"{self.path} is damaged: {error}") from None

    def _symbols(self, table: Section) -> list[Symbol]:
        strings = self.sections[table.link].offset
        numbers = self._version_numbers() if table.kind == 11 else []
        names = self._version_names() if numbers else {}
        found = []
        for i, row in enumerate(struct.iter_unpack("<IBBHQQ", self._bytes(table))):
            name, info, other, section = row[:4]
            version = names.get(numbers[i] & 0x7FFF, "") if i < len(numbers) else ""
            binding, hidden = info >> 4, (other & 3) in _HIDDEN
            text = self._text(strings + name)
            found.append(
                Symbol(
                    text,
                    section != _UNDEFINED,
                    binding == _LOCAL,
                    binding == _WEAK,
                    hidden,
                    version,
                )
            )
        return found

    def _version_numbers(self) -> list[int]:
        """One for each dynamic symbol (.gnu.version)."""
        for section in self.sections:
            if section.name == ".gnu.version":
                return [number for (number,) in struct.iter_unpack("<H", self._bytes(section))]
        return []

    def _version_names(self) -> dict[int, str]:
        """Number -> version that is needed (.gnu.version_r)."""
        names: dict[int, str] = {}
        for section in self.sections:
            if section.name != ".gnu.version_r":
                continue
            strings, at = self.sections[section.link].offset, section.offset
            for _ in range(section.info):
                _, count, _, aux, following = struct.unpack_from("<HHIII", self.data, at)
                entry = at + aux
                for _ in range(count):
                    _, _, number, name, step = struct.unpack_from("<IHHII", self.data, entry)
                    names[number] = self._text(strings + name)
                    entry += step
                if not following:
                    break
                at += following
        return names

    def _bytes(self, section: Section) -> bytes:
        found = self.data[section.offset : section.offset + section.size]
        if len(found) != section.size:
            raise NotElf(f"{self.path} is cut off")
        return found

    def _text(self, at: int) -> str:
        end = self.data.find(b"\0", at)
        if end < 0:
            raise NotElf(f"{self.path} is damaged: a name does not end")
        return self.data[at:end].decode("utf-8", "replace")


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
    if head[:6] != b"\x7fELF\x02\x01" or len(head) < 20:
        return None
    number = int.from_bytes(head[18:20], "little")
    return MACHINES.get(number, f"machine {number}")
