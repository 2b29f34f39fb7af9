# SPDX-License-Identifier: Apache-2.0
"""How much faster anyop's operators make a part of a model on its device, measured before the part is swapped.

Each part is called as it is and as it would be, in turns, with one row (a step of decoding) and with many (a prompt).
The least times count. A part of the same class, sizes, types and device is measured once for each process.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from anyop._routes import unrecorded
from anyop.torch.models import hugging_face

MANY = 128  # rows of a prompt
FEW = 16  # at most so many rows has a step of decoding
SLOWER, FASTER = 0.95, 1.02  # of the time before over ours: what counts as noise
SECONDS = 0.1  # for one number of rows
EACH = 1.0  # for all of a kind; from then on each is called once
PRODUCTS = 8e9  # on a CPU, at most so many products in a call
Calls = tuple[Callable[[], Any], Callable[[], Any]]  # as it is, as it would be


class Gain(NamedTuple):
    """How many times as fast as before, for one row and for many."""

    one: float
    many: float

    def __str__(self) -> str:
        return f"{self.one:.2f} and {self.many:.2f} times as fast for 1 and {MANY} rows"

    @property
    def reason(self) -> str | None:
        """Why to leave what has this gain."""
        if min(self) >= SLOWER and max(self) >= FASTER:
            return None
        return f"it would be {self}"


_known: dict[tuple[Any, ...], Gain | None] = {}
_spent: defaultdict[str, float] = defaultdict(float)


@unrecorded()
@torch.no_grad()
def gain(kind: str, of: tuple[Any, ...], calls: Callable[[int], Calls], device: Any) -> Gain | None:
    """Of the calls that `calls` makes for a number of rows; None where they cannot be made, or on the meta device."""
    device = torch.device(device)
    key = (kind, str(device), *of)
    if key not in _known:
        begin = time.perf_counter()
        _known[key] = None
        if device.type != "meta":
            try:
                with torch.autocast(device.type, enabled=False):
                    times = [_times(*calls(rows), device, kind) for rows in (1, MANY)]
                _known[key] = Gain(*(own / ours for own, ours in times))
            except Exception:  # parts of a model are somebody else's and may raise anything
                pass
        _spent[kind] += time.perf_counter() - begin
    return _known[key]


def of_module(module: torch.nn.Module, found: Any, like: torch.Tensor, one: int = 1) -> Gain | None:
    """Of a module of one input when it gets the class found.

    like: of the device and type of the module's input, where it has no parameters. one: how many rows come for one.
    """
    own: Any = type(module)
    if any(map(hugging_face.hooks, module.children())):  # they would see the calls
        return None
    lean = hugging_face.shared_copy(module, _modules=_without_products(module, found))
    ours = hugging_face.shared_copy(lean)
    object.__setattr__(ours, "__class__", found)
    parameters = [*lean.parameters()]
    like = next(module.parameters(), like)

    def calls(rows: int) -> Calls:
        x = _input(module, max(rows, one), parameters, like)
        return (lambda: own.forward(lean, x)), (lambda: found.forward(ours, x))

    of = own, found, one, like.dtype, *((tuple(p.shape), p.dtype) for p in module.parameters())
    return gain(own.__name__, of, calls, like.device)


def _without_products(module: torch.nn.Module, found: Any) -> dict[str, Any]:
    """The module's children, less the products that are swapped by themselves."""
    apart: tuple[str, ...] = ()
    if issubclass(found, hugging_face.GatedParts):
        apart = ("gate_proj", "up_proj", "down_proj")
    elif issubclass(found, hugging_face.GatedMatrix):
        apart = ("down_proj",)
    return module._modules | dict.fromkeys(apart, torch.nn.Identity())


def like_of(model: torch.nn.Module) -> torch.Tensor:
    """A tensor of the device and type that the model runs on."""
    found = (p.detach() for p in model.parameters() if p.is_floating_point())
    return next(found, torch.empty(0, device="cpu"))


def _input(module: Any, rows: int, parameters: list[Any], like: torch.Tensor) -> torch.Tensor:
    if isinstance(module, torch.nn.Embedding):
        return torch.arange(rows, device=like.device).remainder(module.num_embeddings)[None]
    if parameters and like.device.type == "cpu":
        rows = max(1, min(rows, int(PRODUCTS / max(p.numel() for p in parameters))))
    return numbers((1, rows, *_features(module)), like.dtype, like.device)


def _features(module: Any) -> tuple[int, ...]:
    """The sizes behind the rows of what the module is given, in a model of usual size where it does not say."""
    for part in (module, getattr(module, "gate_up_proj", None)):
        if isinstance(part, torch.nn.Linear):
            return (part.in_features,)
    if hasattr(module, "gate_proj"):
        return (module.gate_proj.out_features,)  # its products are left out
    if hasattr(module, "normalized_shape"):
        return tuple(module.normalized_shape)
    if hasattr(module, "nx"):
        return (int(module.nx),)
    if getattr(module, "weight", None) is not None:
        D = module.weight.numel()
        return (D,) if D > 256 else (8, D)  # heads
    return (4096,)


def numbers(shape: tuple[int, ...], dtype: torch.dtype, device: Any) -> torch.Tensor:
    """Random numbers that leave the user's generators as they are."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator, device="cpu").to(device, dtype)


def _times(own: Callable[[], Any], ours: Callable[[], Any], device: Any, kind: str) -> list[float]:
    """The least seconds of each, in turns; calls of microseconds are made some at a time."""
    count = max(1, min(20, int(1e-4 / max(_seconds(own, 1, device), 1e-6))))
    _seconds(ours, 1, device)
    spent: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + (SECONDS if _spent[kind] < EACH else 0)
    while not spent[0] or (time.perf_counter() < end and len(spent[0]) < 40):
        for found, call in zip(spent, (own, ours), strict=True):
            found.append(_seconds(call, count, device))
    return [min(found) for found in spent]


def _seconds(call: Callable[[], Any], count: int, device: torch.device) -> float:
    finish(device)
    begin = time.perf_counter()
    for _ in range(count):
        call()
    finish(device)
    return time.perf_counter() - begin


def finish(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type != "cpu":
        torch.accelerator.synchronize()
