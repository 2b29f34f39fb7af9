# SPDX-License-Identifier: Apache-2.0
"""anyop's operators on tensors of the device: the standard tests, and the bits of the device below, by every entry.

Of the standard tests a part that the commit draws, all with ANYOP_TEST_FULL=1.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import anyop
import pytest
from anyop import testing
from anyop.testing.torch_cases import torch_calls
from anyop.testing.torch_memory import fits_device, fits_torch, on_device
from drawn import few, seed
from failures import failures_of
from slow_stream import sleep

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is ml_dtypes'")
import anyop.torch  # noqa: E402

pytestmark = [pytest.mark.anyplatform, pytest.mark.usefixtures("platform")]
ROOT = Path(__file__).parents[2]
SUBJECTS = {s.name: s for s in testing.find_subjects(ROOT / "ops")}
subjects = pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS)
DRAWN = 30  # cases of an operator


def has_kernel(subject, inner: str) -> bool:
    return any(kernel["backend"] == inner for kernel in subject.metadata["kernels"])


def drawn_cases(subject, inner: str) -> list:
    """On the CPU below, layouts that its kernels do not take are copied; elsewhere they are refused."""
    fits = fits_torch if inner == "cpu" else lambda case: fits_device(subject, case)
    choices = few(testing.dtype_choices(subject.metadata), 3, subject.name)
    cases = [c for choice in choices for c in testing.standard_cases(subject, choice) if fits(c)]
    return few(cases, DRAWN, subject.name)


@subjects
def test_standard_cases(subject, inner):
    if not has_kernel(subject, inner):
        pytest.skip(f"{subject.name} has no kernel of {inner}")
    there = replace(subject.on(inner), function=on_device(subject.function, "anyop"))
    if "reference" in subject.__dict__:
        there.__dict__["reference"] = subject.reference  # loaded once
    cases = drawn_cases(there, inner)
    failures = failures_of(there, cases, inner, "anyop")
    assert not failures, f"drawn by {seed()}:\n" + "\n".join(failures[:8])
    assert len(cases) >= 10


def moved(value, device):
    if isinstance(value, (list, tuple)):
        return type(value)(moved(item, device) for item in value)
    return value.detach().clone().to(device) if isinstance(value, torch.Tensor) else value


def wants_gradient(subject, args):
    """The arguments, with a gradient wanted where the operator has one."""
    gives = anyop.metadata(subject.metadata["backward"]["name"])["results"]
    wanted = {param["name"].removeprefix("grad_") for param in gives}
    return [
        value.requires_grad_()
        if param["name"] in wanted and isinstance(value, torch.Tensor) and value.is_floating_point()
        else value
        for param, value in zip(subject.inputs, args)
    ]


@subjects
def test_every_entry_gives_the_bits_of_the_device_below(subject, same, inner):
    """anyop.<op>, torch.ops, with a gradient and without, and in inference mode."""
    if inner == "cuda" and not {"cuda", "triton", "aten"} & {*anyop.backends(subject.name)}:
        pytest.skip(f"nothing runs {subject.name} on cuda")
    calls = list(torch_calls(subject, ("base", "empty", "absent")))[:4]
    packet = getattr(torch.ops.anyop, subject.metadata["name"])

    def entries(device):
        found = []
        for function in (subject.function, packet):
            for _, args, kwargs in calls:
                args, kwargs = moved(args, device), moved(list(kwargs.items()), device)
                found.append(function(*args, **dict(kwargs)))
                with torch.inference_mode():
                    found.append(function(*args, **dict(kwargs)))
                if subject.metadata["backward"] is None:
                    continue
                leaves = wants_gradient(subject, [moved(value, device) for value in args])
                results = function(*leaves, **dict(kwargs))
                first = results[0] if isinstance(results, tuple) else results
                if not first.requires_grad:  # of integers
                    continue
                first.sum().backward()
                found += [v.grad for v in leaves if isinstance(v, torch.Tensor) and v.requires_grad]
        return found

    same(entries)


def test_compiled_and_in_autocast(same):
    x, weight, w = torch.randn(4, 64), torch.rand(64), torch.randn(8, 64)

    def run(device):
        given = [t.to(device) for t in (x, weight, w)]
        function = lambda x, weight, w: anyop.linear(anyop.rms_norm(x * 2, weight), w) + 1  # noqa: E731
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        with torch.autocast(device, dtype=torch.bfloat16):
            lower = anyop.linear(given[0], given[2])
        assert lower.dtype == torch.bfloat16
        return [function(*given), compiled(*given), lower]

    same(run)


def test_inductor_calls_them_on_the_device(same, inductor):
    x, weight = torch.randn(4, 64), torch.rand(64)

    def run(device):
        compiled = torch.compile(lambda x, w: anyop.rms_norm(x * 2, w) + 1, fullgraph=True)
        leaf = moved(x, device).requires_grad_()
        compiled(leaf, weight.to(device)).square().sum().backward()
        return leaf.grad

    same(run, near=True)


def model():
    torch.manual_seed(3)
    nn = torch.nn
    return nn.Sequential(nn.Linear(32, 64), nn.RMSNorm(64), nn.SiLU(), nn.LayerNorm(64), nn.GELU())


def test_a_replaced_model(same, inner):
    """The same modules as on the device below, with its results."""
    below = anyop.torch.replace(model().to(inner), timed=False, verbose=False)
    assert below.swapped["RMSNorm"] == 1

    def run(device):
        layers, x = (
            model().to(device),
            torch.randn(5, 32, generator=torch.Generator().manual_seed(1)),
        )
        replaced = anyop.torch.replace(layers, timed=False, verbose=False)
        assert replaced.swapped == below.swapped
        left = {(name, why.replace(" on anyop", f" on {inner}")) for name, why in replaced.left}
        assert left == set(below.left)
        testing.observe("rms_norm")
        before = sum(kernel.calls for kernel in testing.kernel_calls("rms_norm"))
        out = layers(x.to(device))
        assert sum(kernel.calls for kernel in testing.kernel_calls("rms_norm")) == before + 1
        out.square().sum().backward()
        return [out, *(parameter.grad for parameter in layers.parameters())]

    same(run)


# ---- messages and routes ----


def test_messages_name_the_device():
    x, w = torch.ones(2, 4, device="anyop"), torch.ones(4)
    with pytest.raises(ValueError, match="weight is on device cpu:0, expected anyop:0 as the ten"):
        anyop.rms_norm(x, w)
    with pytest.raises(ValueError, match="weight is on device anyop:0, expected cpu:0 as the ten"):
        anyop.rms_norm(x.cpu(), w.to("anyop"))
    with pytest.raises((ValueError, RuntimeError), match="expected anyop:0 as the tensors before"):
        torch.ops.anyop.rms_norm(x, w)
    with pytest.raises(TypeError, match="x has dtype int32, expected float16"):
        anyop.rms_norm(x.int(), w.to("anyop"))
    with pytest.raises(ValueError, match="out overlaps weight in memory"):
        anyop.rms_norm(x[0], x[0], out=x[0])


@pytest.mark.parametrize("index", [64, 256, 100_000])
def test_a_device_that_there_is_not(index):
    """Arrays of other libraries may say so, by DLPack."""
    import numpy as np
    from anyop.testing.dlpack import DlpackArray

    arrays = [DlpackArray(np.ones(4, np.float32), device=(12, index)) for _ in range(2)]
    with pytest.raises(ValueError, match=f"relu: there is no device {index}, only"):
        anyop.relu(arrays[0], out=arrays[1])


def test_two_devices_are_not_mixed(two_devices):
    x, w = torch.ones(2, 4, device="anyop:1"), torch.ones(4, device="anyop:0")
    with pytest.raises(
        ValueError, match="weight is on device anyop:0, expected anyop:1 as the ten"
    ):
        anyop.rms_norm(x, w)
    assert anyop.rms_norm(x, w.to(x.device)).device == x.device == torch.device("anyop:1")


@pytest.fixture
def load(tmp_path):
    def put(text: str) -> None:
        path = tmp_path / "a.routes"
        path.write_text(text)
        anyop.load_routes(path)

    yield put
    anyop.load_routes(None)


def test_routes(load, inner):
    x, w = torch.ones(2, 4, device="anyop"), torch.ones(4, device="anyop")
    below = x.to(inner), w.to(inner)
    default = anyop.explain("rms_norm", *below).backend
    found = anyop.explain("rms_norm", x, w)
    assert (found.backend, found.device) == (default, "anyop:0")
    expected = torch.nn.functional.rms_norm(below[0], [4], below[1], 1e-6).cpu()
    load("[when device=anyop]\nrms_norm = aten\n")
    assert anyop.explain("rms_norm", x, w).backend == "aten"
    assert anyop.explain("rms_norm", *below).backend == default
    assert torch.equal(anyop.rms_norm(x, w).cpu(), expected)
    load(f"[when device={inner}]\nrms_norm = aten\n")  # what holds below holds here, too
    assert anyop.explain("rms_norm", x, w).backend == "aten"
    assert anyop.explain("rms_norm", *below).backend == "aten"
    load(f"[when device={inner}]\nrms_norm = aten\n[when device=anyop]\nrms_norm = {default}\n")
    assert anyop.explain("rms_norm", x, w).backend == default
    assert anyop.explain("rms_norm", *below).backend == "aten"
    load("[when device!=anyop]\nrms_norm = aten\n")
    assert anyop.explain("rms_norm", x, w).backend == default
    with anyop.use("aten"):
        assert anyop.explain("rms_norm", x, w).backend == "aten"
        found = anyop.rms_norm(x, w)
    assert found.device == x.device and torch.equal(found.cpu(), expected)


def test_a_python_kernel_gets_tensors_of_the_device_below(inner):
    seen = []

    @anyop.register("relu", "mine", device=inner, framework="torch", priority=-1)
    def mine(x, out):
        seen.append((x.device.type, out.device.type))
        torch.relu_(out.copy_(x))

    try:
        with anyop.use("mine", ops=["relu"]):
            for _ in range(2):  # the second time without Python around it
                found = anyop.relu(torch.tensor([-1.0, 2.0], device="anyop"))
                assert found.is_anyop and found.tolist() == [0, 2]
    finally:
        anyop.unregister("relu", "mine")
    assert seen == [(inner, inner)] * 2


# ---- streams, memory, threads ----

ENTRIES = {"anyop": anyop.relu, "torch.ops": torch.ops.anyop.relu}
entries = pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)


@entries
@pytest.mark.parametrize("side", [False, True])
def test_nothing_is_read_before_the_stream_has_written_it(entry, side, while_it_sleeps):
    values = torch.rand(1000) + 1
    source, stream = values.pin_memory(), torch.anyop.current_stream()
    if side:
        stream = torch.anyop.Stream()
    for strided in (False, True):
        there = torch.zeros(1000, device="anyop")
        stream.wait_stream(torch.anyop.current_stream())

        def copy(there=there):
            there.copy_(source, non_blocking=True)
            return not stream.query()

        with torch.anyop.stream(stream):
            assert while_it_sleeps(copy), "the copy has held the caller"
            found = entry(there[::2] if strided else there)
        stream.synchronize()
        assert torch.equal(found.cpu(), values[::2] if strided else values)


@entries
def test_a_results_memory_is_no_more_read(entry, while_it_sleeps):
    """A block that was let go while the stream still has to read it may be the result's."""
    x, kept = torch.full((4096,), 2.0, device="anyop"), torch.empty(4096).pin_memory()
    reused = 0
    for _ in range(4):
        old = torch.ones(4096, device="anyop")
        torch.anyop.synchronize()
        place = old.data_ptr()

        def copy(old=old):
            kept.copy_(old, non_blocking=True)
            return not torch.anyop.current_stream().query()

        assert while_it_sleeps(copy), "the copy has held the caller"
        del copy, old
        found = entry(x)
        reused += found.data_ptr() == place
        torch.anyop.synchronize()
        assert kept.eq(1).all() and found.eq(2).all()
        del found
    assert reused


@entries
def test_other_threads_run_while_it_waits(entry, platform):
    """The wait for the stream is without Python's lock: what the stream does may need it."""
    x, found, turns = torch.ones(100, device="anyop"), [], 0
    torch.anyop.synchronize()

    def call():
        sleep(300)
        found.append(entry(x).cpu())

    thread = threading.Thread(target=call)
    thread.start()
    while thread.is_alive():
        thread.join(0.01)
        turns += 1
    assert turns > 5 and found[0].eq(1).all()


def test_threads_and_devices(two_devices):
    """Eight threads, two devices, streams of their own: each result is its own, on its device."""
    wrong = []

    def work(number):
        device = torch.device("anyop", number % 2)
        x = torch.full((64, 64), float(number), device=device)
        w = torch.ones(64, device=device)
        with torch.anyop.stream(torch.anyop.Stream(device)):
            for _ in range(50):
                found = anyop.add(anyop.mul(x, x), w)
                if found.device != device or not found.eq(number * number + 1).all():
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_is_written_counts_a_version():
    x, place = torch.rand(3, 4, device="anyop"), torch.empty(3, 4, device="anyop")
    before = place._version
    assert anyop.relu(x, out=place) is place and place._version == before + 1
    assert torch.equal(place, x)
