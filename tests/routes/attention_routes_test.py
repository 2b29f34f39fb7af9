# SPDX-License-Identifier: Apache-2.0
"""Attention by cuDNN and FlashAttention 4: what the routes serve, and what their Python files hand to functions that
stand in for torch's and FlashAttention's on the CPU. tests/cuda/operators/cuda_attention_routes.py runs the real ones.
"""

from __future__ import annotations

import sys
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyop
import numpy
import pytest
from anyop.backend.python import load_source
from anyop.command._probe import arguments
from anyop.tune import given_shapes

torch = pytest.importorskip("torch", reason="torch is not installed")
OPERATORS = ("attention", "attention_with_lse", "attention_backward")
FOLDER = Path(__file__).parents[2] / "ops" / "attention"


def reasons(operator: str, words: str = "", plain: bool = True) -> dict[str, str]:
    """Why each implementation would not run a call on CUDA; no device need be there."""
    sizes = {"B": 1, "H": 4, "G": 2, "S": 64, "T": 64, "D": 64, "E": 64, "dtype": "bfloat16"}
    absent = ["mask", "sinks", "alibi_slopes", *["grad_lse"] * (operator == "attention_backward")]
    given = {**sizes, **dict.fromkeys(absent, "None")}
    given |= dict(word.split("=") for word in words.split())
    said = [f"{k}={v}" for k, v in given.items() if v != "given"]
    kind = given_shapes(f"{operator}: {' '.join(said)}", "cuda")
    with anyop.use(["cudnn", "fa4"]):
        explained = anyop.explain(operator, **arguments(kind))
    return {c["name"]: c["why_not"] for c in explained.candidates}


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_routes_are_known_and_no_default(operator):
    assert {"cudnn", "cudnn_sm100", "fa4"} <= {k["name"] for k in kernels(operator)}
    with anyop.use("cudnn", ops=operator), anyop.use("fa4", ops=operator):
        pass
    own = {k["name"]: k["priority"] for k in kernels(operator)}
    assert own["cudnn"] == own["fa4"] == -200 and own["cudnn_sm100"] > own.get("cuda_sm90", 0)


def kernels(operator: str) -> list[dict]:
    return anyop.metadata(operator)["kernels"]


@pytest.mark.parametrize("operator", OPERATORS)
def test_what_cudnn_serves(operator):
    assert reasons(operator)["cudnn"] == ""
    assert reasons(operator, "causal=true D=192 E=128")["cudnn"] == ""
    for words, why in [
        ("dtype=float32", "takes dtype=float16|bfloat16, and it is float32"),
        ("D=12", "takes D%8=0, and D is 12"),
        ("E=264", "takes E<=256, and E is 264"),
        ("T=0", "takes T>0, and T is 0"),
        ("mask=given", "takes given(mask)=0, and it is given"),
        ("sinks=given", "takes given(sinks)=0, and it is given"),
        ("alibi_slopes=given", "takes given(alibi_slopes)=0, and it is given"),
        ("softcap=0.5", "takes softcap=0, and softcap is 0.5"),
        ("window_left=3", "takes window_left=-1, and window_left is 3"),
        ("window_right=0", "takes window_right=-1, and window_right is 0"),
    ]:
        found = reasons(operator, words)
        assert found["cudnn"] == why, words
        if "softcap" in words or "window" in words or "sinks" in words:
            assert "cudnn" not in found["fa4"]


@pytest.mark.parametrize("operator", OPERATORS)
def test_it_is_the_default_of_gpus_newer_than_hopper_alone(operator):
    """The condition asks for the capability first; here no GPU has one."""
    assert reasons(operator)["cudnn_sm100"] == "takes capability>=10.0, and that is absent"
    when = {k["name"]: k["when"] for k in kernels(operator)}
    assert when["cudnn_sm100"].startswith("capability>=10.0 ") and "capability" not in when["cudnn"]


def test_without_a_gpu_they_say_so(monkeypatch):
    q = torch.zeros(1, 2, 4, 8, dtype=torch.bfloat16)
    for name in ("cudnn", "fa4"):
        with anyop.use(name):
            found = anyop.explain("attention", q, q, q)
        why = {c["name"]: c["why_not"] for c in found.candidates}[name]
        assert found.fallback and why == "serves cuda, and the tensors are on cpu"


def test_flash_attention_4_is_asked_for_by_the_name_that_pip_knows():
    if "flash_attn" in sys.modules or reasons("attention")["fa4"].startswith("takes"):
        pytest.skip("flash-attn-4 is installed")
    why = "needs flash_attn.cute, which is not installed (pip install flash-attn-4)"
    assert reasons("attention")["fa4"] == why


# ---- the files, with functions in the place of torch's and FlashAttention's ----


def attend(q, k, v, scale, hidden, softcap=0.0, sinks=None):
    """(B, H, S, D) in float64: results and natural logarithms."""
    q, k, v = q.double(), k.double(), v.double()
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    scores = scores.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        column = sinks.double()[:, None, None].expand(*q.shape[:3], 1)
        scores = torch.cat([scores, column], -1)
    lse = scores.logsumexp(-1)
    weights = (scores - lse.nan_to_num(neginf=0.0)[..., None]).exp()[..., : k.shape[2]]
    return weights @ v, lse


def gradients(*arguments, **named):
    """In a thread of its own, since kernels run where torch records nothing."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(recorded_gradients, *arguments, **named).result()


def recorded_gradients(grad, grad_lse, q, k, v, *options, sinks=None, **named):
    leaves = [x.detach().double().requires_grad_() for x in (q, k, v)]
    leaves += [] if sinks is None else [sinks.detach().double().requires_grad_()]
    out, lse = attend(*leaves[:3], *options, sinks=leaves[3] if leaves[3:] else None, **named)
    total = (out * grad.double()).sum() + (0 if grad_lse is None else (lse * grad_lse).sum())
    return torch.autograd.grad(total, leaves)


def top_left(q, k, causal):
    return torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1) & causal


def cudnn_forward(q, k, v, bias, wants_lse, dropout=0.0, causal=False, debug=False, *, scale=None):
    assert bias is None and not dropout and not debug
    out, lse = attend(q, k, v, scale, top_left(q, k, causal))
    state = torch.zeros((), dtype=torch.int64)
    lse = lse.float()[..., None] if wants_lse else torch.zeros(0)
    none = torch.zeros(0)
    return out.to(q.dtype), lse, none, none, q.shape[2], k.shape[2], state, state, none


def cudnn_backward(
    grad, q, k, v, out, lse, seed, place, bias, cu_q, cu_k, S, T, dropout, causal, *, scale=None
):  # fmt: skip
    assert bias is cu_q is cu_k is None and not dropout
    assert q.shape[2] == S and k.shape[2] == T
    assert lse.shape == (*q.shape[:3], 1) and seed.dtype == place.dtype == torch.int64
    order = sorted(range(4), key=lambda d: (-q.stride(d), d))
    for x in (grad, out):  # torch keeps its plan by q's layout
        assert x.permute(order).is_contiguous()
    found = gradients(grad, None, q, k, v, scale, top_left(q, k, causal))
    return tuple(x.to(q.dtype) for x in found)


def refuses(*arguments, **named):
    raise RuntimeError("cuDNN Frontend error: no plan\nand more")


def breaks(*arguments, **named):
    raise RuntimeError("CUDA error: an illegal memory access")


@pytest.fixture
def registered(monkeypatch):
    """Puts functions of a file into the operators on the CPU, as "stand_in"; a reason is told once for each name."""
    made = []

    def register(file: str, name: str = "stand_in"):
        source = (FOLDER / file).read_text()
        for operator in OPERATORS:
            module = load_source(operator, file, source)
            anyop.register(operator, name, getattr(module, operator), framework="torch")
            made.append((operator, name))
        return module

    yield register
    for operator, name in made:
        anyop.unregister(operator, name)


@pytest.fixture
def cudnn(registered):
    """attention_cudnn.py over operators of torch's that are told here what to do."""
    registered("attention_cudnn.py")
    library = torch.library.Library("aten", "IMPL")

    def tell(forward=cudnn_forward, backward=cudnn_backward):
        library.impl("_scaled_dot_product_cudnn_attention", forward, "CPU")
        library.impl("_scaled_dot_product_cudnn_attention_backward", backward, "CPU")

    yield tell
    library._destroy()


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(sum(shape) + seed)
    return torch.randn(*shape, generator=generator).to(torch.bfloat16)


def operands(S=24, T=40, H=4, G=2, D=16, E=8):
    """Queries with heads within rows, keys and values plain."""
    q = normal(2, S, H, D).transpose(1, 2)
    return q, normal(2, G, T, D, seed=1), normal(2, G, T, E, seed=2)


def assert_near(found, expected):
    torch.testing.assert_close(found.double(), expected.double(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"causal": True, "offset": 39}], ids=str)
def test_cudnn_is_called_as_torch_calls_it(cudnn, options):
    cudnn()
    q, k, v = operands()
    hidden = top_left(q, k, options == {"causal": True})
    expected, logarithms = attend(q, k, v, None, hidden)
    with anyop.use("stand_in"):
        out, lse = anyop.attention_with_lse(q, k, v, **options)
        alone = anyop.attention(q, k, v, **options)
        assert anyop.backends("attention") and torch.equal(out, alone)
        grad = normal(*out.shape, seed=3)
        grads = anyop.attention_backward(grad, q, k, v, out, lse, **options)
    assert_near(out, expected)
    torch.testing.assert_close(lse.double(), logarithms, rtol=1e-5, atol=1e-5)
    for found, wanted in zip(grads[:3], gradients(grad, None, q, k, v, None, hidden)):
        assert_near(found, wanted)
    assert not grads[3].any() and grads[3].shape == (4,)


def test_what_a_call_turns_out_to_be_is_left_to_the_next(cudnn, registered, capfd):
    """The results are the CPU kernel's, and the reason is told."""
    cudnn()
    q, k, v = operands()
    odd = [x.as_strided(x.shape, (4096, 1004, 20, 1)) for x in (normal(2, 2, 700, 20),)]
    for name, given, options, why in [
        ("a", (q, k, v), {"causal": True, "offset": 5}, "takes causal=True with offset=0, and offset is 5"),
        ("b", (q, k, v), {"scale": -1.0}, "takes scale>0, and it is -1.0"),
        ("c", (q, odd[0][..., :40, :16], v), {}, "takes strides that are multiples of 8, and k has"),
    ]:  # fmt: skip
        registered("attention_cudnn.py", f"stand_in_{name}")
        with anyop.use(f"stand_in_{name}"):
            found = anyop.attention(*given, **options)
        assert torch.equal(found, anyop.attention(*given, **options)), why
        assert f"attention: stand_in_{name} {why}" in capfd.readouterr().err


def test_a_refusal_of_cudnn_is_declined_and_an_error_is_an_error(cudnn, capfd):
    q, k, v = operands()
    cudnn(forward=refuses, backward=breaks)
    with anyop.use("stand_in"):
        found = anyop.attention(q, k, v, scale=0.25)
        saved = anyop.attention_with_lse(q, k, v)
        assert "was refused by torch: cuDNN Frontend error: no plan;" in capfd.readouterr().err
        with pytest.raises(RuntimeError, match="illegal memory access"):
            anyop.attention_backward(saved[0], q, k, v, *saved)
    assert torch.equal(found, anyop.attention(q, k, v, scale=0.25))


def window(q, k, left, right):
    place = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
    key = torch.arange(k.shape[2])
    hidden = torch.zeros(q.shape[2], k.shape[2], dtype=torch.bool)
    hidden |= key < place - left if left is not None else hidden
    return hidden | (key > place + right if right is not None else hidden)


def _flash_attn_fwd(
    q, k, v, *, softmax_scale, causal, softcap, window_size_left, window_size_right,
    learnable_sink, return_lse, out, lse,
):  # fmt: skip
    assert not causal and return_lse == (lse is not None)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    hidden = window(q, k, window_size_left, window_size_right)
    found = attend(q, k, v, softmax_scale, hidden, softcap, learnable_sink)
    out.copy_(found[0].transpose(1, 2))
    if lse is not None:
        lse.copy_(found[1])


def _flash_attn_bwd(
    q, k, v, out, dout, lse, *, softmax_scale, causal, softcap, window_size_left, window_size_right,
    learnable_sink, dq, dk, dv, dlse,
):  # fmt: skip
    assert q.shape[2] % k.shape[2] == 0 and not causal
    if softcap and learnable_sink is not None:
        raise NotImplementedError("both")
    q, k, v, dout = (x.transpose(1, 2) for x in (q, k, v, dout))
    hidden = window(q, k, window_size_left, window_size_right)
    found = gradients(dout, dlse, q, k, v, softmax_scale, hidden, softcap, sinks=learnable_sink)
    for place, gradient in zip((dq, dk, dv), found):
        if place is not None:
            place.copy_(gradient.transpose(1, 2))
    return found


@pytest.fixture
def fa4(registered, monkeypatch):
    cute = types.ModuleType("flash_attn.cute")
    cute.interface = types.SimpleNamespace(
        _flash_attn_fwd=_flash_attn_fwd, _flash_attn_bwd=_flash_attn_bwd
    )
    monkeypatch.setitem(sys.modules, "flash_attn", types.ModuleType("flash_attn"))
    monkeypatch.setitem(sys.modules, "flash_attn.cute", cute)
    module = registered("attention_fa4.py")
    module._function.cache_clear()
    yield cute.interface
    module._function.cache_clear()


CASES = [
    {},
    {"causal": True, "offset": 16},
    {"window_left": 5, "offset": 16, "sinks": torch.linspace(-1, 2, 4)},
    {"window_left": 5, "window_right": 2, "offset": 16, "softcap": 1.5, "scale": 0.3},
]


@pytest.mark.parametrize("options", CASES, ids=[str(tuple(case)) for case in CASES])
def test_flash_attention_4_means_what_the_operator_means(fa4, options):
    q, k, v = operands()
    expected = anyop.attention_with_lse(q, k, v, **options)
    with anyop.use("stand_in"):
        out, lse = anyop.attention_with_lse(q, k, v, **options)
        assert torch.equal(out, anyop.attention(q, k, v, **options))
    assert_near(out, expected[0])
    torch.testing.assert_close(lse, expected[1], rtol=1e-5, atol=1e-5)
    grad, grad_lse = normal(*out.shape, seed=3), normal(*lse.shape, seed=4).float()
    given = grad, q, k, v, out, lse, grad_lse
    wanted = anyop.attention_backward(*given, **options)
    with anyop.use("stand_in"):
        grads = anyop.attention_backward(*given, **options)
    for a, b in zip(grads, wanted):
        assert_near(a, b)


def test_what_flash_attention_4_refuses_is_declined(fa4, registered, capfd):
    q, k, v = operands()
    module = registered("attention_fa4.py", "stand_in_d")
    with anyop.use("stand_in_d"):
        found = anyop.attention(q, k, v, causal=True)
        assert "takes bounds with offset=16 here, and offset is 0" in capfd.readouterr().err
        fa4._flash_attn_fwd = lambda q, k, v: None
        module._function.cache_clear()
        anyop.attention_with_lse(q, k, v)
    said = "is not made for this flash-attn-4: _flash_attn_fwd has no softmax_scale"
    assert said in capfd.readouterr().err
    assert torch.equal(found, anyop.attention(q, k, v, causal=True))


@pytest.mark.parametrize("framework", ["torch", "jax", "paddle"])
def test_gradients_come_without_what_nothing_depends_on(framework):
    """Zeros for lse would keep each gradient from cuDNN; for out they are made, where it is lse that is used."""
    module = pytest.importorskip(framework, reason=f"{framework} is not installed")
    seen = []

    def spy(grad_out, *rest, grad_q, grad_k, grad_v, grad_sinks):
        seen.append((bool(grad_out.any()), rest[5] is not None))
        raise anyop.DeclinedError("only looks")

    arrays = [x.float().numpy() for x in operands(S=3, T=4)]
    names, uses = ("attention", "attention_with_lse"), (lambda found: found, lambda found: found[1])
    anyop.register("attention_backward", "spy", spy, framework="torch", priority=900)
    try:
        grads = [
            gradients_by(module, arrays, getattr(anyop, n), use) for n, use in zip(names, uses)
        ]
    finally:
        anyop.unregister("attention_backward", "spy")
    assert seen == [(True, False), (False, True)]
    q, k, v = map(torch.from_numpy, arrays)
    hidden = torch.zeros(3, 4, dtype=torch.bool)
    nothing, one = torch.zeros(2, 4, 3, 8), torch.ones(2, 4, 3)
    for found, (grad, grad_lse) in zip(grads, [(nothing + 1, None), (nothing, one)]):
        for a, b in zip(found, gradients(grad, grad_lse, q, k, v, None, hidden)):
            torch.testing.assert_close(torch.as_tensor(a).double(), b, rtol=1e-4, atol=1e-5)


def gradients_by(module, arrays, function, use):
    """Of the sum of what `use` takes of the results, as NumPy's arrays."""
    if module.__name__ == "jax":
        of = module.grad(lambda *given: use(function(*given)).sum(), (0, 1, 2))
        return [numpy.array(x) for x in of(*map(module.numpy.asarray, arrays))]
    if module.__name__ == "paddle":
        given = [module.to_tensor(x, stop_gradient=False) for x in arrays]
        return [x.numpy() for x in module.grad(use(function(*given)).sum(), given)]
    given = [module.from_numpy(x).requires_grad_() for x in arrays]
    return [x.numpy() for x in module.autograd.grad(use(function(*given)).sum(), given)]
