# SPDX-License-Identifier: Apache-2.0
"""Every operator with [backward]: its gradients are the slopes of its float64 reference, found as the schema says."""

from __future__ import annotations

from pathlib import Path

import pytest
from anyop import testing
from anyop.cases.callers import CALLERS, missing
from anyop.testing.gradients import Differentiated, check_framework, check_slopes

pytest.importorskip("ml_dtypes", reason="bfloat16 and float8 in NumPy are ml_dtypes arrays")

SUBJECTS = {s.name: s for s in testing.find_subjects(Path(__file__).parents[2] / "ops")}
DIFFERENTIABLE = [name for name, subject in SUBJECTS.items() if subject.metadata["backward"]]


def differentiated(name: str) -> Differentiated:
    stated = SUBJECTS[name].metadata["backward"]["name"]
    return Differentiated(SUBJECTS[name], SUBJECTS[stated.replace("::", ".")])


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_are_slopes(name):
    made = differentiated(name)
    for source, gradient in made.gradients.items():
        assert gradient.shape == made.good.shapes[source]
        assert gradient.dtype.name == made.good.choice.names[source]
    assert check_slopes(made) == 3 * len(made.gradients) > 0


def test_a_wrong_gradient_is_found():
    made = differentiated("mul")
    made.gradients["y"] = made.gradients["y"] * 1.001
    with pytest.raises(
        testing.CheckError, match=r"mul: the gradient of y along a direction is .*expected"
    ):
        check_slopes(made)


@pytest.mark.parametrize("name", ["torch", "jax", "paddle"])
def test_what_a_framework_gives_is_compared(name):
    if reason := missing(name):
        pytest.skip(reason)
    made, caller = differentiated("mul"), CALLERS[name]()
    with caller.scope():
        assert check_framework(made, caller) == 2
        made.gradients["y"] = made.gradients["y"] * 1.001
        with pytest.raises(testing.CheckError, match=f"mul: {name}'s gradient of y is .*expected"):
            check_framework(made, caller)


def test_what_has_a_gradient():
    """Each operator of the tree but those that compute gradients, and those of weights that do not learn."""
    others = set(SUBJECTS) - set(DIFFERENTIABLE)
    without = {n for n in SUBJECTS if n.endswith("_backward") or "quant" in n or "fp8" in n}
    without |= {"grouped_linear_masked", "linear_packed", "linear_w8a8", "linear_wgrad_accumulate"}
    without |= {"grouped_wgrad_accumulate"}
    without |= {"pack_weight", "linear_w4", "w4_pack", "w4_unpack", "append_kv", "merge_states"}
    without |= {"attention_paged", "mla_decode", "mla_sparse", "append_latent", "decoder_layer"}
    without |= {"cross_entropy_with_grad", "scale_rows"}
    without |= {"sample", "sample_probs", "top_k_mask", "top_k_renorm", "top_p_renorm"}
    without |= {"penalize", "token_bitmask", "verify_tree_greedy", "verify_chain", "verify_tree"}
    without |= {"fused_moe_w8a8", "moe_align", "moe_sort", "sum_after_2_to_4", "check_permutations"}
    without |= {"build_permute_map", "build_swap_map"}
    steps = ("multi_tensor_", "update_scale", "batch_norm_")  # of optimizers, of a layer
    without |= {name for name in SUBJECTS if name.startswith(steps)}
    without -= {"index_mul_2d_backward"}  # which can be differentiated again
    assert others == without
    assert len(DIFFERENTIABLE) >= 19
