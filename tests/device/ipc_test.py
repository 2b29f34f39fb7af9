# SPDX-License-Identifier: Apache-2.0
"""Other processes: CPU tensors are shared as ever; a device tensor arrives whole or is refused."""

from __future__ import annotations

import pickle
from multiprocessing.reduction import ForkingPickler

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.anyplatform, pytest.mark.usefixtures("platform")]


def test_a_device_tensor_is_sent_whole_or_refused():
    x = torch.arange(4.0, device="anyop")
    try:
        found = pickle.loads(bytes(ForkingPickler.dumps(x)))
    except (RuntimeError, NotImplementedError) as error:
        assert "anyop" in str(error) or "CPU" in str(error)
        return
    assert found.device == x.device and torch.equal(found, x)


def test_cpu_tensors_are_shared_beside_the_device(program, tmp_path):
    """A child that is spawned writes into memory of the parent, which has used the device."""
    (tmp_path / "child_of_ipc.py").write_text(
        "def work(x, q):\n    x.add_(1)\n    q.put((x * 2).tolist())\n"
    )
    found = program(f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import torch.multiprocessing as mp
from child_of_ipc import work
if __name__ == "__main__":
    there = torch.ones(3, device="anyop") + 1
    context = mp.get_context("spawn")
    x, queue = torch.zeros(3).share_memory_(), context.SimpleQueue()
    process = context.Process(target=work, args=(x, queue))
    process.start()
    print(queue.get(), there.tolist())
    process.join()
    print(x.tolist(), process.exitcode)
""")
    assert "[2.0, 2.0, 2.0] [2.0, 2.0, 2.0]" in found and "[1.0, 1.0, 1.0] 0" in found


def test_share_memory_is_refused_or_harmless():
    x = torch.ones(3, device="anyop")
    try:
        x.share_memory_()
    except (RuntimeError, NotImplementedError) as error:
        assert str(error)
    assert x.is_anyop and x.tolist() == [1, 1, 1]
