# SPDX-License-Identifier: Apache-2.0
"""`anyop test` on whole folders: what changes arguments, tests with siblings, a hang, kernels of CUDA alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import anyop
import pytest
from anyop.codegen.schema.fields import camel

KERNEL = """\
#include "changes/ops/{name}.h"
extern "C" int32_t changes_{name}_cpu(const {struct}Args* args, AnyopCall*) {{
  {body}
  return kAnyopOk;
}}
"""
EACH = "for (int64_t i = 0; i < args->rows; ++i)"
# name: arguments and result, dtypes, kernel, reference
CHANGING = {
    "halve_": ("Tensor(a!) x) -> ()", {"x": "float32"}, f"auto* x = (float*)args->x->data; {EACH} x[i] /= 2;",
               "(x):\n    x *= HALF\n"),
    "bump_": ("Tensor(a!) x) -> ()", {"x": "int32"}, f"auto* x = (uint32_t*)args->x->data; {EACH} x[i] += 1;",
              "(x):\n    x += 1\n"),
    "gather_": ("Tensor x, Tensor(a!) sum) -> Tensor", {"x": "float32", "sum": "float32", "out": "float32"},
                f"auto *x = (float*)args->x->data, *sum = (float*)args->sum->data, *out = (float*)args->out->data; "
                f"{EACH} out[i] = sum[i] += x[i];",
                "(x, sum):\n    sum += x\n    return sum.copy()\n"),
    "perhaps_": ("Tensor x, Tensor(a!)? seen=None) -> Tensor", {"x": "float32", "seen": "float32", "out": "float32"},
                 f"auto *x = (float*)args->x->data, *out = (float*)args->out->data; "
                 f"{EACH} {{ out[i] = x[i] + 1; if (args->seen) ((float*)args->seen->data)[i] += 1; }}",
                 "(x, seen):\n    if seen is not None:\n        seen += 1\n    return x + 1\n"),
}  # fmt: skip


def run_test(*words: object) -> tuple[int, str]:
    command = [sys.executable, "-m", "anyop", "test", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two families, each with a module beside its tests; both modules are called so."""
    made = tmp_path_factory.mktemp("changes")
    for at, (name, (signature, dtypes, body, reference)) in enumerate(CHANGING.items()):
        family = made / ("first", "second")[at % 2]
        family.mkdir(exist_ok=True)
        lines = [f'schema = "changes::{name}({signature}"']
        lines += [
            f"[shapes]\n{''.join(f'{tensor} = {chr(34)}*{chr(34)}' + chr(10) for tensor in dtypes)}"
        ]
        lines += ["[dtypes]", *(f'{tensor} = ["{dtype}"]' for tensor, dtype in dtypes.items())]
        (family / f"{name}.toml").write_text("\n".join(lines) + "\n")
        (family / f"{name}.cc").write_text(KERNEL.format(name=name, struct=camel(name), body=body))
        sibling = "from beside import HALF, PLACE\n" if at < 2 else "from beside import HALF\n"
        own = (
            f"\n\ndef test_own():\n    import beside\n    assert beside.PLACE == PLACE == {at % 2}\n"
            * (at < 2)
        )
        (family / f"{name}_test.py").write_text(f"{sibling}\n\ndef reference{reference}{own}")
        (family / "beside.py").write_text(f"HALF, PLACE = 0.5, {at % 2}\n")
    return made


@pytest.fixture(scope="module")
def library(folder, tmp_path_factory) -> str:
    return anyop.build(folder, out=tmp_path_factory.mktemp("built"))


def test_operators_that_change_an_argument_pass(folder, library):
    """Without results, with a result, optional, of integers: from NumPy, with torch's refusals, and from torch."""
    pytest.importorskip("torch")
    words = ("--framework", "numpy", "--framework", "torch")
    code, text = run_test(folder, "--library", library, *words)
    assert code == 0 and text.endswith("\npassed\n"), text
    for name in CHANGING:
        for framework in ("numpy", "torch"):
            row = re.search(rf"^changes\.{name} +cpu +{framework} \S+ +(\d.*)$", text, re.MULTILINE)
            assert row and int(row[1].split()[1]) > 5, text
    assert "own tests: 2 passed" in text


def test_a_leaf_that_would_be_written_names_the_operator(library):
    torch = pytest.importorskip("torch")
    import anyop.torch

    anyop.load(library)
    x = torch.ones(3, requires_grad=True)
    for call in (anyop.ops.changes.halve_, torch.ops.changes.halve_):
        with pytest.raises(
            RuntimeError, match=r"^changes\.halve_: x: a leaf Variable that requires"
        ):
            call(x)
    assert x.tolist() == [1, 1, 1]


OWN_TEST = """
def test_long():
    import os, pathlib, time

    pathlib.Path(__file__).with_name("pid").write_text(str(os.getpid()))
    time.sleep(600)
"""


@pytest.mark.parametrize("what", ["kernel", "own test"])
def test_what_hangs_is_named_and_ended(what, tmp_path):
    body = (
        "volatile bool on = args->rows == 65; while (on) {}" if what == "kernel" else "(void)args;"
    )
    (tmp_path / "hangs.toml").write_text(
        'schema = "slow::hangs(Tensor(a!) x) -> ()"\nshapes = { x = "*" }\n'
    )
    text = KERNEL.format(name="hangs", struct="Hangs", body=body).replace("changes", "slow")
    (tmp_path / "hangs.cc").write_text(text)
    own = "" if what == "kernel" else OWN_TEST
    (tmp_path / "hangs_test.py").write_text(f"def reference(x):\n    pass\n\n\n{own}")
    code, text = run_test(tmp_path, "--framework", "numpy", "--seconds", "5")
    place = (
        r"slow\.hangs \[float32\] \*=\(65,\)"
        if what == "kernel"
        else r"own tests: hangs_test\.py::test_long"
    )
    assert code == 1 and re.search(
        rf"FAILED {place}: the process took more than 5 s, and was ended\n", text
    ), text
    if what == "own test":
        with pytest.raises(ProcessLookupError):  # it sleeps no more
            os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "x"])
def test_seconds_are_positive(seconds, tmp_path):
    command = [sys.executable, "-m", "anyop", "test", str(tmp_path), "--seconds", seconds]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "--seconds" in done.stderr and "Traceback" not in done.stderr


def test_kernels_of_cuda_alone_are_compiled_and_not_run(tmp_path):
    """Images need no compiler of CUDA's; where a GPU is, they would run."""
    if Path("/proc/driver/nvidia/gpus").exists():
        pytest.skip("this machine has a GPU")
    (tmp_path / "twice.ptx").write_text(
        ".version 7.0\n.target sm_70\n.visible .entry twice()\n{ ret; }\n"
    )
    (tmp_path / "twice.toml").write_text(
        'schema = "gpu::twice(Tensor x) -> Tensor"\nshapes = { x = "*", out = "*" }\n[kernels]\n'
        'cuda = { file = "twice.ptx", entry = "twice", grid = [1], block = [1], arguments = ["x", "out"] }\n'
    )
    (tmp_path / "twice_test.py").write_text("def reference(x):\n    return 2 * x\n")
    code, text = run_test(tmp_path, "--framework", "numpy")
    says = "gpu.twice: compiled, not run: its kernel is for cuda, of which none is here\ncompiled, not run\n"
    assert code == 0 and text.endswith(says), text
