# SPDX-License-Identifier: Apache-2.0
"""apex.transformer.functional.fused_softmax: scale, mask and softmax of attention's scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import anyop
from anyop.torch.apex.calls import applied, exporting, in_lower_dtype
from anyop.torch.apex.extensions.scaled_masked_softmax_cuda import get_batch_per_block
from anyop.torch.apex.transformer.enums import AttnMaskType


def _standard(inputs: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """By torch's operators: what an exported graph holds."""
    scores = inputs.float() * scale
    if mask is None:
        return scores.softmax(-1).to(inputs.dtype)
    skip = mask.bool()
    probs = scores.masked_fill(skip, -10000.0).softmax(-1)
    return probs.masked_fill(skip.all(-1, keepdim=True), 0.0).to(inputs.dtype)


def scaled_upper_triang_masked_softmax(inputs: Tensor, _: Any, scale: float) -> Tensor:
    """Inputs (b, np, s, s): each query counts the keys up to its own."""
    sq, sk = inputs.shape[-2:]
    assert sq == sk, "causal mask is only for self attention"
    if exporting():
        later = torch.ones(sq, sk, dtype=torch.bool, device=inputs.device).triu(1)
        return _standard(inputs, later, scale)

    def run(inputs: Tensor) -> Tensor:
        return anyop.scaled_upper_triang_masked_softmax(inputs.contiguous(), float(scale))

    return in_lower_dtype(run, inputs)


def scaled_masked_softmax(inputs: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Inputs (b, np, sq, sk); mask broadcasts to them, where it is not 0 a score is left out; None: all count."""
    if exporting():
        return _standard(inputs, mask, scale)

    def run(inputs: Tensor) -> Tensor:
        if mask is None:
            return anyop.scaled_softmax(inputs.contiguous(), float(scale))
        return anyop.scaled_masked_softmax(inputs.contiguous(), mask, float(scale))

    return in_lower_dtype(run, inputs)


generic_scaled_masked_softmax = scaled_masked_softmax  # of any length, as the other one here


def _of_3_dimensions(inputs: Tensor, scale: float) -> Tensor:
    """Inputs (b * np, s, s)."""
    return scaled_upper_triang_masked_softmax(inputs, None, scale)


def _without_mask(inputs: Tensor, scale: float) -> Tensor:
    """Inputs (b, np, sq, sk)."""
    return scaled_masked_softmax(inputs, None, scale)


ScaledUpperTriangMaskedSoftmax = applied(
    "ScaledUpperTriangMaskedSoftmax", _of_3_dimensions, __name__
)
ScaledMaskedSoftmax = applied("ScaledMaskedSoftmax", scaled_masked_softmax, __name__)
GenericScaledMaskedSoftmax = applied("GenericScaledMaskedSoftmax", scaled_masked_softmax, __name__)
ScaledSoftmax = applied("ScaledSoftmax", _without_mask, __name__)


class FusedScaleMaskSoftmax(torch.nn.Module):
    """Scale, mask and softmax in one, where the input is as Apex's kernels take it; else torch's operators.

    input_in_fp16, input_in_bf16: the type of the scores; both are a RuntimeError.
    attn_mask_type: AttnMaskType.padding or causal.
    scaled_masked_softmax_fusion: whether to fuse at all.
    mask_func: masks the scores where they are not fused.
    softmax_in_fp32: what is not fused is computed in float32; must be where scale is given.
    scale: factor of the scores, or None.
    """

    fused_softmax_func: Callable[..., Tensor]

    def __init__(
        self,
        input_in_fp16: bool,
        input_in_bf16: bool,
        attn_mask_type: AttnMaskType,
        scaled_masked_softmax_fusion: bool,
        mask_func: Callable[[Tensor, Tensor], Tensor],
        softmax_in_fp32: bool,
        scale: float | None,
    ) -> None:
        super().__init__()
        if input_in_fp16 and input_in_bf16:
            raise RuntimeError("both fp16 and bf16 flags cannot be active at the same time.")
        if not (scale is None or softmax_in_fp32):
            raise RuntimeError("softmax should be in fp32 when scaled")
        self.input_in_fp16 = input_in_fp16
        self.input_in_bf16 = input_in_bf16
        self.input_in_float16 = input_in_fp16 or input_in_bf16
        self.attn_mask_type = attn_mask_type
        self.scaled_masked_softmax_fusion = scaled_masked_softmax_fusion
        self.mask_func = mask_func
        self.softmax_in_fp32 = softmax_in_fp32
        self.scale = scale
        if scaled_masked_softmax_fusion:
            if attn_mask_type == AttnMaskType.causal:
                self.fused_softmax_func = scaled_upper_triang_masked_softmax
            elif attn_mask_type == AttnMaskType.padding:
                self.fused_softmax_func = scaled_masked_softmax
            else:
                raise ValueError("Invalid attn_mask_type.")

    def forward(self, input: Tensor, mask: Tensor | None) -> Tensor:
        assert input.dim() == 4, f"input has {input.dim()} dimensions, expected (b, np, sq, sk)"
        if self.is_kernel_available(mask, *input.size()):
            return self.forward_fused_softmax(input, mask)
        return self.forward_torch_softmax(input, mask)

    def is_kernel_available(self, mask: Tensor | None, b: int, np: int, sq: int, sk: int) -> bool:
        """Apex's own conditions, though the operators here have no such limits.

        What is fused and what is not differ: in rows that are left out whole, and in what the mask means.
        """
        kinds = (AttnMaskType.causal, AttnMaskType.padding)
        if not (self.scaled_masked_softmax_fusion and self.input_in_float16):
            return False
        if self.attn_mask_type not in kinds or not 16 < sk <= 16384:
            return False
        if sq % 4 or sk % 4 or b * np % 4:
            return False
        blocks = b * np if self.attn_mask_type == AttnMaskType.causal else sq
        return blocks % self.get_batch_per_block(sq, sk, b, np) == 0

    def forward_fused_softmax(self, input: Tensor, mask: Tensor | None) -> Tensor:
        return self.fused_softmax_func(input, mask, 1.0 if self.scale is None else self.scale)

    def forward_torch_softmax(self, input: Tensor, mask: Tensor | None) -> Tensor:
        wide = self.input_in_float16 and self.softmax_in_fp32
        scores = input.float() if wide else input
        if self.scale is not None:
            scores = scores * self.scale
        probs = (scores if mask is None else self.mask_func(scores, mask)).softmax(-1)
        if not wide:
            return probs
        return probs.half() if self.input_in_fp16 else probs.bfloat16()

    @staticmethod
    def get_batch_per_block(sq: int, sk: int, b: int, np: int) -> int:
        return get_batch_per_block(sq, sk, b, np)


class GenericFusedScaleMaskSoftmax(FusedScaleMaskSoftmax):
    """FusedScaleMaskSoftmax with a mask, of any length."""

    def __init__(
        self,
        input_in_fp16: bool,
        input_in_bf16: bool,
        scaled_masked_softmax_fusion: bool,
        mask_func: Callable[[Tensor, Tensor], Tensor],
        softmax_in_fp32: bool,
        scale: float | None,
    ) -> None:
        super().__init__(
            input_in_fp16, input_in_bf16, AttnMaskType.padding, scaled_masked_softmax_fusion,
            mask_func, softmax_in_fp32, scale,
        )  # fmt: skip

    def is_kernel_available(self, mask: Tensor | None, b: int, np: int, sq: int, sk: int) -> bool:
        return bool(self.scaled_masked_softmax_fusion and sk > 0)
