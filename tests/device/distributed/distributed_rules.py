# SPDX-License-Identifier: Apache-2.0
"""What must hold for the device alone. Each check asserts; it gets its place (distributed_collectives)."""

from __future__ import annotations

import os
import tempfile
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from distributed_collectives import Place
from slow_stream import sleep


def no_copy(p: Place) -> None:
    """Collectives in place take no memory of the device, and leave the tensor where it was."""
    tensor = torch.ones(1 << 20, device="anyop")
    place = tensor.data_ptr()
    torch.anyop.synchronize()
    torch.anyop.reset_peak_memory_stats()
    before = torch.anyop.max_memory_allocated()
    dist.all_reduce(tensor)
    dist.broadcast(tensor, src=0)
    assert torch.anyop.max_memory_allocated() == before
    assert tensor.data_ptr() == place and tensor.sum().item() == p.size * tensor.numel()


def late_producer(p: Place) -> None:
    """What the current stream has yet to write is waited for."""
    given = torch.full((1 << 16,), p.rank + 1.0).pin_memory()
    late = torch.zeros(1 << 16, device="anyop")
    torch.anyop.synchronize()
    with torch.anyop.stream(torch.anyop.Stream()):
        sleep(200)
        late.copy_(given, non_blocking=True)
        dist.all_reduce(late)
        assert late.eq(p.size * (p.size + 1) / 2).all().item()


def other_devices_refused(p: Place) -> None:
    raises("a collective takes tensors of one device", dist.all_gather,
           [torch.zeros(2) for _ in range(p.size)], torch.zeros(2, device="anyop"))  # fmt: skip


def groups(p: Place) -> None:
    """However init_process_group is asked, it makes a group for the device; or the error names the cure."""
    dist.destroy_process_group()
    inner = "cpu" if p.backend == "gloo" else "cuda"
    both, alone = f"{inner}:{p.backend},anyop:{p.backend}", f"anyop:{p.backend}"
    for number, backend in enumerate((None, p.backend, both, alone)):
        initialize(p, number, backend)
        found = p._replace(device="anyop").tensor(3)
        dist.all_reduce(found)
        expected = sum(p._replace(device="cpu", rank=rank).tensor(3) for rank in range(p.size))
        assert torch.equal(found.cpu(), expected), backend
        if p.backend == "gloo":
            everybody = [None] * p.size
            dist.all_gather_object(everybody, p.rank)
            assert everybody == list(range(p.size))
        dist.barrier()
        dist.destroy_process_group()
    initialize(p, 4, f"{inner}:{p.backend}")
    dist.all_reduce(
        p._replace(device=inner).tensor(3)
    )  # a process that leaves now closes no half-made group
    raises(
        f"has backends for {inner}, none for anyop",
        dist.all_reduce,
        p._replace(device="anyop").tensor(3),
    )
    dist.destroy_process_group()


def bound(p: Place) -> None:
    """device_id= binds the group to a device."""
    device = torch.device("anyop", p.rank)
    initialize(p, 5, None, device_id=device)
    found = torch.full((3,), p.rank + 1.0, device=device)
    dist.all_reduce(found)
    dist.barrier()
    assert found.tolist() == [p.size * (p.size + 1) / 2] * 3
    dist.destroy_process_group()


def initialize(p: Place, number: int, backend: str | None, **options: Any) -> None:
    """Makes the default group anew; processes of one torchrun meet in a file."""
    name = f"anyop-{os.environ['TORCHELASTIC_RUN_ID']}-{os.environ['MASTER_PORT']}-{number}"
    meeting = f"file://{tempfile.gettempdir()}/{name}"
    dist.init_process_group(
        backend,
        init_method=meeting,
        rank=p.rank,
        world_size=p.size,
        timeout=timedelta(seconds=180),
        **options,
    )


def raises(text: str, function: Any, *arguments: Any) -> None:
    try:
        function(*arguments)
    except RuntimeError as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no error: {text}")


ALL = [no_copy, late_producer, other_devices_refused, groups, bound]
