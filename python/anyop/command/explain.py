# SPDX-License-Identifier: Apache-2.0
"""Say which implementation would run a call, and why the others would not.

A call is an operator and its sizes, as in [bench] sections: "rms_norm: rows=2048 D=4096 dtype=bfloat16". Without
sizes, those of the operator's [bench] section. Nothing runs and nothing is built. The environment's
variables hold, ANYOP_ROUTES and ANYOP_OP_* among them.
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `anyop explain` takes."""
    parser.add_argument("calls", nargs="+", metavar="CALL", help="OPERATOR, or OPERATOR: SIZES")
    parser.add_argument(
        "--device",
        default="cpu",
        choices=("cpu", "cuda", "hip"),
        help="default: cpu; none need be here",
    )
    parser.add_argument("--routes", metavar="FILE", help="a route file, or a preset")
    parser.add_argument("--use", metavar="BACKENDS", help="as in a block of anyop.use")
    parser.add_argument("--library", metavar="LIB", action="append", default=[], help="load it")


def run(options: argparse.Namespace) -> int:
    """Prints a route for each call; 1 when nothing takes one of them."""
    import contextlib

    import anyop
    from anyop.builder.gpus import gpu_archs
    from anyop.command._probe import arguments

    if options.device == "cuda" and not gpu_archs():
        print("no CUDA device is here; on a machine with one:")
    for library in options.library:
        anyop.load(library)
    if options.routes:
        anyop.load_routes(options.routes)
    scope = anyop.use(options.use) if options.use else contextlib.nullcontext()
    code = 0
    for call in options.calls:
        for kind in _kinds(call, options.device):
            with scope:
                route = anyop.explain(kind.operator, **arguments(kind))
            print(f"{kind}\n{route}")
            code |= route.backend is None
    return code


def _kinds(call: str, device: str) -> list:
    """The calls that a word of the command line means."""
    import anyop
    from anyop.tune import bench_kinds, given_shapes

    if ":" in call.replace("::", ""):
        return [given_shapes(call, device)]
    anyop.schema(call)  # says when there is none of that name
    kinds = list(bench_kinds(call, device))
    if not kinds:
        raise ValueError(f"{call} has no section [bench]: give sizes, such as '{call}: D=64'")
    return kinds
