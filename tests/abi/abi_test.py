# SPDX-License-Identifier: Apache-2.0
"""The ABI stays: layouts are the listed ones, and libraries built against each release's headers run on this core."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import anyop
import pytest

HERE = Path(__file__).resolve().parent
HEADERS = [
    "anyop.h",
    "aten_call.h",
    "aten_route.h",
    "device.h",
    "device_below.h",
    "device_memory.h",
    "kernel.h",
    "table.h",
]
RELEASES = sorted(path.name for path in HERE.iterdir() if (path / "anyop").is_dir())


def public_items() -> str:
    """What layout.c prints, read off the headers, so that nothing public is forgotten."""
    lines = []
    for name in HEADERS:
        text = re.sub(
            r"/\*.*?\*/", "", Path(anyop.include_dir(), "anyop", name).read_text(), flags=re.S
        )
        text = re.sub(r"union \{.*?\} (\w+);", r"int \1;", text, flags=re.S)
        for body, struct in re.findall(r"typedef struct \w* ?\{(.*?)\} (\w+);", text, flags=re.S):
            lines.append(f"STRUCT({struct});")
            for statement in body.split(";"):
                function = re.search(r"\(\*(\w+)\)\(", statement)
                names = (
                    [function[1]]
                    if function
                    else re.findall(r"(\w+)(?:\[\w+\])*(?:\s*,|\s*$)", statement.strip())
                )
                lines += [f"FIELD({struct}, {field});" for field in names]
        for body in re.findall(r"typedef enum \w+ \{(.*?)\}", text, flags=re.S):
            lines += [f"VALUE({name});" for name in re.findall(r"(\w+) =\s", body)]
    return "\n".join(lines) + "\n"


def test_layouts_are_the_listed_ones(tmp_path):
    items = public_items()
    assert items.count("STRUCT") >= 17 and items.count("FIELD") >= 90 and items.count("VALUE") >= 60
    (tmp_path / "layout_items.h").write_text(items)
    program = tmp_path / "layout"
    compiler = shutil.which("gcc") or shutil.which("cc")
    subprocess.run(
        [
            compiler,
            "-std=c11",
            "-Wall",
            "-Werror",
            f"-I{anyop.include_dir()}",
            f"-I{tmp_path}",
            str(HERE / "layout.c"),
            "-o",
            str(program),
        ],
        check=True,
    )
    found = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    listed = (HERE / "layout.txt").read_text()
    kept = [line for line in listed.splitlines() if line not in found.splitlines()]
    assert not kept, f"the ABI lost or moved: {kept}"
    assert found == listed, "the ABI grew: put what layout.c prints into tests/abi/layout.txt"


def build(folder: Path, target: Path, version: str | None = None) -> Path:
    """The library of a release's folder, by its own frozen headers; version replaces ANYOP_ABI_VERSION."""
    objects = []
    for source in [*folder.rglob("*.c"), *folder.rglob("*.cc")]:
        text = source.read_text()
        if version:
            text = text.replace("ANYOP_ABI_VERSION", version)
        copy = target / f"{source.stem}{source.suffix}"
        copy.write_text(text)
        compiler = ["g++", "-std=c++17"] if source.suffix == ".cc" else ["gcc"]
        objects.append(str(copy.with_suffix(".o")))
        subprocess.run(
            [
                *compiler,
                "-O1",
                "-fPIC",
                "-fvisibility=hidden",
                f"-I{folder}",
                "-c",
                str(copy),
                "-o",
                objects[-1],
            ],
            check=True,
        )
    library = target / "libacme.so"
    subprocess.run(["g++", "-shared", *objects, "-o", str(library)], check=True)
    return library


@pytest.mark.parametrize("release", RELEASES)
def test_library_of_a_release_runs_on_this_core(release, tmp_path):
    library = build(HERE / release, tmp_path)
    program = f"""
import anyop, numpy as np
assert anyop.load({str(library)!r}) == ["acme.blend"] == anyop.load({str(library)!r})
x = np.arange(6, dtype=np.float32).reshape(2, 3)
y = np.array([10, 20, 30], np.float32)
out, total = anyop.ops.acme.blend(x)
assert np.array_equal(out, x + 3) and np.array_equal(total, out.sum(1))
out, total = anyop.ops.acme.blend(x, y, 0.5, shift=[], mode="negative", twice=True)
assert np.array_equal(out, -(x + y)) and np.array_equal(total, out.sum(1))
for bad in (lambda: anyop.ops.acme.blend(x, y[:2]), lambda: anyop.ops.acme.blend(x, mode="other")):
    try:
        bad()
    except ValueError as error:
        assert str(error).startswith("acme.blend: "), error
    else:
        raise SystemExit("not refused")
assert "acme.blend" in anyop.list_ops() and anyop.metadata("acme::blend")["namespace"] == "acme"
print("right")
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout == "right\n", run.stderr


@pytest.mark.parametrize("version", ["0u", "2u", "99u"])
def test_another_abi_is_refused_by_name(version, tmp_path):
    library = build(HERE / RELEASES[-1], tmp_path, version)
    with pytest.raises(
        ValueError, match=f"acme has ABI version {version[:-1]}, this core reads 1 to 1"
    ):
        anyop.load(library)
    assert "acme.blend" not in anyop.list_ops()


def test_what_is_no_library_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no library of operators"):
        anyop.load(tmp_path / "nothing.so")
    with pytest.raises(ValueError, match="holds no library"):
        anyop.load(tmp_path)
    (tmp_path / "text.so").write_text("not a library")
    with pytest.raises(ValueError, match=r"text\.so"):
        anyop.load(tmp_path / "text.so")
    (tmp_path / "empty.c").write_text("int nothing;")
    subprocess.run(
        ["gcc", "-shared", "-fPIC", str(tmp_path / "empty.c"), "-o", str(tmp_path / "empty.so")],
        check=True,
    )
    with pytest.raises(ValueError, match="exports no AnyopLibraryEntry"):
        anyop.load(tmp_path / "empty.so")


def test_an_operator_that_is_there_already_is_refused(tmp_path):
    """Two libraries with one name of an operator: the second brings nothing."""
    program = f"""
import anyop
anyop.load({str(build(HERE / RELEASES[-1], tmp_path))!r})
try:
    anyop.load({str(shutil.copy(tmp_path / "libacme.so", tmp_path / "other.so"))!r})
except ValueError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.startswith("acme.blend is registered already"), run.stdout + run.stderr
