# SPDX-License-Identifier: Apache-2.0
"""Kernels: sources, binaries, and calls of somebody else's functions, read and checked."""
