# SPDX-License-Identifier: Apache-2.0
"""What Python shows of an operator: docstrings, stubs, metadata; and the reference page."""
