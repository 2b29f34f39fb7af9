# SPDX-License-Identifier: Apache-2.0
"""Draft operator files for the functions of a tvm-ffi library, which then serve all frameworks.

The library is copied into the folder and used as it is. What it does not tell stands in the drafts under a comment
CHECK. No file is ever overwritten.
"""

from __future__ import annotations

import argparse
import shlex
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `anyop import-module` takes."""
    parser.add_argument("library", metavar="LIB.so", help="a library that exports __tvm_ffi_<name>")
    parser.add_argument(
        "--out", metavar="DIR", help="folder of the drafts (default: the name of LIB)"
    )
    parser.add_argument(
        "--namespace", metavar="NS", help="of the operators (default: the name of LIB)"
    )


def run(options: argparse.Namespace) -> int:
    """Writes the drafts; 1 when there is none."""
    from anyop.builder.import_module import import_module

    drafts = import_module(options.library, options.out, options.namespace)
    for function, reason in drafts.skipped.items():
        print(f"skipped {function}: {reason}", file=sys.stderr)
    for path in drafts.written:
        print(f"wrote {path}")
    if not drafts.written:
        print(
            f"anyop import-module: no function of {options.library} can be an operator",
            file=sys.stderr,
        )
        return 1
    print(f"next: see to the lines CHECK, then: anyop build {shlex.quote(drafts.folder)}")
    return 0
