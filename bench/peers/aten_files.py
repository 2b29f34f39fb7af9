# SPDX-License-Identifier: Apache-2.0
"""The other way to all of ATen: a C++ file for each operator, generated, compiled with torch's headers.

As InfiniOps describes its own: tensors come as raw memory, a file makes torch's of them and calls the operator's form
with out. Not its code; what is measured is what such a file costs a compiler.
"""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path
from typing import Any

HEADER = "torch/torch.h"
_FILE = """\
// Generated for aten::{name}; do not edit.
#include <{header}>

#include <cstdint>
#include <vector>

struct Memory {{
  void* data;
  std::vector<int64_t> shape, strides;
  int dtype, device_type, device_index;
}};

static at::Tensor ToTensor(const Memory& m) {{
  const auto type = static_cast<c10::DeviceType>(m.device_type);
  const c10::Device device(type, static_cast<c10::DeviceIndex>(m.device_index));
  const auto options = at::TensorOptions().dtype(static_cast<at::ScalarType>(m.dtype));
  return at::from_blob(m.data, m.shape, m.strides, options.device(device));
}}

void {name}_call(const std::vector<Memory>& inputs, const Memory& out) {{
  at::Tensor result = ToTensor(out);
  at::{name}_out(result, {arguments});
}}
"""


def write_files(overloads: dict[str, dict[str, Any]], folder: Path, count: int) -> list[Path]:
    """Files of the first operators, in the order of their names, that take tensors and write one."""
    files = []
    for name, overload in overloads.items():
        given, out = overload["params"][:-1], overload["params"][-1:]
        plain = all(p["type"] == "Tensor" or "default" in p for p in given)
        if name != f"{overload['name']}.out" or name.startswith("_") or not (out and plain):
            continue
        tensors = [p for p in given if p["type"] == "Tensor"]
        if tensors and overload["name"] + ".out" in overloads and len(overload["results"]) == 1:
            arguments = ", ".join(f"ToTensor(inputs[{at}])" for at in range(len(tensors)))
            path = folder / f"{overload['name']}.cc"
            path.write_text(_FILE.format(name=overload["name"], header=HEADER, arguments=arguments))
            files.append(path)
    step = max(1, len(files) // count)
    return files[::step][:count]


def compile_seconds(path: Path, torch_include: str) -> float:
    """CPU seconds of the compiler, with the flags of a release."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    include = ["-I", torch_include, "-I", f"{torch_include}/torch/csrc/api/include"]
    command = ["g++", "-std=c++20", "-O2", "-fPIC", *include, "-c", str(path), "-o", os.devnull]
    subprocess.run(command, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
