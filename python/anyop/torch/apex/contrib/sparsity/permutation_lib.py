# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.sparsity.permutation_lib: channels of a model in an order of which pruning to 2 of 4 keeps more."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anyop.torch.apex.contrib.sparsity.channel_graph import ChannelGraph, Group
from anyop.torch.apex.contrib.sparsity.permutation_search_kernels import (
    accelerated_search_for_good_permutation,
    sum_after_2_to_4,
)

# Matrices of more columns are searched by swaps: groups of stripes grow with the square.
WIDEST_EXHAUSTIVE = 2048


class Permutation:
    """Of one model of a process, as Apex's: all methods are of the class. The model's function stays the same."""

    __sparse: ClassVar[set[int]] = set()
    __verbosity = 0
    __seed = 1
    __saves = False
    __folder = "."
    __permuted: ClassVar[tuple[list[str], list[str]]] = ([], [])

    @classmethod
    def set_identical_seed(cls, identical_seed: int = 1) -> None:
        """With what each search begins; no other random state is touched, and Apex's reset_seed is not needed."""
        cls.__seed = identical_seed

    @classmethod
    def set_tcpstore_port(cls, tcpstore_port: int) -> None:
        """Nothing: processes agree by torch.distributed's own group."""

    @classmethod
    def set_permutation_saving_params(
        cls, allow_permutation: bool = False, save_permutation_graph: bool = False,
        permutation_output_dir: str = ".",
    ) -> None:  # fmt: skip
        """Whether permute_model writes model_graph_permutation_graph.json, and where; ASP asks allow_permutation."""
        cls.__saves, cls.__folder = save_permutation_graph, permutation_output_dir

    @classmethod
    def set_permutation_params_from_asp(
        cls, model: nn.Module, sparse_parameters: Iterable[Sequence[Any]],
        all_parameters: Iterable[Sequence[Any]], verbosity: int = 0,
    ) -> None:  # fmt: skip
        """Which parameters are pruned: the fourth of each (module name, module, name, parameter, mask, pruned).

        all_parameters changes nothing: what else is permuted the model says.
        """
        cls.__sparse = {id(one[3]) for one in sparse_parameters}
        cls.__verbosity = verbosity
        cls.__permuted = ([], [])

    @classmethod
    @torch.no_grad()
    def permute_model(
        cls, model: nn.Module, dump_fx_graph: bool = False,
        save_dumped_fx_graph: str = "./model_permutation_graph.json",
        optimizer: torch.optim.Optimizer | None = None,
    ) -> bool:  # fmt: skip
        """Permute channels wherever pruned weights are summed over them, and all else that carries these channels.

        dump_fx_graph:  write the groups of channels into save_dumped_fx_graph.
        optimizer:      its states of permuted parameters are permuted too; Apex has no such argument.
        Returns   False where torch.fx cannot trace the model, with a warning; it stays as it is then.
        """
        try:
            groups = ChannelGraph(model).groups()
        except Exception as error:
            warnings.warn(
                f"channels are not permuted: torch.fx cannot trace the model: {error}", stacklevel=2
            )
            return False
        if dump_fx_graph:
            cls.__write(groups, Path(save_dumped_fx_graph))
        if cls.__saves:
            cls.__write(groups, Path(cls.__folder) / "model_graph_permutation_graph.json")
        orders = [cls.__order(group) for group in groups]
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.broadcast_object_list(orders)
        for group, order in zip(groups, orders):
            if order is not None:
                cls.__permute(group, order, optimizer)
        return True

    @classmethod
    def get_permutation_stats(cls) -> tuple[list[str], list[str], list[str]]:
        """Names of what was permuted along input channels, along others, and what of a group was left: nothing."""
        return *cls.__permuted, []

    @classmethod
    def find_permutation_for_matrix_group(cls, matrix_group: Tensor) -> tuple[list[int], bool]:
        """An order of the columns, and whether it was searched: not where pruning takes less than a thousandth."""
        columns = matrix_group.shape[1]
        total = float(matrix_group.abs().sum(dtype=torch.float64))
        if not total - sum_after_2_to_4(matrix_group) >= 1e-3 * total > 0:
            return list(range(columns)), False
        strategy = "exhaustive" if columns <= WIDEST_EXHAUSTIVE else "channel swap"
        options = {"strategy": strategy, "seed": cls.__seed}
        return accelerated_search_for_good_permutation(matrix_group, options, cls.__verbosity), True

    @classmethod
    def __order(cls, group: Group) -> list[int] | None:
        channels = group.channels
        pruned = [
            m.tensor.detach().float().movedim(m.dim, -1).reshape(-1, channels)
            for m in group.members.values()
            if m.is_input and id(m.tensor) in cls.__sparse
        ]
        if group.closed or channels % 4 or channels < 8 or not pruned:
            return None
        order, found = cls.find_permutation_for_matrix_group(torch.cat(pruned))
        return order if found else None

    @classmethod
    def __permute(
        cls, group: Group, order: list[int], optimizer: torch.optim.Optimizer | None
    ) -> None:
        for member in group.members.values():
            shape, state = member.tensor.shape, optimizer.state if optimizer else {}
            own = state.get(member.tensor, {}).values()
            states = [s for s in own if isinstance(s, Tensor) and s.shape == shape]
            for tensor in (member.tensor, *states):
                parts = torch.arange(shape[member.dim], device=tensor.device).view(-1, len(order))
                index = parts[:, torch.tensor(order, device=tensor.device)].flatten()
                tensor.copy_(tensor.index_select(member.dim, index))
            cls.__permuted[0 if member.is_input else 1].append(member.name)

    @classmethod
    def __write(cls, groups: list[Group], path: Path) -> None:
        """Channels, why they stay, and the dimensions that carry them, of each group."""
        written = [
            {
                "channels": group.channels,
                "closed": group.closed,
                "members": {f"{m.name}[{m.dim}]": m.is_input for m in group.members.values()},
            }
            for group in groups
        ]
        path.write_text(json.dumps(written, indent=1))
