# SPDX-License-Identifier: Apache-2.0
"""Optimizers plain, foreach and fused, GradScaler, clipping; a Transformer trains with the bits of torch's device."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.anyplatform, pytest.mark.usefixtures("platform")]

KINDS = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    "Adam": {"amsgrad": True},
    "AdamW": {"weight_decay": 0.1},
    "Adagrad": {},
    "RMSprop": {"momentum": 0.5, "centered": True},
    "NAdam": {},
    "RAdam": {},
    "Adamax": {},
    "Adadelta": {},
    "ASGD": {},
    "Rprop": {},
    "LBFGS": {},
    "Adafactor": {},
}
FUSED = ("SGD", "Adam", "AdamW", "Adagrad")
FORMS = [(kind, "foreach", on) for kind in KINDS if kind != "LBFGS" for on in (False, True)]
FORMS += [(kind, "fused", True) for kind in FUSED] + [("LBFGS", "lr", 0.5)]


def model_on(device):
    layers = torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 3)
    return torch.nn.Sequential(*layers).to(device)


def steps(model, optimizer, count=4):
    device = next(model.parameters()).device

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    losses = []
    for _ in range(count):
        x = torch.randn(5, 6).to(device)
        losses.append(optimizer.step(closure).detach())
    return losses


@pytest.mark.parametrize(("kind", "form", "value"), FORMS)
def test_optimizers(kind, form, value, same, inner):
    if (form, kind, inner) == ("fused", "Adagrad", "cuda"):
        pytest.skip("torch has no fused Adagrad for CUDA")

    def run(device):
        model = model_on(device)
        optimizer = getattr(torch.optim, kind)(model.parameters(), **KINDS[kind], **{form: value})
        return steps(model, optimizer), list(model.parameters())

    same(run)


def test_many_tensors_are_taken_at_once():
    """Left to itself, an optimizer takes the foreach form on the device, as on CUDA."""
    from torch.optim.optimizer import _default_to_fused_or_foreach

    model = model_on("anyop")
    assert _default_to_fused_or_foreach(list(model.parameters()), differentiable=False)[1]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)


def test_clipping_and_schedules(same):
    def run(device):
        model = model_on(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        model(torch.randn(5, 6).to(device)).square().sum().backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()
        schedule.step()
        flat = torch.nn.utils.parameters_to_vector(model.parameters())
        averaged = torch.optim.swa_utils.AveragedModel(model)
        averaged.update_parameters(model)
        return norm, flat, list(averaged.parameters())

    same(run)


@pytest.mark.parametrize("fused", [False, True])
def test_gradients_are_scaled(fused):
    model = model_on("anyop")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    scaler = torch.amp.GradScaler("anyop", init_scale=2.0**10, growth_interval=2)
    scales = []
    for number in range(5):
        x = torch.randn(5, 6, device="anyop")
        with torch.autocast("anyop", dtype=torch.float16):
            loss = model(x * (float("inf") if number == 3 else 1)).square().mean()
        before = [p.detach().clone() for p in model.parameters()]
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer) if number == 1 else None
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        moved = any(not torch.equal(a, b) for a, b in zip(before, model.parameters()))
        assert moved is (number != 3), "a step with infinite gradients is left out"
        scales.append(scaler.get_scale())
    assert scales == [1024, 2048, 2048, 1024, 1024]
    assert all(torch.isfinite(p).all() for p in model.parameters())
    state = scaler.state_dict()
    scaler.load_state_dict(state)


class Small(torch.nn.Module):
    """A Transformer of two layers with dropout, embeddings tied to the head."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 16)
        layer = torch.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.2, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(16, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        mask = torch.nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        mask = mask.to(tokens.device)
        return self.head(self.layers(self.embedding(tokens), mask, is_causal=True))


@pytest.mark.parametrize("fused", [False, True])
def test_a_transformer_trains_bitwise(fused, same):
    """Dropout, AdamW, gradient clipping, 5 steps: losses, parameters and states."""

    def run(device):
        model = Small().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
        losses = []
        batches = torch.randint(0, 50, (5, 4, 9)).to(device)
        torch.manual_seed(1)  # the numbers above came from the CPU's generator
        for tokens in batches:
            found = model(tokens[:, :-1])
            loss = torch.nn.functional.cross_entropy(found.flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.detach())
        states = [s["exp_avg_sq"] for s in optimizer.state.values()]
        return losses, list(model.parameters()), states

    losses = same(run)[0]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    "name", ["FusedAdamW", "FusedSGD", "FusedAdagrad", "FusedLAMB", "FusedNovoGrad"]
)
def test_parameters_on_two_devices(name):
    """anyop.torch.optim takes a call for each device, with a step of its own there; LAMB's norm is of both."""
    from anyop.torch import optim

    def run(devices):
        torch.manual_seed(0)
        shapes = (3, 5), (7,), (), (64,)
        every = [torch.nn.Parameter(torch.randn(s).to(d)) for s, d in zip(shapes, devices)]
        optimizer = getattr(optim, name)(every, lr=torch.tensor(1e-2), weight_decay=0.1)
        for _ in range(4):
            for p in every:
                p.grad = torch.randn(p.shape).to(p.device)
            optimizer.step()
        assert {optimizer.state[p]["step"].device for p in every} == {p.device for p in every}
        optimizer.load_state_dict(optimizer.state_dict())
        optimizer.step()
        return [p.detach().cpu() for p in every]

    mixed, plain = run(["cpu", "anyop"] * 2), run(["cpu"] * 4)
    for found, expected in zip(mixed, plain):
        torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-6)
