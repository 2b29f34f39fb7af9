# SPDX-License-Identifier: Apache-2.0
"""apex.transformer.enums."""

import enum


class LayerType(enum.Enum):
    """Where a layer stands."""

    encoder = 1
    decoder = 2


class AttnType(enum.Enum):
    """What attention looks at."""

    self_attn = 1
    cross_attn = 2


class AttnMaskType(enum.Enum):
    """What is left out: by a mask, or what comes later."""

    padding = 1
    causal = 2


class ModelType(enum.Enum):
    """Which stacks of layers a model has."""

    encoder_or_decoder = 1
    encoder_and_decoder = 2
