# SPDX-License-Identifier: Apache-2.0
"""The language of schemas: source text, names, parameters, dtypes, shapes, expressions."""
