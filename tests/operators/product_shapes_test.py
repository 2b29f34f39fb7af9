# SPDX-License-Identifier: Apache-2.0
"""Products on the CPU, exactly: every size that decides how one is cut, odd starts, segments of any kind."""

from __future__ import annotations

import anyop
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from product_points import NAMED, check


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize(("name", "dtype"), NAMED)
def test_every_size_exactly(name, dtype, shift):
    """By as many threads as there are, and by three."""
    for threads in (anyop.get_num_threads(), 3) if not shift else (1,):
        before = anyop.get_num_threads()
        anyop.set_num_threads(threads)
        try:
            assert check(name, dtype, "cpu", shift) >= 250
        finally:
            anyop.set_num_threads(before)
