# SPDX-License-Identifier: Apache-2.0
"""Products on a GPU: every size that decides how one is cut, exactly, by each implementation; without cuBLASLt.

First calls of a process: inside the capture of a graph, and by two threads at once. More than 2^31 elements.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import anyop
import pytest
from anyop import testing
from anyop._routes import implementations
from anyop.testing.torch_memory import fits_torch, on_device
from drawn import few
from failures import failures_of, show
from on_cuda import DEVICE, SUBJECTS, torch
from product_points import NAMED, check


def backends(name: str) -> list[str]:
    return [found["name"] for found in implementations(name) if found["name"].startswith("cuda")]


KERNELS = [(name, dtype, b) for name, dtype in NAMED for b in ["", *backends(name)]]


@pytest.fixture(autouse=True)
def sums_in_float32():
    """Also where torch's kernel is the next one. Not by monkeypatch, which would delete what it set."""
    settings, names = torch.backends.cuda.matmul, ("bf16", "fp16")
    names = [f"allow_{name}_reduced_precision_reduction" for name in names]
    before = [getattr(settings, name) for name in names]
    for name in names:
        setattr(settings, name, False)
    yield
    for name, value in zip(names, before):
        setattr(settings, name, value)


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize(("name", "dtype", "backend"), KERNELS)
def test_every_size_exactly(name, dtype, backend, shift):
    """By default and by each implementation; what one does not take, the next does."""
    if backend == "cuda_tf32":
        pytest.skip(
            "TF32 rounds its operands, and is checked by tests/cuda/operators/cuda_operators.py"
        )
    if not backend:
        assert check(name, dtype, DEVICE, shift) >= 250
        return
    with anyop.use(backend):
        assert check(name, dtype, DEVICE, shift, 150) >= 100


SUITES = [
    pytest.param(subject, choice, backend, id=f"{name}-{choice}-{backend}")
    for name, subject in SUBJECTS.items()
    if name.removeprefix("native_") in dict(NAMED) and len(backends(name)) > 1
    for choice in few(testing.dtype_choices(subject.metadata), 6, name)
    for backend in backends(name)
    if backend not in ("cuda", "cuda_tf32")  # tests/cuda/operators/cuda_operators.py
]


@pytest.mark.parametrize(("subject", "choice", "backend"), SUITES)
def test_the_schemas_suite_by_each(subject, choice, backend):
    """The twins of the tile kernel, forced by route, also where another is taken by default."""
    there = replace(subject, function=on_device(getattr(anyop, subject.name), DEVICE))
    cases = list(filter(fits_torch, testing.standard_cases(subject, choice)))
    with anyop.use(backend):
        show(failures_of(there, cases, "cuda"), len(cases))
    assert len(cases) >= 10


PROGRAM = f"""
import sys, threading, anyop, torch
sys.path.insert(0, {str(Path(__file__).parents[2] / "shared")!r})
from product_points import check
torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
def whole(*shape, dtype=torch.bfloat16):
    return torch.randint(-1, 2, shape, device="cuda").to(dtype)
def same(found, x, w):
    assert torch.equal(found, (x.double() @ w.double().mT).to(found.dtype))
"""


def run(text: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM + text],
        env={**os.environ, **environment}, capture_output=True, text=True,
    )  # fmt: skip


EVERY = """
for name, dtype in [("linear", "bfloat16"), ("linear", "float32"), ("linear", "float64"),
                    ("linear_backward", "float16"), ("linear_act", "bfloat16"), ("matmul", "bfloat16"),
                    ("linear_w8a8", "float8_e4m3fn"), ("linear_fp8_block", "float8_e4m3fn")]:
    assert check(name, dtype, "cuda", 0) > 250
"""
ACCUMULATES = """
assert check("linear_wgrad_accumulate", "bfloat16", "cuda", 0) > 250
"""


def test_without_cublaslt():
    """Tiles of anyop's own, or torch; said once for each operator, with the command that installs it."""
    found = run(EVERY, ANYOP_CUBLASLT="off")
    assert found.returncode == 0, found.stderr[-2000:]
    said = [line for line in found.stderr.splitlines() if "ANYOP_CUBLASLT is off" in line]
    assert said and len(said) == len(set(said)), said


def test_what_nothing_else_computes_names_the_reason():
    """As torch has no function that adds to a gradient."""
    found = run(ACCUMULATES, ANYOP_CUBLASLT="off")
    assert "NotImplementedError: linear_wgrad_accumulate" in found.stderr, found.stderr[-2000:]
    assert "ANYOP_CUBLASLT is off" in found.stderr


def other_cublaslt() -> list[Path]:
    """Those beside this Python whose major version is not that of torch's CUDA."""
    ours = (torch.version.cuda or "").split(".")[0]
    found = {
        p for folder in sys.path for p in Path(folder or ".").glob("nvidia/*/lib/libcublasLt.so.1?")
    }
    return sorted(p for p in found if p.name.rpartition(".")[2] != ours)


def test_with_cublaslt_of_the_other_major():
    others = other_cublaslt()
    if not others:
        pytest.skip(f"no cuBLASLt of another major than CUDA {torch.version.cuda} beside Python")
    found = run(EVERY + ACCUMULATES, ANYOP_CUBLASLT=str(others[0]))
    assert found.returncode == 0, found.stderr[-2000:]


CAPTURED = """
x, w = whole(64, 256, dtype=torch.{dtype}), whole(48, 256, dtype=torch.{dtype})
offsets = torch.tensor([0, 5, 64], dtype=torch.int32, device="cuda")
pair = w.view(torch.uint8).repeat(2, 1).view(w.dtype).view(2, 48, 256)
one = torch.ones((), device="cuda")
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    found = anyop.{call}
for _ in range(2):
    x.copy_(whole(64, 256, dtype=torch.{dtype}))
    graph.replay()
    torch.cuda.synchronize()
    same(found, x, w)
"""


@pytest.mark.parametrize(
    ("call", "dtype"),
    [("linear(x, w)", d) for d in ("bfloat16", "float16", "float32", "float64")]
    + [("grouped_linear(x, pair, offsets)", "bfloat16"), ("matmul(x, w.mT)", "bfloat16")]
    + [("linear_w8a8(x, w, one, one)", "float8_e4m3fn")],
)
def test_the_first_call_of_a_process_may_be_captured(call, dtype):
    found = run(CAPTURED.format(call=call, dtype=dtype))
    assert found.returncode == 0, found.stderr[-2000:]


def test_first_calls_of_two_threads_at_once():
    found = run("""
x, w = whole(300, 256), whole(520, 256)
torch.cuda.synchronize()
gate, results = threading.Barrier(2), []
def call():
    with torch.cuda.stream(torch.cuda.Stream()):
        gate.wait()
        results.append(anyop.linear(x, w))
        torch.cuda.current_stream().synchronize()
threads = [threading.Thread(target=call) for _ in range(2)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
assert len(results) == 2
for found in results:
    same(found, x, w)
""")
    assert found.returncode == 0, found.stderr[-2000:]


@pytest.mark.parametrize(
    ("M", "N", "K"), [((1 << 31) // 1024 + 300, 64, 1024), (70_000, 32_768, 8)]
)
@pytest.mark.parametrize("backend", ["cuda", "cuda_tiles", "cuda_tiles_sm90"])
def test_more_than_two_to_the_31_elements(backend, M, N, K):
    """Of x, and of the result."""
    free, _ = torch.cuda.mem_get_info()
    needed = 3 * M * K + 2 * (M * N + N * K) + (1 << 30)
    if free < needed or backend not in backends("linear"):
        pytest.skip(f"{free >> 30} GiB are free of {needed >> 30}; linear has {backends('linear')}")
    x = torch.randint(-1, 2, (M, K), device=DEVICE, dtype=torch.int8).bfloat16()
    w = torch.randint(-1, 2, (N, K), device=DEVICE).bfloat16()
    with anyop.use(backend):
        found = anyop.linear(x, w)
    for rows in (slice(0, 70), slice(M // 2, M // 2 + 70), slice(M - 70, M)):
        exact = x[rows].double() @ w.double().mT
        assert torch.equal(found[rows], exact.bfloat16()), rows
