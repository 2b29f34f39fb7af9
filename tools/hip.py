# SPDX-License-Identifier: Apache-2.0
"""Sees to hipcc, with which tests/hip_compile_test.py builds an operator for AMD: installs it in CI, else says how.

Where it cannot be had, that test is skipped and says why.
"""

import os
import shutil
import subprocess
import sys

PACKAGES = ["hipcc", "libamdhip64-dev"]
INSTALL = [
    ["apt-get", "update", "-qq"],
    ["apt-get", "install", "-qq", "-y", "--no-install-recommends", *PACKAGES],
]


def install() -> bool:
    """Try to install it; False where that is not possible."""
    if not shutil.which("apt-get") or os.geteuid() != 0:
        return False
    return all(subprocess.run(command).returncode == 0 for command in INSTALL)


def main() -> int:
    there = shutil.which(os.environ.get("ANYOP_HIPCC", "hipcc"))
    if not there and not (os.environ.get("CI") and install()):
        print(
            "hipcc is missing, so no operator is built for HIP: "
            f"sudo apt-get install {' '.join(PACKAGES)} (Debian), or set ANYOP_HIPCC"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
