# SPDX-License-Identifier: Apache-2.0
"""What tests on a CUDA device share: torch there (or a skip), the operators with a CUDA kernel, bits, a spin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from anyop import testing
from anyop.cases.subject import Subject

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is ml_dtypes'")
DEVICE = "cuda"
if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device that torch can use", allow_module_level=True)

torch.backends.cudnn.deterministic = True  # torch's convolutions run where ours do not: float64

SUBJECTS: dict[str, Subject] = {
    s.name: s.on("cuda")
    for s in testing.find_subjects(Path(__file__).parents[2] / "ops")
    if any(kernel["backend"] == "cuda" for kernel in s.metadata["kernels"])
}
SPIN_CYCLES = 100_000_000  # 0.05 s and more


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    one, other = (t.contiguous().reshape(-1).view(torch.uint8) for t in (one, other))
    return torch.equal(one, other)


def behind_a_spin(
    clear: Callable[[], None], call: Callable[[torch.cuda.Stream], None]
) -> Iterator[None]:
    """Calls `call` on a side stream behind a spin, what it reads and writes cleared; then its results can be checked.

    Yields behind each spin: one was too short to show that nothing waits where this process was held up.
    """
    stream = torch.cuda.Stream()
    for longer in (1, 4, 16):
        clear()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(longer * SPIN_CYCLES)
            spun = torch.cuda.Event()
            spun.record()
            call(stream)
            waited = spun.query()
        stream.synchronize()
        yield
        if not waited:
            return
    raise AssertionError("the calls returned only when the stream had come to them")
