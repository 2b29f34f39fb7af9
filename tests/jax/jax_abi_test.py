# SPDX-License-Identifier: Apache-2.0
"""bindings/jax/xla_ffi.h says of XLA's C ABI what the header that jaxlib ships says."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")
BINDINGS = Path(__file__).parents[2] / "bindings" / "jax"

HEAD = "struct_size extensions:extension_start"
# Ours, theirs, and fields that lie at the same place with the same size.
STRUCTS = [
    ("Extension", "XLA_FFI_Extension_Base", "struct_size type next"),
    ("ApiVersion", "XLA_FFI_Api_Version", f"{HEAD} major:major_version minor:minor_version"),
    ("Metadata", "XLA_FFI_Metadata", "struct_size version:api_version traits"),
    ("MetadataExtension", "XLA_FFI_Metadata_Extension", "base:extension_base metadata"),
    ("Bytes", "XLA_FFI_ByteSpan", "data:ptr size:len"),
    ("Scalar", "XLA_FFI_Scalar", "type:dtype value"),
    ("Array", "XLA_FFI_Array", "type:dtype size data"),
    ("Buffer", "XLA_FFI_Buffer", f"{HEAD} type:dtype data rank dims"),
    ("Buffers", "XLA_FFI_Args", f"{HEAD} size types buffers:args"),
    ("Buffers", "XLA_FFI_Rets", f"{HEAD} size types buffers:rets"),
    ("Attributes", "XLA_FFI_Attrs", f"{HEAD} size types names values:attrs"),
    ("ErrorCreateArgs", "XLA_FFI_Error_Create_Args", f"{HEAD} message code:errc"),
    ("StreamGetArgs", "XLA_FFI_Stream_Get_Args", f"{HEAD} context:ctx stream"),
    ("DeviceOrdinalGetArgs", "XLA_FFI_DeviceOrdinal_Get_Args", f"{HEAD} context:ctx ordinal:device_ordinal"),
    ("Api", "XLA_FFI_Api", f"{HEAD} version:api_version internal:internal_api "
     "error_create:XLA_FFI_Error_Create stream_get:XLA_FFI_Stream_Get device_ordinal_get:XLA_FFI_DeviceOrdinal_Get"),
    ("CallFrame", "XLA_FFI_CallFrame", f"{HEAD} api context:ctx stage args results:rets attributes:attrs"),
]  # fmt: skip
# Theirs may have grown at the end; ours are handed to XLA as they are, so these must be whole.
WHOLE = {"Extension", "Bytes", "Scalar", "Array", "Buffer", "Buffers", "Attributes"}
WHOLE |= {"ErrorCreateArgs", "StreamGetArgs", "DeviceOrdinalGetArgs"}
NUMBERS = {
    "Stage": ("XLA_FFI_ExecutionStage_",
              "kInstantiate:INSTANTIATE kPrepare:PREPARE kInitialize:INITIALIZE kExecute:EXECUTE"),
    "Attribute": ("XLA_FFI_AttrType_", "kArray:ARRAY kDictionary:DICTIONARY kScalar:SCALAR kString:STRING"),
    "Argument": ("XLA_FFI_ArgType_", "kBuffer:BUFFER"),
    "Code": ("XLA_FFI_Error_Code_", "kInvalidArgument:INVALID_ARGUMENT kResourceExhausted:RESOURCE_EXHAUSTED "
             "kUnimplemented:UNIMPLEMENTED kInternal:INTERNAL"),
    "Type": ("XLA_FFI_DataType_", "kInvalid:INVALID kPred:PRED kS8:S8 kS16:S16 kS32:S32 kS64:S64 kU8:U8 kU16:U16 "
             "kU32:U32 kU64:U64 "
             "kF16:F16 kF32:F32 kF64:F64 kC64:C64 kBF16:BF16 kC128:C128 kF8E5M2:F8E5M2 kF8E4M3FN:F8E4M3FN"),
}  # fmt: skip


def claims():
    for ours, theirs, fields in STRUCTS:
        for field in fields.split():
            own, _, other = field.partition(":")
            other = other or own
            yield f"offsetof(anyop::xla::{ours}, {own}) == offsetof({theirs}, {other})"
            yield f"sizeof(anyop::xla::{ours}::{own}) == sizeof({theirs}::{other})" if own not in (
                "version", "args", "results", "attributes"
            ) else f"offsetof({theirs}, {other}) > 0"  # fmt: skip
        if ours in WHOLE:
            yield f"sizeof(anyop::xla::{ours}) == sizeof({theirs})"
    for ours, (prefix, pairs) in NUMBERS.items():
        for own, theirs in (pair.split(":") for pair in pairs.split()):
            yield f"int(anyop::xla::{ours}::{own}) == int({prefix}{theirs})"
    yield "int(XLA_FFI_RetType_BUFFER) == int(anyop::xla::Argument::kBuffer)"
    yield "int(XLA_FFI_Extension_Metadata) == anyop::xla::kMetadataExtension"
    yield "XLA_FFI_API_MAJOR == anyop::xla::kApiMajor && XLA_FFI_API_MINOR >= anyop::xla::kOldestApiMinor"


def compiles(tmp_path, source):
    compiler = shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        pytest.skip("no C++ compiler")
    path = tmp_path / "compare.cc"
    path.write_text(source)
    folders = [f"-I{jax.ffi.include_dir()}", f"-I{BINDINGS}"]
    command = [compiler, "-std=c++17", "-fsyntax-only", "-Wno-invalid-offsetof", *folders, path]
    return subprocess.run(command, capture_output=True, text=True)


def test_own_declarations_are_jaxlibs(tmp_path):
    header = Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h").read_text()
    lines = ['#include "xla/ffi/api/c_api.h"', '#include "xla_ffi.h"']
    if "XLA_FFI_Extension_Base;" not in header:  # its name since jaxlib 0.11
        lines.append("using XLA_FFI_Extension_Base = XLA_FFI_InternalExtension;")
    lines += [f'static_assert({claim}, "{claim}");' for claim in claims()]
    found = compiles(tmp_path, "\n".join(lines) + "\n")
    assert found.returncode == 0, found.stderr
    assert len(lines) > 150
    wrong = "static_assert(sizeof(anyop::xla::Buffer) == 1 + sizeof(XLA_FFI_Buffer));\n"
    assert compiles(tmp_path, "\n".join([*lines, wrong])).returncode != 0, "the comparison compares"
