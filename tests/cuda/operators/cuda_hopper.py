# SPDX-License-Identifier: Apache-2.0
"""Each primitive of anyop/cuda/hopper.h in a program of its own, and examples/hopper_product, on a GPU."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import anyop
import pytest
from anyop import testing

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device that torch can use", allow_module_level=True)
if torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("the device is no Hopper: its capability is not 9.0", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "hopper"))
from cuda_operators import on_cuda  # noqa: E402  needs a device
from hopper_test import FOLDER, HOPPER, NVCC, PRIMITIVES, ROOT  # noqa: E402

if not NVCC:
    pytest.skip("there is no nvcc", allow_module_level=True)
NAMES = re.findall(r'^    \{"(\w+)",', PRIMITIVES.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    made = tmp_path_factory.mktemp("hopper") / "primitives"
    command = [NVCC, *HOPPER, f"-I{ROOT / 'include'}", PRIMITIVES, "-o", made]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert subprocess.run([made], capture_output=True, text=True).stdout.split() == NAMES
    return made


@pytest.mark.parametrize("name", NAMES)
def test_a_primitive(program, name):
    done = subprocess.run([program, name], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stdout + done.stderr


@pytest.fixture(scope="module")
def product():
    anyop.load(anyop.build(FOLDER, name="hopper"))
    return anyop.ops.hopper.product


def test_the_example(product):
    (subject,) = testing.find_subjects(FOLDER)
    (choice,) = testing.dtype_choices(subject.metadata)
    there = replace(subject, function=on_cuda(subject.function))
    taken = 0
    for case in testing.standard_cases(subject, choice):
        try:
            testing.check_case(there, case)
            taken += 1
        except testing.CheckError as error:  # K, or where x or weight begins
            assert "cuda_sm90 takes" in str(error), error
    assert taken > 15


def test_the_example_of_many_tiles(product):
    """Integers, so that sums are exact."""
    generator = torch.Generator("cuda").manual_seed(0)
    sizes = (1000, 2048), (520, 2048)
    x, weight = (
        torch.randint(-2, 3, size, generator=generator, device="cuda").bfloat16() for size in sizes
    )
    assert torch.equal(product(x, weight), (x.float() @ weight.float().t()).bfloat16())


def test_the_example_refuses_what_tma_cannot_read(product):
    x = torch.ones(4, 12, device="cuda", dtype=torch.bfloat16)
    with pytest.raises(NotImplementedError, match="K%8=0"):
        product(x, x)
