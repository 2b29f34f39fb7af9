# SPDX-License-Identifier: Apache-2.0
"""Training losses of Hugging Face's causal language models without logits, by linear_cross_entropy.

A model of transformers computes `lm_head` for all tokens, then its loss. Where it trains and is given labels, the
class made here computes both by one operator, and returns None for the logits. Else the model's own forward runs.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
from typing import Any

import torch

import anyop
from anyop._routes import unrecorded
from anyop.torch import layers
from anyop.torch.models.hugging_face import Swapped, joined
from anyop.torch.models.matching import Refusal

OUTPUTS = ("CausalLMOutputWithPast", "CausalLMOutputWithCrossAttentions")
NOT_OF_THE_BASE = ("labels", "logits_to_keep", "return_dict")  # arguments
TOLERANCE = 1e-5


class CausalLoss(Swapped):
    """Stands before a ForCausalLM class: where it trains with labels, the loss comes without logits."""

    operator = "linear_cross_entropy"
    output: Any = None  # the class of the model's results, seen when it was tried
    names: tuple[str, ...] = ()  # of forward's arguments, in order
    forward: Any  # made for each class

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        model: Any = cls.__bases__[-1]
        own = model.forward

        @functools.wraps(own)  # whose arguments a Trainer asks for
        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            return CausalLoss.run(self, args, kwargs)

        cls.forward = forward
        cls.names = tuple(inspect.signature(own).parameters)[1:]

    def run(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = {**dict(zip(self.names, args)), **kwargs}
        if not _skips(self, given):
            own: Any = super()
            return own.forward(*args, **kwargs)
        passed = {k: v for k, v in given.items() if k not in NOT_OF_THE_BASE}
        found = getattr(self, self.base_model_prefix)(**passed)
        fields = {f.name: getattr(found, f.name, None) for f in dataclasses.fields(self.output)}
        loss = _loss(self.get_output_embeddings(), self.config, found, given)
        return self.output(**{**fields, "loss": loss, "logits": None})


def match_loss(module: torch.nn.Module) -> type | Refusal | None:
    """The class to give a causal language model; a refusal; None for a module that is none."""
    original: Any = type(module)
    if isinstance(module, Swapped) or not _looks_like(module):
        return None
    if "forward" in module.__dict__:
        return Refusal("its forward was replaced")
    if not _head_is_plain(module.get_output_embeddings()):
        return Refusal("its output embeddings are no plain Linear")
    output = _tried(module)
    if output is None:
        return Refusal("its loss is not linear_cross_entropy of the last hidden states")
    found: Any = joined(CausalLoss, original)
    found.output = output
    swapped: type = found
    return swapped


def _looks_like(module: torch.nn.Module) -> bool:
    named = type(module).__name__.endswith(("ForCausalLM", "LMHeadModel"))
    prefix, head = getattr(module, "base_model_prefix", ""), _head_name(module) if named else None
    return named and head is not None and set(module._modules) == {prefix, head}


def _head_name(module: Any) -> str | None:
    head = getattr(module, "get_output_embeddings", lambda: None)()
    return next((n for n, child in module._modules.items() if child is head), None)


def _head_is_plain(head: Any) -> bool:
    """Whether the layer does what its class does, with weights that lie in memory as they are."""
    return (
        type(head) in (torch.nn.Linear, layers.Linear, layers.FewRowsLinear)
        and type(head.weight) is torch.nn.Parameter
        and head.weight.dim() == 2
        and "forward" not in head.__dict__
        and not (head._forward_hooks or head._forward_pre_hooks or head._backward_hooks)
        and not head._backward_pre_hooks
    )


def _skips(model: Any, given: dict[str, Any]) -> bool:
    """Whether this call is one whose logits nobody asked for."""
    keep = given.get("logits_to_keep")
    wants_tuple = given.get("return_dict", getattr(model.config, "return_dict", True)) is False
    return (
        model.training
        and given.get("labels") is not None
        and model.output is not None
        and not wants_tuple
        and (keep is None or (isinstance(keep, int) and keep == 0))
        and getattr(model.loss_function, "__name__", "") == "ForCausalLMLoss"
        and _head_is_plain(model.get_output_embeddings())
    )


def _loss(head: Any, config: Any, found: Any, given: dict[str, Any]) -> torch.Tensor:
    """As transformers' ForCausalLMLoss of the logits: those of token i are for label i + 1."""
    x = found.last_hidden_state
    ignored, items = given.get("ignore_index", -100), given.get("num_items_in_batch")
    labels = given.get("shift_labels")
    if labels is None:
        labels = torch.nn.functional.pad(given["labels"], (0, 1), value=ignored)[..., 1:]
    labels = labels.reshape(x.shape[:-1]).to(x.device).contiguous()
    scale = getattr(config, "logit_scale", None) or 1  # Cohere's; Granite's divides
    scale /= getattr(config, "logits_scaling", None) or 1
    rows = x.contiguous() if scale == 1 else x * scale
    softcap = getattr(config, "final_logit_softcapping", None) or 0.0
    bias = head.bias if scale == 1 or head.bias is None else head.bias * scale
    losses, _ = anyop.linear_cross_entropy(
        rows, head.weight, labels, bias, ignore_index=ignored, softcap=softcap
    )
    if items is None:
        items = (labels != ignored).sum()
    return losses.sum() / (items.to(x.device) if torch.is_tensor(items) else items)


class _Hidden(torch.nn.Module):
    """In the place of a model's layers: gives these hidden states, and keeps what it was given."""

    def __init__(self, states: torch.Tensor) -> None:
        super().__init__()
        self.states, self.given = states, set[int]()

    def forward(self, *args: Any, **kwargs: Any) -> _Found:
        given = (*args, *kwargs.values())
        self.given = {id(value) for value in given if torch.is_tensor(value)}
        return _Found(self.states)


class _Found:
    def __init__(self, states: torch.Tensor) -> None:
        self.last_hidden_state = states

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


@unrecorded()
def _tried(module: Any) -> Any:
    """The class of the model's results where its own loss on random hidden states is the operator's; else None."""
    try:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            return _output_where_same(module)
    except Exception:  # forward is somebody else's and may raise anything
        return None


def _output_where_same(module: Any) -> Any:
    generator = torch.Generator().manual_seed(0)
    random = functools.partial(torch.randn, generator=generator, device="cpu")
    ids, mask = (torch.ones(2, 5, dtype=torch.int64, device="cpu") for _ in range(2))
    labels = torch.tensor([[1, 9, -100, 3, 4], [0, 2, 10, -100, 7]], device="cpu")
    stand_in, head = _stand_in(module, random)
    output: Any = None
    layers_of = getattr(stand_in, module.base_model_prefix)
    for more in ({}, {"num_items_in_batch": 3}, {"num_items_in_batch": torch.tensor(5)}):
        given = {"input_ids": ids, "attention_mask": mask, "labels": labels, **more}
        theirs = type(module).forward(stand_in, **given)
        seen = layers_of.given
        ours = _loss(head, stand_in.config, layers_of(**given), given)
        if not torch.allclose(theirs.loss, ours, rtol=TOLERANCE, atol=TOLERANCE):
            return None
        if not {id(ids), id(mask)} <= seen or id(labels) in seen:
            return None
        output = type(theirs)
    return output if output.__name__ in OUTPUTS else None


def _stand_in(module: Any, random: Any) -> tuple[Any, torch.nn.Linear]:
    """A copy with 8 features and 11 classes, whose layers give random hidden states, of large logits; and its head."""
    head, config = torch.nn.Linear(8, 11, device="meta"), copy.copy(module.config)
    own = module.get_output_embeddings()
    head.weight = torch.nn.Parameter(random(11, 8))
    head.bias = None if own.bias is None else torch.nn.Parameter(random(11))
    config.vocab_size = 11
    stand_in = copy.copy(module)
    parts = {module.base_model_prefix: _Hidden(10 * random(2, 5, 8)), _head_name(module): head}
    stand_in.__dict__.update(_modules=parts, config=config, vocab_size=11, training=True)
    return stand_in, head
