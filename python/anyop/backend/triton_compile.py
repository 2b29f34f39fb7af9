# SPDX-License-Identifier: Apache-2.0
"""One Triton kernel and one kind of call to the bytes of an image file (anyop/forms/triton_image.h), without a GPU.

A kind is what that header writes, "90;8,8,8;1;0;1024,2": capability; dtypes of the tensors; whether the image may rely
on all that is to be divisible by 16; whether integers have 64 bits; values of the constants.
"""

from __future__ import annotations

import re
import struct
import tempfile
import threading
from typing import Any

from anyop.backend.sources import load_source

FORMAT = 1
_HEAD = struct.Struct("<8sQ10IQ256s256s32s64s")
_ABSENT = 255
# AnyopDtype -> Triton's name of what a pointer leads to.
_TYPES = (
    "i1", "u8", "i8", "i16", "i32", "i64", "fp16", "bf16", "fp32", "fp64", None, None, "fp8e4nv", "fp8e5", "u16",
    "u32", "u64",
)  # fmt: skip
_BYTES = {"i32": 4, "i64": 8, "fp32": 4, "fp64": 8, "i1": 1}
_PTX = {
    "u8": 1,
    "s8": 1,
    "b8": 1,
    "u32": 4,
    "s32": 4,
    "b32": 4,
    "f32": 4,
    "u64": 8,
    "s64": 8,
    "b64": 8,
    "f64": 8,
}
_OPTIONS = (
    "num_warps", "num_stages", "num_ctas", "maxnreg", "launch_pdl", "launch_cooperative_grid", "enable_fp_fusion",
)  # fmt: skip
_ENVIRONMENT = ("TRITON_DISABLE_LINE_INFO",)  # is set while compiling
_compiling = threading.Lock()  # Triton's settings are the process's


class CannotCompile(Exception):
    """Why a kernel has no image; one line."""


def compile_image(op: str, launch: dict[str, Any], kind: str) -> bytes:
    """The file's bytes. Raises CannotCompile, ImportError, and what the file and Triton's compiler raise."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = jit_function(op, launch)
    capability, signature, constants, hints, options = _plan(kernel, launch, kind)
    environment = settings()
    if environment:
        raise CannotCompile(f"{', '.join(environment)} changes what Triton compiles; unset it")
    attributes = {(at,): [["tt.divisibility", 16]] for at in hints}
    knobs = triton.knobs
    with (
        _compiling, tempfile.TemporaryDirectory() as cache, knobs.cache.scope(), knobs.compilation.scope(),
    ):  # fmt: skip
        knobs.cache.dir = cache
        knobs.compilation.disable_line_info = True  # it would name source paths
        source = ASTSource(kernel, signature, constants, attributes)
        made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        image, ptx, about = made.asm["cubin"], made.asm["ptx"], made.metadata
    given = [kind for kind in signature.values() if kind != "constexpr"]
    params = [8 if kind[0] == "*" else _BYTES[kind] for kind in given]
    hidden = _hidden(ptx, params, triton.__version__)
    return _file(kind, about, image, params, hidden, triton.__version__)


def jit_function(op: str, launch: dict[str, Any]) -> Any:
    """The kernel, without what chooses its configurations."""
    from triton.runtime.jit import JITFunction

    found = getattr(load_source(op, launch["file"], launch["source"]), launch["kernel"])
    while not isinstance(found, JITFunction) and hasattr(found, "fn"):
        found = found.fn
    if not isinstance(found, JITFunction):
        raise CannotCompile(f"{launch['kernel']} is interpreted: TRITON_INTERPRET is set")
    return found


def settings() -> list[str]:
    """Variables of the environment that change what Triton compiles."""
    from triton._C.libtriton import get_cache_invalidating_env_vars

    return sorted(set(get_cache_invalidating_env_vars()) - set(_ENVIRONMENT))


def _plan(kernel: Any, launch: dict[str, Any], kind: str) -> tuple:
    """Capability, and for Triton: types by parameter, constants, parameters divisible by 16, options."""
    capability, dtypes, aligned, wide, values = kind.split(";")
    tensors = iter(dtypes.split(","))
    varying = dict(zip(launch["constants"], map(int, filter(None, values.split(",")))))
    stated = {**_fixed(launch["fixed"]), **varying}
    stated |= {name: bool(stated[name]) for name in launch["booleans"]}
    types, hints = {}, set()
    for name, form, is_aligned in launch["arguments"]:
        if form == "tensor":
            dtype = int(next(tensors))
            if dtype == _ABSENT:
                stated[name] = None
                continue
            if dtype >= len(_TYPES) or _TYPES[dtype] is None:
                raise CannotCompile("Triton has no complex numbers")
            types[name] = f"*{_TYPES[dtype]}"
        else:
            whole = "i64" if wide == "1" else "i32"
            types[name] = {"int": whole, "float": "fp32", "double": "fp64", "bool": "i1"}[form]
        relied_on = (1, 2) if aligned == "1" else (1,) if aligned == "2" else ()
        if is_aligned in relied_on and form in ("tensor", "int"):
            hints.add(kernel.arg_names.index(name))
    options = {name: value for name, value in stated.items() if name in _OPTIONS}
    constants = {name: value for name, value in stated.items() if name not in _OPTIONS}
    for param in kernel.params:
        if param.name not in types and param.name not in constants:
            constants[param.name] = param.default
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    return int(capability), signature, constants, sorted(hints), options


def _fixed(values: dict[str, Any]) -> dict[str, Any]:
    """Constants of the launch; "tl.float32" is a type of Triton's."""
    import triton.language as tl

    return {
        name: getattr(tl, value[3:]) if isinstance(value, str) else value
        for name, value in values.items()
    }


def _hidden(ptx: str, params: list[int], version: str) -> int:
    """How many pointers follow the kernel's own parameters."""
    entry = ptx[ptx.index(".visible .entry") :]
    declared = re.findall(r"\.param [^\n]*?\.([usfb]\d+)\b(?!\s*\.b8)", entry[: entry.index("{")])
    found = [_PTX.get(name, 0) for name in declared]
    hidden = len(found) - len(params)
    if not 0 <= hidden <= 2 or found != params + [8] * hidden:
        raise CannotCompile(
            f"Triton {version} gives the kernel parameters of {found} bytes, expected {params} and up to two pointers: "
            "this anyop does not know this Triton"
        )
    return hidden


def _file(
    kind: str, about: Any, image: bytes, params: list[int], hidden: int, version: str
) -> bytes:
    if getattr(about, "tensordesc_meta", None):
        raise CannotCompile("it takes tensor descriptors")
    if getattr(about, "profile_scratch_size", 0):
        raise CannotCompile("it is instrumented, by a profiler of Triton's")
    texts = [text.encode() for text in (kind, about.name, version)]
    if any(len(text) >= room for text, room in zip(texts, (256, 256, 32))) or len(params) > 64:
        raise CannotCompile("its name, or that of its kind, is too long")
    numbers = (
        FORMAT, about.num_warps * 32, about.shared, getattr(about, "num_ctas", 1),
        getattr(about, "launch_cooperative_grid", False), getattr(about, "launch_pdl", False),
        getattr(about, "global_scratch_size", 0), getattr(about, "global_scratch_align", 1), hidden, len(params),
    )  # fmt: skip
    data = _HEAD.pack(b"ANYOPTRI", 0, *map(int, numbers), len(image), *texts, bytes(params)) + image
    return data[:8] + struct.pack("<Q", _checksum(data[16:])) + data[16:]


def _checksum(data: bytes) -> int:
    """FNV-1a."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def is_whole(data: bytes, kind: str) -> bool:
    """Whether bytes are an image file for that kind, as it was written."""
    if len(data) < _HEAD.size:
        return False
    magic, checksum, form, *_, image_bytes, found, _, _, _ = _HEAD.unpack_from(data)
    return (
        (magic, form, found.rstrip(b"\0")) == (b"ANYOPTRI", FORMAT, kind.encode())
        and image_bytes == len(data) - _HEAD.size
        and checksum == _checksum(data[16:])
    )
