# SPDX-License-Identifier: Apache-2.0
"""Writes the reports of false runtimes in bench/results/devices anew; tools/device_labels.py makes the table of them.

    python tests/runtimes/reports.py [--cudart libcudart.so.13]

Without one every row runs over the device host; over the cudart of a GPU row.cuda itself, and hip, maca and musa.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from false_runtimes import HERE, ROWS, device_name, make, run

REPORTS = HERE.parents[1] / "bench" / "results" / "devices"


def environment_of(row: str, folder: Path, cudart: Path | None) -> dict[str, str]:
    """Where the row's library is found: made here, but for CUDA's own."""
    if row != "cuda" or not cudart:
        return make(row, folder, cudart=cudart).environment
    major = cudart.resolve().name.split(".so.")[1].split(".")[0]
    (folder / f"libcudart.so.{major}").symlink_to(cudart.resolve())
    return {"LD_LIBRARY_PATH": str(folder)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cudart", type=Path, help="the runtime of a GPU")
    parser.add_argument("--to", type=Path, default=REPORTS, help="a folder")
    options = parser.parse_args()
    failed = []
    for row in ("cuda", "hip", "maca", "musa") if options.cudart else ROWS:
        name = device_name(row)
        file = options.to.resolve() / f"{name}{'_gpu' if options.cudart else ''}.json"
        with tempfile.TemporaryDirectory() as folder:
            environment = environment_of(row, Path(folder), options.cudart)
            words = ("-m", "anyop", "device-check", name, "--operators", "--report", str(file))
            code, text = run(environment, *words)
        print(f"{name}: {text.splitlines()[-1]}", flush=True)
        if code:
            failed.append(name)
            print(text)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
