# SPDX-License-Identifier: Apache-2.0
"""Calls of an operator, made from its schema: sizes, dtypes, values, layouts; and the frameworks that make them."""
