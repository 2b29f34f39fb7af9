# SPDX-License-Identifier: Apache-2.0
"""Attention of one token in torch, in float32. lse is in base 2, as FlashInfer's."""

import math

import torch


def decode(q, k, v, scale):
    times = q.shape[0] // k.shape[1]
    k, v = (x.float().repeat_interleave(times, 1) for x in (k, v))
    scores = torch.einsum("hd,thd->ht", q.float() * scale, k)
    out = torch.einsum("ht,thd->hd", scores.softmax(-1), v)
    return out.to(q.dtype), scores.logsumexp(-1) / math.log(2)
