# SPDX-License-Identifier: Apache-2.0
"""FlashAttention 4 (flash-attn-4, CuTe DSL) on the caller's memory: results, logarithms and gradients.

It compiles a kernel at the first call of a kind, which takes seconds. What it takes by sizes, dtypes and options stands
in the operators' files, `when`; what it refuses in a call is left to the next of the route. Its functions that take
places for results are not public, so what they are called with is looked for first.
"""

from __future__ import annotations

import functools
import inspect

from anyop import DeclinedError

_BOTH = ("softmax_scale", "causal", "softcap", "window_size_left", "window_size_right")
_FORWARD = (*_BOTH, "learnable_sink", "return_lse", "out", "lse")
_BACKWARD = (*_BOTH, "learnable_sink", "dq", "dk", "dv", "dlse")


def attention(
    q, k, v, mask, scale, causal, offset, window_left, window_right, softcap, sinks, alibi_slopes, *, out
):  # fmt: skip
    """As the operator, without mask and slopes."""
    bounds = _bounds(q, k, causal, offset, window_left, window_right)
    _attend(q, k, v, scale, bounds, softcap, sinks, out, None)


def attention_with_lse(
    q, k, v, mask, scale, causal, offset, window_left, window_right, softcap, sinks, alibi_slopes, *, out, lse
):  # fmt: skip
    """As the operator, without mask and slopes; its logarithms hold the sinks, as ours."""
    bounds = _bounds(q, k, causal, offset, window_left, window_right)
    _attend(q, k, v, scale, bounds, softcap, sinks, out, lse)


def attention_backward(
    grad_out, q, k, v, out, lse, grad_lse, mask, scale, causal, offset, window_left, window_right,
    softcap, sinks, alibi_slopes, *, grad_q, grad_k, grad_v, grad_sinks,
):  # fmt: skip
    """As the operator, without mask and slopes; sums are added in any order."""
    _check(scale)
    left, right = _bounds(q, k, causal, offset, window_left, window_right)
    tokens = (x.transpose(1, 2) for x in (q, k, v, out, grad_out))
    dq, dk, dv = (None if x is None else x.transpose(1, 2) for x in (grad_q, grad_k, grad_v))
    found = _call(
        "_flash_attn_bwd", _BACKWARD, *tokens, lse, softmax_scale=scale, causal=False, softcap=softcap,
        window_size_left=left, window_size_right=right, learnable_sink=sinks, dq=dq, dk=dk, dv=dv,
        dlse=grad_lse,
    )  # fmt: skip
    if grad_sinks is not None:
        grad_sinks.zero_() if sinks is None else grad_sinks.copy_(found[3])


def _attend(q, k, v, scale, bounds, softcap, sinks, out, lse):
    _check(scale)
    tokens = (x.transpose(1, 2) for x in (q, k, v))
    _call(
        "_flash_attn_fwd", _FORWARD, *tokens, softmax_scale=scale, causal=False, softcap=softcap,
        window_size_left=bounds[0], window_size_right=bounds[1], learnable_sink=sinks,
        return_lse=lse is not None, out=out.transpose(1, 2), lse=lse,
    )  # fmt: skip


def _bounds(q, k, causal, offset, left, right):
    """Its window, None for no bound; its last query lies at its last key."""
    right = 0 if causal else right
    if left < 0 and right < 0:
        return None, None
    aligned = k.shape[2] - q.shape[2]
    if offset != aligned:
        raise DeclinedError(f"takes bounds with offset={aligned} here, and offset is {offset}")
    return (None if left < 0 else left), (None if right < 0 else right)


def _check(scale):
    if scale is not None and not scale > 0:
        raise DeclinedError(f"takes scale>0, and it is {scale}")


@functools.cache
def _function(name, parameters):
    """A function of its module; or why it cannot be called."""
    from flash_attn.cute import interface

    function = getattr(interface, name, None)
    known = inspect.signature(function).parameters if function else ()
    missing = [parameter for parameter in parameters if parameter not in known]
    if missing:
        return f"is not made for this flash-attn-4: {name} has no {missing[0]}"
    return function


def _call(name, parameters, *tensors, **named):
    """What it asserts of sizes, options and GPUs, and what it has not yet, is declined."""
    function = _function(name, parameters)
    if isinstance(function, str):
        raise DeclinedError(function)
    try:
        return function(*tensors, **named)
    except (AssertionError, NotImplementedError) as error:
        why = str(error).strip() or "an assertion without a text"
        raise DeclinedError(f"was refused by flash-attn-4: {why.splitlines()[0]}") from None
