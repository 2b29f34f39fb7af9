# SPDX-License-Identifier: Apache-2.0
"""What goes wrong when something is built."""


class BuildError(RuntimeError):
    """A compiler or the linker refused. The text begins with its first error; output is all that it said."""

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


class MissingToolError(BuildError):
    """A program is not installed: which, where it was looked for, the variable that sets it, the command that
    installs it.
    """
