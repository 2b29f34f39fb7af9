# SPDX-License-Identifier: Apache-2.0
"""anyop.torch.replace leaves what gains nothing; measuring leaves no trace."""

from __future__ import annotations

import copy
import importlib
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import anyop.torch  # noqa: E402
from anyop.testing import kernel_calls, observe  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
from torch_replace_test import model  # noqa: E402


def test_what_gains_nothing_is_left_with_its_figures(monkeypatch):
    """As if so much was measured; what modules names is swapped without being measured."""
    gains = importlib.import_module("anyop.torch.models.gains")
    plain = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())

    def found(*times, few=1.0, **more):
        monkeypatch.setattr(gains, "_known", {})
        given = {1: times[0], 16: few, gains.MANY: times[1]}

        def measured(own, ours, device, kind):
            rows = {
                c.cell_contents.shape[1]
                for c in own.__closure__
                if hasattr(c.cell_contents, "shape")
            }
            return given[rows.pop()], 1.0

        monkeypatch.setattr(gains, "_times", measured)
        with anyop.torch.replace(plain, verbose=False, **more) as replaced:
            return replaced, type(plain[0])

    reason = "it would be 1.00 and 1.01 times as fast for 1 and 128 rows"
    replaced, kind = found(1.0, 1.01)
    assert replaced.left == {("Linear", reason): 1, ("ReLU", reason): 1} and not replaced.swapped
    assert f"      1 Linear left: {reason}" in str(replaced).splitlines()
    replaced, kind = found(0.94, 3.0)
    assert not replaced.swapped and kind is torch.nn.Linear
    replaced, kind = found(1.5, 1.0)
    assert replaced.swapped == {"Linear": 1, "ReLU": 1} and kind is anyop.torch.nn.Linear
    assert replaced.gains["ReLU"] == (1.5, 1.0)
    assert "      1 ReLU: 1.50 and 1.00 times as fast for 1 and 128 rows" in str(replaced)
    replaced, kind = found(3.0, 0.5)
    assert replaced.swapped == {"Linear": 1} and kind.__name__ == "FewRowsLinear"
    assert replaced.gains == {"Linear": (3.0, 1.0)}
    assert found(3.0, 0.5, few=0.9)[1] is torch.nn.Linear
    assert found(0.1, 0.1, modules=["Linear"])[1] is anyop.torch.nn.Linear
    assert found(0.1, 0.1, timed=False)[1] is anyop.torch.nn.Linear


def test_times_are_measured_once_and_leave_no_trace(tmp_path, monkeypatch):
    gains = importlib.import_module("anyop.torch.models.gains")
    monkeypatch.setattr(gains, "_known", {})
    monkeypatch.setattr(gains, "SECONDS", 1e-3)
    plain, state = model(), torch.get_rng_state()
    anyop.record(tmp_path / "calls.jsonl")
    try:
        anyop.torch.replace(plain, verbose=False).undo()
        known = dict(gains._known)
        anyop.torch.replace(plain, verbose=False)
        anyop.relu(torch.zeros(1))
    finally:
        anyop.record(None)
    said = (tmp_path / "calls.jsonl").read_text()
    assert "relu" in said and "linear" not in said
    assert torch.equal(torch.get_rng_state(), state)
    assert known == gains._known and len(known) >= 10
    assert all(gain is not None and min(gain) > 0 for gain in known.values())


def test_a_linear_that_is_ours_for_few_rows():
    plain = torch.nn.Linear(6, 5)
    ours = copy.deepcopy(plain)
    object.__setattr__(
        ours, "__class__", importlib.import_module("anyop.torch.layers").FewRowsLinear
    )
    for rows, runs in ((1, 1), (16, 1), (17, 0)):
        x = torch.randn(rows, 6)
        observe("linear")
        before = sum(kernel.calls or 0 for kernel in kernel_calls("linear"))
        torch.testing.assert_close(ours(x), plain(x))
        assert sum(kernel.calls or 0 for kernel in kernel_calls("linear")) == before + runs


def test_parts_of_decoders_are_left_or_joined_for_few_rows_by_their_times(monkeypatch):
    language_models = pytest.importorskip("torch_language_models_test")
    gains, prompts = importlib.import_module("anyop.torch.models.gains"), language_models.PROMPTS
    plain = language_models.tiny("Llama")
    own = plain(prompts).logits

    def replaced_by(gain, few=None):
        def measured(kind, of, calls, device):
            (before, ours), _ = calls(1), calls(gains.MANY)
            found = before()
            if kind in ("attention", "rope"):
                torch.testing.assert_close(ours()[0], found[0], rtol=1e-4, atol=1e-4)
            return few if gains.FEW in of else gain

        monkeypatch.setattr(gains, "gain", measured)
        return anyop.torch.replace(plain, fuse=True, verbose=False)

    slower, few_only = gains.Gain(0.5, 0.5), gains.Gain(2.0, 0.5)
    with replaced_by(slower) as replaced:
        assert set(replaced.swapped) == {"LlamaForCausalLM"} and not replaced.joined  # its loss
        names = {name for name, _ in replaced.left}
        assert {"attention", "rope", "LlamaMLP", "LlamaDecoderLayer", "Linear"} <= names
        assert torch.equal(plain(prompts).logits, own)
    with replaced_by(gains.Gain(2.0, 2.0)) as replaced, torch.no_grad():
        assert replaced.joined.total() == 4 and not replaced.left
        assert language_models.products(lambda: plain(prompts)) == [7, 2]
        assert language_models.products(lambda: plain(prompts.repeat(1, 2))) == [7, 2]
        assert "joined: 2.00 and 2.00 times as fast" in str(replaced)
    with replaced_by(few_only, gains.Gain(1.0, 0.5)) as replaced, torch.no_grad():
        assert replaced.swapped == {"Linear": 15, "LlamaForCausalLM": 1}
        assert replaced.joined == {"q_proj, k_proj, v_proj": 2}
        assert language_models.products(lambda: plain(prompts[:1])) == [11, 0]
        assert language_models.products(lambda: plain(prompts)) == [0, 0]
