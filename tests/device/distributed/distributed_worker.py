# SPDX-License-Identifier: Apache-2.0
"""One process of those that torchrun starts: runs every check on one device.

Arguments: the device, the group's backend, a folder. On torch's own device, which is there without anyop's, RANK.pt
gets each check's results; on anyop's, RANK.json gets for each check None or what was wrong.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from datetime import timedelta
from pathlib import Path

import distributed_collectives
import distributed_models
import distributed_rules
import torch
import torch.distributed as dist
from distributed_collectives import Place
from opinfo_tensors import difference
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.utils._pytree import tree_map_only

COMPARED = (distributed_collectives, distributed_models)


def expect(place: Place, file: Path) -> None:
    """Writes what the compared checks give."""
    results = {}
    for function in [function for module in COMPARED for function in module.ALL]:
        torch.manual_seed(0)
        found = function(place)
        results[function.__name__] = tree_map_only(AsyncCollectiveTensor, lambda x: x.wait(), found)
    torch.save(results, file)


def check(place: Place, expected: dict, inner: str, file: Path) -> None:
    """Writes what is wrong with each check. Where not all processes end one, none goes on."""
    report, store = {}, dist.distributed_c10d._get_default_store()
    try:
        for module in (*COMPARED, distributed_rules):
            checks = report[module.__name__.removeprefix("distributed_")] = {}
            for function in module.ALL:
                name = function.__name__
                checks[name] = "did not end"
                torch.manual_seed(0)
                try:
                    found = function(place)
                    if module in COMPARED:
                        found = difference(expected[name], found, inner, "anyop")
                    checks[name] = found
                except Exception:
                    checks[name] = traceback.format_exc()
                store.set(f"ended {name} {place.rank}", "")
                store.wait([f"ended {name} {rank}" for rank in range(place.size)])
    finally:
        file.write_text(json.dumps(report))


def main(device: str, backend: str, folder: str) -> None:
    inner = "cuda" if os.environ["ANYOP_DEVICE_PLATFORM"] == "cuda" else "cpu"
    if device == "anyop":
        import anyop.torch.device  # noqa: F401
    torch.set_num_threads(1)
    if device != "cpu":
        torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend, timeout=timedelta(seconds=180))
    place = Place(device, dist.get_rank(), dist.get_world_size(), backend)
    results = Path(folder, f"{place.rank}.pt")
    if device == "anyop":
        expected = torch.load(results, weights_only=False)
        check(place, expected, inner, results.with_suffix(".json"))
    else:
        expect(place, results)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
