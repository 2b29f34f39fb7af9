# SPDX-License-Identifier: Apache-2.0
"""Operators over lists of tensors: mixed dtypes, many tensors, places, flags, PyTorch's optimizers, JAX's programs."""

from __future__ import annotations

import re
from pathlib import Path

import anyop
import numpy as np
import pytest

ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is ml_dtypes'")
DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]
ONE = np.ones(1, np.float32)


def drawn(shapes, dtypes=DTYPES, seed=0) -> list[np.ndarray]:
    """Tensors whose dtypes take turns."""
    generator = np.random.default_rng(seed)
    every = zip(shapes, range(len(shapes)))
    return [generator.standard_normal(s).astype(dtypes[k % len(dtypes)]) for s, k in every]


def shapes(count: int) -> list[tuple[int, ...]]:
    some = [(), (1,), (3, 5), (0, 4), (4096,), (4097,), (130, 70), (2, 3, 4, 5)]
    return [some[k % len(some)] for k in range(count)]


def wide(tensors) -> list[np.ndarray]:
    return [t.astype(np.float64) for t in tensors]


def close(found, expected) -> None:
    for a, b in zip(found, expected):
        eps = float(ml_dtypes.finfo(a.dtype).eps)
        np.testing.assert_allclose(a.astype(np.float64), b, rtol=max(2 * eps, 1e-6), atol=1e-6)


def test_dtypes_of_a_list_may_differ():
    x, out = drawn(shapes(40)), drawn(shapes(40), DTYPES[::-1])
    anyop.multi_tensor_scale(x, out, 0.5)
    close(out, [a / 2 for a in wide(x)])
    y, sums = drawn(shapes(40), seed=1), drawn(shapes(40))
    sums = [np.zeros(a.shape, np.float32) if k % 2 else a for k, a in enumerate(sums)]
    anyop.multi_tensor_axpby(x, y, sums, 2.0, -1.0)
    close(sums, [2 * a - b for a, b in zip(wide(x), wide(y))])
    total, each = anyop.multi_tensor_l2norm(x, 3.0)
    expected = [3 * np.linalg.norm(a.ravel()) for a in wide(x)]
    np.testing.assert_allclose(each, expected, rtol=1e-6)
    np.testing.assert_allclose(total, np.linalg.norm(expected), rtol=1e-6)


def test_a_million_tensors_of_one_element():
    memory = np.arange(1_000_000, dtype=np.float32)
    x = list(memory.reshape(-1, 1))
    anyop.multi_tensor_scale(x, x, 2.0)
    np.testing.assert_array_equal(memory, 2 * np.arange(1_000_000, dtype=np.float32))
    total, each = anyop.multi_tensor_l2norm(x)
    np.testing.assert_array_equal(each, memory)
    np.testing.assert_allclose(total, np.linalg.norm(memory.astype(np.float64)), rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_found_inf_is_set_and_never_cleared(dtype, value):
    def flag(call, start=0):
        found = np.full(1, start, dtype)
        call(found)
        return found[0]

    x, y = drawn(shapes(20)), drawn(shapes(20), seed=1)
    out = [np.zeros_like(a) for a in x]
    calls = {
        "scale": lambda found: anyop.multi_tensor_scale(x, out, 2.0, found),
        "both": lambda found: anyop.multi_tensor_axpby(x, y, out, 1.0, 1.0, found),
        "x": lambda found: anyop.multi_tensor_axpby(x, y, out, 1.0, 1.0, found, check=0),
        "y": lambda found: anyop.multi_tensor_axpby(x, y, out, 1.0, 1.0, found, check=1),
        "check": lambda found: anyop.multi_tensor_check_finite(x, found),
    }
    for call in calls.values():
        assert (flag(call), flag(call, 1)) == (0, 1)
    x[6].flat[-1] = value
    assert {name: flag(call) for name, call in calls.items()} == {
        "scale": 1, "both": 1, "x": 1, "y": 0, "check": 1
    }  # fmt: skip
    np.testing.assert_array_equal(out[6].flat[-1], (x[6] + y[6]).flat[-1])  # written all the same


def test_nothing_is_written_where_found_inf_is_set():
    lists = [drawn(shapes(9), seed=k) for k in range(4)]
    for a in lists[3]:
        np.abs(a, out=a)
    before = [[a.tobytes() for a in tensors] for tensors in lists]
    anyop.multi_tensor_adam(*lists, 0.1, 1, found_inf=np.ones(1, np.float32))
    assert [[a.tobytes() for a in tensors] for tensors in lists] == before
    anyop.multi_tensor_adam(*lists, 0.1, 1, found_inf=np.zeros(1, np.float32))
    assert [a.tobytes() for a in lists[0] if a.size] != [b for b in before[0] if b]
    assert [a.tobytes() for a in lists[1]] == before[1]


def test_masters_and_copies():
    p, g = drawn(shapes(16), [ml_dtypes.bfloat16]), drawn(shapes(16), [ml_dtypes.bfloat16], seed=1)
    master = [np.asarray(a.astype(np.float32) + np.float32(2**-12)) for a in p]
    m, v = ([np.zeros(a.shape, np.float32) for a in p] for _ in "mv")
    copy = [np.zeros(a.shape, np.float16) for a in p]
    plain = [a.copy() for a in master]
    moments = [[a.copy() for a in tensors] for tensors in (m, v)]
    for step in range(1, 4):
        anyop.multi_tensor_adam(p, g, m, v, 1e-3, step, master, copy, inv_scale=0.5)
        half = [np.asarray(a.astype(np.float32) / 2) for a in g]
        anyop.multi_tensor_adam(plain, half, *moments, 1e-3, step)
    for a, b, c, d in zip(master, plain, p, copy):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(c, b.astype(ml_dtypes.bfloat16))
        np.testing.assert_array_equal(d, b.astype(np.float16))


def test_lists_that_do_not_fit_are_refused_before_anything_is_written():
    x, out = drawn(shapes(6)), drawn(shapes(6))
    before = [a.tobytes() for a in out]
    with pytest.raises(ValueError, match="multi_tensor_scale: out has 5 tensors, expected 6"):
        anyop.multi_tensor_scale(x, out[:5], ONE)
    with pytest.raises(ValueError, match=r"out has shape \(4096\).*\[element 5\]"):
        anyop.multi_tensor_scale(x, [*out[:5], out[4]], ONE)
    with pytest.raises(
        ValueError, match=r"out overlaps out in memory \[element 2 of out, element 1"
    ):
        anyop.multi_tensor_scale([x[1]] * 3, [np.zeros_like(x[1]), out[1], out[1]], ONE)
    with pytest.raises(TypeError, match=r"x has dtype int64.*\[element 1\]"):
        anyop.multi_tensor_scale([x[0], np.arange(3)], out[:2], ONE)
    with pytest.raises(ValueError, match="scale has shape"):
        anyop.multi_tensor_scale(x, out, np.ones(2, np.float32))
    assert [a.tobytes() for a in out] == before
    anyop.multi_tensor_scale([], [], ONE)


torch_modes = [
    ("Adam", {}), ("Adam", {"weight_decay": 0.1}), ("Adam", {"maximize": True}),
    ("AdamW", {}), ("AdamW", {"betas": (0.5, 0.9), "eps": 1e-3}),
    ("SGD", {}), ("SGD", {"weight_decay": 0.1, "maximize": True}), ("SGD", {"momentum": 0.9}),
    ("Adagrad", {}), ("Adagrad", {"weight_decay": 0.1, "eps": 1e-3, "maximize": True}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}), ("SGD", {"momentum": 0.5, "dampening": 0.5}),
]  # fmt: skip


def one_step(name: str, options: dict):
    """step(p, g, states, number, rate) of anyop's operator for torch's optimizer of that name."""
    options = dict(options)
    if name == "SGD":
        return lambda p, g, states, number, rate: anyop.multi_tensor_sgd(
            p, g, rate, states[0] if options.get("momentum") else None, number, **options
        )
    if name == "Adagrad":
        return lambda p, g, states, number, rate: anyop.multi_tensor_adagrad(
            p, g, states[0], rate, **options
        )
    options["decoupled"] = name == "AdamW"
    options.setdefault("weight_decay", 0.01 if name == "AdamW" else 0.0)
    options["beta1"], options["beta2"] = options.pop("betas", (0.9, 0.999))
    return lambda p, g, states, number, rate: anyop.multi_tensor_adam(
        p, g, *states, rate, number, **options
    )


@pytest.mark.parametrize(("name", "options"), torch_modes)
def test_steps_are_those_of_torch(name, options):
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)

    def make():
        generator.manual_seed(0)
        made = [torch.randn(s, generator=generator) for s in [(5,), (64, 33), (), (2, 3, 8, 8)]]
        made[3] = made[3].to(memory_format=torch.channels_last)
        return made

    ours, theirs, step = make(), [torch.nn.Parameter(p) for p in make()], one_step(name, options)
    start = torch.full_like if name == "SGD" else lambda p, _: torch.zeros_like(p)
    states = [[start(p, float("nan")) for p in ours] for _ in "mv"]  # NaN: not read in step 1
    optimizer = getattr(torch.optim, name)(theirs, lr=1e-2, **options)
    for number in range(1, 21):
        grads = [torch.randn(p.shape, generator=generator) for p in ours]
        grads = [g.to(memory_format=torch.channels_last) if g.ndim == 4 else g for g in grads]
        for p, g in zip(theirs, grads):
            p.grad = g
        optimizer.step()
        step(ours, grads, states, torch.tensor(float(number)), 1e-2)
    for p, q in zip(ours, theirs):
        torch.testing.assert_close(p, q.data, rtol=2e-5, atol=2e-6)


def test_torch_compile_makes_one_graph_for_every_rate():
    torch = pytest.importorskip("torch")
    import anyop.torch  # noqa: F401  registers torch.ops.anyop.*

    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    def step(p, g, m, v, lr, number):
        torch.ops.anyop.multi_tensor_adam(p, g, m, v, lr, number)

    compiled = torch.compile(step, backend=backend, fullgraph=True)
    lists = [[torch.randn(4, 3), torch.randn(7)] for _ in range(4)]
    lists[3] = [a.abs() for a in lists[3]]
    plain = [[a.clone() for a in tensors] for tensors in lists]
    for number in range(1, 12):
        rates = torch.tensor(0.1 / number), torch.tensor(float(number))
        compiled(*lists, *rates)
        step(*plain, *rates)
    assert len(graphs) == 1
    for a, b in zip(lists[0], plain[0]):
        assert torch.equal(a, b)


def test_jax_traces_rates():
    jax = pytest.importorskip("jax")
    jnp, traces = jax.numpy, []

    @jax.jit
    def step(p, g, m, v, lr, number):
        traces.append(1)
        return anyop.multi_tensor_adam(p, g, m, v, lr, number)

    p, g = [jnp.ones((3, 4)), jnp.ones(5)], [jnp.full((3, 4), 0.5), jnp.full(5, -2.0)]
    m = v = [jnp.zeros((3, 4)), jnp.zeros(5)]
    expected = [np.ones((3, 4)), np.ones(5)]
    for number in (1, 2, 3):
        p, m, v, *absent = step(p, g, m, v, jnp.float32(0.1), jnp.float32(number))
        for a, b in zip(expected, g):
            a -= 0.1 * np.sign(np.asarray(b))  # equal gradients
    assert len(traces) == 1 and absent == [None, None]
    for a, b in zip(p, expected):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_code_of_the_page():
    pytest.importorskip("torch")
    page = Path(__file__).parents[1] / "docs" / "optimizers.md"
    names: dict = {}
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M):
        exec(compile(block, str(page), "exec"), names)
    norm = sum(float(g.norm()) ** 2 for g in names["gradients"]) ** 0.5
    assert abs(norm - 1) < 1e-5 < float(names["norm"]) and float(names["step"]) == 1
    assert {float(state["step"]) for state in names["saved"]["state"].values()} == {1}
