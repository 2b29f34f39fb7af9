# SPDX-License-Identifier: Apache-2.0
"""A tiny Qwen3 of transformers on torch's device over another device: JSON of how near it is, and of what fell back.

Called by tests/runtimes/runtimes_qwen3_test.py with ANYOP_DEVICE_PLATFORM and ANYOP_ROUTES set.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
import torch
from anyop.torch import device

from examples.qwen3 import inference, model

TOKENS = 4


def main() -> None:
    made = model.make(argparse.Namespace(model=None, size="tiny", dtype=None)).eval()
    prompt = model.numbers(made, 2, 12)
    expected = inference.logits(made, prompt), inference.generate(made, prompt, TOKENS)
    there, prompt = made.to("anyop"), prompt.to("anyop")
    before = {op: device.calls(op) for op in device.registered_ops()}
    device.count_calls(True)
    found = inference.logits(there, prompt), inference.generate(there, prompt, TOKENS).cpu()
    device.count_calls(False)
    used: dict[str, list[str]] = {}
    for op, had in before.items():
        for backend, count in device.calls(op).items():
            if count > had[backend]:
                used.setdefault(backend, []).append(op)
    off = (found[0] - expected[0]).abs().max().item() / expected[0].abs().max().item()
    report = {"off": off, "same": torch.equal(found[1], expected[1]), "used": used}
    print("report", json.dumps(report))


if __name__ == "__main__":
    main()
