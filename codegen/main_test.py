# SPDX-License-Identifier: Apache-2.0
"""The command: what it writes, what it leaves alone, what CMake includes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .__main__ import main
from .sample_operators import SAMPLES, write_sample

ROOT = Path(__file__).resolve().parent.parent


def snapshot(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): path.stat().st_mtime_ns
        for path in folder.rglob("*")
        if path.is_file()
    }


def age(folder: Path) -> None:
    """Makes every file old, so that a rewrite shows."""
    for path in folder.rglob("*"):
        os.utime(path, ns=(10**18, 10**18))


def test_only_what_changed_is_written(tmp_path):
    ops, out = tmp_path / "ops", tmp_path / "out"
    for data in SAMPLES[:3]:
        write_sample(ops, data)
    assert main(["--out", str(out), str(ops)]) == 0
    age(out)
    before = snapshot(out)
    assert main(["--out", str(out), str(ops)]) == 0 and snapshot(out) == before
    path = ops / "softmax.toml"
    path.write_text(path.read_text().replace("The operator softmax.", "Something else."))
    assert main(["--out", str(out), str(ops)]) == 0
    changed = {name for name, time in snapshot(out).items() if before.get(name) != time}
    assert changed == {"anyop/ops/softmax_table.c", "anyop/ops.h"}, "no header of a kernel changed"


def test_a_removed_operator_leaves_no_files(tmp_path):
    ops, out = tmp_path / "ops", tmp_path / "out"
    paths = [write_sample(ops, data) for data in SAMPLES[:2]]
    assert main(["--out", str(out), str(ops)]) == 0
    (out / "anyop" / "ops" / "mine.txt").write_text("not written by the generator")
    paths[0].unlink()
    assert main(["--out", str(out), str(ops)]) == 0
    names = {path.name for path in (out / "anyop" / "ops").iterdir()}
    assert names == {"layer_norm.h", "layer_norm_table.c", "mine.txt"}
    assert (
        "rms_norm"
        not in (out / "anyop_library.c").read_text() + (out / "operators.cmake").read_text()
    )


def test_a_foreign_manifest_removes_nothing_outside(tmp_path):
    ops, out = tmp_path / "ops", tmp_path / "out"
    write_sample(ops, SAMPLES[0])
    (tmp_path / "precious").touch()
    out.mkdir()
    (out / "manifest.txt").write_text(f"../precious\n{tmp_path}/precious\n")
    assert main(["--out", str(out), str(ops)]) == 0
    assert (tmp_path / "precious").exists()


def test_errors_write_nothing(tmp_path, capsys):
    ops, out = tmp_path / "ops", tmp_path / "out"
    write_sample(ops, SAMPLES[0])
    assert main(["--out", str(out), str(ops)]) == 0
    before = snapshot(out)
    (ops / "rms_norm.cc").unlink()
    assert main(["--out", str(out), str(ops)]) == 1 and snapshot(out) == before
    assert capsys.readouterr().err.count("\n") == 1


def test_cmake_lists(generated, samples):
    text = (generated / "operators.cmake").read_text()
    lists = {
        block.split()[0]: block.split()[1:] for block in text.replace("\n)", "").split("set(")[1:]
    }
    assert set(lists) == {
        "ANYOP_TABLES",
        "ANYOP_HEADERS",
        "ANYOP_SCHEMAS",
        "ANYOP_KERNELS_CPU",
        "ANYOP_KERNELS_CUDA",
        "ANYOP_KERNELS_HIP",
        "ANYOP_CUDA_ARCHS",
        "ANYOP_CUDA_ONCE",
        "ANYOP_LINKED",
        "ANYOP_EMBEDDED",
        "ANYOP_BUNDLED",
        "ANYOP_EMBEDDED_TEXTS",
    }
    files = [Path(path.strip('"')) for paths in lists.values() for path in paths]
    assert all(path.is_absolute() and path.is_file() for path in files)
    assert len(lists["ANYOP_TABLES"]) == len(SAMPLES) + 1 and len(lists["ANYOP_SCHEMAS"]) == len(
        SAMPLES
    )
    assert len(lists["ANYOP_KERNELS_CPU"]) == len(set(lists["ANYOP_KERNELS_CPU"]))
    assert [Path(p.strip('"')).name for p in lists["ANYOP_KERNELS_CUDA"]] == ["matmul.cu"]
    shared = [path for path in lists["ANYOP_KERNELS_CPU"] if path.endswith('/gemm.cc"')]
    assert len(shared) == 2, "one of each of the two families that name it"


def test_cmake_knows_what_is_read_once(tmp_path):
    """Of the file that two operators share, the word of one is enough."""
    for name, arch in (("one", "80*"), ("two", "80*"), ("three", "90a"), ("four", "80+")):
        (tmp_path / f"{name}.toml").write_text(
            f'schema = "acme::{name}(Tensor x) -> Tensor"\nshapes = {{ x = "*", out = "*" }}\n'
            f'[kernels]\ncuda = {{ file = "{"both" if arch == "80*" else name}.cu", arch = "{arch}" }}\n'
        )
    for file in ("both", "three", "four"):
        (tmp_path / f"{file}.cu").write_text("")
    assert main(["--out", str(tmp_path / "out"), str(tmp_path)]) == 0
    text = (tmp_path / "out" / "operators.cmake").read_text()
    blocks = [block.split() for block in text.replace("\n)", "").split("set(")[1:]]
    lists = {name: [Path(item.strip('"')).name for item in items] for name, *items in blocks}
    assert lists["ANYOP_CUDA_ONCE"] == ["80"] and lists["ANYOP_CUDA_ONCE_80"] == ["both.cu"]
    assert lists["ANYOP_CUDA_ARCHS"] == ["90a"] and lists["ANYOP_CUDA_FILES_90a"] == ["three.cu"]


def test_cmake_reads_odd_paths(tmp_path):
    ops, out = tmp_path / 'a "b" $c', tmp_path / "o;ut"
    write_sample(ops, SAMPLES[0])
    assert main(["--out", str(out), str(ops)]) == 0
    text = (out / "operators.cmake").read_text()
    assert 'a \\"b\\" \\$c/rms_norm.toml"' in text and "o\\;ut/anyop" in text


def test_list(samples, capsys):
    assert main(["--what", "list", str(samples)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(SAMPLES) and lines[0].startswith("acme.index_put\t")


def test_one_file_is_a_folder_too(tmp_path, capsys):
    path = write_sample(tmp_path, SAMPLES[0])
    write_sample(tmp_path, SAMPLES[1])
    assert main(["--what", "list", str(path)]) == 0 and capsys.readouterr().out.startswith(
        "anyop.rms_norm\t"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["ops"],
        ["--out", "x", "--what", "all", "ops"],
        ["--out", "x", "--library", "a b", "ops"],
    ],
)
def test_wrong_arguments(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2 and "usage:" in capsys.readouterr().err


def test_as_a_command(tmp_path):
    (tmp_path / "a.toml").write_text("schema = 'b() -> ()'\n")
    command = [sys.executable, "-m", "codegen", "--out", str(tmp_path / "out"), str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 1 and run.stdout == ""
    assert run.stderr == (
        f"{tmp_path}/a.toml:1: operator 'b' in the file a.toml, expected one name for both; "
        "rename the file to b.toml, or the operator\n"
    )
