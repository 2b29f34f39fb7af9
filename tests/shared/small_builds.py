# SPDX-License-Identifier: Apache-2.0
"""For the tests of builder and cache: small folders of operators, compilers that log, and processes that use them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import anyop
import pytest

GXX = shutil.which("g++") or shutil.which("c++")
needs_compiler = pytest.mark.skipif(not GXX, reason="there is no g++")

SCHEMA = """\
schema = "{namespace}::{op}(Tensor x) -> Tensor"
shapes = {{ x = "*", out = "*" }}
dtypes = {{ x = ["float32"], out = "x" }}
kernels = {{ cpu = "{file}" }}
"""
KERNEL = """\
#include "{namespace}/ops/{op}.h"
{lines}
int32_t {namespace}_{op}_cpu(const {struct}Args* args, AnyopCall*) {{
  auto x = (const float*)args->x->data;
  auto out = (float*)args->out->data;
  for (int64_t r = 0; r < args->rows; ++r) out[r] = {value};
  return kAnyopOk;
}}
"""
# Prints the operator's value at 3 (or the error), from a process of its own: a library that is loaded stays.
CALL = """
import sys
import anyop, numpy as np
try:
    anyop.load(sys.argv[1])
    print(float(getattr(anyop.ops, sys.argv[2]).scale(np.float32([3]))[0]))
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


def write_operator(
    folder: Path,
    value: str = "2 * x[r]",
    *,
    op: str = "scale",
    namespace: str = "acme",
    lines: str = "",
    file: str | None = None,
) -> Path:
    """A folder of one operator, out[r] = value; lines stand above its kernel. Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    file = file or f"{op}.cc"
    words = {"namespace": namespace, "op": op, "file": file.replace('"', '\\"')}
    (folder / f"{op}.toml").write_text(SCHEMA.format(**words))
    text = KERNEL.format(**words, struct=op.title().replace("_", ""), lines=lines, value=value)
    (folder / file).write_text(text)
    return folder


def write_compiler(path: Path, log: Path | None = None, before: str = "", after: str = "") -> Path:
    """A C++ compiler that writes a line to the log for each compilation and link; before, after: commands of the
    shell around these.
    """
    line = f'echo "$*" >> "{log}"' if log else ":"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "#!/bin/sh\n"
        f'case " $* " in *" -o "*) {line}; {before or ":"}; "{GXX}" "$@" || exit $?; {after or ":"};;\n'
        f'*) exec "{GXX}" "$@";; esac\n'
    )
    path.chmod(0o755)
    return path


def links(log: Path) -> int:
    """How many libraries the logging compiler linked."""
    text = log.read_text() if log.exists() else ""
    return sum(" -shared " in f" {line} " for line in text.splitlines())


def environment(cache: Path, **changes: str | None) -> dict[str, str]:
    """Of a process that uses this cache; None removes a variable."""
    mine = ("ANYOP_", "CXX", "XDG_CACHE_HOME", "CUDACXX", "CUDA_HOME", "CUDA_PATH")
    found = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
    found |= {"ANYOP_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for name, value in changes.items():
        found.pop(name, None)
        if value is not None:
            found[name] = str(value)
    return found


def python(program: str, *arguments: object, env: dict[str, str], **options) -> subprocess.Popen:
    """A process that runs the program; its output and errors are texts."""
    return start([sys.executable, "-c", program, *map(str, arguments)], env, **options)


def start(command: list[str], env: dict[str, str], **options) -> subprocess.Popen:
    """A process whose output and errors are texts."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=env, **(pipes | options))


def call(path: Path | str, env: dict[str, str], namespace: str = "acme") -> str:
    """What scale(3) of a folder or library gives in a process of its own, or the error's text."""
    process = python(CALL, path, namespace, env=env)
    output, errors = process.communicate(timeout=120)
    return output.strip() or errors.strip()


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, which builds in this process use; no variable of the caller's counts."""
    for name in environment(tmp_path).keys() ^ os.environ.keys():
        if name != "PYTHONPATH":
            monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "cache"
    monkeypatch.setenv("ANYOP_CACHE_DIR", str(folder))
    return folder


def entries(cache: Path) -> list[Path]:
    """Folders of the entries of a cache."""
    return sorted((cache / "entries").glob("*/*"))


def leftovers(cache: Path) -> list[str]:
    """Private folders that builds left."""
    building = cache / "building"
    return sorted(path.name for path in building.iterdir()) if building.exists() else []


def copy_of(library: str | Path) -> bytes:
    """Contents of a library, for comparisons."""
    return Path(library).read_bytes()


def build(folder: Path, **options) -> Path:
    """anyop.build in this process."""
    return Path(anyop.build(folder, **options))
