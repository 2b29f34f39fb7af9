# SPDX-License-Identifier: Apache-2.0
"""Reads operator files (<op>.toml) and writes what follows: tables, headers, stubs, pages."""
