# SPDX-License-Identifier: Apache-2.0
"""Calls every overload from NumPy values under a profiler of Python, beside torch.ops with the same values.

    python tests/conformance/aten/tracing_calls.py [overload …]

An overload is reached when torch's kernel was: the call gives results where torch.ops gives them, or raises the very
text that torch.ops raises. Prints "begin <overload>", "torch <overload>" when torch.ops has done it, then the outcome.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import anyop.aten as aten
import numpy as np
import oracle
import torch
from calls import calls_of
from compare import Refused, functional, with_outs
from inputs import arrays
from torch.utils._pytree import tree_map_only

TORCH = str(Path(torch.__file__).parent)
PLAIN = {"Scalar": 1, "int": 1, "float": 0.5, "bool": False, "str": "mean", "dtype": "float32"}
PLAIN |= {"layout": "strided", "format": "contiguous_format", "device": "cpu", "generator": None}


def plain_value(param: dict) -> Any:
    """Some value of a parameter's kind; nothing as what is to be resized by torch."""
    is_out = param.get("mutable") and param.get("keyword_only")
    tensor = np.ones((0,) if is_out else (2, 3), np.float32)
    value = tensor if param["kind"] == "Tensor" else PLAIN[param["kind"]]
    return [value] * (param.get("fixed_count") or 1) if param.get("list") else value


def plain_call(metadata: dict) -> tuple[tuple, dict]:
    """A value for every parameter without a default."""
    asked = [param for param in metadata["params"] if "default" not in param]
    args = tuple(plain_value(param) for param in asked if not param.get("keyword_only"))
    return args, {p["name"]: plain_value(p) for p in asked if p.get("keyword_only")}


def known_call(name: str) -> tuple[tuple, dict] | None:
    """A call that torch is known to take, with memory for its results."""
    calls, overload = calls_of(name), oracle.overloads()[name]
    if not calls:
        return None
    args, kwargs = arrays(calls[0])
    with contextlib.suppress(Refused):
        return args, with_outs(overload, kwargs, functional(overload, args, kwargs))
    return None


def resizable(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.numel() else torch.empty(0)


def guessed_call(name: str) -> tuple[tuple, dict]:
    """Some call; memory for results as torch resizes it, where it does."""
    args, kwargs = plain_call(aten.metadata(name))
    tensors = oracle.as_torch(oracle.overloads()[name], args, kwargs)
    tensors[1].update(tree_map_only(torch.Tensor, resizable, tensors[1]))
    if by_torch(name, *tensors):
        return args, kwargs

    def shaped(value: Any, tensor: Any) -> Any:
        if isinstance(value, list):
            return [shaped(*pair) for pair in zip(value, tensor)]
        grown = isinstance(value, np.ndarray) and not value.size
        return np.zeros(tuple(tensor.shape), np.float32) if grown else value

    return args, {name: shaped(value, tensors[1][name]) for name, value in kwargs.items()}


def by_torch(name: str, args: list, kwargs: dict) -> str:
    """Empty: it gives results; else the text of its error."""
    try:
        oracle.call(name, args, kwargs)
    except Exception as error:
        return str(error) or type(error).__name__
    return ""


class Spy:
    """Notes the Python functions and the C functions of torch that run."""

    def __init__(self):
        self.seen: list[str] = []

    def __call__(self, frame, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(TORCH):
            self.seen.append(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")
        if event == "c_call" and str(getattr(argument, "__module__", "")).startswith("torch"):
            self.seen.append(f"{argument.__module__}.{argument.__qualname__}")


def by_anyop(name: str, args: tuple, kwargs: dict) -> tuple[str, list[str]]:
    spy = Spy()
    sys.setprofile(spy)
    try:
        aten.call(name, *args, like="numpy", **kwargs)
    except Exception as error:
        sys.setprofile(None)
        return f"{type(error).__name__}: {error}", spy.seen
    finally:
        sys.setprofile(None)
    return "", spy.seen


def first_words(text: str) -> str:
    """How an error begins: anyop cuts torch's long texts behind the first sentence."""
    return next(iter(text.strip().splitlines()), "").partition(". ")[0][:70]


def verdict(torchs: str, ours: str) -> str:
    """results, torch's error, no dense result, or differs."""
    if not torchs and not ours:
        return "results"
    if torchs and first_words(torchs) in ours:
        return "torch's error"
    if torchs.startswith("Trying to resize storage") and "memory is not resized" in ours:
        return "torch's error"
    if not torchs and ours.startswith("TypeError") and 'like="aten" takes it' in ours:
        return "no array can be the result"
    return f"differs: torch {first_words(torchs)!r}, anyop {ours[:200]!r}"


def main(names: list[str]) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    aten.call("add", np.ones(1), 1)  # opens torch's libraries
    os.chdir(tempfile.mkdtemp())  # one overload makes a file
    for name in names:
        print(f"\nbegin {name}", flush=True)
        args, kwargs = known_call(name) or guessed_call(name)
        torchs = by_torch(name, *oracle.as_torch(oracle.overloads()[name], args, kwargs))
        print(f"torch {name}", flush=True)
        ours, seen = by_anyop(name, args, kwargs)
        text = f"torch's Python ran: {seen[:3]}" if seen else verdict(torchs, ours)
        print(f"done {name}: {text}".replace("\n", " "), flush=True)
    print("end", flush=True)


if __name__ == "__main__":
    every = aten._table.metadata()["overloads"]
    main(sys.argv[1:] or [name for name, one in every.items() if one["callable"]])
