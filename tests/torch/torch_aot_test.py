# SPDX-License-Identifier: Apache-2.0
"""A package of AOTInductor, run in a fresh process for batch sizes that it was not compiled with."""

from __future__ import annotations

import subprocess
import sys

import anyop.torch
import pytest
import torch
import torch._inductor

RUN = """
import sys, torch, anyop.torch
run = torch._inductor.aoti_load_package(sys.argv[1])
for arguments, (values, indices) in torch.load(sys.argv[2]):
    found = run(*arguments)
    torch.testing.assert_close(found[0], values, atol=1e-5, rtol=1e-5)
    assert torch.equal(found[1], indices)
print("right")
"""


class Model(torch.nn.Module):
    def forward(self, x, scale, weight):
        y = anyop.linear(anyop.rms_norm(x, scale, eps=1e-5), weight) * 2
        values, indices = anyop.topk(y, 3, largest=False)
        return anyop.gelu(values, approximate="tanh"), indices


@pytest.mark.drawn(6, together="AOTInductor")
def test_package_of_aot_inductor(tmp_path):
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < (2, 13):
        pytest.skip(
            f"AOTInductor packages are tested from torch 2.13 on; this is {torch.__version__}"
        )
    generator = torch.Generator().manual_seed(6)
    scale, weight = (torch.randn(shape, generator=generator) for shape in ((16,), (24, 16)))
    model, calls = Model(), []
    for batch in (3, 5, 40):
        arguments = (torch.randn(batch, 16, generator=generator), scale, weight)
        calls.append((arguments, model(*arguments)))
    shapes = {"x": {0: torch.export.Dim("batch", min=2)}, "scale": None, "weight": None}
    program = torch.export.export(model, calls[0][0], dynamic_shapes=shapes)
    package = str(tmp_path / "model.pt2")
    path = torch._inductor.aoti_compile_and_package(program, package_path=package)
    torch.save(calls, tmp_path / "calls.pt")
    command = [sys.executable, "-c", RUN, path, str(tmp_path / "calls.pt")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert found.stdout == "right\n", found.stderr
