# SPDX-License-Identifier: Apache-2.0
"""Drawn damage to all files that anyop reads: no signal, no hang, nothing wrong is taken, and each refusal has a text.

A slice runs always; ANYOP_TEST_FULL=1 draws a hundred times as much.
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import anyop
import pytest
import small_builds as sb

cache_folder = sb.cache_folder
pytestmark = sb.needs_compiler
FACTOR, SEED = (100, None) if os.environ.get("ANYOP_TEST_FULL") == "1" else (1, 18)
COUNTS = {"entry": 200, "manifest": 400, "library": 200, "stripped": 200, "operators": 150, "routes": 300,
          "toolchains": 200}  # fmt: skip
ROUTES = "rms_norm = cpu\nrelu = cpu\n"
TOOLCHAINS = '[mine]\nlike = "c++"\nnames = ["g++-99"]\n\n[other]\nbackend = "cuda"\nnames = ["x"]\ncompile = ["-O2"]\n'


@pytest.mark.parametrize("kind", COUNTS)
def test_drawn_damage(kind, cache_folder, tmp_path, report):
    folder = tmp_path / "files"
    sb.write_operator(folder / "ops")
    built = Path(anyop.build(folder / "ops", out=folder / "out"))
    built.rename(folder / "lib.so")
    (folder / "routes.toml").write_text(ROUTES)
    (folder / "toolchains.toml").write_text(TOOLCHAINS)
    seed = int.from_bytes(os.urandom(4), "little") if SEED is None else SEED
    words = [
        sys.executable,
        Path(__file__).with_name("damage.py"),
        kind,
        seed,
        COUNTS[kind] * FACTOR,
        folder,
    ]
    done = subprocess.run(
        list(map(str, words)), env=sb.environment(cache_folder), capture_output=True, text=True, timeout=60 * FACTOR
    )  # fmt: skip
    lines = done.stdout.splitlines()
    last = "\n".join(lines[-2:])
    assert done.returncode == 0, (
        f"seed {seed}: ended with {done.returncode} behind\n{last}\n{done.stderr[-2000:]}"
    )
    said = Counter(line.split(":")[0].strip() for line in lines if line.startswith("  "))
    assert (
        said.total() == COUNTS[kind] * FACTOR and said.total() - said["whole"] > said.total() // 3
    )
    if kind in ("library", "stripped"):
        assert (
            said["whole"] <= said.total() // 5
        )  # chmod of what root may read, a cut in the checksum
    report.append(
        f"damaged files, {kind}: {said.total()} cases, {said['whole']} harmless, 0 signals, 0 hangs"
    )
