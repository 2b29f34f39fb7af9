# SPDX-License-Identifier: Apache-2.0
"""CUDA kernels that no GPU has tested as they are: named behind the tests, for no machine without one can mend that."""

from pathlib import Path

from codegen.gpu_record import untested
from codegen.operator_file import read_operator

ROOT = Path(__file__).parents[1]


def test_they_are_named(report):
    operators = [read_operator(path) for path in sorted((ROOT / "ops").glob("*/*.toml"))]
    names = untested(operators, ROOT, ROOT / "bench" / "results" / "cuda_tests.jsonl")
    report.append(f"CUDA kernels not tested on a GPU as they are: {', '.join(names) or 'none'}")
    assert set(names) <= {op.full_name for op in operators}
