# SPDX-License-Identifier: Apache-2.0
"""torch.anyop has what users know from torch.cuda and what torch's own code asks of a device's module."""

from __future__ import annotations

import functools
import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.anyplatform, pytest.mark.usefixtures("platform")]

USERS = """
is_available is_initialized init device_count current_device set_device device device_of synchronize
Stream Event stream current_stream default_stream set_stream StreamContext memory_allocated memory_reserved
max_memory_allocated max_memory_reserved memory_stats memory_summary empty_cache reset_peak_memory_stats mem_get_info
manual_seed manual_seed_all seed seed_all initial_seed get_rng_state set_rng_state get_rng_state_all set_rng_state_all
amp get_device_properties get_device_name get_device_capability is_bf16_supported default_generators
"""


def test_all_names_are_there_and_torch_cuda_has_them_too():
    missing = [name for name in USERS.split() if not hasattr(torch.anyop, name)]
    assert not missing and all(hasattr(torch.cuda, name) for name in USERS.split())
    with pytest.raises(AttributeError, match=r"torch.anyop.*no_such"):
        _ = torch.anyop.no_such


def test_what_another_thread_has_filled_in_since_is_found():
    """Python looks for a name in vain, another thread wakes the module, then __getattr__ is called."""
    torch.ones(1, device="anyop")
    assert torch.anyop.__getattr__("device_count") is torch.anyop.device_count
    assert torch.anyop.__getattr__("Stream") is torch.anyop.Stream


def test_dir_shows_what_users_call():
    from anyop.torch import device

    assert [name for name in dir(device) if name[0] != "_"] == sorted(device.__all__)


def test_the_current_device_is_a_threads_own(two_devices):
    from concurrent.futures import ThreadPoolExecutor

    device = torch.anyop.device
    assert torch.anyop.current_device() == 0
    with device(1), device(None), device("anyop"), device(-1):
        assert (
            torch.anyop.current_device() == 1 and torch.empty(1, device="anyop").get_device() == 1
        )
        with device(torch.device("anyop:0")):
            assert torch.anyop.current_device() == 0
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torch.anyop.current_device).result() == 0
        with torch.anyop.device_of(torch.ones(1)):
            assert torch.anyop.current_device() == 1
        with torch.anyop.device_of(torch.ones(1, device="anyop:0")):
            assert torch.anyop.current_device() == 0
        assert torch.anyop._exchange_device(0) == 1 and torch.anyop._maybe_exchange_device(-1) == 0
        torch.anyop.set_device("anyop:1")
        torch.anyop.set_device(-1)
        assert torch.anyop.current_device() == 1
    assert torch.anyop.current_device() == 0


def test_devices_that_are_not_there_are_refused():
    count = torch.anyop.device_count()
    for wrong in (count, "cpu", f"anyop:{count}", torch.device("cuda:0")):
        for function in (torch.anyop.set_device, torch.anyop.device, torch.anyop.synchronize,
                         torch.anyop.memory_allocated, torch.anyop.current_stream, torch.anyop.Stream,
                         torch.anyop.get_rng_state, torch.anyop.get_device_name):  # fmt: skip
            with pytest.raises(ValueError, match=f"{wrong}|only {count}"):
                function(wrong)
    with pytest.raises(TypeError, match="found 1"):
        torch.anyop.set_device(1.5)


def test_properties(platform):
    found = torch.anyop.get_device_properties(0)
    free, total = torch.anyop.mem_get_info()
    name = torch.cuda.get_device_name(0) if platform == "cuda" else platform
    assert found.name == torch.anyop.get_device_name() and name.lower() in found.name.lower()
    assert found.total_memory >= total >= free > 0
    if hasattr(torch.accelerator, "get_memory_info"):  # torch 2.10
        assert torch.accelerator.get_memory_info()[1] == total
    assert len(torch.anyop.get_device_capability()) == 2 and torch.anyop.is_bf16_supported()


def test_memory_is_counted():
    torch.anyop.empty_cache()
    before, bytes_each = torch.anyop.memory_allocated(), 1 << 20
    torch.anyop.reset_peak_memory_stats()
    held = [torch.empty(bytes_each, dtype=torch.uint8, device="anyop") for _ in range(4)]
    assert torch.anyop.memory_allocated() - before == 4 * bytes_each
    assert torch.anyop.memory_reserved() >= torch.anyop.memory_allocated()
    del held
    torch.anyop.synchronize()
    assert torch.anyop.memory_allocated() == before
    assert torch.anyop.max_memory_allocated() == before + 4 * bytes_each
    stats, nested = torch.anyop.memory_stats(), torch.anyop.memory_stats_as_nested_dict()
    assert stats["allocated_bytes.all.peak"] == nested["allocated_bytes"]["all"]["peak"]
    assert f"{stats['allocated_bytes.all.peak']:,}" in torch.anyop.memory_summary()
    torch.anyop.reset_peak_memory_stats()
    assert torch.anyop.max_memory_allocated() == before
    torch.anyop.empty_cache()
    assert torch.anyop.memory_reserved() <= stats["reserved_bytes.all.current"]


def draw(device: str = "anyop") -> list[float]:
    return torch.rand(4, device=device).tolist()


def test_seeds_and_states(two_devices):
    torch.anyop.manual_seed(7)
    assert torch.anyop.initial_seed() == 7 == torch.anyop.default_generators[0].initial_seed()
    state = torch.anyop.get_rng_state()
    first = draw()
    torch.anyop.set_rng_state(state)
    assert draw() == first != draw()
    torch.anyop.manual_seed_all(7)
    assert draw("anyop:1") == first == draw("anyop:0")
    torch.manual_seed(7)  # seeds the devices too
    assert draw("anyop:1") == first == draw("anyop:0")
    states = torch.anyop.get_rng_state_all()
    after = draw(), draw("anyop:1")
    torch.anyop.set_rng_state_all(states)
    assert (draw(), draw("anyop:1")) == after and len(torch.anyop.default_generators) == 2
    for seed in (2**64 - 1, -1):
        torch.anyop.manual_seed(seed)
        assert torch.anyop.initial_seed() == 2**64 - 1
    with pytest.raises(ValueError, match="64 bits"):
        torch.anyop.manual_seed(2**64)
    torch.anyop.seed_all()
    assert torch.anyop.initial_seed() != 2**64 - 1 and draw("anyop:1") == draw("anyop:0")


def test_torchs_fork_rng_and_checkpoint():
    torch.anyop.manual_seed(3)
    expected = draw()
    torch.anyop.manual_seed(3)
    with warnings.catch_warnings(), torch.random.fork_rng(device_type="anyop"):
        warnings.simplefilter("ignore")  # several devices
        draw()
    assert draw() == expected
    x = torch.ones(64, device="anyop", requires_grad=True)
    dropped = torch.utils.checkpoint.checkpoint(
        lambda v: torch.nn.functional.dropout(v, 0.5), x, use_reentrant=False
    )
    dropped.sum().backward()  # draws the same again
    assert torch.equal(x.grad, dropped.detach()) and 0 < (x.grad == 0).sum().item() < 64


def test_streams_and_events(two_devices, while_it_sleeps):
    default = torch.anyop.default_stream()
    side, other = torch.anyop.Stream(), torch.anyop.Stream(1, priority=-1)
    assert isinstance(side, torch.Stream) and side.device.index == 0 and other.device.index == 1
    assert torch.anyop.current_stream() == default != side
    with torch.anyop.stream(side), torch.anyop.stream(None):
        assert torch.anyop.current_stream() == side
        with torch.anyop.stream(other), torch.anyop.stream(other):
            assert torch.anyop.current_device() == 1 and torch.anyop.current_stream() == other
            assert torch.anyop.current_stream(0) == side
        assert torch.anyop.current_device() == 0 and torch.anyop.current_stream() == side
        assert torch.anyop.current_stream(1) == torch.anyop.default_stream(1)
    assert torch.anyop.current_stream() == default
    begin, end = (torch.anyop.Event(enable_timing=True) for _ in range(2))

    def record() -> bool:
        end.record()
        return not end.query() and not side.query()

    with torch.anyop.stream(side):
        begin.record()
        assert while_it_sleeps(record), "neither the event nor its stream is done before its work"
    end.synchronize()
    assert end.query() and begin.elapsed_time(end) > 0
    default.wait_event(end)
    default.wait_stream(side)
    with pytest.raises(ValueError, match="cpu"):
        torch.anyop.set_stream(torch.Stream("cpu") if hasattr(torch, "cpu") else None)


def test_autocast_and_the_scaler():
    x = torch.ones(4, 4, device="anyop")
    with torch.anyop.amp.autocast(dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
        with torch.anyop.amp.autocast(enabled=False):
            assert (x @ x).dtype == torch.float32

    class Twice(torch.autograd.Function):
        @staticmethod
        @functools.partial(torch.anyop.amp.custom_fwd, cast_inputs=torch.float32)
        def forward(ctx, v):
            return v * 2

        @staticmethod
        @torch.anyop.amp.custom_bwd
        def backward(ctx, grad):
            return grad * 2

    with torch.anyop.amp.autocast(dtype=torch.bfloat16):
        assert Twice.apply(x.bfloat16()).dtype == torch.float32
    weight = torch.ones(4, device="anyop", requires_grad=True)
    optimizer, scaler = torch.optim.SGD([weight], lr=0.5), torch.anyop.amp.GradScaler(8.0)
    scaler.scale((weight * 2).sum()).backward()
    assert weight.grad.tolist() == [16.0] * 4
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [0.0] * 4 and scaler.get_scale() == 8.0


def test_what_torchs_own_code_asks():
    from torch._utils import _get_available_device_type, _get_device_module

    device = torch.device("anyop", 0)
    assert torch.get_device_module("anyop") is torch.anyop is _get_device_module("anyop")
    assert torch.accelerator.current_accelerator().type == "anyop"
    assert torch.accelerator.device_count() == torch.anyop.device_count()
    assert torch.cuda.is_available() or _get_available_device_type() == "anyop"
    assert torch.anyop._get_generator(device) is not None
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        x = torch.ones(3, device="anyop", requires_grad=True)
        (x * x).sum().backward()
    assert x.grad.tolist() == [2.0] * 3
    with torch.device("anyop"):
        layer = torch.nn.Linear(2, 2)
    assert layer.weight.is_anyop and torch.nn.Linear(2, 2).anyop(0).weight.device == device
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2)]).anyop()
    assert packed.is_anyop and torch.ones(2).anyop().untyped_storage().is_anyop


def test_routes_can_be_asked_and_set():
    import anyop.torch.device as device

    names = device.registered_ops()
    assert len(names) == len(set(names)) > 1000 and {"mm", "add.Tensor", "mul_.Tensor"} <= set(
        names
    )
    assert device.route("aten::mm") == device.route("mm") and "aten" in device.route("mm")
    assert device.backend_available("aten") and not device.backend_available("no_such")
    with pytest.raises(ValueError, match="no_such"):
        device.route("no_such")
    with pytest.raises(ValueError, match="no_such"):
        device.set_route("no_such", "aten")
    x = torch.ones(2, 2, device="anyop")
    device.count_calls()
    before = device.calls("mm")
    assert set(before) == {"aten", "native", "cpu_fallback", "other"}
    try:
        torch.mm(x, x)
        device.set_route("mm", "cpu_fallback")
        assert torch.mm(x, x).tolist() == [[2.0, 2.0], [2.0, 2.0]]
    finally:
        device.set_route("mm", "")
        device.count_calls(False)
    after = device.calls("mm")
    assert after["aten"] - before["aten"] == after["cpu_fallback"] - before["cpu_fallback"] == 1
