# SPDX-License-Identifier: Apache-2.0
"""`anyop new`: folders that build and pass the standard tests as they are; bad names; nothing overwritten."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import anyop
import numpy as np
import pytest
from anyop import command
from anyop.codegen.operators.folders import read_folders

OPTIONS = ("--cuda", "--backward", "--family=math", "--namespace=acme")
EVERY = [way for n in range(5) for way in itertools.combinations(OPTIONS, n)]


@pytest.fixture
def new(tmp_path, capsys):
    """Runs the command in an empty folder: its exit code and what it printed, errors last."""

    def run(*words: str) -> tuple[int, str]:
        code = command.main(["new", "--dir", str(tmp_path), *words])
        return code, "".join(capsys.readouterr())

    return run


def written(folder: Path) -> dict[str, str]:
    return {str(f.relative_to(folder)): f.read_text() for f in folder.rglob("*") if f.is_file()}


@pytest.mark.parametrize("options", EVERY, ids=" ".join)
def test_every_form_is_a_good_folder(options, new, tmp_path):
    code, text = new("halve", *options)
    assert code == 0, text
    operators, errors = read_folders([tmp_path])
    assert not errors and "@" not in "".join(written(tmp_path).values())
    space = "acme" if "--namespace=acme" in options else "my"
    names = [f"{space}.halve", *([f"{space}.halve_backward"] if "--backward" in options else [])]
    assert [op.full_name for op in operators] == names
    backends = ["cpu", "cuda"] if "--cuda" in options else ["cpu"]
    assert all([k.backend for k in op.kernels] == backends for op in operators)
    family = tmp_path / ("math" if "--family=math" in options else "halve")
    ends = 4 if "--cuda" in options else 3
    assert len(list(family.iterdir())) == len(written(tmp_path)) == ends * len(names)
    assert text.splitlines()[-1] == f"next: anyop test {family}"
    for name, source in written(tmp_path).items():
        if name.endswith(".py"):
            compile(source, name, "exec")


def test_it_passes_its_tests_unedited(new, tmp_path):
    """Both kinds of operator, under names that could mean something else in C++ or in the templates."""
    assert new("x", "--backward", "--namespace=ns", "--family=all")[0] == 0
    assert new("factor", "--namespace=ns", "--family=all")[0] == 0
    words = [sys.executable, "-m", "anyop", "test", str(tmp_path / "all"), "--framework", "numpy"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines() if "numpy" in line}
    assert set(rows) == {"ns.x", "ns.x_backward", "ns.factor"}
    assert rows["ns.x"][-1] == "3" and rows["ns.factor"][-1] == "0"  # slopes compared
    assert "own tests: 2 passed" in done.stdout and done.stdout.endswith("passed\n")


def test_cuda_compiles_for_both_generations(new, tmp_path):
    from anyop.builder.toolchains import choose_toolchain
    from anyop.builder.tools import find_command

    if find_command(choose_toolchain("cuda")) is None:
        pytest.skip("there is no nvcc")
    assert new("halve", "--cuda", "--backward")[0] == 0
    library = anyop.build(tmp_path / "halve", arch=["80", "90a"], out=tmp_path / "built")
    assert b".nv_fatbin" in Path(library).read_bytes()  # the section of device code
    program = "import anyop, sys; print([anyop.backends(name) for name in anyop.load(sys.argv[1])])"
    done = subprocess.run([sys.executable, "-c", program, library], capture_output=True, text=True)
    assert done.stdout == "[['cpu', 'cuda'], ['cpu', 'cuda']]\n", done.stderr


def test_nothing_is_overwritten(new, tmp_path):
    assert new("halve")[0] == 0
    (tmp_path / "halve" / "halve.cc").write_text("mine")
    before = written(tmp_path)
    code, text = new("halve", "--backward")
    assert code == 1 and "halve.toml is there already; nothing was written" in text
    assert written(tmp_path) == before
    (tmp_path / "third").mkdir()
    (tmp_path / "third" / "third_test.py").symlink_to(tmp_path / "nowhere")
    code, text = new("third")
    assert code == 1 and "third_test.py is there already" in text
    assert not (tmp_path / "third" / "third.toml").exists() and not (tmp_path / "nowhere").exists()


def test_a_second_operator_joins_a_family(new, tmp_path):
    assert new("halve", "--family=math")[0] == 0 and new("twice", "--family=math")[0] == 0
    assert len(written(tmp_path)) == 6


@pytest.mark.parametrize(
    "name",
    ["../up", "a/b", "x;touch pwn", "Halve", "1st", "a__b", "", ".", "class", "double", "lambda", "match", "list",
     "int8_t", "anyop", "a b", "naïve", "a\nb", "-x", "_x", "a" * 120],
)  # fmt: skip
def test_bad_names(name, new, tmp_path):
    code, text = new("--family=f", "--", name)
    assert code in (1, 2) and len(text.strip().splitlines()) <= 2, text
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["std", "../x", "Acme", "int", "a.b", "", "class"])
def test_bad_namespaces(name, new, tmp_path):
    code, text = new("halve", f"--namespace={name}")
    assert code == 1 and "namespace" in text and not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["..", ".", "a/b", "/tmp", "-x", "a b", ".hidden"])
def test_bad_families(name, new, tmp_path):
    code, text = new("halve", f"--family={name}")
    assert code == 1 and f"family '{name}'" in text and not list(tmp_path.iterdir())


def test_names_of_the_package_itself(new, tmp_path):
    code, text = new("load", "--namespace=anyop")
    assert code == 1 and "a name of the package anyop itself" in text
    assert new("load", "--namespace=acme")[0] == 0


def test_a_folder_that_cannot_be_made(new, tmp_path):
    (tmp_path / "halve").write_text("a file")
    code, text = new("halve")
    assert code == 1 and "halve" in text and "Errno" not in text


SCHEMAS = (
    "drafts::scale(Tensor x, Tensor? bias=None, float factor=2.0, *, str mode='*/ \\\\') -> Tensor",
    "drafts::pair(Tensor x, int[2] sizes=[1, 2], ScalarType? dtype=None, bool[]? flags=None) -> (Tensor a, Tensor? b)",
    "drafts::lists(Tensor[] xs, Tensor?[] ys) -> Tensor",
    "drafts::change(Tensor(a!) x, Tensor y) -> ()",
    "drafts::fill(int n, float value) -> Tensor",
)


def test_any_schema_builds(new, tmp_path):
    """The kernels refuse to run until they are written; gradients are there where there can be some."""
    with_gradient = ("scale", "pair")
    for schema in SCHEMAS:
        name = schema.split("(")[0].removeprefix("drafts::")
        backward = ["--backward"] * (name in with_gradient)
        code, text = new("--family=all", "--schema", schema, *backward)
        assert code == 0, text
    loaded = anyop.load(tmp_path / "all")
    assert len(loaded) == len(SCHEMAS) + len(with_gradient)
    for schema in SCHEMAS:
        name = schema.split("(")[0].replace("::", ".")
        assert anyop.metadata(name)["schema"] == schema
        space, _, function = name.rpartition(".")
        shown = getattr(getattr(anyop.ops, space or "my"), function).__doc__
        assert "; what it is." in shown and "; ." not in shown
        assert (anyop.metadata(name)["backward"] is not None) == (
            name.split(".")[1] in with_gradient
        )
    with pytest.raises(NotImplementedError, match=r"drafts\.scale.*scale\.cc is to be written"):
        anyop.ops.drafts.scale(np.ones(3, np.float32))
    header = (tmp_path / "all" / "pair.cc").read_text()
    assert "//   AnyopIntList sizes;" in header and "//   AnyopTensor* b;" in header
    done = subprocess.run(
        [sys.executable, "-m", "anyop", "test", str(tmp_path / "all"), "-k", "scale", "--framework", "numpy"],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert (
        done.returncode == 1 and "to be written" in done.stdout and "Traceback" not in done.stderr
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--schema", "nothing"], "the schema"),
        (["--schema", "class(Tensor x) -> Tensor"], "operator 'class'"),
        (["--schema", "f(Tensor x) -> Tensor", "--cuda"], "--cuda with --schema"),
        (["--schema", "f(Tensor(a!) x) -> ()", "--backward"], "--backward"),
        (["--schema", "f(Tensor x) -> Tensor", "--namespace", "../x"], "the schema"),
    ],
)
def test_schemas_that_cannot_be(words, says, new, tmp_path):
    code, text = new(*words)
    assert code == 1 and says in text and not list(tmp_path.iterdir())


def test_a_reference_says_what_it_changes(new, tmp_path):
    code, text = new("--schema", "drafts::incr(Tensor(a!) x, Tensor y) -> ()")
    assert code == 0, text
    reference = (tmp_path / "incr" / "incr_test.py").read_text()
    assert reference.startswith('"""incr in float64; changes x in place."""\n')
