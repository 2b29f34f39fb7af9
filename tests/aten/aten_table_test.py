# SPDX-License-Identifier: Apache-2.0
"""ATen's table is made once for a torch, and what stands on it, the package and the command, names what is there."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import anyop  # noqa: E402
from anyop.aten import _table  # noqa: E402
from anyop.codegen.aten import registry  # noqa: E402
from anyop.command import main  # noqa: E402

CHILD = "from anyop.aten import _table; print(_table.table_path())"


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    """A cache of this test's own."""
    monkeypatch.setenv("ANYOP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("PYTHONWARNINGS", raising=False)
    for cached in (_table.schemas, _table.metadata):
        cached.cache_clear()
    yield tmp_path / "cache"
    for cached in (_table.schemas, _table.metadata):
        cached.cache_clear()


# The cache.


def test_it_is_made_once_and_found_without_torch(empty_cache):
    start = time.perf_counter()
    path = _child(CHILD)
    cold = time.perf_counter() - start
    program = f"""
import sys, time
start = time.perf_counter()
{CHILD}
print(time.perf_counter() - start, "torch" in sys.modules)
import anyop
print(anyop.aten.schema("relu"), len(anyop.aten.overloads("add")), "torch" in sys.modules)
"""
    again, timed, said = _child(program).split("\n")
    assert again == path and os.path.dirname(os.path.dirname(os.path.dirname(path))) == str(
        empty_cache / "entries"
    )
    seconds, imported = timed.split(" ")
    assert (imported, said) == ("False", "relu(Tensor self) -> Tensor 4 False")
    print(
        f"\nmade, a process and torch's import included: {cold:.2f} s; found: {float(seconds):.4f} s"
    )


def test_another_torch_has_another_table(empty_cache, monkeypatch):
    path, build, make = _table.table_path(), _table._torch(), _table._make
    made = []
    monkeypatch.setattr(_table, "_make", lambda private: made.append(private) or make(private))
    assert _table.table_path() == path and not made
    for other in (("2.13.1", *build[1:]), (build[0], "f" * 40, build[2]), (*build[:2], "/other")):
        monkeypatch.setattr(_table, "_torch", lambda other=other: other)
        count = len(made)
        assert _table.table_path() not in (path, *made)
        assert len(made) == count + 1 and _table.table_path()
        assert len(made) == count + 1


@pytest.mark.parametrize("harm", ["cut", "changed", "gone", "open"])
def test_a_damaged_table_is_made_anew(empty_cache, harm):
    path = Path(_table.table_path())
    good = path.read_text()
    if harm == "cut":
        path.write_text(good[: len(good) // 2])
    elif harm == "changed":
        path.write_text(good.replace("add.Tensor(Tensor self", "add.Tensor(Tensor! self"))
    elif harm == "gone":
        path.unlink()
    else:
        path.chmod(0o666)
    again = Path(_table.table_path())
    assert again != path and again.read_text() == good


def test_two_processes_make_one(empty_cache):
    words = [sys.executable, "-c", CHILD]
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {process.communicate(timeout=120)[0] for process in both}
    assert len(paths) == 1 and all(process.returncode == 0 for process in both)
    assert len(list((empty_cache / "entries").glob("aten_*/*"))) == 1


# A torch that is none.


def test_without_torch_the_error_says_so(empty_cache):
    program = f"import sys; sys.modules['torch'] = None; import anyop.aten; {CHILD}"
    assert "anyop.aten needs torch, which is not installed: pip install torch" in _fails(program)
    program = "import sys; sys.modules['torch'] = None; import anyop.aten; anyop.aten.add"
    assert "anyop.aten needs torch, which is not installed" in _fails(program)


def test_a_torch_that_is_too_old_or_broken_is_named(empty_cache, tmp_path, monkeypatch):
    with pytest.raises(RuntimeError, match=r"torch 2\.8\.1 is too old: anyop\.aten needs 2\.9"):
        registry.check_version("2.8.1")
    for version in ("2.9.0", "2.13.0+cpu", "2.14.0a0+git123", "3.0"):
        registry.check_version(version)
    broken = tmp_path / "broken" / "torch"
    broken.mkdir(parents=True)
    (broken / "version.py").write_text("__version__ = '2.13.0'\ngit_version = 'a'\n")
    (broken / "__init__.py").write_text("raise OSError('libtorch_cpu.so: cannot open')\n")
    program = f"import sys; sys.path.insert(0, {str(broken.parent)!r}); {CHILD}"
    assert "which cannot be imported: libtorch_cpu.so: cannot open" in _fails(program)
    monkeypatch.delattr(torch._C, "_jit_get_operation")
    with pytest.raises(RuntimeError, match=r"operators of torch .* cannot be read: .*_jit_get_op"):
        registry.read_registry(torch)


# The package and the command.


def test_names_lead_to_functions_and_wrong_ones_to_the_nearest():
    known = _table.schemas()
    assert set(dir(anyop.aten)) == {*known, "call", "metadata", "overloads", "resolve", "schema"}
    assert not {*anyop.aten.__all__, "_table", "_open", "_functions"} & set(known)
    assert anyop.aten.overloads("aten::add")[:2] == ["add.Tensor", "add.Scalar"]
    assert anyop.aten.metadata("relu.default") is anyop.aten.metadata("aten::relu")
    with pytest.raises(AttributeError, match="no operator aten::sofmax; did you mean 'softmax'"):
        print(anyop.aten.sofmax)
    with pytest.raises(LookupError, match=r"no overload aten::add\.Tenso; there are add\.Tensor,"):
        anyop.aten.schema("add.Tenso")
    for name in ("__wrapped__", "__path_hooks__"):
        assert not hasattr(anyop.aten, name)


def test_operators_are_called_by_attribute_and_by_name():
    x = torch.tensor([1.0, 2.0])
    assert anyop.aten.add is anyop.aten.add
    for found in (
        anyop.aten.add(x, x, alpha=2),
        anyop.aten.add.Tensor(x, x, alpha=2),
        anyop.aten.call("aten::add.Tensor", x, x, alpha=2),
    ):
        assert torch.equal(found, x * 3)
    assert anyop.aten.call("sum.default", x).item() == 3.0
    assert torch.equal(anyop.aten.__and__(torch.tensor([3, 5]), 1), torch.tensor([1, 1]))
    assert anyop.aten.resolve("add", x, x) == "add.Tensor"
    with pytest.raises(LookupError, match="no operator aten::nothing_of_this"):
        anyop.aten.call("nothing_of_this", x)


def test_the_command_lists_shows_and_makes(empty_cache, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("ANYOP_TORCH_ATEN_GLUE", "0")  # or it is built in the empty cache
    assert main(["aten", "table", "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert re.search(r"3,\d\d\d can be called from here", said) and str(empty_cache) in said
    before = _table.table_path()
    table = (tmp_path / "out" / "aten_table.txt").read_text()
    assert table == Path(before).read_text()
    assert (
        "add.Tensor"
        in json.loads((tmp_path / "out" / "aten_metadata.json").read_text())["overloads"]
    )
    assert main(["aten", "header", "--out", str(tmp_path / "out")]) == 0
    header = tmp_path / "out" / "anyop" / "aten.h"
    assert str(header) in capsys.readouterr().out.split("\n") and header.is_file()
    assert (header.parent / "aten_table.txt").read_text() == table
    assert main(["aten", "table", "--force"]) == 0
    assert before != _table.table_path() in capsys.readouterr().out
    assert main(["aten", "list", "topk"]) == 0
    assert capsys.readouterr().out == "topk\n"
    assert main(["aten", "list", "rel?", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == ["relu"]
    assert main(["aten", "show", "batch_norm", "add.Tensor"]) == 0
    said = capsys.readouterr().out
    assert "writes running_var (training), unsaid by its schema" in said
    assert "callable; needs the glue: a Scalar (alpha)" in said


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["show", "sofmax"], "no operator aten::sofmax; did you mean 'softmax'?"),
        (["show", "add.tensor"], "no overload aten::add.tensor; there are add.Tensor"),
        (["show"], "which one?"),
        (["list", "zzzz"], "no operator of ATen is like zzzz"),
        (["header"], "--out is needed"),
        (["list", "--force"], "--force is not of anyop aten list but of table"),
    ],
)
def test_the_command_says_what_is_wrong(words, text, capsys):
    assert main(["aten", *words]) == 1
    assert text in capsys.readouterr().err


def _child(program):
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _fails(program):
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode != 0, done.stdout
    return done.stderr
