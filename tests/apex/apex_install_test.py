# SPDX-License-Identifier: Apache-2.0
"""Programs written for Apex run unchanged under anyop.torch.apex.install(); each in a process of its own."""

from __future__ import annotations

import sys
import textwrap

import prepared
import pytest

pytest.importorskip("torch", reason="torch is not installed")


def run(program, cwd=None):
    """What the program prints; it must end well."""
    done = prepared.run(
        "torch", [sys.executable, "-c", textwrap.dedent(program)], cwd=cwd, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


PROGRAM = """
import importlib.util
import torch
import apex
import fused_layer_norm_cuda
from apex.normalization import FusedLayerNorm
from apex.normalization.fused_layer_norm import FusedLayerNormAffineFunction
from apex.contrib.layer_norm.layer_norm import FastLayerNormFN
from apex.multi_tensor_apply import multi_tensor_applier
from apex.optimizers import FusedAdam
from apex.transformer import AttnMaskType
from apex.transformer.functional import FusedScaleMaskSoftmax, fused_apply_rotary_pos_emb

for name in ("apex", "apex.normalization", "fused_layer_norm_cuda", "fast_layer_norm"):
    assert importlib.util.find_spec(name) is not None, name
norm = apex.normalization.FusedLayerNorm(8)
assert type(norm) is FusedLayerNorm and apex.FusedLayerNorm is FusedLayerNorm
x = torch.randn(3, 8)
torch.testing.assert_close(norm(x), torch.nn.functional.layer_norm(x, (8,)))

if multi_tensor_applier.available:
    import amp_C

    flag = torch.zeros(1, dtype=torch.int32)
    multi_tensor_applier(amp_C.multi_tensor_scale, flag, [[x], [x]], 0.5)
optimizer = FusedAdam(norm.parameters(), lr=0.5)
norm(x).sum().backward()
optimizer.step()
torch.testing.assert_close(norm.bias.data, torch.full((8,), -0.5))
"""


def test_a_program_runs_unchanged(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    print(run(
        """
        import importlib.util, sys
        import anyop.torch
        with anyop.torch.apex.install() as installed:
            assert installed.active
            import program
            inner = anyop.torch.apex.install()
            inner.undo()
            import apex  # still there
        assert not installed.active
        assert not [n for n in sys.modules if n.split(".")[0] == "apex" or n == "fast_layer_norm"]
        assert importlib.util.find_spec("apex") is None
        try:
            import apex
        except ImportError:
            pass
        else:
            raise SystemExit("apex is still there")
        anyop.torch.apex.install()
        import apex, scaled_softmax_cuda
        """,
        tmp_path,
    ))  # fmt: skip


def test_what_is_not_there_says_so():
    run(
        """
        import importlib.util
        import anyop.torch.apex
        anyop.torch.apex.install()
        import apex
        for line in ("import apex.RNN", "from apex import amp", "from apex.contrib.openfold_triton import AttnTri",
                     "import apex.installing", "import apex.transformer.parallel_state", "import bnp"):
            try:
                exec(line)
            except ImportError as error:
                assert "not in anyop.torch.apex yet" in str(error), error
            else:
                raise SystemExit(line)
        for name in ("apex.RNN", "apex.amp", "bnp", "no_such_module"):
            assert importlib.util.find_spec(name) is None, name
        assert not hasattr(apex, "amp")
        """
    )


def test_a_real_apex(tmp_path):
    (tmp_path / "apex").mkdir()
    (tmp_path / "apex" / "__init__.py").write_text("real = True\n")
    run(
        """
        import anyop.torch
        left = anyop.torch.apex.install()
        assert not left.active
        import apex
        assert apex.real
        for replace in (False, True):
            try:
                anyop.torch.apex.install(replace=replace)
            except RuntimeError as error:
                assert apex.__file__ in str(error) and anyop.torch.apex.__file__ in str(error), error
            else:
                raise SystemExit("installed beside another")
        """,
        tmp_path,
    )
    run(
        """
        import anyop.torch
        with anyop.torch.apex.install(replace=True) as installed:
            import apex
            assert installed.active and apex is anyop.torch.apex
        import apex
        assert apex.real
        """,
        tmp_path,
    )


def test_a_folder_called_apex_is_no_apex(tmp_path):
    (tmp_path / "apex").mkdir()
    run("import anyop.torch; assert anyop.torch.apex.install().active", tmp_path)
