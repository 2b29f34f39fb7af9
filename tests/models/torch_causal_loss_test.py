# SPDX-License-Identifier: Apache-2.0
"""Causal language models of transformers train without logits, with the loss and the gradients that they had."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import sys
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported
sys.path.insert(0, str(Path(__file__).parent))

torch = pytest.importorskip("torch", reason="torch is not installed")

import anyop.torch  # noqa: E402
from anyop import testing  # noqa: E402
from anyop.torch.causal_loss import match_loss  # noqa: E402
from anyop.torch.models.matching import Refusal  # noqa: E402

FAMILIES = {  # class prefix: other settings
    "Llama": {},
    "Gemma2": {"final_logit_softcapping": 5.0},
    "Granite": {"logits_scaling": 4.0},
    "Phi": {},  # with a bias
    "GPT2": {},
}


def tiny(name):
    models = pytest.importorskip("torch_language_models_test", reason="needs transformers")
    model = models.tiny(name, **FAMILIES.get(name, {})).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def batch():
    ids = torch.randint(0, 61, (2, 9), generator=torch.Generator().manual_seed(0))
    labels = ids.clone()
    labels[0, :4] = -100
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def gradients(model, **more):
    model.zero_grad(set_to_none=True)
    found = model(**batch(), **more)
    found.loss.backward()
    return found, [p.grad for p in model.parameters()]


def skip_logits(model):
    return anyop.torch.replace(model, modules=["loss"], verbose=False)


@pytest.mark.parametrize("name", FAMILIES)
def test_loss_and_gradients_are_the_model_s_own(name):
    model = tiny(name)
    for more in ({}, {"num_items_in_batch": torch.tensor(5)}):
        theirs, expected = gradients(model, **more)
        with skip_logits(model) as skipped:
            assert list(skipped.swapped.values()) == [1], skipped.left
            mine, found = gradients(model, **more)
            assert mine.logits is None and type(mine) is type(theirs)
            torch.testing.assert_close(mine.loss, theirs.loss)
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
            with torch.no_grad():  # evaluation, other calls: the model's own
                torch.testing.assert_close(model.eval()(**batch()).logits, theirs.logits)
            assert model.train()(input_ids=batch()["input_ids"]).loss is None
            assert len(model(**batch(), return_dict=False)[1].shape) == 3
            assert model(**batch(), logits_to_keep=torch.arange(9)).logits is not None
        assert model(**batch()).logits is not None


def calls():
    return sum(kernel.calls for kernel in testing.kernel_calls("linear_cross_entropy"))


def test_the_operator_runs_and_the_model_stays_one():
    model = tiny("Llama")
    forward, kind = inspect.signature(model.forward), type(model)
    skip_logits(model)
    assert inspect.signature(model.forward) == forward and type(model).__name__ == kind.__name__
    assert isinstance(model, kind) and match_loss(model) is None
    testing.observe("linear_cross_entropy")
    before = calls()
    gradients(model)
    assert calls() == before + 1
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other(**batch()).logits is None
    model.lm_head.register_forward_hook(lambda *_: None)  # somebody who wants to see the logits
    assert model(**batch()).logits is not None


def test_what_is_left():
    model = tiny("Llama")
    model.loss_function = lambda *args, **kwargs: torch.zeros(())
    assert "loss is not" in match_loss(model).reason
    model = tiny("Llama")
    model.lm_head = torch.nn.Sequential(model.lm_head)
    assert isinstance(match_loss(model), Refusal)
    assert match_loss(torch.nn.Linear(2, 2)) is None
    replaced = skip_logits(torch.nn.Sequential(torch.nn.Linear(2, 2)))
    assert not replaced.swapped and not replaced.left


def test_replace_takes_it_among_all():
    model = tiny("Llama")
    with anyop.torch.replace(model, timed=False, verbose=False) as replaced:
        assert replaced.swapped["LlamaForCausalLM"] == 1
        assert gradients(model)[0].logits is None
