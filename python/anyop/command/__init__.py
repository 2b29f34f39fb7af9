# SPDX-License-Identifier: Apache-2.0
"""The command `anyop`: one module of this folder for each command, found by listing the folder.

A command has a docstring, whose first line is its help, and two functions: add_arguments(parser) and run(options),
which returns the exit code. What a user can cause is raised as ValueError, LookupError, ImportError, OSError or
RuntimeError and becomes one message and exit code 1; wrong usage is code 2.
"""

from anyop.command._main import commands, main

__all__ = ["commands", "main"]
