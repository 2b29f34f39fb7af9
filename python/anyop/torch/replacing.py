# SPDX-License-Identifier: Apache-2.0
"""Lets the matching modules of a torch or Hugging Face model run anyop operators, in place, and undoes it.

A module is swapped by giving the object another class, a subclass of its own. So its parameters, buffers, hooks,
training flag and device, tied weights, and all references to it stay what they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch

from anyop.torch import layers
from anyop.torch.matching import Refusal, match
from anyop.torch.packed_linear import PackedLinear, may_pack


def replace(
    model: torch.nn.Module,
    *,
    modules: Iterable[str | type] | None = None,
    pack: bool = False,
    verbose: bool = True,
) -> Replaced:
    """Swap every module of model that an anyop operator can stand in for; prints what it swapped.

    model:    any module; changed in place. Itself it may be swapped too.
    modules:  classes or names of classes to swap, for example ["Linear", "Qwen3RMSNorm"]; None: all that match.
    pack:     the weights stay as they are: each Linear of bfloat16 on the CPU whose sizes 64 and 2 divide keeps a
              packed copy of its weight, 2 bytes a number more, for calls of at most 128 rows without a gradient.
    verbose:  print a line for each class that was swapped, and for each that was left and why.
    Returns   what was swapped, with undo(); as a context manager it undoes at the end.
    Raises    TypeError when model is no module, ValueError when an entry of modules is no class in the model.

    Swapped are: torch.nn's Linear, RMSNorm, LayerNorm, Embedding, SiLU, GELU, ReLU, Softmax and LogSoftmax (these
    very classes, not subclasses); Hugging Face's RMS norms, activations and gated feed-forward parts, each known by
    its structure and by a check of its results on random numbers. All others stay as they are, and so do Linears
    of 16 bits on a CPU where torch's products are measured to be faster, unless modules names the class.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"anyop.torch.replace: model is {type(model).__name__}, expected a Module")
    wanted = None if modules is None else _wanted(model, modules)
    device_type = _device_type(model)
    swapped: list[tuple[torch.nn.Module, type, type]] = []
    left: Counter[tuple[str, str]] = Counter()
    for module in model.modules():
        original = type(module)
        if wanted is not None and not wanted & {original, original.__name__}:
            continue
        found = match(module, device_type, asked=wanted is not None)
        if isinstance(found, Refusal):
            left[original.__name__, found.reason] += 1
        elif found is not None:
            if pack and found is layers.Linear and may_pack(module):
                found = PackedLinear
            object.__setattr__(module, "__class__", found)
            swapped.append((module, original, found))
    replaced = Replaced(swapped, left)
    if verbose:
        print(replaced)
    return replaced


class Replaced:
    """What replace() did to a model.

    swapped: how many modules of each class run anyop operators now.
    left:    how many of each class stayed as they were, by (class, reason).
    packed:  how many of the swapped keep packed weights.
    """

    def __init__(
        self, modules: list[tuple[torch.nn.Module, type, type]], left: Counter[tuple[str, str]]
    ) -> None:
        self._modules = modules
        self.swapped = Counter(original.__name__ for _, original, _ in modules)
        self.left = dict(left)
        self.packed = sum(ours is PackedLinear for _, _, ours in modules)

    def undo(self) -> None:
        """Give every module its own class back; a second time it does nothing.

        Raises RuntimeError, with all others undone, when something else has changed a module's class since.
        """
        modules, self._modules = self._modules, []
        changed = []
        for module, original, ours in modules:
            if type(module) is ours:
                if isinstance(module, PackedLinear):
                    module.repack()
                object.__setattr__(module, "__class__", original)
            else:
                changed.append(type(module).__name__)
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
        total = sum(self.swapped.values())
        return "\n".join([f"anyop.torch.replace: {total} modules run anyop operators", *lines])


def _wanted(model: torch.nn.Module, modules: Iterable[str | type]) -> set[str | type]:
    if isinstance(modules, (str, type)):
        modules = [modules]
    wanted = set(modules)
    there = {kind for module in model.modules() for kind in (type(module), type(module).__name__)}
    if wanted - there:
        names = ", ".join(sorted(str(getattr(kind, "__name__", kind)) for kind in wanted - there))
        raise ValueError(f"anyop.torch.replace: the model has no module of class {names}")
    return wanted


def _device_type(model: torch.nn.Module) -> str:
    """Where modules without parameters are taken to run: with the model's first parameter."""
    return next((parameter.device.type for parameter in model.parameters()), "cpu")
