# SPDX-License-Identifier: Apache-2.0
"""What other vendors' compilers make of the CUDA kernels, on this GPU: without asm. Their standard tests.

Copies of operators' folders with nothing but the kernel for every GPU are built as a library of their own, for
capability 8.0 (newer ones take its PTX) and with -DANYOP_PTX=0, which includes a device that says it has no more.
Once with warps of 32 lanes, and once as halves of a wavefront of 64 that exchange through shared memory
(wave_on_gpu.h). Cases are the operators' own: a library of another name draws others.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import anyop
import pytest
from anyop import testing
from anyop.testing.torch_memory import takes_less

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device that torch can use", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parent))
from cuda_operators import SUBJECTS, fits_torch, on_cuda  # noqa: E402  needs a device

OPS = Path(__file__).parents[3] / "ops"
# One of each way to work: rows, sums of columns, lists, searches, tables. Those of tiles take nvcc minutes each.
OPERATORS = (
    "elementwise/add", "elementwise/cast", "elementwise/gelu", "elementwise/silu_and_mul", "embedding/embedding",
    "norm/batch_norm_stats", "norm/group_norm", "norm/l2_normalize", "norm/layer_norm", "norm/rms_norm",
    "softmax/log_softmax", "softmax/softmax", "reduction/masked_mean", "rope/rope", "quant/quant_fp8",
    "loss/cross_entropy", "topk/sort", "topk/topk", "experts/moe_route", "experts/moe_sort",
    "attention/append_kv", "attention/merge_states", "multi_tensor/multi_tensor_adam",
    "multi_tensor/multi_tensor_l2norm",
)  # fmt: skip
EIGHT = """
#include <cuda_runtime_api.h>
static inline cudaError_t AtMostEight(int* value, cudaDeviceAttr attribute, int device) {
  const cudaError_t error = cudaDeviceGetAttribute(value, attribute, device);
  if (attribute == cudaDevAttrComputeCapabilityMajor && *value > 8) *value = 8;
  if (attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin) *value -= %d;
  return error;
}
#define cudaDeviceGetAttribute AtMostEight
"""
FULL = "experts/moe_sort"  # its shared memory leaves no room for that of wave_on_gpu.h
WAVE = Path(__file__).with_name("wave_on_gpu.h")
DROPPED = ("backward", "tangent", "bench", "launch.triton", "launch.triton.constants")


def portable(schema: str, library: str) -> str:
    """An operator's file with its kernel for every GPU alone."""
    kept, section = [], ""
    schema = re.sub(r"^aten_overloads = (\[\n.*?^\]|[^\n]*)$", "", schema, flags=re.M | re.S)
    for line in schema.splitlines():
        if found := re.match(r"\[([\w.]+)\]", line):
            section = found[1]
        if section in DROPPED or line.startswith(("deterministic", "autocast")):
            continue
        if section == "kernels" and not line.startswith(("[", "cuda = ")):
            continue
        kept.append(line)
    return "\n".join(kept).replace('schema = "', f'schema = "{library}::', 1) + "\n"


def with_included(names: tuple[str, ...]) -> set[str]:
    """The operators, and those whose arguments their sources also read: rms_norm.cu has native_rms_norm's."""
    known = {path.stem: path for path in OPS.glob("*/*.toml")}
    found, left = set(), list(names)
    while left:
        path = OPS / f"{left.pop()}.toml"
        name = str(path.relative_to(OPS).with_suffix(""))
        if name in found:
            continue
        found.add(name)
        kernel = re.search(r"^cuda = .*$", path.read_text(), re.M)
        files = [
            path.parent / file
            for file in re.findall(r'"([\w./]+\.cu)"', kernel[0] if kernel else "")
        ]
        seen = set()
        while files:
            if (file := files.pop().resolve()) in seen:
                continue
            seen.add(file)
            text = file.read_text()
            more = re.findall(r'#include "anyop/ops/(\w+)\.h"', text)
            left += [str(known[op].relative_to(OPS).with_suffix("")) for op in more]
            near = [file.parent / other for other in re.findall(r'#include "([\w./]+)"', text)]
            files += [other for other in near if other.is_file()]
    return found


@pytest.fixture(scope="module", params=[32, 64], ids="{} lanes".format)
def functions(request, tmp_path_factory) -> dict[str, Callable]:
    """By name, of the library that is built here."""
    library = f"portable{request.param}"
    place = tmp_path_factory.mktemp(library)
    operators = [name for name in OPERATORS if request.param == 32 or name != FULL]
    names = with_included(operators)
    for family in {Path(name).parent for name in names}:
        (place / family).mkdir()
        for file in (OPS / family).glob("*"):
            if file.suffix in (".cu", ".h", ".cc", ".py"):
                shutil.copy(file, place / family)
    for name in names:
        (place / f"{name}.toml").write_text(portable((OPS / f"{name}.toml").read_text(), library))
    for file in [*place.rglob("*.cu"), *place.rglob("*.h")]:
        text = re.sub(r"\banyop_(\w+_cuda)\b", rf"{library}_\1", file.read_text())
        file.write_text(text.replace('"anyop/ops/', f'"{library}/ops/'))
    header = tmp_path_factory.mktemp("eight") / "eight.h"
    header.write_text(EIGHT % (4096 if request.param == 64 else 0))
    flags = f"-DANYOP_PTX=0 -include {header}"
    if request.param == 64:
        flags += f" -include cuda_fp16.h -include cuda_bf16.h -include {WAVE}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NVCC_APPEND_FLAGS", flags)
        try:
            anyop.load(anyop.build(place, name=library, arch="80"))
        except anyop.MissingToolError as error:
            pytest.skip(str(error))
    return {
        subject.name.split(".")[-1]: subject.function for subject in testing.find_subjects(place)
    }


@pytest.mark.parametrize("name", [Path(name).name for name in OPERATORS])
def test_standard_cases(functions, name):
    if name not in functions and name == Path(FULL).name:
        pytest.skip("its shared memory leaves no room for what 64 lanes exchange")
    subject = SUBJECTS[name]
    there, failures, count = replace(subject, function=on_cuda(functions[name])), [], 0
    for choice in testing.dtype_choices(subject.metadata):
        for case in filter(fits_torch, testing.standard_cases(subject, choice)):
            try:
                testing.check_case(there, case)
                count += 1
            except testing.CheckError as error:
                if not takes_less(error, "cuda", "cuda"):
                    failures.append(str(error))
    assert count >= 8 and not failures, f"{len(failures)}:\n" + "\n".join(failures[:8])
