# SPDX-License-Identifier: Apache-2.0
"""Build a folder of operators into one library that every framework can load, or into a wheel.

Prints the path of the library (or wheel). Without --out it stays in the cache, where the next build of the same
contents finds it.
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of `anyop build`."""
    parser.add_argument(
        "folder", metavar="DIR", help="folder of <op>.toml files with their kernels"
    )
    parser.add_argument(
        "--out", metavar="DIR", help="put the library and include/ there (default: the cache)"
    )
    parser.add_argument("--name", help="of the library (default: the folder's)")
    parser.add_argument(
        "--arch", help="GPU architectures, such as 80,90a (default: those of this machine's GPUs)"
    )
    parser.add_argument(
        "--flag",
        action="append",
        default=[],
        metavar="FLAG",
        help="for every compiler: --flag=-DX=1",
    )
    parser.add_argument(
        "--toolchain", action="append", default=[], metavar="BACKEND=NAME",
        help="of the table of toolchains: cuda=cucc, host=aarch64-linux-gnu-g++",
    )  # fmt: skip
    parser.add_argument("--backends", metavar="LIST", help="build only these: cpu,cuda,hip")
    parser.add_argument(
        "--wheel", action="store_true", help="make a wheel that needs no compiler; into --out, or ."
    )
    parser.add_argument("--version", help="of the wheel (default: pyproject.toml's)")
    parser.add_argument(
        "--verbose", action="store_true", help="show the commands and all that the compilers say"
    )


def run(options: argparse.Namespace) -> int:
    """Build and print the path."""
    toolchains = {}
    for text in options.toolchain:
        backend, equals, name = text.partition("=")
        if not equals:
            raise ValueError(f"--toolchain {text!r}, expected BACKEND=NAME, such as cuda=nvcc")
        toolchains[backend] = name
    chosen = {
        "name": options.name,
        "arch": options.arch,
        "flags": options.flag,
        "toolchains": toolchains,
    }
    chosen["verbose"] = options.verbose
    if options.backends is not None:
        chosen["backends"] = options.backends.split(",")
    if options.wheel:
        from anyop.builder.wheel import build_wheel

        print(build_wheel(options.folder, options.out or ".", version=options.version, **chosen))
        return 0
    if options.version:
        raise ValueError("--version is of a wheel; give --wheel too")
    from anyop.builder.build import build

    print(build(options.folder, out=options.out, **chosen))
    return 0
