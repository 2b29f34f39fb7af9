# SPDX-License-Identifier: Apache-2.0
"""The one way of text into each language."""
