# SPDX-License-Identifier: Apache-2.0
"""Reads the operators of the installed torch and writes what follows: a table, metadata, stubs, a C++ header."""
