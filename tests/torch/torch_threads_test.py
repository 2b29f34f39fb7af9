# SPDX-License-Identifier: Apache-2.0
"""Many threads, worker processes, and threads that outlive the interpreter, calling anyop on torch tensors."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import anyop
import anyop.torch
import prepared
import pytest
import torch
from drawn import FULL

CALLS = 100_000
THREADS = 8


def test_eight_threads():
    """Each its own tensors, in turn out=, allocating, by torch.ops and with a gradient: every result is right."""
    wrong, done = [], []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(3, 16, generator=generator)
        w = torch.randn(16, generator=generator)
        leaf = x.clone().requires_grad_()
        expected = anyop.rms_norm(x, w)
        out, by_ops = torch.empty_like(x), torch.ops.anyop.rms_norm.default
        grad = torch.autograd.grad(anyop.rms_norm(leaf, w), leaf, x)[0]
        for i in range(CALLS):
            way = i % 64
            if way == 0:
                found = torch.autograd.grad(anyop.rms_norm(leaf, w), leaf, x)[0]
                right = torch.equal(found, grad)
            elif way < 4:
                right = torch.equal(by_ops(x, w), expected)
            elif way < 16:
                right = torch.equal(anyop.rms_norm(x, w), expected)
            else:
                anyop.rms_norm(x, w, out=out)
                right = way % 8 or torch.equal(out, expected)
            if not right:
                wrong.append((seed, i))
        done.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and sorted(done) == list(range(THREADS))


class Rows(torch.utils.data.Dataset):
    """Each item is computed by the worker, by anyop.

    Not by torch.autograd: its engine's threads do not survive a fork, and it says so.
    """

    def __len__(self):
        return 64

    def __getitem__(self, i):
        x = torch.arange(i, i + 2000, dtype=torch.float32).repeat(300, 1)
        grad = anyop.rms_norm_backward(torch.ones_like(x), x, torch.ones(2000), grad_x=False)[1]
        return anyop.softmax(x)[0, :3], grad[:3]


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_data_loader_workers(how):
    """After kernels ran on the pool of this process, which a forked child does not have."""
    if how == "fork" and "libtsan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("ThreadSanitizer refuses threads in a forked child")
    expected = [Rows()[i] for i in range(64)]
    loader = torch.utils.data.DataLoader(
        Rows(), batch_size=8, num_workers=2, multiprocessing_context=how, timeout=120
    )
    found = list(loader)
    for at, batch in enumerate(zip(*found)):
        wanted = torch.stack([row[at] for row in expected])
        torch.testing.assert_close(torch.cat(batch), wanted, rtol=0, atol=0)


TEAM = """
import os
import anyop, torch

def workers():
    names = [open(f"/proc/self/task/{thread}/comm").read() for thread in os.listdir("/proc/self/task")]
    return sum(name.startswith("anyop-") for name in names)

x, w = torch.randn(2000, 2000), torch.randn(2000)
anyop.set_num_threads(1)
expected = anyop.rms_norm(x, w)
anyop.set_num_threads(2)
for threads in (2, 1):
    torch.set_num_threads(threads)
    assert torch.equal(anyop.rms_norm(torch.relu(x) * 0 + x, w), expected)
    print(workers())
"""


@pytest.mark.parametrize(("policy", "workers"), [("active", "0 1"), ("passive", "1 1")])
def test_torchs_own_threads_do_the_work(policy, workers):
    """Where they wait busily for it and are as many as were asked for; else the pool has threads of its own."""
    command = [sys.executable, "-c", TEAM]
    done = prepared.run("torch", command, env={**os.environ, "OMP_WAIT_POLICY": policy})
    assert done.stdout.split() == workers.split(), done.stderr


DAEMONS = """
import threading, time
import torch
{imports}
x, w = torch.randn(600, 600), torch.randn(600)
small = torch.randn(2, 600)
def work():
    own = x.clone()
    while True:
        {call}
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)
"""


def exit_codes(call, imports, runs):
    """The exit codes of several interpreters that end under calling threads."""
    program = DAEMONS.format(call=call, imports=imports)

    def run(_):
        command = [sys.executable, "-c", program]
        return prepared.run("torch", command, timeout=240)

    with ThreadPoolExecutor(2) as two:
        return [done.returncode for done in two.map(run, range(runs))]


def test_daemon_threads_at_exit():
    """Code 0, each of 20 times, in short of 5: long and short kernels, given and new results, tensors of torch's alone.

    Before Python 3.14 torch without anyop aborts there.
    """
    call = "anyop.rms_norm(own, w, out=own); anyop.rms_norm(small, w); torch.empty(2)"
    runs = 20 if FULL else 5
    assert exit_codes(call, "import anyop, anyop.torch", runs) == [0] * runs
