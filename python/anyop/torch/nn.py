# SPDX-License-Identifier: Apache-2.0
"""The layers that run anyop operators, by torch.nn's names.

They stand in anyop.torch.layers, for anyop.torch may not import what users import by itself.
"""

from anyop.torch.layers import *  # noqa: F403
from anyop.torch.layers import __all__ as __all__
