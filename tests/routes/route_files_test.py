# SPDX-License-Identifier: Apache-2.0
"""Route files that are wrong: each is refused with its place, at once, and the routes before it stay."""

import mmap
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import anyop
import pytest

TABLE = Path(__file__).with_name("route_file_mistakes.txt")
core = anyop._anyop
LIMIT = 1 << 20


def mistakes() -> list[tuple[bytes, str]]:
    """Texts and what is said of them."""
    lines = [line for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    plain = [line.strip().encode().decode("unicode_escape") for line in lines]
    return [(text.encode("latin-1"), said) for text, said in zip(plain[::2], plain[1::2])]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder to be in, while rms_norm has a route; afterwards nothing has one."""
    monkeypatch.chdir(tmp_path)
    Path("before.routes").write_text("rms_norm = cpu\n")
    anyop.load_routes("./before.routes")
    yield tmp_path
    anyop.load_routes(None)


def bytes_read() -> int:
    """By this process until now."""
    return int(Path("/proc/self/io").read_text().partition("rchar: ")[2].split()[0])


def refusal(path: str) -> str:
    """What load_routes says of a file, of which it reads little; the routes before it must stay."""
    before = core.routes()
    start = bytes_read()
    with pytest.raises(ValueError) as caught:
        anyop.load_routes(path)
    assert bytes_read() - start < 2 * LIMIT
    assert core.routes() == before
    return str(caught.value)


def refused_texts(files: dict[str, str], path: str) -> str:
    for name, text in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    return refusal(path)


@pytest.mark.parametrize(("text", "said"), mistakes())
def test_a_mistake_has_a_place_and_an_expectation(folder, text, said):
    Path("a.routes").write_bytes(text)
    found = refusal("./a.routes").removeprefix("./a.routes:")
    found = found.partition("\n")[0]  # what follows from it may follow it
    assert found.startswith(said[:-3]) if said.endswith("...") else found == said


def test_there_are_a_hundred_different_ones():
    assert len({text for text, _ in mistakes()}) >= 100
    assert len({re.sub(r"^\d+:\d+: ", "", said) for _, said in mistakes()}) >= 75


def test_the_routes_before_run_on(folder):
    assert '"pattern":"rms_norm"' in core.routes()
    Path("a.routes").write_text("softmax = cpu\nrelu = cpu,\n")
    refusal("a.routes")
    assert "softmax" not in core.routes()
    Path("a.routes").write_text("softmax = cpu\nrelu = cpu\n")
    anyop.load_routes("a.routes")
    assert "softmax" in core.routes() and "rms_norm" not in core.routes()


def test_a_mistake_in_an_included_file_is_placed_there(folder):
    files = {"a.routes": "* = cpu\ninclude b/b.routes\n", "b/b.routes": "\n relu: cpu"}
    assert refused_texts(files, "a.routes") == "b/b.routes:2:6: found ':', expected '='"
    files["b/b.routes"] = "rms_norn = cpu"
    assert refused_texts(files, "a.routes").startswith("b/b.routes:1:1: unknown operator")
    files["b/b.routes"] = "include ../c.routes"
    assert refused_texts(files, "a.routes") == (
        "b/b.routes:1:9: 'b/../c.routes': found an error (No such file or directory), "
        "expected a file that can be read"
    )
    files["b/b.routes"] = "[when Q=1]\ninclude ../c.routes"
    files["c.routes"] = "rms_norm = cpu"
    assert refused_texts(files, "a.routes").startswith("b/b.routes:1:7: rms_norm has no size Q")


def test_an_include_loop_is_shown(folder):
    loop = {"a.routes": "include b.routes", "b.routes": "include triton\ninclude ./a.routes"}
    assert refused_texts(loop, "a.routes") == (
        "b.routes:2:9: found an include loop: 'a.routes' includes 'b.routes' includes './a.routes'"
    )
    assert refused_texts({"a.routes": 'include "a.routes"'}, "a.routes") == (
        "a.routes:1:9: found an include loop: 'a.routes' includes 'a.routes'"
    )


def test_too_many_includes_end(folder):
    chain = {f"{i}.": f"include {i + 1}." for i in range(40)}
    assert refused_texts(chain, "0.") == "15.:1:9: found a file within 16 others, expected fewer"
    wide = {f"{i}.": f"include {i + 1}.\n" * 9 for i in range(12)} | {"12.": ""}
    assert "found more than 1024 includes" in refused_texts(wide, "0.")


def test_large_files_are_refused_before_they_are_read(folder):
    with open("100MB", "wb") as file:
        file.truncate(100_000_000)
    expected = f"bytes, expected at most {LIMIT}"
    assert refusal("./100MB") == f"./100MB:1:1: found a file of 100000000 {expected}"
    Path("line").write_bytes(b"rms_norm = " + b"c" * 50_000_000)
    assert refusal("./line") == f"./line:1:1: found a file of 50000011 {expected}"
    Path("line").write_bytes(b"rms_norm = " + b"c" * (LIMIT - 11))
    assert refusal("./line") == f"./line:1:12: unknown backend '{'c' * 60}'"
    Path("line").write_bytes(b"x" * LIMIT)
    found = "found the end of the text, expected '='"
    assert refusal("./line") == f"./line:1:{LIMIT + 1}: {found}"


def test_the_largest_files_are_read(folder):
    Path("rules").write_text("".join(f"[when D={i}]\nrms_norm = cpu, aten\n" for i in range(8192)))
    anyop.load_routes("./rules")
    Path("comments").write_bytes(b"#\n" * (LIMIT // 2))
    anyop.load_routes("./comments")


def test_a_file_that_grows_is_not_read_to_its_end(folder):
    """The list of this process's memory says that it has 0 bytes, and has two million."""
    kept = [mmap.mmap(-1, 4096, prot=1 + i % 2 * 2) for i in range(3500)]
    assert os.stat("/proc/self/smaps").st_size == 0
    said = f"found a file of more than {LIMIT} bytes, expected at most {LIMIT}"
    assert refusal("/proc/self/smaps") == f"/proc/self/smaps:1:1: {said}"
    del kept


def test_what_is_no_file_is_refused(folder):
    os.mkfifo("pipe")
    os.mkdir("sub")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    kinds = {"pipe": "pipe", "sub": "folder", "socket": "socket", "null": "device"}
    os.symlink("/dev/null", "null")
    for name, kind in kinds.items():
        said = f"found a {kind}, expected a regular file"
        assert refusal(f"./{name}") == f"./{name}:1:1: {said}"
        assert refused_texts({"a.": f"\ninclude ./{name}"}, "a.") == f"a.:2:9: './{name}': {said}"


def test_what_cannot_be_reached_is_refused(folder):
    Path("gone.routes").write_text("* = cpu")
    anyop.load_routes("gone.routes")
    os.unlink("gone.routes")
    os.symlink("nowhere", "broken.routes")
    os.symlink("round.routes", "round.routes")
    reasons = {
        "gone.routes": "No such file or directory",
        "broken.routes": "No such file or directory",
        "round.routes": "Too many levels of symbolic links",
        "before.routes/x": "Not a directory",
        "x" * 300 + ".": "File name too long",
    }
    for name, reason in reasons.items():
        said = f"found an error ({reason}), expected a file that can be read"
        assert refusal(name) == f"{name}:1:1: {said}"
    assert refusal("tritno") == (
        "tritno:1:1: found no preset 'tritno', expected cpu, cuda, flaggems, native, reference, triton, or a path "
        "with '/' or '.' in it; did you mean 'triton'?"
    )
    assert len(refusal("y/" * 10_000)) < 1200


def test_a_path_is_read_whole(folder):
    anyop.load_routes(b"./before.routes")
    for path in ("before.routes\0x", b"before.routes\0x"):
        with pytest.raises(ValueError, match=r"NUL|null"):
            anyop.load_routes(path)
    Path("größe 1.routes").write_text('include "./before.routes"')
    anyop.load_routes(Path("größe 1.routes"))
    assert "before.routes:1" in core.routes()


def test_a_file_without_permission_is_refused(folder):
    Path("secret.routes").write_text("* = cpu")
    os.chmod("secret.routes", 0)
    program = """
import os, anyop
load = anyop.load_routes
if os.geteuid() == 0:
    os.setegid(65534), os.seteuid(65534)
try:
    load("/proc/self/cwd/secret.routes")
except ValueError as error:
    print(error)
"""
    os.chmod(folder, 0o755)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "secret.routes:1:1: found an error (Permission denied), expected a file" in done.stdout


@pytest.mark.parametrize("preset", ["cpu", "cuda", "triton", "reference", "native", "flaggems"])
def test_presets_are_taken_whatever_devices_there_are(folder, preset):
    anyop.load_routes(preset)
    assert f"preset {preset}" in core.routes()
    Path("a.routes").write_text(f"include {preset}\nrms_norm = cpu\n")
    anyop.load_routes("a.routes")
    assert f"preset {preset}" in core.routes() and "a.routes:2" in core.routes()
