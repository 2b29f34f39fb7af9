# SPDX-License-Identifier: Apache-2.0
"""Lets the matching modules of a torch or Hugging Face model run anyop operators, in place, and undoes it.

A module is swapped by giving the object another class, a subclass of its own. So its parameters, buffers, hooks,
training flag and device, tied weights, and all references to it stay what they are.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import torch

from anyop.torch import causal_loss, layers
from anyop.torch.models import decoder_layers, gains, hugging_face, joined, model_attention, rotary
from anyop.torch.models.matching import Refusal, match
from anyop.torch.models.packed_linear import PackedLinear, may_pack


def replace(
    model: torch.nn.Module,
    *,
    modules: Iterable[str | type] | None = None,
    pack: bool = False,
    fuse: bool = False,
    timed: bool = True,
    verbose: bool = True,
) -> Replaced:
    """Swap every module of model that an anyop operator can stand in for; prints what it swapped.

    model:    any module; changed in place. Itself it may be swapped too.
    modules:  classes or names of classes to swap, for example ["Linear", "Qwen3RMSNorm"], and kinds: "attention",
              "rope", "loss"; None: all that match.
    pack:     the weights stay as they are: each Linear of bfloat16 on the CPU whose sizes 64 and 2 divide keeps a
              packed copy of its weight, 2 bytes a number more, for calls of at most 128 rows without a gradient.
    fuse:     products of one input become one: gate and up of a feed-forward part, q, k and v of causal attention.
              Their weights lie behind one another in one memory then, of which the parameters are views.
    timed:    each kind of module is called on its device as it is and as it would be, for one row and for 128, and left
              where that gains nothing, with its figures in what is returned. Not what modules names; False: nothing.
    verbose:  print a line for each class that was swapped, and for each that was left and why.
    Returns   what was swapped, with undo(); as a context manager it undoes at the end.
    Raises    TypeError when model is no module, ValueError when an entry of modules is no class in the model.

    Swapped are: torch.nn's Linear, RMSNorm, LayerNorm, Embedding, SiLU, GELU, ReLU, Softmax and LogSoftmax (these
    very classes, not subclasses); Hugging Face's RMS norms, activations, gated feed-forward parts and decoder layers,
    each known by its structure and by a check of its results on random numbers. All others stay as they are.
    A Linear that gains with few rows alone runs anyop for at most 16 rows, and torch for more. The
    attention of a model of transformers is set to "anyop" (anyop.torch.attention), where that gives what its own
    formula gives, and its function that turns queries and keys is replaced in the Python file of the model's class.
    A causal language model that trains and is given labels computes its loss without logits, and returns None for
    them (docs/loss.md).
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"anyop.torch.replace: model is {type(model).__name__}, expected a Module")
    wanted = None if modules is None else _wanted(model, modules)
    replaced = Replaced(timed and modules is None)
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
    gains:   how many times as fast the swapped are, for one row and for many; the least of those measured.
    timed:   whether that was measured.
    """

    def __init__(self, timed: bool = False) -> None:
        self.timed = timed
        self.gains: dict[str, gains.Gain] = {}
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

    def reason(self, name: str, gain: gains.Gain | None) -> str | None:
        """Why to leave what has this gain; it is kept of what is swapped."""
        reason = None if gain is None else gain.reason
        if gain is not None and reason is None:
            self.gained(name, gain)
        return reason

    def gained(self, name: str, gain: gains.Gain) -> None:
        """Keep what a swap gains."""
        self.gains[name] = gains.Gain(*map(min, gain, self.gains.get(name, gain)))

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
        lines = [
            f"  {count:5} {name}" + (f": {self.gains[name]}" if name in self.gains else "")
            for name, count in sorted(self.swapped.items())
        ]
        lines += [
            f"  {count:5} {name} left: {why}" for (name, why), count in sorted(self.left.items())
        ]
        lines += [f"  {self.packed:5} keep packed weights"] * bool(self.packed)
        lines += [
            f"  {count:5} times {name} joined"
            + (f": {self.gains[name]}" if name in self.gains else "")
            for name, count in self.joined.items()
        ]
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
    device_type, like = _device_type(model), gains.like_of(model)
    for module in model.modules():
        original = type(module)
        if wanted is not None and not wanted & {original, original.__name__}:
            continue
        found = match(module, device_type)
        if found is not None and not isinstance(found, Refusal):
            if pack and found is layers.Linear and may_pack(module):
                found = PackedLinear
            found = _faster(module, found, like, replaced)
        if isinstance(found, Refusal):
            replaced.left[original.__name__, found.reason] += 1
        elif found is not None:
            replaced.packed += found is PackedLinear
            _give_class(module, found, replaced)


def _faster(
    module: torch.nn.Module, found: type, like: torch.Tensor, replaced: Replaced
) -> type | Refusal:
    """The class, or for Linear one that is ours for few rows alone; a refusal where neither gains."""
    if not replaced.timed:
        return found
    name = type(module).__name__
    if found is not layers.Linear:
        reason = replaced.reason(name, gains.of_module(module, found, like))
        return found if reason is None else Refusal(reason)
    reason, few = _for_few(name, functools.partial(gains.of_module, module, found, like), replaced)
    return Refusal(reason) if reason else layers.FewRowsLinear if few else found


def _for_few(
    name: str, measured: Callable[..., gains.Gain | None], replaced: Replaced
) -> tuple[str | None, bool]:
    """Why to leave products, and whether to swap them for few rows alone, where many are slower."""
    gain = measured()
    reason = replaced.reason(name, gain)
    if reason is None or gain is None or gain.one < gains.FASTER:
        return reason, False
    few = measured(one=gains.FEW)
    if few is None or few.one < gains.SLOWER:
        return reason, False
    replaced.gained(name, gain._replace(many=1.0))
    return None, True


def _give_class(module: torch.nn.Module, found: type, replaced: Replaced) -> None:
    original = type(module)
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
        if reason is None and replaced.timed:
            reason = replaced.reason(own.__name__, decoder_layers.gain(module, kind))
        if reason:
            replaced.left[own.__name__, reason] += 1
        else:
            _give_class(module, hugging_face.joined(kind, own), replaced)


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
        together, name, reason = None, ", ".join(names), joined.refusal(module, names)
        if reason is None:
            together = joined.Joined.of(module, names)
            if replaced.timed:
                measured = functools.partial(joined.gain, module, names, together)
                reason, few = _for_few(name, measured, replaced)
                together.most = gains.FEW if few else None
        if together is None or reason:
            if together:
                together.part()
            replaced.left[name, str(reason)] += 1
            continue
        classes = [OtherClass(part, type(part), ours) for part, ours in changed]
        for part, _, ours in classes:
            part.__dict__["_joined"] = together
            object.__setattr__(part, "__class__", ours)
        replaced.note(ApartAgain(together, classes))
        replaced.joined[name] += 1


def _replace_loss(model: torch.nn.Module, replaced: Replaced) -> None:
    """Of causal language models: less memory is the gain, so it is not timed."""
    for module in model.modules():
        found = causal_loss.match_loss(module)
        if isinstance(found, Refusal):
            replaced.left[hugging_face.original(module).__name__, found.reason] += 1
        elif found is not None:
            _give_class(module, found, replaced)


# What concerns more than one module, by the name that `modules` takes.
KINDS: dict[str, Callable[[torch.nn.Module, Any], None]] = {
    "attention": model_attention.replace_attention,
    "rope": rotary.replace_rotary,
    "loss": _replace_loss,
}


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
