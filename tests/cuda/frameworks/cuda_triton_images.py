# SPDX-License-Identifier: Apache-2.0
"""Triton kernels in images on a GPU: values against float64, alignment, streams, graphs, attributes of launches, and
calls without Triton.

    python -m pytest tests/cuda/frameworks/cuda_triton_images.py -q
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import anyop
import pytest
from anyop import testing
from anyop.builder.build import build

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")
if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device that torch can use", allow_module_level=True)
CAPABILITY = torch.cuda.get_device_capability()
OPS = ("rms_norm", "layer_norm", "softmax", "silu_and_mul", "silu", "gelu", "add")


def calls(name):
    """Of the images, and of the function in Python."""
    found = {kernel.backend: kernel.calls or 0 for kernel in testing.kernel_calls(name)}
    return found.get("triton", 0), found.get("triton.python", 0)


def near(found, expected, limit):
    found, expected = found.double(), expected.double()
    return bool(((found - expected).abs() <= limit * (1 + expected.abs())).all())


def cases(x, w, b):
    """By operator: the call, and its value in float64."""
    X, W, B = x.double(), w.double(), b.double()
    F, D = torch.nn.functional, x.shape[-1]
    gate, value = X[..., : D // 2], X[..., D // 2 :]
    scale = (X.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    even = D % 2 == 0
    return {
        "rms_norm": (lambda: anyop.rms_norm(x, w), X * scale * W),
        "layer_norm": (lambda: anyop.layer_norm(x, w, b), F.layer_norm(X, (D,), W, B)),
        "layer_norm without": (
            lambda: anyop.layer_norm(x, None, b),
            F.layer_norm(X, (D,), None, B),
        ),
        "softmax": (lambda: anyop.softmax(x), X.softmax(-1)),
        "softmax of 0": (lambda: anyop.softmax(x, 0), X.softmax(0)),
        **({"silu_and_mul": (lambda: anyop.silu_and_mul(x), F.silu(gate) * value)} if even else {}),
        "silu": (lambda: anyop.silu(x), F.silu(X)),
        "gelu": (lambda: anyop.gelu(x), F.gelu(X)),
        "gelu by tanh": (lambda: anyop.gelu(x, approximate="tanh"), F.gelu(X, approximate="tanh")),
        "add": (lambda: anyop.add(x, x, alpha=3), 4 * X),
    }


@pytest.fixture(scope="module", autouse=True)
def watched():
    for name in OPS:
        testing.observe(name)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "rows, D", [(1, 1), (7, 64), (33, 1000), (64, 1024), (5, 1004), (3, 16386), (2, 40000)]
)
@pytest.mark.parametrize("offset", [0, 1])
def test_values_in_images(rows, D, dtype, offset):
    """At an odd address too."""
    kind = getattr(torch, dtype)
    limit = {"float32": 5e-6, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
    memory = torch.randn(rows * D + 2 * D + 8, device="cuda").to(kind)
    x = memory[offset : offset + rows * D].view(rows, D)
    w, b = memory[-D:], memory[-2 * D : -D]
    for name, (call, expected) in cases(x, w, b).items():
        op = name.partition(" ")[0]
        before = calls(op)
        with anyop.use("triton"):
            found = call()
        after = calls(op)
        assert near(found, expected, limit), name
        assert (after[0] - before[0], after[1] - before[1]) == (1, 0), name


def test_nothing_behind_a_result_is_written():
    """1004 is not divisible by 16."""
    x, w = torch.randn(4, 1004, device="cuda"), torch.ones(1004, device="cuda")
    guard = torch.full((4 * 1004 + 256,), 7.0, device="cuda")
    out = guard[: 4 * 1004].view(4, 1004)
    with anyop.use("triton"):
        anyop.rms_norm(x, w, out=out)
        anyop.softmax(x, out=out)
        anyop.silu(x, out=out)
    assert bool((guard[4 * 1004 :] == 7).all())


def test_strides_and_what_is_left_to_python():
    wide, w = torch.randn(6, 5, 256, device="cuda"), torch.ones(128, device="cuda")
    for x, in_images in ((wide[:, :, :128], 1), (wide[:, :3, :128], 0), (wide[:, 0, 64:192], 1)):
        before = calls("rms_norm")
        with anyop.use("triton"):
            found = anyop.rms_norm(x, w)
        after = calls("rms_norm")
        X = x.double()
        assert near(found, X * (X.square().mean(-1, keepdim=True) + 1e-6).rsqrt(), 5e-6)
        assert (after[0] - before[0], after[1] - before[1]) == (in_images, 1 - in_images)


def test_the_same_bits_as_tritons_own_launcher():
    x, w = (
        torch.randn(64, 1024, device="cuda", dtype=torch.bfloat16),
        torch.ones(1024, device="cuda", dtype=torch.bfloat16),
    )
    for call in (
        lambda: anyop.rms_norm(x, w),
        lambda: anyop.softmax(x),
        lambda: anyop.silu_and_mul(x),
    ):
        with anyop.use("triton"):
            image = call()
        with anyop.use("triton.python"):
            assert torch.equal(image, call())


def test_streams_and_graphs():
    """A side stream is not waited for; a graph can capture the first call of a kind."""
    source, w = torch.randn(256, 512, device="cuda"), torch.randn(512, device="cuda")
    with anyop.use("triton"):
        expected = anyop.rms_norm(source, w)
        late, side = torch.zeros_like(source), torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(200_000_000)
            late.copy_(source)
            found = anyop.rms_norm(late, w)
            assert not side.query(), "the call waited for the stream"
        side.synchronize()
        assert torch.equal(found, expected)
        x, out = torch.randn(256, 517, device="cuda"), torch.zeros(256, 517, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            anyop.softmax(x, out=out)
        x.normal_()
        graph.replay()
    assert near(out, x.double().softmax(-1), 1e-6)


KERNELS = """\
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

@triton.jit
def _twice(x, out, rows, D, BLOCK: tl.constexpr):
    d = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * D + d
    tl.store(out + at, 2 * tl.load(x + at, d < D), d < D)

@triton.jit
def _twice_late(x, out, rows, D, BLOCK: tl.constexpr):
    gdc_wait()
    _twice(x, out, rows, D, BLOCK)

@triton.jit
def _copy(x, out, rows, D, BLOCK: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [rows, D], [D, 1], [1, BLOCK])
    target = tl.make_tensor_descriptor(out, [rows, D], [D, 1], [1, BLOCK])
    target.store([tl.program_id(0), 0], 2 * source.load([tl.program_id(0), 0]))

@triton.autotune([triton.Config({"BLOCK": 64}, num_warps=2), triton.Config({"BLOCK": 256}, num_warps=8)], key=["D"])
@triton.jit
def _tuned(x, out, rows, D, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, at < rows * D), at < rows * D)
"""
SCHEMA = """\
schema = "attributes::{0}(Tensor x) -> Tensor"
shapes = {{ x = "* D", out = "* D" }}
[kernels]
triton = {{ file = "kernels_triton.py", function = "{1}" }}
[launch.triton]
kernel = "{1}"
grid = ["{2}"]
arguments = ["x", "out", "rows", "D"]
{3}
"""
BLOCK = 'constants = { BLOCK = "next_power_of_2(D)" }\n'
VARIANTS = {
    "plain": ("_twice", "rows", BLOCK),
    "tuned": ("_tuned", "ceil(rows*D/BLOCK)", ""),
    "cooperative": ("_twice", "rows", BLOCK + "options = { launch_cooperative_grid = true }"),
    "cluster": ("_twice", "rows", BLOCK + "options = { num_ctas = 2 }"),
    "pdl": ("_twice_late", "rows", BLOCK + "options = { launch_pdl = true }"),
    "scratch": ("_copy", "rows", BLOCK),
}


@pytest.fixture(scope="module")
def attributes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attributes") / "ops"
    folder.mkdir()
    (folder / "kernels_triton.py").write_text(KERNELS)
    for name, words in VARIANTS.items():
        (folder / f"{name}.toml").write_text(SCHEMA.format(name, *words))
    anyop.load(build(folder, name="attributes"))
    return anyop.ops.attributes


@pytest.mark.parametrize("name", VARIANTS)
def test_attributes_and_scratch(attributes, name):
    if CAPABILITY < (9, 0) and name in ("cluster", "pdl", "scratch"):
        pytest.skip(f"{name} is of capability 9.0 and later, this GPU has {CAPABILITY}")
    for rows in (1, 37):
        x = torch.randn(rows, 256, device="cuda")
        for _ in range(3):
            x = getattr(attributes, name)(x) / 2
        assert torch.equal(getattr(attributes, name)(x), 2 * x)


PROGRAM = """
import sys
sys.modules["triton"] = None
import anyop, json, torch
x, w = torch.randn(64, 1024, device="cuda"), torch.ones(1024, device="cuda")
with anyop.use("triton"):
    found = anyop.rms_norm(x, w)
X = x.double()
exact = X * (X.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
print(json.dumps(bool((found.double() - exact).abs().max() < 1e-5)))
"""


def test_without_triton(tmp_path):
    """The second process takes the image from the cache; one with an empty cache has none."""
    x, w = torch.randn(64, 1024, device="cuda"), torch.ones(1024, device="cuda")
    with anyop.use("triton"):
        anyop.rms_norm(x, w)
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and json.loads(done.stdout) is True, done.stderr
    empty = {**os.environ, "ANYOP_CACHE_DIR": str(tmp_path), "ANYOP_FALLBACK": "error"}
    done = subprocess.run(command, capture_output=True, text=True, env=empty)
    assert done.returncode == 1 and "needs triton, which is not installed" in done.stderr


def test_from_the_repository():
    """The launches of anyop's own kernels are all there."""
    for name in OPS:
        forms = [k["form"] for k in anyop.metadata(name)["kernels"] if k["backend"] == "triton"]
        assert forms == ["triton", "python"], name
