# SPDX-License-Identifier: Apache-2.0
"""batch_norm_combine in float64; a batch in parts as in one piece, processes without elements, torch's running ones."""

import anyop
import numpy as np
import pytest


def reference(mean, var, count, running_mean, running_var, momentum, eps):
    n = count.sum()
    share = 0.1 if momentum is None else momentum.reshape(())
    with np.errstate(all="ignore"):
        has = count > 0
        given = count[has, None].astype(float)
        out_mean = (given * mean[has]).sum(0) / max(n, 1e-300)
        squares = (given * (var[has] + (mean[has] - out_mean) ** 2)).sum(0)
        out_var = squares / max(n, 1e-300)
        new = (running_mean, out_mean), (running_var, squares / (n - 1 if n > 1 else 1))
        for running, found in new if n > 0 else ():
            if running is not None:
                running[:] = (1 - share) * running + share * found
        return out_mean, out_var, 1 / np.sqrt(out_var + eps)


@pytest.mark.parametrize("count", ["int32", "int64", "float64"])
def test_parts_are_the_whole(count):
    x = np.random.default_rng(0).standard_normal((50, 6, 7)) + 5
    parts = [x[:3], x[3:3], x[3:40], x[40:]]
    stats = [anyop.batch_norm_stats(part) for part in parts]
    mean, var = (np.stack(values) for values in zip(*stats, strict=True))
    counts = np.array([part.size // 6 for part in parts], count)
    running = np.zeros(6), np.ones(6)
    found = anyop.batch_norm_combine(mean, var, counts, *running, 0.25, eps=1e-3)
    whole = anyop.batch_norm_stats(x)
    for one, expected in zip(found, (*whole, 1 / np.sqrt(whole[1] + 1e-3)), strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-12)
    np.testing.assert_allclose(running[0], 0.25 * whole[0], rtol=1e-12)
    np.testing.assert_allclose(running[1], 0.75 + 0.25 * whole[1] * 350 / 349, rtol=1e-12)


def test_no_elements_at_all():
    running = np.full(3, 2, np.float32), np.full(3, 4, np.float32)
    zeros = np.zeros((2, 3), np.float32)
    found = anyop.batch_norm_combine(zeros, zeros, np.zeros(2, np.int32), *running, 0.5, eps=0.25)
    assert [v.tolist() for v in (*found, *running)] == [[v] * 3 for v in (0, 0, 2, 2, 4)]


def test_running_ones_are_torchs():
    torch = pytest.importorskip("torch")
    import anyop.torch

    norm, x = torch.nn.BatchNorm2d(5, momentum=0.3), torch.randn(4, 5, 3, 3)
    running = torch.zeros(5), torch.ones(5)
    for step in range(3):
        norm(x + step)
        mean, var = anyop.batch_norm_stats(x + step)
        anyop.batch_norm_combine(mean[None], var[None], torch.tensor([36]), *running, 0.3)
    torch.testing.assert_close(running[0], norm.running_mean)
    torch.testing.assert_close(running[1], norm.running_var)
