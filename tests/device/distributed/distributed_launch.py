# SPDX-License-Identifier: Apache-2.0
"""Runs distributed_worker.py with torchrun in two processes, on each device; judges what they report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
BESIDE = [HERE.parent, HERE.parent / "opinfo"]  # slow_stream, opinfo_tensors
SECONDS = 300


def launch(platform: str, backend: str, folder: Path) -> list[dict[str, dict[str, str | None]]]:
    """What each process found wrong with each check of each module.

    Results of torch's own device come from processes without anyop's: beside it, native cuda has no backward.
    """
    for device in ("cuda" if platform == "cuda" else "cpu", "anyop"):
        run(device, platform, backend, folder)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def run(device: str, platform: str, backend: str, folder: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    command += [str(HERE / "distributed_worker.py"), device, backend, str(folder)]
    environment = {
        **os.environ,
        "ANYOP_DEVICE_PLATFORM": platform,
        "ANYOP_FALLBACK": "error",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": ":".join([*map(str, BESIDE), os.environ.get("PYTHONPATH", "")]),
        "PYTHONWARNINGS": "ignore",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    }
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env=environment,
    ) as process:
        try:
            output, _ = process.communicate(timeout=SECONDS)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, f"on {device}: {output[-4000:]}"


def judge(reports: list[dict[str, dict[str, str | None]]], module: str) -> None:
    """Prints how many checks were right; asserts that all were."""
    wrong = []
    for rank, report in enumerate(reports):
        checks = report.get(module, {})
        wrong += [f"process {rank}, {name}: {text}" for name, text in checks.items() if text]
        print(f"process {rank}: {sum(text is None for text in checks.values())} checks right")
    assert not wrong, "\n".join(wrong)
    assert all(report.get(module) for report in reports), "not reached: an earlier check was wrong"
