# SPDX-License-Identifier: Apache-2.0
"""Which compiled kernels ran, and how often, whichever framework the calls came from.

    testing.observe("rms_norm")
    anyop.rms_norm(torch.ones(4), torch.ones(4))
    testing.kernel_calls("rms_norm")  # [Kernel(backend="cpu", calls=1, library="…/libanyop.so", …)]

A kernel that is observed is called through one that counts. The others are as they were.
"""

from __future__ import annotations

from typing import NamedTuple

from anyop._load import core


class Kernel(NamedTuple):
    backend: str
    calls: int | None  # since observe(); None where nobody observes
    address: int  # of the machine code, in this process
    library: str | None  # the file that the code lies in
    offset: int  # of the code in that file's image: what nm shows


def observe(name: str) -> None:
    """Count the calls of this operator's kernels from now on. Raises ValueError for an unknown name."""
    core.observe(name)


def kernel_calls(name: str) -> list[Kernel]:
    """The kernel of each kind of device that the operator's calls go to."""
    return [Kernel(*row) for row in core.kernel_calls(name)]
