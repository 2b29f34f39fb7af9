# SPDX-License-Identifier: Apache-2.0
"""The row ascend on a false ACL: every function that fails or is missing, states that differ, the vendor's headers."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import anyop
import pytest
from drawn import FULL

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "runtimes"))
import false_runtimes  # noqa: E402
from false_runtimes import ACL, ONCE, OPEN, check, make, run  # noqa: E402

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")
TEXTS = ("aclGetRecentErrMsg", "aclrtGetSocName")  # these cannot fail


@pytest.fixture(scope="module")
def ascend(tmp_path_factory):
    return make("ascend", tmp_path_factory.mktemp("ascend"))


def test_every_function_once(ascend):
    """But for images and copies between devices, which the row does not have."""
    code, text = run(ascend.environment, "-c", ONCE, "ascend")
    told = [line for line in text.splitlines() if "images are not started" not in line]
    assert code == 0 and told[:3] == [
        "devices 2",
        "current 0",
        "name false Ascend over host 1 0 0",
    ], text
    assert told[3] == "lacks copy_between_on" and told[4:6] == [
        "query_stream 1",
        "query_event 1",
    ], text
    assert "was not allocated by this device (foreign, or freed)" in told[-1] and len(told) == 9, (
        text
    )


@pytest.mark.parametrize("function", [name for name in ACL if name not in TEXTS])
def test_an_error_of_every_function_is_told_with_acls_own_text(function, ascend):
    code, text = run(
        ascend.environment | {"ANYOP_FALSE": f"fail={function}:1"}, "-c", ONCE, "ascend"
    )
    told = 'says "a false error" (' in text and "507899)" in text
    quiet = (
        "aclrtGetDevice",
        "aclrtGetVersion",
    )  # a thread has none at first; the version is 0 then
    assert code == 0 and told != (function in quiet), text


@pytest.mark.parametrize("function", ACL)
def test_a_name_that_is_missing(function, tmp_path):
    runtime = make("ascend", tmp_path, lacks=[function])
    code, text = run(runtime.environment, "-c", OPEN, "ascend")
    assert (
        code == 0
        and f"ascend: Huawei Ascend CANN: {runtime.library} lacks {function}; install" in text
    ), text


@pytest.mark.parametrize(
    ("words", "only", "message"),
    [
        ("states=1", "independence", "query_stream says"),
        ("oom=507899", "allocation", "2^60 bytes: status 6, expected 4"),
        ("memory=1000", "allocation", '"out of false memory" (ACL error 207001'),
    ],
)
def test_what_a_check_sees(words, only, message, ascend):
    code, text = check(ascend.environment | {"ANYOP_FALSE": words}, "ascend", only)
    assert code == 1 and f"WRONG {only}" in text and message in text, text


def test_no_device(ascend):
    code, text = run(ascend.environment | {"ANYOP_FALSE": "devices=0"}, "-c", OPEN, "ascend")
    assert code == 0 and "devices range(0, 0)" in text
    assert (
        "finds no device of Huawei Ascend CANN; install Huawei's CANN and source its set_env.sh"
        in text
    )


def test_a_thread_that_set_no_device(ascend):
    """It has device 0, as with CUDA; ACL would refuse everything."""
    program = "import ctypes, threading\nfrom anyop.testing.device_table import Device\ndevice = Device('ascend')\n"
    program += "def work():\n    print(device.made('get_current', kind=ctypes.c_int32))\n"
    program += "    print(bool(device.made('allocate', 1, 64)))\n"
    program += "threading.Thread(target=work).start()"
    assert run(ascend.environment, "-c", program) == (0, "0\nTrue\n")


COMPARE = """
#include <acl/acl.h>
#include <acl/acl_rt.h>
#include "runtimes/shape.h"
#include "acl_api.h"
using namespace anyop::cuda_like;
#define COMPARE(result, name, parameters) \\
  static_assert(kSame<decltype(&::name), decltype(Acl::name)>, #name " differs");
ANYOP_ACL_FUNCTIONS(COMPARE)
static_assert(ACL_ERROR_REPEAT_INITIALIZE == kAclInitialized);
static_assert(ACL_ERROR_RT_MEMORY_ALLOCATION == kAclOutOfMemory);
static_assert(ACL_ERROR_RT_NO_DEVICE == kAclNoDevice);
static_assert(ACL_MEM_MALLOC_HUGE_FIRST == kAclHugeFirst && ACL_HBM_MEM == kAclHbm);
static_assert(ACL_STREAM_STATUS_COMPLETE == kAclStreamComplete);
static_assert(ACL_EVENT_RECORDED_STATUS_COMPLETE == kAclEventComplete);
static_assert(ACL_EVENT_SYNC == kAclEventSync && ACL_EVENT_TIME_LINE == kAclEventTimed);
static_assert(ACL_MEMCPY_HOST_TO_DEVICE == 1 && ACL_MEMCPY_DEVICE_TO_HOST == 2 && ACL_MEMCPY_DEVICE_TO_DEVICE == 3);
"""


@pytest.mark.skipif(not FULL, reason="downloads 44 MB: make test-full")
def test_prototypes_and_numbers_are_those_of_the_vendors_headers(tmp_path):
    words = ["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "torch-npu==2.13.0", "-q"]
    words += ["--python-version=3.11", "--platform=manylinux_2_28_x86_64", "-d", str(tmp_path)]
    if subprocess.run([sys.executable, *words], capture_output=True).returncode:
        pytest.skip("torch-npu 2.13.0 cannot be downloaded")
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(
            tmp_path, [n for n in wheel.namelist() if "/include/third_party/acl/" in n]
        )
    headers = next(tmp_path.glob("*/include/third_party/acl/inc"))
    for text, code in ((COMPARE, 0), (COMPARE.replace("kAclHbm", "kAclHugeFirst"), 1)):
        (tmp_path / "compare.cc").write_text(text)
        flags = [
            f"-isystem{headers}",
            f"-I{ROOT / 'tests'}",
            f"-I{false_runtimes.SOURCES}",
            f"-I{anyop.include_dir()}",
        ]
        words = ["g++", "-std=c++17", "-fsyntax-only", *flags, str(tmp_path / "compare.cc")]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
