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


FOLDER = Path(__file__).parents[2] / "ops" / "multi_tensor"
INPUTS = {file.stem: anyop.metadata(file.stem)["inputs"] for file in FOLDER.glob("multi_*.toml")}
TENSORS = {
    name: {one["name"]: one for one in inputs if one["kind"] == "Tensor"}
    for name, inputs in sorted(INPUTS.items())
}
STEPS = [n for n, of in TENSORS.items() if not of.get("found_inf", {"mutated": True})["mutated"]]
steps = pytest.mark.parametrize("name", STEPS)
KINDS = {key: [np.float32] for key in ("update", "master", "average")} | {"copy": [np.float16]}
SKIPPING = {"found_inf", "inv_scale"}


def arguments(name, shapes, dtypes=DTYPES, without=SKIPPING, kinds=KINDS) -> dict:
    """Tensors of an optimizer's operator: lists whose dtypes take turns, numbers."""
    given: dict = {"momentum": 0.9} if name == "multi_tensor_sgd" else {}
    for seed, (key, one) in enumerate(TENSORS[name].items()):
        if key in without:
            continue
        if one["list"]:
            values = drawn(shapes, kinds.get(key, dtypes), seed)
            given[key] = values if key in "pg" else [np.asarray(np.abs(a)) for a in values]
        elif one["shape"]["text"] == "N":
            given[key] = np.linspace(0.5, 2, len(shapes), dtype=np.float32)
        else:
            given[key] = np.full(1, 2 if key == "step" else 0.5, np.float32)
    return given


def bits(given: dict) -> dict:
    return {
        key: b"".join(a.tobytes() for a in (value if isinstance(value, list) else [value]))
        for key, value in given.items()
        if not isinstance(value, float)
    }


def copied(given: dict, part: slice = slice(None)) -> dict:
    """Part of the lists, and of what has a number for each tensor."""
    found = dict(given)
    for key, value in given.items():
        if isinstance(value, list):
            found[key] = [a.copy() for a in value[part]]
        elif not isinstance(value, float):
            found[key] = value[part].copy() if len(value) > 1 else value.copy()
    return found


def test_which_are_steps():
    short = [name.removeprefix("multi_tensor_") for name in STEPS]
    assert short == ["adagrad", "adam", "lamb", "lamb_stage1", "lamb_stage2", "novograd", "sgd"]


@steps
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_nothing_is_written_where_found_inf_is_set(name, dtype):
    given = arguments(name, shapes(9))
    before = bits(given)
    getattr(anyop, name)(**given, found_inf=np.ones(1, dtype))
    assert bits(given) == before
    getattr(anyop, name)(**given, found_inf=np.zeros(1, dtype))
    changed = {key for key, value in bits(given).items() if value != before[key]}
    assert changed == {key for key, one in TENSORS[name].items() if one["mutated"]}


@steps
def test_a_list_is_its_tensors_one_by_one(name):
    """2,000 of them, some of them empty, whose dtypes differ."""
    small = [(k % 7,) for k in range(1976)]
    given = arguments(name, shapes(24) + small, without={*SKIPPING, "master", "copy"})
    before = copied(given)
    getattr(anyop, name)(**given)
    for k in range(0, 2000, 7):
        alone = copied(before, slice(k, k + 1))
        getattr(anyop, name)(**alone)
        assert bits(alone) == bits(copied(given, slice(k, k + 1))), k


@steps
def test_empty_lists(name):
    given = arguments(name, [])
    getattr(anyop, name)(**given)
    assert all(one["list"] or key in given for key, one in TENSORS[name].items() if one["mutated"])


@pytest.mark.parametrize("name", [name for name in STEPS if "lamb" not in name])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_lists_that_are_all_of_16_bits(name, dtype):
    """They are converted in registers: the step of float32 copies, rounded; whole vectors and rests, any numbers."""
    sizes = [(n,) for n in (0, 1, 31, 32, 33, 65, 4129)]
    kinds = {key: [dtype] for key in TENSORS[name]} | KINDS
    given = arguments(name, sizes, without={*SKIPPING, "master", "copy", "average"}, kinds=kinds)
    for key in ("p", "g"):
        if key in given:
            tiny = ml_dtypes.finfo(dtype).smallest_subnormal
            given[key][3][:4] = 0, tiny, -tiny, np.inf
            given[key][5][-33:-31] = np.nan, tiny
    exact = {
        key: [np.asarray(a.astype(np.float32)) for a in v] if isinstance(v, list) else v
        for key, v in copied(given).items()
    }
    with np.errstate(all="ignore"):
        getattr(anyop, name)(**given)
        getattr(anyop, name)(**exact)
        for key, one in TENSORS[name].items():
            if one["mutated"] and one["list"] and key in given:
                close(given[key], wide([np.asarray(a.astype(dtype)) for a in exact[key]]))


@pytest.mark.parametrize("name", [name for name in STEPS if "master" in TENSORS[name]])
def test_masters_and_copies(name):
    """A step is that of its masters, to which parameters and copies are rounded; gradients are halved."""
    half = {key: [np.float32] for key in TENSORS[name]} | {"copy": [np.float16]}
    given = arguments(name, shapes(16), kinds=half | {key: [ml_dtypes.bfloat16] for key in "pg"})
    plain = copied(given)
    plain["p"] = plain.pop("master")
    del plain["copy"]
    if "g" in plain:
        plain["g"] = [np.asarray(a.astype(np.float32) / 2) for a in plain["g"]]
        given["inv_scale"] = np.full(1, 0.5, np.float32)
    for _ in range(3):
        getattr(anyop, name)(**given)
        getattr(anyop, name)(**plain)
    written = bits({"master": plain["p"]} | {key: plain[key] for key in plain if key not in "pg"})
    assert {key: value for key, value in bits(given).items() if key in written} == written
    for a, p, copy in zip(plain["p"], given["p"], given["copy"]):
        np.testing.assert_array_equal(p, a.astype(ml_dtypes.bfloat16))
        np.testing.assert_array_equal(copy, a.astype(np.float16))


@pytest.mark.parametrize("norm_type", [2, 0])
@pytest.mark.parametrize("max_norm", [0.1, 1e4])
def test_clipping_is_that_of_torch(norm_type, max_norm):
    torch = pytest.importorskip("torch")
    filled = [s for s in shapes(20) if 0 not in s]  # of nothing torch finds no maximum
    gradients = [torch.from_numpy(a) for a in drawn(filled, [np.float32])]
    parameters = [torch.nn.Parameter(torch.zeros_like(g)) for g in gradients]
    given = [g.clone() for g in gradients]
    for p, g in zip(parameters, gradients):
        p.grad = g.clone()
    total = torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type or float("inf"))
    found = anyop.multi_tensor_clip_grad_norm(gradients, max_norm, norm_type=norm_type)
    torch.testing.assert_close(found, total, rtol=2e-6, atol=0)
    known = anyop.multi_tensor_clip_grad_norm(given, max_norm, found, norm_type=norm_type)
    assert torch.equal(known, found)
    for p, g, other in zip(parameters, gradients, given):
        torch.testing.assert_close(g, p.grad, rtol=4e-6, atol=0)
        assert torch.equal(g, other)
    gradients[4][-1] = float("nan")
    found = anyop.multi_tensor_clip_grad_norm(gradients, max_norm, norm_type=norm_type)
    assert found.isnan() and all(g.isnan().all() for g in gradients)


@pytest.mark.parametrize("decay", [None, 0.9, 0.25])
def test_averages_are_those_of_torch(decay):
    torch = pytest.importorskip("torch")
    swa = torch.optim.swa_utils
    model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Linear(3, 3))
    each = {} if decay is None else {"multi_avg_fn": swa.get_ema_multi_avg_fn(decay)}
    averaged, parameters = swa.AveragedModel(model, **each), list(model.parameters())
    ours = [torch.full_like(p.data, float("nan")) for p in parameters]
    count = torch.zeros((), dtype=torch.int64)
    for _ in range(5):
        with torch.no_grad():
            for p in parameters:
                p.add_(torch.randn_like(p))
        averaged.update_parameters(model)
        rate = None if decay is None else 1 - decay
        anyop.multi_tensor_average([p.data for p in parameters], ours, count, rate)
        count += 1
        for p, q in zip(ours, averaged.parameters()):
            torch.testing.assert_close(p, q.data, rtol=1e-6, atol=1e-6)


def moved(found: list[int], hysteresis: int, start: float = 8.0) -> list[float]:
    """Scales after each step."""
    state = [np.full(1, start, np.float32), np.zeros(1, np.int32), np.full(1, hysteresis, np.int32)]
    scales = []
    for one in found:
        flag = np.full(1, one, np.float32)
        anyop.update_scale_hysteresis(*state, flag, growth_interval=2, hysteresis=hysteresis)
        scales.append(float(state[0][0]))
    return scales


def test_scales_are_those_of_torch_and_wait_for_hysteresis():
    torch = pytest.importorskip("torch")
    found = [0, 0, 1, 0, 1, 1, 0, 0, 0, 0, 1]
    scale, tracker, scales = torch.full((1,), 8.0), torch.zeros(1, dtype=torch.int32), []
    for one in found:
        torch._amp_update_scale_(scale, tracker, torch.full((1,), float(one)), 2.0, 0.5, 2)
        scales.append(scale.item())
    assert moved(found, 1) == scales
    assert moved([1, 0, 1, 1, 1, 0, 0], 2) == [8, 8, 8, 4, 2, 2, 4]
    largest = float(np.finfo(np.float32).max)
    assert moved([0, 0], 1, largest) == [largest, largest]  # it does not grow to infinity


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
    assert len(traces) == 1 and absent == [None, None, None]
    for a, b in zip(p, expected):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_code_of_the_page():
    pytest.importorskip("torch")
    page = Path(__file__).parents[2] / "docs" / "optimizers.md"
    names: dict = {}
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M):
        exec(compile(block, str(page), "exec"), names)
    norm = sum(float(g.norm()) ** 2 for g in names["gradients"]) ** 0.5
    assert abs(norm - 1) < 1e-5 < float(names["norm"]) and float(names["step"]) == 1
    assert {float(state["step"]) for state in names["saved"]["state"].values()} == {1}
