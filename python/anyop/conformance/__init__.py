# SPDX-License-Identifier: Apache-2.0
"""A vendor's checks of a device: what include/anyop/device.h says, and the standard tests in its memory."""
