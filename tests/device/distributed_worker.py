# SPDX-License-Identifier: Apache-2.0
"""One process of those that torchrun starts: runs every check on both devices and reports which were right.

Arguments: the group's backend, a folder. The report, RANK.json, has for each check None or what was wrong.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import anyop.torch.device
import distributed_collectives
import distributed_models
import distributed_rules
import torch
import torch.distributed as dist
from distributed_collectives import Place
from opinfo_tensors import difference

MODULES = (distributed_collectives, distributed_models, distributed_rules)


def compare(function: Callable, place: Place, inner: str) -> str | None:
    """What the device's results differ in from the inner device's."""
    results = []
    for device in (inner, "anyop"):
        torch.manual_seed(0)
        results.append(function(place._replace(device=device)))
    return difference(*results, inner, "anyop")


def main(backend: str, folder: str) -> None:
    inner = "cuda" if anyop.torch.device.platform() == "cuda" else "cpu"
    torch.set_num_threads(1)
    torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend, timeout=timedelta(seconds=60))
    place = Place("anyop", dist.get_rank(), dist.get_world_size(), backend)
    report = {}
    try:
        for module in MODULES:
            checks = report[module.__name__.removeprefix("distributed_")] = {}
            for function in module.ALL:
                checks[function.__name__] = "did not end"
                asserts = module is distributed_rules
                found = function(place) if asserts else compare(function, place, inner)
                checks[function.__name__] = found
                if found:  # the next one's processes might wait for each other in vain
                    return
    except Exception:
        checks[function.__name__] = traceback.format_exc()
    finally:
        Path(folder, f"{place.rank}.json").write_text(json.dumps(report))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
