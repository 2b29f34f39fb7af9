# SPDX-License-Identifier: Apache-2.0
"""anyop.torch.replace beside LoRA of PEFT, whichever comes first: results, training, adapters on the disk."""

from __future__ import annotations

import copy
import pickle
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
peft = pytest.importorskip("peft", reason="peft is not installed")
sys.path.insert(0, str(Path(__file__).parent))
models = pytest.importorskip("torch_language_models_test", reason="needs transformers")

PROMPTS, GREEDY = models.PROMPTS, models.GREEDY
PARTS = {
    "Llama": ["q_proj", "v_proj", "gate_proj", "down_proj"],
    "Phi3": ["qkv_proj", "gate_up_proj"],
}
undone = models.undone


def with_lora(model, family):
    """Adapters of random numbers: new ones add nothing."""
    torch.manual_seed(3)
    config = peft.LoraConfig(
        task_type="CAUSAL_LM", r=4, target_modules=PARTS[family], init_lora_weights=False
    )
    return peft.get_peft_model(model, config).eval()


def replaced_with_lora(family, order, fuse):
    model = models.tiny(family)
    if order == "replaced first":
        replaced = models.replace(model, fuse=fuse)
        return with_lora(model, family), replaced
    model = with_lora(model, family)
    return model, models.replace(model, fuse=fuse)


def near(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def logits(model):
    with torch.no_grad():
        return model(PROMPTS).logits


def steps(model):
    """Losses of three steps of AdamW, and the adapters behind them."""
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    losses = []
    for _ in range(3):
        loss = model(input_ids=PROMPTS, labels=PROMPTS).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    model.eval()
    return losses, [p.detach() for name, p in model.named_parameters() if "lora_" in name]


cases = pytest.mark.parametrize(
    ("family", "order", "fuse"),
    [(f, o, u) for f in PARTS for o in ("replaced first", "LoRA first") for u in (False, True)],
)


@cases
def test_results_and_training_are_the_models(family, order, fuse):
    theirs = with_lora(models.tiny(family), family)
    ours, replaced = replaced_with_lora(family, order, fuse)
    assert replaced.swapped["attention"] == 2 and replaced.swapped["Linear"] > 4
    near(logits(ours), logits(theirs))
    assert (logits(theirs) - logits(models.tiny(family))).abs().max() > 0.1
    expected = theirs.generate(input_ids=PROMPTS, **GREEDY)
    assert torch.equal(ours.generate(input_ids=PROMPTS, **GREEDY), expected)
    (found, adapters), (expected, trained) = steps(ours), steps(theirs)
    assert expected[-1] < expected[0]
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(adapters, trained, rtol=1e-2, atol=1e-3)
    replaced.undo()
    same = copy.deepcopy(theirs)
    same.load_state_dict(ours.state_dict())
    assert torch.equal(logits(ours), logits(same))


@cases
def test_adapters_are_merged_left_out_copied_and_unloaded(family, order, fuse):
    ours, _ = replaced_with_lora(family, order, fuse)
    expected = logits(with_lora(models.tiny(family), family))
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        near(logits(other), expected)
    ours.merge_adapter()
    near(logits(ours), expected)
    ours.unmerge_adapter()
    near(logits(ours), expected)
    with ours.disable_adapter():
        near(logits(ours), logits(models.tiny(family)))
    near(logits(ours.merge_and_unload()), expected)


@cases
def test_saved_adapters_are_read_into_models_replaced_or_not(family, order, fuse, tmp_path):
    ours, _ = replaced_with_lora(family, order, fuse)
    steps(ours)
    expected = logits(ours)
    ours.save_pretrained(tmp_path)
    near(logits(peft.PeftModel.from_pretrained(models.tiny(family), tmp_path).eval()), expected)
    other = models.tiny(family)
    models.replace(other, fuse=fuse)
    near(logits(peft.PeftModel.from_pretrained(other, tmp_path).eval()), expected)


def test_saved_adapters_name_the_models_own_class(tmp_path):
    """By which PEFT finds it, where it is told no task."""
    model = models.tiny("Llama")
    models.replace(model)
    config = peft.LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False)
    model.save_pretrained(tmp_path / "base")
    base = type(model).from_pretrained(tmp_path / "base")
    models.replace(base)
    ours = peft.get_peft_model(base, config).eval()
    ours.save_pretrained(tmp_path / "adapter")
    found = peft.AutoPeftModel.from_pretrained(tmp_path / "adapter").eval()
    near(logits(found), logits(ours))
