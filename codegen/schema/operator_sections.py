# SPDX-License-Identifier: Apache-2.0
"""The sections of an operator file that say how it is used: backward, autocast, tolerance."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from . import defaults
from .dtypes import dtype_name
from .params import Param
from .source import Mistake, Source, check_one_of, listed, nearest

# Backend -> DLDeviceType of the tensors that it serves.
BACKENDS = {"cpu": 1, "cuda": 2, "hip": 10}
# With sources of a compiler of their own.
COMPILED = BACKENDS | {"mlu": 12}
# With those of plugins, whose kernels are images or calls of the vendor's library.
DEVICES = COMPILED | {"opencl": 12, "ascend": 12}


# What torch.autocast does with floating arguments: its own dtype, or float32.
AUTOCAST = ("lower", "float32")


@dataclass(frozen=True)
class Backward:
    """The gradient: which operator computes it from what the forward saves."""

    name: str
    saves: tuple[str, ...]
    forward: str | None = None
    shares: dict[str, str] = field(
        default_factory=dict
    )  # input -> the one whose gradient it has too


def check_keys(table: dict[str, Any], known: Any, what: str, fix: str = "remove it") -> None:
    """Refuses a key that is not known, naming the nearest."""
    for key in table:
        if key not in known:
            raise Mistake(
                f"unknown {what} '{key}'", f"one of {listed(known)}", nearest(key, known, fix)
            )


def section(source: Source, name: str) -> dict[str, Any]:
    """A section as a dict; empty when the file has none."""
    value = source.data.get(name, {})
    if not isinstance(value, dict):
        with source.at(name):
            raise Mistake(
                f"'{name}' is {value!r}", "a section", f"write [{name}] on a line of its own"
            )
    return value


def text_of(value: object, what: str) -> str:
    """A non-empty string without control characters."""
    if not isinstance(value, str) or not value.strip():
        raise Mistake(f"{what} is {value!r}", "text in quotes", "write one sentence")
    if any((ord(char) < 32 and char not in "\n\t") or ord(char) == 127 for char in value):
        raise Mistake(f"{what} has a control character", "printable text", "remove it")
    return value.strip()


def texts_of(value: object, what: str) -> list[str]:
    """A list of strings."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise Mistake(f"{what} is {value!r}", "a list of texts", 'write it like ["x"]')
    return value


def read_autocast(source: Source) -> str | None:
    """The key `autocast`; None: the operator runs on the dtypes that it is given."""
    with source.at(None, "autocast"):
        value = source.data.get("autocast")
        if value is not None:
            fix = "use one of these, or leave it out"
            check_one_of(value, AUTOCAST, f"autocast {value!r}", fix=fix)
        return value


def read_backward(source: Source, inputs: list[Param], outputs: list[Param]) -> Backward | None:
    """[backward]; whether the operators exist is checked when all are read."""
    table = section(source, "backward")
    if "backward" not in source.data:
        return None
    with source.at("backward"):
        if "name" not in table:
            raise Mistake(
                "[backward] without a name",
                "the operator of the gradient",
                'write name = "<op>_backward"',
            )
    for key, value in table.items():
        with source.at("backward", key):
            check_keys({key: 0}, ("name", "saves", "forward", "shares"), "key of [backward]")
            if key == "shares":
                _check_shares(value)
            else:
                texts_of(value, "saves") if key == "saves" else text_of(value, key)
    saves = table.get("saves", [])
    known = [param for param in inputs + outputs if param.is_tensor]
    for name in saves if "forward" not in table else []:
        with source.at("backward", "saves"):
            check_saved(name, known)
    return Backward(table["name"], tuple(saves), table.get("forward"), table.get("shares", {}))


def _check_shares(value: object) -> None:
    """Which inputs they are is checked with the operator of the gradient."""
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value.values()):
        raise Mistake(
            f"shares is {value!r}", "a table of names", 'write it like { residual = "x" }'
        )


def check_saved(name: str, known: list[Param]) -> None:
    """Refuses to save what is no tensor of the forward, or a list; attributes need not be saved."""
    names = [param.name for param in known if not param.is_list]
    if name in [param.name for param in known if param.is_list]:
        raise Mistake(
            f"[backward] saves '{name}', a list of tensors",
            f"a tensor, input or result ({listed(names)}): no framework saves lists",
            "remove it, and what needs it",
        )
    check_one_of(
        name, names, f"[backward] saves '{name}'", "a tensor, input or result", "remove it"
    )


def read_tolerance(source: Source, params: list[Param]) -> dict[str, float]:
    """[tolerance]: for every floating dtype of what the operator writes, derived where not stated."""
    tolerance = {}
    possible = {name for param in params for name in param.possible}
    for key, value in section(source, "tolerance").items():
        if key in BACKENDS or isinstance(value, dict):
            continue
        with source.at("tolerance", key):
            tolerance[key] = _limit(key, value, possible)
    for name in defaults.compared(params):
        tolerance.setdefault(name, defaults.tolerance(name))
    return tolerance


def read_tolerance_on(
    source: Source, tolerance: dict[str, float], devices: set[str]
) -> dict[str, dict[str, float]]:
    """[tolerance.cuda] and the like: wider limits of what runs on a device, by backend."""
    found: dict[str, dict[str, float]] = {}
    for backend, table in section(source, "tolerance").items():
        if backend not in BACKENDS and not isinstance(table, dict):
            continue
        with source.at("tolerance", backend):
            if not isinstance(table, dict) or not table:
                raise Mistake(
                    f"tolerance of {backend} is {table!r}", "a table", "name dtypes in it"
                )
            if backend not in devices:
                own = sorted(devices & BACKENDS.keys())
                what = f"a backend with a kernel here ({listed(own)})"
                raise Mistake(f"tolerance on {backend}", what, nearest(backend, own, "remove it"))
        for key, value in table.items():
            with source.at(f"tolerance.{backend}", key):
                limit = _limit(key, value, tolerance)
                if limit <= tolerance[key]:
                    most = f"more than {tolerance[key]:g}, the limit everywhere"
                    raise Mistake(f"tolerance {value!r} on {backend}", most, "remove it")
            found.setdefault(backend, {})[key] = limit
    return found


def _limit(key: str, value: Any, possible: Collection[str]) -> float:
    """Of one dtype."""
    if dtype_name(key) not in possible:
        raise Mistake(
            f"tolerance of {key}",
            f"a dtype that an argument or result has ({listed(sorted(possible))})",
            "remove it",
        )
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
        raise Mistake(f"tolerance {value!r}", "a number, 0 or more", "write it like 1e-6")
    return float(value)
