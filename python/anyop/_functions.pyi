# Generated from the operator files; do not edit.
"""Operators of anyop: any array type that speaks DLPack goes in, the same comes out."""

from collections.abc import Sequence
from typing import Any, TypeVar

Array = TypeVar("Array")

def add(
    x: Array,
    y: Array,
    *,
    alpha: float = 1.0,
    out: Array | None = None,
) -> Array:
    """Sum of x and alpha times y, broadcast together. Integers wrap around; for bool, 0 is False and all else True.

    x:        (*X,) float32, float16, bfloat16, float64, int64, int32, int16, int8, uint8 or bool, any
              strides; values, or a number.
    y:        (*Y,) float32, float16, bfloat16, float64, int64, int32, int16, int8, uint8 or bool, any
              strides; values, or a number.
    alpha:    float, default 1.0; factor of y; a whole number for integer results.
    Returns   (broadcast(*X, *Y)), new unless given, torch's promotion of x and y. A result may be
              exactly x. On a device it runs on the current stream, and never waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  out = x + alpha * y
    Source    PyTorch, torch.add
    """
    ...

def add_backward(
    x: Array,
    y: Array,
    grad_out: Array,
    *,
    alpha: float = 1.0,
    grad_x: Array | None = None,
    grad_y: Array | None = None,
) -> tuple[Array | None, Array | None]:
    """Gradients of add.

    x:         (*X,) float32, float16, bfloat16 or float64, any strides; values.
    y:         (*Y,) float32, float16, bfloat16 or float64, any strides; values.
    grad_out:  (broadcast(*X, *Y)) torch's promotion of x and y, contiguous; gradient of the result of
               add; last, because its dtype follows from the others.
    alpha:     float, default 1.0; factor of y.
    Returns    grad_x: (*X,), new unless given, dtype of x, made only when wanted; grad_y: (*Y,), new
               unless given, dtype of y, made only when wanted. On a device it runs on the current
               stream, and never waits.
    Raises     ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes   grad_x = grad_out; grad_y = alpha * grad_out; both summed over the sizes that were
               broadcast
    Source     derivative of torch.add
    """
    ...

def append_kv(
    k_cache: Array,
    v_cache: Array,
    k: Array,
    v: Array,
    slots: Array,
    *,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
) -> None:
    """Write keys and values of new tokens to their places in a paged cache.

    k_cache:  (N, P, G, D) float32, float16, bfloat16 or float8_e4m3fn, last dimension contiguous,
              written; N pages of P places, of any of the dtypes; pages of heads of places are such a
              tensor with other strides.
    v_cache:  (N, P, G, E) dtype of k_cache, last dimension contiguous, written; likewise.
    k:        (T, G, D) float32, float16 or bfloat16, last dimension contiguous; keys of T tokens.
    v:        (T, G, E) dtype of k, last dimension contiguous; values of T tokens.
    slots:    (T,) int32 or int64, contiguous; page * P + place of each token, each at most once; -1:
              none.
    k_scale:  broadcastable to (G,) float32, any strides, or None; keys are divided by it, one number or
              one for each head. float8_e4m3fn is rounded to nearest and clamped to 448.
    v_scale:  broadcastable to (G,) float32, any strides, or None; likewise for values.
    Returns   None; k_cache and v_cache written in place. On a device it runs on the current stream, and
              never waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  k_cache[slots[t] // P, slots[t] % P, g] = k[t,g] / k_scale[g], v_cache likewise; a token
              whose slot is -1 is skipped
    Source    vLLM's reshape_and_cache_flash; flashinfer.append_paged_kv_cache. A slot outside is an
              error on the CPU; on CUDA nothing is written for it
    """
    ...

def append_latent(
    cache: Array,
    latent: Array,
    rope: Array,
    slots: Array,
) -> None:
    """Write the latent rows of new tokens to their places in a paged cache, as mla_decode reads them.

    cache:    (N, P, W) float32, float16 or bfloat16, last dimension contiguous, written; N pages of P
              places, a row of W numbers in each, of any of the dtypes.
    latent:   (T, R) float32, float16 or bfloat16, last dimension contiguous; the first R numbers of the
              rows of T tokens.
    rope:     (T, W-R) dtype of latent, last dimension contiguous; the others, the rotated key.
    slots:    (T,) int32 or int64, contiguous; page * P + place of each token, each at most once; -1:
              none.
    Returns   None; cache written in place. On a device it runs on the current stream, and never waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  cache[slots[t] // P, slots[t] % P] = [latent[t], rope[t]]; a token whose slot is -1 is
              skipped
    Source    vLLM's concat_and_cache_mla; flashinfer.append_paged_mla_kv_cache. A slot outside is an
              error
    """
    ...

def append_latent_fp8(
    cache: Array,
    latent: Array,
    rope: Array,
    slots: Array,
) -> None:
    """Write the latent rows of new tokens to their places in a paged cache in FlashMLA's rows of 656 bytes, as mla_sparse_fp8 reads them.

    cache:    (N, P, 656) uint8, last dimension contiguous, written; N pages of P places, a row of 656
              bytes in each: 512 numbers in float8_e4m3fn, 4 scales in float32, 64 numbers in bfloat16.
    latent:   (T, 512) float32, float16 or bfloat16, last dimension contiguous; the latent numbers of T
              tokens.
    rope:     (T, 64) dtype of latent, last dimension contiguous; their rotated keys.
    slots:    (T,) int32 or int64, contiguous; page * P + place of each token, each at most once; -1:
              none.
    Returns   None; cache written in place. On a device it runs on the current stream, and never waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  cache[slots[t] // P, slots[t] % P] = the bytes of [round(latent[t,i] * (1 / s[i // 128]))
              in float8_e4m3fn, s in float32, rope[t] in bfloat16]; s[g] = max(max_i
              |latent[t,128*g+i]|, 1e-10) / 448; a token whose slot is -1 is skipped
    Source    FlashMLA's fp8 cache, which vLLM calls fp8_ds_mla; quant_fp8 for scales, rounding and what
              is not finite. A slot outside is an error
    """
    ...

def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None = None,
    scale: float | None = None,
    causal: bool = False,
    *,
    offset: int = 0,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0.0,
    sinks: Array | None = None,
    alibi_slopes: Array | None = None,
    out: Array | None = None,
) -> Array:
    """Scaled dot-product attention, heads in groups that share keys and values.

    q:             (B, H, S, D) float32, float16, bfloat16 or float64, last dimension contiguous;
                   queries, S for each of the H heads.
    k:             (B, G, T, D) dtype of q, last dimension contiguous; keys, T for each of the G groups
                   of heads.
    v:             (B, G, T, E) dtype of q, last dimension contiguous; values, E features for each key.
    mask:          broadcastable to (B, H, S, T) dtype of q, bool or float32, any strides, or None;
                   bool: where a query may attend; otherwise added to the scores. A query that may
                   attend nowhere gets 0.
    scale:         float or None, default None; factor of the scores; None: 1 / sqrt(D).
    causal:        bool, default False; query s attends to keys up to s + offset only.
    offset:        int, default 0; query s lies at key s + offset; T - S aligns the last query with the
                   last key.
    window_left:   int, default -1; keys before its own that a query may attend to; -1: all.
    window_right:  int, default -1; keys behind its own, likewise.
    softcap:       float, default 0.0; scores become softcap * tanh(score / softcap), before mask and
                   slopes are added; 0: they stay.
    sinks:         (H,) float32, contiguous, or None; one for each head: a score without a value, which
                   takes its share of the weights.
    alibi_slopes:  (H,) float32, contiguous, or None; one for each head: slope * |s + offset - t| is
                   subtracted from the scores.
    Returns        (B, H, S, E), new unless given, dtype of q. On a device it runs on the current
                   stream, and never waits.
    Requires       G > 0; H % G == 0; -1 <= window_left; -1 <= window_right.
    Raises         ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                   kernel.
    Computes       out[b,h,s] = sum_t(p[t] * v[b,g,t]), g = h // (H/G); p = softmax_t(score[t]), with
                   exp(sinks[h]) more in its sum; score[t] = cap(scale * q[b,h,s].k[b,g,t]) +
                   mask[b,h,s,t] - alibi_slopes[h] * |s + offset - t|, cap(x) = softcap * tanh(x /
                   softcap)
    Source         Vaswani et al. 2017, arXiv:1706.03762, eq. 1; Ainslie et al. 2023, arXiv:2305.13245
                   (groups); block by block as in Milakov & Gimelshein 2018, arXiv:1805.02867
    """
    ...

def attention_backward(
    grad_out: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    grad_lse: Array | None = None,
    mask: Array | None = None,
    scale: float | None = None,
    causal: bool = False,
    *,
    offset: int = 0,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0.0,
    sinks: Array | None = None,
    alibi_slopes: Array | None = None,
    grad_q: Array | None = None,
    grad_k: Array | None = None,
    grad_v: Array | None = None,
    grad_sinks: Array | None = None,
) -> tuple[Array | None, Array | None, Array | None, Array | None]:
    """Gradients of attention and attention_with_lse; mask and slopes have none.

    grad_out:      (B, H, S, E) float32, float16, bfloat16 or float64, last dimension contiguous;
                   gradient of out.
    q:             (B, H, S, D) dtype of grad_out, last dimension contiguous; queries, S for each of the
                   H heads.
    k:             (B, G, T, D) dtype of grad_out, last dimension contiguous; keys, T for each of the G
                   groups of heads.
    v:             (B, G, T, E) dtype of grad_out, last dimension contiguous; values, E features for
                   each key.
    out:           (B, H, S, E) dtype of grad_out, last dimension contiguous; the result of the forward
                   call.
    lse:           (B, H, S) float32, contiguous; that of attention_with_lse, likewise.
    grad_lse:      (B, H, S) float32, contiguous, or None; gradient of lse.
    mask:          broadcastable to (B, H, S, T) dtype of grad_out, bool or float32, any strides, or
                   None; bool: where a query may attend; otherwise added to the scores. A query that may
                   attend nowhere has gradient 0.
    scale:         float or None, default None; factor of the scores; None: 1 / sqrt(D).
    causal:        bool, default False; query s attends to keys up to s + offset only.
    offset:        int, default 0; query s lies at key s + offset; T - S aligns the last query with the
                   last key.
    window_left:   int, default -1; keys before its own that a query may attend to; -1: all.
    window_right:  int, default -1; keys behind its own, likewise.
    softcap:       float, default 0.0; scores become softcap * tanh(score / softcap), before mask and
                   slopes are added; 0: they stay.
    sinks:         (H,) float32, contiguous, or None; one for each head: a score without a value, which
                   takes its share of the weights.
    alibi_slopes:  (H,) float32, contiguous, or None; one for each head: slope * |s + offset - t| is
                   subtracted from the scores.
    Returns        grad_q: (B, H, S, D), new unless given, dtype of grad_out, made only when wanted;
                   grad_k: (B, G, T, D), new unless given, dtype of grad_out, made only when wanted;
                   grad_v: (B, G, T, E), new unless given, dtype of grad_out, made only when wanted;
                   grad_sinks: (H,), new unless given, dtype float32, made only when wanted. On a device
                   it runs on the current stream, and never waits.
    Requires       G > 0; H % G == 0; -1 <= window_left; -1 <= window_right.
    Raises         ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                   kernel.
    Computes       with score as in attention, p[b,h,s,t] = exp(score - lse), delta[b,h,s] =
                   grad_out.out - grad_lse and w = p * (grad_out.v - delta) * cap'(scale * q.k) * scale:
                   grad_q = sum_t(w * k); grad_k = sum over s and the heads of the group of w * q;
                   grad_v = likewise of p * grad_out; grad_sinks[h] = -sum_(b,s)(exp(sinks[h] - lse) *
                   delta)
    Source         derivative of Vaswani et al. 2017, arXiv:1706.03762, eq. 1
    """
    ...

def attention_paged(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    page_table: Array,
    seqlens_k: Array,
    cu_seqlens_q: Array | None = None,
    *,
    scale: float | None = None,
    causal: bool = True,
    window_left: int = -1,
    softcap: float = 0.0,
    sinks: Array | None = None,
    alibi_slopes: Array | None = None,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    split_size: int = 0,
    out: Array | None = None,
    lse: Array | None = None,
) -> tuple[Array, Array | None]:
    """attention of packed queries to keys and values in the pages of a cache: decoding, chunked prefill, and both at once.

    q:             (S, H, D) float32, float16 or bfloat16, last dimension contiguous; queries of all
                   sequences, one behind the other, for each of the H heads.
    k_cache:       (N, P, G, D) dtype of q or float8_e4m3fn, last dimension contiguous; N pages of P
                   places; pages of heads of places are such a tensor with other strides.
    v_cache:       (N, P, G, E) dtype of k_cache, last dimension contiguous; likewise.
    page_table:    (B, M) int32, contiguous; the pages of each of the B sequences, in order; those
                   behind its end are not looked at.
    seqlens_k:     (B,) int32, contiguous; keys of each sequence, up to M*P.
    cu_seqlens_q:  (B+1,) int32, contiguous, or None; where the queries of each sequence begin, and
                   behind the last; ascending, 0 to S. None: each has S/B.
    scale:         float or None, default None; factor of the scores; None: 1 / sqrt(D).
    causal:        bool, default True; queries attend to keys up to their own only.
    window_left:   int, default -1; keys before its own that a query may attend to; -1: all.
    softcap:       float, default 0.0; scores become softcap * tanh(score / softcap), before slopes are
                   added; 0: they stay.
    sinks:         (H,) float32, contiguous, or None; one for each head: a score without a value, which
                   takes its share of the weights.
    alibi_slopes:  (H,) float32, contiguous, or None; one for each head: slope * |distance| is
                   subtracted from the scores.
    k_scale:       broadcastable to (G,) float32, any strides, or None; what keys in the cache are
                   multiplied with, one number or one for each group of heads.
    v_scale:       broadcastable to (G,) float32, any strides, or None; likewise for values.
    split_size:    int, default 0; keys of a part where a sequence is split, so that its bits depend on
                   itself alone; 0: the kernel chooses. The CPU splits none.
    Returns        out: (S, H, E), new unless given, dtype of q; lse: (S, H), new unless given, dtype
                   float32, made only when wanted, natural logarithm of the sum of all weights before
                   they are divided by it, sinks included; -inf where that is 0. On a device it runs on
                   the current stream, and never waits.
    Requires       G > 0; H % G == 0; -1 <= window_left; 0 <= split_size.
    Raises         ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                   kernel.
    Computes       as attention_varlen, where key t of sequence b is k_cache[page_table[b, t // P], t %
                   P] * k_scale, t < seqlens_k[b], values likewise; the last query of a sequence lies at
                   its last key
    Source         Kwon et al. 2023, arXiv:2309.06180; flash_attn_with_kvcache, flashinfer's
                   BatchPrefillWithPagedKVCacheWrapper; block by block as in Milakov & Gimelshein 2018,
                   arXiv:1805.02867
    """
    ...

def attention_varlen(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    *,
    scale: float | None = None,
    causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0.0,
    sinks: Array | None = None,
    alibi_slopes: Array | None = None,
    out: Array | None = None,
) -> Array:
    """attention of packed sequences of any lengths, each to its own keys.

    q:             (S, H, D) float32, float16, bfloat16 or float64, last dimension contiguous; queries
                   of all sequences, one behind the other, for each of the H heads.
    k:             (T, G, D) dtype of q, last dimension contiguous; keys of all sequences, for each of
                   the G groups of heads.
    v:             (T, G, E) dtype of q, last dimension contiguous; values, E features for each key.
    cu_seqlens_q:  (B+1,) int32, contiguous; where the queries of each of the B sequences begin, and
                   behind the last; ascending, 0 to S. Queries of no sequence see nothing.
    cu_seqlens_k:  (B+1,) int32, contiguous; where their keys begin, likewise, 0 to T.
    scale:         float or None, default None; factor of the scores; None: 1 / sqrt(D).
    causal:        bool, default False; queries attend to keys up to their own only.
    window_left:   int, default -1; keys before its own that a query may attend to; -1: all.
    window_right:  int, default -1; keys behind its own, likewise.
    softcap:       float, default 0.0; scores become softcap * tanh(score / softcap), before slopes are
                   added; 0: they stay.
    sinks:         (H,) float32, contiguous, or None; one for each head: a score without a value, which
                   takes its share of the weights.
    alibi_slopes:  (H,) float32, contiguous, or None; one for each head: slope * |distance| is
                   subtracted from the scores.
    Returns        (S, H, E), new unless given, dtype of q. On a device it runs on the current stream,
                   and never waits.
    Requires       G > 0; H % G == 0; -1 <= window_left; -1 <= window_right.
    Raises         ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                   kernel.
    Computes       out[s,h] = sum_t(p[t] * v[t,g]), g = h // (H/G), t over the keys of the query's
                   sequence; p = softmax_t(score[t]), with exp(sinks[h]) more in its sum; score[t] =
                   cap(scale * q[s,h].k[t,g]) - alibi_slopes[h] * |distance|, cap(x) = softcap * tanh(x
                   / softcap); the last query of a sequence lies at its last key
    Source         flash_attn_varlen_func; Vaswani et al. 2017, arXiv:1706.03762, eq. 1; block by block
                   as in Milakov & Gimelshein 2018, arXiv:1805.02867
    """
    ...

def attention_varlen_backward(
    grad_out: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    grad_lse: Array | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0.0,
    sinks: Array | None = None,
    alibi_slopes: Array | None = None,
    grad_q: Array | None = None,
    grad_k: Array | None = None,
    grad_v: Array | None = None,
    grad_sinks: Array | None = None,
) -> tuple[Array | None, Array | None, Array | None, Array | None]:
    """Gradients of attention_varlen and attention_varlen_with_lse; slopes have none.

    grad_out:      (S, H, E) float32, float16, bfloat16 or float64, last dimension contiguous; gradient
                   of out.
    q:             (S, H, D) dtype of grad_out, last dimension contiguous; queries of all sequences, one
                   behind the other, for each of the H heads.
    k:             (T, G, D) dtype of grad_out, last dimension contiguous; keys of all sequences, for
                   each of the G groups of heads.
    v:             (T, G, E) dtype of grad_out, last dimension contiguous; values, E features for each
                   key.
    out:           (S, H, E) dtype of grad_out, last dimension contiguous; the result of the forward
                   call.
    lse:           (S, H) float32, contiguous; that of attention_varlen_with_lse, likewise.
    cu_seqlens_q:  (B+1,) int32, contiguous; as the forward call had it.
    cu_seqlens_k:  (B+1,) int32, contiguous; likewise.
    grad_lse:      (S, H) float32, contiguous, or None; gradient of lse.
    scale:         float or None, default None; factor of the scores; None: 1 / sqrt(D).
    causal:        bool, default False; queries attend to keys up to their own only.
    window_left:   int, default -1; keys before its own that a query may attend to; -1: all.
    window_right:  int, default -1; keys behind its own, likewise.
    softcap:       float, default 0.0; scores become softcap * tanh(score / softcap), before slopes are
                   added; 0: they stay.
    sinks:         (H,) float32, contiguous, or None; one for each head: a score without a value, which
                   takes its share of the weights.
    alibi_slopes:  (H,) float32, contiguous, or None; one for each head: slope * |distance| is
                   subtracted from the scores.
    Returns        grad_q: (S, H, D), new unless given, dtype of grad_out, made only when wanted;
                   grad_k: (T, G, D), new unless given, dtype of grad_out, made only when wanted;
                   grad_v: (T, G, E), new unless given, dtype of grad_out, made only when wanted;
                   grad_sinks: (H,), new unless given, dtype float32, made only when wanted. On a device
                   it runs on the current stream, and never waits.
    Requires       G > 0; H % G == 0; -1 <= window_left; -1 <= window_right.
    Raises         ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                   kernel.
    Computes       with score as in attention_varlen, p[s,h,t] = exp(score - lse), delta[s,h] =
                   grad_out.out - grad_lse and w = p * (grad_out.v - delta) * cap'(scale * q.k) * scale:
                   grad_q = sum_t(w * k); grad_k = sum over s and the heads of the group of w * q;
                   grad_v = likewise of p * grad_out; grad_sinks[h] = -sum_s(exp(sinks[h] - lse) *
                   delta)
    Source         derivative of Vaswani et al. 2017, arXiv:1706.03762, eq. 1
    """
    ...

def attention_varlen_with_lse(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    *,
    scale: float | None = None,
    causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0.0,
    sinks: Array | None = None,
    alibi_slopes: Array | None = None,
    out: Array | None = None,
    lse: Array | None = None,
) -> tuple[Array, Array]:
    """attention_varlen, and the logarithm of each query's denominator: parts of one softmax can be joined by it.

    q:             (S, H, D) float32, float16, bfloat16 or float64, last dimension contiguous; queries
                   of all sequences, one behind the other, for each of the H heads.
    k:             (T, G, D) dtype of q, last dimension contiguous; keys of all sequences, for each of
                   the G groups of heads.
    v:             (T, G, E) dtype of q, last dimension contiguous; values, E features for each key.
    cu_seqlens_q:  (B+1,) int32, contiguous; where the queries of each of the B sequences begin, and
                   behind the last; ascending, 0 to S. Queries of no sequence see nothing.
    cu_seqlens_k:  (B+1,) int32, contiguous; where their keys begin, likewise, 0 to T.
    scale:         float or None, default None; factor of the scores; None: 1 / sqrt(D).
    causal:        bool, default False; queries attend to keys up to their own only.
    window_left:   int, default -1; keys before its own that a query may attend to; -1: all.
    window_right:  int, default -1; keys behind its own, likewise.
    softcap:       float, default 0.0; scores become softcap * tanh(score / softcap), before slopes are
                   added; 0: they stay.
    sinks:         (H,) float32, contiguous, or None; one for each head: a score without a value, which
                   takes its share of the weights.
    alibi_slopes:  (H,) float32, contiguous, or None; one for each head: slope * |distance| is
                   subtracted from the scores.
    Returns        out: (S, H, E), new unless given, dtype of q; lse: (S, H), new unless given, dtype
                   float32, natural logarithm of the sum of all weights before they are divided by it,
                   sinks included; -inf where that is 0. On a device it runs on the current stream, and
                   never waits.
    Requires       G > 0; H % G == 0; -1 <= window_left; -1 <= window_right.
    Raises         ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                   kernel.
    Computes       out[s,h] = sum_t(p[t] * v[t,g]), g = h // (H/G), t over the keys of the query's
                   sequence; p = softmax_t(score[t]), with exp(sinks[h]) more in its sum; score[t] =
                   cap(scale * q[s,h].k[t,g]) - alibi_slopes[h] * |distance|, cap(x) = softcap * tanh(x
                   / softcap); the last query of a sequence lies at its last key; lse[s,h] =
                   log(sum_t(exp(score[t])) + exp(sinks[h]))
    Source         flash_attn_varlen_func; Vaswani et al. 2017, arXiv:1706.03762, eq. 1; block by block
                   as in Milakov & Gimelshein 2018, arXiv:1805.02867
    """
    ...

def attention_with_lse(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None = None,
    scale: float | None = None,
    causal: bool = False,
    *,
    offset: int = 0,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0.0,
    sinks: Array | None = None,
    alibi_slopes: Array | None = None,
    out: Array | None = None,
    lse: Array | None = None,
) -> tuple[Array, Array]:
    """attention, and the logarithm of each query's denominator: parts of one softmax can be joined by it.

    q:             (B, H, S, D) float32, float16, bfloat16 or float64, last dimension contiguous;
                   queries, S for each of the H heads.
    k:             (B, G, T, D) dtype of q, last dimension contiguous; keys, T for each of the G groups
                   of heads.
    v:             (B, G, T, E) dtype of q, last dimension contiguous; values, E features for each key.
    mask:          broadcastable to (B, H, S, T) dtype of q, bool or float32, any strides, or None;
                   bool: where a query may attend; otherwise added to the scores. A query that may
                   attend nowhere gets 0.
    scale:         float or None, default None; factor of the scores; None: 1 / sqrt(D).
    causal:        bool, default False; query s attends to keys up to s + offset only.
    offset:        int, default 0; query s lies at key s + offset; T - S aligns the last query with the
                   last key.
    window_left:   int, default -1; keys before its own that a query may attend to; -1: all.
    window_right:  int, default -1; keys behind its own, likewise.
    softcap:       float, default 0.0; scores become softcap * tanh(score / softcap), before mask and
                   slopes are added; 0: they stay.
    sinks:         (H,) float32, contiguous, or None; one for each head: a score without a value, which
                   takes its share of the weights.
    alibi_slopes:  (H,) float32, contiguous, or None; one for each head: slope * |s + offset - t| is
                   subtracted from the scores.
    Returns        out: (B, H, S, E), new unless given, dtype of q; lse: (B, H, S), new unless given,
                   dtype float32, natural logarithm of the sum of all weights before they are divided by
                   it, sinks included; -inf where that is 0. On a device it runs on the current stream,
                   and never waits.
    Requires       G > 0; H % G == 0; -1 <= window_left; -1 <= window_right.
    Raises         ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                   kernel.
    Computes       out[b,h,s] = sum_t(p[t] * v[b,g,t]), g = h // (H/G); p = softmax_t(score[t]), with
                   exp(sinks[h]) more in its sum; score[t] = cap(scale * q[b,h,s].k[b,g,t]) +
                   mask[b,h,s,t] - alibi_slopes[h] * |s + offset - t|, cap(x) = softcap * tanh(x /
                   softcap); lse[b,h,s] = log(sum_t(exp(score[t])) + exp(sinks[h]))
    Source         Vaswani et al. 2017, arXiv:1706.03762, eq. 1; Ainslie et al. 2023, arXiv:2305.13245
                   (groups); block by block as in Milakov & Gimelshein 2018, arXiv:1805.02867
    """
    ...

def batch_norm_apply(
    x: Array,
    mean: Array,
    rstd: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    residual: Array | None = None,
    *,
    relu: bool = False,
    out: Array | None = None,
    mask: Array | None = None,
) -> tuple[Array, Array | None]:
    """Normalise each channel by its mean and 1 / deviation, scale and shift it, then add and cut off.

    x:         (N, C, *S) float32, float16, bfloat16 or float64, contiguous; batch, channels and any
               further sizes.
    mean:      (C,) torch's promotion of x and float32, contiguous; mean of each channel.
    rstd:      (C,) dtype of mean, contiguous; 1 / sqrt(variance + eps) of each channel.
    weight:    (C,) dtype of x or float32, contiguous, or None; scale of each channel; none: 1.
    bias:      (C,) dtype of weight, or that of x when None, contiguous, or None; added to each channel;
               none: 0.
    residual:  (N, C, *S) dtype of x, contiguous, or None; added to the result before it is cut off.
    relu:      bool, default False; whether what is below 0 becomes 0.
    Returns    out: (N, C, *S), new unless given, dtype of x; mask: (ceil(N*C*numel(S)/8),), new unless
               given, dtype uint8, made only when wanted, where the gradient passes, a bit for each
               element; 0 behind the last. A result may be exactly x. On a device it runs on the current
               stream, and never waits.
    Raises     ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes   z = (x[n,c,s] - mean[c]) * rstd[c] * weight[c] + bias[c] + residual[n,c,s]; out[n,c,s] =
               z, or max(z, 0) for relu=True; bit i % 8 of mask[i // 8] is 0 where z of element i is at
               most 0, else 1
    Source     Ioffe & Szegedy 2015, arXiv:1502.03167; torch.nn.SyncBatchNorm
    """
    ...

def batch_norm_apply_channels_last(
    x: Array,
    mean: Array,
    rstd: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    residual: Array | None = None,
    *,
    relu: bool = False,
    out: Array | None = None,
    mask: Array | None = None,
) -> tuple[Array, Array | None]:
    """batch_norm_apply of a tensor whose channels come last.

    x:         (N, *S, C) float32, float16, bfloat16 or float64, contiguous; batch, channels and any
               further sizes, channels last.
    mean:      (C,) torch's promotion of x and float32, contiguous; mean of each channel.
    rstd:      (C,) dtype of mean, contiguous; 1 / sqrt(variance + eps) of each channel.
    weight:    (C,) dtype of x or float32, contiguous, or None; scale of each channel; none: 1.
    bias:      (C,) dtype of weight, or that of x when None, contiguous, or None; added to each channel;
               none: 0.
    residual:  (N, *S, C) dtype of x, contiguous, or None; added to the result before it is cut off.
    relu:      bool, default False; whether what is below 0 becomes 0.
    Returns    out: (N, *S, C), new unless given, dtype of x; mask: (ceil(N*C*numel(S)/8),), new unless
               given, dtype uint8, made only when wanted, where the gradient passes, a bit for each
               element; 0 behind the last. A result may be exactly x. On a device it runs on the current
               stream, and never waits.
    Raises     ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes   z = (x[n,s,c] - mean[c]) * rstd[c] * weight[c] + bias[c] + residual[n,s,c]; out[n,s,c] =
               z, or max(z, 0) for relu=True; bit i % 8 of mask[i // 8] is 0 where z of element i is at
               most 0, else 1
    Source     Ioffe & Szegedy 2015, arXiv:1502.03167; torch.nn.SyncBatchNorm
    """
    ...

def batch_norm_backward(
    grad_out: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    weight: Array | None = None,
    mask: Array | None = None,
    sum_dy: Array | None = None,
    sum_dy_xmu: Array | None = None,
    count: Array | None = None,
    grad_x: Array | None = None,
    grad_residual: Array | None = None,
) -> tuple[Array | None, Array | None]:
    """Gradient of a batch norm by the sums of its whole batch, and that of what was added.

    grad_out:    (N, C, *S) float32, float16, bfloat16 or float64, contiguous; gradient of the result.
    x:           (N, C, *S) dtype of grad_out, contiguous; that of the forward call.
    mean:        (C,) torch's promotion of x and float32, contiguous; mean of each channel.
    rstd:        (C,) dtype of mean, contiguous; 1 / sqrt(variance + eps) of each channel.
    weight:      (C,) dtype of x or float32, contiguous, or None; scale of each channel; none: 1.
    mask:        (ceil(N*C*numel(S)/8),) uint8, contiguous, or None; as batch_norm_apply makes it; none:
                 all pass.
    sum_dy:      (C,) dtype of mean, contiguous, or None; that of batch_norm_reduce, summed over all
                 processes; none: 0.
    sum_dy_xmu:  (C,) dtype of mean, contiguous, or None; that of batch_norm_reduce, summed over all
                 processes; none: 0.
    count:       (P,) dtype of mean, int32 or int64, any strides, or None; elements of a channel in each
                 process; none, or none of them: the sums count for nothing, mean and rstd are
                 constants.
    Returns      grad_x: (N, C, *S), new unless given, dtype of x, made only when wanted; grad_residual:
                 (N, C, *S), new unless given, dtype of x, made only when wanted. On a device it runs on
                 the current stream, and never waits.
    Raises       ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                 kernel.
    Computes     d = grad_out[n,c,s], or 0 where its bit of mask is 0; grad_residual[n,c,s] = d;
                 grad_x[n,c,s] = rstd[c] * weight[c] * (d - (sum_dy[c] + (x[n,c,s] - mean[c]) *
                 rstd[c]^2 * sum_dy_xmu[c]) / count), count being that of all processes
    Source       derivative of batch_norm_apply, batch_norm_combine and batch_norm_stats
    """
    ...

def batch_norm_backward_channels_last(
    grad_out: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    weight: Array | None = None,
    mask: Array | None = None,
    sum_dy: Array | None = None,
    sum_dy_xmu: Array | None = None,
    count: Array | None = None,
    grad_x: Array | None = None,
    grad_residual: Array | None = None,
) -> tuple[Array | None, Array | None]:
    """batch_norm_backward of a tensor whose channels come last.

    grad_out:    (N, *S, C) float32, float16, bfloat16 or float64, contiguous; gradient of the result,
                 channels last.
    x:           (N, *S, C) dtype of grad_out, contiguous; that of the forward call.
    mean:        (C,) torch's promotion of x and float32, contiguous; mean of each channel.
    rstd:        (C,) dtype of mean, contiguous; 1 / sqrt(variance + eps) of each channel.
    weight:      (C,) dtype of x or float32, contiguous, or None; scale of each channel; none: 1.
    mask:        (ceil(N*C*numel(S)/8),) uint8, contiguous, or None; as batch_norm_apply makes it; none:
                 all pass.
    sum_dy:      (C,) dtype of mean, contiguous, or None; that of batch_norm_reduce, summed over all
                 processes; none: 0.
    sum_dy_xmu:  (C,) dtype of mean, contiguous, or None; that of batch_norm_reduce, summed over all
                 processes; none: 0.
    count:       (P,) dtype of mean, int32 or int64, any strides, or None; elements of a channel in each
                 process; none, or none of them: the sums count for nothing, mean and rstd are
                 constants.
    Returns      grad_x: (N, *S, C), new unless given, dtype of x, made only when wanted; grad_residual:
                 (N, *S, C), new unless given, dtype of x, made only when wanted. On a device it runs on
                 the current stream, and never waits.
    Raises       ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                 kernel.
    Computes     d = grad_out[n,s,c], or 0 where its bit of mask is 0; grad_residual[n,s,c] = d;
                 grad_x[n,s,c] = rstd[c] * weight[c] * (d - (sum_dy[c] + (x[n,s,c] - mean[c]) *
                 rstd[c]^2 * sum_dy_xmu[c]) / count), count being that of all processes
    Source       derivative of batch_norm_apply, batch_norm_combine and batch_norm_stats
    """
    ...

def batch_norm_combine(
    mean: Array,
    var: Array,
    count: Array,
    running_mean: Array | None = None,
    running_var: Array | None = None,
    momentum: Array | None = None,
    *,
    eps: float = 1e-05,
    out_mean: Array | None = None,
    out_var: Array | None = None,
    rstd: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Mean, variance and 1 / deviation of each channel from those of several processes; updates running ones.

    mean:          (P, C) float32 or float64, last dimension contiguous; mean of each channel in each
                   process.
    var:           (P, C) dtype of mean, last dimension contiguous; variance, without a correction, of
                   each channel in each process.
    count:         (P,) dtype of mean, int32 or int64, any strides; elements of a channel in each
                   process; one without any counts for nothing.
    running_mean:  (C,) dtype of mean, float16 or bfloat16, contiguous, or None, written; changed,
                   unless no process has elements.
    running_var:   (C,) dtype of running_mean, or that of mean when None, contiguous, or None, written;
                   changed likewise; with up to one element in all, without the correction.
    momentum:      broadcastable to (1,) float32, contiguous, or a number, or None; share of the new
                   ones in the running ones, of one element; none: 0.1.
    eps:           float, default 1e-05; added to the variance.
    Returns        out_mean: (C,), new unless given, dtype of mean, mean of all; out_var: (C,), new
                   unless given, dtype of mean, variance of all, without a correction; rstd: (C,), new
                   unless given, dtype of mean, 1 / sqrt(out_var + eps). On a device it runs on the
                   current stream, and never waits.
    Raises         ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                   kernel.
    Computes       with n = sum of count: out_mean[c] = sum of count[p] * mean[p,c] / n; out_var[c] =
                   sum of count[p] * (var[p,c] + (mean[p,c] - out_mean[c])^2) / n; rstd = 1 /
                   sqrt(out_var + eps); running_mean = (1 - momentum) * running_mean + momentum *
                   out_mean, and running_var likewise with out_var * n / (n - 1)
    Source         Chan, Golub & LeVeque 1979; torch.nn.SyncBatchNorm; NVIDIA Apex,
                   syncbn.welford_parallel
    """
    ...

def batch_norm_reduce(
    grad_out: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    weight: Array | None = None,
    mask: Array | None = None,
    sum_dy: Array | None = None,
    sum_dy_xmu: Array | None = None,
    grad_weight: Array | None = None,
    grad_bias: Array | None = None,
) -> tuple[Array, Array, Array | None, Array | None]:
    """The sums that gradients of a batch norm need, of each channel, and the gradients of its parameters.

    grad_out:  (N, C, *S) float32, float16, bfloat16 or float64, contiguous; gradient of the result.
    x:         (N, C, *S) dtype of grad_out, contiguous; that of the forward call.
    mean:      (C,) torch's promotion of x and float32, contiguous; mean of each channel.
    rstd:      (C,) dtype of mean, contiguous; 1 / sqrt(variance + eps) of each channel.
    weight:    (C,) dtype of x or float32, contiguous, or None; scale of each channel; only its dtype
               counts, which those of the gradients are.
    mask:      (ceil(N*C*numel(S)/8),) uint8, contiguous, or None; as batch_norm_apply makes it; none:
               all pass.
    Returns    sum_dy: (C,), new unless given, dtype of mean, sum of the gradient; sum_dy_xmu: (C,), new
               unless given, dtype of mean, sum of the gradient times the distance from the mean;
               grad_weight: (C,), new unless given, dtype of weight, or that of mean when None, made
               only when wanted; grad_bias: (C,), new unless given, dtype of weight, or that of mean
               when None, made only when wanted. On a device it runs on the current stream, and never
               waits.
    Raises     ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes   d = grad_out[n,c,s], or 0 where its bit of mask is 0; sum_dy[c] = grad_bias[c] = sum of
               d; sum_dy_xmu[c] = sum of d * (x[n,c,s] - mean[c]), over all n and s; grad_weight[c] =
               sum_dy_xmu[c] * rstd[c]
    Source     derivative of batch_norm_apply
    """
    ...

def batch_norm_reduce_channels_last(
    grad_out: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    weight: Array | None = None,
    mask: Array | None = None,
    sum_dy: Array | None = None,
    sum_dy_xmu: Array | None = None,
    grad_weight: Array | None = None,
    grad_bias: Array | None = None,
) -> tuple[Array, Array, Array | None, Array | None]:
    """batch_norm_reduce of a tensor whose channels come last.

    grad_out:  (N, *S, C) float32, float16, bfloat16 or float64, contiguous; gradient of the result,
               channels last.
    x:         (N, *S, C) dtype of grad_out, contiguous; that of the forward call.
    mean:      (C,) torch's promotion of x and float32, contiguous; mean of each channel.
    rstd:      (C,) dtype of mean, contiguous; 1 / sqrt(variance + eps) of each channel.
    weight:    (C,) dtype of x or float32, contiguous, or None; scale of each channel; only its dtype
               counts, which those of the gradients are.
    mask:      (ceil(N*C*numel(S)/8),) uint8, contiguous, or None; as batch_norm_apply makes it; none:
               all pass.
    Returns    sum_dy: (C,), new unless given, dtype of mean, sum of the gradient; sum_dy_xmu: (C,), new
               unless given, dtype of mean, sum of the gradient times the distance from the mean;
               grad_weight: (C,), new unless given, dtype of weight, or that of mean when None, made
               only when wanted; grad_bias: (C,), new unless given, dtype of weight, or that of mean
               when None, made only when wanted. On a device it runs on the current stream, and never
               waits.
    Raises     ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes   d = grad_out[n,s,c], or 0 where its bit of mask is 0; sum_dy[c] = grad_bias[c] = sum of
               d; sum_dy_xmu[c] = sum of d * (x[n,s,c] - mean[c]), over all n and s; grad_weight[c] =
               sum_dy_xmu[c] * rstd[c]
    Source     derivative of batch_norm_apply
    """
    ...

def batch_norm_stats(
    x: Array,
    mean: Array | None = None,
    var: Array | None = None,
) -> tuple[Array, Array]:
    """Mean and variance of each channel, the variance without a correction.

    x:        (N, C, *S) float32, float16, bfloat16 or float64, contiguous; batch, channels and any
              further sizes.
    Returns   mean: (C,), new unless given, torch's promotion of x and float32, mean of each channel;
              var: (C,), new unless given, torch's promotion of x and float32, variance of each channel.
              On a device it runs on the current stream, and never waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  mean[c] = mean of x[n,c,s]; var[c] = mean of (x[n,c,s] - mean[c])^2, over all n and s; 0
              where there are none
    Source    Chan, Golub & LeVeque 1979; torch.nn.SyncBatchNorm
    """
    ...

def batch_norm_stats_channels_last(
    x: Array,
    mean: Array | None = None,
    var: Array | None = None,
) -> tuple[Array, Array]:
    """batch_norm_stats of a tensor whose channels come last.

    x:        (N, *S, C) float32, float16, bfloat16 or float64, contiguous; batch, channels and any
              further sizes, channels last.
    Returns   mean: (C,), new unless given, torch's promotion of x and float32, mean of each channel;
              var: (C,), new unless given, torch's promotion of x and float32, variance of each channel.
              On a device it runs on the current stream, and never waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  mean[c] = mean of x[n,s,c]; var[c] = mean of (x[n,s,c] - mean[c])^2, over all n and s; 0
              where there are none
    Source    Chan, Golub & LeVeque 1979; torch.nn.SyncBatchNorm
    """
    ...

def bias_gelu(
    x: Array,
    bias: Array,
    approximate: str = 'none',
    out: Array | None = None,
) -> Array:
    """gelu of each row and a bias.

    x:            (*, D) float32, float16, bfloat16 or float64, last dimension contiguous; rows of
                  features.
    bias:         (D,) dtype of x, contiguous; added to each feature; the sum is not rounded.
    approximate:  str, default 'none'; 'none' for the exact function, 'tanh' for the approximation by
                  tanh.
    Returns       (*, D), new unless given, dtype of x. A result may be exactly x. On a device it runs
                  on the current stream, and never waits.
    Raises        ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                  kernel.
    Computes      out[r,d] = gelu(x[r,d] + bias[d])
    Source        Hendrycks & Gimpel 2016, arXiv:1606.08415
    """
    ...

def bias_gelu_backward(
    grad_out: Array,
    x: Array,
    bias: Array,
    approximate: str = 'none',
    grad_x: Array | None = None,
    grad_bias: Array | None = None,
) -> tuple[Array | None, Array | None]:
    """Gradient of bias_gelu.

    grad_out:     (*, D) float32, float16, bfloat16 or float64, last dimension contiguous; gradient of
                  the result of bias_gelu.
    x:            (*, D) dtype of grad_out, last dimension contiguous; rows of features.
    bias:         (D,) dtype of grad_out, contiguous; added to each feature.
    approximate:  str, default 'none'; 'none' for the exact function, 'tanh' for the approximation by
                  tanh.
    Returns       grad_x: (*, D), new unless given, dtype of grad_out, made only when wanted; grad_bias:
                  (D,), new unless given, dtype of grad_out, made only when wanted. On a device it runs
                  on the current stream, and never waits.
    Raises        ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                  kernel.
    Computes      grad_x[r,d] = grad_out[r,d] * gelu'(x[r,d] + bias[d]); grad_bias[d] = sum_r
                  grad_x[r,d]
    Source        derivative of bias_gelu; Hendrycks & Gimpel 2016, arXiv:1606.08415
    """
    ...

def build_permute_map(
    matrix: Array,
    stripes: Array,
    permutations: Array,
    improvement: Array | None = None,
    best: Array | None = None,
) -> tuple[Array, Array]:
    """The best of some permutations for each group of stripes, by what pruning to 2 of 4 keeps of them.

    matrix:        (R, 4*S) float32, last dimension contiguous; weights: R rows; stripe s < S is the
                   columns from 4s to 4s + 3.
    stripes:       (G, W) int64 or int32, contiguous; G groups of W stripes.
    permutations:  (P, 4*W) dtype of stripes, contiguous; P orders of the 4 W columns of a group; what
                   others are compared with comes first.
    Returns        improvement: (G,), new unless given, dtype of matrix, how much more the best one
                   keeps than the first; best: (G,), new unless given, dtype of stripes, its number. On
                   a device it runs on the current stream, and never waits.
    Raises         ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                   kernel.
    Computes       with x the columns of stripes[g], side by side, and s[p] = sum_after_2_to_4(x[:,
                   permutations[p]]) in float64: best[g] = the first p of the greatest s[p],
                   improvement[g] = s[best] - s[0]
    Source         Pool and Yu 2021, Channel Permutations for N:M Sparsity;
                   permutation_search_cuda.build_permute_map. Without permutations best is 0. A sum that
                   is NaN is never the best one; where s[0] is, best is 0 and improvement NaN. An index
                   out of range is an IndexError on the CPU; on CUDA the sums that need it are NaN
    """
    ...

def build_swap_map(
    matrix: Array,
    stripe_pairs: Array,
    out: Array | None = None,
) -> Array:
    """How much more pruning to 2 of 4 keeps when a column of one stripe is swapped with one of another, for all 16 swaps.

    matrix:        (R, 4*S) float32, last dimension contiguous; weights: R rows; stripe s < S is the
                   columns from 4s to 4s + 3.
    stripe_pairs:  (N, 2) int64 or int32, contiguous; N pairs of stripes.
    Returns        (N, 16), new unless given, dtype of matrix. On a device it runs on the current
                   stream, and never waits.
    Raises         ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                   kernel.
    Computes       with a, b the stripes of pair n, out[n,4i+j] = what is kept of both after their
                   columns i and j are swapped, less what is kept before, added row by row in float64
    Source         Pool and Yu 2021, Channel Permutations for N:M Sparsity;
                   permutation_search_cuda.build_swap_map. A pair of a stripe and itself is two copies
                   of it. An index out of range is an IndexError on the CPU; on CUDA its swaps are NaN
    """
    ...

def cast(
    x: Array,
    dtype: Any,
    out: Array | None = None,
) -> Array:
    """The same values as another dtype.

    x:        (*,) float32, float16, bfloat16, float64, int64, int32, int16, int8, uint8 or bool, any
              strides; values.
    dtype:    ScalarType, one of bool, uint8, int8, int16, int32, int64, float16, bfloat16, float32 or
              float64; dtype of the result.
    Returns   (*,), new unless given, dtype dtype. On a device it runs on the current stream, and never
              waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  float to integer: towards 0, unspecified out of range; to bool: x != 0; to a narrower
              integer: modulo its range; to a float: the nearest, from float64, int32 and int64 to 16
              bits by way of float32
    Source    PyTorch, torch.Tensor.to
    """
    ...

def cast_backward(
    grad_out: Array,
    x: Array,
    grad_x: Array | None = None,
) -> Array:
    """Gradient of cast between floating dtypes.

    grad_out:  (*,) float32, float16, bfloat16 or float64, any strides; gradient of the result of cast.
    x:         (*,) float32, float16, bfloat16 or float64, any strides; argument of cast, of which only
               the dtype counts.
    Returns    grad_x: (*,), new unless given, dtype of x. On a device it runs on the current stream,
               and never waits.
    Raises     ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes   grad_x = grad_out, as the dtype of x; from float64 to 16 bits by way of float32
    Source     derivative of torch.Tensor.to
    """
    ...

def check_permutations(
    matrix: Array,
    stripes: Array,
    permutations: Array,
    improvement: Array | None = None,
    best: Array | None = None,
    sums: Array | None = None,
) -> tuple[Array, Array, Array]:
    """The best of some permutations for one group of stripes, by what pruning to 2 of 4 keeps of them.

    matrix:        (R, 4*S) float32, last dimension contiguous; weights: R rows; stripe s < S is the
                   columns from 4s to 4s + 3.
    stripes:       (W,) int64 or int32, contiguous; W stripes.
    permutations:  (P, 4*W) dtype of stripes, contiguous; P orders of the 4 W columns of a group; what
                   others are compared with comes first.
    Returns        improvement: (), new unless given, dtype of matrix, how much more the best one keeps
                   than the first; best: (), new unless given, dtype of stripes, its number; sums: (P,),
                   new unless given, dtype of matrix, what each keeps. On a device it runs on the
                   current stream, and never waits.
    Raises         ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                   kernel.
    Computes       with x the columns of stripes, side by side, and sums[p] = sum_after_2_to_4(x[:,
                   permutations[p]]) in float64: best = the first p of the greatest sums[p], improvement
                   = sums[best] - sums[0]
    Source         Pool and Yu 2021, Channel Permutations for N:M Sparsity;
                   permutation_search_cuda.check_permutations. Without permutations best is 0. A sum
                   that is NaN is never the best one; where sums[0] is, best is 0 and improvement NaN.
                   An index out of range is an IndexError on the CPU; on CUDA the sums that need it are
                   NaN
    """
    ...

def conv_bias_act(
    x: Array,
    weight: Array,
    scale: Array | None = None,
    bias: Array | None = None,
    mask: Array | None = None,
    residual: Array | None = None,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    relu: bool = True,
    out: Array | None = None,
) -> Array:
    """Convolution of images with channels last, then a scale and a bias of each channel, a mask, a residual and relu.

    x:         (N, H, W, C) float32, float16, bfloat16 or float64, contiguous; images, channels last.
    weight:    (K, R, S, C) dtype of x, contiguous; a window of R by S for each of the K results,
               channels last.
    scale:     (K,) dtype of x, contiguous, or None; factor of each result, such as that of a frozen
               batch norm; it gets no gradient.
    bias:      (K,) dtype of x, contiguous, or None; added to each result behind scale.
    mask:      (N, (H+2*padding-dilation*(R-1)-1)//stride+1, (W+2*padding-dilation*(S-1)-1)//stride+1,
               K) bool, contiguous, or None; where it is false the result before the residual is 0.
    residual:  (N, (H+2*padding-dilation*(R-1)-1)//stride+1, (W+2*padding-dilation*(S-1)-1)//stride+1,
               K) dtype of x, contiguous, or None; added in front of relu.
    stride:    int, default 1; of the window, in both directions.
    padding:   int, default 0; rows and columns of zeros on every side.
    dilation:  int, default 1; distance of the window's elements.
    relu:      bool, default True; whether what is below 0 becomes 0.
    Returns    (N, (H+2*padding-dilation*(R-1)-1)//stride+1, (W+2*padding-dilation*(S-1)-1)//stride+1,
               K), new unless given, dtype of x. On a device it runs on the current stream, and never
               waits.
    Requires   stride > 0; padding >= 0; dilation > 0; the window of weight to have rows; the window of
               weight to have columns; the padded image to be as high as the window; the padded image to
               be as wide as the window.
    Raises     ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes   y[n,p,q,k] = sum_r,s,c(x[n, p*stride - padding + r*dilation, q*stride - padding +
               s*dilation, c] * weight[k,r,s,c]); out = relu((y * scale[k] + bias[k]) * mask + residual)
    Source     NVIDIA Apex, contrib/conv_bias_relu and contrib/bottleneck
    """
    ...

def conv_bias_act_backward(
    grad_out: Array,
    x: Array,
    weight: Array,
    scale: Array | None,
    out: Array,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    relu: bool = True,
    mask: Array | None = None,
    grad_x: Array | None = None,
    grad_weight: Array | None = None,
    grad_bias: Array | None = None,
    grad_residual: Array | None = None,
) -> tuple[Array | None, Array | None, Array | None, Array | None]:
    """Gradients of conv_bias_act.

    grad_out:  (N, P, Q, K) float32, float16, bfloat16 or float64, contiguous; gradient of the result of
               conv_bias_act.
    x:         (N, H, W, C) dtype of grad_out, contiguous; images, channels last.
    weight:    (K, R, S, C) dtype of grad_out, contiguous; a window of R by S for each of the K results,
               channels last.
    scale:     (K,) dtype of grad_out, contiguous, or None; factor of each result.
    out:       (N, P, Q, K) dtype of grad_out, contiguous; the result of conv_bias_act; read where relu
               is true.
    stride:    int, default 1; of the window, in both directions.
    padding:   int, default 0; rows and columns of zeros on every side.
    dilation:  int, default 1; distance of the window's elements.
    relu:      bool, default True; whether what is below 0 became 0.
    mask:      (N, P, Q, K) bool, contiguous, or None; where it is false the result before the residual
               was 0.
    Returns    grad_x: (N, H, W, C), new unless given, dtype of grad_out, made only when wanted;
               grad_weight: (K, R, S, C), new unless given, dtype of grad_out, made only when wanted;
               grad_bias: (K,), new unless given, dtype of grad_out, made only when wanted;
               grad_residual: (N, P, Q, K), new unless given, dtype of grad_out, made only when wanted.
               On a device it runs on the current stream, and never waits.
    Requires   stride > 0; padding >= 0; dilation > 0; the window of weight to have rows; the window of
               weight to have columns; the padded image to be as high as the window; the padded image to
               be as wide as the window; grad_out to be as high as the result of the convolution;
               grad_out to be as wide as the result of the convolution.
    Raises     ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes   g = grad_out * (out > 0 if relu); grad_residual = g; grad_bias[k] = sum_n,p,q(g * mask);
               grad_x is that of the convolution for g * mask by scale[k] * weight[k], grad_weight[k]
               that for g * mask, times scale[k]
    Source     derivative of conv_bias_act
    """
    ...

def cross_entropy(
    x: Array,
    target: Array,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    loss: Array | None = None,
    lse: Array | None = None,
) -> tuple[Array, Array]:
    """Cross entropy of rows of logits with a target class for each row.

    x:                (*, V) float32, float16, bfloat16 or float64, last dimension contiguous; rows of V
                      logits.
    target:           (*,) int64 or int32, contiguous; the class of each row, or ignore_index.
    ignore_index:     int, default -100; rows of this target have loss 0; nothing is averaged here.
    label_smoothing:  float, default 0.0; share of the target's weight that all classes get alike.
    z_loss:           float, default 0.0; factor of lse^2, which is added to the loss.
    Returns           loss: (*,), new unless given, torch's promotion of x and float32; lse: (*,), new
                      unless given, torch's promotion of x and float32, natural logarithm of the sum of
                      the exponentials of a row, of ignored rows too. On a device it runs on the current
                      stream, and never waits.
    Raises            ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                      kernel.
    Computes          with s = label_smoothing: lse[r] = log(sum_v(exp(x[r,v]))); loss[r] = lse[r] - (1
                      - s) * x[r,target[r]] - s * mean_v(x[r,v]) + z_loss * lse[r]^2, or 0 where
                      target[r] is ignore_index
    Source            torch.nn.functional.cross_entropy, reduction='none'; z_loss: Chowdhery et al.
                      2022, arXiv:2204.02311, section 5. A target outside [0, V) that is not
                      ignore_index is an IndexError on the CPU; on CUDA the loss of its row is NaN, and
                      its gradient 0
    """
    ...

def cross_entropy_backward(
    x: Array,
    target: Array,
    lse: Array,
    grad_loss: Array | None = None,
    grad_lse: Array | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    grad_x: Array | None = None,
) -> Array:
    """Gradient of cross_entropy, which may be written where the logits are.

    x:                (*, V) float32, float16, bfloat16 or float64, last dimension contiguous; rows of V
                      logits.
    target:           (*,) int64 or int32, contiguous; the class of each row, or ignore_index.
    lse:              (*,) torch's promotion of x and float32, contiguous; that of the forward call.
    grad_loss:        (*,) dtype of lse, contiguous, or None; gradient of loss; none: 0. That of ignored
                      rows counts for nothing.
    grad_lse:         (*,) dtype of lse, contiguous, or None; gradient of lse; none: 0. Ignored rows
                      have one, too.
    ignore_index:     int, default -100; that of the forward call.
    label_smoothing:  float, default 0.0; that of the forward call.
    z_loss:           float, default 0.0; that of the forward call.
    Returns           grad_x: (*, V), new unless given, dtype of x. A result may be exactly x. On a
                      device it runs on the current stream, and never waits.
    Raises            ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                      kernel.
    Computes          with p[r,v] = exp(x[r,v] - lse[r]), s = label_smoothing, and grad_loss[r] = 0
                      where target[r] is ignore_index: grad_x[r,v] = grad_loss[r] * (p[r,v] * (1 + 2 *
                      z_loss * lse[r]) - (1 - s) * [v = target[r]] - s / V) + grad_lse[r] * p[r,v]
    Source            derivative of cross_entropy
    """
    ...

def cross_entropy_with_grad(
    x: Array,
    target: Array,
    scale: Array | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    loss: Array | None = None,
    grad_x: Array | None = None,
) -> tuple[Array, Array]:
    """cross_entropy and its gradient in one pass, which may be written where the logits are.

    x:                (*, V) float32, float16, bfloat16 or float64, last dimension contiguous; rows of V
                      logits.
    target:           (*,) int64 or int32, contiguous; the class of each row, or ignore_index.
    scale:            () torch's promotion of x and float32, contiguous, or None; factor of the
                      gradient, such as 1 / the number of rows; none: 1. The loss is without it.
    ignore_index:     int, default -100; rows of this target have loss 0 and gradient 0, whatever they
                      hold.
    label_smoothing:  float, default 0.0; share of the target's weight that all classes get alike.
    z_loss:           float, default 0.0; factor of lse^2, which is added to the loss.
    Returns           loss: (*,), new unless given, torch's promotion of x and float32; grad_x: (*, V),
                      new unless given, dtype of x, the gradient of scale * the sum of loss. A result
                      may be exactly x. On a device it runs on the current stream, and never waits.
    Raises            ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                      kernel.
    Computes          with s = label_smoothing: lse[r] = log(sum_v(exp(x[r,v]))); loss[r] = lse[r] - (1
                      - s) * x[r,target[r]] - s * mean_v(x[r,v]) + z_loss * lse[r]^2; grad_x[r,v] =
                      scale * (exp(x[r,v] - lse[r]) * (1 + 2 * z_loss * lse[r]) - (1 - s) * [v =
                      target[r]] - s / V); both are 0 where target[r] is ignore_index
    Source            cross_entropy and its derivative, as in Hsu et al. 2024, arXiv:2410.10989. A
                      target outside [0, V) that is not ignore_index is an IndexError on the CPU; on
                      CUDA the loss of its row is NaN, and its gradient 0
    """
    ...

def decoder_layer(
    k_cache: Array,
    v_cache: Array,
    x: Array,
    delta: Array | None,
    attention_norm: Array,
    qkv: Array,
    out_weight: Array,
    ffn_norm: Array,
    gate_up: Array,
    down: Array,
    cos: Array,
    sin: Array,
    page_table: Array,
    seqlens_k: Array,
    *,
    heads: int,
    q_norm: Array | None = None,
    k_norm: Array | None = None,
    qkv_bias: Array | None = None,
    eps: float = 1e-06,
    scale: float | None = None,
    x_out: Array | None = None,
    delta_out: Array | None = None,
) -> tuple[Array, Array]:
    """A whole layer of a decoder for one new token of each sequence: attention to a paged cache and the gated feed-forward part.

    k_cache:         (N, P, G, C) float32, float16 or bfloat16, last dimension contiguous, written; N
                     pages of P places; pages of heads of places are such a tensor with other strides. A
                     sequence's newest page may be in no other sequence.
    v_cache:         (N, P, G, C) dtype of k_cache, last dimension contiguous, written; likewise.
    x:               (B, D) dtype of k_cache, contiguous; the residual stream, one row for each of B
                     sequences.
    delta:           (B, D) dtype of k_cache, contiguous, or None; what the layer before adds to it;
                     None: nothing.
    attention_norm:  (D,) dtype of k_cache, contiguous; scale of each feature before attention.
    qkv:             ((heads+2*G)*C, D) dtype of k_cache, contiguous; rows for the heads of queries,
                     then those of keys, then of values.
    out_weight:      (D, heads*C) dtype of k_cache, contiguous; one row of factors of all heads for each
                     feature.
    ffn_norm:        (D,) dtype of k_cache, contiguous; scale of each feature before the feed-forward
                     part.
    gate_up:         (2*F, D) dtype of k_cache, contiguous; one row for each of F gates, then for each
                     of F values.
    down:            (D, F) dtype of k_cache, contiguous; one row of F factors for each feature.
    cos:             (L, C) dtype of k_cache or float32, contiguous; a cosine for each of C features and
                     L positions, as rope takes them.
    sin:             (L, C) dtype of cos, contiguous; as cos.
    page_table:      (B, M) int32, contiguous; the pages of each sequence, in order; those behind its
                     end are not looked at.
    seqlens_k:       (B,) int32, contiguous; keys of each sequence with the new one, which lies last and
                     has that position; 0: no sequence, its attention is 0. Outside [0, M*P], or a page
                     outside: an error on the CPU; on CUDA the sequence's results are NaN, and nothing
                     is read or written there. A position behind L: an error on the CPU, on CUDA the
                     last row.
    heads:           int; of queries.
    q_norm:          (C,) dtype of k_cache, contiguous, or None; scale of each feature of a query's
                     head, which is normalised; None: it is not.
    k_norm:          (C,) dtype of k_cache, contiguous, or None; likewise of a key's.
    qkv_bias:        ((heads+2*G)*C,) dtype of k_cache, contiguous, or None; added to the products.
    eps:             float, default 1e-06; added to mean squares.
    scale:           float or None, default None; factor of the scores; None: 1 / sqrt(C).
    Returns          x_out: (B, D), new unless given, dtype of k_cache, x + delta + what attention adds;
                     delta_out: (B, D), new unless given, dtype of k_cache, what the feed-forward part
                     adds, for the next layer. On a device it runs on the current stream, and never
                     waits.
    Requires         G > 0; heads > 0; heads % G == 0; C % 2 == 0; cos and sin to have rows.
    Raises           ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                     kernel.
    Computes         s = x + delta; q, k, v = fused_add_rms_norm's rows of s times qkv, each head of q
                     and k normalised and turned by rope; k and v are written to the cache; a =
                     attention_paged(q); x_out = s + a times out_weight; delta_out = (silu(h times gate)
                     * (h times up)) times down with h = rms_norm(x_out)
    Source           Touvron et al. 2023, arXiv:2302.13971; norms of heads as in Qwen3; one kernel for a
                     layer as in Hazy Research's Llama-1B megakernel
    """
    ...

def dense_gelu_dense(
    x: Array,
    weight1: Array,
    bias1: Array,
    weight2: Array,
    bias2: Array,
    approximate: str = 'tanh',
    out: Array | None = None,
) -> Array:
    """A linear, gelu and another linear: the feed-forward block of a transformer.

    x:            (*, K) float32, float16, bfloat16 or float64, contiguous; rows of K features.
    weight1:      (H, K) dtype of x, contiguous; one row of K factors for each of the H hidden features.
    bias1:        (H,) dtype of x, contiguous; added to each hidden feature.
    weight2:      (N, H) dtype of x, contiguous; one row of H factors for each of the N results.
    bias2:        (N,) dtype of x, contiguous; added to each of the N results.
    approximate:  str, default 'tanh'; 'tanh' for gelu by tanh, 'none' for the exact function.
    Returns       (*, N), new unless given, dtype of x. On a device it runs on the current stream, and
                  never waits.
    Raises        ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                  kernel.
    Computes      out = gelu(x weight1^T + bias1) weight2^T + bias2
    Source        NVIDIA/apex fused_dense, linear_gelu_linear_forward; Hendrycks & Gimpel 2016,
                  arXiv:1606.08415
    """
    ...

def dense_gelu_dense_backward(
    grad_out: Array,
    x: Array,
    weight1: Array,
    weight2: Array,
    gelu_in: Array,
    hidden: Array,
    approximate: str = 'tanh',
    grad_x: Array | None = None,
    grad_weight1: Array | None = None,
    grad_bias1: Array | None = None,
    grad_weight2: Array | None = None,
    grad_bias2: Array | None = None,
) -> tuple[Array | None, Array | None, Array | None, Array | None, Array | None]:
    """Gradients of dense_gelu_dense.

    grad_out:     (*, N) float32, float16, bfloat16 or float64, contiguous; gradient of the result of
                  dense_gelu_dense.
    x:            (*, K) dtype of grad_out, contiguous; rows of K features.
    weight1:      (H, K) dtype of grad_out, contiguous; one row of K factors for each of the H hidden
                  features.
    weight2:      (N, H) dtype of grad_out, contiguous; one row of H factors for each of the N results.
    gelu_in:      (*, H) dtype of grad_out, contiguous; what gelu was applied to, of
                  native_dense_gelu_dense.
    hidden:       (*, H) dtype of grad_out, contiguous; what gelu gave, of native_dense_gelu_dense.
    approximate:  str, default 'tanh'; that of the forward call.
    Returns       grad_x: (*, K), new unless given, dtype of grad_out, made only when wanted;
                  grad_weight1: (H, K), new unless given, dtype of grad_out, made only when wanted;
                  grad_bias1: (H,), new unless given, dtype of grad_out, made only when wanted;
                  grad_weight2: (N, H), new unless given, dtype of grad_out, made only when wanted;
                  grad_bias2: (N,), new unless given, dtype of grad_out, made only when wanted. On a
                  device it runs on the current stream, and never waits.
    Raises        ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                  kernel.
    Computes      g = (grad_out weight2) * gelu'(gelu_in); grad_x = g weight1; grad_weight1 = g^T x;
                  grad_bias1 = sum of the rows of g; grad_weight2 = grad_out^T hidden; grad_bias2 = sum
                  of the rows of grad_out
    Source        derivative of dense_gelu_dense; NVIDIA/apex fused_dense, linear_gelu_linear_backward
    """
    ...

def embedding(
    indices: Array,
    weight: Array,
    out: Array | None = None,
) -> Array:
    """Look up one row of weight for each index.

    indices:  (*,) int32 or int64, contiguous; rows to take, each at least 0 and less than V.
    weight:   (V, D) float32, float16, bfloat16, float64, bool, uint8, int8, int16, int32, int64,
              uint16, uint32, uint64, float8_e4m3fn, float8_e5m2, complex64 or complex128, last
              dimension contiguous; table of V rows.
    Returns   (*, D), new unless given, dtype of weight. On a device it runs on the current stream, and
              never waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  out[i,d] = weight[indices[i],d]
    Source    torch.nn.functional.embedding without padding_idx; an index outside [0, V) is an error on
              the CPU, on CUDA a row of zeros
    """
    ...

def embedding_backward(
    grad_out: Array,
    indices: Array,
    V: int,
    grad_weight: Array | None = None,
) -> Array:
    """Gradient of embedding: rows of grad_out, added up by index.

    grad_out:  (*, D) float32, float16, bfloat16 or float64, contiguous; gradient of the result of
               embedding.
    indices:   (*,) int32 or int64, contiguous; rows that were taken, each at least 0 and less than V.
    V:         int; rows of the table.
    Returns    grad_weight: (V, D), new unless given, dtype of grad_out. On a device it runs on the
               current stream, and never waits.
    Requires   0 <= V; 0 < V or numel(_) == 0.
    Raises     ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes   grad_weight[v,d] = sum of grad_out[i,d] over all i with indices[i] = v
    Source     derivative of torch.nn.functional.embedding without padding_idx; an index outside [0, V)
               is an error on the CPU, on CUDA counts for nothing
    """
    ...

def focal_loss(
    x: Array,
    target: Array,
    num_positives: Array,
    classes: int,
    alpha: float = 0.25,
    gamma: float = 2.0,
    *,
    smoothing: float = 0.0,
    loss: Array | None = None,
    partial: Array | None = None,
) -> tuple[Array, Array]:
    """Focal loss of sigmoids with a target class for each row, summed, and its gradient before it is divided.

    x:              (*, V) float32, float16, bfloat16 or float64, contiguous; rows of V logits.
    target:         (*,) int64 or int32, contiguous; the class of each row; -1: none; -2: the row has no
                    loss.
    num_positives:  () torch's promotion of x and float32, contiguous; one number, which the loss is
                    divided by.
    classes:        int; columns behind these are padding, and have no loss.
    alpha:          float, default 0.25; weight of the target's loss; that of the others is 1 - alpha.
    gamma:          float, default 2.0; power of the probability of what is wrong.
    smoothing:      float, default 0.0; share of each target that both sides get alike.
    Returns         loss: (), new unless given, torch's promotion of x and float32; partial: (*, V), new
                    unless given, dtype of x, the gradient of the sum, rounded to x's dtype, before it
                    is divided. On a device it runs on the current stream, and never waits.
    Requires        classes to be columns of x.
    Raises          ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                    kernel.
    Computes        with z = -x[r,v] and w = alpha where v = target[r], z = x[r,v] and w = 1 - alpha
                    elsewhere, q = 1 / (1 + exp(-z)): l[r,v] = w * q^gamma * (log(1 + exp(z)) -
                    smoothing / 2 * z) for v < classes of rows whose target is not -2, else 0; loss =
                    sum(l) / num_positives; partial[r,v] = dl[r,v] / dx[r,v]
    Source          Lin et al. 2017, arXiv:1708.02002, eq. 5; label smoothing and the interface:
                    apex.contrib.focal_loss. A target outside [-2, classes) is an IndexError on the CPU;
                    on CUDA the loss is NaN, and the row's gradient 0
    """
    ...

def focal_loss_backward(
    partial: Array,
    num_positives: Array,
    grad_loss: Array,
    grad_x: Array | None = None,
) -> Array:
    """Gradient of focal_loss from its second result, which it may overwrite.

    partial:        (*, V) float32, float16, bfloat16 or float64, contiguous; that of the forward call.
    num_positives:  () torch's promotion of partial and float32, contiguous; that of the forward call.
    grad_loss:      () torch's promotion of partial and float32, contiguous; gradient of loss.
    Returns         grad_x: (*, V), new unless given, dtype of partial. A result may be exactly partial.
                    On a device it runs on the current stream, and never waits.
    Raises          ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                    kernel.
    Computes        grad_x[r,v] = partial[r,v] * grad_loss / num_positives
    Source          derivative of focal_loss
    """
    ...

def fused_add_layer_norm(
    x: Array,
    residual: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-05,
    *,
    weight_offset: float = 0.0,
    out: Array | None = None,
    sum: Array | None = None,
) -> tuple[Array, Array]:
    """layer_norm of x + residual, with that sum.

    x:              (*, D) float32, float16, bfloat16 or float64, last dimension contiguous; rows.
    residual:       (*, D) dtype of x, last dimension contiguous; rows that are added to them.
    weight:         (D,) dtype of x or float32, contiguous, or None; scale of each feature, less
                    weight_offset; none: 1.
    bias:           (D,) dtype of weight, or that of x when None, contiguous, or None; added to each
                    feature; none: 0.
    eps:            float, default 1e-05; added to the variance; dimension of x squared.
    weight_offset:  float, default 0.0; added to weight (1 in Gemma, whose weights are stored less 1);
                    to 1 where there is none.
    Returns         out: (*, D), new unless given, dtype of x; sum: (*, D), new unless given, dtype of
                    x, x + residual, rounded to their dtype; it is what is normalised. A result may be
                    exactly x or residual. On a device it runs on the current stream, and never waits.
    Raises          ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                    kernel.
    Computes        sum = x + residual; out[r,d] = (sum[r,d] - mean_d sum[r,d]) / sqrt(var_d sum[r,d] +
                    eps) * (weight[d] + weight_offset) + bias[d]; var divides by D
    Source          Ba, Kiros & Hinton 2016, arXiv:1607.06450
    """
    ...

def fused_add_layer_norm_backward(
    sum: Array,
    grad_out: Array | None = None,
    grad_sum: Array | None = None,
    weight: Array | None = None,
    eps: float = 1e-05,
    *,
    weight_offset: float = 0.0,
    grad_x: Array | None = None,
    grad_weight: Array | None = None,
    grad_bias: Array | None = None,
) -> tuple[Array | None, Array | None, Array | None]:
    """Gradients of fused_add_layer_norm: grad_x is that of x and of residual.

    sum:            (*, D) float32, float16, bfloat16 or float64, last dimension contiguous; rows that
                    were normalised.
    grad_out:       (*, D) dtype of sum, last dimension contiguous, or None; gradient of the rows that
                    were normalised; none: 0.
    grad_sum:       (*, D) dtype of sum, last dimension contiguous, or None; gradient of sum; none: 0.
    weight:         (D,) dtype of sum or float32, contiguous, or None; scale of each feature, less
                    weight_offset; none: 1.
    eps:            float, default 1e-05; added to the variance; dimension of x squared.
    weight_offset:  float, default 0.0; added to weight (1 in Gemma, whose weights are stored less 1);
                    to 1 where there is none.
    Returns         grad_x: (*, D), new unless given, dtype of sum, made only when wanted; grad_weight:
                    (D,), new unless given, dtype of weight, or that of sum when None, made only when
                    wanted; grad_bias: (D,), new unless given, dtype of weight, or that of sum when
                    None, made only when wanted. On a device it runs on the current stream, and never
                    waits.
    Raises          ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                    kernel.
    Computes        with s[r] = 1 / sqrt(var_d sum[r,d] + eps), n = (sum - mean_d sum) * s and g =
                    grad_out * (weight + weight_offset): grad_x = s * (g - mean_d g - n * mean_d(g * n))
                    + grad_sum; grad_weight = sum_r grad_out * n; grad_bias = sum_r grad_out
    Source          derivative of Ba, Kiros & Hinton 2016, arXiv:1607.06450
    """
    ...

def fused_add_rms_norm(
    x: Array,
    residual: Array,
    weight: Array | None = None,
    eps: float = 1e-06,
    *,
    weight_offset: float = 0.0,
    out: Array | None = None,
    sum: Array | None = None,
) -> tuple[Array, Array]:
    """rms_norm of x + residual, with that sum.

    x:              (*, D) float32, float16, bfloat16 or float64, last dimension contiguous; rows.
    residual:       (*, D) dtype of x, last dimension contiguous; rows that are added to them.
    weight:         (D,) dtype of x or float32, contiguous, or None; scale of each feature, less
                    weight_offset; none: 1.
    eps:            float, default 1e-06; added to the mean square; dimension of x squared.
    weight_offset:  float, default 0.0; added to weight (1 in Gemma, whose weights are stored less 1);
                    to 1 where there is none.
    Returns         out: (*, D), new unless given, dtype of x; sum: (*, D), new unless given, dtype of
                    x, x + residual, rounded to their dtype; it is what is normalised. A result may be
                    exactly x or residual. On a device it runs on the current stream, and never waits.
    Raises          ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                    kernel.
    Computes        sum = x + residual; out[r,d] = sum[r,d] / sqrt(mean_d(sum[r,d]^2) + eps) *
                    (weight[d] + weight_offset)
    Source          Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4
    """
    ...

def fused_add_rms_norm_backward(
    sum: Array,
    grad_out: Array | None = None,
    grad_sum: Array | None = None,
    weight: Array | None = None,
    eps: float = 1e-06,
    *,
    weight_offset: float = 0.0,
    grad_x: Array | None = None,
    grad_weight: Array | None = None,
) -> tuple[Array | None, Array | None]:
    """Gradients of fused_add_rms_norm: grad_x is that of x and of residual.

    sum:            (*, D) float32, float16, bfloat16 or float64, last dimension contiguous; rows that
                    were normalised.
    grad_out:       (*, D) dtype of sum, last dimension contiguous, or None; gradient of the rows that
                    were normalised; none: 0.
    grad_sum:       (*, D) dtype of sum, last dimension contiguous, or None; gradient of sum; none: 0.
    weight:         (D,) dtype of sum or float32, contiguous, or None; scale of each feature, less
                    weight_offset; none: 1.
    eps:            float, default 1e-06; added to the mean square; dimension of x squared.
    weight_offset:  float, default 0.0; added to weight (1 in Gemma, whose weights are stored less 1);
                    to 1 where there is none.
    Returns         grad_x: (*, D), new unless given, dtype of sum, made only when wanted; grad_weight:
                    (D,), new unless given, dtype of weight, or that of sum when None, made only when
                    wanted. On a device it runs on the current stream, and never waits.
    Raises          ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                    kernel.
    Computes        with s[r] = 1 / sqrt(mean_d(sum[r,d]^2) + eps) and f[d] = weight[d] + weight_offset:
                    grad_x[r,d] = s[r] * (grad_out[r,d] * f[d] - sum[r,d] * s[r]^2 *
                    mean_d(grad_out[r,d] * f[d] * sum[r,d])) + grad_sum[r,d]; grad_weight[d] =
                    sum_r(grad_out[r,d] * sum[r,d] * s[r])
    Source          derivative of Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4
    """
    ...

def fused_add_rms_norm_quant(
    x: Array,
    residual: Array,
    weight: Array | None = None,
    scale: Array | None = None,
    eps: float = 1e-06,
    *,
    group: int = 2147483647,
    weight_offset: float = 0.0,
    dtype: Any = 'float8_e4m3fn',
    out: Array | None = None,
    sum: Array | None = None,
    scales: Array | None = None,
) -> tuple[Array, Array, Array | None]:
    """fused_add_rms_norm in 8 bits, with one scale for all, for each row, or for each group of columns.

    x:              (*, D) float32, float16 or bfloat16, last dimension contiguous; rows.
    residual:       (*, D) dtype of x, last dimension contiguous; rows that are added to them; a NaN or
                    an infinity in a sum makes its row NaN, and so, without scale, the scale of its
                    groups (0 in int8).
    weight:         (D,) dtype of x or float32, contiguous, or None; scale of each feature, less
                    weight_offset; none: 1.
    scale:          broadcastable to (*, ceil(D/group)) float32, any strides, or None; what rows are
                    divided by, as a product with its reciprocal in float32 (of 0 and less than 2.9e-39:
                    with 3.4e38), in any shape that broadcasts to that of scales; none: from the
                    greatest magnitude of each group.
    eps:            float, default 1e-06; added to the mean square; dimension of x squared.
    group:          int, default 2147483647; columns that share a scale; the default: all of a row.
    weight_offset:  float, default 0.0; added to weight (1 in Gemma, whose weights are stored less 1);
                    to 1 where there is none.
    dtype:          ScalarType, default 'float8_e4m3fn', one of int8 or float8_e4m3fn; float8_e4m3fn, or
                    int8.
    Returns         out: (*, D), new unless given, dtype dtype; sum: (*, D), new unless given, dtype of
                    x, what is normalised; scales: (*, ceil(D/group)), new unless given, dtype float32,
                    made only when wanted. A result may be exactly x or residual. On a device it runs on
                    the current stream, and never waits.
    Requires        group > 0.
    Raises          ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                    kernel.
    Computes        sum = x + residual, rounded to their dtype; with y[r,d] = sum[r,d] /
                    sqrt(mean_d(sum[r,d]^2) + eps) * (weight[d] + weight_offset): out[r,d] =
                    round(clamp(y[r,d] * (1 / s))); s = scale, or max(max_g |y[r,g]|, 1e-10) / 448 over
                    the group of d (127 for int8); clamped to [-448, 448] ([-128, 127])
    Source          Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4; Micikevicius et al. 2022,
                    arXiv:2209.05433 (e4m3); DeepSeek-AI 2024, arXiv:2412.19437, section 3.3 (groups of
                    128 columns)
    """
    ...

def fused_moe(
    x: Array,
    w13: Array,
    w2: Array,
    weights: Array,
    ids: Array,
    bias13: Array | None = None,
    bias2: Array | None = None,
    expert_map: Array | None = None,
    *,
    activation: str = 'silu',
    alpha: float = 1.0,
    limit: float | None = None,
    up_first: bool = False,
    transposed: int = 0,
    out: Array | None = None,
) -> Array:
    """The experts of a mixture: of each token the weighted sum of what its experts give.

    x:           (T, H) float32, float16, bfloat16 or float64, contiguous; tokens.
    w13:         (E, A, B) dtype of x, contiguous; of each expert one row of H factors for each of the I
                 gates, then for each of the I ups; of 'relu2' gates alone.
    w2:          (E, (1-transposed)*H+transposed*((A+B-H)//(1+(activation!='relu2'))),
                 (1-transposed)*((A+B-H)//(1+(activation!='relu2')))+transposed*H) dtype of x,
                 contiguous; of each expert one row of I factors for each of the H results.
    weights:     (T, K) float32, contiguous; of each slot, as moe_route gives them.
    ids:         (T, K) int32, contiguous; the experts of each token; one outside is of no expert and
                 counts for nothing.
    bias13:      (E, A+B-H) dtype of x, contiguous, or None; of each expert, added before the
                 activation.
    bias2:       (E, H) dtype of x, contiguous, or None; of each expert, added to its results.
    expert_map:  (G,) int32, contiguous, or None; of each expert of ids its number here, or -1: it is
                 elsewhere.
    activation:  str, default 'silu'; 'silu' (SwiGLU), 'gelu' (the exact function), 'gelu_tanh', 'relu2'
                 (no ups) or 'swigluoai' (gpt-oss; its alpha is 1.702, its limit 7).
    alpha:       float, default 1.0; factor within the sigmoid of 'silu' and 'swigluoai'.
    limit:       float or None, default None; positive: bounds gates above, ups on both sides.
    up_first:    bool, default False; the rows of the ups lie before those of the gates.
    transposed:  int, default 0; 1 (or True): w13 is E H 2*I and w2 E I H.
    Returns      (T, H), new unless given, dtype of x. On a device it runs on the current stream, and
                 never waits.
    Requires     activation in ('silu', 'gelu', 'gelu_tanh', 'relu2', 'swigluoai'); 0 <= transposed;
                 transposed <= 1; w13 to have H factors in each row, or column where transposed; w13 to
                 have as many ups as gates; 1 <= E; E <= 1024.
    Raises       ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                 kernel.
    Computes     out[t] = sum_k(weights[t,k] * (w2[e] hidden + bias2[e])) for e = ids[t,k]; gate, up =
                 w13[e] x[t] + bias13[e], gate <= limit, -limit <= up <= limit; hidden = gate *
                 sigmoid(alpha*gate) * up ('silu'), gate * sigmoid(alpha*gate) * (up + 1) ('swigluoai'),
                 gelu(gate) * up ('gelu', 'gelu_tanh') or, without up, relu(gate)^2 ('relu2')
    Source       Shazeer et al. 2017, arXiv:1701.06538; Shazeer 2020, arXiv:2002.05202; So et al. 2021,
                 arXiv:2109.08668 (relu2); OpenAI's gpt-oss (swigluoai)
    """
    ...

def fused_moe_backward(
    grad_out: Array,
    x: Array,
    w13: Array,
    w2: Array,
    weights: Array,
    hidden: Array,
    order: Array,
    offsets: Array,
    bias2: Array | None = None,
    *,
    activation: str = 'silu',
    alpha: float = 1.0,
    limit: float | None = None,
    up_first: bool = False,
    transposed: int = 0,
    grad_x: Array | None = None,
    grad_w13: Array | None = None,
    grad_w2: Array | None = None,
    grad_weights: Array | None = None,
    grad_bias13: Array | None = None,
    grad_bias2: Array | None = None,
) -> tuple[Array | None, Array | None, Array | None, Array | None, Array | None, Array | None]:
    """Gradients of fused_moe.

    grad_out:    (T, H) float32, float16, bfloat16 or float64, contiguous; gradient of the result of
                 fused_moe.
    x:           (T, H) dtype of grad_out, contiguous; tokens.
    w13:         (E, A, B) dtype of grad_out, contiguous; as in fused_moe.
    w2:          (E, (1-transposed)*H+transposed*((A+B-H)//(1+(activation!='relu2'))),
                 (1-transposed)*((A+B-H)//(1+(activation!='relu2')))+transposed*H) dtype of grad_out,
                 contiguous; as in fused_moe.
    weights:     (T, K) float32, contiguous; of each slot.
    hidden:      (T*K, A+B-H) dtype of grad_out, contiguous; that of native_fused_moe.
    order:       (T*K,) int32, contiguous; that of native_fused_moe: no slot comes twice.
    offsets:     (E+1,) int32, contiguous; that of native_fused_moe; as in grouped_linear.
    bias2:       (E, H) dtype of grad_out, contiguous, or None; that of the forward call; the gradient
                 of weights alone needs it.
    activation:  str, default 'silu'; that of the forward call.
    alpha:       float, default 1.0; that of the forward call.
    limit:       float or None, default None; that of the forward call; where a gate or an up is beyond
                 it, its gradient is 0.
    up_first:    bool, default False; that of the forward call.
    transposed:  int, default 0; that of the forward call.
    Returns      grad_x: (T, H), new unless given, dtype of grad_out, made only when wanted; grad_w13:
                 (E, A, B), new unless given, dtype of grad_out, made only when wanted; grad_w2: (E,
                 (1-transposed)*H+transposed*((A+B-H)//(1+(activation!='relu2'))),
                 (1-transposed)*((A+B-H)//(1+(activation!='relu2')))+transposed*H), new unless given,
                 dtype of grad_out, made only when wanted; grad_weights: (T, K), new unless given, dtype
                 float32, made only when wanted; grad_bias13: (E, A+B-H), new unless given, dtype of
                 grad_out, made only when wanted; grad_bias2: (E, H), new unless given, dtype of
                 grad_out, made only when wanted. On a device it runs on the current stream, and never
                 waits.
    Requires     activation in ('silu', 'gelu', 'gelu_tanh', 'relu2', 'swigluoai'); 0 <= transposed;
                 transposed <= 1; w13 to have H factors in each row, or column where transposed; w13 to
                 have as many ups as gates; 1 <= E; E <= 1024.
    Raises       ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                 kernel.
    Computes     of row i of expert e, slot s = order[i], token t = s//K: d = grad_out[t] w2[e], f = the
                 hidden features of hidden[i]; grad_weights[s] = sum(d * f) + sum(grad_out[t] *
                 bias2[e]); g[i] = weights[s] * d * df/dhidden[i]; grad_x[t] = sum_i(g[i] w13[e]);
                 grad_w13[e] = sum_i(g[i]^T x[t]), grad_bias13[e] = sum_i(g[i]), grad_w2[e] =
                 sum_i(grad_out[t]^T (weights[s] * f)), grad_bias2[e] = sum_i(weights[s] * grad_out[t])
    Source       derivative of fused_moe; Guo et al. 2025, arXiv:2512.14080 (the gradient of weights
                 from that of hidden features)
    """
    ...

def fused_moe_fp8_block(
    x: Array,
    w13: Array,
    w2: Array,
    w13_scale: Array,
    w2_scale: Array,
    weights: Array,
    ids: Array,
    x_scale: Array | None = None,
    expert_map: Array | None = None,
    *,
    activation: str = 'silu',
    out_dtype: Any = 'bfloat16',
    out: Array | None = None,
) -> Array:
    """fused_moe of 8-bit floats, with a scale for each 128 columns of a token and of hidden features, and each 128 x 128 of the weights.

    x:           (T, H) bfloat16, float16, float32 or float8_e4m3fn, contiguous; tokens, of 8 bits or
                 quantised here.
    w13:         (E, A, H) float8_e4m3fn, contiguous; of each expert one row of H factors for each of
                 the I gates, then for each of the I ups; of 'relu2' gates alone.
    w2:          (E, H, A//(1+(activation!='relu2'))) dtype of w13, contiguous; of each expert one row
                 of I factors for each of the H results.
    w13_scale:   (E, ceil(A/128), ceil(H/128)) float32, contiguous; of each 128 rows by 128 columns of
                 each expert's w13.
    w2_scale:    (E, ceil(H/128), ceil((A//(1+(activation!='relu2')))/128)) float32, contiguous; of each
                 128 rows by 128 columns of each expert's w2.
    weights:     (T, K) float32, contiguous; of each slot, as moe_route gives them.
    ids:         (T, K) int32, contiguous; the experts of each token; one outside is of no expert and
                 counts for nothing.
    x_scale:     (T, ceil(H/128)) float32, contiguous, or None; of each 128 columns of a token: of an x
                 of 8 bits what its numbers are times, none: 1; of another x what it is divided by,
                 none: from the greatest magnitude of each 128.
    expert_map:  (G,) int32, contiguous, or None; of each expert of ids its number here, or -1: it is
                 elsewhere.
    activation:  str, default 'silu'; 'silu' (SwiGLU), 'gelu' (the exact function), 'gelu_tanh' or
                 'relu2' (no ups).
    out_dtype:   ScalarType, default 'bfloat16', one of float16, bfloat16 or float32; of the result,
                 which is rounded once.
    Returns      (T, H), new unless given, dtype out_dtype. On a device it runs on the current stream,
                 and never waits.
    Requires     activation in ('silu', 'gelu', 'gelu_tanh', 'relu2'); w13 to have as many ups as gates;
                 1 <= E; E <= 1024.
    Raises       ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                 kernel.
    Computes     q(v) = round(v / s), s = max(max|v|, 1e-10) / 448 of each 128 columns of a row, as
                 quant_fp8; gate, up = (w13 * w13_scale)[e] (q(x) * s_x)[t]; hidden = silu(gate) * up,
                 gelu(gate) * up or, without up, relu(gate)^2 ('relu2'); out[t] = sum_k(weights[t,k] *
                 (w2 * w2_scale)[e] (q(hidden) * s_hidden)) for e = ids[t,k]
    Source       DeepSeek-AI 2024, arXiv:2412.19437, section 3.3; vLLM's fused_experts with blocks of
                 128 x 128
    """
    ...

def fused_moe_w8a8(
    x: Array,
    w13: Array,
    w2: Array,
    w13_scale: Array,
    w2_scale: Array,
    weights: Array,
    ids: Array,
    expert_map: Array | None = None,
    *,
    activation: str = 'silu',
    out_dtype: Any = 'bfloat16',
    out: Array | None = None,
) -> Array:
    """fused_moe of 8-bit weights with a scale for each of their rows; tokens and hidden features are quantised, each row with its own scale.

    x:           (T, H) bfloat16, float16 or float32, contiguous; tokens, quantised here.
    w13:         (E, A, H) float8_e4m3fn or int8, contiguous; of each expert one row of H factors for
                 each of the I gates, then for each of the I ups; of 'relu2' gates alone.
    w2:          (E, H, A//(1+(activation!='relu2'))) dtype of w13, contiguous; of each expert one row
                 of I factors for each of the H results, of w13's dtype.
    w13_scale:   (E, A) float32, contiguous; of each row of w13.
    w2_scale:    (E, H) float32, contiguous; of each row of w2.
    weights:     (T, K) float32, contiguous; of each slot, as moe_route gives them.
    ids:         (T, K) int32, contiguous; the experts of each token; one outside is of no expert and
                 counts for nothing.
    expert_map:  (G,) int32, contiguous, or None; of each expert of ids its number here, or -1: it is
                 elsewhere.
    activation:  str, default 'silu'; 'silu' (SwiGLU), 'gelu' (the exact function), 'gelu_tanh' or
                 'relu2' (no ups).
    out_dtype:   ScalarType, default 'bfloat16', one of float16, bfloat16 or float32; of the result,
                 which is rounded once.
    Returns      (T, H), new unless given, dtype out_dtype. On a device it runs on the current stream,
                 and never waits.
    Requires     activation in ('silu', 'gelu', 'gelu_tanh', 'relu2'); w13 to have as many ups as gates;
                 1 <= E; E <= 1024.
    Raises       ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                 kernel.
    Computes     q(v) = round(v / s), s = max(max|v|, 1e-10) / 448 (127 for int8) of each row, as
                 quant_fp8; gate, up = (w13[e] q(x[t])) * s_x[t] * w13_scale[e]; hidden = silu(gate) *
                 up, gelu(gate) * up or, without up, relu(gate)^2 ('relu2'); out[t] = sum_k(weights[t,k]
                 * (w2[e] q(hidden)) * s_hidden * w2_scale[e]) for e = ids[t,k]
    Source       Xiao et al. 2022, arXiv:2211.10438 (int8); Micikevicius et al. 2022, arXiv:2209.05433
                 (e4m3); vLLM's fused_experts with per-channel weights and per-token activations
    """
    ...

def gelu(
    x: Array,
    *,
    approximate: str = 'none',
    out: Array | None = None,
) -> Array:
    """Gaussian error linear unit of each element.

    x:            (*,) float32, float16, bfloat16 or float64, any strides; values.
    approximate:  str, default 'none'; 'none' for the exact function, 'tanh' for the approximation by
                  tanh.
    Returns       (*,), new unless given, dtype of x. A result may be exactly x. On a device it runs on
                  the current stream, and never waits.
    Raises        ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                  kernel.
    Computes      out = x * (1 + erf(x / sqrt(2))) / 2; tanh: x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 *
                  x^3))) / 2
    Source        Hendrycks & Gimpel 2016, arXiv:1606.08415
    """
    ...

def gelu_and_mul(
    x: Array,
    approximate: str = 'none',
    out: Array | None = None,
) -> Array:
    """GEGLU: gelu of the first half of each row times the second half.

    x:            (*, 2*D) float32, float16, bfloat16 or float64, last dimension contiguous; rows of
                  gates, then values.
    approximate:  str, default 'none'; 'none' for the exact function, 'tanh' for the approximation by
                  tanh.
    Returns       (*, D), new unless given, dtype of x. On a device it runs on the current stream, and
                  never waits.
    Raises        ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                  kernel.
    Computes      out[r,d] = gelu(x[r,d]) * x[r,D+d]
    Source        Shazeer 2020, arXiv:2002.05202, eq. 5; Hendrycks & Gimpel 2016, arXiv:1606.08415
    """
    ...

def gelu_and_mul_backward(
    grad_out: Array,
    x: Array,
    approximate: str = 'none',
    grad_x: Array | None = None,
) -> Array:
    """Gradient of gelu_and_mul.

    grad_out:     (*, D) float32, float16, bfloat16 or float64, last dimension contiguous; gradient of
                  the result of gelu_and_mul.
    x:            (*, 2*D) dtype of grad_out, last dimension contiguous; rows of gates, then values.
    approximate:  str, default 'none'; 'none' for the exact function, 'tanh' for the approximation by
                  tanh.
    Returns       grad_x: (*, 2*D), new unless given, dtype of grad_out. On a device it runs on the
                  current stream, and never waits.
    Raises        ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                  kernel.
    Computes      grad_x[r,d] = grad_out[r,d] * x[r,D+d] * gelu'(x[r,d]); grad_x[r,D+d] = grad_out[r,d]
                  * gelu(x[r,d])
    Source        derivative of gelu_and_mul; Hendrycks & Gimpel 2016, arXiv:1606.08415
    """
    ...

def gelu_backward(
    grad_out: Array,
    x: Array,
    *,
    approximate: str = 'none',
    grad_x: Array | None = None,
) -> Array:
    """Gradient of gelu.

    grad_out:     (*,) float32, float16, bfloat16 or float64, any strides; gradient of the result of
                  gelu.
    x:            (*,) dtype of grad_out, any strides; argument of gelu; at infinity the derivative has
                  its limit.
    approximate:  str, default 'none'; 'none' for the exact function, 'tanh' for the approximation by
                  tanh.
    Returns       grad_x: (*,), new unless given, dtype of grad_out. On a device it runs on the current
                  stream, and never waits.
    Raises        ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                  kernel.
    Computes      with c and p the normal distribution and density: grad_x = grad_out * (c(x) + x *
                  p(x)); tanh: with s = 1 / (1 + exp(-v)) and v = sqrt(8/pi) * (x + 0.044715 * x^3):
                  grad_out * (s + x * s * (1 - s) * v'(x))
    Source        derivative of Hendrycks & Gimpel 2016, arXiv:1606.08415
    """
    ...

def group_norm(
    x: Array,
    groups: int,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-05,
    *,
    activation: str = 'none',
    out: Array | None = None,
    mean: Array | None = None,
    rstd: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Normalise groups of channels to mean 0 and variance 1, then scale and shift each channel.

    x:           (N, C, *S) float32, float16, bfloat16 or float64, contiguous; batch, channels and any
                 further sizes.
    groups:      int; how many groups the channels are divided into.
    weight:      (C,) dtype of x or float32, contiguous, or None; scale of each channel; none: 1.
    bias:        (C,) dtype of weight, or that of x when None, contiguous, or None; added to each
                 channel; none: 0.
    eps:         float, default 1e-05; added to the variance.
    activation:  str, default 'none'; 'silu': of the result; 'none'.
    Returns      out: (N, C, *S), new unless given, dtype of x; mean: (N, groups), new unless given,
                 torch's promotion of x and float32, mean of each group; rstd: (N, groups), new unless
                 given, torch's promotion of x and float32, 1 / sqrt(variance + eps) of each group. A
                 result may be exactly x. On a device it runs on the current stream, and never waits.
    Requires     groups > 0; C % groups == 0; activation in ('none', 'silu').
    Raises       ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                 kernel.
    Computes     with g the group of c, C / groups channels each: z = (x[n,c,s] - mean[n,g]) * rstd[n,g]
                 * weight[c] + bias[c]; out[n,c,s] = z, or z / (1 + exp(-z)) for activation='silu'; mean
                 and 1 / rstd^2 - eps are those of the elements of n and g
    Source       Wu & He 2018, arXiv:1803.08494; torch.nn.functional.group_norm
    """
    ...

def group_norm_backward(
    grad_out: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    groups: int,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    activation: str = 'none',
    grad_x: Array | None = None,
    grad_weight: Array | None = None,
    grad_bias: Array | None = None,
) -> tuple[Array | None, Array | None, Array | None]:
    """Gradients of group_norm.

    grad_out:    (N, C, *S) float32, float16, bfloat16 or float64, contiguous; gradient of the result.
    x:           (N, C, *S) dtype of grad_out, contiguous; that of the forward call.
    mean:        (N, groups) torch's promotion of x and float32, contiguous; that of the forward call.
    rstd:        (N, groups) dtype of mean, contiguous; that of the forward call.
    groups:      int; that of the forward call.
    weight:      (C,) dtype of x or float32, contiguous, or None; that of the forward call.
    bias:        (C,) dtype of weight, or that of x when None, contiguous, or None; that of the forward
                 call; without an activation it counts for nothing.
    activation:  str, default 'none'; that of the forward call.
    Returns      grad_x: (N, C, *S), new unless given, dtype of x, made only when wanted; grad_weight:
                 (C,), new unless given, dtype of weight, or that of x when None, made only when wanted;
                 grad_bias: (C,), new unless given, dtype of weight, or that of x when None, made only
                 when wanted. On a device it runs on the current stream, and never waits.
    Requires     groups > 0; C % groups == 0; activation in ('none', 'silu').
    Raises       ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                 kernel.
    Computes     with h = (x[n,c,s] - mean) * rstd, z = h * weight + bias, d = grad_out[n,c,s], times
                 silu'(z) for activation='silu': grad_weight[c] = sum(d * h); grad_bias[c] = sum(d),
                 over all but c; grad_x = rstd * (weight * d - a - h * b), a and b being the means of
                 weight * d and weight * d * h in the group
    Source       derivative of group_norm
    """
    ...

def group_norm_channels_last(
    x: Array,
    groups: int,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-05,
    *,
    activation: str = 'none',
    out: Array | None = None,
    mean: Array | None = None,
    rstd: Array | None = None,
) -> tuple[Array, Array, Array]:
    """group_norm of a tensor whose channels come last.

    x:           (N, *S, C) float32, float16, bfloat16 or float64, contiguous; batch, channels and any
                 further sizes, channels last.
    groups:      int; how many groups the channels are divided into.
    weight:      (C,) dtype of x or float32, contiguous, or None; scale of each channel; none: 1.
    bias:        (C,) dtype of weight, or that of x when None, contiguous, or None; added to each
                 channel; none: 0.
    eps:         float, default 1e-05; added to the variance.
    activation:  str, default 'none'; 'silu': of the result; 'none'.
    Returns      out: (N, *S, C), new unless given, dtype of x; mean: (N, groups), new unless given,
                 torch's promotion of x and float32, mean of each group; rstd: (N, groups), new unless
                 given, torch's promotion of x and float32, 1 / sqrt(variance + eps) of each group. A
                 result may be exactly x. On a device it runs on the current stream, and never waits.
    Requires     groups > 0; C % groups == 0; activation in ('none', 'silu').
    Raises       ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                 kernel.
    Computes     with g the group of c, C / groups channels each: z = (x[n,s,c] - mean[n,g]) * rstd[n,g]
                 * weight[c] + bias[c]; out[n,s,c] = z, or z / (1 + exp(-z)) for activation='silu'; mean
                 and 1 / rstd^2 - eps are those of the elements of n and g
    Source       Wu & He 2018, arXiv:1803.08494; torch.nn.functional.group_norm
    """
    ...

def group_norm_channels_last_backward(
    grad_out: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    groups: int,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    activation: str = 'none',
    grad_x: Array | None = None,
    grad_weight: Array | None = None,
    grad_bias: Array | None = None,
) -> tuple[Array | None, Array | None, Array | None]:
    """Gradients of group_norm_channels_last.

    grad_out:    (N, *S, C) float32, float16, bfloat16 or float64, contiguous; gradient of the result.
    x:           (N, *S, C) dtype of grad_out, contiguous; that of the forward call.
    mean:        (N, groups) torch's promotion of x and float32, contiguous; that of the forward call.
    rstd:        (N, groups) dtype of mean, contiguous; that of the forward call.
    groups:      int; that of the forward call.
    weight:      (C,) dtype of x or float32, contiguous, or None; that of the forward call.
    bias:        (C,) dtype of weight, or that of x when None, contiguous, or None; that of the forward
                 call; without an activation it counts for nothing.
    activation:  str, default 'none'; that of the forward call.
    Returns      grad_x: (N, *S, C), new unless given, dtype of x, made only when wanted; grad_weight:
                 (C,), new unless given, dtype of weight, or that of x when None, made only when wanted;
                 grad_bias: (C,), new unless given, dtype of weight, or that of x when None, made only
                 when wanted. On a device it runs on the current stream, and never waits.
    Requires     groups > 0; C % groups == 0; activation in ('none', 'silu').
    Raises       ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                 kernel.
    Computes     with h = (x[n,s,c] - mean) * rstd, z = h * weight + bias, d = grad_out[n,s,c], times
                 silu'(z) for activation='silu': grad_weight[c] = sum(d * h); grad_bias[c] = sum(d),
                 over all but c; grad_x = rstd * (weight * d - a - h * b), a and b being the means of
                 weight * d and weight * d * h in the group
    Source       derivative of group_norm_channels_last
    """
    ...

def grouped_linear(
    x: Array,
    weight: Array,
    offsets: Array,
    bias: Array | None = None,
    out: Array | None = None,
) -> Array:
    """linear of segments of rows, each with the weight of its expert.

    x:        (T, K) float32, float16, bfloat16 or float64, contiguous; rows of K features, those of an
              expert one behind the other.
    weight:   (E, N, K) dtype of x, contiguous; of each expert one row of K factors for each of the N
              results.
    offsets:  (E+1,) int32, contiguous; where the rows of each expert begin, and behind the last: expert
              e has rows offsets[e] to offsets[e+1]; one that is negative or falls counts as the
              greatest before it (or 0), one beyond T as T.
    bias:     (E, N) dtype of x, contiguous, or None; of each expert, added to each of the N results.
    Returns   (T, N), new unless given, dtype of x. On a device it runs on the current stream, and never
              waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  out[t,n] = sum_k(x[t,k] * weight[e,n,k]) + bias[e,n] for offsets[e] <= t < offsets[e+1];
              rows of no segment are 0
    Source    torch._grouped_mm; Gale et al. 2022, arXiv:2211.15841
    """
    ...

def grouped_linear_backward(
    grad_out: Array,
    x: Array,
    weight: Array,
    offsets: Array,
    grad_x: Array | None = None,
    grad_weight: Array | None = None,
    grad_bias: Array | None = None,
) -> tuple[Array | None, Array | None, Array | None]:
    """Gradients of grouped_linear.

    grad_out:  (T, N) float32, float16, bfloat16 or float64, contiguous; gradient of the result of
               grouped_linear.
    x:         (T, K) dtype of grad_out, contiguous; rows of K features.
    weight:    (E, N, K) dtype of grad_out, contiguous; of each expert one row of K factors for each of
               the N results.
    offsets:   (E+1,) int32, contiguous; where the rows of each expert begin, and behind the last; as in
               grouped_linear.
    Returns    grad_x: (T, K), new unless given, dtype of grad_out, made only when wanted; grad_weight:
               (E, N, K), new unless given, dtype of grad_out, made only when wanted; grad_bias: (E, N),
               new unless given, dtype of grad_out, made only when wanted. On a device it runs on the
               current stream, and never waits.
    Raises     ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes   grad_x[t,k] = sum_n(grad_out[t,n] * weight[e,n,k]), 0 in rows of no segment;
               grad_weight[e,n,k] = sum_t(grad_out[t,n] * x[t,k]) and grad_bias[e,n] =
               sum_t(grad_out[t,n]) over the rows of e
    Source     derivative of grouped_linear
    """
    ...

def grouped_linear_fp8_block(
    x: Array,
    weight: Array,
    x_scale: Array,
    weight_scale: Array,
    offsets: Array,
    out_dtype: Any = 'bfloat16',
    out: Array | None = None,
) -> Array:
    """linear_fp8_block of segments of rows, each with the weight of its expert.

    x:             (T, K) float8_e4m3fn or float8_e5m2, contiguous; rows of K features, those of an
                   expert one behind the other.
    weight:        (E, N, K) dtype of x, contiguous; of each expert one row of K factors for each of the
                   N results, of x's dtype.
    x_scale:       (T, ceil(K/128)) float32, any strides; of each 128 columns of a row of x, in either
                   order of strides.
    weight_scale:  (E, ceil(N/128), ceil(K/128)) float32, contiguous; of each 128 rows by 128 columns of
                   each expert's weight.
    offsets:       (E+1,) int32, contiguous; where the rows of each expert begin, and behind the last:
                   expert e has rows offsets[e] to offsets[e+1]; one that is negative or falls counts as
                   the greatest before it (or 0), one beyond T as T.
    out_dtype:     ScalarType, default 'bfloat16', one of float16, bfloat16 or float32; of the result,
                   which is rounded once.
    Returns        (T, N), new unless given, dtype out_dtype. On a device it runs on the current stream,
                   and never waits.
    Raises         ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                   kernel.
    Computes       out[t,n] = sum_k(x[t,k] * x_scale[t,k//128] * weight[e,n,k] *
                   weight_scale[e,n//128,k//128]) for offsets[e] <= t < offsets[e+1]; rows of no segment
                   are 0
    Source         DeepSeek-AI 2024, arXiv:2412.19437, section 3.3; DeepGEMM m_grouped_fp8_gemm_nt
    """
    ...

def grouped_linear_fp8_block_masked(
    x: Array,
    weight: Array,
    x_scale: Array,
    weight_scale: Array,
    counts: Array,
    out_dtype: Any = 'bfloat16',
    out: Array | None = None,
) -> Array:
    """linear_fp8_block of the first rows of each expert's part, with its weight.

    x:             (E, C, K) float8_e4m3fn or float8_e5m2, contiguous; C rows of K features for each
                   expert.
    weight:        (E, N, K) dtype of x, contiguous; of each expert one row of K factors for each of the
                   N results, of x's dtype.
    x_scale:       (E, C, ceil(K/128)) float32, any strides; of each 128 columns of a row of x, in any
                   order of strides.
    weight_scale:  (E, ceil(N/128), ceil(K/128)) float32, contiguous; of each 128 rows by 128 columns of
                   each expert's weight.
    counts:        (E,) int32, contiguous; rows of each expert, the first of its C; a negative one is 0,
                   one beyond C is C.
    out_dtype:     ScalarType, default 'bfloat16', one of float16, bfloat16 or float32; of the result,
                   which is rounded once.
    Returns        (E, C, N), new unless given, dtype out_dtype. On a device it runs on the current
                   stream, and never waits.
    Raises         ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                   kernel.
    Computes       out[e,c,n] = sum_k(x[e,c,k] * x_scale[e,c,k//128] * weight[e,n,k] *
                   weight_scale[e,n//128,k//128]) for c < counts[e], else 0
    Source         DeepSeek-AI 2024, arXiv:2412.19437, section 3.3; DeepGEMM m_grouped_fp8_gemm_nt
    """
    ...

def grouped_linear_masked(
    x: Array,
    weight: Array,
    counts: Array,
    out: Array | None = None,
) -> Array:
    """linear of the first rows of each expert's part, with its weight.

    x:        (E, C, K) float32, float16, bfloat16 or float64, contiguous; C rows of K features for each
              expert.
    weight:   (E, N, K) dtype of x, contiguous; of each expert one row of K factors for each of the N
              results.
    counts:   (E,) int32, contiguous; rows of each expert, the first of its C; a negative one is 0, one
              beyond C is C.
    Returns   (E, C, N), new unless given, dtype of x. On a device it runs on the current stream, and
              never waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  out[e,c,n] = sum_k(x[e,c,k] * weight[e,n,k]) for c < counts[e], else 0
    Source    DeepGEMM m_grouped_gemm_nt_masked
    """
    ...

def grouped_wgrad_accumulate(
    x: Array,
    grad_out: Array,
    offsets: Array,
    grad_weight: Array,
) -> None:
    """Add the gradient of grouped_linear's weight to what is there, in float32.

    x:            (T, K) float32, float16 or bfloat16, contiguous; rows of K features, those of an
                  expert one behind the other.
    grad_out:     (T, N) dtype of x, contiguous; gradient of the result of grouped_linear.
    offsets:      (E+1,) int32, contiguous; where the rows of each expert begin, and behind the last; as
                  in grouped_linear.
    grad_weight:  (E, N, K) float32, contiguous, written; added to; that of an expert without rows is
                  left alone.
    Returns       None; grad_weight written in place. On a device it runs on the current stream, and
                  never waits.
    Raises        ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                  kernel.
    Computes      grad_weight[e,n,k] += sum_t(grad_out[t,n] * x[t,k]) for offsets[e] <= t < offsets[e+1]
    Source        linear_wgrad_accumulate; NVIDIA/apex wgrad_gemm_accum_fp32; Megatron-LM
    """
    ...

def index_mul_2d(
    in1: Array,
    in2: Array,
    indices: Array,
    out: Array | None = None,
) -> Array:
    """Multiply each row of in2 by the row of in1 that its index names.

    in1:      (V, D) float32, float16, bfloat16 or float64, contiguous; table of V rows.
    in2:      (N, D) dtype of in1, contiguous; factors of the rows that are taken.
    indices:  (N,) int32 or int64, contiguous; rows of in1 to take, each at least 0 and less than V.
    Returns   (N, D), new unless given, dtype of in1. A result may be exactly in2. On a device it runs
              on the current stream, and never waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  out[n,d] = in1[indices[n],d] * in2[n,d]
    Source    apex.contrib.index_mul_2d; an index outside [0, V) is an error on the CPU, on CUDA a row
              of zeros
    """
    ...

def index_mul_2d_backward(
    grad_out: Array,
    in1: Array,
    in2: Array,
    indices: Array,
    grad_in1: Array | None = None,
    grad_in2: Array | None = None,
) -> tuple[Array | None, Array | None]:
    """Gradient of index_mul_2d.

    grad_out:  (N, D) float32, float16, bfloat16 or float64, contiguous; gradient of the result of
               index_mul_2d.
    in1:       (V, D) dtype of grad_out, contiguous; table of V rows.
    in2:       (N, D) dtype of grad_out, contiguous; factors of the rows that were taken.
    indices:   (N,) int32 or int64, contiguous; rows of in1 that were taken, each at least 0 and less
               than V.
    Returns    grad_in1: (V, D), new unless given, dtype of grad_out, made only when wanted; grad_in2:
               (N, D), new unless given, dtype of grad_out, made only when wanted. On a device it runs
               on the current stream, and never waits.
    Raises     ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes   grad_in1[v,d] = sum of grad_out[n,d] * in2[n,d] over all n with indices[n] = v;
               grad_in2[n,d] = grad_out[n,d] * in1[indices[n],d]
    Source     derivative of index_mul_2d; an index outside [0, V) is an error on the CPU, on CUDA
               counts for nothing
    """
    ...

def index_mul_2d_double_backward(
    grad_out: Array,
    in1: Array,
    in2: Array,
    indices: Array,
    grad_grad_in1: Array | None = None,
    grad_grad_in2: Array | None = None,
    grad_grad_out: Array | None = None,
    grad_in1: Array | None = None,
    grad_in2: Array | None = None,
) -> tuple[Array | None, Array | None, Array | None]:
    """Gradient of index_mul_2d_backward.

    grad_out:       (N, D) float32, float16, bfloat16 or float64, contiguous; gradient of the result of
                    index_mul_2d.
    in1:            (V, D) dtype of grad_out, contiguous; table of V rows.
    in2:            (N, D) dtype of grad_out, contiguous; factors of the rows that were taken.
    indices:        (N,) int32 or int64, contiguous; rows of in1 that were taken, each at least 0 and
                    less than V.
    grad_grad_in1:  (V, D) dtype of grad_out, contiguous, or None; gradient of grad_in1; none: 0.
    grad_grad_in2:  (N, D) dtype of grad_out, contiguous, or None; gradient of grad_in2; none: 0.
    Returns         grad_grad_out: (N, D), new unless given, dtype of grad_out, made only when wanted;
                    grad_in1: (V, D), new unless given, dtype of grad_out, made only when wanted;
                    grad_in2: (N, D), new unless given, dtype of grad_out, made only when wanted. On a
                    device it runs on the current stream, and never waits.
    Raises          ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                    kernel.
    Computes        grad_grad_out[n,d] = grad_grad_in1[indices[n],d] * in2[n,d] + grad_grad_in2[n,d] *
                    in1[indices[n],d]; grad_in1[v,d] = sum of grad_grad_in2[n,d] * grad_out[n,d] over
                    all n with indices[n] = v; grad_in2[n,d] = grad_grad_in1[indices[n],d] *
                    grad_out[n,d]
    Source          derivative of index_mul_2d_backward; an index outside [0, V) is an error on the CPU,
                    on CUDA counts for nothing
    """
    ...

def l2_normalize(
    x: Array,
    eps: float = 1e-12,
    out: Array | None = None,
) -> Array:
    """Divide each row by its Euclidean norm, or by eps where the norm is smaller.

    x:        (*, D) float32, float16, bfloat16 or float64, last dimension contiguous; rows to
              normalise.
    eps:      float, default 1e-12; least divisor; dimension of x.
    Returns   (*, D), new unless given, dtype of x. A result may be exactly x. On a device it runs on
              the current stream, and never waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  out[r,d] = x[r,d] / max(sqrt(sum_d x[r,d]^2), eps)
    Source    PyTorch, torch.nn.functional.normalize with p=2 over the last dimension
    """
    ...

def l2_normalize_backward(
    grad_out: Array,
    x: Array,
    eps: float = 1e-12,
    grad_x: Array | None = None,
) -> Array:
    """Gradient of l2_normalize.

    grad_out:  (*, D) float32, float16, bfloat16 or float64, last dimension contiguous; gradient of the
               result of l2_normalize.
    x:         (*, D) dtype of grad_out, last dimension contiguous; rows that were normalised.
    eps:       float, default 1e-12; least divisor; dimension of x.
    Returns    grad_x: (*, D), new unless given, dtype of grad_out. On a device it runs on the current
               stream, and never waits.
    Raises     ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes   with n[r] = sqrt(sum_d x[r,d]^2): grad_x[r,d] = (grad_out[r,d] - x[r,d] *
               sum_d(grad_out[r,d] * x[r,d]) / n[r]^2) / n[r], or grad_out[r,d] / eps where n[r] < eps
    Source     derivative of torch.nn.functional.normalize with p=2 over the last dimension
    """
    ...

def layer_norm(
    x: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-05,
    *,
    weight_offset: float = 0.0,
    dtype: Any | None = None,
    out: Array | None = None,
) -> Array:
    """Give each row of x mean 0 and variance 1, then scale and shift by weight and bias.

    x:              (*, D) float32, float16, bfloat16 or float64, last dimension contiguous; rows to
                    normalise.
    weight:         (D,) dtype of x or float32, contiguous, or None; scale of each feature, less
                    weight_offset; none: 1.
    bias:           (D,) dtype of weight, or that of x when None, contiguous, or None; added to each
                    feature; none: 0.
    eps:            float, default 1e-05; added to the variance; dimension of x squared.
    weight_offset:  float, default 0.0; added to weight (1 in Gemma, whose weights are stored less 1);
                    to 1 where there is none.
    dtype:          ScalarType or None, default None, one of float16, bfloat16, float32 or float64; of
                    the result; none: that of x.
    Returns         (*, D), new unless given, dtype dtype, or that of x when None. A result may be
                    exactly x. On a device it runs on the current stream, and never waits.
    Raises          ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                    kernel.
    Computes        out[r,d] = (x[r,d] - mean_d x[r,d]) / sqrt(var_d x[r,d] + eps) * (weight[d] +
                    weight_offset) + bias[d]; var divides by D
    Source          Ba, Kiros & Hinton 2016, arXiv:1607.06450
    """
    ...

def layer_norm_backward(
    grad_out: Array,
    x: Array,
    weight: Array | None = None,
    eps: float = 1e-05,
    *,
    weight_offset: float = 0.0,
    grad_x: Array | None = None,
    grad_weight: Array | None = None,
    grad_bias: Array | None = None,
) -> tuple[Array | None, Array | None, Array | None]:
    """Gradients of layer_norm.

    grad_out:       (*, D) float32, float16, bfloat16 or float64, last dimension contiguous; gradient of
                    the result of layer_norm.
    x:              (*, D) float32, float16, bfloat16 or float64, last dimension contiguous; rows that
                    were normalised.
    weight:         (D,) dtype of x or float32, contiguous, or None; scale of each feature, less
                    weight_offset; none: 1.
    eps:            float, default 1e-05; added to the variance; dimension of x squared.
    weight_offset:  float, default 0.0; added to weight (1 in Gemma, whose weights are stored less 1);
                    to 1 where there is none.
    Returns         grad_x: (*, D), new unless given, dtype of x, made only when wanted; grad_weight:
                    (D,), new unless given, dtype of weight, or that of x when None, made only when
                    wanted; grad_bias: (D,), new unless given, dtype of weight, or that of x when None,
                    made only when wanted. On a device it runs on the current stream, and never waits.
    Raises          ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                    kernel.
    Computes        with s[r] = 1 / sqrt(var_d x[r,d] + eps), n = (x - mean_d x) * s and g = grad_out *
                    (weight + weight_offset): grad_x = s * (g - mean_d g - n * mean_d(g * n));
                    grad_weight = sum_r grad_out * n; grad_bias = sum_r grad_out
    Source          derivative of Ba, Kiros & Hinton 2016, arXiv:1607.06450
    """
    ...

def layer_norm_from_output(
    x: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-05,
    *,
    weight_offset: float = 0.0,
    out: Array | None = None,
    rstd: Array | None = None,
) -> tuple[Array, Array]:
    """layer_norm whose gradient needs the result and rstd, not x: it may run in place of x.

    x:              (*, D) float32, float16 or bfloat16, last dimension contiguous; rows to normalise.
    weight:         (D,) dtype of x or float32, contiguous, or None; scale of each feature, less
                    weight_offset; none: 1.
    bias:           (D,) dtype of weight, or that of x when None, contiguous, or None; added to each
                    feature; none: 0.
    eps:            float, default 1e-05; added to the variance; dimension of x squared.
    weight_offset:  float, default 0.0; added to weight (1 in Gemma, whose weights are stored less 1);
                    to 1 where there is none.
    Returns         out: (*, D), new unless given, dtype of x; rstd: (*, 1), new unless given, dtype
                    float32, reciprocal of the deviation of each row. A result may be exactly x. On a
                    device it runs on the current stream, and never waits.
    Raises          ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                    kernel.
    Computes        out[r,d] = (x[r,d] - mean_d x[r,d]) / sqrt(var_d x[r,d] + eps) * (weight[d] +
                    weight_offset) + bias[d]; var divides by D; rstd[r] = 1 / sqrt(var_d x[r,d] + eps)
    Source          Ba, Kiros & Hinton 2016, arXiv:1607.06450
    """
    ...

def layer_norm_from_output_backward(
    grad_out: Array,
    out: Array,
    rstd: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    weight_offset: float = 0.0,
    grad_x: Array | None = None,
    grad_weight: Array | None = None,
    grad_bias: Array | None = None,
) -> tuple[Array | None, Array | None, Array | None]:
    """Gradients of layer_norm, from its result instead of x.

    grad_out:       (*, D) float32, float16 or bfloat16, last dimension contiguous; gradient of out.
    out:            (*, D) dtype of grad_out, last dimension contiguous; result of
                    layer_norm_from_output.
    rstd:           (*, 1) float32, contiguous; its other result.
    weight:         (D,) dtype of out or float32, contiguous, or None; scale of each feature, less
                    weight_offset; none: 1.
    bias:           (D,) dtype of weight, or that of out when None, contiguous, or None; what was added;
                    none: 0.
    weight_offset:  float, default 0.0; added to weight (1 in Gemma, whose weights are stored less 1);
                    to 1 where there is none.
    Returns         grad_x: (*, D), new unless given, dtype of out, made only when wanted; grad_weight:
                    (D,), new unless given, dtype of weight, or that of out when None, made only when
                    wanted; grad_bias: (D,), new unless given, dtype of weight, or that of out when
                    None, made only when wanted. On a device it runs on the current stream, and never
                    waits.
    Raises          ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                    kernel.
    Computes        with f = weight + weight_offset and n = (out - bias) / f: grad_x = rstd * (grad_out
                    * f - mean_d(grad_out * f) - n * mean_d(grad_out * (out - bias))); grad_weight =
                    sum_r grad_out * n; grad_bias = sum_r grad_out; where f is 0, n is lost, and 0
                    stands for it
    Source          derivative of Ba, Kiros & Hinton 2016, arXiv:1607.06450
    """
    ...

def linear(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    out: Array | None = None,
) -> Array:
    """Multiply each row of x by every row of weight and add bias.

    x:        (*, K) float32, float16, bfloat16 or float64, contiguous; rows of K features.
    weight:   (N, K) dtype of x, contiguous; one row of K factors for each of the N results.
    bias:     (N,) dtype of x, contiguous, or None; added to each of the N results.
    Returns   (*, N), new unless given, dtype of x. On a device it runs on the current stream, and never
              waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  out[r,n] = sum_k(x[r,k] * weight[n,k]) + bias[n]
    Source    torch.nn.functional.linear
    """
    ...

def linear_act(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    residual: Array | None = None,
    activation: str = 'none',
    out: Array | None = None,
) -> Array:
    """Multiply each row of x by every row of weight, add bias and residual, and apply an activation.

    x:           (*, K) float32, float16, bfloat16 or float64, contiguous; rows of K features.
    weight:      (N, K) dtype of x, contiguous; one row of K factors for each of the N results.
    bias:        (N,) dtype of x, contiguous, or None; added to each of the N results.
    residual:    (*, N) dtype of x, last dimension contiguous, or None; added before the activation; all
                 is rounded once, at the end.
    activation:  str, default 'none'; 'none', 'relu', 'sigmoid', 'silu', 'gelu' (the exact function) or
                 'gelu_tanh'.
    Returns      (*, N), new unless given, dtype of x. On a device it runs on the current stream, and
                 never waits.
    Raises       ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                 kernel.
    Computes     out[r,n] = activation(sum_k(x[r,k] * weight[n,k]) + bias[n] + residual[r,n])
    Source       torch.nn.functional.linear and an activation; NVIDIA/apex fused_dense and mlp
    """
    ...

def linear_act_backward(
    grad_out: Array,
    x: Array,
    weight: Array,
    pre: Array | None = None,
    activation: str = 'none',
    grad_x: Array | None = None,
    grad_weight: Array | None = None,
    grad_bias: Array | None = None,
    grad_residual: Array | None = None,
) -> tuple[Array | None, Array | None, Array | None, Array | None]:
    """Gradients of linear_act.

    grad_out:    (*, N) float32, float16, bfloat16 or float64, contiguous; gradient of the result of
                 linear_act.
    x:           (*, K) dtype of grad_out, contiguous; rows of K features.
    weight:      (N, K) dtype of grad_out, contiguous; one row of K factors for each of the N results.
    pre:         (*, N) dtype of grad_out, contiguous, or None; what the activation was applied to, of
                 native_linear_act; needed by all activations but 'none'.
    activation:  str, default 'none'; that of the forward call.
    Returns      grad_x: (*, K), new unless given, dtype of grad_out, made only when wanted;
                 grad_weight: (N, K), new unless given, dtype of grad_out, made only when wanted;
                 grad_bias: (N,), new unless given, dtype of grad_out, made only when wanted;
                 grad_residual: (*, N), new unless given, dtype of grad_out, made only when wanted. On a
                 device it runs on the current stream, and never waits.
    Raises       ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                 kernel.
    Computes     g[r,n] = grad_out[r,n] * activation'(pre[r,n]); grad_x[r,k] = sum_n(g[r,n] *
                 weight[n,k]); grad_weight[n,k] = sum_r(g[r,n] * x[r,k]); grad_bias[n] = sum_r(g[r,n]);
                 grad_residual = g
    Source       derivative of linear_act
    """
    ...

def linear_backward(
    grad_out: Array,
    x: Array,
    weight: Array,
    grad_x: Array | None = None,
    grad_weight: Array | None = None,
    grad_bias: Array | None = None,
) -> tuple[Array | None, Array | None, Array | None]:
    """Gradients of linear.

    grad_out:  (*, N) float32, float16, bfloat16 or float64, contiguous; gradient of the result of
               linear.
    x:         (*, K) dtype of grad_out, contiguous; rows of K features.
    weight:    (N, K) dtype of grad_out, contiguous; one row of K factors for each of the N results.
    Returns    grad_x: (*, K), new unless given, dtype of grad_out, made only when wanted; grad_weight:
               (N, K), new unless given, dtype of grad_out, made only when wanted; grad_bias: (N,), new
               unless given, dtype of grad_out, made only when wanted. On a device it runs on the
               current stream, and never waits.
    Raises     ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes   grad_x[r,k] = sum_n(grad_out[r,n] * weight[n,k]); grad_weight[n,k] = sum_r(grad_out[r,n]
               * x[r,k]); grad_bias[n] = sum_r(grad_out[r,n])
    Source     derivative of torch.nn.functional.linear
    """
    ...

def linear_cross_entropy(
    x: Array,
    weight: Array,
    target: Array,
    bias: Array | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    softcap: float = 0.0,
    z_loss: float = 0.0,
    loss: Array | None = None,
    lse: Array | None = None,
) -> tuple[Array, Array]:
    """Cross entropy of linear's results with a target class for each row; these logits are never whole in memory.

    x:                (*, K) float32, float16, bfloat16 or float64, contiguous; rows of K features.
    weight:           (V, K) dtype of x, contiguous; one row of K factors for each of the V classes.
    target:           (*,) int64 or int32, contiguous; the class of each row, or ignore_index.
    bias:             (V,) dtype of x, contiguous, or None; added to the logits of each class.
    ignore_index:     int, default -100; rows of this target have loss 0; nothing is averaged here.
    label_smoothing:  float, default 0.0; share of the target's weight that all classes get alike.
    softcap:          float, default 0.0; logits become softcap * tanh(logit / softcap); 0: they stay.
    z_loss:           float, default 0.0; factor of lse^2, which is added to the loss.
    Returns           loss: (*,), new unless given, torch's promotion of x and float32; lse: (*,), new
                      unless given, torch's promotion of x and float32, natural logarithm of the sum of
                      the exponentials of a row's logits, of ignored rows too. On a device it runs on
                      the current stream, and never waits.
    Raises            ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                      kernel.
    Computes          with logit[r,v] = cap(sum_k(x[r,k] * weight[v,k]) + bias[v]), cap(a) = softcap *
                      tanh(a / softcap), and s = label_smoothing: lse[r] = log(sum_v(exp(logit[r,v])));
                      loss[r] = lse[r] - (1 - s) * logit[r,target[r]] - s * mean_v(logit[r,v]) + z_loss
                      * lse[r]^2, or 0 where target[r] is ignore_index
    Source            torch.nn.functional.cross_entropy of torch.nn.functional.linear, reduction='none';
                      z_loss: Chowdhery et al. 2022, arXiv:2204.02311, section 5; without logits:
                      Wijmans et al. 2024, arXiv:2411.09009. A target outside [0, V) that is not
                      ignore_index is an IndexError on the CPU; on CUDA the loss of its row is NaN, and
                      its gradients
    """
    ...

def linear_cross_entropy_backward(
    x: Array,
    weight: Array,
    target: Array,
    lse: Array,
    grad_loss: Array | None = None,
    grad_lse: Array | None = None,
    bias: Array | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    softcap: float = 0.0,
    z_loss: float = 0.0,
    grad_x: Array | None = None,
    grad_weight: Array | None = None,
    grad_bias: Array | None = None,
) -> tuple[Array | None, Array | None, Array | None]:
    """Gradients of linear_cross_entropy; the logits are computed again, and never whole in memory.

    x:                (*, K) float32, float16, bfloat16 or float64, contiguous; rows of K features.
    weight:           (V, K) dtype of x, contiguous; one row of K factors for each of the V classes.
    target:           (*,) int64 or int32, contiguous; the class of each row, or ignore_index.
    lse:              (*,) torch's promotion of x and float32, contiguous; that of the forward call.
    grad_loss:        (*,) dtype of lse, contiguous, or None; gradient of loss; none: 0. That of ignored
                      rows counts for nothing.
    grad_lse:         (*,) dtype of lse, contiguous, or None; gradient of lse; none: 0. Ignored rows
                      have one, too.
    bias:             (V,) dtype of x, contiguous, or None; that of the forward call.
    ignore_index:     int, default -100; that of the forward call.
    label_smoothing:  float, default 0.0; that of the forward call.
    softcap:          float, default 0.0; that of the forward call.
    z_loss:           float, default 0.0; that of the forward call.
    Returns           grad_x: (*, K), new unless given, dtype of x, made only when wanted; grad_weight:
                      (V, K), new unless given, dtype of x, made only when wanted; grad_bias: (V,), new
                      unless given, dtype of x, made only when wanted. On a device it runs on the
                      current stream, and never waits.
    Raises            ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                      kernel.
    Computes          with p[r,v] = exp(logit[r,v] - lse[r]), s = label_smoothing, and grad_loss[r] = 0
                      where target[r] is ignore_index: g[r,v] = (grad_loss[r] * (p[r,v] * (1 + 2 *
                      z_loss * lse[r]) - (1 - s) * [v = target[r]] - s / V) + grad_lse[r] * p[r,v]) *
                      cap'(sum_k(x[r,k] * weight[v,k]) + bias[v]); grad_x[r,k] = sum_v(g[r,v] *
                      weight[v,k]); grad_weight[v,k] = sum_r(g[r,v] * x[r,k]); grad_bias[v] =
                      sum_r(g[r,v])
    Source            derivative of linear_cross_entropy
    """
    ...

def linear_fp8_block(
    x: Array,
    weight: Array,
    x_scale: Array,
    weight_scale: Array,
    out_dtype: Any = 'bfloat16',
    out: Array | None = None,
) -> Array:
    """linear of 8-bit floats, with a scale for each 128 columns of a row of x and each 128 x 128 of weight.

    x:             (M, K) float8_e4m3fn or float8_e5m2, contiguous; rows of K features.
    weight:        (N, K) dtype of x, contiguous; one row of K factors for each of the N results, of x's
                   dtype.
    x_scale:       (M, ceil(K/128)) float32, any strides; of each 128 columns of a row of x, in either
                   order of strides.
    weight_scale:  (ceil(N/128), ceil(K/128)) float32, contiguous; of each 128 rows by 128 columns of
                   weight.
    out_dtype:     ScalarType, default 'bfloat16', one of float16, bfloat16 or float32; of the result,
                   which is rounded once.
    Returns        (M, N), new unless given, dtype out_dtype. On a device it runs on the current stream,
                   and never waits.
    Raises         ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                   kernel.
    Computes       out[m,n] = sum_k(x[m,k] * x_scale[m,k//128] * weight[n,k] *
                   weight_scale[n//128,k//128])
    Source         DeepSeek-AI 2024, arXiv:2412.19437, section 3.3; DeepGEMM fp8_gemm_nt
    """
    ...

def linear_gated(
    x: Array,
    weight: Array,
    activation: str = 'silu',
    out: Array | None = None,
) -> Array:
    """A gated product: activation of x by the first half of weight, times x by the second half.

    x:           (*, K) float32, float16, bfloat16 or float64, contiguous; rows of K features.
    weight:      (2*D, K) dtype of x, contiguous; one row of K factors for each of the D gates, then for
                 each of the D values.
    activation:  str, default 'silu'; 'silu' (SwiGLU), 'none', 'relu', 'sigmoid', 'gelu' (the exact
                 function) or 'gelu_tanh'.
    Returns      (*, D), new unless given, dtype of x. On a device it runs on the current stream, and
                 never waits.
    Raises       ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                 kernel.
    Computes     out[r,d] = activation(sum_k(x[r,k] * weight[d,k])) * sum_k(x[r,k] * weight[D+d,k])
    Source       Shazeer 2020, arXiv:2002.05202
    """
    ...

def linear_gated_backward(
    grad_out: Array,
    x: Array,
    weight: Array,
    pre: Array | None = None,
    activation: str = 'silu',
    grad_x: Array | None = None,
    grad_weight: Array | None = None,
) -> tuple[Array | None, Array | None]:
    """Gradients of linear_gated.

    grad_out:    (*, D) float32, float16, bfloat16 or float64, contiguous; gradient of the result of
                 linear_gated.
    x:           (*, K) dtype of grad_out, contiguous; rows of K features.
    weight:      (2*D, K) dtype of grad_out, contiguous; one row of K factors for each of the D gates,
                 then for each of the D values.
    pre:         (*, 2*D) dtype of grad_out, contiguous, or None; gates, then values, of
                 native_linear_gated; none: they are computed again.
    activation:  str, default 'silu'; that of the forward call.
    Returns      grad_x: (*, K), new unless given, dtype of grad_out, made only when wanted;
                 grad_weight: (2*D, K), new unless given, dtype of grad_out, made only when wanted. On a
                 device it runs on the current stream, and never waits.
    Raises       ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                 kernel.
    Computes     with gate = pre[r,d], value = pre[r,D+d]: g[r,d] = grad_out[r,d] * value *
                 activation'(gate), g[r,D+d] = grad_out[r,d] * activation(gate); grad_x = g weight;
                 grad_weight = g^T x
    Source       derivative of Shazeer 2020, arXiv:2002.05202
    """
    ...

def linear_packed(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    out: Array | None = None,
) -> Array:
    """linear with weights that pack_weight has put in order: faster for few rows of bfloat16.

    x:        (*, 2*J) float32, float16, bfloat16 or float64, contiguous; rows of 2*J features.
    weight:   (P, J, 64, 2) dtype of x, contiguous; what pack_weight gives for weights of 64*P rows and
              2*J columns.
    bias:     (64*P,) dtype of x, contiguous, or None; added to each of the 64*P results.
    Returns   (*, 64*P), new unless given, dtype of x. On a device it runs on the current stream, and
              never waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  out[r,64*p+n] = sum_j,i(x[r,2*j+i] * weight[p,j,n,i]) + bias[64*p+n]
    Source    torch.nn.functional.linear
    """
    ...

def linear_w4(
    x: Array,
    weight: Array,
    scale: Array,
    zero: Array | None = None,
    bias: Array | None = None,
    group_size: int = 128,
    out: Array | None = None,
) -> Array:
    """linear with 4-bit weights of w4_pack.

    x:           (*, 2*J) float32, float16 or bfloat16, contiguous; rows of K features.
    weight:      (N, J) uint8, contiguous; N by K/2 bytes, as w4_pack orders them.
    scale:       (ceil(2*J/group_size), N) dtype of x or float32, contiguous; of each group of factors
                 of each of the N results.
    zero:        broadcastable to (ceil(2*J/group_size), ceil(N/8)) int32, any strides, or None; zero
                 points of the same groups, 8 in each int32, low bits first; None: all are 8.
    bias:        (N,) dtype of x, contiguous, or None; added to each of the N results.
    group_size:  int, default 128; factors of a result that have one scale.
    Returns      (*, N), new unless given, dtype of x. On a device it runs on the current stream, and
                 never waits.
    Requires     group_size > 0; group_size to be a multiple of 32, or at least the number of features.
    Raises       ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                 kernel.
    Computes     out[r,n] = sum_k(x[r,k] * (q[n,k] - zero[k // group_size, n]) * scale[k // group_size,
                 n]) + bias[n], with q the 4 bits in weight
    Source       Lin et al. 2023, arXiv:2306.00978 (AWQ); Frantar et al. 2022, arXiv:2210.17323 (GPTQ);
                 Frantar et al. 2024, arXiv:2408.11743 (Marlin)
    """
    ...

def linear_w8a8(
    x: Array,
    weight: Array,
    x_scale: Array,
    weight_scale: Array,
    bias: Array | None = None,
    out_dtype: Any = 'bfloat16',
    out: Array | None = None,
) -> Array:
    """linear of 8-bit x and weight, with a scale for all, for each row of x, for each row of weight.

    x:             (M, K) int8, float8_e4m3fn or float8_e5m2, contiguous; rows of K features, int8 or an
                   8-bit float.
    weight:        (N, K) dtype of x, contiguous; one row of K factors for each of the N results, of x's
                   dtype.
    x_scale:       broadcastable to (M,) float32, any strides; one number for all of x, or one for each
                   row (token).
    weight_scale:  broadcastable to (N,) float32, any strides; one number for all of weight, or one for
                   each row (channel).
    bias:          (N,) float32, float16 or bfloat16, contiguous, or None; added to each of the N
                   results, after the scales.
    out_dtype:     ScalarType, default 'bfloat16', one of float16, bfloat16 or float32; of the result,
                   which is rounded once.
    Returns        (M, N), new unless given, dtype out_dtype. On a device it runs on the current stream,
                   and never waits.
    Raises         ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                   kernel.
    Computes       out[m,n] = sum_k(x[m,k] * weight[n,k]) * x_scale[m] * weight_scale[n] + bias[n]
    Source         torch._scaled_mm; vLLM cutlass_scaled_mm; Xiao et al. 2022, arXiv:2211.10438 (int8)
    """
    ...

def linear_wgrad_accumulate(
    x: Array,
    grad_out: Array,
    grad_weight: Array,
) -> None:
    """Add the gradient of linear's weight to what is there, in float32 or in x's dtype.

    x:            (*, K) float32, float16 or bfloat16, contiguous; rows of K features.
    grad_out:     (*, N) dtype of x, contiguous; gradient of the result of linear.
    grad_weight:  (N, K) dtype of x or float32, contiguous, written; added to; one rounding of the sum,
                  which is float32.
    Returns       None; grad_weight written in place. On a device it runs on the current stream, and
                  never waits.
    Raises        ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                  kernel.
    Computes      grad_weight[n,k] += sum_r(grad_out[r,n] * x[r,k])
    Source        NVIDIA/apex fused_weight_gradient_mlp_cuda, wgrad_gemm_accum_fp32; Megatron-LM
    """
    ...

def log_softmax(
    x: Array,
    dim: int = -1,
    out: Array | None = None,
) -> Array:
    """Logarithm of softmax, without its underflow.

    x:        (*X,) float32, float16, bfloat16 or float64, contiguous; scores; a NaN makes NaN of its
              whole row.
    dim:      int, default -1; dimension of the sum; negative: counted from the end.
    Returns   (*X,), new unless given, dtype of x. A result may be exactly x. On a device it runs on the
              current stream, and never waits.
    Requires  dim to be a dimension of x.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  out = x - max x - log(sum exp(x - max x)), over dimension dim
    Source    Goodfellow, Bengio & Courville 2016, Deep Learning, section 4.1
    """
    ...

def log_softmax_backward(
    grad_out: Array,
    out: Array,
    dim: int = -1,
    grad_x: Array | None = None,
) -> Array:
    """Gradient of log_softmax from its result.

    grad_out:  (*X,) float32, float16, bfloat16 or float64, contiguous; gradient of the result of
               log_softmax.
    out:       (*X,) dtype of grad_out, contiguous; result of log_softmax.
    dim:       int, default -1; dimension of the sum; negative: counted from the end.
    Returns    grad_x: (*X,), new unless given, dtype of grad_out. On a device it runs on the current
               stream, and never waits.
    Requires   dim to be a dimension of out.
    Raises     ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes   grad_x = grad_out - exp(out) * sum(grad_out), over dimension dim
    Source     derivative of log_softmax
    """
    ...

def masked_mean(
    x: Array,
    mask: Array,
    out: Array | None = None,
) -> Array:
    """Mean over the tokens of each sequence whose mask is not 0; zeros for a sequence without any.

    x:        (B, T, D) float32, float16, bfloat16 or float64, contiguous; features of each token.
    mask:     (B, T) bool, uint8, int32, int64, float32, float16, bfloat16, float64, int8 or int16,
              contiguous; 0 or False: the token does not count, whatever it holds; all else: it counts
              once.
    Returns   (B, D), new unless given, dtype of x. On a device it runs on the current stream, and never
              waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  out[b,d] = sum_t [mask[b,t] != 0] x[b,t,d] / max(1, sum_t [mask[b,t] != 0])
    Source    Reimers & Gurevych 2019, arXiv:1908.10084, section 3 (mean pooling)
    """
    ...

def masked_mean_backward(
    grad_out: Array,
    mask: Array,
    grad_x: Array | None = None,
) -> Array:
    """Gradient of masked_mean.

    grad_out:  (B, D) float32, float16, bfloat16 or float64, contiguous; gradient of the result of
               masked_mean.
    mask:      (B, T) bool, uint8, int32, int64, float32, float16, bfloat16, float64, int8 or int16,
               contiguous; 0 or False: the token does not count and has gradient 0; all else: it counts
               once.
    Returns    grad_x: (B, T, D), new unless given, dtype of grad_out. On a device it runs on the
               current stream, and never waits.
    Raises     ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes   grad_x[b,t,d] = [mask[b,t] != 0] grad_out[b,d] / sum_t [mask[b,t] != 0]
    Source     derivative of Reimers & Gurevych 2019, arXiv:1908.10084, section 3 (mean pooling)
    """
    ...

def matmul(
    a: Array,
    b: Array,
    out: Array | None = None,
) -> Array:
    """Product of matrices, of each pair when there are leading sizes.

    a:        (*X, M, K) float32, float16, bfloat16 or float64, any strides; matrices of M rows and K
              columns.
    b:        (*Y, K, N) dtype of a, any strides; matrices of K rows and N columns.
    Returns   (broadcast(*X, *Y), M, N), new unless given, dtype of a. On a device it runs on the
              current stream, and never waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  out[...,m,n] = sum_k(a[...,m,k] * b[...,k,n])
    Source    torch.matmul for tensors of two and more dimensions
    """
    ...

def matmul_backward(
    grad_out: Array,
    a: Array,
    b: Array,
    grad_a: Array | None = None,
    grad_b: Array | None = None,
) -> tuple[Array | None, Array | None]:
    """Gradients of matmul.

    grad_out:  (broadcast(*X, *Y), M, N) float32, float16, bfloat16 or float64, any strides; gradient of
               the result of matmul.
    a:         (*X, M, K) dtype of grad_out, any strides; matrices of M rows and K columns.
    b:         (*Y, K, N) dtype of grad_out, any strides; matrices of K rows and N columns.
    Returns    grad_a: (*X, M, K), new unless given, dtype of grad_out, made only when wanted; grad_b:
               (*Y, K, N), new unless given, dtype of grad_out, made only when wanted. On a device it
               runs on the current stream, and never waits.
    Raises     ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes   grad_a[...,m,k] = sum_n(grad_out[...,m,n] * b[...,k,n]); grad_b[...,k,n] =
               sum_m(a[...,m,k] * grad_out[...,m,n]); summed over leading sizes that were broadcast
    Source     derivative of torch.matmul
    """
    ...

def merge_states(
    outs: Sequence[Array],
    lses: Sequence[Array],
    out: Array | None = None,
    lse: Array | None = None,
) -> tuple[Array, Array]:
    """Join results of attention over parts of the keys, such as a shared prefix and the rest.

    outs:     list of N tensors (*X, E) float32, float16, bfloat16 or float64, contiguous; results of
              attention_with_lse over the parts.
    lses:     list of N tensors (*X,) float32, contiguous; their logarithms, natural. A sink belongs to
              one part alone.
    Returns   out: (*X, E), new unless given, dtype of outs; lse: (*X,), new unless given, dtype
              float32, that of the whole. On a device it runs on the current stream, and never waits.
    Requires  at least one part.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  lse = log(sum_n(exp(lses[n]))); out = sum_n(exp(lses[n] - lse) * outs[n]); a part with lse
              -inf counts for nothing, whatever its out; 0 and -inf where all are
    Source    the rule by which Milakov & Gimelshein 2018, arXiv:1805.02867, and FlashAttention join
              blocks of keys; flashinfer.merge_states
    """
    ...

def mla_decode(
    q: Array,
    cache: Array,
    page_table: Array,
    seqlens_k: Array,
    R: int = 512,
    *,
    scale: float | None = None,
    causal: bool = True,
    split_size: int = 0,
    out: Array | None = None,
    lse: Array | None = None,
) -> tuple[Array, Array | None]:
    """Multi-head latent attention, absorbed: all heads of a token read the same rows of a paged cache, as keys and, cut to R numbers, as values.

    q:           (B, S, H, W) float32, float16 or bfloat16, last dimension contiguous; S queries of each
                 of the B sequences, their latent part first, multiplied with the heads' own matrices
                 before.
    cache:       (N, P, W) dtype of q, last dimension contiguous; N pages of P places, a row of W
                 numbers in each: the R of the latent, then those of the rotated key.
    page_table:  (B, M) int32, contiguous; the pages of each sequence, in order; those behind its end
                 are not looked at.
    seqlens_k:   (B,) int32, contiguous; keys of each sequence, up to M*P.
    R:           int, default 512; numbers of a row that are its value, 512 of DeepSeek's 576.
    scale:       float or None, default None; factor of the scores; None: 1 / sqrt(W). DeepSeek's is
                 that of its heads before absorption, 1 / sqrt(128 + 64).
    causal:      bool, default True; queries attend to keys up to their own only.
    split_size:  int, default 0; keys of a part where a sequence is split, so that its bits depend on
                 itself alone; 0: the kernel chooses. The CPU splits none.
    Returns      out: (B, S, H, R), new unless given, dtype of q; lse: (B, S, H), new unless given,
                 dtype float32, made only when wanted, natural logarithm of the sum of all weights
                 before they are divided by it, in q's order; -inf where that is 0. On a device it runs
                 on the current stream, and never waits.
    Requires     0 < R; R <= W; 0 <= split_size.
    Raises       ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                 kernel.
    Computes     p[b,s,h,t] = softmax_t(scale * sum_w q[b,s,h,w] * row[b,t,w]); out[b,s,h,r] = sum_t
                 p[b,s,h,t] * row[b,t,r], r < R; row[b,t] = cache[page_table[b, t // P], t % P], t <
                 seqlens_k[b]; the last query of a sequence lies at its last key
    Source       DeepSeek-AI 2024, arXiv:2405.04434, section 2.1; FlashMLA's flash_mla_with_kvcache;
                 block by block as in Milakov & Gimelshein 2018, arXiv:1805.02867
    """
    ...

def mla_sparse(
    q: Array,
    cache: Array,
    indices: Array,
    R: int = 512,
    *,
    scale: float | None = None,
    lengths: Array | None = None,
    sinks: Array | None = None,
    out: Array | None = None,
    lse: Array | None = None,
) -> tuple[Array, Array | None]:
    """Multi-head latent attention, absorbed, of each token to the rows of a paged cache that its indices name, as an indexer chose them.

    q:        (T, H, W) float32, float16 or bfloat16, last dimension contiguous; queries of T tokens,
              their latent part first, multiplied with the heads' own matrices before.
    cache:    (N, P, W) dtype of q, last dimension contiguous; N pages of P places, a row of W numbers
              in each: the R of the latent, then those of the rotated key.
    indices:  (T, K) int32, contiguous; page * P + place of each row that a token sees; -1: none. One
              that comes twice counts twice.
    R:        int, default 512; numbers of a row that are its value, 512 of DeepSeek's 576.
    scale:    float or None, default None; factor of the scores; None: 1 / sqrt(W). DeepSeek's is that
              of its heads before absorption, 1 / sqrt(128 + 64).
    lengths:  (T,) int32, contiguous, or None; how many of a token's K indices count, the first ones;
              others are not looked at. None: all.
    sinks:    (H,) float32, contiguous, or None; one for each head: a score without a value, which takes
              its share of the weights.
    Returns   out: (T, H, R), new unless given, dtype of q; lse: (T, H), new unless given, dtype
              float32, made only when wanted, natural logarithm of the sum of all weights before they
              are divided by it, sinks included; -inf where that is 0. On a device it runs on the
              current stream, and never waits.
    Requires  0 < R; R <= W.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  p[t,h,k] = exp(scale * sum_w q[t,h,w] * row[t,k,w] - lse[t,h]); out[t,h,r] = sum_k
              p[t,h,k] * row[t,k,r], r < R; row[t,k] = cache[indices[t,k] // P, indices[t,k] % P], k <
              lengths[t] and indices[t,k] not -1; lse[t,h] = log(exp(sinks[h]) + sum_k exp(scale * sum_w
              q[t,h,w] * row[t,k,w]))
    Source    DeepSeek-AI 2025, DeepSeek-V3.2, section 2.1 (sparse attention); FlashMLA's
              flash_mla_sparse_fwd, whose lse leaves the sinks out; block by block as in Milakov &
              Gimelshein 2018, arXiv:1805.02867
    """
    ...

def mla_sparse_fp8(
    q: Array,
    cache: Array,
    indices: Array,
    *,
    scale: float | None = None,
    lengths: Array | None = None,
    sinks: Array | None = None,
    out: Array | None = None,
    lse: Array | None = None,
) -> tuple[Array, Array | None]:
    """mla_sparse over a cache in FlashMLA's rows of 656 bytes, as append_latent_fp8 writes them: 512 latent numbers in 8 bits, 64 of the rotated key in 16.

    q:        (T, H, 576) float32, float16 or bfloat16, last dimension contiguous; queries of T tokens,
              their latent part first, multiplied with the heads' own matrices before.
    cache:    (N, P, 656) uint8, last dimension contiguous; N pages of P places, a row of 656 bytes in
              each: 512 numbers in float8_e4m3fn, 4 scales in float32, 64 numbers in bfloat16.
    indices:  (T, K) int32, contiguous; page * P + place of each row that a token sees; -1: none. One
              that comes twice counts twice.
    scale:    float or None, default None; factor of the scores; None: 1 / sqrt(576). DeepSeek's is that
              of its heads before absorption, 1 / sqrt(128 + 64).
    lengths:  (T,) int32, contiguous, or None; how many of a token's K indices count, the first ones;
              others are not looked at. None: all.
    sinks:    (H,) float32, contiguous, or None; one for each head: a score without a value, which takes
              its share of the weights.
    Returns   out: (T, H, 512), new unless given, dtype of q; lse: (T, H), new unless given, dtype
              float32, made only when wanted, natural logarithm of the sum of all weights before they
              are divided by it, sinks included; -inf where that is 0. On a device it runs on the
              current stream, and never waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  as mla_sparse with W = 576 and R = 512; row[t,k,w] = number w in float8_e4m3fn times scale
              w // 128, w < 512, and number w - 512 in bfloat16 above, in float32
    Source    FlashMLA's sparse decoding over its fp8 cache, which vLLM calls fp8_ds_mla; DeepSeek-AI
              2025, DeepSeek-V3.2, section 2.1
    """
    ...

def moe_align(
    ids: Array,
    experts: int,
    block_size: int,
    sorted_ids: Array | None = None,
    block_experts: Array | None = None,
    padded_count: Array | None = None,
) -> tuple[Array, Array, Array]:
    """moe_sort with the part of each expert filled up to whole blocks, as kernels of fixed blocks of rows take it.

    ids:         (T, K) int32, contiguous; the experts of each token; one outside is of no expert and
                 left out.
    experts:     int; how many there are.
    block_size:  int; slots of a block.
    Returns      sorted_ids: (T*K+experts*(block_size-1),), new unless given, dtype int32;
                 block_experts: (ceil((T*K+experts*(block_size-1))/block_size),), new unless given,
                 dtype int32; padded_count: (1,), new unless given, dtype int32. On a device it runs on
                 the current stream, and never waits.
    Requires     1 <= experts; experts <= 1024; 1 <= block_size; block_size <= 65536.
    Raises       ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                 kernel.
    Computes     sorted_ids = the slots t*K+k by their expert, stable, each expert's filled with T*K up
                 to a multiple of block_size; block_experts[b] = the expert of block b, -1 behind the
                 last; padded_count = slots with the filling
    Source       vLLM and SGLang, moe_align_block_size
    """
    ...

def moe_permute(
    x: Array,
    order: Array,
    top_k: int,
    out: Array | None = None,
) -> Array:
    """The rows of tokens in the order of moe_sort.

    x:        (T, H) float32, float16, bfloat16 or float64, contiguous; one row for each token.
    order:    (N,) int32, contiguous; that of moe_sort.
    top_k:    int; slots of a token.
    Returns   (N, H), new unless given, dtype of x. On a device it runs on the current stream, and never
              waits.
    Requires  1 <= top_k; top_k <= 1024.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  out[i] = x[order[i] // top_k]; 0 where order[i] is outside of [0, T*top_k)
    Source    Gale et al. 2022, arXiv:2211.15841, section 5
    """
    ...

def moe_permute_backward(
    grad_out: Array,
    order: Array,
    top_k: int,
    T: int,
    grad_x: Array | None = None,
) -> Array:
    """Gradient of moe_permute: the rows of each token's slots, added up in the order of its slots.

    grad_out:  (N, H) float32, float16, bfloat16 or float64, contiguous; gradient of the result of
               moe_permute.
    order:     (N,) int32, contiguous; that of moe_sort: no slot comes twice.
    top_k:     int; slots of a token.
    T:         int; tokens.
    Returns    grad_x: (T, H), new unless given, dtype of grad_out. On a device it runs on the current
               stream, and never waits.
    Requires   1 <= top_k; top_k <= 1024; 0 <= T; T <= 2147483647.
    Raises     ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes   grad_x[t] = sum_k(grad_out[i] with order[i] = t*top_k+k)
    Source     derivative of moe_permute
    """
    ...

def moe_route(
    logits: Array,
    bias: Array | None = None,
    *,
    top_k: int,
    groups: int = 1,
    top_groups: int = 1,
    score: str = 'softmax',
    renormalize: bool = True,
    scale: float = 1.0,
    weights: Array | None = None,
    ids: Array | None = None,
) -> tuple[Array, Array]:
    """The top_k experts of each token and their weights.

    logits:       (T, E) float32, float16 or bfloat16, contiguous; of each token one number for each of
                  E experts; NaN is chosen as minus infinity is.
    bias:         (E,) float32, contiguous, or None; added to the scores to choose, not to the weights.
    top_k:        int; experts of a token.
    groups:       int, default 1; that the experts are divided into, neighbours together.
    top_groups:   int, default 1; groups of which a token's experts may be: the best by the greatest
                  key, with a bias by the sum of the two greatest.
    score:        str, default 'softmax'; softmax over all experts; sigmoid of each; topk_softmax:
                  softmax over the chosen, which a bias chooses by logits + bias.
    renormalize:  bool, default True; weights of a token sum to scale.
    scale:        float, default 1.0; factor of the weights.
    Returns       weights: (T, top_k), new unless given, dtype float32; ids: (T, top_k), new unless
                  given, dtype int32. On a device it runs on the current stream, and never waits.
    Requires      E <= 1024; 0 <= top_k; top_k <= 32; top_k <= E; 1 <= groups; E % max(groups, 1) == 0;
                  1 <= top_groups; top_groups <= groups; top_k experts in top_groups groups; score in
                  ('softmax', 'sigmoid', 'topk_softmax').
    Raises        ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                  kernel.
    Computes      ids[t] = the top_k greatest of key[t,e], equal ones by e; key = logits, with a bias
                  score(logits) + bias; weights[t,j] = scale * s[t,ids[t,j]], s = softmax of the row,
                  sigmoid, or softmax of the chosen; sigmoid with renormalize: divided by the sum of the
                  chosen + 1e-20; softmax with renormalize: softmax of the chosen
    Source        Shazeer et al. 2017, arXiv:1701.06538; groups and bias: DeepSeek-AI 2024,
                  arXiv:2412.19437, section 2.1.2
    """
    ...

def moe_route_backward(
    grad_weights: Array,
    logits: Array,
    weights: Array,
    ids: Array,
    score: str = 'softmax',
    renormalize: bool = True,
    scale: float = 1.0,
    grad_logits: Array | None = None,
) -> Array:
    """Gradient of moe_route.

    grad_weights:  (T, K) float32, contiguous; gradient of weights.
    logits:        (T, E) float32, float16 or bfloat16, contiguous; that of the forward call.
    weights:       (T, K) float32, contiguous; that of the forward call.
    ids:           (T, K) int32, contiguous; that of the forward call; one outside of the experts has no
                   gradient, equal ones add theirs.
    score:         str, default 'softmax'; that of the forward call.
    renormalize:   bool, default True; that of the forward call.
    scale:         float, default 1.0; that of the forward call.
    Returns        grad_logits: (T, E), new unless given, dtype of logits. On a device it runs on the
                   current stream, and never waits.
    Requires       E <= 1024; K <= 32; score in ('softmax', 'sigmoid', 'topk_softmax').
    Raises         ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                   kernel.
    Computes       with w = weights, g = grad_weights of a token, d = sum_j(g[j] * w[j]): softmax
                   without renormalize: p[e] * (scale * g[e] - d), p = softmax(logits), g[e] = 0 where e
                   was not chosen; else 0 where e was not chosen, and of the chosen w[j] * (g[j] - d /
                   sum_j(w[j])), of sigmoid times (1 - sigmoid(logits[ids[j]])), without renormalize
                   w[j] * g[j] * (1 - sigmoid(logits[ids[j]]))
    Source         derivative of moe_route
    """
    ...

def moe_sort(
    ids: Array,
    experts: int,
    expert_map: Array | None = None,
    order: Array | None = None,
    inverse: Array | None = None,
    offsets: Array | None = None,
) -> tuple[Array, Array, Array]:
    """The slots of tokens in the order of their experts: a stable sort.

    ids:         (T, K) int32, contiguous; the experts of each token; one outside is of no expert.
    experts:     int; how many there are; with expert_map, how many are here.
    expert_map:  (G,) int32, contiguous, or None; of each expert of ids its number here, or -1: it is
                 elsewhere.
    Returns      order: (T*K,), new unless given, dtype int32; inverse: (T, K), new unless given, dtype
                 int32; offsets: (experts+1,), new unless given, dtype int32. On a device it runs on the
                 current stream, and never waits.
    Requires     1 <= experts; experts <= 1024.
    Raises       ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                 kernel.
    Computes     order = the slots t*K+k by their expert, those of no expert left out and -1 in their
                 place at the end; inverse[order[i]] = i, -1 for a slot of no expert; offsets[e] = slots
                 of experts below e
    Source       Gale et al. 2022, arXiv:2211.15841, section 5
    """
    ...

def moe_unpermute(
    y: Array,
    inverse: Array,
    weights: Array | None = None,
    out: Array | None = None,
) -> Array:
    """The weighted sum of each token's rows, which lie in the order of moe_sort.

    y:        (N, H) float32, float16, bfloat16 or float64, contiguous; rows in the order of moe_sort.
    inverse:  (T, K) int32, contiguous; that of moe_sort; one outside of [0, N) counts for nothing.
    weights:  (T, K) float32, contiguous, or None; of each slot.
    Returns   (T, H), new unless given, dtype of y. On a device it runs on the current stream, and never
              waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  out[t] = sum_k(weights[t,k] * y[inverse[t,k]]) in the order of k, without weights of the
              rows; a slot of no expert (-1) counts for nothing
    Source    Gale et al. 2022, arXiv:2211.15841, section 5
    """
    ...

def moe_unpermute_backward(
    grad_out: Array,
    y: Array,
    inverse: Array,
    weights: Array | None = None,
    grad_y: Array | None = None,
    grad_weights: Array | None = None,
) -> tuple[Array | None, Array | None]:
    """Gradients of moe_unpermute.

    grad_out:  (T, H) float32, float16, bfloat16 or float64, contiguous; gradient of the result of
               moe_unpermute.
    y:         (N, H) dtype of grad_out, contiguous; rows in the order of moe_sort.
    inverse:   (T, K) int32, contiguous; that of moe_sort: no row comes twice.
    weights:   (T, K) float32, contiguous, or None; of each slot; none: 1.
    Returns    grad_y: (N, H), new unless given, dtype of grad_out, made only when wanted; grad_weights:
               (T, K), new unless given, dtype float32, made only when wanted. On a device it runs on
               the current stream, and never waits.
    Raises     ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes   grad_y[inverse[t,k]] = weights[t,k] * grad_out[t], 0 in rows of no slot;
               grad_weights[t,k] = sum_h(grad_out[t,h] * y[inverse[t,k],h])
    Source     derivative of moe_unpermute
    """
    ...

def mul(
    x: Array,
    y: Array,
    out: Array | None = None,
) -> Array:
    """Product of x and y, broadcast together. Integers wrap around; for bool, 0 is False and all else True.

    x:        (*X,) float32, float16, bfloat16, float64, int64, int32, int16, int8, uint8 or bool, any
              strides; values, or a number.
    y:        (*Y,) float32, float16, bfloat16, float64, int64, int32, int16, int8, uint8 or bool, any
              strides; values, or a number.
    Returns   (broadcast(*X, *Y)), new unless given, torch's promotion of x and y. A result may be
              exactly x. On a device it runs on the current stream, and never waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  out = x * y
    Source    PyTorch, torch.mul
    """
    ...

def mul_backward(
    x: Array,
    y: Array,
    grad_out: Array,
    grad_x: Array | None = None,
    grad_y: Array | None = None,
) -> tuple[Array | None, Array | None]:
    """Gradients of mul.

    x:         (*X,) float32, float16, bfloat16 or float64, any strides; values.
    y:         (*Y,) float32, float16, bfloat16 or float64, any strides; values.
    grad_out:  (broadcast(*X, *Y)) torch's promotion of x and y, contiguous; gradient of the result of
               mul; last, because its dtype follows from the others.
    Returns    grad_x: (*X,), new unless given, dtype of x, made only when wanted; grad_y: (*Y,), new
               unless given, dtype of y, made only when wanted. On a device it runs on the current
               stream, and never waits.
    Raises     ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes   grad_x = grad_out * y; grad_y = grad_out * x; both summed over the sizes that were
               broadcast
    Source     derivative of torch.mul
    """
    ...

def multi_tensor_adagrad(
    p: Sequence[Array],
    g: Sequence[Array],
    squares: Sequence[Array],
    lr: Array,
    master: Sequence[Array] | None = None,
    copy: Sequence[Array] | None = None,
    found_inf: Array | None = None,
    inv_scale: Array | None = None,
    *,
    eps: float = 1e-10,
    weight_decay: float = 0.0,
    decoupled: bool = False,
    maximize: bool = False,
) -> None:
    """One step of Adagrad over a list of parameters.

    p:             list of N tensors (*P,) float32, float16, bfloat16 or float64, without gaps, written;
                   parameters; written from master where that is given.
    g:             list of N tensors (*P,) dtype of p or float32, without gaps; gradients.
    squares:       list of N tensors (*P,) dtype of p or float32, without gaps, written; sum of the
                   squares of the gradients of all steps.
    lr:            broadcastable to (1,) float32, contiguous, or a number; learning rate, of one
                   element; one that decays is the caller's.
    master:        list of N tensors (*P,) float32, without gaps, or None, written; the parameters in
                   another dtype, which are read instead of p.
    copy:          list of N tensors (*P,) float16 or bfloat16, without gaps, or None, written; written
                   with the new parameters, in its own dtype.
    found_inf:     broadcastable to (1,) float32 or int32, contiguous, or None; of one element; where it
                   is not 0, nothing is written.
    inv_scale:     broadcastable to (1,) float32, contiguous, or a number, or None; factor of the
                   gradients, of one element.
    eps:           float, default 1e-10; added to the root of squares.
    weight_decay:  float, default 0.0; decay of the parameters.
    decoupled:     bool, default False; whether the parameters decay (Apex's adagrad_w_mode); else their
                   multiple is added to the gradients.
    maximize:      bool, default False; whether the gradients are negated.
    Returns        None; p, squares, master and copy written in place. On a device it runs on the
                   current stream, and never waits.
    Raises         ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                   kernel.
    Computes       h = g[n] * inv_scale, negative where maximize; h += weight_decay * p[n] unless
                   decoupled; squares[n] += h^2; p[n] -= lr * (h / (sqrt(squares[n]) + eps) +
                   weight_decay * p[n] where decoupled); nothing where found_inf is not 0
    Source         Duchi et al. 2011, Adaptive subgradient methods, JMLR 12; PyTorch,
                   torch.optim.Adagrad; NVIDIA Apex, amp_C.multi_tensor_adagrad
    """
    ...

def multi_tensor_adam(
    p: Sequence[Array],
    g: Sequence[Array],
    m: Sequence[Array],
    v: Sequence[Array],
    lr: Array,
    step: Array,
    master: Sequence[Array] | None = None,
    copy: Sequence[Array] | None = None,
    found_inf: Array | None = None,
    inv_scale: Array | None = None,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-08,
    weight_decay: float = 0.0,
    decoupled: bool = True,
    bias_correction: bool = True,
    maximize: bool = False,
    average: Sequence[Array] | None = None,
    average_rate: Array | None = None,
) -> None:
    """One step of Adam or AdamW over a list of parameters.

    p:                list of N tensors (*P,) float32, float16, bfloat16 or float64, without gaps,
                      written; parameters; written from master where that is given.
    g:                list of N tensors (*P,) dtype of p or float32, without gaps; gradients.
    m:                list of N tensors (*P,) dtype of p, float32, float16 or bfloat16, without gaps,
                      written; mean of the gradients.
    v:                list of N tensors (*P,) dtype of m, without gaps, written; mean of their squares.
    lr:               broadcastable to (1,) float32, contiguous, or a number; learning rate, of one
                      element.
    step:             broadcastable to (1,) float32, contiguous, or a number; number of this step, from
                      1, of one element.
    master:           list of N tensors (*P,) float32, without gaps, or None, written; the parameters in
                      another dtype, which are read instead of p.
    copy:             list of N tensors (*P,) float16 or bfloat16, without gaps, or None, written;
                      written with the new parameters, in its own dtype.
    found_inf:        broadcastable to (1,) float32 or int32, contiguous, or None; of one element; where
                      it is not 0, nothing is written.
    inv_scale:        broadcastable to (1,) float32, contiguous, or a number, or None; factor of the
                      gradients, of one element.
    beta1:            float, default 0.9; decay of m.
    beta2:            float, default 0.999; decay of v.
    eps:              float, default 1e-08; added to the root of v.
    weight_decay:     float, default 0.0; decay of the parameters.
    decoupled:        bool, default True; whether the parameters decay (AdamW); else their multiple is
                      added to the gradients (Adam with L2).
    bias_correction:  bool, default True; whether m and v are divided by 1 - beta^step.
    maximize:         bool, default False; whether the gradients are negated.
    average:          list of N tensors (*P,) torch's promotion of p and float32, without gaps, or None,
                      written; running averages of the new parameters, of float32 (float64 of such
                      parameters).
    average_rate:     broadcastable to (1,) float32, contiguous, or a number, or None; of exponential
                      averages, 1 - decay, of one element; without it all steps weigh the same.
    Returns           None; p, m, v, master, copy and average written in place. On a device it runs on
                      the current stream, and never waits.
    Raises            ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                      kernel.
    Computes          h = g[n] * inv_scale, negative where maximize; h += weight_decay * p[n] unless
                      decoupled; m[n] = beta1 * m[n] + (1 - beta1) * h; v[n] = beta2 * v[n] + (1 -
                      beta2) * h^2; p[n] -= lr * (m[n] / (1 - beta1^step) / (sqrt(v[n] / (1 -
                      beta2^step)) + eps) + weight_decay * p[n] where decoupled); average[n] += w *
                      (p[n] - average[n]), where w is 1 for a step of 1, else average_rate, else 1 /
                      step; nothing where found_inf is not 0
    Source            Kingma & Ba 2014, arXiv:1412.6980; Loshchilov & Hutter 2017, arXiv:1711.05101;
                      PyTorch, torch.optim.AdamW
    """
    ...

def multi_tensor_average(
    p: Sequence[Array],
    average: Sequence[Array],
    count: Array,
    rate: Array | None = None,
) -> None:
    """Take a list of parameters into their running averages.

    p:        list of N tensors (*P,) float32, float16, bfloat16 or float64, without gaps; the
              parameters.
    average:  list of N tensors (*P,) dtype of p or float32, without gaps, written; their averages,
              computed in float32, in float64 where a tensor is of it.
    count:    broadcastable to (1,) float32 or int64, contiguous, or a number; number of parameters that
              are in the averages, of one element; where it is 0 the averages become the parameters.
    rate:     broadcastable to (1,) float32, contiguous, or a number, or None; of an exponential
              average, 1 - decay, of one element; without it all parameters weigh the same.
    Returns   None; average written in place. On a device it runs on the current stream, and never
              waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  average[n] += w * (p[n] - average[n]), where w is 1 for a count of 0, else rate, else 1 /
              (count + 1)
    Source    PyTorch, torch.optim.swa_utils.AveragedModel; Izmailov et al. 2018, arXiv:1803.05407
    """
    ...

def multi_tensor_axpby(
    x: Sequence[Array],
    y: Sequence[Array],
    out: Sequence[Array],
    a: Array,
    b: Array,
    found_inf: Array | None = None,
    *,
    check: int = -1,
) -> None:
    """Add two lists of tensors, each times a number.

    x:          list of N tensors (*P,) float32, float16, bfloat16 or float64, without gaps; tensors of
                any dtypes; computed in float32, where one is float64 all are computed in float64.
    y:          list of N tensors (*P,) dtype of x or float32, without gaps; added.
    out:        list of N tensors (*P,) dtype of x or float32, without gaps, written; where sums are
                written, each in its own dtype.
    a:          broadcastable to (1,) float32, contiguous, or a number; factor of x, of one element.
    b:          broadcastable to (1,) float32, contiguous, or a number; factor of y, of one element.
    found_inf:  (1,) float32 or int32, contiguous, or None, written; of one element; set to 1 where what
                is checked is not finite, never to 0.
    check:      int, default -1; what is checked: 0 x, 1 y, -1 both.
    Returns     None; out and found_inf written in place. Elements of a written list may be exactly
                those of x or y. On a device it runs on the current stream, and never waits.
    Requires    -1 <= check; check <= 1.
    Raises      ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes    out[n] = a * x[n] + b * y[n]; found_inf = 1 where an element of what is checked is
                infinite or NaN, else as it was
    Source      NVIDIA Apex, amp_C.multi_tensor_axpby
    """
    ...

def multi_tensor_check_finite(
    x: Sequence[Array],
    found_inf: Array,
) -> None:
    """Look for infinities and NaN in a list of tensors.

    x:          list of N tensors (*P,) float32, float16, bfloat16 or float64, without gaps; tensors of
                any dtypes.
    found_inf:  (1,) float32 or int32, contiguous, written; of one element; set to 1, never to 0.
    Returns     None; found_inf written in place. On a device it runs on the current stream, and never
                waits.
    Raises      ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes    found_inf = 1 where an element of x is infinite or NaN, else as it was
    Source      PyTorch, torch.amp.GradScaler; NVIDIA Apex, fused_adam_cuda.strided_check_finite
    """
    ...

def multi_tensor_clip_grad_norm(
    g: Sequence[Array],
    max_norm: Array,
    norm: Array | None = None,
    *,
    norm_type: int = 2,
    total: Array | None = None,
) -> Array:
    """Scale a list of gradients where they lie, so that their norm is at most max_norm.

    g:          list of N tensors (*P,) float32, float16, bfloat16 or float64, without gaps, written;
                gradients of any dtypes; the norm is that of multi_tensor_l2norm or
                multi_tensor_max_norm.
    max_norm:   broadcastable to (1,) float32, contiguous, or a number; the largest norm, of one
                element.
    norm:       broadcastable to (1,) float32, contiguous, or a number, or None; of one element, where
                it is known already, such as that of gradients on several devices.
    norm_type:  int, default 2; 2 of the Euclidean norm, 0 of the maximum.
    Returns     total: (), new unless given, dtype float32, the norm before. On a device it runs on the
                current stream, and never waits.
    Requires    norm_type == 0 or norm_type == 2.
    Raises      ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes    total = norm where it is given, else sqrt(sum_n(sum(g[n]^2))), where norm_type is 0
                max_n(max(|g[n]|)); g[n] *= min(max_norm / (total + 1e-6), 1)
    Source      PyTorch, torch.nn.utils.clip_grad_norm_; NVIDIA Apex, apex.contrib.clip_grad
    """
    ...

def multi_tensor_l2norm(
    x: Sequence[Array],
    scale: Array | None = None,
    total: Array | None = None,
    each: Array | None = None,
) -> tuple[Array, Array | None]:
    """The Euclidean norm of all tensors of a list together, and of each.

    x:        list of N tensors (*P,) float32, float16, bfloat16 or float64, without gaps; tensors of
              any dtypes; squares are summed in float32 by 8,192, in float64 beyond; where one is
              float64 all are summed in float64.
    scale:    broadcastable to (1,) float32, contiguous, or a number, or None; factor of every element
              before its square, of one element; 1 where it is left out.
    Returns   total: (), new unless given, dtype float32, of all elements; each: (N,), new unless given,
              dtype float32, made only when wanted, of each tensor. On a device it runs on the current
              stream, and never waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  each[n] = |scale| * sqrt(sum(x[n]^2)); total = sqrt(sum_n(each[n]^2))
    Source    NVIDIA Apex, amp_C.multi_tensor_l2norm
    """
    ...

def multi_tensor_lamb(
    p: Sequence[Array],
    g: Sequence[Array],
    m: Sequence[Array],
    v: Sequence[Array],
    update: Sequence[Array],
    lr: Array,
    step: Array,
    global_norm: Array | None = None,
    max_grad_norm: Array | None = None,
    master: Sequence[Array] | None = None,
    copy: Sequence[Array] | None = None,
    found_inf: Array | None = None,
    inv_scale: Array | None = None,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-06,
    weight_decay: float = 0.01,
    decoupled: bool = True,
    bias_correction: bool = True,
    grad_averaging: bool = True,
    use_nvlamb: bool = False,
) -> None:
    """One step of LAMB over a list of parameters.

    p:                list of N tensors (*P,) float32, float16, bfloat16 or float64, without gaps,
                      written; parameters; written from master where that is given.
    g:                list of N tensors (*P,) dtype of p or float32, without gaps; gradients.
    m:                list of N tensors (*P,) dtype of p or float32, without gaps, written; mean of the
                      gradients.
    v:                list of N tensors (*P,) dtype of m, without gaps, written; mean of their squares.
    update:           list of N tensors (*P,) torch's promotion of p and float32, without gaps, written;
                      where updates are written.
    lr:               broadcastable to (1,) float32, contiguous, or a number; learning rate, of one
                      element.
    step:             broadcastable to (1,) float32, contiguous, or a number; number of this step, from
                      1, of one element.
    global_norm:      broadcastable to (1,) float32, contiguous, or a number, or None; norm of all
                      gradients, of one element, in the scale of max_grad_norm.
    max_grad_norm:    broadcastable to (1,) float32, contiguous, or a number, or None; largest norm of
                      all gradients, of one element; 0 or left out: any.
    master:           list of N tensors (*P,) float32, without gaps, or None, written; the parameters in
                      another dtype, which are read instead of p.
    copy:             list of N tensors (*P,) float16 or bfloat16, without gaps, or None, written;
                      written with the new parameters, in its own dtype.
    found_inf:        broadcastable to (1,) float32 or int32, contiguous, or None; of one element; where
                      it is not 0, nothing is written.
    inv_scale:        broadcastable to (1,) float32, contiguous, or a number, or None; factor of the
                      gradients, of one element.
    beta1:            float, default 0.9; decay of m.
    beta2:            float, default 0.999; decay of v.
    eps:              float, default 1e-06; added to the root of v.
    weight_decay:     float, default 0.01; multiple of the parameters that is added.
    decoupled:        bool, default True; whether it is added to the updates; else to the gradients.
    bias_correction:  bool, default True; whether m and v are divided by 1 - beta^step.
    grad_averaging:   bool, default True; whether gradients enter m times 1 - beta1.
    use_nvlamb:       bool, default False; whether the norms are looked at where weight_decay is 0 too.
    Returns           None; p, m, v, update, master and copy written in place. On a device it runs on
                      the current stream, and never waits.
    Raises            ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                      kernel.
    Computes          h = g[n] * inv_scale / max(global_norm / max_grad_norm, 1); h += weight_decay *
                      p[n] unless decoupled; m[n] = beta1 * m[n] + (1 - beta1 where grad_averaging, else
                      1) * h; v[n] = beta2 * v[n] + (1 - beta2) * h^2; update[n] = m[n] / (1 -
                      beta1^step) / (sqrt(v[n] / (1 - beta2^step)) + eps) + weight_decay * p[n] where
                      decoupled; ratio = norm(p[n]) / norm(update[n]) where both are not 0 and
                      use_nvlamb or weight_decay, else 1; p[n] -= lr * ratio * update[n]; nothing where
                      found_inf is not 0
    Source            You et al. 2019, arXiv:1904.00962; NVIDIA Apex, amp_C.multi_tensor_lamb
    """
    ...

def multi_tensor_lamb_stage1(
    p: Sequence[Array],
    g: Sequence[Array],
    m: Sequence[Array],
    v: Sequence[Array],
    update: Sequence[Array],
    step: Array,
    global_norm: Array | None = None,
    max_grad_norm: Array | None = None,
    found_inf: Array | None = None,
    inv_scale: Array | None = None,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-06,
    weight_decay: float = 0.01,
    decoupled: bool = True,
    bias_correction: bool = True,
    grad_averaging: bool = True,
) -> None:
    """The first stage of LAMB: what is to be subtracted, before norms are looked at.

    p:                list of N tensors (*P,) float32, float16, bfloat16 or float64, without gaps;
                      parameters.
    g:                list of N tensors (*P,) dtype of p or float32, without gaps; gradients.
    m:                list of N tensors (*P,) dtype of p or float32, without gaps, written; mean of the
                      gradients.
    v:                list of N tensors (*P,) dtype of m, without gaps, written; mean of their squares.
    update:           list of N tensors (*P,) torch's promotion of p and float32, without gaps, written;
                      where updates are written.
    step:             broadcastable to (1,) float32, contiguous, or a number; number of this step, from
                      1, of one element.
    global_norm:      broadcastable to (1,) float32, contiguous, or a number, or None; norm of all
                      gradients, of one element, in the scale of max_grad_norm.
    max_grad_norm:    broadcastable to (1,) float32, contiguous, or a number, or None; largest norm of
                      all gradients, of one element; 0 or left out: any.
    found_inf:        broadcastable to (1,) float32 or int32, contiguous, or None; of one element; where
                      it is not 0, nothing is written.
    inv_scale:        broadcastable to (1,) float32, contiguous, or a number, or None; factor of the
                      gradients, of one element.
    beta1:            float, default 0.9; decay of m.
    beta2:            float, default 0.999; decay of v.
    eps:              float, default 1e-06; added to the root of v.
    weight_decay:     float, default 0.01; multiple of the parameters that is added.
    decoupled:        bool, default True; whether it is added to the updates; else to the gradients.
    bias_correction:  bool, default True; whether m and v are divided by 1 - beta^step.
    grad_averaging:   bool, default True; whether gradients enter m times 1 - beta1.
    Returns           None; m, v and update written in place. On a device it runs on the current stream,
                      and never waits.
    Raises            ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                      kernel.
    Computes          h = g[n] * inv_scale / max(global_norm / max_grad_norm, 1); h += weight_decay *
                      p[n] unless decoupled; m[n] = beta1 * m[n] + (1 - beta1 where grad_averaging, else
                      1) * h; v[n] = beta2 * v[n] + (1 - beta2) * h^2; update[n] = m[n] / (1 -
                      beta1^step) / (sqrt(v[n] / (1 - beta2^step)) + eps) + weight_decay * p[n] where
                      decoupled; nothing where found_inf is not 0
    Source            You et al. 2019, arXiv:1904.00962; NVIDIA Apex,
                      amp_C.multi_tensor_lamb_stage1_cuda
    """
    ...

def multi_tensor_lamb_stage2(
    p: Sequence[Array],
    update: Sequence[Array],
    norms: Array,
    update_norms: Array,
    lr: Array,
    master: Sequence[Array] | None = None,
    copy: Sequence[Array] | None = None,
    found_inf: Array | None = None,
    *,
    weight_decay: float = 0.01,
    use_nvlamb: bool = False,
) -> None:
    """The second stage of LAMB: subtract updates, as large as the parameters.

    p:             list of N tensors (*P,) float32, float16, bfloat16 or float64, without gaps, written;
                   parameters; written from master where that is given.
    update:        list of N tensors (*P,) torch's promotion of p and float32, without gaps; what the
                   first stage wrote.
    norms:         (N,) float32, contiguous; Euclidean norms of the parameters.
    update_norms:  (N,) float32, contiguous; those of the updates.
    lr:            broadcastable to (1,) float32, contiguous, or a number; learning rate, of one
                   element.
    master:        list of N tensors (*P,) float32, without gaps, or None, written; the parameters in
                   another dtype, which are read instead of p.
    copy:          list of N tensors (*P,) float16 or bfloat16, without gaps, or None, written; written
                   with the new parameters, in its own dtype.
    found_inf:     broadcastable to (1,) float32 or int32, contiguous, or None; of one element; where it
                   is not 0, nothing is written.
    weight_decay:  float, default 0.01; as of the first stage; where it is 0 the ratio is 1.
    use_nvlamb:    bool, default False; whether the norms are looked at where weight_decay is 0 too.
    Returns        None; p, master and copy written in place. On a device it runs on the current stream,
                   and never waits.
    Raises         ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                   kernel.
    Computes       ratio = norms[n] / update_norms[n] where both are not 0 and use_nvlamb or
                   weight_decay, else 1; p[n] -= lr * ratio * update[n]; nothing where found_inf is not
                   0
    Source         You et al. 2019, arXiv:1904.00962; NVIDIA Apex, amp_C.multi_tensor_lamb_stage2_cuda
    """
    ...

def multi_tensor_max_norm(
    x: Sequence[Array],
    scale: Array | None = None,
    total: Array | None = None,
    each: Array | None = None,
) -> tuple[Array, Array | None]:
    """The largest absolute value of all tensors of a list together, and of each.

    x:        list of N tensors (*P,) float32, float16, bfloat16 or float64, without gaps; tensors of
              any dtypes; where one is float64 all are multiplied in float64, else in float32.
    scale:    broadcastable to (1,) float32, contiguous, or a number, or None; factor of every element,
              of one element; 1 where it is left out.
    Returns   total: (), new unless given, dtype float32, of all elements; each: (N,), new unless given,
              dtype float32, made only when wanted, of each tensor. On a device it runs on the current
              stream, and never waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  each[n] = |scale| * max(|x[n]|), 0 of nothing, NaN where an element is; total =
              max_n(each[n])
    Source    PyTorch, torch.nn.utils.get_total_norm; NVIDIA Apex, the maximum in
              amp_C.multi_tensor_novograd
    """
    ...

def multi_tensor_novograd(
    p: Sequence[Array],
    g: Sequence[Array],
    m: Sequence[Array],
    norms: Array,
    lr: Array,
    step: Array,
    master: Sequence[Array] | None = None,
    copy: Sequence[Array] | None = None,
    found_inf: Array | None = None,
    inv_scale: Array | None = None,
    *,
    beta1: float = 0.95,
    beta2: float = 0.98,
    eps: float = 1e-08,
    weight_decay: float = 0.0,
    bias_correction: bool = True,
    grad_averaging: bool = True,
    reg_inside_moment: bool = False,
    norm_type: int = 2,
    init_zero: bool = True,
) -> None:
    """One step of NovoGrad over a list of parameters.

    p:                  list of N tensors (*P,) float32, float16, bfloat16 or float64, without gaps,
                        written; parameters; written from master where that is given.
    g:                  list of N tensors (*P,) dtype of p or float32, without gaps; gradients.
    m:                  list of N tensors (*P,) dtype of p or float32, without gaps, written; mean of
                        the gradients.
    norms:              (N,) float32, contiguous, written; mean of the norms of each tensor's gradients;
                        begins as 0 where init_zero.
    lr:                 broadcastable to (1,) float32, contiguous, or a number; learning rate, of one
                        element.
    step:               broadcastable to (1,) float32, contiguous, or a number; number of this step,
                        from 1, of one element.
    master:             list of N tensors (*P,) float32, without gaps, or None, written; the parameters
                        in another dtype, which are read instead of p.
    copy:               list of N tensors (*P,) float16 or bfloat16, without gaps, or None, written;
                        written with the new parameters, in its own dtype.
    found_inf:          broadcastable to (1,) float32 or int32, contiguous, or None; of one element;
                        where it is not 0, nothing is written.
    inv_scale:          broadcastable to (1,) float32, contiguous, or a number, or None; factor of the
                        gradients, of one element.
    beta1:              float, default 0.95; decay of m.
    beta2:              float, default 0.98; decay of norms.
    eps:                float, default 1e-08; added to the norms.
    weight_decay:       float, default 0.0; multiple of the parameters that is added.
    bias_correction:    bool, default True; whether m is divided by 1 - beta1^step and norms by sqrt(1 -
                        beta2^step).
    grad_averaging:     bool, default True; whether gradients enter m times 1 - beta1.
    reg_inside_moment:  bool, default False; whether gradients are divided by their norm, and parameters
                        added, before they enter m.
    norm_type:          int, default 2; 2: Euclidean; 0: the maximum.
    init_zero:          bool, default True; whether norms enters the mean in step 1 too; else it becomes
                        the norms of its gradients.
    Returns             None; p, m, norms, master and copy written in place. On a device it runs on the
                        current stream, and never waits.
    Requires            norm_type to be 2 (Euclidean) or 0 (maximum).
    Raises              ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                        kernel.
    Computes            h = g[n] * inv_scale; norms[n] = sqrt(beta2 * norms[n]^2 + (1 - beta2) *
                        sum(h^2)), where norm_type is 0 beta2 * norms[n] + (1 - beta2) * max(|h|), in
                        step 1 unless init_zero sqrt(sum(h^2)) or max(|h|); root = norms[n] / sqrt(1 -
                        beta2^step) + eps; h = h / root + weight_decay * p[n] where reg_inside_moment;
                        m[n] = beta1 * m[n] + (1 - beta1 where grad_averaging, else 1) * h; change =
                        m[n] / (1 - beta1^step), where not reg_inside_moment change = change / root +
                        weight_decay * p[n]; p[n] -= lr * change; nothing where found_inf is not 0
    Source              Ginsburg et al. 2019, arXiv:1905.11286; NVIDIA Apex, amp_C.multi_tensor_novograd
    """
    ...

def multi_tensor_scale(
    x: Sequence[Array],
    out: Sequence[Array],
    scale: Array,
    found_inf: Array | None = None,
) -> None:
    """Multiply all tensors of a list by one number.

    x:          list of N tensors (*P,) float32, float16, bfloat16 or float64, without gaps; tensors of
                any dtypes; computed in float32, where one is float64 all are computed in float64.
    out:        list of N tensors (*P,) float32, float16, bfloat16 or float64, without gaps, written;
                where they are written, each in its own dtype.
    scale:      broadcastable to (1,) float32, contiguous, or a number; the factor, of one element.
    found_inf:  (1,) float32 or int32, contiguous, or None, written; of one element; set to 1 where x is
                not finite, never to 0.
    Returns     None; out and found_inf written in place. Elements of a written list may be exactly
                those of x. On a device it runs on the current stream, and never waits.
    Raises      ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes    out[n] = x[n] * scale; found_inf = 1 where an element of x is infinite or NaN, else as
                it was
    Source      NVIDIA Apex, amp_C.multi_tensor_scale
    """
    ...

def multi_tensor_sgd(
    p: Sequence[Array],
    g: Sequence[Array],
    lr: Array,
    buffer: Sequence[Array] | None = None,
    step: Array | None = None,
    master: Sequence[Array] | None = None,
    copy: Sequence[Array] | None = None,
    found_inf: Array | None = None,
    inv_scale: Array | None = None,
    *,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    wd_after_momentum: bool = False,
    maximize: bool = False,
) -> None:
    """One step of gradient descent with momentum over a list of parameters.

    p:                  list of N tensors (*P,) float32, float16, bfloat16 or float64, without gaps,
                        written; parameters; written from master where that is given.
    g:                  list of N tensors (*P,) dtype of p or float32, without gaps; gradients.
    lr:                 broadcastable to (1,) float32, contiguous, or a number; learning rate, of one
                        element.
    buffer:             list of N tensors (*P,) dtype of p, float32 or bfloat16, without gaps, or None,
                        written; mean of the gradients; where it is left out it is 0 before the step.
    step:               broadcastable to (1,) float32, contiguous, or a number, or None; number of this
                        step, of one element; in step 1 buffer is written without being read, where step
                        is left out it is read.
    master:             list of N tensors (*P,) float32, without gaps, or None, written; the parameters
                        in another dtype, which are read instead of p.
    copy:               list of N tensors (*P,) float16 or bfloat16, without gaps, or None, written;
                        written with the new parameters, in its own dtype.
    found_inf:          broadcastable to (1,) float32 or int32, contiguous, or None; of one element;
                        where it is not 0, nothing is written.
    inv_scale:          broadcastable to (1,) float32, contiguous, or a number, or None; factor of the
                        gradients, of one element.
    momentum:           float, default 0.0; decay of buffer.
    dampening:          float, default 0.0; part of the gradients that does not enter buffer.
    weight_decay:       float, default 0.0; multiple of the parameters that is added to the gradients.
    nesterov:           bool, default False; whether the step is the one that the next gradient would
                        make.
    wd_after_momentum:  bool, default False; whether the multiple of the parameters is added behind the
                        momentum.
    maximize:           bool, default False; whether the gradients are negated.
    Returns             None; p, buffer, master and copy written in place. On a device it runs on the
                        current stream, and never waits.
    Raises              ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                        kernel.
    Computes            h = g[n] * inv_scale, negative where maximize; h += weight_decay * p[n] unless
                        wd_after_momentum; buffer[n] = momentum * buffer[n] + (1 - dampening) * h, h in
                        the first step and without momentum; change = momentum * buffer[n] + h where
                        nesterov, else buffer[n]; change += weight_decay * p[n] where wd_after_momentum;
                        p[n] -= lr * change; nothing where found_inf is not 0
    Source              Sutskever et al. 2013, On the importance of initialization and momentum in deep
                        learning; PyTorch, torch.optim.SGD; NVIDIA Apex, amp_C.multi_tensor_sgd
    """
    ...

def native_dense_gelu_dense(
    x: Array,
    weight1: Array,
    bias1: Array,
    weight2: Array,
    bias2: Array,
    approximate: str = 'tanh',
    out: Array | None = None,
    gelu_in: Array | None = None,
    hidden: Array | None = None,
) -> tuple[Array, Array, Array]:
    """dense_gelu_dense that also gives what its gradient needs.

    x:            (*, K) float32, float16, bfloat16 or float64, contiguous; rows of K features.
    weight1:      (H, K) dtype of x, contiguous; one row of K factors for each of the H hidden features.
    bias1:        (H,) dtype of x, contiguous; added to each hidden feature.
    weight2:      (N, H) dtype of x, contiguous; one row of H factors for each of the N results.
    bias2:        (N,) dtype of x, contiguous; added to each of the N results.
    approximate:  str, default 'tanh'; 'tanh' for gelu by tanh, 'none' for the exact function.
    Returns       out: (*, N), new unless given, dtype of x; gelu_in: (*, H), new unless given, dtype of
                  x, what gelu was applied to, rounded; hidden: (*, H), new unless given, dtype of x,
                  what gelu gave, of sums that are not rounded; rounded. On a device it runs on the
                  current stream, and never waits.
    Raises        ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                  kernel.
    Computes      gelu_in = x weight1^T + bias1; hidden = gelu(gelu_in); out = hidden weight2^T + bias2
    Source        NVIDIA/apex fused_dense, linear_gelu_linear_forward; Hendrycks & Gimpel 2016,
                  arXiv:1606.08415
    """
    ...

def native_fused_moe(
    x: Array,
    w13: Array,
    w2: Array,
    weights: Array,
    ids: Array,
    bias13: Array | None = None,
    bias2: Array | None = None,
    expert_map: Array | None = None,
    *,
    activation: str = 'silu',
    alpha: float = 1.0,
    limit: float | None = None,
    up_first: bool = False,
    transposed: int = 0,
    out: Array | None = None,
    hidden: Array | None = None,
    order: Array | None = None,
    offsets: Array | None = None,
) -> tuple[Array, Array, Array, Array]:
    """fused_moe that also gives the sums in front of the activation and the order of slots, for the gradient.

    x:           (T, H) float32, float16, bfloat16 or float64, contiguous; tokens.
    w13:         (E, A, B) dtype of x, contiguous; of each expert one row of H factors for each of the I
                 gates, then for each of the I ups; of 'relu2' gates alone.
    w2:          (E, (1-transposed)*H+transposed*((A+B-H)//(1+(activation!='relu2'))),
                 (1-transposed)*((A+B-H)//(1+(activation!='relu2')))+transposed*H) dtype of x,
                 contiguous; of each expert one row of I factors for each of the H results.
    weights:     (T, K) float32, contiguous; of each slot, as moe_route gives them.
    ids:         (T, K) int32, contiguous; the experts of each token; one outside is of no expert and
                 counts for nothing.
    bias13:      (E, A+B-H) dtype of x, contiguous, or None; of each expert, added before the
                 activation.
    bias2:       (E, H) dtype of x, contiguous, or None; of each expert, added to its results.
    expert_map:  (G,) int32, contiguous, or None; of each expert of ids its number here, or -1: it is
                 elsewhere.
    activation:  str, default 'silu'; 'silu' (SwiGLU), 'gelu' (the exact function), 'gelu_tanh', 'relu2'
                 (no ups) or 'swigluoai' (gpt-oss; its alpha is 1.702, its limit 7).
    alpha:       float, default 1.0; factor within the sigmoid of 'silu' and 'swigluoai'.
    limit:       float or None, default None; positive: bounds gates above, ups on both sides.
    up_first:    bool, default False; the rows of the ups lie before those of the gates.
    transposed:  int, default 0; 1 (or True): w13 is E H 2*I and w2 E I H.
    Returns      out: (T, H), new unless given, dtype of x; hidden: (T*K, A+B-H), new unless given,
                 dtype of x, gates and ups of each slot in the order of experts, rounded; order: (T*K,),
                 new unless given, dtype int32, that of moe_sort; offsets: (E+1,), new unless given,
                 dtype int32, that of moe_sort. On a device it runs on the current stream, and never
                 waits.
    Requires     activation in ('silu', 'gelu', 'gelu_tanh', 'relu2', 'swigluoai'); 0 <= transposed;
                 transposed <= 1; w13 to have H factors in each row, or column where transposed; w13 to
                 have as many ups as gates; 1 <= E; E <= 1024.
    Raises       ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                 kernel.
    Computes     out[t] = sum_k(weights[t,k] * (w2[e] hidden + bias2[e])) for e = ids[t,k]; gate, up =
                 w13[e] x[t] + bias13[e], gate <= limit, -limit <= up <= limit; hidden = gate *
                 sigmoid(alpha*gate) * up ('silu'), gate * sigmoid(alpha*gate) * (up + 1) ('swigluoai'),
                 gelu(gate) * up ('gelu', 'gelu_tanh') or, without up, relu(gate)^2 ('relu2'); hidden[i]
                 = what w13 and bias13 give for slot order[i], before the limit, 0 behind the last
    Source       Shazeer et al. 2017, arXiv:1701.06538; Shazeer 2020, arXiv:2002.05202; So et al. 2021,
                 arXiv:2109.08668 (relu2); OpenAI's gpt-oss (swigluoai)
    """
    ...

def native_layer_norm(
    x: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-05,
    *,
    weight_offset: float = 0.0,
    dtype: Any | None = None,
    out: Array | None = None,
    mean: Array | None = None,
    rstd: Array | None = None,
) -> tuple[Array, Array, Array]:
    """layer_norm that also gives the mean and the reciprocal deviation of each row, in float32.

    x:              (*, D) float32, float16 or bfloat16, last dimension contiguous; rows to normalise.
    weight:         (D,) dtype of x or float32, contiguous, or None; scale of each feature, less
                    weight_offset; none: 1.
    bias:           (D,) dtype of weight, or that of x when None, contiguous, or None; added to each
                    feature; none: 0.
    eps:            float, default 1e-05; added to the variance; dimension of x squared.
    weight_offset:  float, default 0.0; added to weight (1 in Gemma, whose weights are stored less 1);
                    to 1 where there is none.
    dtype:          ScalarType or None, default None, one of float16, bfloat16 or float32; of the
                    result; none: that of x.
    Returns         out: (*, D), new unless given, dtype dtype, or that of x when None; mean: (*, 1),
                    new unless given, dtype float32, mean of each row; rstd: (*, 1), new unless given,
                    dtype float32, reciprocal of the deviation of each row. A result may be exactly x.
                    On a device it runs on the current stream, and never waits.
    Raises          ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                    kernel.
    Computes        out[r,d] = (x[r,d] - mean_d x[r,d]) / sqrt(var_d x[r,d] + eps) * (weight[d] +
                    weight_offset) + bias[d]; var divides by D
    Source          Ba, Kiros & Hinton 2016, arXiv:1607.06450
    """
    ...

def native_linear_act(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    residual: Array | None = None,
    activation: str = 'none',
    out: Array | None = None,
    pre: Array | None = None,
) -> tuple[Array, Array | None]:
    """linear_act that also gives what the activation was applied to, for the gradient.

    x:           (*, K) float32, float16, bfloat16 or float64, contiguous; rows of K features.
    weight:      (N, K) dtype of x, contiguous; one row of K factors for each of the N results.
    bias:        (N,) dtype of x, contiguous, or None; added to each of the N results.
    residual:    (*, N) dtype of x, last dimension contiguous, or None; added before the activation; all
                 is rounded once, at the end.
    activation:  str, default 'none'; 'none', 'relu', 'sigmoid', 'silu', 'gelu' (the exact function) or
                 'gelu_tanh'.
    Returns      out: (*, N), new unless given, dtype of x; pre: (*, N), new unless given, dtype of x,
                 made only when wanted, what the activation was applied to, rounded. On a device it runs
                 on the current stream, and never waits.
    Raises       ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                 kernel.
    Computes     out[r,n] = activation(sum_k(x[r,k] * weight[n,k]) + bias[n] + residual[r,n]); pre[r,n]
                 = what the activation is applied to
    Source       torch.nn.functional.linear and an activation; NVIDIA/apex fused_dense and mlp
    """
    ...

def native_linear_gated(
    x: Array,
    weight: Array,
    activation: str = 'silu',
    out: Array | None = None,
    pre: Array | None = None,
) -> tuple[Array, Array | None]:
    """linear_gated that also gives both products, for the gradient.

    x:           (*, K) float32, float16, bfloat16 or float64, contiguous; rows of K features.
    weight:      (2*D, K) dtype of x, contiguous; one row of K factors for each of the D gates, then for
                 each of the D values.
    activation:  str, default 'silu'; 'silu' (SwiGLU), 'none', 'relu', 'sigmoid', 'gelu' (the exact
                 function) or 'gelu_tanh'.
    Returns      out: (*, D), new unless given, dtype of x; pre: (*, 2*D), new unless given, dtype of x,
                 made only when wanted, gates, then values, rounded. On a device it runs on the current
                 stream, and never waits.
    Raises       ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                 kernel.
    Computes     out[r,d] = activation(sum_k(x[r,k] * weight[d,k])) * sum_k(x[r,k] * weight[D+d,k]);
                 pre[r,n] = sum_k(x[r,k] * weight[n,k])
    Source       Shazeer 2020, arXiv:2002.05202
    """
    ...

def native_rms_norm(
    x: Array,
    weight: Array | None = None,
    eps: float = 1e-06,
    *,
    weight_offset: float = 0.0,
    dtype: Any | None = None,
    out: Array | None = None,
    rstd: Array | None = None,
) -> tuple[Array, Array]:
    """rms_norm that also gives the reciprocal root mean square of each row, in float32.

    x:              (*, D) float32, float16 or bfloat16, last dimension contiguous; rows to normalise.
    weight:         (D,) dtype of x or float32, contiguous, or None; scale of each feature, less
                    weight_offset; none: 1.
    eps:            float, default 1e-06; added to the mean square; dimension of x squared.
    weight_offset:  float, default 0.0; added to weight (1 in Gemma, whose weights are stored less 1);
                    to 1 where there is none.
    dtype:          ScalarType or None, default None, one of float16, bfloat16 or float32; of the
                    result; none: that of x.
    Returns         out: (*, D), new unless given, dtype dtype, or that of x when None; rstd: (*, 1),
                    new unless given, dtype float32, reciprocal of the root mean square of each row. A
                    result may be exactly x. On a device it runs on the current stream, and never waits.
    Raises          ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                    kernel.
    Computes        out[r,d] = x[r,d] / sqrt(mean_d(x[r,d]^2) + eps) * (weight[d] + weight_offset);
                    rstd[r] = 1 / sqrt(mean_d(x[r,d]^2) + eps)
    Source          Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4
    """
    ...

def pack_weight(
    weight: Array,
    out: Array | None = None,
) -> Array:
    """The weights of linear in the order in which linear_packed reads them.

    weight:   (64*P, 2*J) float32, float16, bfloat16 or float64, contiguous; one row of K factors for
              each of the N results; N a multiple of 64, K of 2.
    Returns   (P, J, 64, 2), new unless given, dtype of weight. On a device it runs on the current
              stream, and never waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  out[p,j,n,i] = weight[64*p+n, 2*j+i]
    Source    anyop: panels of 64 results, the factors of two features side by side, as AVX512-BF16 and
              AMX multiply them
    """
    ...

def penalize(
    logits: Array,
    prompt_mask: Array,
    output_counts: Array,
    repetition: Array | None = None,
    frequency: Array | None = None,
    presence: Array | None = None,
) -> None:
    """Lower the logits of tokens that a text has already, in place.

    logits:         (B, V) float32, float16 or bfloat16, last dimension contiguous, written; B rows of V
                    logits.
    prompt_mask:    (B, V) bool, last dimension contiguous; which tokens the prompt has.
    output_counts:  (B, V) int32, last dimension contiguous; how often each token has been drawn.
    repetition:     broadcastable to (B,) float32, any strides, or a number, or None; 1: nothing.
    frequency:      broadcastable to (B,) float32, any strides, or a number, or None; for each time.
    presence:       broadcastable to (B,) float32, any strides, or a number, or None; once.
    Returns         None; logits written in place. On a device it runs on the current stream, and never
                    waits.
    Raises          ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                    kernel.
    Computes        where prompt_mask or output_counts: x = x / repetition if x > 0 else x * repetition;
                    then x = x - frequency * output_counts - presence * (output_counts > 0)
    Source          repetition: Keskar et al. 2019, arXiv:1909.05858, section 4.1, over the prompt and
                    the output; frequency and presence: OpenAI's API, over the output; in vLLM's order
    """
    ...

def qk_norm_rope(
    q: Array,
    k: Array,
    q_weight: Array,
    k_weight: Array,
    cos: Array,
    sin: Array,
    positions: Array | None = None,
    eps: float = 1e-06,
    *,
    weight_offset: float = 0.0,
    interleaved: bool = False,
    q_out: Array | None = None,
    k_out: Array | None = None,
) -> tuple[Array, Array]:
    """RMS norm of each head of queries and keys, then rope, in one call.

    q:              (*X, S, H, D) float32, float16, bfloat16 or float64, last dimension contiguous;
                    heads of each token, normalised whole; what lies behind the first R elements is not
                    turned.
    k:              (*X, S, G, D) dtype of q, last dimension contiguous; likewise, of another number of
                    heads.
    q_weight:       (D,) dtype of q or float32, contiguous; scale of each feature of a query's head.
    k_weight:       (D,) dtype of q_weight, contiguous; likewise of a key's.
    cos:            (P, R) dtype of q or float32, last dimension contiguous; a cosine for each of the R
                    elements and each of P positions; both of a pair most often the same.
    sin:            (P, R) dtype of cos, last dimension contiguous; as cos.
    positions:      broadcastable to (*X, S) int32 or int64, any strides, or None; row of the table for
                    each token; without it the place of a token in its sequence. Outside [0, P): an
                    error on the CPU, on other devices the nearest row.
    eps:            float, default 1e-06; added to the mean square.
    weight_offset:  float, default 0.0; added to the weights: 1 where they are stored as the difference
                    from 1 (Gemma).
    interleaved:    bool, default False; pairs are neighbours (GPT-J); else an element of the first half
                    and one of the second (GPT-NeoX).
    Returns         q_out: (*X, S, H, D), new unless given, dtype of q; k_out: (*X, S, G, D), new unless
                    given, dtype of q. A result may be exactly q or k. On a device it runs on the
                    current stream, and never waits.
    Requires        the rotary size R of cos and sin to be at most D; the rotary size R of cos and sin
                    to be even; cos and sin to have rows; heads of q to have at most D=1024 elements.
    Raises          ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                    kernel.
    Computes        q_out = rope(n(q, q_weight), cos, sin, positions, None, interleaved) and k_out
                    likewise, with n(x, w)[h,d] = x[h,d] / sqrt(mean_d(x[h,d]^2) + eps) * (w[d] +
                    weight_offset)
    Source          Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4; Su et al. 2021, arXiv:2104.09864;
                    both as in Qwen3
    """
    ...

def qk_norm_rope_backward(
    grad_q_out: Array,
    grad_k_out: Array,
    q: Array,
    k: Array,
    q_weight: Array,
    k_weight: Array,
    cos: Array,
    sin: Array,
    positions: Array | None = None,
    eps: float = 1e-06,
    *,
    weight_offset: float = 0.0,
    interleaved: bool = False,
    grad_q: Array | None = None,
    grad_k: Array | None = None,
    grad_q_weight: Array | None = None,
    grad_k_weight: Array | None = None,
) -> tuple[Array | None, Array | None, Array | None, Array | None]:
    """Gradients of qk_norm_rope: heads turned back, then through the norm.

    grad_q_out:     (*X, S, H, D) float32, float16, bfloat16 or float64, last dimension contiguous;
                    gradient of q_out.
    grad_k_out:     (*X, S, G, D) dtype of grad_q_out, last dimension contiguous; gradient of k_out.
    q:              (*X, S, H, D) dtype of grad_q_out, last dimension contiguous; heads of each token,
                    normalised whole; what lies behind the first R elements is not turned.
    k:              (*X, S, G, D) dtype of grad_q_out, last dimension contiguous; likewise, of another
                    number of heads.
    q_weight:       (D,) dtype of q or float32, contiguous; scale of each feature of a query's head.
    k_weight:       (D,) dtype of q_weight, contiguous; likewise of a key's.
    cos:            (P, R) dtype of q or float32, last dimension contiguous; a cosine for each of the R
                    elements and each of P positions; both of a pair most often the same.
    sin:            (P, R) dtype of cos, last dimension contiguous; as cos.
    positions:      broadcastable to (*X, S) int32 or int64, any strides, or None; row of the table for
                    each token; without it the place of a token in its sequence. Outside [0, P): an
                    error on the CPU, on other devices the nearest row.
    eps:            float, default 1e-06; added to the mean square.
    weight_offset:  float, default 0.0; added to the weights: 1 where they are stored as the difference
                    from 1 (Gemma).
    interleaved:    bool, default False; pairs are neighbours (GPT-J); else an element of the first half
                    and one of the second (GPT-NeoX).
    Returns         grad_q: (*X, S, H, D), new unless given, dtype of q, made only when wanted; grad_k:
                    (*X, S, G, D), new unless given, dtype of q, made only when wanted; grad_q_weight:
                    (D,), new unless given, dtype of q_weight, made only when wanted; grad_k_weight:
                    (D,), new unless given, dtype of q_weight, made only when wanted. On a device it
                    runs on the current stream, and never waits.
    Requires        the rotary size R of cos and sin to be at most D; the rotary size R of cos and sin
                    to be even; cos and sin to have rows; heads of q to have at most D=1024 elements.
    Raises          ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                    kernel.
    Computes        with g = rope_backward(grad_q_out, cos, sin, positions, None, interleaved), s[h] = 1
                    / sqrt(mean_d(q[h,d]^2) + eps) and w = q_weight + weight_offset: grad_q[h,d] = s[h]
                    * (g[h,d] * w[d] - q[h,d] * s[h]^2 * mean_d(g[h,d] * w[d] * q[h,d]));
                    grad_q_weight[d] = sum(g[h,d] * q[h,d] * s[h]) over heads of all tokens; and
                    likewise for k
    Source          Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4; Su et al. 2021, arXiv:2104.09864;
                    both as in Qwen3
    """
    ...

def quant_fp8(
    x: Array,
    scale: Array | None = None,
    *,
    group: int = 2147483647,
    dtype: Any = 'float8_e4m3fn',
    out: Array | None = None,
    scales: Array | None = None,
) -> tuple[Array, Array | None]:
    """Rows in 8 bits, with one scale for all, for each row, or for each group of columns.

    x:        (*, D) float32, float16 or bfloat16, last dimension contiguous; rows to quantise; without
              scale, a NaN or an infinity makes the scale of its group NaN or infinite; with one, NaN is
              NaN (0 in int8) and infinity the greatest number.
    scale:    broadcastable to (*, ceil(D/group)) float32, any strides, or None; what x is divided by,
              as a product with its reciprocal in float32 (of 0 and less than 2.9e-39: with 3.4e38), in
              any shape that broadcasts to that of scales; none: from the greatest magnitude of each
              group.
    group:    int, default 2147483647; columns that share a scale; the default: all of a row.
    dtype:    ScalarType, default 'float8_e4m3fn', one of int8 or float8_e4m3fn; float8_e4m3fn, or int8.
    Returns   out: (*, D), new unless given, dtype dtype; scales: (*, ceil(D/group)), new unless given,
              dtype float32, made only when wanted. On a device it runs on the current stream, and never
              waits.
    Requires  group > 0.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  out[r,d] = round(clamp(x[r,d] * (1 / s))); s = scale, or max(max_g |x[r,g]|, 1e-10) / 448
              over the group of d (127 for int8); clamped to [-448, 448] ([-128, 127])
    Source    Micikevicius et al. 2022, arXiv:2209.05433 (e4m3); DeepSeek-AI 2024, arXiv:2412.19437,
              section 3.3 (groups of 128 columns)
    """
    ...

def relu(
    x: Array,
    out: Array | None = None,
) -> Array:
    """The greater of each element and 0; NaN stays NaN.

    x:        (*,) float32, float16, bfloat16 or float64, any strides; values.
    Returns   (*,), new unless given, dtype of x. A result may be exactly x. On a device it runs on the
              current stream, and never waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  out = max(x, 0)
    Source    Nair & Hinton 2010, ICML
    """
    ...

def relu_backward(
    grad_out: Array,
    out: Array,
    grad_x: Array | None = None,
) -> Array:
    """Gradient of relu from its result.

    grad_out:  (*,) float32, float16, bfloat16 or float64, any strides; gradient of the result of relu.
    out:       (*,) dtype of grad_out, any strides; result of relu.
    Returns    grad_x: (*,), new unless given, dtype of grad_out. On a device it runs on the current
               stream, and never waits.
    Raises     ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes   grad_x = 0 where out <= 0, else grad_out
    Source     PyTorch, torch.nn.functional.relu: the derivative at 0 is 0
    """
    ...

def rms_norm(
    x: Array,
    weight: Array | None = None,
    eps: float = 1e-06,
    *,
    weight_offset: float = 0.0,
    dtype: Any | None = None,
    out: Array | None = None,
) -> Array:
    """Scale each row of x to unit root mean square, then multiply by weight.

    x:              (*, D) float32, float16, bfloat16 or float64, last dimension contiguous; rows to
                    normalise.
    weight:         (D,) dtype of x or float32, contiguous, or None; scale of each feature, less
                    weight_offset; none: 1.
    eps:            float, default 1e-06; added to the mean square; dimension of x squared.
    weight_offset:  float, default 0.0; added to weight (1 in Gemma, whose weights are stored less 1);
                    to 1 where there is none.
    dtype:          ScalarType or None, default None, one of float16, bfloat16, float32 or float64; of
                    the result; none: that of x.
    Returns         (*, D), new unless given, dtype dtype, or that of x when None. A result may be
                    exactly x. On a device it runs on the current stream, and never waits.
    Raises          ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                    kernel.
    Computes        out[r,d] = x[r,d] / sqrt(mean_d(x[r,d]^2) + eps) * (weight[d] + weight_offset)
    Source          Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4
    """
    ...

def rms_norm_backward(
    grad_out: Array,
    x: Array,
    weight: Array | None = None,
    eps: float = 1e-06,
    *,
    weight_offset: float = 0.0,
    grad_x: Array | None = None,
    grad_weight: Array | None = None,
) -> tuple[Array | None, Array | None]:
    """Gradients of rms_norm.

    grad_out:       (*, D) float32, float16, bfloat16 or float64, last dimension contiguous; gradient of
                    the result of rms_norm.
    x:              (*, D) float32, float16, bfloat16 or float64, last dimension contiguous; rows that
                    were normalised.
    weight:         (D,) dtype of x or float32, contiguous, or None; scale of each feature, less
                    weight_offset; none: 1.
    eps:            float, default 1e-06; added to the mean square; dimension of x squared.
    weight_offset:  float, default 0.0; added to weight (1 in Gemma, whose weights are stored less 1);
                    to 1 where there is none.
    Returns         grad_x: (*, D), new unless given, dtype of x, made only when wanted; grad_weight:
                    (D,), new unless given, dtype of weight, or that of x when None, made only when
                    wanted. On a device it runs on the current stream, and never waits.
    Raises          ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                    kernel.
    Computes        with s[r] = 1 / sqrt(mean_d(x[r,d]^2) + eps) and f[d] = weight[d] + weight_offset:
                    grad_x[r,d] = s[r] * (grad_out[r,d] * f[d] - x[r,d] * s[r]^2 * mean_d(grad_out[r,d]
                    * f[d] * x[r,d])); grad_weight[d] = sum_r(grad_out[r,d] * x[r,d] * s[r])
    Source          derivative of Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4
    """
    ...

def rms_norm_from_output(
    x: Array,
    weight: Array | None = None,
    eps: float = 1e-06,
    *,
    weight_offset: float = 0.0,
    out: Array | None = None,
    rstd: Array | None = None,
) -> tuple[Array, Array]:
    """rms_norm whose gradient needs the result and rstd, not x: it may run in place of x.

    x:              (*, D) float32, float16 or bfloat16, last dimension contiguous; rows to normalise.
    weight:         (D,) dtype of x or float32, contiguous, or None; scale of each feature, less
                    weight_offset; none: 1.
    eps:            float, default 1e-06; added to the mean square; dimension of x squared.
    weight_offset:  float, default 0.0; added to weight (1 in Gemma, whose weights are stored less 1);
                    to 1 where there is none.
    Returns         out: (*, D), new unless given, dtype of x; rstd: (*, 1), new unless given, dtype
                    float32, reciprocal of the root mean square of each row. A result may be exactly x.
                    On a device it runs on the current stream, and never waits.
    Raises          ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                    kernel.
    Computes        out[r,d] = x[r,d] / sqrt(mean_d(x[r,d]^2) + eps) * (weight[d] + weight_offset);
                    rstd[r] = 1 / sqrt(mean_d(x[r,d]^2) + eps)
    Source          Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4
    """
    ...

def rms_norm_from_output_backward(
    grad_out: Array,
    out: Array,
    rstd: Array,
    weight: Array | None = None,
    *,
    weight_offset: float = 0.0,
    grad_x: Array | None = None,
    grad_weight: Array | None = None,
) -> tuple[Array | None, Array | None]:
    """Gradients of rms_norm, from its result instead of x.

    grad_out:       (*, D) float32, float16 or bfloat16, last dimension contiguous; gradient of out.
    out:            (*, D) dtype of grad_out, last dimension contiguous; result of rms_norm_from_output.
    rstd:           (*, 1) float32, contiguous; its other result.
    weight:         (D,) dtype of out or float32, contiguous, or None; scale of each feature, less
                    weight_offset; none: 1.
    weight_offset:  float, default 0.0; added to weight (1 in Gemma, whose weights are stored less 1);
                    to 1 where there is none.
    Returns         grad_x: (*, D), new unless given, dtype of out, made only when wanted; grad_weight:
                    (D,), new unless given, dtype of weight, or that of out when None, made only when
                    wanted. On a device it runs on the current stream, and never waits.
    Raises          ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                    kernel.
    Computes        with f = weight + weight_offset and n = out / f: grad_x = rstd * (grad_out * f - n *
                    mean_d(grad_out * out)); grad_weight = sum_r grad_out * n; where f is 0, n is lost,
                    and 0 stands for it
    Source          derivative of Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4
    """
    ...

def rms_norm_quant(
    x: Array,
    weight: Array | None = None,
    scale: Array | None = None,
    eps: float = 1e-06,
    *,
    group: int = 2147483647,
    weight_offset: float = 0.0,
    dtype: Any = 'float8_e4m3fn',
    out: Array | None = None,
    scales: Array | None = None,
) -> tuple[Array, Array | None]:
    """rms_norm in 8 bits, with one scale for all, for each row, or for each group of columns.

    x:              (*, D) float32, float16 or bfloat16, last dimension contiguous; rows to normalise; a
                    NaN or an infinity in a row makes it NaN, and so, without scale, the scale of its
                    groups (0 in int8).
    weight:         (D,) dtype of x or float32, contiguous, or None; scale of each feature, less
                    weight_offset; none: 1.
    scale:          broadcastable to (*, ceil(D/group)) float32, any strides, or None; what rows are
                    divided by, as a product with its reciprocal in float32 (of 0 and less than 2.9e-39:
                    with 3.4e38), in any shape that broadcasts to that of scales; none: from the
                    greatest magnitude of each group.
    eps:            float, default 1e-06; added to the mean square; dimension of x squared.
    group:          int, default 2147483647; columns that share a scale; the default: all of a row.
    weight_offset:  float, default 0.0; added to weight (1 in Gemma, whose weights are stored less 1);
                    to 1 where there is none.
    dtype:          ScalarType, default 'float8_e4m3fn', one of int8 or float8_e4m3fn; float8_e4m3fn, or
                    int8.
    Returns         out: (*, D), new unless given, dtype dtype; scales: (*, ceil(D/group)), new unless
                    given, dtype float32, made only when wanted. On a device it runs on the current
                    stream, and never waits.
    Requires        group > 0.
    Raises          ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                    kernel.
    Computes        with y[r,d] = x[r,d] / sqrt(mean_d(x[r,d]^2) + eps) * (weight[d] + weight_offset):
                    out[r,d] = round(clamp(y[r,d] * (1 / s))); s = scale, or max(max_g |y[r,g]|, 1e-10)
                    / 448 over the group of d (127 for int8); clamped to [-448, 448] ([-128, 127])
    Source          Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4; Micikevicius et al. 2022,
                    arXiv:2209.05433 (e4m3); DeepSeek-AI 2024, arXiv:2412.19437, section 3.3 (groups of
                    128 columns)
    """
    ...

def rope(
    x: Array,
    cos: Array,
    sin: Array,
    positions: Array | None = None,
    cu_seqlens: Array | None = None,
    interleaved: bool = False,
    out: Array | None = None,
) -> Array:
    """Rotary position embedding: turns pairs of elements of each head by angles from a table.

    x:            (*X, S, H, D) float32, float16, bfloat16 or float64, last dimension contiguous; heads
                  of each token; what lies behind the first R elements is copied.
    cos:          (P, R) dtype of x or float32, last dimension contiguous; a cosine for each of the R
                  elements and each of P positions; both of a pair most often the same.
    sin:          (P, R) dtype of cos, last dimension contiguous; as cos.
    positions:    broadcastable to (*X, S) int32 or int64, any strides, or None; row of the table for
                  each token; without it the place of a token in its sequence. Outside [0, P): an error
                  on the CPU, on other devices the nearest row.
    cu_seqlens:   (N+1,) int32, contiguous, or None; where each of N sequences begins in the S tokens,
                  and where the last ends: places are counted from there. What is in no sequence is
                  copied. With positions it is not looked at. Not ascending, or outside [0, S]: an error
                  on the CPU, on other devices any row of the table.
    interleaved:  bool, default False; pairs are neighbours (GPT-J); else an element of the first half
                  and one of the second (GPT-NeoX).
    Returns       (*X, S, H, D), new unless given, dtype of x. A result may be exactly x. On a device it
                  runs on the current stream, and never waits.
    Requires      the rotary size R of cos and sin to be at most D; the rotary size R of cos and sin to
                  be even; cos and sin to have rows.
    Raises        ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                  kernel.
    Computes      with p the row of the token and q[j] = j + R/2, or j - R/2 in the second half
                  (interleaved: j + 1, or j - 1 where j is odd): out[j] = x[j] * cos[p,j] -/+ x[q[j]] *
                  sin[p,j] for j < R, - in the first half (interleaved: j even); out[j] = x[j] for j >=
                  R
    Source        Su et al. 2021, arXiv:2104.09864; halves as in GPT-NeoX, interleaved pairs as in GPT-J
    """
    ...

def rope_backward(
    grad_out: Array,
    cos: Array,
    sin: Array,
    positions: Array | None = None,
    cu_seqlens: Array | None = None,
    interleaved: bool = False,
    grad_x: Array | None = None,
) -> Array:
    """Gradient of rope: the same pairs turned back.

    grad_out:     (*X, S, H, D) float32, float16, bfloat16 or float64, last dimension contiguous;
                  gradient of the result of rope.
    cos:          (P, R) dtype of grad_out or float32, last dimension contiguous; a cosine for each of
                  the R elements and each of P positions; both of a pair most often the same.
    sin:          (P, R) dtype of cos, last dimension contiguous; as cos.
    positions:    broadcastable to (*X, S) int32 or int64, any strides, or None; row of the table for
                  each token; without it the place of a token in its sequence. Outside [0, P): an error
                  on the CPU, on other devices the nearest row.
    cu_seqlens:   (N+1,) int32, contiguous, or None; where each of N sequences begins in the S tokens,
                  and where the last ends: places are counted from there. What is in no sequence is
                  copied. With positions it is not looked at. Not ascending, or outside [0, S]: an error
                  on the CPU, on other devices any row of the table.
    interleaved:  bool, default False; pairs are neighbours (GPT-J); else an element of the first half
                  and one of the second (GPT-NeoX).
    Returns       grad_x: (*X, S, H, D), new unless given, dtype of grad_out. A result may be exactly
                  grad_out. On a device it runs on the current stream, and never waits.
    Requires      the rotary size R of cos and sin to be at most D; the rotary size R of cos and sin to
                  be even; cos and sin to have rows.
    Raises        ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                  kernel.
    Computes      with p and q as in rope: grad_x[j] = grad_out[j] * cos[p,j] +/- grad_out[q[j]] *
                  sin[p,q[j]] for j < R, + in the first half (interleaved: j even); grad_x[j] =
                  grad_out[j] for j >= R
    Source        derivative of Su et al. 2021, arXiv:2104.09864
    """
    ...

def rope_qk(
    q: Array,
    k: Array,
    cos: Array,
    sin: Array,
    positions: Array | None = None,
    cu_seqlens: Array | None = None,
    interleaved: bool = False,
    q_out: Array | None = None,
    k_out: Array | None = None,
) -> tuple[Array, Array]:
    """rope of queries and keys in one call.

    q:            (*X, S, H, D) float32, float16, bfloat16 or float64, last dimension contiguous; heads
                  of each token; what lies behind the first R elements is copied.
    k:            (*X, S, G, D) dtype of q, last dimension contiguous; likewise, of another number of
                  heads.
    cos:          (P, R) dtype of q or float32, last dimension contiguous; a cosine for each of the R
                  elements and each of P positions; both of a pair most often the same.
    sin:          (P, R) dtype of cos, last dimension contiguous; as cos.
    positions:    broadcastable to (*X, S) int32 or int64, any strides, or None; row of the table for
                  each token; without it the place of a token in its sequence. Outside [0, P): an error
                  on the CPU, on other devices the nearest row.
    cu_seqlens:   (N+1,) int32, contiguous, or None; where each of N sequences begins in the S tokens,
                  and where the last ends: places are counted from there. What is in no sequence is
                  copied. With positions it is not looked at. Not ascending, or outside [0, S]: an error
                  on the CPU, on other devices any row of the table.
    interleaved:  bool, default False; pairs are neighbours (GPT-J); else an element of the first half
                  and one of the second (GPT-NeoX).
    Returns       q_out: (*X, S, H, D), new unless given, dtype of q; k_out: (*X, S, G, D), new unless
                  given, dtype of q. A result may be exactly q or k. On a device it runs on the current
                  stream, and never waits.
    Requires      the rotary size R of cos and sin to be at most D; the rotary size R of cos and sin to
                  be even; cos and sin to have rows.
    Raises        ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                  kernel.
    Computes      q_out = rope(q, cos, sin, positions, cu_seqlens, interleaved); k_out = rope(k, cos,
                  sin, positions, cu_seqlens, interleaved)
    Source        Su et al. 2021, arXiv:2104.09864; halves as in GPT-NeoX, interleaved pairs as in GPT-J
    """
    ...

def rope_qk_backward(
    grad_q_out: Array,
    grad_k_out: Array,
    cos: Array,
    sin: Array,
    positions: Array | None = None,
    cu_seqlens: Array | None = None,
    interleaved: bool = False,
    grad_q: Array | None = None,
    grad_k: Array | None = None,
) -> tuple[Array | None, Array | None]:
    """Gradients of rope_qk: the same pairs turned back.

    grad_q_out:   (*X, S, H, D) float32, float16, bfloat16 or float64, last dimension contiguous;
                  gradient of q_out.
    grad_k_out:   (*X, S, G, D) dtype of grad_q_out, last dimension contiguous; gradient of k_out.
    cos:          (P, R) dtype of grad_q_out or float32, last dimension contiguous; a cosine for each of
                  the R elements and each of P positions; both of a pair most often the same.
    sin:          (P, R) dtype of cos, last dimension contiguous; as cos.
    positions:    broadcastable to (*X, S) int32 or int64, any strides, or None; row of the table for
                  each token; without it the place of a token in its sequence. Outside [0, P): an error
                  on the CPU, on other devices the nearest row.
    cu_seqlens:   (N+1,) int32, contiguous, or None; where each of N sequences begins in the S tokens,
                  and where the last ends: places are counted from there. What is in no sequence is
                  copied. With positions it is not looked at. Not ascending, or outside [0, S]: an error
                  on the CPU, on other devices any row of the table.
    interleaved:  bool, default False; pairs are neighbours (GPT-J); else an element of the first half
                  and one of the second (GPT-NeoX).
    Returns       grad_q: (*X, S, H, D), new unless given, dtype of grad_q_out, made only when wanted;
                  grad_k: (*X, S, G, D), new unless given, dtype of grad_q_out, made only when wanted.
                  On a device it runs on the current stream, and never waits.
    Requires      the rotary size R of cos and sin to be at most D; the rotary size R of cos and sin to
                  be even; cos and sin to have rows.
    Raises        ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                  kernel.
    Computes      grad_q = rope_backward(grad_q_out, cos, sin, positions, cu_seqlens, interleaved);
                  grad_k = rope_backward(grad_k_out, cos, sin, positions, cu_seqlens, interleaved)
    Source        derivative of Su et al. 2021, arXiv:2104.09864
    """
    ...

def sample(
    logits: Array,
    seed: Array,
    offset: Array,
    temperature: Array | None = None,
    top_k: Array | None = None,
    top_p: Array | None = None,
    min_p: Array | None = None,
    rows: Array | None = None,
    *,
    top_k_first: bool = True,
    tokens: Array | None = None,
    logprob: Array | None = None,
) -> tuple[Array, Array | None]:
    """Draw a token from each row of logits, from what top_k, top_p and min_p keep of it.

    logits:       (N, V) float32, float16 or bfloat16, last dimension contiguous; N rows of V logits;
                  -inf is never drawn.
    seed:         (B,) int64 or int32, any strides; of each of B draws. Draws of one seed and offset use
                  the same random words.
    offset:       broadcastable to (B,) dtype of seed, any strides; how far each stream is: another one
                  with each step.
    temperature:  broadcastable to (B,) float32, any strides, or a number, or None; logits are divided
                  by it; 0: the greatest, the first of equals.
    top_k:        broadcastable to (B,) int32, any strides, or a number, or None; so many are kept, of
                  equal ones the first; 0 and less, or V and more: all. 1 is the greatest.
    top_p:        broadcastable to (B,) float32, any strides, or a number, or None; the fewest that
                  reach this share are kept; 1 and more: all; 0 and less: one.
    min_p:        broadcastable to (B,) float32, any strides, or a number, or None; what is less likely
                  than this share of the most likely token is dropped.
    rows:         (B,) int32, any strides, or None; the row of each draw; without it draw b is of row b.
    top_k_first:  bool, default True; top_p is a share of what top_k keeps; else of all.
    Returns       tokens: (B,), new unless given, dtype int32, the drawn tokens, or -1; logprob: (B,),
                  new unless given, dtype float32, made only when wanted, logarithm of the token's share
                  of softmax(logits / temperature), before top_k, top_p and min_p. On a device it runs
                  on the current stream, and never waits.
    Raises        ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                  kernel.
    Computes      w[v] = exp((x[v] - max(x)) / temperature); tokens[b] = argmax over kept v of w[v] /
                  -log(1 - u[v]), u[v] = word v % 4 of Philox(seed[b], offset[b], v // 4); logprob[b] =
                  log(w[token] / sum(w))
    Source        top_p: Holtzman et al. 2019, arXiv:1904.09751; min_p: Nguyen et al. 2024,
                  arXiv:2407.01082; words: Salmon et al. 2011; the maximum is Gumbel's. A row without a
                  distribution (NaN, infinity, all -inf), a number of rows outside, and a temperature,
                  top_p or min_p that is none give token -1 and logprob NaN
    """
    ...

def sample_probs(
    probs: Array,
    seed: Array,
    offset: Array,
    top_k: Array | None = None,
    top_p: Array | None = None,
    min_p: Array | None = None,
    rows: Array | None = None,
    *,
    top_k_first: bool = True,
    out: Array | None = None,
) -> Array:
    """Draw a token from each row of probabilities, from what top_k, top_p and min_p keep of it.

    probs:        (N, V) float32, float16 or bfloat16, last dimension contiguous; N rows of V
                  probabilities, of any sum; a row with a negative one has no distribution.
    seed:         (B,) int64 or int32, any strides; of each of B draws. Draws of one seed and offset use
                  the same random words.
    offset:       broadcastable to (B,) dtype of seed, any strides; how far each stream is: another one
                  with each step.
    top_k:        broadcastable to (B,) int32, any strides, or a number, or None; so many are kept, of
                  equal ones the first; 0 and less, or V and more: all. 1 is the greatest.
    top_p:        broadcastable to (B,) float32, any strides, or a number, or None; the fewest that
                  reach this share are kept; 1 and more: all; 0 and less: one.
    min_p:        broadcastable to (B,) float32, any strides, or a number, or None; what is less likely
                  than this share of the most likely token is dropped.
    rows:         (B,) int32, any strides, or None; the row of each draw; without it draw b is of row b.
    top_k_first:  bool, default True; top_p is a share of what top_k keeps; else of all.
    Returns       (B,), new unless given, dtype int32, the drawn tokens, or -1. On a device it runs on
                  the current stream, and never waits.
    Raises        ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                  kernel.
    Computes      out[b] = argmax over kept v of probs[r,v] / -log(1 - u[v]), u[v] = word v % 4 of
                  Philox(seed[b], offset[b], v // 4), r = rows[b] or b
    Source        top_p: Holtzman et al. 2019, arXiv:1904.09751; min_p: Nguyen et al. 2024,
                  arXiv:2407.01082; words: Salmon et al. 2011; the maximum is Gumbel's. A row without a
                  distribution (NaN, infinity, a negative number, no number above 2^-100), a number of
                  rows outside, and a top_p or min_p that is NaN give token -1
    """
    ...

def scale_rows(
    x: Array,
    factor: Array,
    out: Array | None = None,
) -> Array:
    """Rows times a number each; in place, rows of factor 1 are neither read nor written.

    x:        (*, V) float32, float16, bfloat16 or float64, last dimension contiguous; rows.
    factor:   broadcastable to (*,) torch's promotion of x and float32, contiguous; one number for each
              row, or for all.
    Returns   (*, V), new unless given, dtype of x. A result may be exactly x. On a device it runs on
              the current stream, and never waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  out[r,v] = x[r,v] * factor[r]
    Source    the chain rule of a gradient that was made beforehand, as by cross_entropy_with_grad: in
              most training steps the factor is 1
    """
    ...

def scaled_masked_softmax(
    x: Array,
    mask: Array | None = None,
    scale: float = 1.0,
    out: Array | None = None,
) -> Array:
    """softmax of each row times a number, of the elements that a mask does not leave out.

    x:        (*, D) float32, float16, bfloat16 or float64, last dimension contiguous; rows of scores,
              such as (batch, heads, queries, keys); a NaN that is not left out makes NaN of what is not
              left out of its row.
    mask:     broadcastable to (*, D) bool or uint8, any strides, or None; 0: the element counts; all
              else: it is left out, whatever it holds, and its result is 0.
    scale:    float, default 1.0; factor of x, before the exponentials.
    Returns   (*, D), new unless given, dtype of x. A result may be exactly x. On a device it runs on
              the current stream, and never waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  out[r,d] = [mask[r,d] = 0] exp(scale * x[r,d]) / sum_d [mask[r,d] = 0] exp(scale *
              x[r,d]); a row that is left out whole is 0
    Source    Vaswani et al. 2017, arXiv:1706.03762, eq. 1; the interface of NVIDIA's Apex
    """
    ...

def scaled_softmax(
    x: Array,
    scale: float = 1.0,
    out: Array | None = None,
) -> Array:
    """softmax of each row times a number.

    x:        (*, D) float32, float16, bfloat16 or float64, last dimension contiguous; rows of scores; a
              NaN makes NaN of its whole row, as a row of -infinity does.
    scale:    float, default 1.0; factor of x, before the exponentials.
    Returns   (*, D), new unless given, dtype of x. A result may be exactly x. On a device it runs on
              the current stream, and never waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  out[r,d] = exp(scale * x[r,d] - m) / sum_d exp(scale * x[r,d] - m), m = max_d(scale *
              x[r,d])
    Source    Vaswani et al. 2017, arXiv:1706.03762, eq. 1; the interface of NVIDIA's Apex
    """
    ...

def scaled_softmax_backward(
    grad_out: Array,
    out: Array,
    scale: float = 1.0,
    grad_x: Array | None = None,
) -> Array:
    """Gradient of scaled_softmax and scaled_masked_softmax from their results.

    grad_out:  (*, D) float32, float16, bfloat16 or float64, last dimension contiguous; gradient of the
               result.
    out:       (*, D) dtype of grad_out, last dimension contiguous; result of scaled_softmax or
               scaled_masked_softmax.
    scale:     float, default 1.0; factor that the forward call had.
    Returns    grad_x: (*, D), new unless given, dtype of grad_out. On a device it runs on the current
               stream, and never waits.
    Raises     ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes   grad_x[r,d] = scale * out[r,d] * (grad_out[r,d] - sum_d(grad_out[r,d] * out[r,d]))
    Source     derivative of scaled_softmax
    """
    ...

def scaled_upper_triang_masked_softmax(
    x: Array,
    scale: float = 1.0,
    out: Array | None = None,
) -> Array:
    """softmax of each row times a number, up to the diagonal: row s has its columns 0 to s.

    x:        (*, S, S) float32, float16, bfloat16 or float64, last dimension contiguous; square
              matrices of scores; what lies above the diagonal is not read, and its result is 0.
    scale:    float, default 1.0; factor of x, before the exponentials.
    Returns   (*, S, S), new unless given, dtype of x. A result may be exactly x. On a device it runs on
              the current stream, and never waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  out[r,s,t] = [t <= s] exp(scale * x[r,s,t]) / sum_(t <= s) exp(scale * x[r,s,t])
    Source    Vaswani et al. 2017, arXiv:1706.03762, section 3.2.3; the interface of NVIDIA's Apex
    """
    ...

def scaled_upper_triang_masked_softmax_backward(
    grad_out: Array,
    out: Array,
    scale: float = 1.0,
    grad_x: Array | None = None,
) -> Array:
    """Gradient of scaled_upper_triang_masked_softmax from its result.

    grad_out:  (*, S, S) float32, float16, bfloat16 or float64, last dimension contiguous; gradient of
               the result; what lies above the diagonal is not read.
    out:       (*, S, S) dtype of grad_out, last dimension contiguous; result of
               scaled_upper_triang_masked_softmax; likewise.
    scale:     float, default 1.0; factor that the forward call had.
    Returns    grad_x: (*, S, S), new unless given, dtype of grad_out. On a device it runs on the
               current stream, and never waits.
    Raises     ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes   grad_x[r,s,t] = [t <= s] scale * out[r,s,t] * (grad_out[r,s,t] - sum_(t <=
               s)(grad_out[r,s,t] * out[r,s,t]))
    Source     derivative of scaled_upper_triang_masked_softmax
    """
    ...

def silu(
    x: Array,
    out: Array | None = None,
) -> Array:
    """x times its logistic sigmoid, for each element.

    x:        (*,) float32, float16, bfloat16 or float64, any strides; values.
    Returns   (*,), new unless given, dtype of x. A result may be exactly x. On a device it runs on the
              current stream, and never waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  out = x / (1 + exp(-x))
    Source    Elfwing, Uchibe & Doya 2017, arXiv:1702.03118, eq. 5
    """
    ...

def silu_and_mul(
    x: Array,
    out: Array | None = None,
) -> Array:
    """SwiGLU: silu of the first half of each row times the second half.

    x:        (*, 2*D) float32, float16, bfloat16 or float64, last dimension contiguous; rows of gates,
              then values.
    Returns   (*, D), new unless given, dtype of x. On a device it runs on the current stream, and never
              waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  out[r,d] = silu(x[r,d]) * x[r,D+d]
    Source    Shazeer 2020, arXiv:2002.05202, eq. 5
    """
    ...

def silu_and_mul_backward(
    grad_out: Array,
    x: Array,
    grad_x: Array | None = None,
) -> Array:
    """Gradient of silu_and_mul.

    grad_out:  (*, D) float32, float16, bfloat16 or float64, last dimension contiguous; gradient of the
               result of silu_and_mul.
    x:         (*, 2*D) dtype of grad_out, last dimension contiguous; rows of gates, then values.
    Returns    grad_x: (*, 2*D), new unless given, dtype of grad_out. On a device it runs on the current
               stream, and never waits.
    Raises     ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes   with s = 1 / (1 + exp(-x[r,d])): grad_x[r,d] = grad_out[r,d] * x[r,D+d] * (s + x[r,d] * s
               * (1 - s)); grad_x[r,D+d] = grad_out[r,d] * x[r,d] * s
    Source     derivative of Shazeer 2020, arXiv:2002.05202, eq. 5
    """
    ...

def silu_and_mul_quant(
    x: Array,
    scale: Array | None = None,
    *,
    group: int = 2147483647,
    dtype: Any = 'float8_e4m3fn',
    out: Array | None = None,
    scales: Array | None = None,
) -> tuple[Array, Array | None]:
    """silu_and_mul in 8 bits, with one scale for all, for each row, or for each group of columns.

    x:        (*, 2*D) float32, float16 or bfloat16, last dimension contiguous; rows of gates, then
              values; without scale, a NaN or an infinity of a product makes the scale of its group NaN
              or infinite; with one, NaN is NaN (0 in int8) and infinity the greatest number.
    scale:    broadcastable to (*, ceil(D/group)) float32, any strides, or None; what products are
              divided by, as a product with its reciprocal in float32 (of 0 and less than 2.9e-39: with
              3.4e38), in any shape that broadcasts to that of scales; none: from the greatest magnitude
              of each group.
    group:    int, default 2147483647; columns that share a scale; the default: all of a row.
    dtype:    ScalarType, default 'float8_e4m3fn', one of int8 or float8_e4m3fn; float8_e4m3fn, or int8.
    Returns   out: (*, D), new unless given, dtype dtype; scales: (*, ceil(D/group)), new unless given,
              dtype float32, made only when wanted. On a device it runs on the current stream, and never
              waits.
    Requires  group > 0.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  with y = silu_and_mul(x): out[r,d] = round(clamp(y[r,d] * (1 / s))); s = scale, or
              max(max_g |y[r,g]|, 1e-10) / 448 over the group of d (127 for int8); clamped to [-448,
              448] ([-128, 127])
    Source    Shazeer 2020, arXiv:2002.05202, eq. 5; Micikevicius et al. 2022, arXiv:2209.05433 (e4m3);
              DeepSeek-AI 2024, arXiv:2412.19437, section 3.3 (groups of 128 columns)
    """
    ...

def silu_backward(
    grad_out: Array,
    x: Array,
    grad_x: Array | None = None,
) -> Array:
    """Gradient of silu.

    grad_out:  (*,) float32, float16, bfloat16 or float64, any strides; gradient of the result of silu.
    x:         (*,) dtype of grad_out, any strides; argument of silu; at infinity the derivative has its
               limit.
    Returns    grad_x: (*,), new unless given, dtype of grad_out. On a device it runs on the current
               stream, and never waits.
    Raises     ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes   with s = 1 / (1 + exp(-x)): grad_x = grad_out * (s + x * s * (1 - s))
    Source     derivative of Elfwing, Uchibe & Doya 2017, arXiv:1702.03118, eq. 5
    """
    ...

def softmax(
    x: Array,
    dim: int = -1,
    out: Array | None = None,
) -> Array:
    """Exponentials along one dimension, divided by their sum.

    x:        (*X,) float32, float16, bfloat16 or float64, contiguous; scores; a NaN makes NaN of its
              whole row.
    dim:      int, default -1; dimension of the sum; negative: counted from the end.
    Returns   (*X,), new unless given, dtype of x. A result may be exactly x. On a device it runs on the
              current stream, and never waits.
    Requires  dim to be a dimension of x.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  out = exp(x - max x) / sum exp(x - max x), over dimension dim
    Source    Goodfellow, Bengio & Courville 2016, Deep Learning, section 4.1
    """
    ...

def softmax_backward(
    grad_out: Array,
    out: Array,
    dim: int = -1,
    grad_x: Array | None = None,
) -> Array:
    """Gradient of softmax from its result.

    grad_out:  (*X,) float32, float16, bfloat16 or float64, contiguous; gradient of the result of
               softmax.
    out:       (*X,) dtype of grad_out, contiguous; result of softmax.
    dim:       int, default -1; dimension of the sum; negative: counted from the end.
    Returns    grad_x: (*X,), new unless given, dtype of grad_out. On a device it runs on the current
               stream, and never waits.
    Requires   dim to be a dimension of out.
    Raises     ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes   grad_x = out * (grad_out - sum(grad_out * out)), over dimension dim
    Source     derivative of softmax
    """
    ...

def sort(
    x: Array,
    *,
    descending: bool = False,
    values: Array | None = None,
    indices: Array | None = None,
) -> tuple[Array, Array]:
    """The elements of each row in order, and where they came from.

    x:           (*, D) float32, float16, bfloat16, float64, int32 or int64, contiguous; rows of D
                 elements; NaN counts as larger than any number.
    descending:  bool, default False; the largest first, else the smallest first.
    Returns      values: (*, D), new unless given, dtype of x; indices: (*, D), new unless given, dtype
                 int64. On a device it runs on the current stream, and never waits.
    Raises       ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                 kernel.
    Computes     values[r,j] = x[r,indices[r,j]], the j-th of row r in order
    Source       torch.sort over the last dimension, stable: equal elements come in the order of their
                 indices
    """
    ...

def sum_after_2_to_4(
    matrix: Array,
    out: Array | None = None,
) -> Array:
    """The sum of the magnitudes that pruning to 2 of 4 keeps of each matrix: the two largest of each row's four columns.

    matrix:   (*, R, 4*S) float32, contiguous; weights: R rows; stripe s is the columns from 4s to 4s +
              3.
    Returns   (*,), new unless given, dtype of matrix. On a device it runs on the current stream, and
              never waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  out[b] = sum_{r,s} top2(|matrix[b,r,4s]|, ..., |matrix[b,r,4s+3]|), added in float64; NaN
              where an element is
    Source    Pool and Yu 2021, Channel Permutations for N:M Sparsity;
              permutation_search_cuda.sum_after_2_to_4
    """
    ...

def token_bitmask(
    logits: Array,
    bitmask: Array,
    rows: Array | None = None,
) -> None:
    """Forbid tokens by bits: their logits become -inf, in place.

    logits:   (N, V) float32, float16 or bfloat16, last dimension contiguous, written; N rows of V
              logits.
    bitmask:  (B, ceil(V/32)) int32, last dimension contiguous; B rows of bits, the lowest of a word
              first.
    rows:     (B,) int32, any strides, or None; the row of logits for each row of bits, each at most
              once; without it row b is for row b.
    Returns   None; logits written in place. On a device it runs on the current stream, and never waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  logits[r,v] = -inf where bit v % 32 of bitmask[b, v // 32] is 0, r = rows[b] or b
    Source    XGrammar's apply_token_bitmask_inplace; a row outside, as -1, is left out
    """
    ...

def top_k_mask(
    logits: Array,
    top_k: Array,
    out: Array | None = None,
) -> Array:
    """Keep the top_k greatest logits of each row, the others become -inf.

    logits:   (B, V) float32, float16 or bfloat16, last dimension contiguous; rows of V logits.
    top_k:    broadcastable to (B,) int32, any strides, or a number; so many are kept, of equal ones the
              first; 0 and less, or V and more: all.
    Returns   (B, V), new unless given, dtype of logits, the kept logits, -inf elsewhere. On a device it
              runs on the current stream, and never waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  out[b,v] = logits[b,v] where it is among the top_k[b] first of its row in descending
              order, equal ones by index; else -inf
    Source    FlashInfer's top_k_mask_logits; unlike there, exactly top_k are kept. A row with NaN is
              NaN
    """
    ...

def top_k_renorm(
    probs: Array,
    top_k: Array,
    out: Array | None = None,
) -> Array:
    """Keep the top_k greatest probabilities of each row and scale them to a sum of 1.

    probs:    (B, V) float32, float16 or bfloat16, last dimension contiguous; rows of V probabilities,
              of any sum.
    top_k:    broadcastable to (B,) int32, any strides, or a number; so many are kept, of equal ones the
              first; 0 and less, or V and more: all.
    Returns   (B, V), new unless given, dtype of probs, rows with a sum of 1. On a device it runs on the
              current stream, and never waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  out[b,v] = probs[b,v] / sum(kept probs of b) where v is kept; else 0
    Source    FlashInfer's top_k_renorm_probs; unlike there, of equal ones the first are kept. A row
              with NaN, infinity or a negative number, or with none above 2^-100, is NaN; so is one
              whose top_p is
    """
    ...

def top_p_renorm(
    probs: Array,
    top_p: Array,
    out: Array | None = None,
) -> Array:
    """Keep the fewest probabilities of each row that reach the share top_p, and scale them to a sum of 1.

    probs:    (B, V) float32, float16 or bfloat16, last dimension contiguous; rows of V probabilities,
              of any sum.
    top_p:    broadcastable to (B,) float32, any strides, or a number; the fewest that reach this share
              are kept; 1 and more: all; 0 and less: one.
    Returns   (B, V), new unless given, dtype of probs, rows with a sum of 1. On a device it runs on the
              current stream, and never waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  out[b,v] = probs[b,v] / sum(kept probs of b) where v is kept; else 0
    Source    FlashInfer's top_p_renorm_probs; unlike there, of equal ones the first are kept. A row
              with NaN, infinity or a negative number, or with none above 2^-100, is NaN; so is one
              whose top_p is
    """
    ...

def topk(
    x: Array,
    k: int,
    largest: bool = True,
    values: Array | None = None,
    indices: Array | None = None,
) -> tuple[Array, Array]:
    """The k largest or smallest elements of each row, in order.

    x:        (*, D) float32, float16, bfloat16, float64, int32 or int64, contiguous; rows of D
              elements; NaN counts as larger than any number.
    k:        int; how many of each row.
    largest:  bool, default True; the largest ones, largest first; else the smallest, smallest first.
    Returns   values: (*, k), new unless given, dtype of x; indices: (*, k), new unless given, dtype
              int64. On a device it runs on the current stream, and never waits.
    Requires  0 <= k; k <= D.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  values[r,j] = x[r,indices[r,j]], the j-th of row r in order
    Source    torch.topk over the last dimension, sorted; unlike there, equal elements come in the order
              of their indices
    """
    ...

def topk_backward(
    grad_values: Array,
    indices: Array,
    D: int,
    grad_x: Array | None = None,
) -> Array:
    """Gradient of topk and sort: zeros, and grad_values where the values came from.

    grad_values:  (*, K) float32, float16, bfloat16 or float64, contiguous; gradient of the values of
                  topk or sort.
    indices:      (*, K) int64, contiguous; indices of topk or sort, each at least 0 and less than D;
                  outside: an error on the CPU, on CUDA it counts for nothing.
    D:            int; elements of a row of x.
    Returns       grad_x: (*, D), new unless given, dtype of grad_values. On a device it runs on the
                  current stream, and never waits.
    Requires      0 <= D; 0 < D or K == 0.
    Raises        ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                  kernel.
    Computes      grad_x[r,d] = sum of grad_values[r,j] over all j with indices[r,j] = d
    Source        derivative of torch.topk and torch.sort over the last dimension
    """
    ...

def transducer_joint(
    f: Array,
    g: Array,
    f_len: Array,
    g_len: Array,
    seed: Array | None = None,
    offset: Array | None = None,
    *,
    relu: bool = False,
    dropout: float = 0.0,
    out: Array | None = None,
    mask: Array | None = None,
) -> tuple[Array, Array | None]:
    """Every frame's vector plus every token's, with ReLU and dropout: the joint of a transducer.

    f:        (B, T, H) float32, float16, bfloat16 or float64, contiguous; T frames of each sequence.
    g:        (B, U, H) dtype of f, contiguous; U tokens of each sequence.
    f_len:    (B,) int32 or int64, contiguous; frames that count; what lies behind them changes nothing.
    g_len:    (B,) dtype of f_len, contiguous; tokens that count, likewise.
    seed:     (1,) int64, contiguous, or None; names the random stream; needed where dropout is not 0.
    offset:   (1,) int64, contiguous, or None; place in the stream; a call takes ceil(H / 4) places.
    relu:     bool, default False; what is not above 0 becomes 0; NaN stays.
    dropout:  float, default 0.0; share of what becomes 0; the rest is divided by 1 - dropout.
    Returns   out: (B, T, U, H), new unless given, dtype of f; mask: (B, T, U, H), new unless given,
              dtype bool, made only when wanted, what was kept; the gradient makes it anew. On a device
              it runs on the current stream, and never waits.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  with s = f[b,t,h] + g[b,u,h]: mask[b,t,u,h] = t < f_len[b] and u < g_len[b], and s > 0 if
              relu, and w >= dropout * 2^32 if dropout > 0; out[b,t,u,h] = s / (1 - dropout) where mask,
              else 0. w is word h % 4 of Philox 4x32-10 with the key seed and the counter (offset + h //
              4, (b * T + t) * U + u)
    Source    Graves 2012, arXiv:1211.3711; apex.contrib.transducer. Lengths out of range are a
              ValueError on the CPU; on CUDA such a sequence is 0, and its gradient too
    """
    ...

def transducer_joint_backward(
    grad_out: Array,
    f: Array,
    g: Array,
    f_len: Array,
    g_len: Array,
    seed: Array | None = None,
    offset: Array | None = None,
    *,
    relu: bool = False,
    dropout: float = 0.0,
    grad_f: Array | None = None,
    grad_g: Array | None = None,
) -> tuple[Array | None, Array | None]:
    """Gradient of transducer_joint.

    grad_out:  (B, T, U, H) float32, float16, bfloat16 or float64, contiguous; gradient of out; where no
               sequence is, it changes nothing.
    f:         (B, T, H) dtype of grad_out, contiguous; that of the forward call.
    g:         (B, U, H) dtype of f, contiguous; that of the forward call.
    f_len:     (B,) int32 or int64, contiguous; that of the forward call.
    g_len:     (B,) dtype of f_len, contiguous; that of the forward call.
    seed:      (1,) int64, contiguous, or None; that of the forward call.
    offset:    (1,) int64, contiguous, or None; that of the forward call.
    relu:      bool, default False; that of the forward call.
    dropout:   float, default 0.0; that of the forward call.
    Returns    grad_f: (B, T, H), new unless given, dtype of f, made only when wanted; grad_g: (B, U,
               H), new unless given, dtype of f, made only when wanted. On a device it runs on the
               current stream, and never waits.
    Raises     ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes   with mask as transducer_joint makes it: grad_f[b,t,h] = sum_u(mask[b,t,u,h] *
               grad_out[b,t,u,h]) / (1 - dropout), grad_g[b,u,h] the same summed over t
    Source     derivative of transducer_joint
    """
    ...

def transducer_joint_packed(
    f: Array,
    g: Array,
    f_len: Array,
    g_len: Array,
    batch_offset: Array,
    packed_batch: int,
    seed: Array | None = None,
    offset: Array | None = None,
    *,
    relu: bool = False,
    dropout: float = 0.0,
    out: Array | None = None,
    mask: Array | None = None,
) -> tuple[Array, Array | None]:
    """transducer_joint without the rows of no sequence: sequences lie one behind the other.

    f:             (B, T, H) float32, float16, bfloat16 or float64, contiguous; T frames of each
                   sequence.
    g:             (B, U, H) dtype of f, contiguous; U tokens of each sequence.
    f_len:         (B,) int32 or int64, contiguous; frames that count; what lies behind them changes
                   nothing.
    g_len:         (B,) dtype of f_len, contiguous; tokens that count, likewise.
    batch_offset:  (B,) int64, contiguous; where the rows of each sequence end: the sums of f_len *
                   g_len up to it.
    packed_batch:  int; rows of the result: at least the last of batch_offset.
    seed:          (1,) int64, contiguous, or None; names the random stream; needed where dropout is not
                   0.
    offset:        (1,) int64, contiguous, or None; place in the stream; a call takes ceil(H / 4)
                   places.
    relu:          bool, default False; what is not above 0 becomes 0; NaN stays.
    dropout:       float, default 0.0; share of what becomes 0; the rest is divided by 1 - dropout.
    Returns        out: (packed_batch, H), new unless given, dtype of f; mask: (packed_batch, H), new
                   unless given, dtype bool, made only when wanted, what was kept; the gradient makes it
                   anew. On a device it runs on the current stream, and never waits.
    Requires       0 <= packed_batch; packed_batch to be more than 0 where there are sequences.
    Raises         ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                   kernel.
    Computes       with r = batch_offset[b-1] + t * g_len[b] + u (batch_offset[-1] = 0), t < f_len[b], u
                   < g_len[b]: out[r,h], mask[r,h] = what transducer_joint has at [b,t,u,h]; rows behind
                   the last sequence are 0
    Source         Graves 2012, arXiv:1211.3711; apex.contrib.transducer. Lengths out of range, or
                   offsets that do not go with them, are a ValueError on the CPU; on CUDA such a
                   sequence is 0, and its gradient too
    """
    ...

def transducer_joint_packed_backward(
    grad_out: Array,
    f: Array,
    g: Array,
    f_len: Array,
    g_len: Array,
    batch_offset: Array,
    seed: Array | None = None,
    offset: Array | None = None,
    *,
    relu: bool = False,
    dropout: float = 0.0,
    grad_f: Array | None = None,
    grad_g: Array | None = None,
) -> tuple[Array | None, Array | None]:
    """Gradient of transducer_joint_packed.

    grad_out:      (P, H) float32, float16, bfloat16 or float64, contiguous; gradient of out; where no
                   sequence is, it changes nothing.
    f:             (B, T, H) dtype of grad_out, contiguous; that of the forward call.
    g:             (B, U, H) dtype of f, contiguous; that of the forward call.
    f_len:         (B,) int32 or int64, contiguous; that of the forward call.
    g_len:         (B,) dtype of f_len, contiguous; that of the forward call.
    batch_offset:  (B,) int64, contiguous; that of the forward call.
    seed:          (1,) int64, contiguous, or None; that of the forward call.
    offset:        (1,) int64, contiguous, or None; that of the forward call.
    relu:          bool, default False; that of the forward call.
    dropout:       float, default 0.0; that of the forward call.
    Returns        grad_f: (B, T, H), new unless given, dtype of f, made only when wanted; grad_g: (B,
                   U, H), new unless given, dtype of f, made only when wanted. On a device it runs on
                   the current stream, and never waits.
    Raises         ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                   kernel.
    Computes       as transducer_joint_backward, with grad_out[b,t,u,h] in row batch_offset[b-1] + t *
                   g_len[b] + u
    Source         derivative of transducer_joint_packed
    """
    ...

def transducer_loss(
    x: Array,
    label: Array,
    f_len: Array,
    y_len: Array,
    blank_idx: int = 0,
    *,
    log_softmax: bool = True,
    loss: Array | None = None,
    blank_moves: Array | None = None,
    label_moves: Array | None = None,
    lse: Array | None = None,
) -> tuple[Array, Array, Array, Array]:
    """Transducer loss: minus the logarithm of the probability of each sequence's labels, over all alignments.

    x:            (B, T, U, V) float32, float16, bfloat16 or float64, contiguous; logits of V classes
                  for T frames and U tokens, the first of which is before any label.
    label:        (B, U-1) int32 or int64, contiguous; classes.
    f_len:        (B,) int32 or int64, contiguous; frames of each sequence; what lies behind them
                  changes nothing. A sequence of none is left out: its loss is 0.
    y_len:        (B,) dtype of f_len, contiguous; labels of each sequence, likewise; of U - 1.
    blank_idx:    int, default 0; the class that is no label.
    log_softmax:  bool, default True; False: x are logarithms of probabilities already.
    Returns       loss: (B,), new unless given, torch's promotion of x and float32; blank_moves: (B, T,
                  U), new unless given, torch's promotion of x and float32, what the gradient needs; 0
                  where no sequence is; label_moves: (B, T, U), new unless given, torch's promotion of x
                  and float32, likewise; lse: (B, T, U), new unless given, torch's promotion of x and
                  float32, natural logarithm of the sum of the exponentials; 0 where no sequence is. On
                  a device it runs on the current stream, and never waits.
    Requires      blank_idx to be a class of x.
    Raises        ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                  kernel.
    Computes      with p[b,t,u,v] = exp(x[b,t,u,v] - lse[b,t,u]): alignments go from (0, 0) to (f_len[b]
                  - 1, y_len[b]) and then take a blank; at (t, u) they take a blank, of probability
                  p[blank_idx], to (t + 1, u), or label[b,u], of probability p[label[b,u]], to (t, u +
                  1); loss[b] = -log(sum of the products of alignments); blank_moves[b,t,u],
                  label_moves[b,t,u] = share of alignments, by probability, that take it there; lse =
                  log(sum_v(exp(x))), or 0 where log_softmax is False
    Source        Graves 2012, arXiv:1211.3711, eqs. 12-18; apex.contrib.transducer. Lengths out of
                  range are a ValueError on the CPU, labels outside [0, V) an IndexError; on CUDA the
                  loss of such a sequence is NaN, and its gradient 0. Where a loss is infinite or NaN by
                  its logits, its gradient is NaN
    """
    ...

def transducer_loss_backward(
    x: Array,
    label: Array,
    f_len: Array,
    y_len: Array,
    blank_moves: Array,
    label_moves: Array,
    lse: Array,
    grad_loss: Array,
    blank_idx: int = 0,
    *,
    log_softmax: bool = True,
    grad_x: Array | None = None,
) -> Array:
    """Gradient of transducer_loss, with that of the softmax in it; it may be written where the logits are.

    x:            (B, T, U, V) float32, float16, bfloat16 or float64, contiguous; that of the forward
                  call.
    label:        (B, U-1) int32 or int64, contiguous; that of the forward call.
    f_len:        (B,) int32 or int64, contiguous; that of the forward call.
    y_len:        (B,) dtype of f_len, contiguous; that of the forward call.
    blank_moves:  (B, T, U) torch's promotion of x and float32, contiguous; that of the forward call.
    label_moves:  (B, T, U) dtype of blank_moves, contiguous; that of the forward call.
    lse:          (B, T, U) dtype of blank_moves, contiguous; that of the forward call.
    grad_loss:    (B,) dtype of blank_moves, contiguous; gradient of loss.
    blank_idx:    int, default 0; that of the forward call.
    log_softmax:  bool, default True; that of the forward call; True with an lse of 0: the gradient of
                  what logarithms of probabilities were made of.
    Returns       grad_x: (B, T, U, V), new unless given, dtype of x. A result may be exactly x. On a
                  device it runs on the current stream, and never waits.
    Requires      blank_idx to be a class of x.
    Raises        ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                  kernel.
    Computes      with m = blank_moves + label_moves, p[v] = exp(x[b,t,u,v] - lse[b,t,u]), or 0 where
                  log_softmax is False: grad_x[b,t,u,v] = grad_loss[b] * (m * p[v] - blank_moves * [v =
                  blank_idx] - label_moves * [v = label[b,u]]); 0 where no sequence is
    Source        derivative of transducer_loss; Graves 2012, arXiv:1211.3711, eq. 20
    """
    ...

def transducer_loss_packed(
    x: Array,
    label: Array,
    f_len: Array,
    y_len: Array,
    batch_offset: Array,
    blank_idx: int = 0,
    *,
    log_softmax: bool = True,
    loss: Array | None = None,
    blank_moves: Array | None = None,
    label_moves: Array | None = None,
    lse: Array | None = None,
) -> tuple[Array, Array, Array, Array]:
    """transducer_loss without the rows of no sequence: sequences lie one behind the other.

    x:             (P, V) float32, float16, bfloat16 or float64, contiguous; logits of V classes for
                   each row of the sequences, f_len frames of y_len + 1 tokens.
    label:         (B, L) int32 or int64, contiguous; classes.
    f_len:         (B,) int32 or int64, contiguous; frames of each sequence; what lies behind them
                   changes nothing. A sequence of none is left out: its loss is 0.
    y_len:         (B,) dtype of f_len, contiguous; labels of each sequence, likewise; of L.
    batch_offset:  (B,) int64, contiguous; where the rows of each sequence end: the sums of f_len *
                   (y_len + 1) up to it.
    blank_idx:     int, default 0; the class that is no label.
    log_softmax:   bool, default True; False: x are logarithms of probabilities already.
    Returns        loss: (B,), new unless given, torch's promotion of x and float32; blank_moves: (P,),
                   new unless given, torch's promotion of x and float32, what the gradient needs; 0
                   where no sequence is; label_moves: (P,), new unless given, torch's promotion of x and
                   float32, likewise; lse: (P,), new unless given, torch's promotion of x and float32,
                   natural logarithm of the sum of the exponentials; 0 where no sequence is. On a device
                   it runs on the current stream, and never waits.
    Requires       blank_idx to be a class of x.
    Raises         ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                   kernel.
    Computes       as transducer_loss, with [b,t,u] in row batch_offset[b-1] + t * (y_len[b] + 1) + u;
                   batch_offset[-1] = 0
    Source         Graves 2012, arXiv:1211.3711, eqs. 12-18; apex.contrib.transducer. Lengths out of
                   range, or offsets that do not go with them, are a ValueError on the CPU, labels
                   outside [0, V) an IndexError; on CUDA the loss of such a sequence is NaN, and its
                   gradient 0. Where a loss is infinite or NaN by its logits, its gradient is NaN
    """
    ...

def transducer_loss_packed_backward(
    x: Array,
    label: Array,
    f_len: Array,
    y_len: Array,
    batch_offset: Array,
    blank_moves: Array,
    label_moves: Array,
    lse: Array,
    grad_loss: Array,
    blank_idx: int = 0,
    *,
    log_softmax: bool = True,
    grad_x: Array | None = None,
) -> Array:
    """Gradient of transducer_loss_packed, with that of the softmax in it; it may be written where the logits are.

    x:             (P, V) float32, float16, bfloat16 or float64, contiguous; that of the forward call.
    label:         (B, L) int32 or int64, contiguous; that of the forward call.
    f_len:         (B,) int32 or int64, contiguous; that of the forward call.
    y_len:         (B,) dtype of f_len, contiguous; that of the forward call.
    batch_offset:  (B,) int64, contiguous; that of the forward call.
    blank_moves:   (P,) torch's promotion of x and float32, contiguous; that of the forward call.
    label_moves:   (P,) dtype of blank_moves, contiguous; that of the forward call.
    lse:           (P,) dtype of blank_moves, contiguous; that of the forward call.
    grad_loss:     (B,) dtype of blank_moves, contiguous; gradient of loss.
    blank_idx:     int, default 0; that of the forward call.
    log_softmax:   bool, default True; that of the forward call; True with an lse of 0: the gradient of
                   what logarithms of probabilities were made of.
    Returns        grad_x: (P, V), new unless given, dtype of x. A result may be exactly x. On a device
                   it runs on the current stream, and never waits.
    Requires       blank_idx to be a class of x.
    Raises         ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                   kernel.
    Computes       as transducer_loss_backward, with [b,t,u] in row batch_offset[b-1] + t * (y_len[b] +
                   1) + u; rows of no sequence get 0
    Source         derivative of transducer_loss_packed; Graves 2012, arXiv:1211.3711, eq. 20
    """
    ...

def update_scale_hysteresis(
    current_scale: Array,
    growth_tracker: Array,
    hysteresis_tracker: Array,
    found_inf: Array,
    growth_factor: float = 2.0,
    backoff_factor: float = 0.5,
    growth_interval: int = 2000,
    hysteresis: int = 1,
) -> None:
    """Move the scale of a loss after a step: up after many finite ones, down after some that were not.

    current_scale:       (*,) float32, contiguous, written; one scale, or several that move alike.
    growth_tracker:      (*,) int32, contiguous, written; finite steps since the scale moved, of each
                         scale.
    hysteresis_tracker:  (*,) int32, contiguous, written; steps with infinities until the scale falls,
                         of each scale.
    found_inf:           broadcastable to (1,) float32 or int32, contiguous; of one element; not 0 where
                         a gradient was infinite or NaN.
    growth_factor:       float, default 2.0; factor of the scale after growth_interval finite steps.
    backoff_factor:      float, default 0.5; factor of the scale where it falls.
    growth_interval:     int, default 2000; finite steps until the scale grows.
    hysteresis:          int, default 1; what a finite step sets hysteresis_tracker to.
    Returns              None; current_scale, growth_tracker and hysteresis_tracker written in place. On
                         a device it runs on the current stream, and never waits.
    Raises               ValueError on shape or device, TypeError on dtype, NotImplementedError without
                         a kernel.
    Computes             where found_inf is 0: growth_tracker += 1; at growth_interval it is 0 again and
                         current_scale *= growth_factor, unless that is infinite; hysteresis_tracker =
                         hysteresis. Else hysteresis_tracker -= 1; growth_tracker = 0; current_scale *=
                         backoff_factor where hysteresis_tracker <= 0
    Source               NVIDIA Apex, amp_C.update_scale_hysteresis; PyTorch, torch.amp.GradScaler, with
                         hysteresis 1
    """
    ...

def verify_chain(
    draft_probs: Array,
    draft_tokens: Array,
    target_probs: Array,
    seed: Array,
    offset: Array,
    tokens: Array | None = None,
    accepted: Array | None = None,
    emitted: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Keep drafted tokens as far as the target model's distribution allows, and draw the token behind them.

    draft_probs:   (B, N, V) float32, float16 or bfloat16, contiguous; from which the N drafted tokens
                   were drawn, at most 2^80.
    draft_tokens:  (B, N) int32 or int64, contiguous; the drafted tokens.
    target_probs:  (B, N+1, V) dtype of draft_probs, contiguous; the target model's behind each token,
                   and behind all, at most 2^80.
    seed:          (B,) int64 or int32, any strides; of each of B chains. Chains of one seed and offset
                   use the same random words.
    offset:        broadcastable to (B,) dtype of seed, any strides; how far each stream is: another one
                   with each step, and than the offset of the drafts.
    Returns        tokens: (B, N+1), new unless given, dtype int32, the accepted tokens and one more, -1
                   behind the end; accepted: (B,), new unless given, dtype int32, how many drafted
                   tokens would be accepted if each were looked at alone; emitted: (B,), new unless
                   given, dtype int32, how many drafted tokens are in tokens. On a device it runs on the
                   current stream, and never waits.
    Raises         ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                   kernel.
    Computes       token i is accepted where coin[b,i] * draft_probs[b,i,token] <
                   target_probs[b,i,token]; behind the accepted ones a token is drawn from
                   max(target_probs - draft_probs, 0), behind all N from target_probs[b,N]; coin[b,i] =
                   word 0 of Philox(seed[b], offset[b], 2^32 + i), a number in (0, 1)
    Source         Leviathan et al. 2023, arXiv:2211.17192, algorithm 1; FlashInfer's
                   chain_speculative_sampling. A token outside [0, V) ends the chain as if it were not
                   there; a row that is no distribution gives token -1
    """
    ...

def verify_tree(
    candidates: Array,
    next_token: Array,
    next_sibling: Array,
    target_probs: Array,
    draft_probs: Array | None,
    seed: Array,
    offset: Array,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    tokens: Array | None = None,
    index: Array | None = None,
    accepted: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Follow a tree of drafted tokens as the target model's distribution allows, and draw the token behind them.

    candidates:        (B, D) int32 or int64, contiguous; the token of each of D nodes; node 0 is the
                       last token that is certain.
    next_token:        (B, D) dtype of candidates, contiguous; the first child of each node, -1: none.
    next_sibling:      (B, D) dtype of candidates, contiguous; the next child of the same node, -1:
                       none.
    target_probs:      (B, D, V) float32, float16 or bfloat16, contiguous; the target model's behind
                       each node, at most 2^80.
    draft_probs:       (B, D, V) dtype of target_probs, contiguous, or None; taken from target_probs
                       where a node's children are all rejected, at most 2^80; without it nothing is.
    seed:              (B,) int64 or int32, any strides; of each of B trees. Trees of one seed and
                       offset use the same random words.
    offset:            broadcastable to (B,) dtype of seed, any strides; how far each stream is: another
                       one with each step.
    threshold_single:  float, default 1.0; a child with this probability is accepted; 1 and more: only
                       by its coin.
    threshold_acc:     float, default 1.0; below 1, more is accepted than the target's distribution
                       allows.
    Returns            tokens: (B, D), new unless given, dtype int32, the accepted tokens and one more,
                       -1 behind the end; index: (B, D), new unless given, dtype int32, the nodes of the
                       way, from node 0 on, -1 behind the end; accepted: (B,), new unless given, dtype
                       int32, how many drafted tokens are accepted. On a device it runs on the current
                       stream, and never waits.
    Raises             ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                       kernel.
    Computes           from node 0: the first child c with coin[b,node] * threshold_acc < sum of
                       target_probs[b,node] of the children up to c, or with a probability of
                       threshold_single, is the next node; without one a token is drawn from
                       target_probs[b,node] (less draft_probs[b,node]) without the children;
                       coin[b,node] = word 0 of Philox(seed[b], offset[b], 2^32 + node), a number in (0,
                       1)
    Source             SGLang's tree_speculative_sampling_target_only. With both thresholds 1, no
                       draft_probs and children of different tokens, tokens have the target's
                       distribution. A node outside [0, D) ends its list, so does the D-th look at a
                       node; a row that is no distribution gives token -1
    """
    ...

def verify_tree_greedy(
    candidates: Array,
    next_token: Array,
    next_sibling: Array,
    target: Array,
    tokens: Array | None = None,
    index: Array | None = None,
    accepted: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Follow a tree of drafted tokens as long as a child is the target's own token.

    candidates:    (B, D) int32 or int64, contiguous; the token of each of D nodes; node 0 is the last
                   token that is certain.
    next_token:    (B, D) dtype of candidates, contiguous; the first child of each node, -1: none.
    next_sibling:  (B, D) dtype of candidates, contiguous; the next child of the same node, -1: none.
    target:        (B, D) dtype of candidates, contiguous; the token that the target model gives behind
                   each node.
    Returns        tokens: (B, D), new unless given, dtype int32, the accepted tokens and one more, -1
                   behind the end; index: (B, D), new unless given, dtype int32, the nodes of the way,
                   from node 0 on, -1 behind the end; accepted: (B,), new unless given, dtype int32, how
                   many drafted tokens are accepted. On a device it runs on the current stream, and
                   never waits.
    Raises         ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                   kernel.
    Computes       from node 0: the first child c, by next_token and next_sibling, whose candidates[b,c]
                   = target[b,node] is the next node; tokens are target[b,node] of the nodes on the way
    Source         SGLang's verify_tree_greedy. A node outside [0, D) ends its list, so does the D-th
                   look at a node
    """
    ...

def w4_pack(
    qweight: Array,
    qzeros: Array | None = None,
    format: str = 'awq',
    weight: Array | None = None,
    zero: Array | None = None,
) -> tuple[Array, Array | None]:
    """4-bit weights of an AWQ or GPTQ checkpoint, or plain ones, in the order in which linear_w4 reads them.

    qweight:  (*Q, A, B) int32 or uint8, contiguous; awq: int32 K by N/8; gptq, gptq_v2: int32 K/8 by N;
              plain: uint8 N by K/2, low bits first.
    qzeros:   (*Z, (format=='awq')*B+(format=='plain')*ceil(A/8)+(format in
              ('gptq','gptq_v2'))*ceil(B/8)) int32, contiguous, or None; zero points of each group,
              groups by N/8, 8 in each int32, in the order of the format; those of gptq less 1; None:
              all are 8.
    format:   str, default 'awq'; 'awq', 'gptq', 'gptq_v2' (zero points as they are) or 'plain'.
    Returns   weight: ((format=='awq')*8*B+(format=='plain')*A+(format in ('gptq','gptq_v2'))*B,
              (format=='awq')*(A//2)+(format=='plain')*B+(format in ('gptq','gptq_v2'))*4*A), new unless
              given, dtype uint8, N by K/2 bytes; zero: (broadcast(*Q, *Z),
              (format=='awq')*B+(format=='plain')*ceil(A/8)+(format in ('gptq','gptq_v2'))*ceil(B/8)),
              new unless given, dtype int32, made only when wanted, zero points, 8 in each int32, low
              bits first; without qzeros a row of eights for all groups. On a device it runs on the
              current stream, and never waits.
    Requires  format to be 'awq', 'gptq', 'gptq_v2' or 'plain'; qweight of two dimensions; qweight of
              uint8 in the format plain, of int32 in others; an even number of factors in qweight.
    Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.
    Computes  weight[n] holds the 4 bits of factors 0 to K-1 of result n, zero[g] the zero points of
              group g; docs/products.md says where
    Source    Lin et al. 2023, arXiv:2306.00978 (AWQ); Frantar et al. 2022, arXiv:2210.17323 (GPTQ);
              anyop: fragments of mma.sync
    """
    ...

def w4_unpack(
    weight: Array,
    scale: Array,
    zero: Array | None = None,
    group_size: int = 128,
    out: Array | None = None,
) -> Array:
    """The numbers that 4-bit weights of w4_pack stand for.

    weight:      (N, J) uint8, contiguous; N by K/2 bytes, as w4_pack orders them.
    scale:       (ceil(2*J/group_size), N) float32, float16 or bfloat16, contiguous; of each group of
                 factors of each of the N results.
    zero:        broadcastable to (ceil(2*J/group_size), ceil(N/8)) int32, any strides, or None; zero
                 points of the same groups, 8 in each int32, low bits first; None: all are 8.
    group_size:  int, default 128; factors of a result that have one scale.
    Returns      (N, 2*J), new unless given, dtype of scale. On a device it runs on the current stream,
                 and never waits.
    Requires     group_size > 0; group_size to be a multiple of 32, or at least the number of factors.
    Raises       ValueError on shape or device, TypeError on dtype, NotImplementedError without a
                 kernel.
    Computes     out[n,k] = (q[n,k] - zero[k // group_size, n]) * scale[k // group_size, n], with q the
                 4 bits in weight
    Source       Lin et al. 2023, arXiv:2306.00978 (AWQ); Frantar et al. 2022, arXiv:2210.17323 (GPTQ)
    """
    ...
