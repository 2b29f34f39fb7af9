# SPDX-License-Identifier: Apache-2.0
"""python -m codegen.aten FILE: the stubs of anyop.aten for the torch that is installed."""

import sys

import torch

from .facts import facts
from .python_stubs import python_stubs
from .registry import read_registry

with open(sys.argv[1], "w", encoding="utf-8") as file:
    file.write(python_stubs(facts(read_registry(torch))))
