# SPDX-License-Identifier: Apache-2.0
"""ThreadSanitizer over the plugin cuda_like, a false runtime and the device `host` below it, all instrumented."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import anyop
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))
from false_runtimes import make  # noqa: E402

if shutil.which("g++") is None:
    pytest.skip("there is no C++ compiler", allow_module_level=True)
DEVICE = ROOT / "src" / "device"
_TLS = "-ftls-model=initial-exec"  # what the loader frees of others looks like a race
BELOW = """
#include <string.h>
#include "anyop/device.h"
extern "C" const AnyopDevice kAnyopHostDevice;
extern "C" __attribute__((visibility("default"))) const AnyopDevice* AnyopFindDeviceByName(const char*) {
  return &kAnyopHostDevice;
}
"""


def build(output: Path, sources: list[Path], *flags: str) -> None:
    """A program or a library, two sources at a time; functions of `fork` and `last_error` are its own."""
    places = [
        f"-I{place}"
        for place in (anyop.include_dir(), ROOT / "include", DEVICE, *{s.parent for s in sources})
    ]
    words = [
        "g++",
        "-std=c++17",
        "-O1",
        "-g1",
        "-fPIC",
        "-fsanitize=thread",
        "-fvisibility=hidden",
        *places,
    ]
    words.append(f'-DANYOP_RUNTIME_ROWS="{DEVICE / "cuda_like" / "runtimes.toml"}"')
    both = [*sources, DEVICE / "fork.cc", DEVICE / "last_error.cc"]
    subprocess.run(
        [*words, *flags, *map(str, both), "-o", str(output), "-ldl", "-pthread"], check=True
    )


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("threads")
    (folder / "below.cc").write_text(BELOW)
    host = [path for path in (DEVICE / "host").glob("*.cc") if not path.stem.endswith("_test")]
    build(folder / "libbelow.so", [*host, folder / "below.cc"], "-shared", _TLS)
    build(
        folder / "threads",
        [*(DEVICE / "cuda_like").glob("*.cc"), ROOT / "tests" / "runtimes" / "threads.cc"],
    )
    return folder / "threads"


@pytest.mark.parametrize("row", ["hip", "musa", "ascend", "mlu"])
def test_no_data_race(row, program, tmp_path, monkeypatch):
    """Rows with, and without memory in the order of a stream; streams are ended while they work."""
    monkeypatch.setenv("CC", f"gcc -fsanitize=thread {_TLS}")
    made = make(row, tmp_path, full=row == "hip")
    environment = {"ANYOP_FALSE_BELOW": str(program.parent / "libbelow.so")}
    done = subprocess.run(
        [program, row], env=os.environ | made.environment | environment, text=True, timeout=120, capture_output=True
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout == "done\n", done.stdout + done.stderr[-4000:]
