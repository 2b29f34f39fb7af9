# SPDX-License-Identifier: Apache-2.0
"""FlashInfer as a backend: checks its functions against torch's, calls them from three frameworks, and times them."""

from __future__ import annotations

import functools
import os
import time

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import anyop
import flashinfer_cases as cases
import torch


def from_jax() -> str:
    try:
        import jax
    except ImportError:
        return "jax is not installed"
    if jax.default_backend() != "gpu":
        return "JAX has no GPU"
    keys = jax.random.split(jax.random.key(0))
    x = jax.random.normal(keys[0], (64, 4096), "bfloat16")
    weight = jax.random.normal(keys[1], (4096,), "bfloat16")
    with anyop.use("flashinfer"):
        found = jax.jit(lambda x, w: anyop.rms_norm(x, w))(x, weight)
    with anyop.use("cuda"):
        expected = anyop.rms_norm(x, weight)
    share = cases.worst([torch.from_dlpack(found)], [torch.from_dlpack(expected)])
    assert share <= 1, f"JAX: off by {share:.2f} of what is allowed"
    return "equal"


def from_cupy() -> str:
    try:
        import cupy
    except ImportError:
        return "CuPy is not installed"
    gate = cupy.random.standard_normal((64, 8192), dtype="float32").astype("float16")
    with anyop.use("flashinfer"):
        found = anyop.silu_and_mul(gate)
    assert type(found) is cupy.ndarray
    with anyop.use("aten"):
        expected = anyop.silu_and_mul(torch.from_dlpack(gate))
    share = cases.worst([torch.from_dlpack(found)], [expected])
    assert share <= 1, f"CuPy: off by {share:.2f} of what is allowed"
    return "equal"


def draw(backend: str, probs: torch.Tensor, k: int, p: float) -> torch.Tensor:
    """How often each token of each row is drawn in 4,096 calls' worth of rows."""
    rows = probs.repeat_interleave(4096, 0).contiguous()
    with anyop.use(backend):
        tokens, valid = anyop.ops.fi.sample_top_k_top_p(rows, k, p, 1234)
        again, _ = anyop.ops.fi.sample_top_k_top_p(rows, k, p, 1234)
    assert valid.all() and torch.equal(tokens, again)
    counts = [row.bincount(minlength=probs.shape[1]) for row in tokens.long().view(len(probs), -1)]
    return torch.stack(counts).double()


def sampling() -> str:
    """Drawn tokens are among those kept, as often as their probabilities say."""
    broad = torch.rand(8, 1000, device="cuda").square().softmax(-1)
    steep = torch.tensor([[0.4, 0.25, 0.15, 0.1, 0.04, 0.03, 0.02, 0.01]], device="cuda")
    deviations = []
    for probs, k, p, kinds in ((broad, 20, 0.9, 160), (steep, 8, 0.6, 2), (steep, 3, 1.0, 3)):
        found, expected = (draw(backend, probs, k, p) for backend in ("flashinfer", "reference"))
        assert torch.equal(found > 0, expected > 0) and (found > 0).sum() == kinds
        deviations.append(((found - expected).square() / (found + expected))[found > 0])
    # Both count draws of one distribution: the mean is 1, its standard deviation 0.11.
    deviation = torch.cat(deviations).mean().item()
    assert deviation < 1.6, f"deviation {deviation:.2f}, expected about 1"
    return f"165 kinds of tokens, deviation {deviation:.2f}"


def microseconds(function, calls: int = 200) -> tuple[float, float]:
    """Of a call, until it returns, and until the device is done."""
    best = [float("inf")] * 2
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            function()
        returned = time.perf_counter()
        torch.cuda.synchronize()
        done = time.perf_counter()
        best = [min(best[0], returned - start), min(best[1], done - start)]
    return best[0] / calls * 1e6, best[1] / calls * 1e6


def main() -> None:
    cases.load()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(f"{'':44}  share of   anyop, us        FlashInfer's Python, us")
    print(f"{'':44} tolerance  return    done     return    done")
    for name, make in cases.CASES.items():
        case = make()
        share = cases.check(case)
        assert share <= 1, f"{name}: off by {share:.2f} of what is allowed"
        with anyop.use("flashinfer"):
            through = microseconds(functools.partial(case.function, *case.arguments))
        own = microseconds(case.own)
        times = f"{through[0]:8.1f}{through[1]:9.1f}  {own[0]:9.1f}{own[1]:9.1f}"
        print(f"{name:44} {share:9.2f}{times}")
    print("fused_add_rms_norm:", added())
    print("sampling:", sampling())
    print("from JAX:", from_jax())
    print("from CuPy:", from_cupy())


def added() -> str:
    """Both arguments are changed."""
    results = []
    for backend in ("flashinfer", "reference"):
        x, residual = cases.normal(64, 4096), cases.normal(64, 4096, seed=1)
        with anyop.use(backend):
            anyop.ops.fi.fused_add_rms_norm(x, residual, cases.normal(4096))
        results.append([x, residual])
    share = cases.worst(*results)
    assert share <= 2, f"off by {share:.2f} of what is allowed"  # two roundings
    return f"{share:.2f} of the tolerance"


if __name__ == "__main__":
    main()
