# SPDX-License-Identifier: Apache-2.0
"""Build the library of PyTorch's device "anyop" for the installed torch, once; later imports find it in the cache.

Prints its path. `import anyop.torch.device` does the same at its first time.
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of `anyop build-device`."""
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="compilers at a time (default: as many as processors and memory allow)",
    )


def run(options: argparse.Namespace) -> int:
    """Build it where it is not there, and print the path."""
    from anyop.native import device

    if options.jobs is not None and options.jobs < 1:
        raise ValueError(f"--jobs {options.jobs}, expected 1 or more")
    print(device.find(options.jobs))
    return 0
