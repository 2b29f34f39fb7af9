# SPDX-License-Identifier: Apache-2.0
"""What goes wrong where tensors are handed to kernels by their memory alone: each hazard, for every operator."""

from __future__ import annotations

from pathlib import Path

import anyop
import anyop.torch
import pytest
import torch
from anyop import testing
from anyop.cases.callers import to_torch
from anyop.native.glues import torch_glue
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

OPS = Path(__file__).resolve().parents[2] / "ops"
# What returns nothing is for the test beside it, and for third_party_test.py.
SUBJECTS = {  # what writes to its arguments refuses these
    s.name: s for s in testing.find_subjects(OPS) if s.results and not s.metadata["mutated"]
}
NAMES = [name for name in SUBJECTS if hasattr(torch.ops.anyop, name)]
every_operator = pytest.mark.parametrize("name", NAMES)


def good_call(name):
    """The operator, good arguments and its result on them."""
    good = testing.Good(SUBJECTS[name])
    arguments = {key: to_torch(value) for key, value in good.arguments().items()}
    return good.subject.function, arguments, as_tuple(good.subject.function(**arguments))


def as_tuple(found):
    return found if isinstance(found, tuple) else (found,)


def same(found, expected):
    found = as_tuple(found)
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def floating(arguments):
    return [
        key
        for key, value in arguments.items()
        if isinstance(value, torch.Tensor) and value.is_floating_point()
    ]


class Seen(TorchDispatchMode):
    """Notes the operators that a mode sees."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


@every_operator
def test_a_mode_sees_the_call(name):
    function, arguments, expected = good_call(name)
    with Seen() as seen:
        found = function(**arguments)
    same(found, expected)
    assert f"anyop.{name}.default" in seen.names


@every_operator
def test_a_fake_tensor_stays_fake(name):
    from torch._subclasses import FakeTensor, FakeTensorMode

    function, arguments, expected = good_call(name)
    with FakeTensorMode() as mode:
        fakes = tree_map_only(torch.Tensor, mode.from_tensor, arguments)
        inside = as_tuple(function(**fakes))
    outside = as_tuple(function(**fakes))
    for found in (inside, outside):
        for fake, real in zip(found, expected):
            assert isinstance(fake, FakeTensor)
            assert fake.shape == real.shape and fake.dtype == real.dtype


@every_operator
def test_a_subclass_is_asked(name):
    function, arguments, expected = good_call(name)

    class Mine(torch.Tensor):
        calls = 0

        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            Mine.calls += 1
            return super().__torch_function__(function, types, args, kwargs)

    for key, value in arguments.items():
        if not isinstance(value, (torch.Tensor, list)):
            continue
        mine = tree_map_only(torch.Tensor, lambda tensor: tensor.as_subclass(Mine), value)
        found = as_tuple(function(**{**arguments, key: mine}))
        assert all(type(result) is Mine for result in found)
        same(tuple(result.as_subclass(torch.Tensor) for result in found), expected)
    assert Mine.calls


@every_operator
def test_a_negative_view_is_resolved(name):
    function, arguments, _ = good_call(name)
    for key in floating(arguments):
        value = arguments[key].double() if arguments[key].dtype == torch.float64 else arguments[key]
        if value.dtype not in (torch.float32, torch.float64):
            continue
        lazy = torch.complex(torch.zeros_like(value), value).conj().imag
        assert lazy.is_neg()
        expected = as_tuple(function(**{**arguments, key: (-value).contiguous()}))
        same(function(**{**arguments, key: lazy}), expected)
        same(
            in_a_handler(lambda key=key, lazy=lazy: function(**{**arguments, key: lazy})), expected
        )
        if torch_glue.load() is not None:
            by_ops = {**for_torch(arguments), key: lazy}
            with pytest.raises(ValueError, match=f"{name}: {key} is a conj or neg view"):
                in_a_handler(lambda by_ops=by_ops: getattr(torch.ops.anyop, name)(**by_ops))


def test_a_negative_view_is_not_written():
    """torch's fallback would take the results for the arguments that were written."""
    lazy = torch.complex(torch.zeros(3, 8), torch.ones(3, 8)).conj().imag
    before = lazy.clone()
    with pytest.raises(
        TypeError, match=r"^linear_wgrad_accumulate: grad_weight is a conj or neg view, which"
    ):
        anyop.linear_wgrad_accumulate(torch.ones(2, 8), torch.ones(2, 3), lazy)
    assert torch.equal(lazy, before)


def in_a_handler(call):
    """What a call gives within __torch_dispatch__, where torch resolves no lazy tensor."""
    found = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            found.append(call())
            return function(*args, **(kwargs or {}))

    x = torch.ones(1)
    with Mode():
        x.sin()
    return found[0]


def test_a_conjugate_is_resolved_in_a_handler():
    weight = torch.complex(torch.arange(6.0), torch.ones(6)).view(3, 2)
    indices = torch.tensor([2, 0])
    found = in_a_handler(lambda: anyop.embedding(indices, weight.conj()))
    assert torch.equal(found, weight.conj().resolve_conj()[indices])


def test_a_zero_tensor_is_refused_in_a_handler():
    """It has no memory, and torch itself fails there."""
    zero = torch._efficientzerotensor((2, 3))
    with pytest.raises(ValueError, match="relu: x has no storage"):
        in_a_handler(lambda: anyop.relu(zero))


@every_operator
def test_no_gradient_is_lost(name):
    """Each floating argument: the result has a node in the graph, or the call says why not."""
    function, arguments, expected = good_call(name)
    if not any(result.is_floating_point() for result in expected):
        return
    for key in floating(arguments):
        for form in ("anyop", "torch.ops"):
            leaf = {**arguments, key: arguments[key].clone().requires_grad_()}
            call = function if form == "anyop" else getattr(torch.ops.anyop, name)
            try:
                found = as_tuple(call(**for_torch(leaf)))
            except NotImplementedError as error:
                assert str(error).startswith(f"{name}: "), error
            else:
                assert any(result.grad_fn is not None for result in found), (key, form)


def into_places(name, function, outs):
    """The ways of writing results into given tensors."""
    names = [param["name"] for param in SUBJECTS[name].results]
    places = dict(zip(names, outs))
    yield lambda arguments: function(**arguments, **places)
    if hasattr(getattr(torch.ops.anyop, name), "out"):
        yield lambda arguments: getattr(torch.ops.anyop, name).out(**for_torch(arguments), **places)


def for_torch(arguments):
    """torch.ops takes no dtype as text."""
    names = {
        key: getattr(torch, value)
        for key, value in arguments.items()
        if key in ("dtype", "out_dtype") and isinstance(value, str)
    }
    return {**arguments, **names}


@every_operator
def test_a_written_tensor_says_so(name):
    """Versions go up by one, and autograd finds a saved tensor changed."""
    function, arguments, expected = good_call(name)
    outs = tuple(torch.empty_like(result) for result in expected)
    for write in into_places(name, function, outs):
        before = [out._version for out in outs]
        write(arguments)
        same(outs, expected)
        assert [out._version - old for out, old in zip(outs, before)] == [1] * len(outs)
        if not outs[0].is_floating_point():
            continue
        x = torch.ones_like(outs[0], requires_grad=True)
        y = (x * outs[0]).sum()
        write(arguments)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


def test_a_tensor_as_dtype_is_refused_without_its_text():
    """Its memory is gone, and torch reads it for the text."""
    gone = torch.ones(3)
    gone.untyped_storage().resize_(0)
    with pytest.raises(TypeError, match=r"cast: dtype is a torch.Tensor, expected a dtype such as"):
        anyop.cast(torch.ones(2), gone)


@every_operator
def test_storage_that_is_too_small_is_refused(name):
    function, arguments, _ = good_call(name)
    for key, value in arguments.items():
        if not isinstance(value, torch.Tensor) or not value.numel():
            continue
        # Without the glue only storage that is gone is seen: torch's attributes are too slow for more.
        ends = (0, value.untyped_storage().nbytes() - 1) if torch_glue.load() else (0,)
        for left in ends:
            short = value.clone()
            short.untyped_storage().resize_(left)
            given = {**arguments, key: short}
            with pytest.raises(ValueError, match=f"{name}: {key} "):
                function(**given)
            with pytest.raises(ValueError, match=f"{name}: {key} "):
                getattr(torch.ops.anyop, name)(**for_torch(given))


@every_operator
def test_a_profiler_sees_its_name(name):
    function, arguments, expected = good_call(name)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        found = function(**arguments)
    same(found, expected)
    assert f"anyop::{name}" in {event.key for event in profile.key_averages()}


@every_operator
def test_inference_mode(name):
    function, arguments, expected = good_call(name)
    with torch.inference_mode():
        found = as_tuple(function(**arguments))
        same(found, expected)
        assert all(result.is_inference() for result in found)
    same(function(**arguments), expected)


def test_an_inference_tensor_is_not_written_outside_its_mode():
    x = torch.randn(2, 3)
    with torch.inference_mode():
        out = torch.empty(2, 3)
        assert torch.equal(anyop.relu(x, out=out), torch.relu(x))
    with pytest.raises(ValueError, match="relu: out is an inference tensor"):
        anyop.relu(x, out=out)


def test_torch_function_modes_and_devices():
    with torch.device("meta"):
        assert not anyop.relu(torch.ones(2, device="cpu")).is_meta
    names = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            names.append(str(function))
            return function(*args, **(kwargs or {}))

    x = torch.ones(2)
    with Mode():
        anyop.relu(x)
    assert any("anyop" in name and "relu" in name for name in names)


def test_legacy_tracing_records_the_operator():
    traced = torch.jit.trace(lambda x: anyop.relu(x) + 1, torch.randn(3), check_trace=False)
    x = torch.randn(5)
    assert torch.equal(traced(x), torch.relu(x) + 1)
    assert "anyop::relu" in str(traced.graph)


def test_a_lazy_copy_is_not_disturbed():
    """A clone that shares memory until one of them is written."""
    x = torch.randn(3)
    twin = torch._lazy_clone(x)
    assert torch.equal(anyop.relu(twin), torch.relu(x))
    assert torch._C._is_cow_tensor(twin) or not torch_glue.load()  # else it is copied first
    before = x.clone()
    anyop.mul(twin, before, out=twin)
    assert torch.equal(x, before) and torch.equal(twin, before * before)


@pytest.mark.parametrize("at", [0, 1])
def test_a_number_beside_a_nested_tensor(at):
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    given = [2.0, nested] if at else [nested, 2.0]
    with pytest.raises(TypeError, match=r"^mul: \w is a tensor of another kind"):
        anyop.mul(*given)
