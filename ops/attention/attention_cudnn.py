# SPDX-License-Identifier: Apache-2.0
"""cuDNN's attention, as torch calls it, on the caller's memory: results, logarithms and gradients.

What it takes by sizes, dtypes and options stands in the operators' files, `when`; what it finds out only in a call it
leaves to the next of the route. Each result is copied once to its place: the operators of torch make their own.
"""

from __future__ import annotations

import torch
from anyop import DeclinedError

_FORWARD = "_scaled_dot_product_cudnn_attention"
_BACKWARD = "_scaled_dot_product_cudnn_attention_backward"


def attention(q, k, v, mask, scale, causal, offset, *_options, out):
    """As the operator; the options are at their defaults."""
    found, _ = _attend(q, k, v, scale, causal, offset, False)
    out.copy_(found)


def attention_with_lse(q, k, v, mask, scale, causal, offset, *_options, out, lse):
    """As the operator. cuDNN's logarithms are natural, (B, H, S) or with one more dimension of 1."""
    found, logarithms = _attend(q, k, v, scale, causal, offset, True)
    out.copy_(found)
    lse.copy_(logarithms.reshape(lse.shape))


def attention_backward(
    grad_out, q, k, v, out, lse, grad_lse, mask, scale, causal, offset, *_options,
    grad_q, grad_k, grad_v, grad_sinks,
):  # fmt: skip
    """As the operator, without grad_lse. torch keeps plans by the layouts of q, k and v alone: the others have q's."""
    S, T = q.shape[2], k.shape[2]
    _check(q, k, v, scale)
    state = torch.empty((), dtype=torch.int64, device=q.device)  # of dropout, not read without it
    found = _call(
        _BACKWARD, _laid_out_like(q, grad_out), q, k, v, _laid_out_like(q, out), lse[..., None],
        state, state, None, None, None, S, T, 0.0, _is_bounded(causal, offset, T), scale=scale,
    )  # fmt: skip
    for place, gradient in zip((grad_q, grad_k, grad_v), found):
        if place is not None:
            place.copy_(gradient)
    if grad_sinks is not None:
        grad_sinks.zero_()


def _attend(q, k, v, scale, causal, offset, wants_lse):
    _check(q, k, v, scale)
    bound = _is_bounded(causal, offset, k.shape[2])
    return _call(_FORWARD, q, k, v, None, wants_lse, 0.0, bound, False, scale=scale)[:2]


def _is_bounded(causal, offset, T):
    """Whether the bound hides a key at all. cuDNN's begins at the top left."""
    if not causal or offset >= T - 1:
        return False
    if offset:
        raise DeclinedError(f"takes causal=True with offset=0, and offset is {offset}")
    return True


def _check(q, k, v, scale):
    """It loads 16 bytes at a time, and finds the largest score before it scales."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        strides = [step for size, step in zip(x.shape[:-1], x.stride()) if size > 1]
        if any(step <= 0 or step % 8 for step in strides):
            raise DeclinedError(f"takes strides that are multiples of 8, and {name} has {strides}")
    if scale is not None and not scale > 0:
        raise DeclinedError(f"takes scale>0, and it is {scale}")


def _laid_out_like(q, x):
    """x, of q's sizes but for the last, with its dimensions in memory in the order of q's."""
    order = sorted(range(4), key=lambda d: (-q.stride(d), d))
    return x.permute(order).contiguous().permute([order.index(d) for d in range(4)])


def _call(name, *arguments, **named):
    """One of torch's operators; what torch or cuDNN have no kernel for is declined."""
    try:
        return getattr(torch.ops.aten, name).default(*arguments, **named)
    except AttributeError:
        raise DeclinedError(f"torch {torch.__version__} has no {name}") from None
    except NotImplementedError as error:
        raise DeclinedError(_first_line(error)) from None
    except RuntimeError as error:
        if "cudnn" not in str(error).lower():
            raise
        raise DeclinedError(_first_line(error)) from None


def _first_line(error):
    return f"was refused by torch: {str(error).strip().splitlines()[0]}"
