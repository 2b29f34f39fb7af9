# SPDX-License-Identifier: Apache-2.0
"""Under inductor, random, routed and custom operators call the device: its generator, its routes, its tensors."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.anyplatform, pytest.mark.drawn(2, group="compiled for the device")]


def test_random_numbers_are_those_of_the_seed_and_of_compiled_code_on_the_inner_device(
    same, inductor
):
    def run(device):
        function = torch.compile(
            lambda x: (torch.rand_like(x), torch.nn.functional.dropout(x, 0.3))
        )
        x = torch.randn(64).to(device)
        torch.manual_seed(3)
        first = function(x)
        torch.manual_seed(3)
        again, other = function(x), function(x)
        assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
        assert not torch.equal(again[0], other[0])
        return *first, *other

    same(run)


def test_they_come_from_the_device_s_generator_alone(inductor):
    function, x = torch.compile(lambda x: torch.randn_like(x) + x), torch.ones(64, device="anyop")
    function(x)
    state, of_cpu = torch.anyop.get_rng_state(), torch.get_rng_state()
    first = function(x)
    assert not torch.equal(state, torch.anyop.get_rng_state())
    torch.anyop.set_rng_state(state)
    assert torch.equal(function(x), first)
    assert torch.equal(torch.get_rng_state(), of_cpu)


def test_with_fallback_random_they_are_those_of_eager_code(same, inner, inductor):
    """But for bernoulli on CUDA, which torch takes apart: rand gives its numbers to other threads than bernoulli."""

    def draw(x):
        return torch.rand_like(x), torch.randperm(5, device=x.device), torch.bernoulli(x.sigmoid())

    def run(device):
        x = torch.randn(64).to(device)
        with torch._inductor.config.patch(fallback_random=True):
            torch.manual_seed(5)
            found = torch.compile(draw)(x)
        torch.manual_seed(5)
        eager = draw(x)
        for number in range(2 if inner == "cuda" else 3):
            assert torch.equal(found[number], eager[number])
        return found

    same(run)


def test_a_checkpoint_draws_the_same_again(same, inductor):
    from torch.utils.checkpoint import checkpoint

    def run(device):
        layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)).to(device)
        function = torch.compile(lambda x: checkpoint(layers, x, use_reentrant=False))
        x = torch.randn(4, 8).to(device).requires_grad_()
        torch.manual_seed(7)
        result = function(x)
        result.sum().backward()
        zero = (result == 0).sum(0)
        bias = layers[0].bias.grad  # 2 for each element that was kept
        assert torch.equal(bias, 2 * (4 - zero).to(bias.dtype))
        return result, x.grad, bias

    same(run)


def test_a_routed_operator_is_called_by_its_route(inductor):
    from anyop.torch import device

    torch._dynamo.reset()
    x = torch.randn(4, 4, device="anyop")
    device.set_route("mm", "cpu_fallback")
    device.count_calls(True)
    try:
        before = device.calls("mm")["cpu_fallback"]
        found = torch.compile(lambda x: (x @ x).relu(), fullgraph=True)(x)
        assert device.calls("mm")["cpu_fallback"] == before + 1
    finally:
        device.count_calls(False)
        device.set_route("mm", "aten")
    torch.testing.assert_close(found, (x @ x).relu())


@pytest.fixture(scope="module")
def operators():
    """Of another library; they want the device's tensors."""

    @torch.library.custom_op("anyop_compile_test::scale", mutates_args=())
    def scale(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        assert (x.device.type, by.device.type) == ("anyop", "cpu")
        return x * by.item()

    scale.register_fake(lambda x, by: torch.empty_like(x))

    @torch.library.custom_op("anyop_compile_test::scale_", mutates_args={"x"})
    def scale_(x: torch.Tensor, by: float) -> None:
        assert x.device.type == "anyop"
        x.mul_(by)

    return torch.ops.anyop_compile_test


def test_a_custom_operator_gets_the_device_s_tensors(inductor, operators):
    function = torch.compile(lambda x, by: operators.scale(x + 1, by) * 2, fullgraph=True)
    found = function(torch.ones(3, device="anyop"), torch.tensor(3.0))
    assert found.device.type == "anyop"
    assert found.tolist() == [12.0] * 3


def test_a_custom_operator_writes_into_the_device_s_tensors(inductor, operators):
    def function(x):
        operators.scale_(x, 3.0)
        return x + 1

    x = torch.ones(3, device="anyop")
    found = torch.compile(function, fullgraph=True)(x)
    assert (x.tolist(), found.tolist()) == ([3.0] * 3, [4.0] * 3)
