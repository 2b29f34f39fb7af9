# SPDX-License-Identifier: Apache-2.0
"""Every formula of [tangent]: the slope of the float64 reference, and the transpose of the backward operator."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import anyop
import numpy as np
import pytest
from anyop import testing
from anyop.adapter.tangent import Tangent
from anyop.cases.dtype_choices import is_floating, numpy_dtype, result_dtypes
from anyop.cases.values import build, in_float64, reference_arguments

pytest.importorskip("ml_dtypes", reason="bfloat16 and float8 in NumPy are ml_dtypes arrays")

SUBJECTS = {s.name: s for s in testing.find_subjects(Path(__file__).parents[2] / "ops")}
WITH = [name for name, subject in SUBJECTS.items() if subject.metadata["tangent"]]
# What has no formula, or not for all of its floating inputs, and why.
WITHOUT = {
    **dict.fromkeys(
        (name for name in SUBJECTS if name.startswith(("multi_tensor_", "update_scale"))),
        "lists have no derivatives",
    ),
    "attention": "q, k, mask: the weights are no operator of their own",
    "attention_varlen": "as attention",
    "attention_with_lse": "two results",
    "masked_mean": "mask: counts or does not",
    "topk": "two results",
    "sort": "two results",
    **dict.fromkeys(
        ("native_layer_norm", "native_dense_gelu_dense", "group_norm", "group_norm_channels_last"),
        "three results",
    ),
    **dict.fromkeys(("transducer_loss", "transducer_loss_packed"), "four results"),
    **dict.fromkeys(
        ("batch_norm_combine", "batch_norm_backward_channels_last"),
        "a step of a synchronised batch norm",
    ),
    **dict.fromkeys(
        (
            f"batch_norm_{step}{order}"
            for step in ("stats", "apply", "reduce")
            for order in ("", "_channels_last")
        ),
        "a step of a synchronised batch norm",
    ),
    **dict.fromkeys(
        ("native_rms_norm", "rms_norm_from_output", "layer_norm_from_output"), "rstd, too"
    ),
    **dict.fromkeys(("fused_add_rms_norm", "fused_add_layer_norm"), "the sum, too"),
    "rope": "cos, sin: tables, with no gradient either",
    **dict.fromkeys(
        (
            "rope_qk",
            "qk_norm_rope",
            "native_linear_act",
            "native_linear_gated",
            "linear_cross_entropy",
            "cross_entropy",
            "focal_loss",
            "transducer_joint",
            "transducer_joint_packed",
            "moe_route",
            "moe_unpermute",
            "native_fused_moe",
            "merge_states",
            "attention_varlen_with_lse",
            "attention_paged",
            "mla_decode",
            "mla_sparse",
            "mla_sparse_fp8",
        ),
        "two results",
    ),
    **dict.fromkeys(
        ("linear_w8a8", "linear_fp8_block", "grouped_linear_fp8_block", "fused_moe_w8a8"),
        "8 bits: no gradient either",
    ),
    **dict.fromkeys(
        ("grouped_linear_masked", "grouped_linear_fp8_block_masked", "fused_moe_fp8_block"),
        "for decoding: no gradient either",
    ),
    **dict.fromkeys(
        ("sum_after_2_to_4", "build_permute_map", "build_swap_map", "check_permutations"),
        "a search: no gradient either",
    ),
    "silu_and_mul": "adds the halves of a row, which no operator does",
    "gelu_and_mul": "as silu_and_mul",
    **dict.fromkeys(
        ("pack_weight", "linear_packed", "linear_w4", "w4_unpack"),
        "for inference: no gradient either",
    ),
    **dict.fromkeys(("linear_wgrad_accumulate", "grouped_wgrad_accumulate"), "it is a gradient"),
    **dict.fromkeys(("cross_entropy_with_grad", "scale_rows"), "for gradients"),
    **dict.fromkeys(("append_kv", "append_latent", "append_latent_fp8"), "it copies into a cache"),
    **dict.fromkeys(
        ("sample", "top_k_mask", "top_k_renorm", "top_p_renorm", "penalize", "token_bitmask"),
        "for decoding: no gradient either",
    ),
    **dict.fromkeys(("sample_probs", "verify_chain", "verify_tree"), "tokens have no derivative"),
    "fused_moe": "products of activated products, as linear_gated",
    "decoder_layer": "for decoding: no gradient either",
    "conv_bias_act": "the slope of its relu is no operator of its own",
    "linear_gated": "multiplies two halves, as silu_and_mul",
}
CASES = ("base", "one element", "empty", "group", "broadcast", "expand", "attribute", "absent")
MOST_ELEMENTS = 12_000
STEP = 1e-6
ROUNDING = {"float16": 1e-2, "bfloat16": 8e-2, "float32": 1e-4}  # of several operators in a row


def call(name, args, kwargs):
    """What a formula calls, in NumPy; every operator takes contiguous arrays."""
    function = anyop.ops.anyop
    for part in name.split("."):
        function = getattr(function, part)
    args = [np.ascontiguousarray(a).reshape(a.shape) if is_array(a) else a for a in args]
    return function(*args, **kwargs)


def fill(like, shape, number):
    return np.full(like.shape if shape is None else shape, number, like.dtype)


def is_array(value):
    return isinstance(value, np.ndarray)


@cache
def widest(name):
    """The dtypes of float64 where the operator has it."""
    subject = SUBJECTS[name]

    def width(choice):
        names = [choice.names.get(param["name"]) for param in subject.tensors]
        return sum({"float64": 64, "float32": 32}.get(name, 0) for name in names)

    choices = testing.dtype_choices(subject.metadata)
    fits = [c for c in choices if c.names.get("dtype", "float64") == "float64"]
    return max(fits, key=width)


def base(subject, choice):
    """One call of other dtypes, without making all its cases."""
    return testing.Good(subject, choice).case


def points(name, choice=None):
    """(label, what is built, all inputs and the result by name) of small good cases; of other dtypes the base."""
    subject = SUBJECTS[name]
    cases = testing.good_cases(subject, widest(name)) if choice is None else [base(subject, choice)]
    for case in cases:
        if case.what not in CASES or case.layouts:
            continue
        built = build(subject, case)
        if sum(a.size for a in built.arguments.values() if is_array(a)) > MOST_ELEMENTS:
            continue
        given = {name: built.arguments.get(name) for name in built.arguments}
        out = subject.function(**given)
        values = {p["name"]: given.get(p["name"], p.get("default")) for p in subject.inputs}
        yield f"{name} {case.label}", built, {**values, subject.results[0]["name"]: out}


def directions(subject, values, random):
    """A tangent for every input that has a formula and is given, in floats."""
    return {
        name: np.asarray(random.standard_normal(values[name].shape)).astype(values[name].dtype)
        for name in subject.metadata["tangent"]
        if values[name] is not None and is_floating(values[name].dtype.name)
    }


def push(subject, values, tangents):
    dtype = values[subject.results[0]["name"]].dtype
    return Tangent(subject.metadata).push(values, tangents, call, fill, dtype)


def slope(subject, built, tangents):
    """The float64 reference's difference quotient along these directions."""

    def at(step):
        given = reference_arguments(subject, built)
        for name, tangent in tangents.items():
            given[name] = given[name] + step * in_float64(tangent)
        return np.asarray(subject.reference(**given))

    return (at(STEP) - at(-STEP)) / (2 * STEP)


@pytest.mark.parametrize("name", WITH)
def test_formulas_are_slopes(name):
    """Each input by itself, then all together: sizes, broadcasts, attributes, absent arguments."""
    subject, random, compared = SUBJECTS[name], np.random.default_rng(0), set()
    for label, built, values in points(name):
        every = directions(subject, values, random)
        for chosen in [*({n: t} for n, t in every.items()), every]:
            expected = slope(subject, built, chosen)
            found = push(subject, values, chosen)
            if found is None:  # the formula 0
                found = np.zeros(expected.shape)
            assert found.shape == expected.shape, (label, list(chosen))
            error = np.abs(found - expected) / (1 + np.abs(expected))
            assert error.max(initial=0) <= 1e-6, (label, list(chosen), error.max())
            if found.size and np.abs(expected).max() > 0:
                compared |= set(chosen)
    zeros = {n for n, tree in subject.metadata["tangent"].items() if tree[0] == "value"}
    assert compared == set(subject.metadata["tangent"]) - (zeros - compared), compared


@pytest.mark.parametrize("name", WITH)
def test_in_every_dtype(name):
    """The tangent has the result's dtype and the values of float64, within a few roundings."""
    subject, random, compared = SUBJECTS[name], np.random.default_rng(1), 0
    for choice in testing.dtype_choices(subject.metadata):
        result = result_dtypes(subject.metadata, choice.names)[subject.results[0]["name"]][0]
        names = [result, *(choice.names.get(n) for n in subject.metadata["tangent"])]
        if "float" not in result or any("float8" in (name or "") for name in names):
            continue  # integers and complex numbers; float8 rounds too much to say anything
        for label, built, values in points(name, choice):
            tangents = directions(subject, values, random)
            if not tangents:
                continue
            found = push(subject, values, tangents)
            assert found.dtype == numpy_dtype(result), (label, str(choice))
            expected = slope(subject, built, tangents)
            limit = max(ROUNDING.get(n, 1e-6) for n in [result, *choice.names.values()])
            error = np.abs(found.astype(np.float64) - expected) / (1 + np.abs(expected))
            assert error.max() <= limit, (label, str(choice), error.max())
            compared += 1
    assert compared >= 1


@pytest.mark.parametrize("name", [n for n in WITH if SUBJECTS[n].metadata["backward"]])
def test_forward_is_the_transpose_of_backward(name):
    """<J t, g> = <t, J^T g>, with the arguments of the backward operator found by their names."""
    subject, random, compared = SUBJECTS[name], np.random.default_rng(2), 0
    backward = SUBJECTS[subject.metadata["backward"]["name"]]
    for label, _, values in points(name):
        tangents = directions(subject, values, random)
        out = values[subject.results[0]["name"]]
        g = np.asarray(random.standard_normal(out.shape))
        of_size = {"embedding": ("V", "weight"), "moe_permute": ("T", "x")}.get(name)
        sizes = {of_size[0]: values[of_size[1]].shape[0]} if of_size else {}
        known = {**sizes, **values, f"grad_{subject.results[0]['name']}": g}
        if other := subject.metadata["backward"]["forward"]:  # what only that one gives
            inputs = {p["name"]: values[p["name"]] for p in subject.inputs}
            found = SUBJECTS[other].function(**inputs)
            results = (param["name"] for param in SUBJECTS[other].results)
            known = {**dict(zip(results, found, strict=True)), **known}
        absent = {p["name"]: None for p in backward.inputs if p["optional"]}
        takes = {p["name"]: (absent | known)[p["name"]] for p in backward.inputs}
        found = backward.function(**takes)
        found = found if isinstance(found, tuple) else (found,)
        gradients = {p["name"][5:]: v for p, v in zip(backward.results, found, strict=True)}
        left = float((push(subject, values, tangents) * g).sum())
        right = sum(float((t * gradients[n]).sum()) for n, t in tangents.items())
        assert abs(left - right) <= 1e-9 * (1 + abs(left) + abs(right)), (label, left, right)
        compared += out.size > 0
    assert compared >= 1


def test_which_operators_have_formulas():
    """All but those of WITHOUT; of the gradients only those with one result, in what they are linear in."""
    lacking = set()
    for name, subject in SUBJECTS.items():
        if name.endswith("_backward") or "quant" in name:  # rounding has no derivative
            continue
        known = subject.metadata["tangent"] or {}
        floats = [p for p in subject.tensors if any(map(is_floating, p["possible_dtypes"]))]
        if any(p["name"] not in known for p in floats):
            lacking.add(name)
    assert lacking == set(WITHOUT)
    assert len(WITH) >= 27


def test_a_tangent_without_a_formula_is_an_error():
    x = np.ones((2, 4))
    for name, wanted in (("silu_and_mul", "x"), ("attention", "q"), ("masked_mean", "mask")):
        with pytest.raises(NotImplementedError, match=f"^{name}: .*forward mode .*to {wanted} "):
            Tangent(anyop.metadata(name)).push({wanted: x}, {wanted: x}, call, fill)


def test_formulas_of_a_newer_anyop_are_refused():
    metadata = {**anyop.metadata("relu"), "tangent": {"x": ["call", "relu", [["power", 2]], {}]}}
    with pytest.raises(ValueError, match="'power'"):
        Tangent(metadata).push({"x": 1}, {"x": np.ones(2)}, call, fill)


def test_equal_calls_in_a_formula_are_made_once():
    subject, calls = SUBJECTS["log_softmax"], []

    def noted(name, args, kwargs):
        calls.append(name)
        return call(name, args, kwargs)

    x = np.ones((2, 3))
    values = {"x": x, "dim": -1, "out": subject.function(x)}
    Tangent(subject.metadata).push(values, {"x": x}, noted, fill)
    assert sorted(calls) == ["add", "add", "log_softmax_backward", "mul", "softmax"]


def test_what_the_formulas_need():
    found = {name: Tangent(SUBJECTS[name].metadata).names for name in WITH}
    assert found["relu"] == {"out"} and found["mul"] == {"x", "y"}
    assert found["gelu"] == {"x", "approximate"} and found["relu"] == {"out"}
    assert found["rms_norm"] == {"x", "weight", "eps", "weight_offset", "dtype"}
    assert found["linear"] == {"x", "weight", "out"}
