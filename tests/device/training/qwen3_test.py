# SPDX-License-Identifier: Apache-2.0
"""Qwen3 of transformers on the device: tokens, losses and weights are those of the device below, bit for bit.

Options: --model DIR, a checkpoint instead of random weights; --steps N of training.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers.models.qwen3", reason="transformers has no Qwen3")

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from examples.qwen3 import __main__ as command_line  # noqa: E402
from examples.qwen3 import comparison, model  # noqa: E402

SAME = ["logits", "greedy", "sampled", "losses", "logits after training"]


@pytest.fixture
def arguments(request) -> list[str]:
    """What the options of pytest ask for."""
    found = ["--steps", str(request.config.getoption("--steps", 5))]
    if folder := request.config.getoption("--model", None):
        found += ["--model", folder]
    return found


@pytest.fixture
def example(capsys, platform):
    """Runs the program in this process: its exit code, output and complaints."""

    def run(*words: str) -> tuple[int, str, str]:
        code = command_line.main(list(words))
        return code, *capsys.readouterr()

    return run


def check(code: int, output: str, complaints: str = "") -> None:
    assert code == 0, output + complaints
    same = re.findall(r"^like (?:cpu|cuda) +(.*): bitwise equal$", output, re.M)
    assert same == SAME, output
    tokens = re.findall(r"^(?:greedy|sampled) +[\d,]+ tokens/s: (.*) \.\.\.$", output, re.M)
    assert len(tokens) == 4 and tokens[0] != tokens[1], output
    losses = re.findall(r"loss (\S+) to (\S+) in (\d+) steps", output)
    assert len(losses) == 2 and losses[0] == losses[1], output
    first, last, steps = map(float, losses[0])
    assert last < first or steps == 1, output


@pytest.mark.anyplatform
@pytest.mark.parametrize("adamw", ["fused", "foreach", "plain"])
def test_infers_and_trains_as_the_device_below(example, arguments, adamw):
    code, output, complaints = example(*arguments, "--adamw", adamw)
    check(code, output, complaints)
    backends = re.findall(r"^(inference|training) by +(\S+), [\d,]+ calls", output, re.M)
    assert backends == [("inference", "aten"), ("training", "aten")], output


@pytest.mark.anyplatform
def test_checkpoint_in_bfloat16(example, platform, tmp_path):
    config = model.Qwen3Config(**model.SIZES["tiny"])  # weights are not tied
    saved = model.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    saved.save_pretrained(tmp_path)
    file = tmp_path / "results"
    words = ("--model", str(tmp_path), "--rate", "1e-2", "--save", str(file))
    code, output, complaints = example(*words)
    check(code, output, complaints)
    assert "bfloat16" in output
    ids = model.numbers(saved, 2, 32)
    with torch.inference_mode():
        near = {"rtol": 0, "atol": 0.0 if platform == "host" else 0.05}  # a GPU rounds elsewhere
        expected = saved.eval()(ids).logits.float()
        torch.testing.assert_close(torch.load(file)["logits"], expected, **near)


@pytest.mark.host
def test_routes_that_are_used_are_named(example):
    from anyop.torch import device

    device.set_route("mm", "cpu_fallback")
    try:
        code, output, complaints = example("--steps", "1")
    finally:
        device.set_route("mm", "aten")
    assert code == 0 and output.count(": bitwise equal") == len(SAME), output + complaints
    assert (
        len(re.findall(r"by +cpu_fallback, \d+ calls of 1 overloads: mm \d+$", output, re.M)) == 2
    )


@pytest.mark.drawn(2, together="two processes: a model")
@pytest.mark.anyplatform
def test_two_processes_train_as_one(platform, arguments):
    if platform == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("NCCL needs a GPU for each process, there is one")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, "-m", "examples.qwen3", "--ddp", *arguments]
    found = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "ANYOP_DEVICE_PLATFORM": platform, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    check(found.returncode, found.stdout, found.stderr[-3000:])


@pytest.mark.anyplatform
def test_a_wrong_bit_is_noticed():
    found = torch.randn(4, 5)
    other = found.clone()
    other.view(torch.int32)[2, 3] ^= 1
    text, is_near = comparison.difference(found, other)
    assert text.startswith("differ by at most") and is_near
    other[0, 0] = 100
    assert not comparison.difference(found, other)[1]
    assert not comparison.difference(found / 0 * 0, found / 0 * 0)[1]
    tokens = torch.tensor([[1, 2, 3], [4, 5, 6]])
    assert comparison.difference(tokens, tokens) == ("bitwise equal", True)
    others = torch.tensor([[1, 2, 3], [4, 7, 6]])
    assert comparison.difference(tokens, others)[0].startswith("the first 4 of 6")


@pytest.mark.anyplatform
@pytest.mark.parametrize(
    "words, said",
    [
        (["--model", "nowhere"], "nowhere is no folder with"),
        (["--ddp"], "torchrun"),
        (["--device", "cuda"], "no CUDA device"),
    ],
)
def test_mistakes_are_said_in_one_line(example, words, said, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, output, complaints = example(*words)
    assert code == 2 and not output
    assert complaints.startswith("qwen3: ") and said in complaints and complaints.count("\n") == 1
