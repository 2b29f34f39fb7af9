# SPDX-License-Identifier: Apache-2.0
"""anyop.torch.overlay in a process without the device, on torch's own device: native, a registered function, training.

On platform cuda that is CUDA, whose backward runs there as ever.
"""

from __future__ import annotations

import os
import sys

import prepared
import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.anyplatform

PROGRAM = """
import sys, warnings
warnings.simplefilter("error", RuntimeWarning)
import torch, anyop, anyop.torch
from anyop.torch.overload_backends import register
from anyop.torch.overlaying import calls, overlaid
from torch.nn import functional as F
device = sys.argv[1]
torch.manual_seed(0)
x, w = torch.randn(6, 16, device=device), torch.randn(16, 16, device=device)

def dump(*names):
    shows = torch._C._dispatch_dump, torch._C._dispatch_dump_table
    return [show(f"aten::{name}") for name in names for show in shows]

def train():
    v = w.clone().requires_grad_()
    optimizer, losses = torch.optim.AdamW([v], lr=0.1), []
    for _ in range(3):
        loss = F.silu(x @ v + x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, v.detach()]

names = "add.Tensor", "silu", "mm", "silu_backward"
before, plain, right, double = dump(*names), train(), anyop.add(x, x), F.silu(x.double())
with anyop.torch.overlay(["add.Tensor", "silu", "mm", "silu_backward"], device):  # routed nowhere
    print("unrouted", all(torch.equal(a, b) for a, b in zip(train(), plain)))
with anyop.torch.overlay("add.Tensor", device, route="native"):
    torch.ops.anyop_device.count_calls(True)
    found = x + x
    print("native", torch.equal(found, right), found.device.type == device, calls("add.Tensor", device)["native"])
    torch.testing.assert_close(train(), plain)
    print("trained", calls("add.Tensor", device)["native"] >= 4)

seen = []
@register("silu", backend="mine")
def mine(self):
    seen.append((self.device.type, self.dtype))
    if self.dtype != torch.float32:
        raise NotImplementedError("floats alone")
    return self * torch.sigmoid(self)

with anyop.torch.overlay("silu", device, route="mine, aten"):
    torch.testing.assert_close(F.silu(x), x * torch.sigmoid(x))
    print("function", seen == [(device, torch.float32)], torch.equal(F.silu(x.double()), double))
    if device == "cuda":
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(100_000_000)
            late = torch.full_like(x, 2.0)
            found = F.silu(late)
        side.synchronize()
        torch.testing.assert_close(found, late * torch.sigmoid(late))
print("off", overlaid(device) == {} and dump(*names) == before)
print("the same", all(torch.equal(a, b) for a, b in zip(train(), plain)), torch._C._get_privateuse1_backend_name())
"""


def test_on_torchs_own_device(inner):
    done = prepared.run(
        "torch",
        [sys.executable, "-c", PROGRAM, inner],
        timeout=240,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.splitlines() == [
        "unrouted True",
        "native True True 1",
        "trained True",
        "function True True",
        "off True",
        "the same True privateuseone",
    ]
