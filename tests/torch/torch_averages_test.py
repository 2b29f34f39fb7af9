# SPDX-License-Identifier: Apache-2.0
"""Running averages beside the steps of FusedAdam and FusedAdamW: torch's AveragedModel's."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from anyop.torch import optim  # noqa: E402


def drawn(seed: int, params: list) -> list:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(p.shape, generator=generator) for p in params]


def close(found, expected, rtol: float = 2e-6, atol: float = 2e-6) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


@pytest.mark.parametrize("average", [0.9, 0.25, "equal"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_averages_are_those_of_torch(average, dtype):
    """AveragedModel's of float32 parameters; of masters where there are some, also after a state dict."""
    swa = torch.optim.swa_utils
    each = {} if average == "equal" else {"multi_avg_fn": swa.get_ema_multi_avg_fn(average)}
    model = torch.nn.Linear(33, 7).to(dtype)
    masters = torch.nn.Linear(33, 7)
    masters.load_state_dict(model.state_dict())
    averaged, params = swa.AveragedModel(masters, **each), list(model.parameters())
    options = {"lr": 1e-2, "master_weights": dtype is not torch.float32, "average": average}
    optimizer = optim.FusedAdamW(params, **options)
    for seed in range(6):
        for p, g in zip(params, drawn(seed, params)):
            p.grad = g.to(dtype)
        optimizer.step()
        for p, master in zip(params, masters.parameters()):
            master.data.copy_(optimizer.state[p].get("master_param", p))
        averaged.update_parameters(masters)
        if seed == 2:
            saved = copy.deepcopy(optimizer.state_dict())
            optimizer = optim.FusedAdamW(params, **options)
            optimizer.load_state_dict(saved)
    found = [optimizer.state[p]["average_param"] for p in params]
    close(found, [q.data for q in averaged.module.parameters()], rtol=1e-6, atol=1e-6)


def test_averages_that_begin_later_and_those_that_are_refused():
    p = torch.nn.Parameter(torch.ones(5))
    p.grad = torch.ones(5)
    optimizer = optim.FusedAdam([p], lr=0.5)
    optimizer.step()
    before, group = p.detach().clone(), optimizer.param_groups[0]
    group["average"] = "equal"
    with pytest.raises(ValueError, match="has taken steps without an average_param"):
        optimizer.step()
    assert torch.equal(p, before)
    group["average"] = 0.75
    optimizer.step()
    close([optimizer.state[p]["average_param"]], [before + 0.25 * (p.detach() - before)])
    group["average"] = 0.5  # the rate is another one from now on
    held = optimizer.state[p]["average_param"].clone()
    optimizer.step()
    close([optimizer.state[p]["average_param"]], [held + 0.5 * (p.detach() - held)])
    for average in (1.0, -0.1, "mean", 3):
        with pytest.raises(ValueError, match="average is"):
            optim.FusedAdamW([p], average=average)
