# SPDX-License-Identifier: Apache-2.0
"""import anyop.torch: what it says where torch is missing or old; operators of libraries loaded before and after."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import prepared
import pytest
from third_party_library import FOLDER, odd_library

torch = pytest.importorskip("torch", reason="torch is not installed")


def run(program, *arguments, start=subprocess.run, **environment):
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return start(
        command, capture_output=True, text=True, timeout=300, env={**os.environ, **environment}
    )


def test_without_torch_it_says_how_to_install_it():
    found = run("import sys; sys.modules['torch'] = None\nimport anyop, anyop.torch")
    assert found.returncode == 1
    assert (
        "ImportError: anyop.torch needs PyTorch" in found.stderr
        and "pip install torch" in found.stderr
    )
    assert run("import sys; sys.modules['torch'] = None\nimport anyop").returncode == 0


@pytest.mark.parametrize("version", ["2.8.1+cu128", "1.13.0a0", "2.8.0.dev1"])
def test_an_old_torch_is_refused_by_version(version):
    program = f"import torch; torch.__version__ = {version!r}\nimport anyop.torch"
    found = run(program, start=functools.partial(prepared.run, "torch"))
    assert found.returncode == 1
    assert (
        f"ImportError: anyop.torch needs torch 2.9 or newer; this is torch {version}"
        in found.stderr
    )


def test_import_order_does_not_matter_and_twice_is_once():
    for order in ("torch, anyop, anyop.torch", "anyop.torch"):
        program = (
            f"import {order}\nimport importlib, torch, anyop.torch\n"
            "assert torch.ops.anyop.relu(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]\n"
        )
        found = run(program)
        assert found.returncode == 0, found.stderr


def test_what_models_are_swapped_with_is_imported_when_it_is_asked_for():
    program = (
        "import sys, anyop.torch\n"
        "later = {'anyop.torch.overlaying', 'anyop.torch.replacing', 'anyop.torch.models.hugging_face'}\n"
        "assert not later & set(sys.modules) and {'overlay', 'replace'} <= set(dir(anyop.torch))\n"
        "from anyop.torch import overlay, replace\n"
        "assert later <= set(sys.modules) and replace is anyop.torch.replace\n"
        "assert callable(overlay) and {'overlay', 'replace'} <= set(dir(anyop.torch))\n"
    )
    found = run(program)
    assert found.returncode == 0, found.stderr


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Operators of somebody else, with lists, changed arguments and optional results."""
    return odd_library(tmp_path_factory)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("loaded", ["before", "after"])
def test_operators_of_other_libraries(library, loaded):
    """Lists, changed arguments and optional results: opcheck, compiled code, versions, gradients refused."""
    program = (FOLDER / "torch_program.py").read_text()
    found = run(program, library, loaded)
    assert found.stdout.splitlines()[-1:] == ["all right"], found.stderr
