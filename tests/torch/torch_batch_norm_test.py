# SPDX-License-Identifier: Apache-2.0
"""anyop.torch.nn.SyncBatchNorm: two gloo processes beside torch's batch norm of the joined batch; one alone."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import anyop.torch  # noqa: E402
from anyop.torch.nn import SyncBatchNorm  # noqa: E402

STEPS = 3


def made(options, dtype=torch.float64):
    """torch's layer with parameters that show, and batches of uneven parts."""
    torch.manual_seed(0)
    theirs = torch.nn.BatchNorm2d(16, dtype=dtype, **options)
    if theirs.affine:
        with torch.no_grad():
            theirs.weight.uniform_(-1, 2)
            theirs.bias.uniform_(-1, 1)
    return theirs, [torch.randn(5, 16, 3, 5, dtype=dtype) + step for step in range(STEPS)]


def trained(norm, batches, more, relu, form):
    """Results and gradients of all steps, then the running statistics."""
    found = []
    for x, z in zip(batches, more, strict=True):
        x, z = (v.clone(memory_format=form).requires_grad_() for v in (x, z))
        if isinstance(norm, SyncBatchNorm):
            out = norm(x, z)
        else:
            out = (norm(x) + z).relu() if relu else norm(x) + z
        norm.zero_grad()
        (out * torch.arange(1.0, 6.0, dtype=x.dtype)).sum().backward()
        found += [out.detach(), x.grad, z.grad, *(p.grad.clone() for p in norm.parameters())]
    return found + [b.clone() for b in norm.buffers()]


CASES = [
    ({}, True, torch.channels_last),
    ({"momentum": None}, False, torch.contiguous_format),
    ({"affine": False, "momentum": 0.3}, True, torch.contiguous_format),
    ({"track_running_stats": False}, False, torch.channels_last),
]


def process(rank, file, results):
    """One of two: has 2 or 3 images of each batch; the last case's first process has none."""
    torch.distributed.init_process_group("gloo", f"file://{file}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    anyop.set_num_threads(1)
    found = []
    for number, (options, relu, form) in enumerate(CASES):
        theirs, batches = made(options)
        norm = SyncBatchNorm.convert_sync_batchnorm(theirs)
        norm.fuse_relu = relu
        cut = 0 if number == 3 else 2
        own = slice(cut) if rank == 0 else slice(cut, None)
        found.append(
            trained(norm, [b[own] for b in batches], [b[own] / 2 for b in batches], relu, form)
        )
        found[-1].append(norm.eval()(batches[0]).detach())
    torch.save(found, f"{results}{rank}")
    torch.distributed.destroy_process_group()


def test_two_processes_are_one(tmp_path):
    given = str(tmp_path / "store"), str(tmp_path / "found")
    torch.multiprocessing.spawn(process, given, nprocs=2)
    parts = [torch.load(f"{given[1]}{rank}") for rank in range(2)]
    for number, (options, relu, form) in enumerate(CASES):
        theirs, batches = made(options)
        whole = trained(theirs, batches, [b / 2 for b in batches], relu, form)
        of_eval = theirs.eval()(batches[0]).detach()
        whole.append(of_eval.relu() if relu else of_eval)
        of_step = 3 + 2 * theirs.affine
        for place, (expected, first, second) in enumerate(
            zip(whole, *(part[number] for part in parts), strict=True)
        ):
            if place >= STEPS * of_step:  # running statistics and what follows
                torch.testing.assert_close(first, expected)
                torch.testing.assert_close(second, expected)
            elif place % of_step < 3:
                torch.testing.assert_close(torch.cat([first, second]), expected)
            else:  # of parameters: DistributedDataParallel adds them
                torch.testing.assert_close(first + second, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(6, 7), (4, 5, 3), (2, 8, 3, 4, 5)])
def test_any_rank_as_torch(shape, dtype):
    """Alone; parameters and running statistics of float32, or of the input's dtype."""
    kinds = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 5: torch.nn.BatchNorm3d}
    for own in (torch.float32, dtype):
        theirs = kinds[len(shape)](shape[1], dtype=own)
        mine = SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(theirs))
        x = torch.randn(shape, dtype=dtype)
        for training in (True, False):
            a, b = (x.clone().requires_grad_() for _ in range(2))
            expected, found = theirs.train(training)(a), mine.train(training)(b)
            expected.sum().backward()
            found.sum().backward()
            # torch rounds the scale and the shift of bfloat16.
            limit = {"atol": 0.02, "rtol": 0.016} if dtype is torch.bfloat16 else {}
            torch.testing.assert_close(found, expected, **limit)
            torch.testing.assert_close(b.grad, a.grad, atol=0.05, rtol=0.05)
        torch.testing.assert_close(mine.state_dict(), theirs.state_dict())


@pytest.mark.parametrize("training", [True, False])
def test_gradients_of_both_modes(training):
    norm = SyncBatchNorm(3, fuse_relu=True, dtype=torch.float64).train(training)
    x, z = (torch.randn(4, 3, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    norm.running_mean.uniform_(-1, 1)

    def call(x, z, weight, bias):
        return torch.func.functional_call(norm, {"weight": weight, "bias": bias}, (x, z))

    given = x, z, *(p.detach().uniform_(1, 2).requires_grad_() for p in norm.parameters())
    assert torch.autograd.gradcheck(call, given)


def test_a_model_keeps_its_parameters():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 1), torch.nn.Sequential(torch.nn.BatchNorm2d(4))
    )
    before = model.state_dict(keep_vars=True)
    made = SyncBatchNorm.convert_sync_batchnorm(model.eval())
    after = made.state_dict(keep_vars=True)
    assert type(made[1][0]) is SyncBatchNorm and not made[1][0].training
    assert before.keys() == after.keys() and all(before[k] is after[k] for k in before)


def test_what_is_refused():
    norm = SyncBatchNorm(3)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        norm(torch.ones(1, 3))
    with pytest.raises(ValueError, match="at least 2D input"):
        norm(torch.ones(3))
    with pytest.raises(ValueError, match="batch_norm"):
        norm(torch.ones(4, 5))
    with pytest.raises(ValueError, match="residual"):
        norm(torch.ones(4, 3), torch.ones(4, 1))
