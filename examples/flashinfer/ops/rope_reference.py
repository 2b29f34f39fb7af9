# SPDX-License-Identifier: Apache-2.0
"""Rotary embedding in torch, in float32."""

import torch


def rope(q, k, positions, rotary_dim, interleave, scale, theta):
    exponents = torch.arange(0, rotary_dim, 2, device=q.device).float() / rotary_dim
    angles = positions.float()[:, None, None] / scale * theta**-exponents
    return _rotate(q, angles, interleave), _rotate(k, angles, interleave)


def _rotate(x, angles, interleave):
    half = angles.shape[-1]
    out = x.clone()
    first = slice(0, 2 * half, 2) if interleave else slice(0, half)
    second = slice(1, 2 * half, 2) if interleave else slice(half, 2 * half)
    a, b = x[..., first].float(), x[..., second].float()
    out[..., first] = (a * angles.cos() - b * angles.sin()).to(x.dtype)
    out[..., second] = (b * angles.cos() + a * angles.sin()).to(x.dtype)
    return out
