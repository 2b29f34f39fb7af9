# SPDX-License-Identifier: Apache-2.0
"""Bad input to the plugin cuda_like: libraries that are none, two runtimes in a process, rows with mistakes.

Each is one message that names vendor, library and cure.
"""

from __future__ import annotations

import ctypes.util
import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import false_runtimes
from false_runtimes import OPEN, check, make, run

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")


@pytest.fixture(scope="module")
def hip(tmp_path_factory):
    return make("hip", tmp_path_factory.mktemp("hip"), full=True)


def bad_library(kind: str, path: Path) -> None:
    """Puts something else where a runtime is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "text":
        path.write_text("no library " * 99)
    elif kind == "other vendor":
        shutil.copy(ctypes.util._findLib_ld("m") or ctypes.util.find_library("m"), path)
    else:
        data = bytearray(make("maca", path.parent / "whole").library.read_bytes())
        if kind == "machine":
            data[18:20] = (243).to_bytes(2, "little")  # RISC-V
        path.write_bytes(data[: len(data) // 2] if kind == "cut off" else data)
        if kind == "permission":
            path.chmod(0)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("nothing", "none of its libraries is there (libmcruntime.so, $MACA_PATH/lib/libmcruntime.so"),
        ("folder", "libmcruntime.so"),
        ("text", "libmcruntime.so: invalid ELF header"),
        ("other vendor", "libmcruntime.so is another vendor's library: it has no function mcMalloc"),
        ("machine", "libmcruntime.so is for another machine (ELF machine 243, this one is"),
        ("cut off", "libmcruntime.so is cut off"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("place", ["LD_LIBRARY_PATH", "MACA_PATH"])
def test_a_bad_library(kind, message, place, tmp_path):
    if kind != "nothing":
        bad_library(kind, tmp_path / ("lib" if place == "MACA_PATH" else "") / "libmcruntime.so")
    environment = {place: str(tmp_path), "ANYOP_FALSE_BELOW": str(false_runtimes.LIBANYOP)}
    code, text = run(environment, "-c", OPEN, "maca")
    assert code == 0 and "maca: MetaX MACA: " in text and message in text, text
    assert "; install MetaX's MACA SDK, or set MACA_PATH" in text, text


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_library_that_may_not_be_read(tmp_path):
    bad_library("permission", tmp_path / "libmcruntime.so")
    code, text = run({"LD_LIBRARY_PATH": str(tmp_path)}, "-c", OPEN, "maca")
    assert code == 0 and "Permission denied; install MetaX's" in text, text


def test_two_runtimes_in_one_process(hip):
    code, text = run(hip.environment, "-c", OPEN, "hip", "maca", "hip")
    one = "this process uses the runtime hip already; maca needs a process of its own"
    assert (code, text) == (0, f"devices range(0, 2)\n{one}\ndevices range(0, 2)\n")


def test_a_forked_child_is_refused(hip):
    child = (
        "import os\nif os.fork() == 0:\n    device.set_current(0)\nelse:\n    print(os.wait()[1])"
    )
    code, text = run(hip.environment, "-c", OPEN + child, "hip")
    assert code == 0 and "forked after the device's first use" in text, text


ROW = '[chip]\nlibraries = ["libchip.so"]\nprefix = "chip"\n'


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (ROW + 'prefx = "chip"\n', ":4: unknown key 'prefx', expected one of vendor, libraries"),
        (ROW + ROW, ":4: [chip] twice"),
        (ROW + 'prefix = "mychip"\n', ":4: 'prefix' twice"),
        ('[chip]\nprefix = "chip"\n[other]\n', ":3: [chip] has no libraries"),
        ('[chip]\nlibraries = ["libchip.so"]\n', ": [chip] has no prefix"),
        (ROW + "attributes = [1, 2]\n", ":4: attributes: expected three numbers"),
        (ROW + 'oldest = "1"\n', ":4: oldest: expected a number of up to nine digits"),
        (ROW + 'names = ["Mallok = X"]\n', ":4: names has 'Mallok', which anyop does not call"),
        (ROW + 'names = ["Malloc"]\n', ":4: names has 'Malloc', expected 'Ours = Theirs'"),
        (ROW + 'missing = ["Malloc"]\n', ":4: missing has 'Malloc', without which nothing works"),
        (ROW + 'missing = ["Mallok"]\n', ":4: missing has 'Mallok', which anyop does not call"),
        (ROW + 'vendor = "a" b\n', ":4: 'b' is too much"),
        (ROW + "vendor = Chips\n", ":4: vendor: expected a text in double quotes"),
        (ROW + 'missing = ["GetLastError"\n', ":4: missing: expected a list"),
        (ROW + 'module_prefix = "c"\n', ": [chip] has one of module_libraries and module_prefix"),
        ('prefix = "chip"\n', ":1: a key before the first [name]"),
        ("[my chip]\n", ":1: expected [name]"),
        ("chip\n", ":1: expected [name] or key = value"),
    ],
)
def test_bad_rows(rows, message, tmp_path):
    (tmp_path / "rows.toml").write_text(rows)
    code, text = run({"ANYOP_RUNTIMES": str(tmp_path / "rows.toml")}, "-c", OPEN, "chip")
    assert code == 0 and f"ANYOP_RUNTIMES={tmp_path}/rows.toml{message}" in text, text


def test_files_of_rows_that_are_none(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, message in (
        (tmp_path, " is no file of rows: it is a folder"),
        (tmp_path / "pipe", " is no file of rows: it is a folder, or something else"),
        (tmp_path / "nothing", ": No such file or directory"),
    ):
        code, text = run({"ANYOP_RUNTIMES": str(path)}, "-c", OPEN, "chip")
        assert code == 0 and f"ANYOP_RUNTIMES={path}{message}" in text, text


def test_a_row_of_the_users_own(tmp_path):
    """Ten lines for a chip that nobody thought of; it replaces none of ours but that of its name."""
    (tmp_path / "rows.toml").write_text(
        ROW.replace("libchip", "libmine") + 'vendor = "Chips"  # mine\n'
    )
    row = {"libraries": ["libmine.so"], "prefix": "chip", "vendor": "Chips"}
    made = make("chip", tmp_path, row=row)
    environment = made.environment | {"ANYOP_RUNTIMES": str(tmp_path / "rows.toml")}
    assert check(environment, "chip", "copies", "timing")[0] == 0
    code, text = run(environment, "-c", OPEN, "hipp")
    assert code == 0 and "there is no device 'hipp'; there are host" in text
    assert text.endswith(
        "row.cuda, hip, maca, musa, corex, dcu, tops, ppu, kunlun, tang, ascend, mlu, chip\n"
    )
