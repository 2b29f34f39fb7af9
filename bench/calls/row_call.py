# SPDX-License-Identifier: Apache-2.0
"""Times functions of devices beside one another: the row cuda of the plugin cuda_like beside the built-in device.

    python bench/calls/row_call.py [--devices cuda,row.cuda] [--rounds 30] [--calls 300] [--write]

Allocate and free of 1 MiB, a copy of 4 KiB from pinned memory, the record of an event, and that with waiting for it.
The devices take turns. The folder of libcudart.so belongs into LD_LIBRARY_PATH. The goal is 1.1 times the first.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import ROOT, environment, spread, write

FIGURE = 1.1


def measure(devices: list[str], rounds: int, calls: int) -> dict[str, list[list[float]]]:
    """For each case the nanoseconds of each device."""
    import anyop

    library = Path(anyop._anyop.__file__).parent / "lib"
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/row_call"
        words = [
            "g++",
            "-std=c++17",
            "-O2",
            f"-I{anyop.include_dir()}",
            str(ROOT / "bench/calls/row_call.cc"),
        ]
        words += ["-o", program, f"-L{library}", "-lanyop", f"-Wl,-rpath,{library}"]
        subprocess.run(words, check=True)
        ran = [program, str(rounds), str(calls), *devices]
        text = subprocess.run(ran, check=True, capture_output=True, text=True).stdout
    found: dict[str, list[list[float]]] = defaultdict(lambda: [[] for _ in devices])
    for line in text.splitlines():
        case, side, ns = line.split()
        found[case][int(side)].append(float(ns))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", default="cuda,row.cuda")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    devices = options.devices.split(",")
    rows = []
    for case, sides in measure(devices, options.rounds, options.calls).items():
        spreads = [spread(times) for times in sides]
        for device, found in zip(devices, spreads):
            ratio = round(found["median_ns"] / spreads[0]["median_ns"], 3)
            rows.append(
                {"case": case, "device": device, **found, "ratio": ratio, "at_most": FIGURE}
            )
            print(f"{case:<10}{device:<12}{found['median_ns']:>10.0f} ns  {ratio:.3f}")
    if options.write:
        import anyop

        print("written to", write("row_call", rows, environment(anyop)).relative_to(ROOT))


if __name__ == "__main__":
    main()
