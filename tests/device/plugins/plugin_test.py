# SPDX-License-Identifier: Apache-2.0
"""Plugins: what `anyop new --device` writes passes `anyop device-check` and computes; broken ones are caught."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import anyop
import prepared
import pytest
from anyop import command

pytestmark = pytest.mark.host
LIBRARY = Path(anyop._anyop.__file__).parent / "lib"

# What `anyop device-check` says of each way in which broken_device.c is broken, by the check that sees it.
BREAKS = {
    "functions": "lacks query_event",
    "bad_devices": "synchronize_device of device -1 is not refused",
    "current_device": "leave does not put the device back",
    "allocation": "not aligned to 64",
    "pinned_memory": "is_host takes any memory for pinned",
    "copies": "a copy of 65 bytes at offset 0 is wrong",
    "order": "functions run out of order",
    "independence": "launch_host waits",
    "plain_copies": "bytes of plain host memory are wrong",
    "filling": "set_on of 1 bytes at offset 0 is wrong",
    "waiting": "a stream did not wait for the event",
    "events": "query_event says done too early",
    "timing": "0.1 ms between events, expected 100",
    "host_functions": "a function ran on the caller's thread",
}


def compile_plugin(source: Path, *flags: str) -> Path:
    library = source.with_suffix(".so")
    words = ["g++" if source.suffix == ".cc" else "gcc", "-shared", "-fPIC", *flags]
    words += [f"-I{anyop.include_dir()}", str(source), "-o", str(library)]
    words += [f"-L{LIBRARY}", "-lanyop", f"-Wl,-rpath,{LIBRARY}", "-lpthread"]
    subprocess.run(words, check=True)
    return library


def check(*words: str) -> tuple[int, str]:
    """Exit code and output of `anyop device-check`."""
    done = subprocess.run(
        [sys.executable, "-m", "anyop", "device-check", *words],
        capture_output=True,
        text=True,
        timeout=200,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the command writes for a device called mychip."""
    place = tmp_path_factory.mktemp("device")
    assert command.main(["new", "--device", "mychip", "--dir", str(place)]) == 0
    return place / "mychip"


@pytest.fixture(scope="module")
def chip(folder):
    """Its library."""
    if shutil.which("cmake") is None:
        return compile_plugin(folder / "mychip.cc", "-std=c++17", "-O1")
    steps = [["cmake", "-S", folder, "-B", folder / "build", f"-Danyop_DIR={anyop.cmake_dir()}"],
             ["cmake", "--build", folder / "build"]]  # fmt: skip
    for words in steps:
        subprocess.run(list(map(str, words)), check=True, capture_output=True)
    return folder / "build" / "libmychip.so"


def test_what_is_written_passes(chip):
    code, text = check(str(chip))
    assert code == 0 and text.endswith("24 of 24 checks passed\n"), text


def test_its_kernel_runs_on_its_memory(chip):
    """anyop.relu of arrays of the chip, by DLPack: the chip's kernel, on its stream, and no other."""
    program = f"""
import numpy as np, anyop
from anyop.conformance.device_table import Device, use
from anyop.testing.dlpack import DlpackArray
device = Device({str(chip)!r})
x = np.linspace(-3, 3, 24, dtype=np.float32).reshape(4, 6)
here = [device.made("allocate", 1, x.nbytes) for _ in range(2)]
device.copy(1, here[0], x.ctypes.data, x.nbytes, 1)
there = [DlpackArray(x, device=(12, 1), data=place) for place in here]
use(device)
assert "mychip" in anyop.backends("relu")
anyop.relu(there[0], out=there[1])
back = np.empty_like(x)
device.copy(1, back.ctypes.data, here[1], x.nbytes, 2)
assert np.array_equal(back, np.maximum(x, 0))
try:
    anyop.silu(there[0], out=there[1])
except NotImplementedError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("silu: has no kernel"), done.stderr


def in_torch(library, text: str, **environment: str) -> subprocess.CompletedProcess:
    """A process whose PyTorch device is the plugin; it logs what runs."""
    pytest.importorskip("torch", reason="torch is not installed")
    return prepared.run(
        "torch",
        [sys.executable, "-c", f"import anyop.torch.device, torch\n{text}"],
        timeout=300,
        env=os.environ
        | {
            "ANYOP_DEVICE_PLATFORM": str(library),
            "ANYOP_LOG_DISPATCH": "1",
            "PYTHONPATH": f"{Path(__file__).parents[1]}:{os.environ.get('PYTHONPATH', '')}",
        }
        | environment,
    )


def test_its_kernel_comes_before_the_cpus(chip):
    """Route native on memory that the CPU reads: the chip's kernel, in the stream's order; else the CPU's."""
    done = in_torch(
        chip,
        """
from slow_stream import while_it_sleeps
x, there = torch.randn(1000), torch.zeros(1000, device="anyop")
def work():
    global found
    there.copy_(x.pin_memory(), non_blocking=True)
    found = torch.relu(there)  # behind both, started without waiting
    return not torch.anyop.current_stream().query()
assert while_it_sleeps(work)
assert torch.equal(found.cpu(), torch.relu(x)) and found.is_anyop
for other in (x.double(), x.view(20, 50).T):
    assert torch.equal(torch.relu(other.to("anyop")).cpu(), torch.relu(other))
assert torch.equal(torch.add(there, found).cpu(), x + torch.relu(x))
assert torch.equal(torch.relu_(there).cpu(), torch.relu(x))
at = torch.relu(torch.ones(3, device="anyop:1"))
assert at.device.index == 1 and at.tolist() == [1, 1, 1]
""",
        ANYOP_OP_ATEN__RELU="native",
        ANYOP_OP_ATEN__RELU_="native",
        ANYOP_OP_ATEN__ADD="native",
    )
    assert done.returncode == 0, done.stderr
    for line in ("relu on anyop:0: mychip", "relu on anyop:1: mychip", "relu on anyop:0: cpu"):
        assert line in done.stderr, done.stderr
    assert "add on anyop:0: cpu" in done.stderr, done.stderr


def test_operators_run_its_kernel_or_the_cpus(chip):
    """anyop.<op> and torch.ops of tensors of the device: the chip's kernel in its stream, else the CPU's behind it."""
    done = in_torch(
        chip,
        """
import anyop, anyop.torch
from slow_stream import while_it_sleeps
x, there = torch.randn(1000), torch.zeros(1000, device="anyop")
def work():
    global found
    there.copy_(x.pin_memory(), non_blocking=True)
    found = [anyop.relu(there), torch.ops.anyop.relu(there)]  # behind both, started without waiting
    return not torch.anyop.current_stream().query()
assert while_it_sleeps(work)
assert all(f.is_anyop and torch.equal(f.cpu(), torch.relu(x)) for f in found)
assert anyop.explain("relu", there).backend == "mychip"
for function in (anyop.relu, torch.ops.anyop.relu):
    for other in (x.double(), x.view(20, 50).T):
        assert torch.equal(function(other.to("anyop")).cpu(), torch.relu(other))
with anyop.use("cpu"):
    assert torch.equal(anyop.relu(there).cpu(), torch.relu(x))
assert torch.equal(anyop.silu(there).cpu(), anyop.silu(x))
leaf = there.clone().requires_grad_()
anyop.relu(leaf).sum().backward()
assert torch.equal(leaf.grad.cpu(), (x > 0).float())
layers = torch.nn.Sequential(torch.nn.SiLU()).to("anyop")
assert "SiLU" in anyop.torch.replace(layers, timed=False).swapped
second = anyop.relu(there.to("anyop:1"))
assert second.device.index == 1 and torch.equal(second.cpu(), torch.relu(x))
""",
    )
    assert done.returncode == 0, done.stderr
    for line in ("relu on anyop:0: mychip (d", "relu on anyop:1: mychip", "silu on anyop:0: cpu"):
        assert line in done.stderr, done.stderr
    assert "relu on anyop:0: cpu (default)" in done.stderr  # float64
    assert "relu_backward on anyop:0: cpu" in done.stderr


@pytest.mark.parametrize(("name", "lacks"), [("functions", "query_event"), ("old", "properties")])
def test_torch_refuses_what_lacks_a_function(name, lacks, broken, chip):
    done = in_torch(broken, "", GOOD=str(chip), BROKEN=name)
    assert done.returncode == 1 and f"lacks {lacks}, which PyTorch's device needs" in done.stderr


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """The library of tests/device/plugins/broken_device.c."""
    source = tmp_path_factory.mktemp("broken") / "broken_device.c"
    source.write_text((Path(__file__).parent / "broken_device.c").read_text())
    return compile_plugin(source)


@pytest.mark.parametrize("name", BREAKS)
def test_broken_devices_are_caught_by_name(name, broken, chip, monkeypatch):
    monkeypatch.setenv("GOOD", str(chip))
    monkeypatch.setenv("BROKEN", name)
    code, text = check(str(broken), "--only", name)
    assert code == 1 and f"WRONG {name}" in text and BREAKS[name] in text, text
    assert text.endswith("0 of 1 checks passed\n")


def test_crashes_and_hangs_are_told_and_others_go_on(broken, chip, monkeypatch):
    monkeypatch.setenv("GOOD", str(chip))
    monkeypatch.setenv("BROKEN", "crash")
    code, text = check(str(broken), "--only", "many_handles", "--only", "copies")
    lines = text.splitlines()
    assert (
        code == 1 and lines[0].endswith("died of SIGSEGV") and lines[1].startswith("ok    copies")
    )
    monkeypatch.setenv("BROKEN", "hang")
    code, text = check(str(broken), "--only", "filling", "--only", "functions", "--timeout", "1")
    assert code == 1 and "WRONG filling" in text and "did not end within 1 s" in text
    assert "1 of 2 checks passed" in text
    monkeypatch.setenv("BROKEN", "no_text")
    code, text = check(str(broken), "--only", "bad_devices")
    assert code == 1 and "is refused without a text of last_error" in text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("size", "the description of the device has 40 bytes, expected 48 or more"),
        ("version", "device broken has ABI version 99, this core reads 1 to 1"),
        ("unnamed", "the description of the device has no name of 1 to 63 letters"),
        ("no_enter", "device broken lacks enter"),
        ("twice", "there is another device host already"),
        ("null", "has no device for ABI version 1"),
    ],
)
def test_what_cannot_be_loaded(name, text, broken, chip, monkeypatch):
    monkeypatch.setenv("GOOD", str(chip))
    monkeypatch.setenv("BROKEN", name)
    code, found = check(str(broken), "--only", "functions")
    assert code == 1 and text in found and str(broken) in found, found


def test_what_is_no_plugin(tmp_path):
    (tmp_path / "empty.c").write_text("int nothing;")
    library = compile_plugin(tmp_path / "empty.c")
    assert check(str(library)) == (
        1,
        f"anyop device-check: {library} is no device: it exports no AnyopDeviceEntry\n",
    )
    code, text = check("./not_there.so")
    assert code == 1 and "not_there.so: cannot open shared object file" in text
    code, text = check("mychip")
    assert code == 1 and "there is no device 'mychip'; there are host" in text
    code, text = check("host", "--only", "nothing")
    assert code == 1 and "there is no check 'nothing'; there are functions, " in text


def test_a_device_of_an_older_header_loads(broken, chip, monkeypatch):
    """Its table ends behind elapsed_ms: what it has works, what a PyTorch device lacks is named."""
    monkeypatch.setenv("GOOD", str(chip))
    monkeypatch.setenv("BROKEN", "old")
    code, text = check(str(broken), "--only", "functions", "--only", "copies")
    assert code == 1 and "lacks properties, memory_info, allocate_host" in text
    assert "ok    copies" in text


@pytest.mark.parametrize("name", ["Chip", "1chip", "a-b", "host", "cuda", "../x", "", "x" * 40])
def test_bad_names(name, tmp_path, capsys):
    assert command.main(["new", "--dir", str(tmp_path), f"--device={name}"]) == 1
    assert "device" in capsys.readouterr().err and not list(tmp_path.iterdir())
