# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers: every kind, packed sequences, cells; forward and backward nearly the bits of torch's
own device, whose CPU takes the products of all steps at once. On CUDA, of torch's own kernels there: cuDNN's, with
products in TF32 and random numbers of their own, are for tensors of cuda alone.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.anyplatform, pytest.mark.usefixtures("platform")]


@pytest.fixture(autouse=True)
def without_cudnn():
    with torch.backends.cudnn.flags(enabled=False):
        yield


KINDS = {
    "RNN": {"nonlinearity": "relu"},
    "GRU": {"bidirectional": True},
    "LSTM": {"num_layers": 2, "bidirectional": True},
    "LSTM projected": {"proj_size": 3},
    "GRU with dropout": {"num_layers": 2, "dropout": 0.5, "batch_first": True},
}


def layer_of(kind, device):
    return getattr(torch.nn, kind.split()[0])(5, 7, **KINDS[kind]).to(device)


def gradients(layer, results, x):
    sum(t.square().sum() for t in results).backward()
    return [x.grad, *(p.grad for p in layer.parameters())]


def flat(found):
    output, state = found
    return [output, *(state if isinstance(state, tuple) else [state])]


@pytest.mark.parametrize("kind", KINDS)
def test_layers(kind, same):
    def run(device):
        layer, x = layer_of(kind, device), torch.randn(4, 3, 5).to(device).requires_grad_()
        torch.manual_seed(1)  # the numbers above came from the CPU's generator
        results = flat(layer(x))
        return results, gradients(layer, results, x)

    same(run, near=True)


@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_packed_sequences(kind, same):
    def run(device):
        layer, x = layer_of(kind, device), torch.randn(4, 3, 5).to(device).requires_grad_()
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, [2, 4, 1], enforce_sorted=False)
        output, state = layer(packed)
        padded, lengths = torch.nn.utils.rnn.pad_packed_sequence(output)
        assert lengths.tolist() == [2, 4, 1] and lengths.is_cpu
        results = flat((padded, state))
        return results, gradients(layer, results, x)

    same(run, near=True)


@pytest.mark.parametrize("kind", ["RNNCell", "GRUCell", "LSTMCell"])
def test_cells(kind, same):
    def run(device):
        cell, x = getattr(torch.nn, kind)(5, 7).to(device), torch.randn(3, 5).to(device)
        state = cell(x)
        state = cell(x, state)
        results = list(state) if isinstance(state, tuple) else [state]
        sum(t.sum() for t in results).backward()
        return results, [p.grad for p in cell.parameters()]

    same(run, near=True)


def test_a_state_of_another_device_is_refused():
    layer = layer_of("GRU", "anyop")
    with pytest.raises(RuntimeError):
        layer(torch.randn(4, 3, 5, device="anyop"), torch.zeros(2, 3, 7))
