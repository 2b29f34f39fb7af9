# SPDX-License-Identifier: Apache-2.0
"""Sees to the headers of ICU, which examples/cpp/embed is built with: installs them in CI, else says how.

Where they cannot be had, the example's test is skipped and says why.
"""

import os
import shutil
import subprocess
import sys

PACKAGE = "libicu-dev"
INSTALL = [
    ["apt-get", "update", "-qq"],
    ["apt-get", "install", "-qq", "-y", "--no-install-recommends", PACKAGE],
]


def has_headers() -> bool:
    """Whether the C++ compiler finds them."""
    compiler = os.environ.get("CXX", "g++")
    command = [compiler, "-E", "-x", "c++", "-include", "unicode/normalizer2.h", os.devnull]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


def install() -> bool:
    """Try to install them; False where that is not possible."""
    if not shutil.which("apt-get") or os.geteuid() != 0:
        return False
    return all(subprocess.run(command).returncode == 0 for command in INSTALL)


def main() -> int:
    if not has_headers() and not (os.environ.get("CI") and install() and has_headers()):
        print(
            "The headers of ICU are missing, so examples/cpp/embed is not tested: "
            f"sudo apt-get install {PACKAGE}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
