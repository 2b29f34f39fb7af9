# SPDX-License-Identifier: Apache-2.0
"""Attention of a batch to its pages in torch, one sequence after the other, in float32."""

import math

import torch


def batch_decode(
    q, k_cache, v_cache, indptr, pages, last_page, plan_data, plan, workspace_bytes, scale
):
    ends, last = indptr.tolist(), last_page.tolist()
    results = []
    for b, query in enumerate(q):
        chosen = pages[ends[b] : ends[b + 1]].long()
        tokens = (len(chosen) - 1) * k_cache.shape[1] + last[b]
        k, v = (cache[chosen].flatten(0, 1)[:tokens] for cache in (k_cache, v_cache))
        results.append(_decode(query, k, v, scale))
    return tuple(map(torch.stack, zip(*results)))


def _decode(q, k, v, scale):
    times = q.shape[0] // k.shape[1]
    k, v = (x.float().repeat_interleave(times, 1) for x in (k, v))
    scores = torch.einsum("hd,thd->ht", q.float() * scale, k)
    out = torch.einsum("ht,thd->hd", scores.softmax(-1), v)
    return out.to(q.dtype), scores.logsumexp(-1) / math.log(2)
