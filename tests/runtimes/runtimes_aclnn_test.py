# SPDX-License-Identifier: Apache-2.0
"""Operators of Ascend's libopapi on a false one: standard tests, what it lacks or refuses, errors, leaks."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from false_runtimes import OPERATORS, make, run

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")


@pytest.fixture(scope="module")
def ascend(tmp_path_factory):
    return make("ascend", tmp_path_factory.mktemp("ascend"))


def test_operators(ascend):
    pytest.importorskip("torch", reason="torch is not installed")
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/runtimes/operators.py")
    code, text = run(ascend.environment | {"ANYOP_DEVICE_PLATFORM": "ascend"}, *words)
    assert code == 0 and "[100%]" in text, text[-4000:]


# Heads that were split from (B, S, H * D), in groups, beside torch's own attention in float64. Results are below 8,
# where half types add half a unit in the last place: 2^-9 and 2^-6.
ATTENTION = """
import anyop, torch
import anyop.torch.device
torch.manual_seed(0)
def heads(n, count, size, dtype):
    return torch.randn(2, n, count, size).to(dtype)
def attend(S, T, H, G, D, E, dtype=torch.float32, **more):
    tensors = heads(S, H, D, dtype), heads(T, G, D, dtype), heads(T, G, E, dtype)
    there = [tensor.to("anyop").transpose(1, 2) for tensor in tensors]
    out = anyop.attention(*there, **more).cpu().double()
    exact = [tensor.double().transpose(1, 2) for tensor in tensors]
    return (out - torch.nn.functional.scaled_dot_product_attention(*exact, enable_gqa=True, **more)).abs().max()
for dtype, tolerance in ((torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 1.6e-2)):
    for S, T, H, G, D, E in ((1, 1, 1, 1, 1, 1), (5, 33, 6, 3, 16, 16), (17, 3, 4, 1, 65, 7)):
        errors = [attend(S, T, H, G, D, E, dtype, **more) for more in ({}, {"scale": 0.3})]
        print(*(bool(error < tolerance) for error in errors))
for more in ({"E": 17}, {"E": 16, "is_causal": True}):
    more["causal"] = more.pop("is_causal", False)
    try:
        attend(5, 33, 6, 3, 16, **more)
    except NotImplementedError as error:
        print(error)
"""


def test_attention(ascend):
    pytest.importorskip("torch", reason="torch is not installed")
    code, text = run(ascend.environment | {"ANYOP_DEVICE_PLATFORM": "ascend"}, "-c", ATTENTION)
    *right, wide, causal = text.splitlines()
    assert code == 0 and right == 9 * ["True True"], text
    assert "ascend takes E <= D" in wide and "ascend" in causal, text


# Two rows of four from NumPy, in memory of the device, and what comes back.
CALL = """
import ctypes, os, sys
import anyop
import numpy as np
from anyop.conformance.device_array import back, there
from anyop.conformance.device_table import Device, use
chip = Device("ascend")
use(chip)
x = np.array([[-1, 2, -3, 4], [5, -6, 7, -8]], np.float32)
for name in sys.argv[1:]:
    out = there(chip, np.full_like(x, 9))
    try:
        getattr(anyop, name)(there(chip, x), out=out)
        print(name, np.allclose(back(chip, out), getattr(anyop, name)(x), atol=1e-6))
    except Exception as error:
        print(type(error).__name__, error)
"""
LIVE = f"""
library = ctypes.CDLL(os.path.join(os.environ["LD_LIBRARY_PATH"].split(os.pathsep)[0], "{OPERATORS}"))
print("live", library.FalseAclnnLive())
"""


def test_from_numpy_and_nothing_is_left(ascend):
    code, text = run(ascend.environment, "-c", CALL + LIVE, "relu", "softmax", "silu", "relu")
    assert (code, text) == (0, "relu True\nsoftmax True\nsilu True\nrelu True\nlive 0\n")


@pytest.mark.parametrize(
    ("lacks", "message"),
    [
        ("aclnnRelu", "ascend needs aclnnRelu, which the installed CANN's libopapi lacks"),
        ("aclnnReluGetWorkspaceSize", "ascend needs aclnnReluGetWorkspaceSize, which"),
        ("aclCreateTensor", "ascend needs aclCreateTensor, which"),
        (OPERATORS, "of libopapi.so, which is not beside libascendcl.so: install CANN's package"),
    ],
)
def test_what_is_lacking_is_named(lacks, message, tmp_path):
    lacking = make("ascend", tmp_path, lacks=[lacks])
    code, text = run(lacking.environment, "-c", CALL, "relu", "relu", "silu")
    first, again, other = text.splitlines()
    assert code == 0 and first == again and first.startswith("NotImplementedError relu: "), text
    assert message in first, text
    assert (other == "silu True") == lacks.startswith("aclnnRelu"), text


def test_a_library_that_is_cut_off(tmp_path):
    made = make("ascend", tmp_path)
    whole = made.library.parent / OPERATORS
    whole.write_bytes(whole.read_bytes()[:4096])
    code, text = run(made.environment, "-c", CALL, "relu")
    assert code == 0 and text.startswith("NotImplementedError relu: ") and OPERATORS in text, text


def test_an_error_of_the_call_has_acls_own_text(ascend):
    broken = ascend.environment | {"ANYOP_FALSE": "fail=aclrtLaunchHostFunc:1"}
    code, text = run(broken, "-c", CALL, "relu", "relu")
    assert (code, text) == (
        0,
        'DeviceError relu: aclnnRelu says "a false error" (507899)\nrelu True\n',
    )


FALLBACK = """
import torch
import anyop.torch.device
x = torch.ones(4, 8).to(torch.bfloat16).to("anyop")
for _ in range(2):
    print(torch.relu(x).cpu().float().sum().item())
"""


@pytest.mark.parametrize(
    ("lacks", "broken", "reason"),
    [
        (["aclnnRelu"], {}, "ascend needs aclnnRelu, which the installed CANN's libopapi lacks"),
        ([], {"ANYOP_FALSE": "bfloat16=0"}, "ascend aclnnReluGetWorkspaceSize says"),
    ],
)
def test_the_next_of_the_route_runs_and_that_is_said_once(lacks, broken, reason, tmp_path):
    """A function that the installed CANN lacks; a dtype that this chip lacks."""
    pytest.importorskip("torch", reason="torch is not installed")
    routes = tmp_path / "routes.txt"
    routes.write_text("aten.relu = native, cpu_fallback\n")
    environment = make("ascend", tmp_path, lacks=lacks).environment | broken
    environment |= {"ANYOP_DEVICE_PLATFORM": "ascend", "ANYOP_ROUTES": str(routes)}
    code, text = run(environment, "-c", FALLBACK)
    assert code == 0 and text.count("32.0") == 2, text
    assert text.count("anyop: aten.relu on anyop:0: relu: has no kernel for anyop") == 1, text
    assert reason in text and text.count("cpu_fallback runs instead") == 1, text
