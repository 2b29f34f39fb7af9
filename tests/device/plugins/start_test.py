# SPDX-License-Identifier: Apache-2.0
"""`import anyop.torch.device`: what it costs, its name, and every reason not to start, each with its cure."""

from __future__ import annotations

import os
import sys

import prepared
import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.anyplatform

REFUSALS = """
import os, sys, torch

def attempt(**variables):
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        import anyop.torch.device
    except ImportError as error:
        return str(error)
    finally:
        os.environ.clear(); os.environ.update(before)
    raise SystemExit(f"{variables}: no error")

def check(*words, **variables):
    said = attempt(**variables)
    assert said.startswith("anyop.torch.device: ") and all(word in said for word in words), said
    assert torch._C._get_privateuse1_backend_name() == "privateuseone" and not hasattr(torch, "anyop")

empty = sys.argv[1]
other, junk = f"{empty}.other.so", f"{empty}.junk.so"
open(other, "wb").write(b"\\x7fELF\\0torch_device-1.0.0.so\\0")
open(junk, "wb").write(b"\\x7fELF\\0")
check("no C++ compiler", "PATH", ANYOP_CACHE_DIR=empty, ANYOP_TORCH_DEVICE="", PATH="/nowhere", CXX="")
check("ANYOP_TORCH_DEVICE=0", ANYOP_TORCH_DEVICE="0")
check("No such file", "/nowhere.so", ANYOP_TORCH_DEVICE="/nowhere.so")
check("is for torch 1.0.0, this is torch " + torch.__version__, ANYOP_TORCH_DEVICE=other)
check("no library of anyop's device", ANYOP_TORCH_DEVICE=junk)
for name in ("cuda", "nn", "numpy", "ones", "My-chip", "privateuseone"):
    check("ANYOP_DEVICE_NAME", repr(name), ANYOP_DEVICE_NAME=name)
check("nochip", ANYOP_DEVICE_PLATFORM="nochip")
check("a CUDA device", ANYOP_DEVICE_PLATFORM="cuda", CUDA_VISIBLE_DEVICES="")

if (child := os.fork()) == 0:  # where another backend has the place
    torch.utils.rename_privateuse1_backend("other")
    said = [attempt(), attempt()]
    fine = all("'other'" in text and "anyop.torch.overlay" in text for text in said)
    os._exit(0 if fine and not hasattr(torch, "anyop") else 1)
assert os.waitpid(child, 0)[1] == 0

import anyop.torch.device  # and now it works
os.environ["ANYOP_DEVICE_NAME"] = "later"  # too late: it has its name
assert torch.ones(2, device="anyop").sum().item() == 2 and anyop.torch.device.name() == "anyop"
print("all")
"""


def run(text: str, *arguments: str, **variables: str) -> str:
    """Output of a Python of its own."""
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **variables}
    done = prepared.run(
        "torch", [sys.executable, "-c", text, *arguments],
        env=environment, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout


def test_every_reason_not_to_start_is_told_and_leaves_torch_alone(platform, tmp_path):
    assert run(REFUSALS, str(tmp_path / "empty")).startswith("all")


def test_another_name(platform):
    run("""
import torch, anyop.torch.device as device
x = torch.arange(4.0, device="mychip:0")
assert str(x.device) == "mychip:0" and x.is_mychip and device.name() == "mychip"
assert torch.mychip.current_device() == 0 and x.cpu().mychip().sum().item() == 6
assert torch.mychip.current_stream().device == torch.device("mychip:0")
with torch.mychip.amp.autocast(dtype=torch.bfloat16):
    assert torch.mm(x[None], x[:, None]).dtype == torch.bfloat16
try:
    torch.device("anyop")
except RuntimeError:
    print("unknown")
""", ANYOP_DEVICE_NAME="mychip")  # fmt: skip


def test_threads_that_start_it_at_once_and_a_child_of_a_process_that_used_it(platform):
    """DataLoader's workers seed torch: that must work in a child, and the device says that it does not."""
    run("""
import os, threading, torch
found, gate = [], threading.Barrier(8)
def work(n):
    gate.wait()
    import anyop.torch.device
    x = torch.full((8, 8), float(n), device="anyop")
    found.append((n, x.device.type, (x @ x).sum().item()))
threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert sorted(found) == [(n, "anyop", 512.0 * n * n) for n in range(8)], found

if (child := os.fork()) == 0:
    torch.manual_seed(1)
    fine = torch.anyop._is_in_bad_fork() and not torch.anyop.is_available()
    fine = fine and not torch.anyop.is_initialized() and torch.ones(2).sum().item() == 2
    os._exit(0 if fine else 1)
assert os.waitpid(child, 0)[1] == 0
assert torch.anyop.is_available() and not torch.anyop._is_in_bad_fork()
""")


WRITES = """
import sys
sys.dont_write_bytecode, sys.pycache_prefix = False, sys.argv[1]
"""


def test_what_it_costs(platform, report, tmp_path):
    """Processor time is told, as it is the machine's; calls of functions, which are the program's, are bounded.

    The first run warms the files' cache and Python's. CUDA starts at the first tensor, not at the import.
    """
    runs = [
        [float(word) for word in run(WRITES + """
import time, torch
clock = [time.process_time()]
def tick(): clock.append(time.process_time())
from anyop.native import device, device_file
tick()
library = device.find()
tick()
device_file.open_library(library, device.LIBANYOP)
tick()
count = torch.ops.anyop_device.start("")
tick()
import anyop.torch.device
tick()
torch.ones(2, device="anyop").sum().item()
tick()
print(count, *(b - a for a, b in zip(clock, clock[1:])))
""", str(tmp_path)).split()]
        for _ in range(4)
    ]  # fmt: skip
    count, *parts, first = min(runs, key=lambda found: sum(found[1:-1]))
    names = ("anyop", "finding", "opening", "registration", "the rest")
    shown = ", ".join(f"{name} {part * 1e3:.0f}" for name, part in zip(names, parts))
    report.append(f"registration of {count:.0f} overloads: {parts[3] * 1e3:.0f} ms")
    report.append(
        f"import anyop.torch.device, library in the cache: {sum(parts) * 1e3:.0f} ms beyond torch ({shown})"
    )
    report.append(f"the first tensor on {platform}: {first * 1e3:.0f} ms")
    calls = int(run(WRITES + """
import torch
seen = [0]
def count(frame, event, what): seen[0] += "return" not in event
sys.setprofile(count)
import anyop.torch.device
sys.setprofile(None)
print(seen[0])
""", str(tmp_path)))  # fmt: skip
    report.append(f"import anyop.torch.device calls {calls:,} functions beyond torch")
    assert (
        count > 1000 and 1000 < calls < 500_000
    )  # 227,449 with torch 2.13, 319,691 with 2.11 on CUDA
