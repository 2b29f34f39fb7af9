# SPDX-License-Identifier: Apache-2.0
"""CUDA kernels that no GPU has tested as they are: named behind the tests, for no machine without one can mend that."""

import json
from pathlib import Path
from types import SimpleNamespace

from outcomes import record_outcomes

from codegen.gpu_record import on_gpus, untested
from codegen.operators.operator_file import read_operator

ROOT = Path(__file__).parents[2]


def test_they_are_named(report):
    operators = [read_operator(path) for path in sorted((ROOT / "ops").glob("*/*.toml"))]
    names = untested(operators, ROOT, ROOT / "bench" / "results" / "cuda_tests.jsonl")
    report.append(f"CUDA kernels not tested on a GPU as they are: {', '.join(names) or 'none'}")
    assert set(names) <= {op.full_name for op in operators}


def test_a_run_records_the_operators_that_it_has_tested(tmp_path):
    record = tmp_path / "record.jsonl"
    tests = ("test_good_inputs[relu-float32]", "test_torch_ops_gives_the_same_bits[rms_norm]")
    passed = [
        SimpleNamespace(nodeid=f"tests/cuda/operators/cuda_operators.py::{test}") for test in tests
    ]
    elsewhere = SimpleNamespace(
        nodeid="tests/cuda/operators/cuda_graphs.py::test_replays[softmax-cuda]"
    )
    record_outcomes({"passed": [*passed, elsewhere]}, record)
    assert on_gpus(record).keys() == {"anyop.relu", "anyop.rms_norm"}
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [line.get("passed") for line in lines] == [None, 1, 2]
    record_outcomes({"passed": passed, "failed": [elsewhere, *passed]}, record)
    assert len(record.read_text().splitlines()) == len(lines) + 2  # no operator: one has failed
