# SPDX-License-Identifier: Apache-2.0
"""anyop.torch.replace: what is swapped gives the same results, what cannot be stays, and all can be undone."""

from __future__ import annotations

import copy
import functools
import importlib
import itertools
import os
import pickle

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported

torch = pytest.importorskip("torch", reason="torch is not installed")

import anyop.torch  # noqa: E402
from anyop.testing import kernel_calls, observe  # noqa: E402

replace = functools.partial(anyop.torch.replace, timed=False)  # no test depends on a time


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Embedding(11, 6, padding_idx=0), torch.nn.LayerNorm(6), torch.nn.Linear(6, 8),
        torch.nn.GELU(), torch.nn.Dropout(0.5), torch.nn.Linear(8, 6), torch.nn.ReLU(),
        torch.nn.RMSNorm(6), torch.nn.SiLU(), torch.nn.Softmax(1), torch.nn.LogSoftmax(-1),
    )  # fmt: skip


INDICES = torch.tensor([[3, 0, 10], [1, 1, 2]])


def tiny(name, **settings):
    """A model of transformers with random weights: class prefix, changed settings."""
    transformers = pytest.importorskip("transformers", reason="the models are transformers'")
    config = {
        "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    }  # fmt: skip
    torch.manual_seed(0)
    config = getattr(transformers, name + "Config")(**config | settings)
    built = transformers.AutoModel.from_config(config).eval()
    for parameter in built.parameters():  # ones and zeros hide a formula
        parameter.data += 0.1 * torch.randn_like(parameter)
    return built


def test_swaps_in_place_prints_and_undoes(capsys):
    plain = model()
    before = [(type(module), id(module)) for module in plain.modules()]
    parameters = list(map(id, plain.parameters()))
    with torch.no_grad():
        expected = plain.eval()(INDICES)
        with replace(plain) as replaced:
            assert replaced.swapped["Linear"] == 2 and replaced.swapped.total() == 10
            assert [id(module) for module in plain.modules()] == [key for _, key in before]
            assert list(map(id, plain.parameters())) == parameters
            assert type(plain[2]) is anyop.torch.nn.Linear and type(plain[4]) is torch.nn.Dropout
            torch.testing.assert_close(plain(INDICES), expected, rtol=1e-6, atol=1e-6)
        assert [(type(module), id(module)) for module in plain.modules()] == before
        assert torch.equal(plain(INDICES), expected)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "anyop.torch.replace: 10 modules run anyop operators"
    assert "      2 Linear" in lines
    replaced.undo()
    replace(plain, verbose=False)
    assert capsys.readouterr().out == ""
    assert replace(plain, verbose=False).swapped.total() == 0


def test_operators_really_run(monkeypatch):
    calls = []
    real = anyop.linear
    monkeypatch.setattr(anyop, "linear", lambda *args: calls.append(1) or real(*args))
    plain = model()
    with torch.no_grad():
        plain(INDICES)
        assert not calls
        replace(plain, verbose=False)
        plain(INDICES)
    assert len(calls) == 2


def test_hooks_flags_and_tied_weights_are_kept():
    plain = model()
    plain[5].weight = torch.nn.Parameter(plain[2].weight.detach().t().contiguous())
    tied = torch.nn.Linear(6, 11, bias=False)
    tied.weight = plain[0].weight
    plain.append(tied)
    seen = []
    plain[2].register_forward_hook(lambda *_: seen.append("forward"))
    plain[2].weight.requires_grad_(False)
    plain[3].eval()
    replaced = replace(plain, verbose=False)
    assert plain[11].weight is plain[0].weight and type(plain[11]) is anyop.torch.nn.Linear
    assert plain[2].training and not plain[3].training and not plain[2].weight.requires_grad
    with torch.no_grad():
        plain(INDICES)
    assert seen == ["forward"]
    replaced.undo()
    assert len(plain[2]._forward_hooks) == 1


def test_what_cannot_be_reproduced_stays():
    class Subclass(torch.nn.Linear):
        def forward(self, input):
            return super().forward(input) + 1

    class Weight(torch.Tensor):
        pass

    odd = torch.nn.Linear(2, 2)
    odd.weight = torch.nn.Parameter(odd.weight.detach().as_subclass(Weight))
    changed = torch.nn.Linear(2, 2)
    changed.forward = lambda input: input
    complex_linear = torch.nn.Linear(2, 2, dtype=torch.complex64)
    parametrized = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 2))
    plain = torch.nn.ModuleList([
        Subclass(2, 2), odd, changed, complex_linear, parametrized, torch.nn.SiLU(inplace=True),
        torch.nn.Softmax(), torch.nn.Embedding(3, 2, max_norm=1.0), torch.nn.LazyLinear(3),
        torch.nn.Embedding(3, 2, sparse=True), torch.nn.Dropout(), torch.nn.LSTM(2, 2),
    ])  # fmt: skip
    types = [type(module) for module in plain]
    replaced = replace(plain, verbose=False)
    assert [type(module) for module in plain] == types and not replaced.swapped
    reasons = {reason for _, reason in replaced.left}
    assert reasons == {
        "it holds a Weight", "its forward was replaced", "it holds complex64", "inplace=True",
        "no dim", "max_norm=1.0", "sparse=True",
    }  # fmt: skip
    assert "1 Embedding left: max_norm=1.0" in str(replaced)


def test_a_device_without_kernels_is_left(monkeypatch):
    monkeypatch.setattr(anyop, "backends", lambda name: ["cuda"])
    replaced = replace(model(), verbose=False)
    assert not replaced.swapped
    assert replaced.left["Linear", "no kernel of linear on cpu"] == 2
    monkeypatch.undo()
    with torch.device("meta"):
        assert replace(model(), verbose=False).swapped.total() == 10


def test_modules_chooses_classes():
    plain = model()
    replaced = replace(plain, modules=["Linear", torch.nn.GELU], verbose=False)
    assert replaced.swapped == {"Linear": 2, "GELU": 1}
    replaced.undo()
    assert replace(plain, modules="ReLU", verbose=False).swapped == {"ReLU": 1}
    with pytest.raises(ValueError, match="no module of class Liner, Tanh"):
        replace(plain, modules=["Linear", "Liner", torch.nn.Tanh])
    assert type(plain[2]) is torch.nn.Linear
    with pytest.raises(TypeError, match="model is int, expected a Module"):
        replace(3)


def test_undo_leaves_what_became_another_class():
    plain = model()
    replaced = replace(plain, verbose=False)
    torch.nn.utils.parametrizations.weight_norm(plain[2])
    with pytest.raises(RuntimeError, match="became another class since: ParametrizedLinear"):
        replaced.undo()
    assert type(plain[5]) is torch.nn.Linear
    replaced.undo()


def test_a_model_that_is_one_layer():
    layer = torch.nn.Linear(3, 2)
    with replace(layer, verbose=False):
        assert type(layer) is anyop.torch.nn.Linear
    assert type(layer) is torch.nn.Linear


FAMILIES = {  # name: settings, what is swapped beside torch.nn's own, what is left
    "Llama": ({}, {"LlamaRMSNorm": 5, "LlamaMLP": 2, "SiLUActivation": 2}, set()),
    "Qwen3": ({"head_dim": 8}, {"Qwen3RMSNorm": 9, "Qwen3MLP": 2}, set()),
    "Phi3": ({}, {"Phi3RMSNorm": 5, "Phi3MLP": 2}, set()),
    "Gemma": ({"head_dim": 8}, {"GemmaMLP": 2, "GELUTanh": 2, "GemmaRMSNorm": 5}, set()),
    "Gemma2": ({"head_dim": 8}, {"Gemma2MLP": 2, "Gemma2RMSNorm": 9}, set()),
    "Olmo2": ({}, {"Olmo2RMSNorm": 9, "Olmo2MLP": 2}, set()),
    "Bert": ({}, {"GELUActivation": 2, "LayerNorm": 5}, set()),
    "GPT2": (
        {"n_embd": 32, "n_head": 4, "n_layer": 2},
        {"NewGELUActivation": 2, "Conv1D": 8},
        set(),
    ),
    "Gemma3Text": ({"head_dim": 8}, {"Gemma3TextScaledWordEmbedding": 1, "Gemma3MLP": 2}, set()),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_hugging_face_models(family, dtype):
    settings, swapped, left = FAMILIES[family]
    plain = tiny(family, **settings).to(dtype)
    ids = torch.randint(3, 61, (2, 9))
    random_state = torch.get_rng_state()
    with torch.no_grad():
        expected = plain(ids).last_hidden_state
        with replace(plain, verbose=False) as replaced:
            found = plain(ids).last_hidden_state
        undone = plain(ids).last_hidden_state
    assert torch.equal(torch.get_rng_state(), random_state)
    assert {**replaced.swapped, **swapped} == replaced.swapped
    assert {name for name, _ in replaced.left} == left
    # Of bfloat16, units in the last place; the layers' own roundings.
    tolerance = 1e-5 if dtype is torch.float32 else 6e-2
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(undone, expected) and expected.abs().max() > 0.5


def test_swapped_models_are_copied_and_pickled():
    plain = tiny("Qwen3", head_dim=8)
    ids, original = torch.arange(3, 12)[None], type(plain.norm)
    replaced = replace(plain, verbose=False)
    norm = type(plain.norm)
    assert norm.__name__ == "Qwen3RMSNorm" and isinstance(plain.norm, original)
    with torch.no_grad():
        expected = plain(ids).last_hidden_state
        for other in (copy.deepcopy(plain), pickle.loads(pickle.dumps(plain))):
            assert type(other.norm) is norm and other.norm.weight is not plain.norm.weight
            assert torch.equal(other(ids).last_hidden_state, expected)
    replaced.undo()
    assert type(plain.norm) is original


class EpsNorm(torch.nn.Module):
    """An RMS norm; formula chooses one that is none."""

    def __init__(self, formula="right"):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8))
        self.eps = 1e-3
        self.formula = formula

    def forward(self, x):
        eps = {"other eps": 1e-6}.get(self.formula, self.eps)
        y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
        y = y * {"square": self.weight}.get(self.formula, 1.0)
        y = y + (1.0 if self.formula == "training" and self.training else 0.0)
        return (y * self.weight).to(x.dtype)


@pytest.mark.parametrize("formula", ["right", "other eps", "square", "training"])
def test_another_formula_is_found_out_by_its_results(formula):
    module = EpsNorm(formula).eval()
    replaced = replace(module, verbose=False)
    if formula == "right":
        assert replaced.swapped == {"EpsNorm": 1}
    else:
        assert replaced.left == {("EpsNorm", "it does not compute rms_norm"): 1}
        assert type(module) is EpsNorm


def norms_run():
    observe("rms_norm")
    return sum(kernel.calls or 0 for kernel in kernel_calls("rms_norm"))


NORMS = {  # module of transformers.models: class
    "llama": "LlamaRMSNorm",
    "gemma": "GemmaRMSNorm",
    "gemma2": "Gemma2RMSNorm",
    "gemma3": "Gemma3RMSNorm",
    "t5": "T5LayerNorm",
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_whose_weight_has_another_dtype(name):
    """They run the operator, and give what their own forward gives, gradients too."""
    pytest.importorskip("transformers", reason="the models are transformers'")
    model = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    limits = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
    random = torch.Generator().manual_seed(0)
    for types in itertools.product(limits, repeat=2):
        plain = getattr(model, NORMS[name])(48).to(types[1])
        plain.weight.data = torch.randn(48, generator=random).to(types[1])
        swapped, limit = copy.deepcopy(plain), max(limits[kind] for kind in types)
        assert replace(swapped, verbose=False).swapped == {NORMS[name]: 1}
        x, grad = (torch.randn(3, 5, 48, generator=random).to(types[0]) for _ in range(2))
        found, expected = [], []
        before = norms_run()
        for module, results in ((plain, expected), (swapped, found)):
            given = x.clone().requires_grad_()
            out = module(given)
            out.backward(grad.to(out.dtype))
            results += [out, given.grad, module.weight.grad]
        assert norms_run() == before + 1, types
        for ours, theirs, scale in zip(found, expected, (1, 1, 10), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=limit, atol=scale * limit)


def test_torchs_rms_norm_with_a_weight_of_any_dtype():
    """What torch takes is taken after the swap too, with the dtypes that torch gives."""
    limits = {torch.float64: 1e-6, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
    for types in itertools.product(limits, repeat=2):
        plain = torch.nn.RMSNorm(48, eps=1e-5).to(types[1])
        torch.nn.init.normal_(plain.weight)
        swapped, limit = copy.deepcopy(plain), max(limits[kind] for kind in types)
        assert replace(swapped, verbose=False).swapped == {"RMSNorm": 1}
        x, found = torch.randn(3, 48).to(types[0]), []
        for module in (plain, swapped):
            given = x.clone().requires_grad_()
            out = module(given)
            out.sum().backward()
            found.append((out, given.grad, module.weight.grad))
        for theirs, ours in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=limit, atol=10 * limit)


def test_a_norm_that_refuses_mixed_dtypes_still_does():
    class StrictNorm(EpsNorm):
        def forward(self, x):
            if x.dtype is not self.weight.dtype:
                raise TypeError("one dtype")
            return super().forward(x)

    module = StrictNorm()
    assert replace(module, verbose=False).swapped == {"StrictNorm": 1}
    with pytest.raises(TypeError, match="one dtype"):
        module(torch.randn(3, 8, dtype=torch.bfloat16))
    copied = pickle.loads(pickle.dumps(replace_and_give(EpsNorm())))
    assert copied(torch.ones(2, 8, dtype=torch.bfloat16)).dtype is torch.bfloat16


def replace_and_give(module):
    replace(module, verbose=False)
    return module


def test_a_mixed_norm_compiles_in_one_graph():
    module = EpsNorm()
    replace(module, verbose=False)
    x = torch.randn(3, 8, dtype=torch.bfloat16)
    found = torch.compile(module, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(found, module(x))


def test_dir_shows_what_users_call():
    public = [name for name in dir(anyop.torch) if not name.startswith("_")]
    assert [name for name in public if name != "device"] == [
        "apex",
        "attention",
        "experts",
        "nn",
        "optim",
        "overlay",
        "replace",
    ]
    assert all(hasattr(anyop.torch, name) for name in dir(anyop.torch))


def test_the_trials_are_no_part_of_a_record(tmp_path):
    """What `anyop tune` reads is the program's calls alone."""
    record = tmp_path / "run.jsonl"
    anyop.record(record)
    try:
        module = EpsNorm()
        assert replace(module, verbose=False).swapped == {"EpsNorm": 1}
        assert not record.read_text()
        with torch.no_grad():
            module(torch.randn(5, 8))
    finally:
        anyop.record(None)
    (line,) = [line for line in record.read_text().splitlines() if '"op' in line]
    assert "rms_norm" in line and "[5,8]" in line.replace(" ", "")


def packable():
    torch.manual_seed(0)
    layers = torch.nn.Linear(64, 128), torch.nn.Linear(128, 65), torch.nn.Linear(65, 64)
    return torch.nn.Sequential(*layers).to(torch.bfloat16).eval()


def packed_calls(run) -> int:
    observe("linear_packed")
    before = sum(kernel.calls for kernel in kernel_calls("linear_packed"))
    run()
    return sum(kernel.calls for kernel in kernel_calls("linear_packed")) - before


@torch.no_grad()
def test_packed_weights_follow_every_change_that_torch_sees(capsys):
    plain, x = packable(), torch.randn(3, 64).bfloat16()
    ours = copy.deepcopy(plain)
    replaced = replace(ours, pack=True, modules=["Linear"])
    assert replaced.packed == 1 and "    1 keep packed weights" in capsys.readouterr().out
    assert list(ours.state_dict()) == list(plain.state_dict())

    def same(ours=ours):
        with torch.no_grad():
            torch.testing.assert_close(ours(x), plain(x), rtol=2e-2, atol=2e-2)

    assert packed_calls(same) == 1 and packed_calls(same) == 1
    held = ours[0].__dict__["_kept"]
    same()
    assert ours[0].__dict__["_kept"] is held  # packed once
    for model in (plain, ours):
        model[0].weight.mul_(-3)
    assert packed_calls(same) == 1 and ours[0].__dict__["_kept"] is not held
    for model in (plain, ours):
        model[0].weight.data = torch.full_like(model[0].weight, 0.5)
    same()
    for model in (plain, ours):
        model[0].weight = torch.nn.Parameter(torch.full((128, 64), -0.25).bfloat16())
    same()
    for model in (plain, ours):
        model.load_state_dict(packable().state_dict())
    same()
    for model in (plain, ours):
        model[0].weight.data.mul_(2)  # torch does not see it
    ours[0].repack()
    same()
    for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert copied[0].__dict__["_kept"] is None
        assert packed_calls(lambda copied=copied: same(copied)) == 1
    replaced.undo()
    assert type(ours[0]) is torch.nn.Linear and "_kept" not in ours[0].__dict__


def test_packed_linear_is_linear_where_it_cannot_pack():
    ours, x = packable(), torch.randn(3, 64).bfloat16()
    replace(ours, pack=True, modules=["Linear"], verbose=False)
    assert packed_calls(lambda: ours(x)) == 0  # a gradient is recorded
    ours(x).sum().backward()
    assert all(parameter.grad is not None for parameter in ours.parameters())
    with torch.no_grad():
        assert packed_calls(lambda: ours(torch.randn(129, 64).bfloat16())) == 0
        assert packed_calls(lambda: ours(torch.randn(128, 64).bfloat16())) == 1
        assert packed_calls(lambda: ours.float()(torch.randn(3, 64))) == 0
