# SPDX-License-Identifier: Apache-2.0
"""decoder_layer on CUDA: against float64 and the CPU's kernel at batches of 1 to 8, the same bits twice, one graph
replayed with other lengths and pages, wrong pages, other work at the same time, and examples/generate by it.

compute-sanitizer python -m pytest tests/cuda/operators/cuda_decoder_layer.py -k shape
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyop
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "ops" / "decoder"))
sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))
from decoder_layer_test import exact, layer
from on_cuda import same_bits, torch

LIMITS = {torch.float16: 4e-3, torch.bfloat16: 3e-2}
QWEN3 = (16, 8, 128, 1024, 3072, 64)  # H, G, C, D, F, P of Qwen3-0.6B
LLAMA = (32, 8, 128, 4096, 14336, 16)  # of Llama-3-8B
SMALL = (4, 2, 64, 200, 104, 8)
SHAPES = [
    ([1024], *QWEN3), ([1], *QWEN3), ([5000], *QWEN3), ([7, 300, 0, 1024], *QWEN3),
    ([100 * n for n in range(8)], *QWEN3),
    ([700], *LLAMA), ([50, 0, 900, 3, 17, 64, 65, 128], *LLAMA), ([300, 0, 65, 7], *SMALL),
    ([9] * 3, 3, 3, 64, 72, 600, 4),
    ([130, 1], 8, 1, 128, 1032, 48, 24), ([40] * 8, 64, 16, 128, 64, 72, 1),
]  # fmt: skip


def on_device(call, dtype):
    return {
        k: torch.from_numpy(v).cuda().to(dtype if v.dtype == np.float32 else torch.int32)
        if isinstance(v, np.ndarray)
        else v
        for k, v in call.items()
    }


def copied(call):
    return {k: v.clone() if hasattr(v, "clone") else v for k, v in call.items()}


def run(call):
    """Results and caches; the arguments stay."""
    own = copied(call)
    return *anyop.decoder_layer(**own), own["k_cache"], own["v_cache"]


def in_float64(call):
    """The same numbers in NumPy's arrays."""
    return {k: (v.double() if v.is_floating_point() else v).cpu().numpy()
            if isinstance(v, torch.Tensor) else v for k, v in call.items()}  # fmt: skip


def assert_near(found, expected, limit):
    for a, b in zip(found, expected, strict=True):
        b = torch.as_tensor(b).double()
        torch.testing.assert_close(a.double().cpu(), b, rtol=limit, atol=limit, equal_nan=True)


@pytest.mark.parametrize("dtype", list(LIMITS), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shape(shape, dtype):
    call = layer(*shape, norms=len(shape[0]) != 3)
    if len(shape[0]) == 2:
        call["qkv_bias"] = np.linspace(-1, 1, len(call["qkv"]), dtype=np.float32)
    if len(shape[0]) == 3:
        call |= {"delta": None, "scale": 0.2}
    call = on_device(call, dtype)
    found, again = run(call), run(call)
    assert all(same_bits(a, b) for a, b in zip(found, again))
    assert_near(
        found, run({k: v.cpu() if hasattr(v, "cpu") else v for k, v in call.items()}), LIMITS[dtype]
    )
    assert_near(found, exact(in_float64(call)), LIMITS[dtype])


def test_one_graph_serves_other_lengths_and_pages():
    lengths = (
        [1000, 1, 64, 700],
        [3, 900, 0, 1000],
    )  # the longest are as long, so that shapes are equal
    first, second = (on_device(layer(n, *QWEN3), torch.bfloat16) for n in lengths)
    second["page_table"] = second["page_table"].flip(0).contiguous()
    second = {k: v.flip(0) if k in ("seqlens_k", "x", "delta") else v for k, v in second.items()}
    held = copied(first)
    anyop.decoder_layer(**copied(first))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = anyop.decoder_layer(**held)
    for call in (first, second, first, second):
        for name, value in call.items():
            if hasattr(value, "copy_"):
                held[name].copy_(value)
        graph.replay()
        found = *results, held["k_cache"], held["v_cache"]
        assert all(same_bits(a, b) for a, b in zip(found, run(call)))


def test_a_wrong_page_or_length_is_its_sequences():
    call = on_device(layer([20, 9, 30], *SMALL), torch.bfloat16)
    right = run(call)
    for name, place, value in (
        ("page_table", (0, 1), 10**6), ("page_table", (0, 2), -1), ("seqlens_k", 0, 10**6), ("seqlens_k", 0, -1),
    ):  # fmt: skip
        wrong = copied(call)
        wrong[name][place] = value
        found = run(wrong)
        for a, b in zip(found[:2], right[:2]):
            assert a[0].isnan().all() and same_bits(a[1:], b[1:])


def test_a_thousand_layers_beside_other_work():
    """Blocks that meet must all be there: other streams' kernels take multiprocessors meanwhile."""
    call = on_device(layer([1024], *QWEN3), torch.bfloat16)
    expected, own = run(call), copied(call)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(28):
            results = anyop.decoder_layer(**own)
    other, a = torch.cuda.Stream(), torch.randn(4096, 4096, device="cuda")
    for _ in range(36):
        with torch.cuda.stream(other):
            a = torch.mm(a, a).clamp_(-1, 1)
        graph.replay()
    torch.cuda.synchronize()
    assert all(same_bits(a, b) for a, b in zip(results, expected))


def test_generate_by_it_writes_what_the_operators_write(tmp_path):
    """Each token is as near to the best of float32 as the operators' own are allowed to be (cuda_generate.py)."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    sys.path.insert(0, str(Path(__file__).parents[3]))
    from cuda_generate import chosen_and_best, logits_behind

    from examples.generate.generate_test import prompts, written
    from examples.generate.tiny_models import write_tiny

    model = write_tiny("qwen3, heads of 64", tmp_path)
    options = {"device": "cuda", "dtype": "bfloat16", "layer-kernel": True}
    sequences = written(tmp_path, prompts(), "torch", **options)
    exact_logits = [logits_behind(model, one) for one in sequences]
    model.bfloat16()
    for one, logits in zip(sequences, exact_logits, strict=True):
        room = 2 * (logits_behind(model, one) - logits).abs().max()
        chosen, best = chosen_and_best(logits, one)
        assert (chosen >= best - 2 * room).all()
