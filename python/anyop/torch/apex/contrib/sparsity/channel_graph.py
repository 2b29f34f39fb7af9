# SPDX-License-Identifier: Apache-2.0
"""Which dimensions of a model's parameters carry the same channels, and may be permuted together.

The model is traced by torch.fx, as it trains and as it does not. Every dimension of a parameter that carries channels
belongs to a group. What passes channels on unites groups; what is not known to treat all channels alike closes them, as
the model's inputs and results do. Permuting all dimensions of an open group by one order changes no result.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F


class Member(NamedTuple):
    """A dimension of a parameter or buffer."""

    name: str
    tensor: Tensor
    dim: int
    is_input: bool  # weights are summed over it


class Group:
    """Dimensions that carry the same channels; united ones have one root."""

    def __init__(self) -> None:
        self.members: dict[tuple[int, int], Member] = {}
        self.closed: str | None = None  # why
        self._parent: Group | None = None

    def root(self) -> Group:
        one = self
        while one._parent is not None:
            one = one._parent
        return one

    def unite(self, other: Group) -> None:
        a, b = self.root(), other.root()
        if a is not b:
            b._parent = a
            a.members |= b.members
            a.closed = a.closed or b.closed

    def close(self, why: str) -> None:
        root = self.root()
        root.closed = root.closed or why

    @property
    def channels(self) -> int:
        """The length of an order, which is repeated where a dimension is a multiple of it."""
        return math.gcd(*(m.tensor.shape[m.dim] for m in self.members.values()))


class _Channels(NamedTuple):
    """A tensor of which one dimension, counted from the last, carries so many channels; other dimensions do not."""

    group: Group
    axis: int
    channels: int


class _Own(NamedTuple):
    """A parameter or buffer that the model reads itself."""

    name: str
    tensor: Tensor


_UNKNOWN = object()  # a tensor of which nothing is known
_NUMBER = object()  # sizes, and what is made of them

_SIZES = ("shape", "ndim", "dtype", "device")
_CONVOLUTIONS = {nn.Conv1d: -2, nn.Conv2d: -3, nn.Conv3d: -4}
# What has a number, and a weight, for each channel; where the channels are.
_NORMS = {
    nn.BatchNorm2d: -3, nn.BatchNorm3d: -4, nn.InstanceNorm1d: -2, nn.InstanceNorm2d: -3,
    nn.InstanceNorm3d: -4,
}  # fmt: skip
_POOLS = {
    kind: -2 - d
    for d, kinds in enumerate([
        (nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d),
        (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d,
         F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d),
        (nn.MaxPool3d, nn.AvgPool3d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool3d),
    ])
    for kind in kinds
}  # fmt: skip
# What does to every element, or to all channels, the same.
_ALIKE = {
    nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Hardsigmoid, nn.Hardswish, nn.Mish,
    nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.Softplus, nn.Softsign, nn.Softmax, nn.LogSoftmax, nn.Softmin,
    nn.Softmax2d, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout,
    nn.FeatureAlphaDropout, nn.Identity,
    F.relu, F.relu6, F.gelu, F.silu, F.sigmoid, F.tanh, F.hardsigmoid, F.hardswish, F.mish, F.leaky_relu,
    F.elu, F.softmax, F.log_softmax, F.dropout, torch.relu, torch.sigmoid, torch.tanh, torch.abs,
    "relu", "relu_", "sigmoid", "sigmoid_", "tanh", "tanh_", "abs", "contiguous", "clone", "detach",
    "float", "half", "bfloat16", "double",
}  # fmt: skip
_TOGETHER = {
    operator.add, operator.iadd, operator.sub, operator.isub, operator.mul, operator.imul,
    operator.truediv, torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum,
    "add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_",
}  # fmt: skip


class ChannelGraph(fx.Interpreter):
    """Follows channels through a model; groups() has what may be permuted.

    Raises   what torch.fx raises for a model that it cannot trace.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._groups: dict[tuple[int, int], Group] = {}
        self._strange: set[int] = set()  # parameters that something unknown reads
        was = {module: module.training for module in model.modules()}
        try:
            for training in (True, False):
                model.train(training)
                super().__init__(fx.symbolic_trace(model), garbage_collect_values=False)
                self.run()
        finally:
            for module, training in was.items():
                module.training = training
        for (of, _), group in self._groups.items():
            if of in self._strange:
                group.close("a parameter is read by what is not known")

    def groups(self) -> list[Group]:
        """All groups, closed ones too."""
        roots = {id(group.root()): group.root() for group in self._groups.values()}
        return list(roots.values())

    # What torch.fx calls for each node, with what was returned for the nodes before.

    def placeholder(self, target: Any, args: Any, kwargs: Any) -> Any:
        return _UNKNOWN

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        own = self.fetch_attr(target)
        return _Own(target, own) if isinstance(own, Tensor) else self._unknown(target, own)

    def output(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self._unknown("the result of the model", *args)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self._call(target, args, kwargs)

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self._call(target, args, kwargs)

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        module = self.fetch_attr(target)
        kind, x = type(module), args[0] if args else None
        hooked = module._forward_hooks or module._forward_pre_hooks
        if isinstance(x, _Channels) and not hooked:
            if kind in _ALIKE or (kind is nn.PReLU and module.num_parameters == 1):
                return x
            if _POOLS.get(kind) == x.axis:
                return x
            if kind is nn.Flatten:
                return self._flatten(x, module.start_dim, module.end_dim)
        if not hooked:
            if kind is nn.Linear:
                return self._product(target, module, x, -1)
            if kind in _CONVOLUTIONS:
                return self._product(target, module, x, _CONVOLUTIONS[kind])
            if isinstance(x, _Channels) and (kind in _NORMS or kind in (nn.LayerNorm, nn.RMSNorm)):
                return self._norm(target, module, x)
            if kind is nn.MultiheadAttention:
                return self._attention(target, module, args, kwargs)
        self._close_parameters(module)
        return self._unknown(f"{target}, a {kind.__name__}", args, kwargs)

    # What the kinds of nodes do to channels.

    def _call(self, target: Any, args: Any, kwargs: Any) -> Any:
        x = args[0] if args else kwargs.get("input")
        if target in ("size", "dim") or (target is getattr and args[1] in _SIZES):
            return _NUMBER
        if target is operator.getitem and (isinstance(x, tuple) and not isinstance(x, _Channels)):
            return x[args[1]] if isinstance(args[1], int) else self._unknown("an index", *x)
        if target in _TOGETHER:
            return self._together((*args, *kwargs.values()))
        if target is torch.cat or target is torch.concat:
            return self._concatenate(x, args[1] if len(args) > 1 else kwargs.get("dim", 0))
        of_numbers = isinstance(target, str) or target.__module__ in (
            "_operator",
            "builtins",
            "math",
        )
        if of_numbers and not _tensors(_flat(args, kwargs)):
            return _NUMBER
        if isinstance(x, _Channels):
            if target in _ALIKE or _POOLS.get(target) == x.axis:
                return x
            if target in (torch.flatten, "flatten"):
                return self._flatten(x, *_named(args[1:], kwargs, start_dim=0, end_dim=-1))
            if target in ("view", "reshape") and args[1] is _NUMBER and args[2:] == (-1,):
                return self._flatten(x, 1, -1)
            if target in (torch.mean, "mean"):
                return self._mean(x, *_named(args[1:], kwargs, dim=None, keepdim=False))
        return self._unknown(getattr(target, "__name__", target), args, kwargs)

    def _product(self, target: str, module: Any, x: Any, axis: int) -> Any:
        """Linear and convolutions."""
        weight, groups = module.weight, getattr(module, "groups", 1)
        inputs, outputs = weight.shape[1] * groups, weight.shape[0]
        out = self._add(f"{target}.weight", weight, 0)
        if module.bias is not None:
            out.unite(self._add(f"{target}.bias", module.bias, 0))
        known = isinstance(x, _Channels) and x.axis == axis and x.channels == inputs
        if groups == inputs == outputs > 1 and known:  # each channel for itself
            out.unite(x.group)
        elif weight.shape[1] > 1:
            own = self._add(f"{target}.weight", weight, 1, is_input=True)
            if known:
                own.unite(x.group)
            else:
                own.close(f"the input of {target}")
                self._unknown(target, x)
        else:
            self._unknown(target, x)
        if groups > 1 and not (known and groups == inputs == outputs):
            out.close(f"{target}, of several groups")
        return _Channels(out, axis, outputs)

    def _norm(self, target: str, module: Any, x: _Channels) -> Any:
        dim = 0
        expected = _NORMS.get(type(module), x.axis)
        if type(module) not in _NORMS:
            dim = len(module.normalized_shape) + x.axis
            if dim < 0:  # not over channels
                return x
        for name in ("weight", "bias", "running_mean", "running_var"):
            tensor = getattr(module, name, None)
            if tensor is None:
                continue
            if x.axis != expected or tensor.shape[dim] != x.channels:
                self._close_parameters(module)
                return self._unknown(target, x)
            x.group.unite(self._add(f"{target}.{name}", tensor, dim))
        return x if x.axis == expected else self._unknown(target, x)

    def _attention(self, target: str, module: Any, args: Any, kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        whole = module.in_proj_weight is not None and module.bias_k is None
        same = all(
            isinstance(x, _Channels) and x.axis == -1 and x.channels == module.embed_dim
            for x in args[:3]
        )
        if not (whole and same and len(args) >= 3):
            self._close_parameters(module)
            return self._unknown(target, given)
        own = self._add(f"{target}.in_proj_weight", module.in_proj_weight, 1, is_input=True)
        for x in args[:3]:
            own.unite(x.group)
        self._unknown(target, args[3:], kwargs)
        product = module.out_proj
        out = self._add(f"{target}.out_proj.weight", product.weight, 0)
        if product.bias is not None:
            out.unite(self._add(f"{target}.out_proj.bias", product.bias, 0))
        return _Channels(out, -1, module.embed_dim), _UNKNOWN

    def _together(self, args: Any) -> Any:
        """Elementwise, of several: what has channels has them at one place."""
        tensors = [a for a in args if isinstance(a, _Channels)]
        if not tensors:
            return self._unknown("a sum or product", *args) if _tensors(args) else _NUMBER
        first = max(tensors, key=lambda x: x.channels)
        for a in args:
            if a is _UNKNOWN:
                return self._unknown("a sum or product with what is not known", *args)
            if isinstance(a, _Own):
                if a.tensor.dim() < -first.axis or a.tensor.shape[first.axis] == 1:
                    continue
                if a.tensor.shape[first.axis] != first.channels:
                    return self._unknown("a sum or product of other sizes", *args)
                dim = a.tensor.dim() + first.axis
                first.group.unite(self._add(a.name, a.tensor, dim))
            if isinstance(a, _Channels):
                if a.axis != first.axis or a.channels not in (1, first.channels):
                    return self._unknown("a sum or product of other sizes", *args)
                if a.channels != 1:
                    first.group.unite(a.group)
        return first

    def _concatenate(self, parts: Any, dim: Any) -> Any:
        """Side by side along the channels; one order is repeated in all parts."""
        axes = {part.axis for part in parts if isinstance(part, _Channels)}
        known = all(isinstance(part, _Channels) for part in parts) and len(axes) == 1
        ranks = {-2: 3, -3: 4, -4: 5}  # of batches
        if not known or (dim != (axis := axes.pop()) and dim != ranks.get(axis, 0) + axis):
            return self._unknown("torch.cat", parts)
        for part in parts[1:]:
            parts[0].group.unite(part.group)
        return _Channels(parts[0].group, axis, sum(part.channels for part in parts))

    def _flatten(self, x: _Channels, start: int, end: int) -> Any:
        """Of a batch of images; a product that needs more numbers than channels then closes them."""
        if start == 1 and end == -1 and x.axis < -1:
            return _Channels(x.group, -1, x.channels)
        return x if start == 1 and end == -1 else self._unknown("flatten", x)

    def _mean(self, x: _Channels, dim: Any, keepdim: bool) -> Any:
        """Over all that lies behind the channels."""
        dims = {dim} if isinstance(dim, int) else set(dim or ())
        rank = {-2: 3, -3: 4, -4: 5}.get(x.axis, 0)
        if not rank or {d - rank if d >= 0 else d for d in dims} != set(range(x.axis + 1, 0)):
            return self._unknown("mean", x)
        return x if keepdim else _Channels(x.group, -1, x.channels)

    # Groups.

    def _add(self, name: str, tensor: Tensor, dim: int, is_input: bool = False) -> Group:
        key = (id(tensor), dim)
        if key not in self._groups:
            group = self._groups[key] = Group()
            group.members[key] = Member(name, tensor, dim, is_input)
        return self._groups[key]

    def _unknown(self, why: str, *values: Any) -> Any:
        for value in _flat(values, {}):
            if isinstance(value, _Channels):
                value.group.close(why)
            elif isinstance(value, _Own):
                self._strange.add(id(value.tensor))
            elif isinstance(value, Tensor):
                self._strange.add(id(value))
        return _UNKNOWN

    def _close_parameters(self, module: nn.Module) -> None:
        self._strange.update(id(tensor) for tensor in (*module.parameters(), *module.buffers()))


def _flat(args: Any, kwargs: Any) -> Iterator[Any]:
    for value in (*args, *kwargs.values()):
        if isinstance(value, (_Channels, _Own)):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _flat(value, {})
        elif isinstance(value, dict):
            yield from _flat((), value)
        else:
            yield value


def _tensors(values: Any) -> bool:
    return any(a is _UNKNOWN or isinstance(a, (_Channels, _Own, Tensor)) for a in values)


def _named(args: Any, kwargs: Any, **defaults: Any) -> list[Any]:
    """Arguments in the order of their names."""
    given = dict(zip(defaults, args)) | kwargs
    return [given.get(name, default) for name, default in defaults.items()]
