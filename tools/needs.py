# SPDX-License-Identifier: Apache-2.0
"""Checks what make needs from the system, before anything else; prints how to get it."""

import sys

LINE = "sudo apt-get install g++ make python3-venv python3-dev"


def missing() -> list[str]:
    """What is missing, as a user would call it."""
    if sys.version_info < (3, 10):  # noqa: UP036  it is what this checks
        return [f"Python 3.10 or newer (python3 is {sys.version.split()[0]})"]
    import importlib.util
    import os
    import shutil
    import sysconfig

    found = []
    if any(importlib.util.find_spec(name) is None for name in ("venv", "ensurepip")):
        found.append("Python's venv")
    if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
        found.append("Python's headers (Python.h)")
    if not shutil.which(os.environ.get("CXX", "g++")):
        found.append("a C++ compiler (g++)")
    if not shutil.which("make"):
        found.append("make")
    return found


if __name__ == "__main__":
    lacking = missing()
    if lacking:
        print("anyop needs " + ", ".join(lacking) + ". On Debian and Ubuntu:\n\n    " + LINE + "\n")
        sys.exit(1)
