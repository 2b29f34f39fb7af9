# SPDX-License-Identifier: Apache-2.0
"""Sampling in torch: the same distribution as FlashInfer's, from other random numbers."""

import torch


def sample_top_k_top_p(probs, k, p, seed, offset):
    generator = torch.Generator(probs.device).manual_seed(seed + offset)
    tokens = torch.multinomial(kept(probs, k, p), 1, generator=generator)[:, 0]
    return tokens.int(), torch.ones_like(tokens, dtype=torch.bool)


def kept(probs, k, p):
    """The probabilities that a token can be drawn with, before they are scaled to 1."""
    values, order = probs.sort(-1, descending=True)
    values[:, k:] = 0
    values[values.cumsum(-1) - values >= p] = 0
    return torch.zeros_like(probs).scatter_(-1, order, values)
