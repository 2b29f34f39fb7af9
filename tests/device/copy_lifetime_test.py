# SPDX-License-Identifier: Apache-2.0
"""Tensors that die while a copy of theirs is under way: nobody gets their memory too early, and nobody hangs."""

from __future__ import annotations

import pytest
from slow_stream import sleep

torch = pytest.importorskip("torch", reason="torch is not installed")
np = pytest.importorskip("numpy", reason="NumPy is not installed")
pytestmark = [pytest.mark.anyplatform, pytest.mark.usefixtures("platform")]

# The memory is Python's, and dies with the copy. A stream's thread that waited for Python to free it would hang
# with who waits for the stream and has Python's lock.
COPY = """
import numpy as np
from slow_stream import sleep
def late(size=1000):
    there, source = torch.zeros(size, device="anyop"), torch.from_numpy(np.ones(size, np.float32))
    sleep(60)
    there.copy_(source, non_blocking=True)
    return there
"""
WAITS = {
    "setitem": "x = late(); x[0] = 3.0; found = x.tolist()[:2] == [3, 1]",
    "item": "found = late()[5].item() == 1",
    "repr": "found = '1., 1.' in repr(late())",
    "contains": "found = 1.0 in late()",
    "stream": "x = late(); torch.anyop.current_stream().synchronize(); found = x.sum() == 1000",
    "event": "x = late(); torch.anyop.current_stream().record_event().synchronize(); found = x.sum() == 1000",
    "empty_cache": "x = late(); torch.anyop.empty_cache(); found = x.sum() == 1000",
    "large": "x = late(1 << 20); x[0] = 3.0; found = x.sum() == (1 << 20) + 2",
    "storage": "x = late(); x.untyped_storage(); y = torch.zeros(1000).pin_memory(); y.copy_(x, non_blocking=True)\n"
    "del x; z = late(); z[1] = 5.0; torch.anyop.synchronize(); found = y.sum() == 1000 and z[1] == 5",
}


def test_memory_of_pythons(program):
    text = "".join(f"{way}\nassert found, {name!r}\n" for name, way in WAITS.items())
    assert program(f"{COPY}{text}\nlast = late(); print('all')", seconds=60) == "all\n"


@pytest.mark.host
def test_blocks_that_die_on_other_streams():
    """Neither the block nor the pinned memory is recorded by hand: the copy does it."""
    side, under_way = torch.anyop.Stream(), 0
    for value in range(20):
        x = torch.full((5000,), float(value), device="anyop")
        source, back = torch.full((5000,), -1.0).pin_memory(), torch.zeros(5000).pin_memory()
        y = torch.empty(5000, device="anyop")
        side.wait_stream(torch.anyop.current_stream())
        with torch.anyop.stream(side):
            sleep(5)
            back.copy_(x, non_blocking=True)
            y.copy_(source, non_blocking=True)
            under_way += not torch.anyop.current_stream().query()  # unless the machine is busy
            del x, source
        others = [torch.full((5000,), 77.0, device="anyop") for _ in range(4)]
        pinned = [torch.full((5000,), 77.0).pin_memory() for _ in range(4)]
        side.synchronize()
        assert torch.all(back == value) and torch.all(y == -1) and len(others) == len(pinned)
    assert under_way > 0


def test_memory_stays_when_its_tensor_is_a_view_of_numpys():
    """Pinned memory under another owner is copied before the call returns."""
    pinned = torch.ones(3000).pin_memory()
    source, there = torch.from_numpy(pinned.numpy()), torch.zeros(3000, device="anyop")
    sleep(30)
    there.copy_(source, non_blocking=True)
    del source, pinned
    torch.full((3000,), 9.0).pin_memory()
    assert torch.all(there == 1)
