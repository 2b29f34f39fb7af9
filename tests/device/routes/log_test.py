# SPDX-License-Identifier: Apache-2.0
"""ANYOP_LOG_DISPATCH and calls(): which backend served an overload, provably."""

from __future__ import annotations

import re

import pytest

pytestmark = pytest.mark.anyplatform

RULES = "aten.add.Tensor = native\naten.mul = none\naten.mul.Tensor = aten\n"


def said(text: str) -> dict[str, str]:
    """Overload -> backend, of the log's first line about each on the device."""
    return dict(reversed(re.findall(r"aten\.([\w.]+) on anyop:0: (\w+)", text)))


def test_each_backend_is_said_and_counted(program, tmp_path):
    (tmp_path / "a.routes").write_text(RULES)
    done = program(
        """
d = anyop.torch.device
x, y = torch.randn(4, 4, device="anyop"), torch.randn(4, 4, device="anyop")
z = ((x + y) * x).exp()
d.set_route("add.Tensor", "aten")
d.count_calls()
x + x
d.set_route("add.Tensor", "native")
x + x; x + x
d.register("add.Tensor", lambda self, other, *, alpha=1: self.clone(), backend="mine")
d.set_route("add.Tensor", "mine")
x + x
d.set_route("add.Tensor", "cpu_fallback")
x + x
d.count_calls(False)
x + x
print(d.calls("add.Tensor"))
""",
        whole=True,
        ANYOP_ROUTES=str(tmp_path / "a.routes"),
        ANYOP_LOG_DISPATCH="1",
        ANYOP_FALLBACK="silent",
    )
    assert done.returncode == 0, done.stderr
    first = said(done.stderr)
    assert first["add.Tensor"] == "native", done.stderr
    assert first["mul.Tensor"] == "aten" and first["exp"] == "aten", done.stderr
    assert "a.routes:1" in done.stderr
    assert done.stdout.strip() == "{'aten': 1, 'native': 2, 'cpu_fallback': 1, 'other': 1}"


def test_nothing_is_said_unasked(platform, capfd):
    import anyop.torch.device
    import torch

    anyop.torch.device.set_route("add.Tensor", "native, aten")
    x = torch.randn(2, 2, device="anyop")
    assert torch.isfinite(x + x).all()
    torch.ops.anyop_device.set_route("add.Tensor", "")
    assert capfd.readouterr().err == ""


def test_disabled_backends_are_passed_over(program):
    """The other way round is native_test.py's."""
    out = program(
        """
d = anyop.torch.device
d.count_calls()
x = torch.ones(2, 2, device="anyop")
x @ x
print(d.calls("mm"), d.route("mm"), d.backend_available("native"))
""",
        ANYOP_DISABLE="native",
        ANYOP_OP_ATEN__MM="native,aten",
    )
    assert out.strip() == "{'aten': 1, 'native': 0, 'cpu_fallback': 0, 'other': 0} aten False"
