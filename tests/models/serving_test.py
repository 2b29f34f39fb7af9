# SPDX-License-Identifier: Apache-2.0
"""32 uneven prompts served from pages have the greedy tokens of transformers' own attention over whole sequences."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from serving import KINDS, Server, assert_greedy, prompts  # noqa: E402

NEW = 4  # tokens of each sequence, the first of them behind its prompt


OTHERS = [pytest.param(kind, marks=pytest.mark.drawn(3)) for kind in KINDS if kind != "causal"]


@pytest.mark.parametrize("kind", ["causal", *OTHERS])
def test_prompts_that_come_while_others_decode(kind):
    """The last eight prompts come in the step in which the others have their second token."""
    given = prompts(32, 24)
    server = Server(kind, "cpu", torch.float32, len(given), pages=7)
    served: list[list[int]] = [[] for _ in given]
    waiting = [[] if b >= 24 else prompt for b, prompt in enumerate(given)]
    for turn in range(NEW + 1):
        found = server.step(waiting)
        for mine, token in zip(served, found):
            mine.extend([] if token is None else [token])
        waiting = [mine[-1:] if 0 < len(mine) < NEW else [] for mine in served]
        waiting[24:] = given[24:] if turn == 0 else waiting[24:]
    assert [len(mine) for mine in served] == [NEW] * 32 and not any(waiting)
    assert_greedy(kind, "cpu", torch.float32, given, served)
    assert len({tuple(mine) for mine in served}) > 16  # the model does not say the same to all
