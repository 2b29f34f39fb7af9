# SPDX-License-Identifier: Apache-2.0
"""scaled_dot_product_attention and what is built on it: the kernels and bits of torch's own device."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.anyplatform, pytest.mark.usefixtures("platform")]
F = torch.nn.functional

FORMS = {
    "plain": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.3},
    "bool mask": {"attn_mask": "bool"},
    "float mask": {"attn_mask": "float"},
    "dropout": {"dropout_p": 0.4},
    "grouped": {"enable_gqa": True},
}


def arguments(form, device, dtype):
    options = dict(FORMS[form])
    heads = 2 if form == "grouped" else 4
    q, k, v = (torch.randn(2, h, 9, 16).to(device, dtype) for h in (4, heads, heads))
    if kind := options.get("attn_mask"):
        mask = torch.rand(9, 9)
        options["attn_mask"] = (mask > 0.3).to(device) if kind == "bool" else mask.to(device, dtype)
    return [t.requires_grad_() for t in (q, k, v)], options


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", FORMS)
def test_attention(form, dtype, same):
    def run(device):
        tensors, options = arguments(form, device, dtype)
        torch.manual_seed(1)  # the numbers above came from the CPU's generator
        found = F.scaled_dot_product_attention(*tensors, **options)
        found.square().sum().backward()
        return found, [t.grad for t in tensors]

    same(run)


def test_the_plain_kernel_and_strided_operands(same):
    def run(device):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        q, k, v = torch.randn(2, 9, 3, 4, 16).to(device).permute(2, 0, 3, 1, 4)
        with sdpa_kernel(SDPBackend.MATH):
            plain = F.scaled_dot_product_attention(q, k, v)
        return plain, F.scaled_dot_product_attention(q, k, v, is_causal=True)

    same(run)


@pytest.mark.parametrize("training", [True, False])
def test_layers_of_attention(training, same):
    def run(device):
        layer = torch.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True)
        layer = layer.to(device).train(training)
        x = torch.randn(2, 5, 16).to(device)
        padding = torch.tensor([[0, 0, 0, 0, 1], [0, 0, 0, 1, 1]]).bool().to(device)
        torch.manual_seed(1)
        with torch.set_grad_enabled(training):
            found = layer(x, src_key_padding_mask=padding)
            results = [found, *layer.self_attn(x, x, x)]
        if training:
            found.square().sum().backward()
            results += [p.grad for p in layer.parameters()]
        return results

    same(run)
