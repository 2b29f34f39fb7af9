# SPDX-License-Identifier: Apache-2.0
"""Images of Triton kernels that are compiled with a library, and lie beside it: a step of its build, in a process of
its own.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

from anyop.builder.errors import BuildError
from anyop.builder.ninja import Step
from anyop.codegen.operators.operator_file import Operator

_RUN = "import sys; sys.path.insert(0, sys.argv.pop(1)); from anyop.builder import ahead; ahead.main(*sys.argv[1:])"


def ahead_steps(
    operators: list[Operator], archs: tuple[str, ...], needed: bool
) -> tuple[list[Step], dict[str, str]]:
    """A step for each kernel, and the files that they read, by name below `gen`. Without Triton none; BuildError
    where the images are needed.
    """
    from anyop.backend.triton_image import triton_version

    launches = [
        (op, k.launch) for op in operators for k in op.kernels if k.launch and k.launch.ahead
    ]
    if launches and triton_version() is None:
        what = f"the images that {launches[0][0].path.name} lists under ahead need triton, which is not installed"
        if needed:
            raise BuildError(f"{what} (pip install triton)")
        sys.stderr.write(f"anyop: {what}; they are left out\n")
        return [], {}
    steps, files = [], {}
    above = str(Path(__file__).absolute().parents[2])
    numbers = sorted({re.sub(r"\D", "", arch) for arch in archs}, key=int)
    for op, launch in launches:
        name, kinds = (
            f"{launch.base}.json",
            [f"{n};{kind}" for n in numbers for kind in launch.ahead],
        )
        files[name] = json.dumps({"op": op.full_name, "launch": launch.text, "kinds": kinds})
        stamp = f"entry/triton/{launch.base}.txt"
        command = [sys.executable, "-c", _RUN, above, f"gen/{name}", stamp]
        steps.append(Step(f"{len(kinds)} images of {launch.kernel}", command, stamp))
    return steps, files


def main(told: str, stamp: str) -> None:
    """Compiles all kinds that the file `told` lists into the folder of `stamp`, which lists them in the end."""
    from anyop.backend.triton_compile import CannotCompile, compile_image
    from anyop.backend.triton_image import image_name, write_image

    with open(told, encoding="utf-8") as stream:
        work = json.load(stream)
    made = []
    for kind in work["kinds"]:
        try:
            data = compile_image(work["op"], work["launch"], kind)
        except (CannotCompile, ImportError) as error:
            sys.exit(
                f"error: {work['launch']['kernel']} of {work['launch']['file']}, {kind}: {error}"
            )
        made.append(f"{image_name(work['launch'], kind)}.img")
        write_image(os.path.join(os.path.dirname(stamp), made[-1]), data)
    with open(stamp, "w", encoding="utf-8") as stream:
        stream.write("".join(f"{name}\n" for name in made))
