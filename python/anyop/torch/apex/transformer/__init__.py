# SPDX-License-Identifier: Apache-2.0
"""apex.transformer, as far as it is there: the kinds of masks, and functional."""

from anyop.torch.apex.transformer import functional
from anyop.torch.apex.transformer.enums import AttnMaskType, AttnType, LayerType

__all__ = ["AttnMaskType", "AttnType", "LayerType", "functional"]
