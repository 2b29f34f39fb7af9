# SPDX-License-Identifier: Apache-2.0
"""What the torch that is loaded says of ATen: schemas, the order in which it tries overloads, tags, codes.

The dispatcher's registry has every overload of native_functions.yaml, with the same text, and those that C++ files
register besides; so the yaml is not read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from types import ModuleType

OLDEST = (2, 9)
_PREFIX = "aten::"
# Types of devices that a tensor can be on; a build of torch that lacks one refuses its name. What a process calls its
# own device (rename_privateuse1_backend) is not the build's.
_DEVICES = (
    *("cpu", "cuda", "hip", "xpu", "mps", "xla", "meta", "hpu", "mtia"),
    *("maia", "ipu", "vulkan", "lazy", "ve", "fpga", "privateuseone"),
)


@dataclass
class Registry:
    """All of ATen."""

    version: str
    commit: str
    libraries: str  # folder of libtorch_cpu.so
    codes: dict[str, list[tuple[str, int]]]  # "dtype", "layout", "format", "device"
    operators: dict[str, list[str]]  # name -> schemas in the order in which torch tries them
    numbers: set[str]  # names of operators to which a number may be given for a Tensor
    tags: dict[str, list[str]]  # of an overload, as "add.Tensor"


def read_registry(torch: ModuleType) -> Registry:
    """Raises RuntimeError where torch is too old, or has no longer what is asked here."""
    check_version(torch.__version__)
    try:
        return _read(torch)
    except (AttributeError, TypeError) as error:
        raise RuntimeError(
            f"the operators of torch {torch.__version__} cannot be read: {error}"
        ) from error


def check_version(version: str) -> None:
    """Raises RuntimeError where torch is too old."""
    found = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if found < OLDEST:
        raise RuntimeError(
            f"torch {version} is too old: anyop.aten needs {OLDEST[0]}.{OLDEST[1]} or newer"
        )


def _read(torch: ModuleType) -> Registry:
    c = torch._C
    known = {
        n.removeprefix(_PREFIX) for n in c._dispatch_get_all_op_names() if n.startswith(_PREFIX)
    }
    operators, tags = {}, {}
    for name in sorted({full.partition(".")[0] for full in known}):
        _, overloads = c._jit_get_operation(
            _PREFIX + name
        )  # also TorchScript's own, which are no kernels
        found = [o for o in overloads if _full(name, o) in known]
        operators[name] = [
            str(c._get_schema(_PREFIX + name, o)).removeprefix(_PREFIX) for o in found
        ]
        for o in found:
            tags[_full(name, o)] = sorted(
                tag.name for tag in c._get_operation_overload(_PREFIX + name, o)[2]
            )
    return Registry(
        version=torch.__version__,
        commit=torch.version.git_version or "-",
        libraries=os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "lib"),
        codes=_codes(torch),
        operators=operators,
        numbers={name for name in operators if c._should_allow_numbers_as_tensors(name)},
        tags=tags,
    )


def _full(name: str, overload: str) -> str:
    return f"{name}.{overload}" if overload else name


def _codes(torch: ModuleType) -> dict[str, list[tuple[str, int]]]:
    """The numbers of torch, by its own conversion: an operator that takes an int takes a dtype for one."""
    negative = torch._C._get_operation_overload("aten::neg", "int")[0]
    codes = {}
    for word, kind in (
        ("dtype", torch.dtype),
        ("layout", torch.layout),
        ("format", torch.memory_format),
    ):
        named = [(name, value) for name, value in vars(torch).items() if isinstance(value, kind)]
        named.sort(key=lambda pair: str(pair[1]) != f"torch.{pair[0]}")  # aliases behind
        codes[word] = sorted(((n, -negative(v)) for n, v in named), key=lambda pair: pair[1])
    codes["device"] = sorted(_devices(torch), key=lambda pair: pair[1])
    return codes


def _devices(torch: ModuleType) -> list[tuple[str, int]]:
    """A device's hash is its type and, in the lower 16 bits, its index."""
    found = []
    for name in _DEVICES:
        try:
            found.append((name, hash(torch.device(name)) >> 16))
        except RuntimeError:
            continue
    if found[:2] != [("cpu", 0), ("cuda", 1)] or len({code for _, code in found}) != len(found):
        raise TypeError(f"the hash of a torch.device is not understood: {found}")
    return found
