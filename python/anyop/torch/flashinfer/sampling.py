# SPDX-License-Identifier: Apache-2.0
"""flashinfer.sampling's functions by their names; `deterministic` changes nothing, as all draws are.

Where seed and offset are not given, they are drawn from the generator, on the device where that is its own: a replayed
CUDA graph draws anew. Of one seed for all rows each row has another part; a tensor has each row's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyop
from anyop import _frameworks

if TYPE_CHECKING:
    from torch import Tensor  # or Paddle's: no function here asks what torch is

_PART = 1 << 32  # offsets of a row, where one seed is all rows'


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, int | float)


def _int64(number: int) -> int:
    """A number of 64 bits, with the sign that tensors give them."""
    return (int(number) + 2**63) % 2**64 - 2**63


def _seeds(
    of: Tensor, indices: Tensor | None, generator: Any, seed: Any, offset: Any
) -> tuple[Tensor, Tensor]:
    """Of each draw."""
    B, framework = (of if indices is None else indices).shape[0], _frameworks.of_tensor(of)
    if (seed is None) != (offset is None) or _is_number(seed) != _is_number(offset):
        raise ValueError(
            "seed and offset must both be tensors, both be numbers, or both be left out"
        )
    if seed is None:
        return _drawn(framework, B, of, generator), _drawn(framework, B, of, generator)
    if not _is_number(seed) and seed.shape[0] == B != 1:
        return seed.to(framework.int64), offset.to(framework.int64).expand([B]).contiguous()
    parts = framework.arange(B, dtype=framework.int64, device=of.device) * _PART
    if _is_number(seed):
        seed, offset = (framework.full_like(parts, _int64(number)) for number in (seed, offset))
    return parts * 0 + seed, parts + offset


def _drawn(framework: Any, B: int, of: Tensor, generator: Any) -> Tensor:
    """Numbers of 32 bits: more of them Paddle's randint does not take."""
    low, high = -(2**31), 2**31 - 1
    if framework.__name__ == "paddle":
        if generator is not None:
            raise NotImplementedError(
                "anyop.torch.flashinfer.sampling: no generator of Paddle's: give seed and offset"
            )
        return framework.randint(low, high, [B], dtype="int64")
    where = of.device if generator is None else generator.device
    return framework.randint(low, high, (B,), generator=generator, device=where).to(of.device)


def _checked(values: Tensor, check_nan: bool) -> None:
    if check_nan and bool(values.isnan().any()):
        raise ValueError("Input contains NaN.")


def _number(value: Any, dtype: str) -> Any:
    if _is_number(value):
        return value
    return value.to(getattr(_frameworks.of_tensor(value), dtype))


def _is_top_k_first(order: str) -> bool:
    if order not in ("top_k_first", "joint"):
        raise ValueError(f"filter_apply_order is {order!r}, expected 'top_k_first' or 'joint'")
    return order == "top_k_first"


def _from_probs(
    probs: Tensor, indices: Tensor | None, generator: Any, check_nan: bool, seed: Any, offset: Any,
    return_valid: bool, **filters: Any,
) -> Any:  # fmt: skip
    _checked(probs, check_nan)
    rows = _number(indices, "int32")
    seeds = _seeds(probs, indices, generator, seed, offset)
    found = anyop.sample_probs(probs.contiguous(), *seeds, rows=rows, **filters)
    tokens = found if indices is None else found.to(indices.dtype)
    return (tokens, found >= 0) if return_valid else tokens


def _from_logits(
    logits: Tensor, indices: Tensor | None, generator: Any, check_nan: bool, seed: Any, offset: Any,
    **filters: Any,
) -> Tensor:  # fmt: skip
    _checked(logits, check_nan)
    rows = _number(indices, "int32")
    seeds = _seeds(logits, indices, generator, seed, offset)
    call: Any = anyop.sample
    found = call(logits.contiguous(), *seeds, rows=rows, logprob=False, **filters)[0]
    return found if indices is None else found.to(indices.dtype)


def softmax(logits: Tensor, temperature: Any = None, enable_pdl: bool | None = None) -> Tensor:
    """Of logits / temperature, one number or one for each row, in float32."""
    wide = logits.float()
    if temperature is not None:
        wide = wide / (temperature if _is_number(temperature) else temperature.float()[:, None])
    return anyop.softmax(wide.contiguous(), -1)


def sampling_from_logits(
    logits: Tensor, indices: Tensor | None = None, deterministic: bool = True, generator: Any = None,
    check_nan: bool = False, seed: Any = None, offset: Any = None,
) -> Tensor:  # fmt: skip
    """A token of each row; indices: the row of each draw."""
    return _from_logits(logits, indices, generator, check_nan, seed, offset)


def sampling_from_probs(
    probs: Tensor, indices: Tensor | None = None, deterministic: bool = True, generator: Any = None,
    check_nan: bool = False, seed: Any = None, offset: Any = None, return_valid: bool = False,
) -> Any:  # fmt: skip
    """A token of each row, -1 of one that is no distribution."""
    return _from_probs(probs, indices, generator, check_nan, seed, offset, return_valid)


def top_p_sampling_from_probs(
    probs: Tensor, top_p: Any, indices: Tensor | None = None, deterministic: bool = True,
    generator: Any = None, check_nan: bool = False, seed: Any = None, offset: Any = None,
    return_valid: bool = False,
) -> Any:  # fmt: skip
    """A token of the fewest that reach top_p."""
    how = {"top_p": _number(top_p, "float32")}
    return _from_probs(probs, indices, generator, check_nan, seed, offset, return_valid, **how)


def top_k_sampling_from_probs(
    probs: Tensor, top_k: Any, indices: Tensor | None = None, deterministic: bool = True,
    generator: Any = None, check_nan: bool = False, seed: Any = None, offset: Any = None,
    return_valid: bool = False,
) -> Any:  # fmt: skip
    """A token of the top_k likeliest."""
    how = {"top_k": _number(top_k, "int32")}
    return _from_probs(probs, indices, generator, check_nan, seed, offset, return_valid, **how)


def min_p_sampling_from_probs(
    probs: Tensor, min_p: Any, indices: Tensor | None = None, deterministic: bool = True,
    generator: Any = None, check_nan: bool = False, seed: Any = None, offset: Any = None,
    return_valid: bool = False,
) -> Any:  # fmt: skip
    """A token at least min_p times as likely as the likeliest."""
    how = {"min_p": _number(min_p, "float32")}
    return _from_probs(probs, indices, generator, check_nan, seed, offset, return_valid, **how)


def top_k_top_p_sampling_from_logits(
    logits: Tensor, top_k: Any, top_p: Any, indices: Tensor | None = None,
    filter_apply_order: str = "top_k_first", deterministic: bool = True, generator: Any = None,
    check_nan: bool = False, seed: Any = None, offset: Any = None,
) -> Tensor:  # fmt: skip
    """By both; 'joint': top_p is a share of all tokens, not of what top_k keeps."""
    how = {"top_k": _number(top_k, "int32"), "top_p": _number(top_p, "float32")}
    first = _is_top_k_first(filter_apply_order)
    return _from_logits(
        logits, indices, generator, check_nan, seed, offset, top_k_first=first, **how
    )


def top_k_top_p_sampling_from_probs(
    probs: Tensor, top_k: Any, top_p: Any, indices: Tensor | None = None,
    filter_apply_order: str = "top_k_first", deterministic: bool = True, generator: Any = None,
    check_nan: bool = False, seed: Any = None, offset: Any = None, return_valid: bool = False,
) -> Any:  # fmt: skip
    """As top_k_top_p_sampling_from_logits."""
    how = {"top_k": _number(top_k, "int32"), "top_p": _number(top_p, "float32")}
    first = _is_top_k_first(filter_apply_order)
    return _from_probs(
        probs, indices, generator, check_nan, seed, offset, return_valid, top_k_first=first, **how
    )


def top_p_renorm_probs(probs: Tensor, top_p: Any, is_deterministic: bool = False) -> Tensor:
    """The fewest that reach top_p, with a sum of 1."""
    return anyop.top_p_renorm(probs.contiguous(), _number(top_p, "float32"))


def top_k_renorm_probs(probs: Tensor, top_k: Any, is_deterministic: bool = False) -> Tensor:
    """The top_k likeliest, with a sum of 1."""
    return anyop.top_k_renorm(probs.contiguous(), _number(top_k, "int32"))


def top_k_mask_logits(logits: Tensor, top_k: Any) -> Tensor:
    """The top_k greatest; others are -inf."""
    return anyop.top_k_mask(logits.contiguous(), _number(top_k, "int32"))


def chain_speculative_sampling(
    draft_probs: Tensor, draft_token_ids: Tensor, target_probs: Tensor,
    maybe_output_accepted_token_num: Tensor | None = None,
    maybe_output_emitted_draft_token_num: Tensor | None = None, deterministic: bool = True,
    generator: Any = None, seed: Any = None, offset: Any = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Tokens, accepted and emitted ones; those two are added to the tensors that are given."""
    seeds = _seeds(draft_probs, None, generator, seed, offset)
    made = (tensor.contiguous() for tensor in (draft_probs, draft_token_ids, target_probs))
    call: Any = anyop.verify_chain
    tokens, accepted, emitted = call(*made, *seeds)
    if maybe_output_accepted_token_num is not None:
        accepted = maybe_output_accepted_token_num.add_(accepted)
    if maybe_output_emitted_draft_token_num is not None:
        emitted = maybe_output_emitted_draft_token_num.add_(emitted)
    return tokens, accepted, emitted
