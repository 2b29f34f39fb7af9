# SPDX-License-Identifier: Apache-2.0
"""The table of compilers. A file of the user's, named by ANYOP_TOOLCHAINS, adds entries or replaces them; its
fields are these.
"""

from __future__ import annotations

import os
from collections import namedtuple

from anyop.cache.dependencies import open_regular

VARIABLE = "ANYOP_TOOLCHAINS"
# No flag may change results between machines, and -ffast-math at the link would change the floating-point mode of
# the whole process. cmake/AnyopOperators.cmake has the same; a test compares them.
CPU_FLAGS = (
    "-O2",
    "-fPIC",
    "-fvisibility=hidden",
    "-fopenmp-simd",
    "-fno-math-errno",
    "-fno-trapping-math",
)


# Of an entry, with what they are where a file leaves them out; `name`, `backend` and `names` must be given.
_FIELDS: dict[str, object] = {
    "name": "",
    "backend": "",  # "host": C and C++ of every folder, and the link; "cuda", "hip", "mlu": the kernels of that backend
    "names": (),  # of the program, the first that is found; one with a folder in it in `places` alone
    "variables": (),  # environment variables that name the program, before all others
    "places": (),  # folders beside PATH; $NAME is an environment variable
    "environment": (),  # NAME=value
    "compile": (),  # flags
    "arch": "",  # a flag for each architecture; {arch} is 90a, {number} 90, {read} what the source is read for
    "newer": "",  # a flag for the highest architecture, or {read}: code that later ones can compile
    "default_arch": (),
    "link": (),  # flags of the link; {folder} is the folder above the program's
    "programs": (),  # files that make up the compiler, relative to the program: their contents count
    "machine": "",  # that the code is for, where it is not this one
    "install": "",  # what to do where it is missing
}


class Toolchain(
    namedtuple(
        "Toolchain",
        "name backend names variables places environment compile arch newer default_arch link programs "
        "machine install",
        defaults=((), (), (), (), "", "", (), (), (), "", ""),
    )
):
    """How the kernels of one backend are compiled: texts, and tuples of texts."""

    __slots__ = ()


_CUDA = Toolchain(
    name="nvcc",
    backend="cuda",
    names=("nvcc",),
    variables=("ANYOP_NVCC", "CUDACXX"),
    places=("$CUDA_HOME/bin", "$CUDA_PATH/bin", "/usr/local/cuda/bin"),
    compile=(
        "-O3",
        "-std=c++17",
        "--expt-relaxed-constexpr",
        "-DANYOP_WITH_CUDA=1",
        "-Xcompiler=-fPIC,-fvisibility=hidden",
    ),
    arch="-gencode=arch=compute_{read},code=sm_{arch}",
    newer="-gencode=arch=compute_{read},code=compute_{read}",
    default_arch=("80", "90"),
    link=("-L{folder}/lib64", "-L{folder}/lib", "-lcudart_static", "-lrt", "-lpthread", "-ldl"),
    programs=("nvcc.profile", "cudafe++", "fatbinary", "ptxas", "../nvvm/bin/cicc"),
    install="install the CUDA toolkit",
)
_HIP = Toolchain(
    name="hipcc",
    backend="hip",
    names=("hipcc",),
    variables=("ANYOP_HIPCC",),
    places=("$ROCM_PATH/bin", "/opt/rocm/bin"),
    environment=("HIP_PLATFORM=amd",),  # hipcc takes nvcc where that is there
    compile=("-O3", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-DANYOP_WITH_HIP=1"),
    arch="--offload-arch={arch}",
    default_arch=("gfx90a",),
    link=("-L{folder}/lib", "-lamdhip64"),
    install="Debian: apt-get install hipcc libamdhip64-dev",
)
_HOST = Toolchain(
    name="c++",
    backend="host",
    names=("g++", "c++", "clang++"),
    variables=("CXX",),
    install="Debian: apt-get install g++",
)
_AARCH64 = _HOST._replace(
    name="aarch64-linux-gnu-g++",
    names=("aarch64-linux-gnu-g++",),
    variables=(),
    machine="aarch64",
    install="Debian: apt-get install g++-aarch64-linux-gnu",
)
# MetaX's compiler of CUDA sources; written from its documentation, nothing was built with it.
_METAX = _CUDA._replace(
    name="cucc",
    names=("cucc",),
    variables=("ANYOP_CUCC",),
    places=(
        "$CUCC_PATH/tools",
        "$CUCC_PATH/bin",
        "$MACA_PATH/tools/cu-bridge/tools",
        "$MACA_PATH/tools/cu-bridge/bin",
        "/opt/maca/tools/cu-bridge/tools",
        "/opt/maca/tools/cu-bridge/bin",
    ),
    arch="",
    newer="",
    default_arch=(),
    link=("-L{folder}/lib", "-lruntime_cu"),
    programs=(),
    install="install MetaX's MACA SDK with cu-bridge",
)
_CLANG = ("-O3", "-std=c++17", "-fPIC", "-fvisibility=hidden")
# The compilers of chips that take CUDA's sources in a dialect of their own; from public sources, nothing was built
# with them.
_MXCC = _METAX._replace(
    name="mxcc",
    names=("mxcc",),
    variables=("ANYOP_MXCC",),
    places=("$MACA_PATH/mxgpu_llvm/bin", "/opt/maca/mxgpu_llvm/bin"),
    compile=(*_CLANG, "-x", "maca", "-DANYOP_WITH_CUDA=1"),
    arch="-offload-arch={arch}",
    default_arch=("xcore1000",),
    link=("-L{folder}/../lib", "-lmcruntime"),
    install="install MetaX's MACA SDK, or set MACA_PATH",
)
_MCC = _MXCC._replace(
    name="mcc",
    names=("mcc",),
    variables=("ANYOP_MCC",),
    places=("$MUSA_HOME/bin", "/usr/local/musa/bin"),
    compile=(*_CLANG, "-x", "musa", "-mtgpu", "-DANYOP_WITH_CUDA=1"),
    arch="--cuda-gpu-arch={arch}",
    default_arch=("mp_22", "mp_31"),
    link=("-L{folder}/lib", "-lmusart"),
    install="install Moore Threads' MUSA toolkit, or set MUSA_HOME",
)
_COREX = _MXCC._replace(
    name="corex",
    names=("bin/clang++",),
    variables=("ANYOP_COREX",),
    places=("$COREX_HOME", "/usr/local/corex"),
    compile=(*_CLANG, "-x", "ivcore", "-DANYOP_WITH_CUDA=1"),  # finds CUDA's headers beside itself
    arch="--cuda-gpu-arch={arch}",
    default_arch=("ivcore11",),
    link=("-L{folder}/lib64", "-lcudart"),
    install="install Iluvatar's CoreX, or set COREX_HOME",
)
# Newer architectures than an old hipcc knows: Debian's clang++-19 makes gfx942.
_HIP_CLANG = _HIP._replace(
    name="hip-clang",
    names=("clang++-21", "clang++-20", "clang++-19", "clang++"),
    variables=("ANYOP_HIP_CLANG",),
    places=("$ROCM_PATH/llvm/bin", "/opt/rocm/llvm/bin"),
    environment=(),
    compile=(*_CLANG, "-x", "hip", "-DANYOP_WITH_HIP=1"),
    link=("-L{folder}/lib", "-lamdhip64"),
    install="Debian: apt-get install clang-19 rocm-device-libs libamdhip64-dev",
)
# Cambricon's compiler of BANG C; from public sources, nothing was built with it.
_CNCC = Toolchain(
    name="cncc",
    backend="mlu",
    names=("cncc",),
    variables=("ANYOP_CNCC",),
    places=("$NEUWARE_HOME/bin", "/usr/local/neuware/bin"),
    compile=(*_CLANG, "-DANYOP_WITH_MLU=1"),
    arch="--bang-mlu-arch={arch}",
    default_arch=("mtp_592",),
    link=("-L{folder}/lib64", "-lcnrt"),
    install="install Cambricon's CNToolkit, or set NEUWARE_HOME",
)
# The first of a backend is its default.
TOOLCHAINS = {
    entry.name: entry
    for entry in (_HOST, _AARCH64, _CUDA, _METAX, _MXCC, _MCC, _COREX, _HIP, _HIP_CLANG, _CNCC)
}


def read_toolchains() -> dict[str, Toolchain]:
    """The table, with the user's file. Raises OSError, ValueError with the file's name and the key."""
    path = os.environ.get(VARIABLE)
    if not path:
        return TOOLCHAINS
    try:
        import tomllib
    except ImportError:  # Python 3.10
        import tomli as tomllib
    with open(path, "rb", opener=open_regular) as stream:
        try:
            data = tomllib.load(stream)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: {error}") from None
    return TOOLCHAINS | {name: _entry(path, name, value) for name, value in data.items()}


def choose_toolchain(backend: str, wanted: str | None = None) -> Toolchain:
    """The one that is named (by the caller, or ANYOP_TOOLCHAIN_<BACKEND>), else the backend's first. Raises
    ValueError.
    """
    table = read_toolchains()
    fitting = [name for name, entry in table.items() if entry.backend == backend]
    variable = f"ANYOP_TOOLCHAIN_{backend.upper()}"
    name = wanted or os.environ.get(variable)
    if name:
        if name not in fitting:
            raise ValueError(
                f"no toolchain {name!r} for {backend}, expected one of {', '.join(fitting) or 'none'}; "
                f"{VARIABLE} names a file with more"
            )
        return table[name]
    default = [name for name in fitting if name in TOOLCHAINS] or fitting
    if not default:
        raise ValueError(f"no toolchain for {backend}; {VARIABLE} names a file with more")
    return table[default[0]]


def _entry(path: str, name: str, value: object) -> Toolchain:
    """One table of the user's file; fields that it leaves out come from the entry named by `like`."""
    known = [field for field in Toolchain._fields if field != "name"]
    if not isinstance(value, dict):
        raise ValueError(f"{path}: {name} is {value!r}, expected a table [{name}]")
    value = dict(value)
    like = value.pop("like", None)
    if like is not None and not (isinstance(like, str) and like in TOOLCHAINS):
        raise ValueError(
            f"{path}: [{name}] like = {like!r}, expected one of {', '.join(TOOLCHAINS)}"
        )
    found: dict[str, object] = {}
    for key, item in value.items():
        if key not in known:
            raise ValueError(
                f"{path}: [{name}] has the unknown key {key!r}, expected some of like, {', '.join(known)}"
            )
        if expected := _mistake(key, item):
            raise ValueError(f"{path}: [{name}] {key} is {item!r}, expected {expected}")
        found[key] = tuple(item) if isinstance(item, list) else item
    if like is not None:
        return TOOLCHAINS[like]._replace(name=name, **found)
    for key in ("backend", "names"):
        if key not in found:
            raise ValueError(f"{path}: [{name}] has no {key!r}")
    return Toolchain(name=name, **found)


def _mistake(key: str, item: object) -> str | None:
    """What was expected of a field, None when it is right."""
    parts, text = (item if isinstance(item, list) else [item]), isinstance(_FIELDS[key], str)
    if isinstance(item, list) == text or not all(map(_is_line, parts)):
        return "a text" if text else "a list of texts"
    if key == "backend" and item not in ("host", "cuda", "hip", "mlu"):
        return "one of host, cuda, hip, mlu"
    if key == "names" and not item:
        return "a list of programs, one at least"
    if key in ("arch", "newer"):
        try:
            str(item).format(arch="", number="", read="")
        except (ValueError, LookupError, AttributeError):
            return "a flag, in which {arch}, {number} and {read} stand for the architecture"
    return None


def _is_line(part: object) -> bool:
    return isinstance(part, str) and not any(char in part for char in "\n\r\0")
