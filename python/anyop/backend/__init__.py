# SPDX-License-Identifier: Apache-2.0
"""Backends whose kernels are not compiled: what makes their texts callable, each imported when it is first needed."""
