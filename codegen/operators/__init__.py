# SPDX-License-Identifier: Apache-2.0
"""An operator file and its sections, read; and what must hold between operators."""
