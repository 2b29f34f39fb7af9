# SPDX-License-Identifier: Apache-2.0
"""attention_varlen_with_lse in float64; attention_varlen_test.py has what both share."""

from attention_varlen_test import reference_with_lse as reference

__all__ = ["reference"]
