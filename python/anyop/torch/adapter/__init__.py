# SPDX-License-Identifier: Apache-2.0
"""Operators in torch's dispatcher: what torch asks about each, answered from its metadata."""
