# SPDX-License-Identifier: Apache-2.0
"""Wheels that were built with each release run on this core as they are: nothing is compiled.

The one of 0.1 was made from blend.toml and blend.cc beside it by `anyop build --wheel`, as acme 0.1.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
WHEELS = sorted(HERE.glob("*/*.whl"))
PROGRAM = """
import numpy as np
import anyop
assert "acme.blend" not in anyop.list_ops()
import acme
assert acme.blend is anyop.ops.acme.blend and anyop.list_ops("acme") == ["acme.blend"]
generator = np.random.default_rng(7)
for rows, D in ((2, 3), (1, 1), (0, 4), (70, 129), (3, 0)):
    x = generator.standard_normal((rows, D)).astype(np.float32)
    y = generator.standard_normal(D).astype(np.float32)
    for arguments, factor, added, sign in (
        ({}, 1.0, 3.0, 1),
        ({"y": y}, 1.0, 3.0 + y, 1),
        ({"y": y, "factor": 0.5, "shift": [], "mode": "negative"}, 0.5, y, -1),
        ({"shift": [-4, 9, 2], "twice": True, "factor": 1.5}, 3.0, 7.0, 1),
    ):
        out, total = acme.blend(x, **arguments)
        expected = sign * (factor * x.astype(np.float64) + added)
        np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(total, expected.sum(1), rtol=1e-5, atol=1e-4)
given = np.empty((3, 2), np.float32)
assert acme.blend(np.ones((3, 2), np.float32), out=given)[0] is given and (given == 4).all()
for bad, text in (
    (lambda: acme.blend(x, np.ones(2, np.float32)), "acme.blend: y has shape (2), expected (D) with D=0"),
    (lambda: acme.blend(x, mode="other"), "acme.blend: mode is neither 'plain' nor 'negative'"),
):
    try:
        bad()
    except ValueError as error:
        assert str(error) == text, error
    else:
        raise SystemExit("not refused")
print("right")
"""


def test_there_are_wheels_to_try():
    assert [wheel.parent.name for wheel in WHEELS] == sorted(
        path.name for path in HERE.iterdir() if (path / "anyop").is_dir()
    )
    assert all(wheel.stat().st_size < 60_000 for wheel in WHEELS)


@pytest.mark.parametrize("wheel", WHEELS, ids=lambda wheel: wheel.parent.name)
def test_the_wheel_of_a_release_runs_on_this_core(wheel, tmp_path):
    machine = os.uname().machine
    if not wheel.stem.endswith(machine):
        pytest.skip(f"{wheel.name} is not for {machine}")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    # Its folder goes last: anyop is found where it is for the other tests.
    program = f"import sys; sys.path.append({str(tmp_path)!r})\n{PROGRAM}"
    environment = os.environ | {"ANYOP_CACHE_DIR": str(tmp_path / "cache")}
    run = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert run.stdout == "right\n", run.stderr
    assert not (tmp_path / "cache").exists()
