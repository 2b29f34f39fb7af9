# SPDX-License-Identifier: Apache-2.0
"""Write the folder of a working operator, or of a device's plugin, to be changed into your own.

The operator multiplies squares by a number; `anyop test` passes on it as it is. The device has streams, memory and a
kernel of its own, all simulated; `anyop device-check` passes on it. With --schema the operator has the given
signature, and a kernel and a reference to be filled in. No file is ever overwritten.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
from pathlib import Path

_TEMPLATES = Path(__file__).with_name("templates")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `anyop new` takes."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("op", metavar="OP", nargs="?", help="name of the operator, such as rms_norm")
    what.add_argument(
        "--device", metavar="CHIP", help="a plugin for the device of this name instead"
    )
    what.add_argument(
        "--schema",
        metavar="TEXT",
        help="an operator of this signature instead, such as 'acme::scale(Tensor x, float factor) -> Tensor'",
    )
    parser.add_argument(
        "--namespace",
        metavar="NS",
        default="my",
        help="it becomes anyop.ops.NS.OP and torch.ops.NS.OP (default: my)",
    )
    parser.add_argument("--family", metavar="F", help="name of its folder (default: OP)")
    parser.add_argument("--dir", metavar="D", default=".", help="where that folder is (default: .)")
    parser.add_argument("--cuda", action="store_true", help="with a kernel in CUDA")
    parser.add_argument(
        "--backward", action="store_true", help="with its gradient, an operator too"
    )


def run(options: argparse.Namespace) -> int:
    """Writes the files and says what comes next."""
    if options.device is not None:
        return _new_device(options)
    if options.schema is not None:
        return _new_schema(options)
    _check_names(options)
    folder = Path(options.dir) / (options.family or options.op)
    _write(folder, _files(options))
    print(f"next: anyop test {shlex.quote(str(folder))}")
    return 0


def _new_schema(options: argparse.Namespace) -> int:
    from anyop.codegen.schema.source import Mistake
    from anyop.command._draft import draft

    if options.cuda:
        raise ValueError(
            "--cuda with --schema: the kernel is for the CPU; see docs/devices.md for CUDA's"
        )
    schema = options.schema.strip()
    if "::" not in schema.split("(")[0]:
        schema = f"{options.namespace}::{schema}"
    try:
        options.namespace, options.op, files = draft(schema, options.backward)
    except Mistake as mistake:
        raise ValueError(str(mistake)) from None
    _check_names(options)
    folder = Path(options.dir) / (options.family or options.op)
    _write(folder, files)
    place = shlex.quote(str(folder))
    print(f"next: write shapes and dtypes, the kernel and the reference, then: anyop test {place}")
    return 0


def _new_device(options: argparse.Namespace) -> int:
    chip = options.device
    _check_device_name(chip)
    folder = Path(options.dir) / chip
    texts = {f"{chip}.cc": "device.cc.in", "CMakeLists.txt": "device_CMakeLists.txt.in"}
    for name, template in texts.items():
        text = (_TEMPLATES / template).read_text(encoding="utf-8")
        texts[name] = text.replace("@CHIP@", chip)
    _write(folder, texts)
    place = shlex.quote(str(folder))
    where = "$(python -c 'import anyop; print(anyop.cmake_dir())')"
    print(f"next: cmake -S {place} -B {place}/build -Danyop_DIR={where}")
    print(f"      cmake --build {place}/build && anyop device-check {place}/build/lib{chip}.so")
    return 0


def _check_device_name(chip: str) -> None:
    taken = {"anyop", "aten", "boxed", "cpu", "cpu_fallback", "cuda", "flaggems", "hip", "host", "native",
             "none", "triton"}  # fmt: skip
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,30}", chip, re.ASCII):
        raise ValueError(f"device '{chip}', expected small letters, digits and '_', a letter first")
    if chip in taken:
        raise ValueError(f"device '{chip}': the name means something else already")


def _write(folder: Path, files: dict[str, str]) -> None:
    """All of them, by their names, or none."""
    texts = {folder / name: text for name, text in files.items()}
    taken = [str(path) for path in texts if os.path.lexists(path)]
    if taken:
        raise FileExistsError(f"{taken[0]} is there already; nothing was written")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
        print(f"wrote {path}")


def _check_names(options: argparse.Namespace) -> None:
    from anyop.codegen.schema.names import check_namespace, check_operator_name
    from anyop.codegen.schema.source import Mistake

    try:
        check_namespace(options.namespace)
        check_operator_name(options.namespace, options.op)
        check_operator_name(options.namespace, f"{options.op}_backward")
    except Mistake as mistake:
        raise ValueError(str(mistake)) from None
    if options.op == "anyop" or options.op.startswith("anyop_"):
        raise ValueError(f"operator '{options.op}': its C struct would have a name of anyop's own")
    if len(options.op) + len(options.namespace) > 100:
        raise ValueError("the names have more than 100 letters together")
    family = options.family
    if family is not None and not re.fullmatch(r"[A-Za-z0-9][\w-]*", family, re.ASCII):
        raise ValueError(f"family '{family}', expected letters, digits, '_' and '-'")


def _files(options: argparse.Namespace) -> dict[str, str]:
    """Texts by the names of their files."""
    ends = ["toml", "cc", *(["cu"] if options.cuda else []), "test.py"]
    kinds = {"operator": options.op}
    if options.backward:
        kinds["backward"] = f"{options.op}_backward"
    return {
        f"{stem}{'_' if end == 'test.py' else '.'}{end}": _text(kind, end, stem, options)
        for kind, stem in kinds.items()
        for end in ends
    }


def _text(kind: str, end: str, stem: str, options: argparse.Namespace) -> str:
    """A template's text: @WORDS@ replaced; lines behind %<option> stay where that option is given."""
    from anyop.codegen.schema.fields import camel

    name = f"{kind}{'_' if end == 'test.py' else '.'}{end}.in"
    lines = []
    for line in (_TEMPLATES / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("%"):
            option, _, line = line[1:].partition(" ")
            if not getattr(options, option):
                continue
        lines.append(line)
    full = options.op if options.namespace == "anyop" else f"{options.namespace}.{options.op}"
    words = {"OP": options.op, "NS": options.namespace, "ARGS": f"{camel(stem)}Args", "FULL": full}
    return re.sub(r"@(\w+)@", lambda word: words[word[1]], "\n".join(lines)) + "\n"
