# SPDX-License-Identifier: Apache-2.0
"""flashinfer.fused_moe's cutlass_fused_moe by its name; arguments that choose or tune a kernel change nothing."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

import anyop
from anyop import _frameworks

if TYPE_CHECKING:
    from torch import Tensor  # or Paddle's: no function here asks what torch is


class ActivationType(IntEnum):
    """Those of FlashInfer's that anyop.fused_moe has, by their numbers there."""

    Swiglu = 3
    Geglu = 4
    SwigluBias = 5
    Relu2 = 6
    GegluTanh = 8


_NAMES: dict[int, str] = {
    ActivationType.Swiglu: "silu",
    ActivationType.Geglu: "gelu",
    ActivationType.SwigluBias: "swigluoai",
    ActivationType.Relu2: "relu2",
    ActivationType.GegluTanh: "gelu_tanh",
}
_UNKNOWN = (
    "input_sf", "enable_alltoall", "use_deepseek_fp8_block_scale", "use_w4_group_scaling",
    "use_mxfp8_act_scaling", "min_latency_mode", "use_packed_weights", "use_wfp4afp8_humming",
    "clamped_relu2_limit", "situ_beta", "situ_linear_beta",
)  # fmt: skip
_TUNING = (
    "cluster_size", "cluster_rank", "tune_max_num_tokens", "enable_pdl", "swizzled_input_sf",
    "use_fused_finalize", "profile_ids", "workspace_buffer", "backend",
)  # fmt: skip


def _refuse(what: str) -> None:
    raise NotImplementedError(f"anyop.torch.flashinfer.fused_moe: cutlass_fused_moe has no {what}")


def _gate(activation: int, alpha: Any, beta: Any, limit: Any) -> dict[str, Any]:
    """Of tensors, one number for each expert, none is read: that would wait for the device."""
    if activation not in _NAMES:
        _refuse(f"activation_type {activation!r}")
    for name, value in (("alpha", alpha), ("beta", beta), ("limit", limit)):
        if value is not None and not isinstance(value, int | float):
            _refuse(f"swiglu_{name} of each expert: give one number for all")
    name = _NAMES[activation]
    if name == "silu" and beta:
        name = "swigluoai"
    if beta not in (None, float(name == "swigluoai")):
        _refuse(f"swiglu_beta {beta}")
    more = {} if alpha is None else {"alpha": float(alpha)}
    return {"activation": name, "limit": limit, **more}


def cutlass_fused_moe(
    input: Tensor, token_selected_experts: Tensor, token_final_scales: Tensor,
    fc1_expert_weights: Tensor, fc2_expert_weights: Tensor, output_dtype: Any,
    quant_scales: Any = None, fc1_expert_biases: Tensor | None = None,
    fc2_expert_biases: Tensor | None = None, input_sf: Tensor | None = None,
    swiglu_alpha: Any = None, swiglu_beta: Any = None, swiglu_limit: Any = None, tp_size: int = 1,
    tp_rank: int = 0, ep_size: int = 1, ep_rank: int = 0, *, output: Tensor | None = None,
    activation_type: int = 3, **more: Any,
) -> Tensor:  # fmt: skip
    """The experts of tokens (T, H): fc1 (E, 2*I, H), the rows of the ups before those of the gates; fc2 (E, H, I).

    With ep_size above 1 the E experts are those from ep_rank * E on; the sum over the ranks is the layer's result.
    Weights are of input's dtype: float16, bfloat16, float32. swiglu_alpha, _beta and _limit are numbers.

    Raises:
        NotImplementedError: quantised weights, other activations, tensors for swiglu_alpha and the like.
    """
    for name, value in {"input_sf": input_sf, **more}.items():
        if name not in (*_UNKNOWN, *_TUNING):
            raise TypeError(f"cutlass_fused_moe() got an unexpected keyword argument {name!r}")
        if name in _UNKNOWN and value is not None and value is not False:
            _refuse(name)
    if quant_scales:
        _refuse("quant_scales")
    framework = _frameworks.of_tensor(input)
    with framework.no_grad():
        ids = token_selected_experts.to(framework.int32) - ep_rank * fc1_expert_weights.shape[0]
        out = anyop.fused_moe(
            input.contiguous(), fc1_expert_weights, fc2_expert_weights, token_final_scales.float(), ids,
            fc1_expert_biases, fc2_expert_biases, up_first=True,
            **_gate(activation_type, swiglu_alpha, swiglu_beta, swiglu_limit),
        )  # fmt: skip
        return out.to(output_dtype) if output is None else output.copy_(out)
