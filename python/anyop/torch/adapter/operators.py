# SPDX-License-Identifier: Apache-2.0
"""One operator as the adapter sees it: its names in torch.ops, and calls by torch's dispatcher."""

from __future__ import annotations

from typing import Any

import torch

from anyop._load import core
from anyop.adapter import operators
from anyop.torch.adapter import python_kernels
from anyop.torch.adapter.framework import FRAMEWORK


def has_out(metadata: dict[str, Any]) -> bool:
    """Whether there is an overload that writes into given results: torch knows no optional ones."""
    results = metadata["results"]
    return bool(results) and not any(result["optional"] for result in results)


class Operator(operators.Operator):
    """As torch.ops.<namespace>.<op>."""

    def __init__(self, name: str) -> None:
        super().__init__(name, FRAMEWORK)
        self.qualified = f"{self.namespace}::{self.short}"

    def _read(self) -> None:
        super()._read()
        self.packet = getattr(getattr(torch.ops, self.namespace), self.short)
        self.default = self.packet.default
        self.out = self.packet.out if has_out(self.metadata) else None
        # Whether a call by torch.ops can say its scope. Before torch 2.10 only Python kernels get text.
        has_text = not python_kernels.IS_OLD or core.torch_problem(self.name) is not None
        self.takes_scope = has_text and "use" not in self.names

    def fill(self, args: tuple, kwargs: dict[str, Any]) -> list[Any]:
        """Values of all inputs from a call by torch's dispatcher, which leaves out what equals its default."""
        values = [*args[: self.count], *self.defaults[len(args) : self.count]]
        for name, value in kwargs.items():
            at = self.index.get(name, self.count)
            if at < self.count:
                values[at] = value
        return values

    def wanted(self, args: tuple, kwargs: dict[str, Any]) -> int:
        """The bit mask `results` in a call by torch's dispatcher."""
        return kwargs.get("results", args[self.count] if len(args) > self.count else -1)

    def scope(self, kwargs: dict[str, Any]) -> str | None:
        """The scope that a call by torch's dispatcher says, as anyop.use writes it."""
        return kwargs.get("use") if self.takes_scope else None

    def call(self, inputs: list[Any], results: int = -1, use: str | None = None) -> Any:
        """The functional overload on all inputs; bit i of results: result i is wanted; use: the scope, if any."""
        keywords = dict(zip(self.keywords, inputs[self.positional :]))
        if results != -1:
            keywords["results"] = results
        if use is not None and self.takes_scope:
            keywords["use"] = use
        return self.default(*inputs[: self.positional], **keywords)

    def call_out(
        self, inputs: list[Any], results: list[torch.Tensor], use: str | None = None
    ) -> None:
        """The overload that writes into given results."""
        keywords = dict(zip(self.names[self.positional :], [*inputs[self.positional :], *results]))
        if use is not None and self.takes_scope:
            keywords["use"] = use
        self.out(*inputs[: self.positional], **keywords)
