# SPDX-License-Identifier: Apache-2.0
"""What each operator's kernels take in the library: code for the CPU, and for GPUs as it lies there, compressed.

python tools/sizes.py build/package
"""

import argparse
import sys
from collections import defaultdict
from pathlib import Path

from elftools.elf.constants import SH_FLAGS
from elftools.elf.elffile import ELFFile

GPU = (".nv_fatbin", "__nv_relfatbin")


def sections(path: Path) -> dict[str, int]:
    """Bytes of each section that is loaded, of an object file."""
    found: dict[str, int] = defaultdict(int)
    with path.open("rb") as stream:
        for section in ELFFile(stream).iter_sections():
            if section["sh_flags"] & SH_FLAGS.SHF_ALLOC:
                found[section.name] += section["sh_size"]
    return found


def by_operator(build: Path) -> dict[str, tuple[int, int]]:
    """Name of a kernel's file -> (bytes for the CPU, for GPUs)."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    paths = sorted(build.glob("CMakeFiles/anyop_kernels*.dir/ops/*/*.o"), key=_age)
    for path in {path.name: path for path in paths}.values():  # the newest of a name
        name = path.name.split(".")[0]
        for section, size in sections(path).items():
            sums[name][section.startswith(GPU)] += size
    return {name: (cpu, gpu) for name, (cpu, gpu) in sums.items()}


def _age(path: Path) -> float:
    return path.stat().st_mtime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=Path, help="the folder of CMake's build")
    found = by_operator(parser.parse_args().build)
    if not found:
        print("no kernels were built there", file=sys.stderr)
        return 1
    rows = sorted(found.items(), key=lambda row: -sum(row[1]))
    rows.append(("all", tuple(map(sum, zip(*found.values())))))
    for name, (cpu, gpu) in rows:
        print(f"{name:28}{cpu / 1e3:10,.0f} KB CPU{gpu / 1e3:10,.0f} KB GPU")
    return 0


if __name__ == "__main__":
    sys.exit(main())
