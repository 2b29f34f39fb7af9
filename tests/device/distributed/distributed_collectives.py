# SPDX-License-Identifier: Apache-2.0
"""What process groups are asked to do, each on tensors of any device: the results are compared between devices.

A check gets its place: device, rank, number of processes, the group's backend. It returns tensors.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional


class Place(NamedTuple):
    device: str
    rank: int
    size: int
    backend: str

    def tensor(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Other numbers in each process."""
        count = torch.Size(shape).numel()
        return (
            (torch.arange(count).reshape(shape) % 7 + 2 * self.rank + 1).to(dtype).to(self.device)
        )

    def empty(self, *shape: int) -> torch.Tensor:
        return torch.full(shape, -1.0, device=self.device)


def all_reduce(p: Place) -> Any:
    found = []
    ops = (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX)
    for op in ops:
        for dtype in (torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.uint8):
            found.append(p.tensor(3, 5, dtype=dtype))
            dist.all_reduce(found[-1], op)
    found.append(p.tensor(4, dtype=torch.complex64))
    dist.all_reduce(found[-1])
    return found


def views_and_empty(p: Place) -> Any:
    base, nothing = p.tensor(6, 4), p.empty(0)
    dist.all_reduce(base[2:4])
    dist.all_reduce(nothing)
    return base, nothing


def no_grad_and_inference(p: Place) -> Any:
    weight = p.tensor(3).requires_grad_()
    with torch.no_grad():
        dist.all_reduce(weight)
    with torch.inference_mode():
        inferred = p.tensor(3)
        dist.all_reduce(inferred)
        return weight.detach().clone(), inferred.clone()


def broadcast_and_reduce(p: Place) -> Any:
    sent, reduced = p.tensor(3, 3), p.tensor(4)
    dist.broadcast(sent, src=1)
    dist.reduce(reduced, dst=0)
    return sent, reduced if p.rank == 0 else None


def all_gather(p: Place) -> Any:
    parts = [p.empty(2, 3) for _ in range(p.size)]
    dist.all_gather(parts, p.tensor(2, 3))
    whole = p.empty(p.size * 2, 3)
    dist.all_gather_into_tensor(whole, p.tensor(2, 3))
    return parts, whole


def all_gather_coalesced(p: Place) -> Any:
    if p.backend == "nccl":
        return None  # which cannot
    lists = [[p.empty(2) for _ in range(2)] for _ in range(p.size)]
    dist.all_gather_coalesced(lists, [p.tensor(2), p.tensor(2)])
    return lists


def reduce_scatter(p: Place) -> Any:
    part, whole = p.empty(3), p.empty(2)
    dist.reduce_scatter(part, [p.tensor(3) * (i + 1) for i in range(p.size)])
    dist.reduce_scatter_tensor(whole, p.tensor(2 * p.size))
    return part, whole


def all_to_all(p: Place) -> Any:
    whole = p.empty(2 * p.size)
    dist.all_to_all_single(whole, p.tensor(2 * p.size))
    # Of 4 rows, the first process gets 1 of its own and 2 of the other's; the rest is the second's.
    sizes = [[1, 3], [2, 2]]
    uneven = p.empty(sizes[0][p.rank] + sizes[1][p.rank])
    dist.all_to_all_single(uneven, p.tensor(4), [s[p.rank] for s in sizes], sizes[p.rank])
    return whole, uneven


def all_to_all_lists(p: Place) -> Any:
    parts = [p.empty(2) for _ in range(p.size)]
    try:
        dist.all_to_all(parts, [p.tensor(2) * (i + 1) for i in range(p.size)])
    except RuntimeError as error:  # gloo of older torches; then it cannot on either device
        if "does not support alltoall" not in str(error):
            raise
        return "cannot"
    return parts


def gather_and_scatter(p: Place) -> Any:
    parts = [p.empty(3) for _ in range(p.size)] if p.rank == 0 else None
    dist.gather(p.tensor(3), parts, dst=0)
    given = [p.tensor(2) * (i + 1) for i in range(p.size)] if p.rank == 1 else None
    got = p.empty(2)
    dist.scatter(got, given, src=1)
    return parts, got


def send_and_receive(p: Place) -> Any:
    other, got = 1 - p.rank, p.empty(4)
    if p.rank == 0:
        dist.send(p.tensor(4), other)
        dist.recv(got, other)
    else:
        dist.recv(got, other)
        dist.send(p.tensor(4) * 3, other)
    return got


def send_and_receive_later(p: Place) -> Any:
    got, again = p.empty(4), p.empty(4)
    ops = [(dist.isend, p.tensor(4)), (dist.irecv, got)]
    ops = [dist.P2POp(op, tensor, 1 - p.rank) for op, tensor in ops]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    if p.rank == 0:
        dist.isend(p.tensor(4) * 5, 1).wait()
    else:
        dist.irecv(again, 0).wait()
    return got, again


def receive_from_any(p: Place) -> Any:
    if p.backend == "nccl":
        return None  # which cannot
    got = p.empty(2)
    if p.rank == 0:
        dist.send(p.tensor(2), 1)
    else:
        assert dist.recv(got) == 0
    return got


def barrier(p: Place) -> Any:
    dist.barrier()
    dist.barrier(async_op=True).wait()
    if p.backend == "nccl":
        dist.barrier(device_ids=[p.rank])
    return p.tensor(1)


def works(p: Place) -> Any:
    """async_op: the work's results and its future are tensors of the device, over the same bytes."""
    tensor, whole = p.tensor(5), p.empty(2 * p.size)
    work = dist.all_reduce(tensor, async_op=True)
    doubled = work.get_future().then(lambda future: future.value()[0] * 2)
    gathered = dist.all_gather_into_tensor(whole, p.tensor(2), async_op=True)
    assert work.wait() and gathered.wait()
    result = doubled.wait()
    value = work.get_future().value()[0]
    assert value.device == tensor.device and value.data_ptr() == tensor.data_ptr()
    if p.backend == "gloo":
        assert work.is_completed() and work.result()[0].data_ptr() == tensor.data_ptr()
    return tensor, result, whole, value


def forgotten(p: Place) -> Any:
    """Nobody but the work holds the tensors."""
    works = [dist.all_reduce(p.tensor(1000) * i, async_op=True) for i in range(8)]
    noise = [torch.full((1000,), 7.0, device=p.device) for _ in range(8)]
    for work in works:
        work.wait()
    return [work.get_future().value()[0] for work in works], noise


def coalescing(p: Place) -> Any:
    """Gloo has a function for many tensors at once, NCCL puts many functions together."""
    device = torch.device(p.device) if p.backend == "nccl" else None
    tensors = [p.tensor(3), p.tensor(2, 2)]
    with dist._coalescing_manager(device=device):
        for tensor in tensors:
            dist.all_reduce(tensor)
    wholes = [p.empty(p.size * 2), p.empty(p.size)]
    with dist._coalescing_manager(device=device, async_ops=True) as manager:
        for whole in wholes:
            dist.all_gather_into_tensor(whole, p.tensor(len(whole) // p.size))
    manager.wait()
    return tensors, wholes


def objects(p: Place) -> Any:
    mine = {"rank": p.rank, "tensor": p.tensor(2)}
    everybody, listed = [None] * p.size, [mine if p.rank == 0 else None]
    dist.all_gather_object(everybody, mine)
    dist.broadcast_object_list(listed, src=0, device=torch.device(p.device, p.rank))
    scattered = [None]
    dist.scatter_object_list(scattered, [p.tensor(1), "text"] if p.rank == 0 else None, src=0)
    gathered = [None] * p.size if p.rank == 0 else None
    dist.gather_object(mine, gathered, dst=0)
    assert [each["rank"] for each in everybody] == list(range(p.size))
    return everybody, listed, scattered, gathered


def functions(p: Place) -> Any:
    """Functional collectives: what DTensor and torch.compile use."""
    group, tensor = dist.group.WORLD, p.tensor(4, 2)
    return (
        functional.all_reduce(tensor, "sum", group),
        functional.broadcast(tensor, 1, group),
        functional.all_gather_tensor(tensor, 1, group),
        functional.reduce_scatter_tensor(tensor, "sum", 0, group),
        functional.all_to_all_single(tensor, None, None, group),
        functional.all_reduce_coalesced([tensor, tensor * 2], "max", group),
        functional.all_gather_into_tensor_coalesced([tensor, tensor * 2], group),
        functional.reduce_scatter_tensor_coalesced([tensor, tensor * 2], "sum", [0, 0], group),
    )


def differentiable(p: Place) -> Any:
    from torch.distributed.nn.functional import all_reduce

    group, found = dist.group.WORLD, []
    for call in (
        lambda x: functional.all_gather_tensor_autograd(x, 0, group),
        lambda x: functional.reduce_scatter_tensor_autograd(x, "sum", 0, group),
        lambda x: functional.all_to_all_single_autograd(x, None, None, group),
        lambda x: all_reduce(x.clone()),
    ):
        x = p.tensor(4, 2).requires_grad_()
        y = call(x)
        (y * y).sum().backward()
        found += [y.detach(), x.grad]
    return found


def subgroups(p: Place) -> Any:
    alone, both = dist.new_group([p.size - 1]), dist.new_group()
    tensor = p.tensor(3)
    if p.rank == p.size - 1:
        dist.all_reduce(tensor, group=alone)
    dist.all_reduce(tensor, group=both)
    return tensor


ALL = [
    all_reduce,
    views_and_empty,
    no_grad_and_inference,
    broadcast_and_reduce,
    all_gather,
    all_gather_coalesced,
    reduce_scatter,
    all_to_all,
    all_to_all_lists,
    gather_and_scatter,
    send_and_receive,
    send_and_receive_later,
    receive_from_any,
    barrier,
    works,
    forgotten,
    coalescing,
    objects,
    functions,
    differentiable,
    subgroups,
]
