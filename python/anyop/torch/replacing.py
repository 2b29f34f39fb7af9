# SPDX-License-Identifier: Apache-2.0
"""Lets the matching modules of a torch or Hugging Face model run anyop operators, in place, and undoes it.

A module is swapped by giving the object another class, a subclass of its own. So its parameters, buffers, hooks,
training flag and device, tied weights, and all references to it stay what they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import torch

from anyop.torch import decoder_layers, hugging_face, joined, layers, model_attention, rotary
from anyop.torch.matching import Refusal, match
from anyop.torch.packed_linear import PackedLinear, may_pack

# What concerns more than one module, by the name that `modules` takes.
KINDS: dict[str, Callable[[torch.nn.Module, Any], None]] = {
    "attention": model_attention.replace_attention,
    "rope": rotary.replace_rotary,
}


def replace(
    model: torch.nn.Module,
    *,
    modules: Iterable[str | type] | None = None,
    pack: bool = False,
    fuse: bool = False,
    verbose: bool = True,
) -> Replaced:
    """Swap every module of model that an anyop operator can stand in for; prints what it swapped.

    model:    any module; changed in place. Itself it may be swapped too.
    modules:  classes or names of classes to swap, for example ["Linear", "Qwen3RMSNorm"], and kinds: "attention",
              "rope"; None: all that match.
    pack:     the weights stay as they are: each Linear of bfloat16 on the CPU whose sizes 64 and 2 divide keeps a
              packed copy of its weight, 2 bytes a number more, for calls of at most 128 rows without a gradient.
    fuse:     products of one input become one: gate and up of a feed-forward part, q, k and v of causal attention.
              Their weights lie behind one another in one memory then, of which the parameters are views.
    verbose:  print a line for each class that was swapped, and for each that was left and why.
    Returns   what was swapped, with undo(); as a context manager it undoes at the end.
    Raises    TypeError when model is no module, ValueError when an entry of modules is no class in the model.

    Swapped are: torch.nn's Linear, RMSNorm, LayerNorm, Embedding, SiLU, GELU, ReLU, Softmax and LogSoftmax (these
    very classes, not subclasses); Hugging Face's RMS norms, activations, gated feed-forward parts and decoder layers,
    each known by its structure and by a check of its results on random numbers. All others stay as they are, and so do
    Linears of 16 bits on a CPU where torch's products are measured to be faster, unless modules names the class. The
    attention of a model of transformers is set to "anyop" (anyop.torch.attention), where that gives what its own
    formula gives, and its function that turns queries and keys is replaced in the Python file of the model's class.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"anyop.torch.replace: model is {type(model).__name__}, expected a Module")
    wanted = None if modules is None else _wanted(model, modules)
    replaced = Replaced()
    _replace_modules(model, wanted, pack, replaced)
    _replace_layers(model, wanted, replaced)
    for kind, replace_kind in KINDS.items():
        if wanted is None or kind in wanted:
            replace_kind(model, replaced)
    if fuse:
        _join(model, wanted, replaced)
    if verbose:
        print(replaced)
    return replaced


class Replaced:
    """What replace() did to a model.

    swapped: how many modules of each class run anyop operators now; of other kinds ("attention") how many layers.
    left:    how many of each class or kind stayed as they were, by (class, reason).
    packed:  how many of the swapped keep packed weights.
    joined:  how often products are one now, by the names of their modules.
    """

    def __init__(self) -> None:
        self._changes: list[Change] = []
        self.swapped: Counter[str] = Counter()
        self.left: Counter[tuple[str, str]] = Counter()
        self.packed = 0
        self.joined: Counter[str] = Counter()

    def add(self, name: str, change: Change, count: int = 1) -> None:
        """Keep a change that was made, to undo it."""
        self.note(change)
        self.swapped[name] += count

    def note(self, change: Change) -> None:
        """Keep a change of what is counted already."""
        self._changes.append(change)

    def undo(self) -> None:
        """Give every module its own class back, and the model all else; a second time it does nothing.

        Raises RuntimeError, with all others undone, when something else has changed a module's class since.
        """
        changes, self._changes = self._changes, []
        changed = [found for change in reversed(changes) if (found := change.undo())]
        if changed:
            names = ", ".join(sorted(set(changed)))
            raise RuntimeError(f"anyop.torch.replace: became another class since: {names}")

    def __enter__(self) -> Replaced:
        return self

    def __exit__(self, *exception: object) -> None:
        self.undo()

    def __str__(self) -> str:
        lines = [f"  {count:5} {name}" for name, count in sorted(self.swapped.items())]
        lines += [
            f"  {count:5} {name} left: {why}" for (name, why), count in sorted(self.left.items())
        ]
        lines += [f"  {self.packed:5} keep packed weights"] * bool(self.packed)
        lines += [f"  {count:5} times {names} joined" for names, count in self.joined.items()]
        total = sum(self.swapped.values())
        return "\n".join([f"anyop.torch.replace: {total} modules run anyop operators", *lines])


class Change(Protocol):
    """Something of a model that replace() has changed."""

    def undo(self) -> str | None:
        """Take it back; the name of what it cannot, as something else has changed it since."""


class OtherClass(NamedTuple):
    """A module whose class was changed."""

    module: torch.nn.Module
    original: type
    ours: type

    def undo(self) -> str | None:
        if type(self.module) is not self.ours:
            return type(self.module).__name__
        if isinstance(self.module, PackedLinear):
            self.module.repack()
        object.__setattr__(self.module, "__class__", self.original)
        return None


def _replace_modules(
    model: torch.nn.Module, wanted: set[str | type] | None, pack: bool, replaced: Replaced
) -> None:
    device_type = _device_type(model)
    for module in model.modules():
        original = type(module)
        if wanted is not None and not wanted & {original, original.__name__}:
            continue
        found = match(module, device_type, asked=wanted is not None)
        if isinstance(found, Refusal):
            replaced.left[original.__name__, found.reason] += 1
        elif found is not None:
            if pack and found is layers.Linear and may_pack(module):
                found = PackedLinear
                replaced.packed += 1
            object.__setattr__(module, "__class__", found)
            replaced.add(original.__name__, OtherClass(module, original, found))


def _replace_layers(
    model: torch.nn.Module, wanted: set[str | type] | None, replaced: Replaced
) -> None:
    """Decoder layers, when their norms have their classes."""
    for module in model.modules():
        own: Any = type(module)
        kind = decoder_layers.kind_of(module)
        if kind is None or (wanted is not None and not wanted & {own, own.__name__}):
            continue
        reason = decoder_layers.refusal(module, kind)
        if reason:
            replaced.left[own.__name__, reason] += 1
            continue
        found = hugging_face.joined(kind, own)
        object.__setattr__(module, "__class__", found)
        replaced.add(own.__name__, OtherClass(module, own, found))


class ApartAgain(NamedTuple):
    """Products that were joined."""

    joined: joined.Joined
    changed: list[OtherClass]

    def undo(self) -> str | None:
        for change in self.changed:
            change.module.__dict__.pop("_joined", None)
        self.joined.part()
        found = [change.undo() for change in self.changed]
        return next((name for name in found if name), None)


def _join(model: torch.nn.Module, wanted: set[str | type] | None, replaced: Replaced) -> None:
    for module, names, changed in joined.find(model):
        own = hugging_face.original(module)
        if wanted is not None and not wanted & {own, own.__name__}:
            continue
        reason = joined.refusal(module, names)
        if reason:
            replaced.left[", ".join(names), reason] += 1
            continue
        together = joined.Joined.of(module, names)
        classes = [OtherClass(part, type(part), ours) for part, ours in changed]
        for part, _, ours in classes:
            part.__dict__["_joined"] = together
            object.__setattr__(part, "__class__", ours)
        replaced.note(ApartAgain(together, classes))
        replaced.joined[", ".join(names)] += 1


def _wanted(model: torch.nn.Module, modules: Iterable[str | type]) -> set[str | type]:
    if isinstance(modules, (str, type)):
        modules = [modules]
    wanted = set(modules)
    there: set[str | type] = {*KINDS}
    there.update(
        kind for module in model.modules() for kind in (type(module), type(module).__name__)
    )
    if wanted - there:
        names = ", ".join(sorted(str(getattr(kind, "__name__", kind)) for kind in wanted - there))
        raise ValueError(f"anyop.torch.replace: the model has no module of class {names}")
    return wanted


def _device_type(model: torch.nn.Module) -> str:
    """Where modules without parameters are taken to run: with the model's first parameter."""
    return next((parameter.device.type for parameter in model.parameters()), "cpu")
