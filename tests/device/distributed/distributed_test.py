# SPDX-License-Identifier: Apache-2.0
"""torch.distributed on two processes over gloo: what CPU tensors give, bitwise; collectives, DDP, FSDP2, DTensor."""

from __future__ import annotations

import os
import sys

import prepared
import pytest
from distributed_launch import judge, launch

pytestmark = pytest.mark.host


@pytest.fixture(scope="module")
def reports(loaded, tmp_path_factory):
    import torch

    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    return launch(loaded, "gloo", tmp_path_factory.mktemp("gloo"))


@pytest.mark.drawn(2, together="two processes: torch.distributed")
@pytest.mark.parametrize("module", ["collectives", "models", "rules"])
def test_two_processes(platform, module, request):
    """Every check of distributed_collectives.py, distributed_models.py, distributed_rules.py."""
    judge(request.getfixturevalue("reports"), module)


class NoStream:
    """What the writer below asks of one."""

    device_type = "cpu"

    def wait_stream(self, other):
        pass

    def synchronize(self):
        pass


@pytest.mark.parametrize("stream", [None, NoStream()], ids=["anyop", "cpu"])
def test_checkpoints_take_the_device_s_tensors(platform, stream):
    """Their writer takes tensors of one kind of device to the CPU, of CUDA where that is; here of the CPU, or ours."""
    import torch
    from torch.distributed.checkpoint import filesystem

    x = torch.arange(5.0, device="anyop", requires_grad=True)
    loader = filesystem._OverlappingCpuLoader(lambda item: item, stream)
    for part in (x, x[1:4:2]):
        loader.add(part.nbytes, part)
    found = [tensor for tensor, _ in loader.values()]
    assert [tensor.tolist() for tensor in found] == [[1, 3], [0, 1, 2, 3, 4]]
    assert all(tensor.is_cpu and not tensor.requires_grad for tensor in found)


def test_groups_made_before_the_device(platform, tmp_path):
    """A process group that is older than the device carries its tensors, too."""
    text = f"""
import torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="file://{tmp_path}/meeting", rank=0, world_size=1)
import anyop.torch.device
x = torch.arange(3.0, device="anyop")
dist.all_reduce(x)
with dist._coalescing_manager():
    dist.all_reduce(x)
print(x.tolist(), dist.get_default_backend_for_device("anyop"))
dist.all_reduce(torch.ones(1 << 22, device="anyop"), async_op=True)  # still in flight at the end
"""
    environment = {
        **os.environ,
        "ANYOP_DEVICE_PLATFORM": platform,
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    }
    process = prepared.run(
        "torch",
        [sys.executable, "-c", text],
        timeout=120,
        env=environment,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    assert process.stdout.endswith("[0.0, 1.0, 2.0] gloo\n")  # torch 2.9's gloo prints, too
