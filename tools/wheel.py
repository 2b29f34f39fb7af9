# SPDX-License-Identifier: Apache-2.0
"""anyop's own wheel: builds it, has auditwheel and abi3audit judge it, installs and runs it: `make wheel`.

python3 tools/wheel.py --python .venv/bin/python [--out build/wheel]

The wheel gets the oldest manylinux tag that auditwheel finds it consistent with: symbols of glibc and libstdc++, and no
library from outside. None, one newer than manylinux_2_28, or a function that is not in the limited API of the Python
that the name states ends with status 1.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEWEST_GLIBC = 28
# What the installed wheel must do, away from the source tree.
PROGRAM = """
import sys, tempfile, pathlib
import anyop, numpy as np
assert anyop.__file__.startswith(sys.prefix), anyop.__file__
x = np.random.default_rng(1).standard_normal((5, 33)).astype(np.float32)
expected = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-6)
np.testing.assert_allclose(anyop.rms_norm(x, np.ones(33, np.float32)), expected, rtol=3e-6)
np.testing.assert_allclose(anyop.matmul(x, x.T), x.astype(np.float64) @ x.T, rtol=2e-5, atol=2e-5)
import tvm_ffi
tvm_ffi.get_global_func("anyop.relu")
folder = pathlib.Path(tempfile.mkdtemp(prefix="anyop-wheel-"))
(folder / "twice.toml").write_text('''
schema = "fresh::twice(Tensor x) -> Tensor"
brief = "Twice."
math = "out = 2 x"
source = "elementary"
arguments = { x = "any tensor" }
shapes = { x = "*", out = "*" }
dtypes = { x = ["float32"], out = "x" }
kernels = { cpu = "twice.cc" }
tolerance = { float32 = 1e-6 }
''')
(folder / "twice.cc").write_text('''
#include "fresh/ops/twice.h"
int32_t fresh_twice_cpu(const TwiceArgs* args, AnyopCall*) {
  for (int64_t r = 0; r < args->rows; ++r)
    ((float*)args->out->data)[r] = 2 * ((const float*)args->x->data)[r];
  return kAnyopOk;
}
''')
anyop.load(anyop.build(folder, out=folder / "out"))
assert np.array_equal(anyop.ops.fresh.twice(x), 2 * x)
print(anyop.__version__, "from", anyop.__path__[0])
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--python", default=sys.executable, help="of the environment with the tools"
    )
    parser.add_argument("--out", default="build/wheel", help="folder for the wheel")
    options = parser.parse_args()
    python, out = os.path.abspath(options.python), ROOT / options.out
    try:
        wheel = build(python, out)
        minor = audit(python, wheel)
        wheel = retag(python, wheel, minor)
        check_api(python, wheel)
        try_it(python, wheel, out / "environment")
    except Refused as error:
        print(f"the wheel is not as it must be: {error}", file=sys.stderr)
        return 1
    print(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB")
    return 0


class Refused(Exception):
    """The wheel, or a tool on it, failed; the text says how."""


def build(python: str, out: Path) -> Path:
    shutil.rmtree(out, ignore_errors=True)
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    ask(*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", out, ROOT)
    (wheel,) = out.glob("anyop-*.whl")
    with zipfile.ZipFile(wheel) as files:
        if "for torch" not in files.read("anyop/aten/__init__.pyi").decode().partition("\n")[0]:
            raise Refused("anyop.aten has no type stubs: torch cannot be read")
    return wheel


def audit(python: str, wheel: Path) -> int:
    """The minor number of the oldest glibc, by auditwheel."""
    said = " ".join(ask(python, "-m", "auditwheel", "show", wheel).split())
    print(f"auditwheel: {said}\n")
    tag = re.search(r'platform tag: "(\w+)"', said)
    match = re.fullmatch(r"manylinux_2_(\d+)_\w+", tag[1]) if tag else None
    if not match:
        raise Refused(f"auditwheel finds no manylinux for it: {tag[1] if tag else said}")
    if int(match[1]) > NEWEST_GLIBC:
        raise Refused(f"it is {match[0]}, expected manylinux_2_{NEWEST_GLIBC} or older")
    return int(match[1])


def retag(python: str, wheel: Path, minor: int) -> Path:
    """The same files under the platform's name; nothing needs to be repaired."""
    machine = re.search(r"linux_(\w+)\.whl$", wheel.name)[1]
    tag = f"manylinux_2_{minor}_{machine}"
    name = ask(python, "-m", "wheel", "tags", "--remove", "--platform-tag", tag, wheel).split()[-1]
    return wheel.with_name(name)


def check_api(python: str, wheel: Path) -> None:
    """abi3audit: only functions of the limited API of the Python that the wheel's name states."""
    said = " ".join(ask(python, "-m", "abi3audit", "--strict", "--verbose", wheel).split())
    print(f"abi3audit: {said}\n")
    if "0 ABI version mismatches and 0 ABI violations" not in said:
        raise Refused("abi3audit did not say that there are no violations")


def try_it(python: str, wheel: Path, environment: Path) -> None:
    """Install into a fresh environment, with its requirements and NumPy, and run an operator and a build."""
    ask(python, "-m", "venv", environment)
    fresh = environment / "bin" / "python"
    ask(fresh, "-m", "pip", "--disable-pip-version-check", "install", "-q", wheel, "numpy", "ninja")
    cache = {"ANYOP_CACHE_DIR": str(environment / "cache")}
    path = {"PATH": f"{fresh.parent}:{os.environ['PATH']}"}
    print("installed:", ask(fresh, "-c", PROGRAM, extra={**cache, **path}).strip())


def ask(*command: object, extra: dict[str, str] | None = None) -> str:
    """What a command prints; Refused with all of that when it fails."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)], cwd=ROOT, env={**environment, **(extra or {})}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        raise Refused(
            f"{' '.join(map(str, command[:4]))} ended with {done.returncode}:\n{done.stdout}"
        )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
