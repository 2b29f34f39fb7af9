# SPDX-License-Identifier: Apache-2.0
"""A device that is loaded after the first backward of the process: torch's engine had counted its devices then."""

from __future__ import annotations

import os
import subprocess
import sys

import prepared
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.anyplatform

FIRST = """
import torch, threading

def gradient(device):
    x = torch.linspace(-1, 1, 64).view(8, 8).to(device)
    w = torch.linspace(2, -1, 64).view(8, 8).to(device).requires_grad_()
    torch.nn.functional.gelu(x @ w).square().mean().backward()
    return w.grad.cpu()

expected = gradient("cpu")
"""


def run(text: str, platform: str) -> subprocess.CompletedProcess:
    """A process that has done a backward on the CPU; text goes on from there."""
    return prepared.run(
        "torch",
        [sys.executable, "-c", FIRST + text],
        timeout=300,
        env={**os.environ, "ANYOP_DEVICE_PLATFORM": platform},
    )


def test_backward_on_each_device(platform):
    done = run(
        """
import anyop.torch.device
for device in [*range(torch.anyop.device_count()), "cpu"]:
    place = device if device == "cpu" else f"anyop:{device}"
    torch.testing.assert_close(gradient(place), expected)
print("right")
""",
        platform,
    )
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


def test_threads_and_a_graph_over_two_devices(platform):
    """Threads that are in backward at once; the last device gets its own queue."""
    done = run(
        """
found, stop = [], threading.Event()

def train(device):
    while not stop.is_set():
        found.append(torch.allclose(gradient(device), expected, atol=1e-6))

import anyop.torch.device
last = torch.device("anyop", torch.anyop.device_count() - 1)
threads = [threading.Thread(target=train, args=(place,)) for place in ("cpu", last, last)]
[t.start() for t in threads]
for _ in range(50):
    x = torch.ones(4, device="anyop:0", requires_grad=True)
    (x.to(last) * 3).cpu().sum().backward()
    assert x.grad.tolist() == [3, 3, 3, 3] and x.grad.device.index == 0
stop.set()
[t.join() for t in threads]
assert all(found) and len(found) > 8, found
print("right")
""",
        platform,
    )
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr
