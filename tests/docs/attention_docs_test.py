# SPDX-License-Identifier: Apache-2.0
"""The code on docs/attention.md runs as it stands, in order; what it serves is attention over the whole sequences."""

from __future__ import annotations

import re
from pathlib import Path

import anyop
import numpy as np

PAGE = Path(__file__).parents[2] / "docs" / "attention.md"
LONGEST = 20  # lines of code of an example


def test_code_of_the_page():
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M)
    # torch_attention_test.py has the other.
    own = [block for block in blocks if "transformers" not in block]
    assert (len(blocks), len(own)) == (5, 4)
    names: dict = {}
    for block in own:
        exec(compile(block, str(PAGE), "exec"), names)
        lines = [line for line in block.splitlines() if line and not line.startswith("import ")]
        assert len(lines) <= LONGEST
        if "def step" in block:
            last_step_of_the_loop(names)


def last_step_of_the_loop(names):
    """One token of each sequence, and all keys up to it, the newest last."""
    assert names["lengths"].tolist() == [42, 9, 101]
    for b, length in enumerate(names["lengths"]):
        pages = names["table"][b, : -(-length // names["P"])]
        k, v = (
            names[cache][pages].reshape(-1, names["G"], names["D"])[:length].swapaxes(0, 1)[None]
            for cache in ("k_cache", "v_cache")
        )
        np.testing.assert_array_equal(k[0, :, -1], names["k"][b])
        np.testing.assert_array_equal(v[0, :, -1], names["v"][b])
        exact = anyop.attention(names["q"][b][None, :, None], k, v)[0, :, 0]
        np.testing.assert_allclose(names["out"][b], exact, rtol=1e-5, atol=1e-5)
