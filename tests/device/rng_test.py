# SPDX-License-Identifier: Apache-2.0
"""Random numbers: seeds, states, generators, and the sequence of torch's own device."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.anyplatform, pytest.mark.usefixtures("platform")]

DRAWS = {
    "rand": lambda d: torch.rand(100, device=d),
    "randn": lambda d: torch.randn(10, 10, device=d),
    "randint": lambda d: torch.randint(0, 1000, (50,), device=d),
    "randperm": lambda d: torch.randperm(100, device=d),
    "bernoulli": lambda d: torch.bernoulli(torch.full((50,), 0.3).to(d)),
    "multinomial": lambda d: torch.multinomial(torch.ones(20).to(d), 10),
    "normal": lambda d: torch.normal(torch.zeros(20).to(d), 2.0),
    "poisson": lambda d: torch.poisson(torch.full((20,), 3.0).to(d)),
    "exponential": lambda d: torch.empty(20, device=d).exponential_(),
    "cauchy": lambda d: torch.empty(20, device=d).cauchy_(),
    "dropout": lambda d: torch.nn.functional.dropout(torch.ones(100).to(d), 0.5),
    "rand_like": lambda d: torch.rand_like(torch.ones(9, dtype=torch.float64).to(d)),
    "rrelu": lambda d: torch.nn.functional.rrelu(-torch.ones(20).to(d), training=True),
    "gumbel": lambda d: torch.nn.functional.gumbel_softmax(torch.ones(20).to(d)),
    "uniform": lambda d: torch.nn.init.xavier_uniform_(torch.empty(4, 4, device=d)),
    "gamma": lambda d: torch.distributions.Gamma(torch.ones(5).to(d), torch.ones(5).to(d)).sample(),
}


@pytest.mark.parametrize("name", DRAWS)
def test_the_sequence_is_torchs(name, same):
    same(lambda device: [DRAWS[name](device), DRAWS[name](device)])


def test_seeds():
    torch.anyop.manual_seed(5)
    a, b = torch.rand(9, device="anyop"), torch.rand(9, device="anyop")
    torch.anyop.manual_seed(5)
    assert torch.equal(a, torch.rand(9, device="anyop")) and not torch.equal(a, b)
    torch.manual_seed(5)
    assert torch.equal(a, torch.rand(9, device="anyop")) and torch.anyop.initial_seed() == 5
    torch.anyop.manual_seed_all(6)
    assert torch.anyop.initial_seed() == 6 and not torch.equal(a, torch.rand(9, device="anyop"))
    torch.anyop.seed()
    assert torch.anyop.initial_seed() != 6


def test_states():
    state = torch.anyop.get_rng_state()
    a = torch.rand(9, device="anyop")
    assert not torch.equal(state, torch.anyop.get_rng_state()) and state.is_cpu
    torch.anyop.set_rng_state(state)
    assert torch.equal(a, torch.rand(9, device="anyop"))
    torch.anyop.set_rng_state_all(torch.anyop.get_rng_state_all())
    with pytest.raises((RuntimeError, TypeError)):
        torch.anyop.set_rng_state(torch.zeros(3, dtype=torch.uint8))


def test_the_cpu_keeps_its_state():
    before = torch.get_rng_state()
    torch.rand(9, device="anyop")
    torch.anyop.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), before)
    state = torch.anyop.get_rng_state()
    torch.rand(9)
    assert torch.equal(torch.anyop.get_rng_state(), state)


@pytest.mark.cuda
def test_the_default_generator_is_that_of_cuda():
    """Programs that mix the two draw one sequence."""
    torch.cuda.manual_seed(4)
    expected = torch.rand(9, device="cuda"), torch.rand(9, device="cuda")
    torch.anyop.manual_seed(4)
    first, state = torch.rand(9, device="anyop"), torch.anyop.get_rng_state()
    assert torch.equal(state, torch.cuda.get_rng_state())
    assert torch.equal(first.cpu(), expected[0].cpu())
    assert torch.equal(torch.rand(9, device="cuda"), expected[1])
    assert not torch.equal(torch.anyop.get_rng_state(), state)


@pytest.mark.usefixtures("two_devices")
def test_a_device_has_its_own_state():
    torch.anyop.manual_seed_all(3)
    state = torch.anyop.get_rng_state("anyop:1")
    a = torch.rand(5, device="anyop:0")
    assert torch.equal(torch.anyop.get_rng_state(1), state)
    assert torch.equal(torch.rand(5, device="anyop:1").cpu(), a.cpu())
    with torch.anyop.device(1):
        torch.anyop.manual_seed(8)
    assert torch.anyop.initial_seed() == 3


def test_generators(inner):
    a, b = (torch.Generator("anyop").manual_seed(7) for _ in range(2))
    state = torch.anyop.get_rng_state()
    first = torch.rand(9, device="anyop", generator=a)
    assert torch.equal(first, torch.rand(9, device="anyop", generator=b))
    assert not torch.equal(first, torch.rand(9, device="anyop", generator=a))
    assert torch.equal(torch.anyop.get_rng_state(), state), "the default one is not used"
    theirs = torch.rand(9, device=inner, generator=torch.Generator(inner).manual_seed(7))
    assert torch.equal(first.cpu(), theirs.cpu())
    assert a.device.type == "anyop" and a.initial_seed() == 7
    b.set_state(a.get_state())
    pair = [torch.randn(4, device="anyop", generator=g) for g in (a, b)]
    assert torch.equal(*pair)
    for wrong in ("cpu", "cuda") if inner == "cuda" else ("cpu",):
        with pytest.raises(RuntimeError, match=r"[Gg]enerator"):
            torch.rand(3, device="anyop", generator=torch.Generator(wrong))
    with pytest.raises(RuntimeError, match=r"[Gg]enerator"):
        torch.rand(3, generator=a)


def test_forked_state():
    torch.manual_seed(2)
    with torch.random.fork_rng(device_type="anyop"):
        a = torch.rand(5, device="anyop")
        torch.manual_seed(99)
    assert torch.equal(a, torch.rand(5, device="anyop"))
