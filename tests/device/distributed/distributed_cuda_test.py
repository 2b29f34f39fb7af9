# SPDX-License-Identifier: Apache-2.0
"""torch.distributed on two GPUs over NCCL: the same checks as over gloo; the results of CUDA tensors, bitwise."""

from __future__ import annotations

import pytest
from distributed_launch import judge, launch

pytestmark = pytest.mark.cuda


@pytest.fixture(scope="module")
def reports(loaded, tmp_path_factory):
    import torch

    if not torch.distributed.is_available() or not torch.distributed.is_nccl_available():
        pytest.skip("this torch has no NCCL")
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs 2 GPUs, found {torch.cuda.device_count()}")
    return launch(loaded, "nccl", tmp_path_factory.mktemp("nccl"))


@pytest.mark.parametrize("module", ["collectives", "models", "rules"])
def test_two_gpus(platform, module, request):
    """Every check of distributed_collectives.py, distributed_models.py, distributed_rules.py."""
    judge(request.getfixturevalue("reports"), module)
