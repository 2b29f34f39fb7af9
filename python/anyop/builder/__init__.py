# SPDX-License-Identifier: Apache-2.0
"""Turns folders of operators into libraries: anyop.build, anyop.jit and the command `anyop build`."""
