# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.sparsity.asp: prunes the weights of a model to 2 of 4, and keeps them pruned while it is trained."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from anyop.torch.apex.contrib.sparsity.permutation_lib import Permutation
from anyop.torch.apex.contrib.sparsity.sparse_masklib import create_mask

_WEIGHTS: dict[type, list[str]] = {
    kind: ["weight"] for kind in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
}


class _Sparse(NamedTuple):
    """A weight that is pruned."""

    name: str
    weight: nn.Parameter
    mask: Tensor
    pruned: Tensor | None  # what was taken, on the CPU; None: it is forgotten


class ASP:
    """One model of a process, as Apex's: all methods are of the class."""

    __model: nn.Module | None = None
    __optimizer: torch.optim.Optimizer | None = None
    __calculate: Callable[[Tensor], Tensor] | None = None
    __verbosity = 0
    __permutes = True
    __sparse: ClassVar[list[_Sparse]] = []

    @classmethod
    def init_model_for_pruning(
        cls, model: nn.Module, mask_calculator: str | Callable[[Tensor], Tensor] = "m4n2_1d",
        verbosity: int = 3, whitelist: Sequence[type] = tuple(_WEIGHTS),
        allowed_layer_names: Sequence[str] | None = None,
        disallowed_layer_names: Sequence[str] = (), allow_recompute_mask: bool = False,
        custom_layer_dict: dict[type, list[str]] | None = None, allow_permutation: bool = True,
    ) -> None:  # fmt: skip
        """Give every eligible weight a mask, a buffer of its module; nothing is pruned yet.

        allow_recompute_mask:  what is pruned is kept, so that it can be restored or chosen anew.
        custom_layer_dict:     more types of modules with the names of their weights.
        allow_permutation:     channels are permuted before weights are pruned, so that more is kept; the model computes
                               the same, up to rounding.
        """
        assert cls.__model is None, "ASP has been initialized already."
        weights = _WEIGHTS | (custom_layer_dict or {})
        kinds = (*whitelist, *(custom_layer_dict or {}))
        for kind in kinds:
            assert kind in weights, f"Module {kind} :: Don't know how to sparsify module."
        cls.__model, cls.__verbosity, cls.__permutes = model, verbosity, allow_permutation
        if isinstance(mask_calculator, str):
            pattern = mask_calculator
            cls.__calculate = lambda weight: create_mask(weight, pattern).bool()
        else:
            cls.__calculate = mask_calculator
        for name, module in model.named_modules():
            allowed = allowed_layer_names is None or name in allowed_layer_names
            if isinstance(module, kinds) and allowed and name not in disallowed_layer_names:
                wanted = next(weights[kind] for kind in type(module).__mro__ if kind in weights)
                cls.__add(name, module, wanted, allow_recompute_mask)

    @classmethod
    def __add(cls, name: str, module: nn.Module, wanted: list[str], keeps: bool) -> None:
        for own, weight in module.named_parameters():
            text = f"{name}::{own} of size={tuple(weight.shape)} and type={weight.dtype}"
            if own not in wanted or not weight.requires_grad:
                cls.__say(3, f"Not sparsifying {text}")
            elif weight.shape[0] % 8 or weight.shape[1] % 16:  # what sparse tensor cores take
                cls.__say(0, f"Auto skipping pruning {text} for sparsity")
            else:
                cls.__say(3, f"Sparsifying {text} for sparsity")
                short = own.split(".")[-1]  # names of buffers have no point
                mask = torch.ones_like(weight, dtype=torch.bool)
                module.register_buffer(f"__{short}_mma_mask", mask)
                pruned = torch.zeros_like(weight, device="cpu") if keeps else None
                if pruned is not None:
                    pruned = pruned.detach()
                    module.register_buffer(f"__{short}_mma_pruned_p", pruned)
                cls.__sparse.append(_Sparse(f"{name}::{own}", weight, mask, pruned))

    @classmethod
    def __say(cls, least: int, text: str) -> None:
        if cls.__verbosity >= least:
            print(f"[ASP] {text}")

    @classmethod
    def already_init_asp_model(cls) -> bool:
        """Whether there is a model."""
        return cls.__model is not None

    @classmethod
    def init_optimizer_for_pruning(cls, optimizer: torch.optim.Optimizer) -> None:
        """Let the optimizer's step mask gradients before it and weights behind it."""
        assert cls.__optimizer is None, "ASP has initialized optimizer already."
        assert cls.__calculate is not None, (
            "Called ASP.init_optimizer_for_pruning before ASP.init_model_for_pruning."
        )
        cls.__optimizer = optimizer
        step, sparse = optimizer.step, cls.__sparse

        def masked_step(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            with torch.no_grad():
                for one in sparse:
                    if one.weight.grad is not None:
                        one.weight.grad.mul_(one.mask)
            found = step(*args, **kwargs)
            with torch.no_grad():
                for one in sparse:
                    one.weight.mul_(one.mask)
            return found

        optimizer.step = types.MethodType(masked_step, optimizer)

    @classmethod
    @torch.no_grad()
    def compute_sparse_masks(cls) -> None:
        """Prune: masks are computed, and weights become 0 where these are."""
        assert cls.__calculate is not None, "ASP has no model: call init_model_for_pruning first."
        for one in cls.__sparse:
            cls.__restore(one)
        if cls.__permutes:
            cls.__permute()
        for one in cls.__sparse:
            one.mask.copy_(cls.__calculate(one.weight))
            if one.pruned is not None:
                one.pruned.copy_(one.weight * ~one.mask)
            one.weight.masked_fill_(~one.mask, 0)
            share = 100 - 100 * float(one.mask.sum()) / one.mask.numel()
            cls.__say(2, f"Enabled {share:.2f}% sparsity for {one.name}")

    @classmethod
    def __permute(cls) -> None:
        """Of a model that torch.nn.parallel's modules have in them, that one."""
        model = cls.__model
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        assert model is not None
        sparse = [("", model, s.name, s.weight, s.mask, s.pruned) for s in cls.__sparse]
        Permutation.set_permutation_params_from_asp(model, sparse, [], cls.__verbosity)
        done = Permutation.permute_model(model, optimizer=cls.__optimizer)
        cls.__say(2, "Permuted channels" if done else "Did not permute channels")

    @classmethod
    def __restore(cls, one: _Sparse) -> bool:
        """The dense weight; whether it was pruned."""
        if bool(one.mask.all()):
            return False
        assert one.pruned is not None, (
            "Unable to restore dense parameter because allow_recompute_mask == False"
        )
        one.weight.add_(one.pruned.to(one.weight.device))
        return True

    @classmethod
    @torch.no_grad()
    def restore_pruned_weights(cls) -> None:
        """Make all weights dense again; needs allow_recompute_mask."""
        for one in cls.__sparse:
            if cls.__restore(one):
                one.mask.fill_(True)
                assert one.pruned is not None
                one.pruned.zero_()
                cls.__say(2, f"Disabled sparsity for {one.name} (dense weights restored)")

    @classmethod
    def is_sparsity_enabled(cls) -> bool:
        """Whether the weights are pruned, all to one half; AssertionError where some are and some not."""
        kept = [(int(one.mask.sum()), one.mask.numel()) for one in cls.__sparse]
        if all(count == size for count, size in kept):
            return False
        assert all(2 * count == size for count, size in kept), "Inconsistent model sparsity"
        return True

    @classmethod
    def prune_trained_model(cls, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """All three steps: masks for Linear and Conv2d, the optimizer, pruning."""
        cls.init_model_for_pruning(
            model, "m4n2_1d", verbosity=2, whitelist=[nn.Linear, nn.Conv2d],
            allow_recompute_mask=False,
        )  # fmt: skip
        cls.init_optimizer_for_pruning(optimizer)
        cls.compute_sparse_masks()

    @classmethod
    def set_permutation_saving_params(
        cls, allow_permutation: bool = True, save_permutation_graph: bool = False,
        permutation_output_dir: str = ".",
    ) -> None:  # fmt: skip
        """Whether channels are permuted, and whether the groups of channels are written into that folder as JSON."""
        cls.__permutes = allow_permutation
        Permutation.set_permutation_saving_params(
            allow_permutation, save_permutation_graph, permutation_output_dir
        )
