# SPDX-License-Identifier: Apache-2.0
"""A kernel in BANG C (.mlu), built by a false cncc and run on the false CNRT. Nothing of Cambricon's is here: names of
the compiler, its flags and functions are from public sources.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import anyop
import pytest
from anyop.builder.gpus import wanted_archs

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "runtimes"))
import small_builds as sb  # noqa: E402
from false_runtimes import make, run  # noqa: E402

cache_folder = sb.cache_folder
pytestmark = [
    sb.needs_compiler,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler"),
]
CACHE = os.environ.get("ANYOP_CACHE_DIR", os.path.expanduser("~/.cache/anyop"))
# Rewrites launches, notes its arguments and compiles as C++.
CNCC = f"""\
#!{sys.executable}
import os, re, sys
words = sys.argv[1:]
open({{log!r}}, "a").write(" ".join(words) + "\\n")
if words == ["--version"]:
    sys.exit("false cncc: 4.13.0")
source, out = words[words.index("-c") + 1], words[words.index("-o") + 1]
text = re.sub(r"(\\w+)<<<(.*?)>>>\\(", r"FalseLaunch(\\1, \\2)(", open(source).read())
open(out + ".cc", "w").write(f'#line 1 "{{{{source}}}}"\\n' + text)
words[words.index(source)] = out + ".cc"
kept = [word for word in words if not word.startswith("--bang-mlu-arch=")]
os.execv({sb.GXX!r}, [{sb.GXX!r}, "-I{HERE.parent / "mlu"}", *kept])
"""
NUMPY = """
import sys
import anyop, numpy as np
from anyop.conformance.device_array import back, there
from anyop.conformance.device_table import Device, use
anyop.load(sys.argv[1])
chip = Device("mlu")
use(chip)
for count in (0, 1, 4096, 4097, 64 * 4096 + 5):
    x = np.random.default_rng(count).standard_normal(count).astype(np.float32)
    out = there(chip, x)
    try:
        anyop.ops.mluside.scale(there(chip, x), -3, out=out)
    except Exception as error:
        print(type(error).__name__, error)
        continue
    print(count, (back(chip, out) == x * np.float32(-3)).all())
"""
TORCH = """
import sys
import anyop, torch
import anyop.torch.device
anyop.load(sys.argv[1])
x = torch.arange(9000.0)
there = x.to("anyop")
print(torch.equal(anyop.ops.mluside.scale(there, 3.0).cpu(), 3 * x))
stream = torch.Stream(device="anyop")
with stream:
    out = anyop.ops.mluside.scale(there, 5.0)
stream.synchronize()
print(torch.equal(out.cpu(), 5 * x))
"""


@pytest.fixture
def built(cache_folder, tmp_path, monkeypatch):
    """The library of the kernel, what its compiler was told, and the environment of the false CNRT."""
    sdk = tmp_path / "sdk"
    runtime = make("mlu", sdk / "lib64")
    (sdk / "bin").mkdir()
    (sdk / "bin" / "cncc").write_text(CNCC.format(log=str(tmp_path / "log")))
    (sdk / "bin" / "cncc").chmod(0o755)
    monkeypatch.setenv("NEUWARE_HOME", str(sdk))
    library = anyop.build(HERE.parent / "mlu", name="mluside")
    there = runtime.environment | {
        "ANYOP_CACHE_DIR": CACHE
    }  # where torch's parts are built already
    return library, (tmp_path / "log").read_text(), there


def test_it_runs_on_the_false_runtime(built):
    library, log, environment = built
    (compiled,) = [line for line in log.splitlines() if "scale.mlu" in line]
    assert "--bang-mlu-arch=mtp_592" in compiled and "scale.mlu" in compiled, compiled
    assert "-DANYOP_WITH_MLU=1" in compiled and "-std=c++17" in compiled, compiled
    code, text = run(environment, "-c", NUMPY, library)
    expected = "".join(f"{n} True\n" for n in (0, 1, 4096, 4097, 64 * 4096 + 5))
    assert (code, text) == (0, expected), text
    broken = environment | {"ANYOP_FALSE": "fail=cnrtInvokeHostFunc:1"}
    code, text = run(broken, "-c", NUMPY, library)
    assert "DeviceError mluside.scale: a false error" in text, text


def test_torch_on_two_streams(built):
    pytest.importorskip("torch", reason="torch is not installed")
    library, _, environment = built
    code, text = run(environment | {"ANYOP_DEVICE_PLATFORM": "mlu"}, "-c", TORCH, library)
    assert (code, text) == (0, "True\nTrue\n"), text


def test_architectures():
    assert wanted_archs("mlu", None, ("mtp_592",)) == ["mtp_592"]
    assert wanted_archs("mlu", "mtp_372", ("mtp_592",)) == ["mtp_372"]
    with pytest.raises(ValueError, match="mtp_592"):
        wanted_archs("mlu", "mtp_x", ("mtp_592",))


def test_a_compiler_that_is_missing_is_named(monkeypatch, cache_folder):
    monkeypatch.setenv("NEUWARE_HOME", os.devnull)
    monkeypatch.delenv("ANYOP_CNCC", raising=False)
    with pytest.raises(Exception, match=r"cncc.*install Cambricon's CNToolkit"):
        anyop.build(HERE.parent / "mlu", name="mluside")
