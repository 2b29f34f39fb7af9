# SPDX-License-Identifier: Apache-2.0
"""The machine on which something is measured: versions, processor, GPU, load."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import anyop


def environment(backends: set[str]) -> dict[str, Any]:
    """Where and with what results were measured."""
    versions = {
        "python": platform.python_version(),
        "anyop": anyop.__version__,
        "numpy": np.__version__,
    }
    found = {
        "cpu": next(_cpu_models(), platform.machine()),
        "cpus": os.cpu_count(),
        "threads": anyop.get_num_threads(),
        "load_average": round(os.getloadavg()[0], 2),
        "utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    if "cuda" in backends:
        import torch

        versions["torch"] = torch.__version__
        found["gpu"] = torch.cuda.get_device_name()
    return {"versions": versions, **found}


def _cpu_models() -> Iterator[str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    yield line.split(":", 1)[1].strip()
    except OSError:
        return
