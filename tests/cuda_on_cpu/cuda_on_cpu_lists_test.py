# SPDX-License-Identifier: Apache-2.0
"""CUDA kernels over lists of tensors, run by fibers: tensors of several chunks, lists of several launches."""

from __future__ import annotations

import sys
from pathlib import Path

import anyop
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fibers import on_fibers, running

ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is ml_dtypes'")
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT32 = np.dtype(np.float32)
MIXED = [FLOAT32, np.dtype(np.float16), BFLOAT16]
# Lists and numbers of a step, in the order of its arguments.
STEPS = {
    "multi_tensor_adam": ("p g m v lr step", {"weight_decay": 0.01}),
    "multi_tensor_sgd": ("p g lr buffer", {"momentum": 0.9, "nesterov": True}),
    "multi_tensor_novograd": ("p g m norms lr step", {}),
    "multi_tensor_lamb": ("p g m v update lr step", {"weight_decay": 0.01}),
}
OTHERS = [f"multi_tensor_{name}" for name in ("scale", "l2norm", "max_norm", "clip_grad_norm")]
SIZES = {
    "several chunks": [0, 30_000, 1, 1023, 1024, 1025, 4096, 0, 8192, 15_001, 8193, 20_000],
    "several launches": [3, 1, 0, 7] * 550,
}
pytestmark = pytest.mark.drawn(2, together="lists on fibers")
KINDS = {
    "float32": [FLOAT32],
    "bfloat16": [BFLOAT16],
    "mixed": MIXED,
    "float64": [*MIXED, np.dtype(np.float64)],
}
CASES = [("several chunks", kind) for kind in KINDS] + [("several launches", "bfloat16")]
cases = pytest.mark.parametrize(("sizes", "kind"), CASES, ids=map(" of ".join, CASES))


@pytest.fixture(scope="module", autouse=True)
def registered(tmp_path_factory):
    with running(tmp_path_factory.mktemp("lists"), [*STEPS, *OTHERS]):
        yield


def drawn(sizes: str, dtypes: list, seed: int) -> list[np.ndarray]:
    """Views of one memory: of tensors behind odd sizes none lies at a multiple of 16 bytes."""
    random, made = np.random.default_rng(seed), []
    for k, size in enumerate(SIZES[sizes]):
        memory = random.uniform(0.1, 1, size + 1).astype(dtypes[k % len(dtypes)])
        made.append(memory[k % 3 == 2 :][:size])
    return made


def near(found: list, expected: list) -> None:
    for a, b in zip(found, expected, strict=True):
        eps = float(ml_dtypes.finfo(a.dtype).eps)
        np.testing.assert_allclose(
            a.astype(np.float64), b.astype(np.float64), rtol=max(2 * eps, 4e-6), atol=1e-6
        )


@cases
def test_norms_and_scaling(sizes, kind):
    x = drawn(sizes, KINDS[kind], 0)
    wide = [t.astype(np.float64) for t in x]
    for name, order in (("l2norm", 2), ("max_norm", np.inf)):
        total, each = on_fibers(getattr(anyop, f"multi_tensor_{name}"))(x)
        exact = [np.linalg.norm(t, order) if t.size else 0 for t in wide]
        np.testing.assert_allclose(each, exact, rtol=4e-6)
        np.testing.assert_allclose(total, np.linalg.norm(exact, order), rtol=4e-6)
    total = on_fibers(anyop.multi_tensor_clip_grad_norm)(x, 1.0)
    near(x, [t / float(total) for t in wide])
    found = np.zeros(1, np.float32)
    on_fibers(anyop.multi_tensor_scale)(x, x, 0.5, found)
    near(x, [t / float(total) / 2 for t in wide])
    assert found == 0
    x[1][-1] = np.inf
    on_fibers(anyop.multi_tensor_scale)(x, x, 0.5, found)
    assert found == 1


@cases
@pytest.mark.parametrize("more", ["", "master", "copy", "found_inf"])
@pytest.mark.parametrize("name", STEPS)
def test_steps_are_as_on_the_cpu(name, more, sizes, kind):
    if {"master": kind != "bfloat16", "copy": kind not in ("float32", "bfloat16")}.get(more):
        pytest.skip("masters are float32, copies of 16 bits")
    dtypes = KINDS[kind]
    names, attributes = STEPS[name]
    results = []
    for call in (getattr(anyop, name), on_fibers(getattr(anyop, name))):
        given = {key: value_of(key, sizes, dtypes, more) for key in names.split()}
        if more in ("master", "copy"):
            given[more] = drawn(sizes, [FLOAT32] if more == "master" else [BFLOAT16], 9)
        elif more:
            given[more] = np.ones(1, np.float32)
        before = [t.copy() for t in given["p"]]
        call(**given, **attributes)
        written = any(a.tobytes() != b.tobytes() for a, b in zip(before, given["p"]))
        assert written == (more != "found_inf")
        results.append([t for one in given.values() if isinstance(one, list) for t in one])
    near(results[1], results[0])


def value_of(key: str, sizes: str, dtypes: list, more: str):
    """Gradients have the parameters' dtypes, states where all are of one."""
    if key in ("lr", "step", "norms"):
        return np.full(len(SIZES[sizes]) if key == "norms" else 1, 2, np.float32)
    if key == "update":  # float64 of such parameters
        return drawn(sizes, [t if t == np.float64 else FLOAT32 for t in dtypes], 8)
    alike = key in "pg" or (len(dtypes) == 1 and more != "master")
    return drawn(sizes, dtypes if alike else [FLOAT32], ord(key[0]))
