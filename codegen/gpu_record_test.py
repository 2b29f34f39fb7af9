# SPDX-License-Identifier: Apache-2.0
"""What a GPU has tested is known by hash: a changed header, kernel or operator file is another operator."""

import json
import shutil
from pathlib import Path

import pytest

from .gpu_record import hash_of_sources, on_gpus, untested
from .operators.operator_file import read_operator

ROOT = Path(__file__).parents[1]


@pytest.fixture
def tree(tmp_path):
    """The tree's sources, to be changed."""
    for folder in ("ops/norm", "ops/linear", "include"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    return tmp_path


def hash_of(tree, name="norm/rms_norm"):
    return hash_of_sources(read_operator(tree / "ops" / f"{name}.toml"), tree)


@pytest.mark.parametrize(
    "file",
    [
        "ops/norm/rms_norm.cu",
        "ops/norm/rms_norm.toml",
        "include/anyop/cuda/rows.h",
        "include/anyop/kernel.h",
    ],
)
def test_each_file_counts(tree, file):
    before = hash_of(tree)
    assert before == hash_of(tree)
    with (tree / file).open("a") as changed:
        changed.write("# more\n" if file.endswith(".toml") else "int more;\n")
    assert hash_of(tree) != before


def test_other_files_do_not(tree):
    before = hash_of(tree)
    for file in ("ops/norm/rms_norm.cc", "include/anyop/cpu/map.h", "ops/norm/layer_norm.toml"):
        (tree / file).write_text((tree / file).read_text() + "int more;\n")
    assert hash_of(tree) == before


def test_a_header_may_move_and_is_still_followed(tree):
    before = hash_of(tree)
    there = tree / "include" / "anyop" / "zone" / "of_rows.h"
    there.parent.mkdir()
    (tree / "include" / "anyop" / "cuda" / "rows.h").rename(there)
    for file in [*tree.glob("ops/*/*.cu"), *tree.glob("ops/*/*.h"), *tree.glob("include/**/*.h")]:
        text = file.read_text()
        file.write_text(text.replace('"anyop/cuda/rows.h"', '"anyop/zone/of_rows.h"'))
    assert hash_of(tree) == before
    there.write_text(there.read_text() + "int more;\n")
    assert hash_of(tree) != before


def test_an_operator_without_a_cuda_kernel_has_none(tree):
    assert hash_of(tree, "linear/pack_weight") is None


def test_the_newest_line_counts(tree):
    op = read_operator(tree / "ops" / "norm" / "rms_norm.toml")
    record = tree / "record.jsonl"
    assert untested([op], tree, record) == ["anyop.rms_norm"]
    lines = [{"tests": "tests/a.py", "passed": 1}]
    for sources in ("0", hash_of(tree)):
        lines.append({"sources": {"anyop.rms_norm": sources}, "gpu": "A GPU", "commit": "1"})
        record.write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert untested([op], tree, record) == (["anyop.rms_norm"] if sources == "0" else [])
    assert on_gpus(record)["anyop.rms_norm"]["gpu"] == "A GPU"
