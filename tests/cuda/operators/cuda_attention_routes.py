# SPDX-License-Identifier: Apache-2.0
"""The routes of attention to cuDNN and FlashAttention 4 on CUDA: results, logarithms and gradients against float64,
from torch, CuPy and JAX, in graphs; what they leave to others, what is the default, and anyop tune beside the rest.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyop
import pytest
from anyop import testing, tune

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch's tests share the device
sys.path.insert(0, str(Path(__file__).parent))
from cuda_attention import assert_near, exactly, normal
from on_cuda import torch

ROUTES = ("cudnn", "fa4")
CAPABILITY = torch.cuda.get_device_capability()
# B, H, G, S, T, D, E; options.
CASES = [
    ((2, 4, 4, 128, 128, 64, 64), {}),
    ((1, 8, 2, 200, 200, 128, 128), {"causal": True}),
    ((2, 6, 2, 65, 257, 64, 64), {"scale": 0.3}),
    ((1, 4, 4, 256, 256, 192, 128), {"causal": True}),
    ((3, 8, 1, 1, 300, 128, 128), {"causal": True, "offset": 299}),
    ((1, 4, 2, 96, 96, 16, 8), {"causal": True}),
]
OPTIONS = [  # of FlashAttention 4 alone
    {"causal": True, "window_left": 40, "offset": 57},
    {"window_left": 5, "window_right": 9, "offset": 57, "sinks": True},
    {"causal": True, "offset": 57, "softcap": 5.0},
]


@functools.cache
def why_not(route: str) -> str:
    """Why a route does not work on this machine at all; "" where it does."""
    if anyop.backends("attention").count(route) == 0:
        return f"this build has no {route}"
    q = normal(1, 2, 64, 64)
    with anyop.use(route):
        explained = anyop.explain("attention", q, q, q)
    reason = {c["name"]: c["why_not"] for c in explained.candidates}[route]
    if reason:
        return reason
    ran = calls_of("attention", route)
    with anyop.use(route):
        anyop.attention(q, q, q)
    return "" if calls_of("attention", route) > ran else "declined the plainest call; see stderr"


def calls_of(operator: str, route: str) -> int:
    testing.observe(operator)
    return sum(k.calls for k in testing.kernel_calls(operator) if k.backend == route)


@pytest.fixture(params=ROUTES)
def route(request):
    if why := why_not(request.param):
        pytest.skip(f"{request.param}: {why}")
    return request.param


def run(route: str, operator: str, *given, **options):
    """The results; the test is left out, with the reason, where cuDNN or flash-attn-4 has no kernel for the call."""
    before = calls_of(operator, route)
    with anyop.use(route):
        found = getattr(anyop, operator)(*given, **options)
    if calls_of(operator, route) == before:
        pytest.skip(f"{route} left {operator} to another; see stderr")
    return found


def operands(B, H, G, S, T, D, E, dtype):
    """Heads of queries and keys lie within rows, as a model has them."""
    q = normal(B, S, H, D, dtype=dtype).transpose(1, 2)
    k = normal(B, T, G, D, dtype=dtype, seed=1).transpose(1, 2)
    return q, k, normal(B, G, T, E, dtype=dtype, seed=2)


def slopes_exactly(grad, grad_lse, q, k, v, **options):
    leaves = [x.detach().double().requires_grad_() for x in (q, k, v)]
    sinks = options.pop("sinks", None)
    sinks = None if sinks is None else sinks.detach().double().requires_grad_()
    out, lse = exactly(*leaves, sinks=sinks, **options)
    total = (out * grad.double()).sum() + (0 if grad_lse is None else (lse * grad_lse).sum())
    return torch.autograd.grad(total, [*leaves, *([] if sinks is None else [sinks])])


def check(route, sizes, options, dtype):
    q, k, v = operands(*sizes, dtype)
    exact, exact_lse = exactly(q, k, v, **options)
    out, lse = run(route, "attention_with_lse", q, k, v, **options)
    assert_near(out, exact, "out")
    assert_near(lse, exact_lse, "lse, natural")
    assert_near(run(route, "attention", q, k, v, **options), exact, "alone")


def check_gradients(route, sizes, options, dtype):
    q, k, v = operands(*sizes, dtype)
    out, lse = anyop.attention_with_lse(q, k, v, **options)
    grad = normal(*out.shape, dtype=dtype, seed=3)
    found = run(route, "attention_backward", grad, q, k, v, out, lse, **options)
    wanted = slopes_exactly(grad, None, q, k, v, **options)
    half = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11
    for one, exact, what in zip(found, wanted, ("grad_q", "grad_k", "grad_v", "grad_sinks")):
        error = (one.double() - exact).abs().max().item()
        assert error <= 12 * half * (1 + exact.abs().max().item()), (what, error)
    if options.get("sinks") is None:
        assert not found[3].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_and_logarithms(route, case, dtype):
    check(route, *case, dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients(route, case, dtype):
    check_gradients(route, *case, dtype)


@pytest.mark.parametrize("judge", [check, check_gradients])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_that_flash_attention_4_has(options, judge):
    if why := why_not("fa4"):
        pytest.skip(f"fa4: {why}")
    options = dict(options)
    if "sinks" in options:
        options["sinks"] = normal(8, dtype=torch.float32)
    judge("fa4", (2, 8, 2, 100, 157, 128, 128), options, torch.bfloat16)


def test_gradients_of_other_layouts_after_each_other(route):
    """The plans of cuDNN are kept by the layouts of q, k and v: those of grad_out and out may not be mistaken."""
    sizes = (2, 4, 2, 64, 80, 64, 64)
    q, k, v = operands(*sizes, torch.bfloat16)
    out, lse = anyop.attention_with_lse(q, k, v)
    grad = normal(*out.shape, seed=3)
    wanted = slopes_exactly(grad, None, q, k, v)
    for turned in (False, True, False):
        other = grad.transpose(1, 2).contiguous().transpose(1, 2) if turned else grad
        mine = out.transpose(1, 2).contiguous().transpose(1, 2) if turned else out
        found = run(route, "attention_backward", other, q, k, v, mine, lse)
        for one, exact in zip(found, wanted):
            error = (one.double() - exact).abs().max().item()
            assert error <= 12 * 2.0**-8 * (1 + exact.abs().max().item()), turned


def test_torchs_own_gradients_run_there(route):
    q, k, v = (
        x.detach().requires_grad_() for x in operands(1, 4, 2, 96, 96, 64, 64, torch.bfloat16)
    )
    before = calls_of("attention_with_lse", route), calls_of("attention_backward", route)
    with anyop.use(route):
        out = anyop.attention(q, k, v, causal=True)
        grad = normal(*out.shape, seed=3)
        found = torch.autograd.grad(out, (q, k, v), grad)
    after = calls_of("attention_with_lse", route), calls_of("attention_backward", route)
    assert all(b > a for a, b in zip(before, after)), (before, after)
    for one, exact in zip(found, slopes_exactly(grad, None, q, k, v, causal=True)):
        assert_near(one / 4, exact / 4, "gradient")


def test_what_is_left_to_others(route, capfd):
    """By conditions before the call, by the call itself; the results are right all the same."""
    q, k, v = operands(1, 4, 2, 64, 64, 64, 64, torch.bfloat16)
    seen = torch.ones(64, 64, dtype=torch.bool, device="cuda").tril()
    with anyop.use(route):
        explained = anyop.explain("attention", q, k, v, seen)
        assert explained.fallback and explained.chosen != route
        found = anyop.attention(q, k, v, seen)
        odd = anyop.attention(q, k, v, causal=True, offset=3)
    assert_near(found, exactly(q, k, v, causal=True)[0], "mask")
    assert_near(odd, exactly(q, k, v, causal=True, offset=3)[0], "offset")
    said = capfd.readouterr().err
    assert f"attention: {route} takes " in said


def test_in_a_graph(route):
    q, k, v = operands(1, 4, 2, 128, 128, 64, 64, torch.bfloat16)
    run(route, "attention", q, k, v, causal=True)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with anyop.use(route), torch.cuda.graph(graph):
        found = anyop.attention(q, k, v, causal=True)
    q.copy_(normal(*q.shape, seed=9))
    graph.replay()
    assert torch.equal(found, run(route, "attention", q, k, v, causal=True))


@pytest.mark.parametrize("framework", ["cupy", "jax"])
def test_memory_of_other_frameworks(route, framework):
    q, k, v = (x.contiguous() for x in operands(1, 4, 2, 96, 96, 64, 64, torch.float16))
    exact = exactly(q, k, v, causal=True)[0]
    module = pytest.importorskip(framework, reason=f"{framework} is not installed")
    if framework == "cupy":
        given = [module.from_dlpack(x) for x in (q, k, v)]
    else:
        importlib.import_module("anyop.jax")
        try:
            with ThreadPoolExecutor(1) as pool:  # as tests/cuda/frameworks/cuda_jax.py does
                pool.submit(module.devices, "cuda").result()
        except RuntimeError as error:
            pytest.skip(f"JAX has no CUDA device: {error}")
        given = [module.dlpack.from_dlpack(x) for x in (q, k, v)]
    before = calls_of("attention", route)
    with anyop.use(route):
        found = anyop.attention(*given, causal=True)
    assert calls_of("attention", route) > before
    assert_near(torch.from_dlpack(found), exact, framework)


@pytest.mark.parametrize("operator", ["attention", "attention_with_lse"])
def test_the_default(operator):
    """That of GPUs newer than Hopper is cuDNN, up to it our own."""
    q, k, v = operands(1, 4, 2, 64, 64, 64, 64, torch.bfloat16)
    explained = anyop.explain(operator, q, k, v, causal=True)
    print(f"{operator} on {CAPABILITY}: {explained.chosen}")
    if CAPABILITY >= (10, 0):
        assert explained.chosen == "cudnn_sm100"
    else:
        why = {c["name"]: c["why_not"] for c in explained.candidates}["cudnn_sm100"]
        assert explained.chosen in ("cuda", "cuda_sm90")
        assert why == f"takes capability>=10.0, and it is {CAPABILITY[0]}.{CAPABILITY[1]}"


def test_tune_compares_them(route, tmp_path):
    absent = "mask=None sinks=None alibi_slopes=None"
    sizes = "B=1 H=8 G=2 S=512 T=512 D=128 E=128 dtype=bfloat16 causal=true"
    kind = tune.given_shapes(f"attention: {sizes} {absent}", "cuda")
    notes: list[str] = []
    settings = tune.Settings(str(tmp_path / "routes.txt"), ("cuda", "cuda_sm90", route), 0.05)
    try:
        found = tune.tune([kind], settings, lambda event: notes.append(event.get("note", "")))
    except ValueError as error:
        if any("need OpenBLAS" in note for note in notes):
            pytest.skip("the judge's own products need OpenBLAS, which is not here")
        pytest.fail(f"{error}: {notes}")
    (measured,) = found.measured["attention", "cuda"]
    print({c.name: c.median_ns / 1e3 for c in measured.right})
    assert route in {c.name for c in measured.right}, notes
