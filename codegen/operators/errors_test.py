# SPDX-License-Identifier: Apache-2.0
"""Every class of mistake in an operator file is one line: path, line, what was found, the fix."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from ..__main__ import main
from ..generate import generate
from ..schema.schema import parse_schema
from ..schema.source import SchemaError, SchemaErrors, Source, tomllib
from .folders import read_folders

BASE = """\
# SPDX-License-Identifier: Apache-2.0
schema = "scale(Tensor x, Tensor weight, Tensor? bias=None, int k=1, float eps=1e-6, str mode='a') \
-> (Tensor out, Tensor sums)"
brief = "Scale rows."
math = "out = x * weight"
source = "nowhere"
inplace = ["x"]
conditions = ["0 <= k", "k <= D"]
autocast = "lower"
flops = "2 * numel(*) * D"

[arguments]
x = "rows"
weight = "scale of each feature"
bias = "added"
k = "a number"
eps = "another"
mode = "a word"

[shapes]
x = "* D"
weight = "D"
bias = "D"
out = "* k"
sums = "*"

[dtypes]
x = ["float32", "bfloat16"]
weight = "x"
bias = "x"
out = "x"
sums = ["float32"]

[layouts]
x = "rows"

[alignment]
x = 16

[kernels]
cpu = "scale.cc"

[backward]
name = "scale_backward"
saves = ["x", "sums"]

[tolerance]
float32 = 1e-6
bfloat16 = 8e-3

[test]
sizes = { D = [1, 2] }
values = { k = [0, "D"] }
range = { x = [0, "D"] }
rank = { _ = [0, 1] }

[bench]
decode = "B=64 D=8192"
"""
GRADIENT = """\
schema = "scale_backward(Tensor grad_sums, Tensor x, Tensor sums, float eps, int D) -> Tensor grad_x"
brief = "Gradient of scale."
[arguments]
grad_sums = "gradient of sums"
x = "rows"
sums = "sums"
eps = "a number"
D = "a size"
[shapes]
grad_sums = "*"
x = "* D"
sums = "*"
grad_x = "* D"
[dtypes]
grad_sums = ["float32"]
x = ["float32"]
sums = ["float32"]
grad_x = "x"
[kernels]
[tolerance]
float32 = 1e-6
"""
PLAIN = """\
schema = "scale_backward(Tensor grad) -> Tensor"
brief = "Gradient of scale."
[arguments]
grad = "gradient of out"
[shapes]
grad = "*"
out = "*"
[dtypes]
grad = ["float32"]
out = "grad"
[kernels]
[tolerance]
float32 = 1e-6
"""


class Case(NamedTuple):
    """One block of mistakes.txt."""

    name: str
    found: str
    fix: str
    old: str
    new: str
    blamed: str

    def text(self) -> str:
        """The base file with the mistake in it."""
        assert BASE.count(self.old) == 1, "the case must change one place"
        return BASE.replace(self.old, self.new)

    def line(self) -> int:
        """The line that must be named."""
        text = self.text()
        at = BASE.index(self.old)
        if self.blamed:
            at = text.index(self.blamed, at if self.blamed in self.new else 0)
        return text[:at].count("\n") + 1


def read_case(block: str) -> Case:
    name, message, *rest = block.splitlines()
    found, fix = message.strip().split(" ... ")
    lines: dict[str, list[str]] = {mark: [] for mark in "-+@*"}
    for line in rest:
        lines[line[2]].append(line[4:])
    old, new = "\n".join(lines["-"]), "\n".join(lines["+"])
    if lines["*"]:
        old, new = BASE.splitlines()[1], f'schema = "scale({lines["*"][0]}"'
    elif not new:
        old += "\n"
    return Case(name, found, fix, old, new, "".join(lines["@"]))


BLOCKS = Path(__file__).with_name("mistakes.txt").read_text(encoding="utf-8").split("\n\n")[1:]
CASES = {case.name: case for case in map(read_case, BLOCKS)}


def run(tmp_path, text: str, capsys) -> list[str]:
    """The generator's messages about scale.toml with this text."""
    (tmp_path / "scale.toml").write_text(text, encoding="utf-8")
    (tmp_path / "scale.cc").touch()
    (tmp_path / "scale_backward.toml").write_text(GRADIENT, encoding="utf-8")
    status = main(["--out", str(tmp_path / "out"), str(tmp_path)])
    errors = capsys.readouterr().err.splitlines()
    assert status == (1 if errors else 0)
    return errors


def test_base_is_right(tmp_path, capsys):
    assert run(tmp_path, BASE, capsys) == []


@pytest.mark.parametrize("name", CASES)
def test_mistake(name, tmp_path, capsys):
    case = CASES[name]
    errors = run(tmp_path, case.text(), capsys)
    assert len(errors) == 1, errors
    assert errors[0].startswith(f"{tmp_path / 'scale.toml'}:{case.line()}: "), (case, errors[0])
    found, fix = errors[0].split("; ", 1)
    assert case.found in found and ", expected " in found and case.fix in fix, errors[0]


@pytest.mark.parametrize(
    "old, new, found, fix",
    [
        ("Tensor grad_sums", "Tensor grad_sum", "'grad_sum' of 'scale_backward' is", "'grad_sums'"),
        ("float eps", "float step", "argument 'step' of 'scale_backward'", "rename it"),
        (
            "float eps",
            "int eps",
            "'eps' of 'scale_backward' is of type int, expected float",
            "type",
        ),
        ("float eps", "Tensor bias", "'bias' of 'scale_backward' is never None", "write '?'"),
        ("float eps", "Tensor out", "'out' of 'scale_backward' is not saved", 'add "out" to saves'),
        ("int D", "int E", "argument 'E' of 'scale_backward' is not known from 'scale'", "rename"),
        ("Tensor x", "Tensor(a!) x", "'x' of 'scale_backward' is written", "write a result"),
        ("Tensor sums, ", "", "saves 'sums', which 'scale_backward' does not take", "'grad_sums'?"),
        ("Tensor grad_sums, ", "", "'scale_backward' takes no gradient", "add it"),
        ("Tensor grad_x", "Tensor grad_xs", "result 'grad_xs' of 'scale_backward'", "'grad_x'?"),
        ("-> Tensor grad_x", "-> ()", "'scale_backward' has no results", "add them"),
        (
            "-> Tensor grad_x",
            "-> (Tensor grad_weight, Tensor? grad_x)",
            "result 'grad_weight' of 'scale_backward' is always made",
            "write Tensor? grad_weight",
        ),
        (
            'grad_x = "* D"',
            'grad_x = "*"',
            "has the shape '*', expected that of 'x'",
            "same number",
        ),
        ('grad_x = "x"', 'grad_x = ["int8"]', "may be int8, expected a dtype of 'x'", "dtypes of"),
    ],
)
def test_mistakes_between_an_operator_and_its_gradient(old, new, found, fix, tmp_path, capsys):
    """The forward's file is blamed, on the line of the name or of saves."""
    assert GRADIENT.count(old) == 1
    (tmp_path / "scale.toml").write_text(BASE)
    (tmp_path / "scale.cc").touch()
    (tmp_path / "scale_backward.toml").write_text(fitted(GRADIENT.replace(old, new)))
    assert main(["--out", str(tmp_path / "out"), str(tmp_path)]) == 1
    (error,) = capsys.readouterr().err.splitlines()
    line = BASE[: BASE.index("saves" if "saves" in found else 'name = "scale_b')].count("\n") + 1
    assert error.startswith(f"{tmp_path / 'scale.toml'}:{line}: "), error
    assert found in error.split("; ")[0] and fix in error.split("; ", 1)[1], error


def fitted(text: str) -> str:
    """The file with sections that fit its changed schema, so that it is right by itself."""
    signature = parse_schema(tomllib.loads(text)["schema"])
    lines, section = [], ""
    for line in text.splitlines():
        section = line if line.startswith("[") else section
        name = line.split(" = ")[0]
        known = [section, *(param.name for param in signature.inputs + signature.outputs)]
        if section in ("[arguments]", "[shapes]", "[dtypes]") and name not in known:
            continue
        lines.append(line)
        if line == section:
            lines += missing_entries(text, section, signature)
    return "\n".join(lines) + "\n"


def missing_entries(text: str, section: str, signature) -> list[str]:
    key = section.strip("[]")
    table = tomllib.loads(text).get(key, {})
    params = signature.inputs + (signature.outputs if key != "arguments" else [])
    values = {"arguments": '"new"', "shapes": '"D"', "dtypes": '["float32"]'}
    return [
        f"{param.name} = {values[key]}"
        for param in params
        if key in values and param.name not in table and (key == "arguments" or param.is_tensor)
    ]


def test_every_class_of_mistake_is_there():
    assert len(CASES) == len(BLOCKS) >= 108


def test_too_many_parameters(tmp_path, capsys):
    schema = f"scale({', '.join(f'int i{i}' for i in range(63))}) -> (Tensor a, Tensor b)"
    errors = run(tmp_path, BASE.replace(BASE.splitlines()[1], f'schema = "{schema}"'), capsys)
    assert "65 arguments and results, expected at most 64" in errors[0]


def test_all_files_are_reported(tmp_path, capsys):
    errors = run(tmp_path, BASE.replace("brief =", "brif ="), capsys)
    (tmp_path / "other.toml").write_text("schema = 3\n")
    main(["--out", str(tmp_path / "out"), str(tmp_path)])
    assert len(errors) == 1 and len(capsys.readouterr().err.splitlines()) == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "data, line, found",
    [
        (b"brief = 'a'\nsource = '\xff'\n", 2, "not UTF-8"),
        (b"\xef\xbb\xbfbrief = 'a'\n", 1, "bad TOML"),
        (b"a = " + b"[" * 9999, 1, "bad TOML"),
        (b"a = '''\n\n", 3, "bad TOML"),
        (b"kernels = 3\nschema = 'a() -> ()'\nbrief = 'b'\n", 1, "'kernels' is 3"),
        (b"", 1, "no schema"),
    ],
)
def test_unreadable_text(data, line, found, tmp_path):
    path = tmp_path / "a.toml"
    path.write_bytes(data)
    _, errors = read_folders([tmp_path])
    assert (
        len(errors) == 1
        and str(errors[0]).startswith(f"{path}:{line}: ")
        and found in str(errors[0])
    )


def test_unreadable_file(tmp_path):
    with pytest.raises(SchemaError, match=r"gone.toml:1: the file cannot be read \(No such file"):
        Source(tmp_path / "gone.toml")
    assert "no such folder" in str(read_folders([tmp_path / "gone"])[1][0])
    assert "no operator here" in str(read_folders([tmp_path])[1][0])


@pytest.mark.parametrize(
    "name",
    ["list_ops", "torch", "use", "__init__", "lambda", "match", "float", "union", "Scale", "a__b"],
)
def test_reserved_names(name, tmp_path):
    (tmp_path / f"{name}.toml").write_text(PLAIN.replace("scale_backward", name))
    _, errors = read_folders([tmp_path])
    assert len(errors) == 1 and f"{name}.toml:1: operator '{name}'" in str(errors[0])


def test_names_of_the_package_are_free_in_other_namespaces(tmp_path):
    (tmp_path / "use.toml").write_text(PLAIN.replace("scale_backward", "acme::use"))
    assert read_folders([tmp_path])[1] == []


def test_duplicates(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "scale_backward.toml").write_text("\n" + PLAIN)
    _, errors = read_folders([tmp_path])
    assert len(errors) == 1
    assert str(errors[0]).startswith(
        f"{tmp_path}/b/scale_backward.toml:2: operator 'anyop.scale_backward' is declared at"
    )
    assert f"{tmp_path}/a/scale_backward.toml:2" in str(errors[0])


def test_two_operators_of_one_c_name(tmp_path):
    (tmp_path / "b_c.toml").write_text(PLAIN.replace("scale_backward", "a::b_c"))
    (tmp_path / "c.toml").write_text(PLAIN.replace("scale_backward", "a_b::c"))
    _, errors = read_folders([tmp_path])
    assert len(errors) == 1 and "the C name 'a_b_c'" in str(errors[0])


def letters(count: int) -> str:
    """A file whose tensor has so many sizes, half of them in each of two arguments."""
    names = [f"S{i}" for i in range(count)]
    shapes = "".join(
        f'{tensor} = "{" ".join(names[at : at + 32])}"\n'
        for tensor, at in (("grad", 0), ("more", 32), ("last", 64))
    )
    text = PLAIN.replace("Tensor grad", "Tensor grad, Tensor more, Tensor last").replace(
        'grad = "*"\nout = "*"\n', shapes + 'out = ""\n'
    )
    text = text.replace('out = "grad"', 'more = "grad"\nlast = "grad"\nout = "grad"')
    return text.replace("[shapes]", 'more = "more"\nlast = "last"\n[shapes]')


def test_too_many_letters(tmp_path):
    path = tmp_path / "scale_backward.toml"
    path.write_text(letters(64))
    assert read_folders([tmp_path])[1] == []
    path.write_text(letters(65))
    assert "65 letters and int arguments in shapes, expected at most 64" in str(
        read_folders([tmp_path])[1][0]
    )


def test_too_many_groups(tmp_path):
    names = [f"t{i}" for i in range(9)]
    path = tmp_path / "wide.toml"

    def text(count: int) -> str:
        entries = {name: f'{name} = "*G{name}"' for name in names[:count]}
        return "\n".join(
            [
                f'schema = "wide({", ".join("Tensor " + name for name in entries)}) -> ()"',
                'brief = "b"\n[kernels]\n[arguments]',
                *(f'{name} = "a"' for name in entries),
                "[shapes]",
                *entries.values(),
                "[dtypes]",
                *(f'{name} = ["int8"]' for name in entries),
            ]
        )

    path.write_text(text(8))
    assert read_folders([tmp_path])[1] == []
    path.write_text(text(9))
    assert "9 groups and broadcasts, expected at most 8" in str(read_folders([tmp_path])[1][0])


def test_an_expression_too_deep_for_the_core(tmp_path, capsys):
    deep = "D-(" * 17 + "D" + ")" * 17
    errors = run(tmp_path, BASE.replace('out = "* k"', f'out = "* {deep}"'), capsys)
    assert len(errors) == 1 and "at most 16" in errors[0]


def test_lines_of_inline_tables_and_dotted_keys(tmp_path, capsys):
    inline = PLAIN.replace('[shapes]\ngrad = "*"\nout = "*"\n', "").replace(
        "[arguments]", 'shapes = { grad = "*", out = "* E" }\n[arguments]'
    )
    (tmp_path / "scale_backward.toml").write_text(inline)
    assert str(read_folders([tmp_path])[1][0]).startswith(
        f"{tmp_path}/scale_backward.toml:3: unbound letter 'E'"
    )
    dotted = inline.replace(
        'shapes = { grad = "*", out = "* E" }', 'shapes.grad = "*"\nshapes.out = "* E"'
    )
    (tmp_path / "scale_backward.toml").write_text(dotted)
    assert str(read_folders([tmp_path])[1][0]).startswith(
        f"{tmp_path}/scale_backward.toml:4: unbound letter 'E'"
    )


def test_the_line_of_a_section_of_a_section(tmp_path, capsys):
    text = BASE.replace('[kernels]\ncpu = "scale.cc"\n', '[kernels.cpu]\nfile = "scael.cc"\n')
    errors = run(tmp_path, text, capsys)
    line = text[: text.index("[kernels.cpu]")].count("\n") + 1
    assert errors[0].startswith(f"{tmp_path}/scale.toml:{line}: kernel file 'scael.cc' is missing")


def test_text_that_looks_like_a_key_is_not_blamed(tmp_path, capsys):
    math = "math = '''\nsource = 1\n[shapes]\n'''\n"
    text = BASE.replace('math = "out = x * weight"\n', math)
    errors = run(tmp_path, text.replace('source = "nowhere"', "source = 3"), capsys)
    assert errors[0].startswith(f"{tmp_path}/scale.toml:8: source is 3")


def test_the_line_of_a_condition_among_several(tmp_path, capsys):
    text = BASE.replace('["0 <= k", "k <= D"]', '[\n  "0 <= k",\n  "k <= E",\n]')
    errors = run(tmp_path, text, capsys)
    assert errors[0].startswith(f"{tmp_path}/scale.toml:9: unbound letter 'E'")


def test_of_many_mistakes_twenty_are_shown(tmp_path):
    """Of a folder that is none of operators, such as /tmp."""
    for number in range(57):
        (tmp_path / f"x{number:02}.toml").write_text("[tool]\n")
    with pytest.raises(SchemaErrors) as caught:
        generate([tmp_path], "all")
    lines = str(caught.value).splitlines()
    assert len(lines) == 21 and lines[0].startswith(f"{tmp_path}/x00.toml:1: ")
    assert lines[-1] == "and 37 more mistakes"
