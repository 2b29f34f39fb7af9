# SPDX-License-Identifier: Apache-2.0
"""anyop.torch.apex's synchronised batch norm and the steps of syncbn beside torch's formulas; one process."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from anyop.torch.apex import parallel  # noqa: E402
from anyop.torch.apex.extensions import syncbn  # noqa: E402


@pytest.mark.parametrize("last", ["", "_c_last"])
def test_the_steps_are_torchs_batch_norm(last):
    torch.manual_seed(0)
    x, z, given = (
        torch.randn(6, 8, 3, 5, dtype=torch.float64, requires_grad=True) for _ in range(3)
    )
    weight, bias = (torch.randn(8, dtype=torch.float64, requires_grad=True) for _ in range(2))
    normal = torch.nn.functional.batch_norm(x, None, None, weight, bias, True, eps=1e-3)
    whole = (normal + z).relu() if last else normal
    expected = torch.autograd.grad(whole, (x, weight, bias), given)
    with torch.no_grad():
        order = (lambda v: v.movedim(1, -1).contiguous()) if last else (lambda v: v)
        parts = [order(part) for part in (x[:2], x[2:])]
        stats = [getattr(syncbn, "welford_mean_var" + last)(part) for part in parts]
        counts = torch.tensor([30, 60], dtype=torch.int32)
        both = (torch.stack(values) for values in zip(*stats, strict=True))
        mean, var, inv_std = syncbn.welford_parallel(*both, counts, 1e-3)
        torch.testing.assert_close(var, x.transpose(0, 1).flatten(1).var(1))
        if last:
            call = order(x), order(z), mean, inv_std, weight, bias
            found = syncbn.batchnorm_forward_c_last(*call, True)
            grad = syncbn.relu_bw_c_last(order(given), *call)
        else:
            found = syncbn.batchnorm_forward(x, mean, inv_std, weight, bias)
            grad = given
        torch.testing.assert_close(found, order(whole))
        call = grad, order(x), mean, inv_std, weight
        *sums, of_weight, of_bias = getattr(syncbn, "reduce_bn" + last)(*call)
        of_x = getattr(syncbn, "batchnorm_backward" + last)(*call, *sums, counts)
    for one, theirs in zip((of_x, of_weight, of_bias), expected, strict=True):
        torch.testing.assert_close(one, order(theirs) if one is of_x else theirs)


@pytest.mark.parametrize("channel_last", [False, True])
def test_a_converted_model(channel_last):
    torch.manual_seed(0)
    theirs = torch.nn.BatchNorm2d(6, momentum=0.3)
    mine = parallel.convert_syncbn_model(torch.nn.Sequential(theirs), channel_last=channel_last)[0]
    assert type(mine) is parallel.SyncBatchNorm and mine.weight is theirs.weight
    mine.fuse_relu = True
    other = torch.nn.BatchNorm2d(6, momentum=0.3)
    x = torch.randn(4, 6, 3, 5)
    given = x.movedim(1, -1) if channel_last else x
    for training in (True, False):
        found = mine.train(training)(given, given)
        expected = (other.train(training)(x) + x).relu()
        torch.testing.assert_close(found.movedim(-1, 1) if channel_last else found, expected)
    torch.testing.assert_close(mine.state_dict(), other.state_dict())


def test_what_is_not_there():
    with pytest.raises(AttributeError, match=r"LARC is not in anyop\.torch\.apex yet"):
        parallel.LARC  # noqa: B018
