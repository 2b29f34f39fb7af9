# SPDX-License-Identifier: Apache-2.0
"""The row ascend on a false ACL: every function that fails or is missing, states that differ, the vendor's headers."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import anyop
import pytest
from drawn import FULL

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))
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
    program = "import ctypes, threading\nfrom anyop.conformance.device_table import Device\ndevice = Device('ascend')\n"
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


COMPARE_OPERATORS = """
#include <acl/acl.h>
#include "runtimes/shape.h"
#include "anyop/forms/aclnn_call.h"
struct aclTensor;
struct aclScalar;
struct aclIntArray;
THEIRS
#define COMPARE(name) \\
  static_assert(kSame<_##name, decltype(AnyopAclnnApi::name)>, #name " differs");
COMPARE(aclCreateTensor)
COMPARE(aclCreateScalar)
COMPARE(aclCreateIntArray)
COMPARE(aclDestroyTensor)
COMPARE(aclDestroyScalar)
COMPARE(aclDestroyIntArray)
static_assert(ACL_FORMAT_ND == kAnyopAclnnNd && ACL_FLOAT == kAnyopAclnnFloat);
int main() {
  const int theirs[] = {ACL_BOOL, ACL_UINT8, ACL_INT8, ACL_INT16, ACL_INT32, ACL_INT64, ACL_FLOAT16, ACL_BF16,
                        ACL_FLOAT, ACL_DOUBLE, ACL_COMPLEX64, ACL_COMPLEX128, ACL_FLOAT8_E4M3FN, ACL_FLOAT8_E5M2,
                        ACL_UINT16, ACL_UINT32, ACL_UINT64};
  for (int i = 0; i < kAnyopNumDtypes; ++i)
    if (AnyopAclnnDtype(i) != theirs[i]) return i + 1;
}
"""


@pytest.fixture(scope="module")
def torch_npu(tmp_path_factory):
    """The package, unpacked: headers of ACL, and a library that calls aclnn functions by their names."""
    if not FULL:
        pytest.skip("downloads 44 MB: make test-full")
    folder = tmp_path_factory.mktemp("torch_npu")
    words = ["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "torch-npu==2.13.0", "-q"]
    words += ["--python-version=3.11", "--platform=manylinux_2_28_x86_64", "-d", str(folder)]
    if subprocess.run([sys.executable, *words], capture_output=True, timeout=300).returncode:
        pytest.skip("torch-npu 2.13.0 cannot be downloaded")
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        kept = ("/include/third_party/acl/", "/op_api_common_base.h", "/lib/libtorch_npu.so")
        wheel.extractall(folder, [n for n in wheel.namelist() if any(part in n for part in kept)])
    return folder


def compile_beside(
    folder: Path, out: Path, text: str, *flags: str
) -> subprocess.CompletedProcess[str]:
    """A program over the vendor's headers and ours."""
    headers = next(folder.glob("*/include/third_party/acl/inc"))
    (out / "compare.cc").write_text(text)
    ours = (ROOT / "tests", false_runtimes.SOURCES, anyop.include_dir())
    words = ["g++", "-std=c++17", f"-isystem{headers}", *(f"-I{place}" for place in ours), *flags]
    return subprocess.run(
        [*words, str(out / "compare.cc")], capture_output=True, text=True, timeout=300
    )


def test_prototypes_and_numbers_are_those_of_the_vendors_headers(torch_npu, tmp_path):
    for text, code in ((COMPARE, 0), (COMPARE.replace("kAclHbm", "kAclHugeFirst"), 1)):
        done = compile_beside(torch_npu, tmp_path, text, "-fsyntax-only")
        assert done.returncode == code, done.stderr


def test_what_makes_tensors_for_aclnn_functions_is_the_vendors(torch_npu, tmp_path):
    header = next(torch_npu.glob("**/op_api_common_base.h")).read_text()
    theirs = re.findall(
        r"^typedef [^;]*\(\*_acl(?:Create|Destroy)(?:Tensor|Scalar|IntArray)\)[^;]*;", header, re.M
    )
    assert len(theirs) == 6
    text = COMPARE_OPERATORS.replace("THEIRS", "\n".join(theirs))
    program = tmp_path / "compare"
    done = compile_beside(torch_npu, tmp_path, text, "-o", str(program), "-ldl")
    assert done.returncode == 0, done.stderr
    assert subprocess.run([program], timeout=300).returncode == 0


def test_the_vendors_own_package_calls_every_aclnn_function_that_is_called_here(torch_npu):
    library = next(torch_npu.glob("**/libtorch_npu.so")).read_bytes()
    texts = "".join(file.read_text() for file in (ROOT / "ops").glob("*/*.toml"))
    names = set(re.findall(r"\baclnn[A-Z]\w*", texts))
    assert len(names) >= 15
    assert not [n for n in names if f"\0{n}GetWorkspaceSize\0".encode() not in library]
