# SPDX-License-Identifier: Apache-2.0
"""C and C++ as they are written: tables, headers, typed functions, adapters of kernels."""
