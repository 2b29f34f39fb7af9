# SPDX-License-Identifier: Apache-2.0
"""What all optimizers here have in common: a step of a device's parameters is one call of an operator over lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from operator import is_
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

import anyop

_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_HALVES = (torch.float16, torch.bfloat16)
_OWN = ("set_grad_none", "master_weights", "state_dtype")
_OF_SOME = ("master_param", "average_param")  # states that not every optimizer keeps


class _Eager:
    """What a batch keeps between its steps outside torch.compile: a handle, and rates on its device."""

    def __init__(self, operator: str) -> None:
        self.call = anyop.hold(getattr(anyop, operator))
        self._rates: dict[str, tuple[Any, Any, Tensor]] = {}

    def rate(self, name: str, value: float, device: torch.device) -> Any:
        """A tensor, filled where value or the stream is another; value itself for a graph, which keeps it."""
        if device.type not in ("cpu", "cuda"):
            return value
        stream = None
        if device.type == "cuda":
            if torch.cuda.is_current_stream_capturing():
                return value
            stream = torch.cuda.current_stream(device)
        held = self._rates.get(name)
        if held is None or held[:2] != (value, stream):
            held = value, stream, torch.full((), value, dtype=torch.float32, device=device)
            self._rates[name] = held
        return held[2]


class Batch(NamedTuple):
    """Parameters of one device that took the same steps, and what belongs to them: the lists of one call."""

    at: list[int]  # their places among the group's parameters
    p: list[Tensor]
    lists: dict[str, Any]  # states and masters, by the operator's names
    step: Tensor  # of all of them; a state dict gets one for each
    eager: _Eager | None  # None where a program of torch.compile made the batch

    def rate(self, name: str, value: float) -> Any:
        """A number as a tensor of the batch's device, outside of torch.compile."""
        if torch.compiler.is_compiling() or not self.eager:
            return value
        return self.eager.rate(name, value, self.step.device)


class _Held(NamedTuple):
    """The batches of a group, and all that they were made from."""

    batches: list[Batch]
    params: list[Tensor]
    absent: list[int]  # places of parameters without a gradient
    names: dict[str, str]
    states: list[dict[str, Any]]  # of all parameters of the optimizer
    tensors: list[Any]


class Stepping(torch.optim.Optimizer):
    """A base in front of torch's optimizer, if there is one; subclasses say which operator gets which states.

    _operator:   its name.
    _states:     the operator's name of each state.
    _may_lack:   whether a parameter may have taken steps without these states.
    _instead:    what an error about sparse gradients recommends.
    """

    _operator: ClassVar[str]
    _states: ClassVar[dict[str, str]]
    _may_lack: ClassVar[bool] = False
    _instead: ClassVar[str] = ""
    _step_supports_amp_scaling = True  # GradScaler sets grad_scale and found_inf during a step

    def _attributes(self, group: dict[str, Any]) -> dict[str, Any]:
        """The operator's attributes."""
        raise NotImplementedError

    def _names(self, group: dict[str, Any]) -> dict[str, str]:
        """Those of _states that the group needs."""
        return self._states

    def _first(
        self, name: str, p: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> Tensor | None:
        """A state before the first step, where it is not zeros."""
        return None

    def _numbers(self, batch: Batch, group: dict[str, Any], lr: Any) -> dict[str, Any]:
        """The operator's arguments that are numbers on a device."""
        return {"lr": lr, "step": batch.step}

    def _shared(self, inv_scale: Tensor | None) -> dict[str, Tensor]:
        """The operator's arguments that are of all parameters of a step."""
        return {}

    def _begin(
        self, set_grad_none: bool, master_weights: bool, state_dtype: torch.dtype | None,
        **refused: Any,
    ) -> None:  # fmt: skip
        """Before torch's constructor."""
        self._refuse(refused)
        if state_dtype not in (None, *_DTYPES[:3]):
            raise TypeError(
                f"{self._name}: state_dtype is {state_dtype}, expected one of 32 or 16 bits"
            )
        self.set_grad_none, self.master_weights = set_grad_none, master_weights
        self.state_dtype = state_dtype
        self._held: dict[int, _Held] = {}

    def _default(self, **options: Any) -> None:
        """Options of groups that torch's constructor does not take, after it."""
        self.defaults.update(options)
        for group in self.param_groups:
            for name, value in options.items():
                group.setdefault(name, value)

    def _refuse_tensors(self, **attributes: Any) -> None:
        for name, value in attributes.items():
            if any(isinstance(one, Tensor) for one in (value if name == "betas" else [value])):
                kind = (
                    "are attributes, expected floats"
                    if name == "betas"
                    else "is an attribute, expected a float"
                )
                raise TypeError(f"{self._name}: {name} {kind}, not a tensor")

    def _refuse_rates(self, lr: Any, betas: tuple[float, float], eps: float) -> None:
        """As torch.optim.Adam does, for optimizers that torch has not."""
        self._refuse_tensors(betas=betas)
        if not lr >= 0.0:
            raise ValueError(f"Invalid learning rate: {lr}")
        if not eps >= 0.0:
            raise ValueError(f"Invalid epsilon value: {eps}")
        for at, beta in enumerate(betas):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"Invalid beta parameter at index {at}: {beta}")

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _refuse(self, options: dict[str, Any]) -> None:
        self._refuse_amsgrad(options)
        for name in ("foreach", "differentiable"):
            if options.get(name):
                raise RuntimeError(f"{self._name} does not support `{name}`")

    def _refuse_amsgrad(self, options: dict[str, Any]) -> None:
        if options.get("amsgrad"):
            raise RuntimeError(f"{self._name} does not support the AMSGrad variant.")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch.optim's; refuses what the constructor does."""
        self._refuse(param_group)
        super().add_param_group(param_group)

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Drop the gradients, or fill them with zeros: as set_grad_none says where nothing is given."""
        super().zero_grad(self.set_grad_none if set_to_none is None else set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of all parameters with gradients. Returns what closure() does, which is called first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._step_all(getattr(self, "grad_scale", None), getattr(self, "found_inf", None))
        return loss

    def _step_all(self, grad_scale: Tensor | None, found_inf: Tensor | None) -> None:
        inv_scale = None if grad_scale is None else grad_scale.double().reciprocal().float()
        shared = self._shared(inv_scale)
        every = [[p.grad for p in group["params"]] for group in self.param_groups]
        self._hold_all(every)
        for number, (group, grads) in enumerate(zip(self.param_groups, every)):
            for batch in self._held[number].batches:
                given = grads if len(batch.at) == len(grads) else [grads[at] for at in batch.at]
                flags = [_on(value, batch.step.device) for value in (inv_scale, found_inf)]
                others = {name: _on(value, batch.step.device) for name, value in shared.items()}
                self._step_batch(batch, given, group, others, *flags)

    def _hold_all(self, grads: list[list[Any]]) -> None:
        """Makes batches of groups that have none or where something came, went or was exchanged."""
        made = False
        for number, (group, given) in enumerate(zip(self.param_groups, grads)):
            absent = [at for at, grad in enumerate(given) if grad is None]
            held = self._held.get(number)
            if held is None or not self._holds(held, group, absent):
                self._held[number] = self._hold(group, given, absent)
                made = True
        if made:
            self._keep()

    def _step_batch(
        self, batch: Batch, grads: list[Any], group: dict[str, Any], shared: dict[str, Any],
        inv_scale: Tensor | None, found_inf: Tensor | None,
    ) -> None:  # fmt: skip
        done = 1 if found_inf is None else (found_inf == 0).float().reshape(())
        batch.step.add_(done)
        lr, device = group["lr"], batch.step.device
        if isinstance(lr, Tensor):  # one of the CPU is read without waiting
            lr = float(lr) if lr.device.type == "cpu" != device.type else lr.float().to(device)
        operator = getattr(anyop, self._operator)
        if not torch.compiler.is_compiling() and batch.eager:
            operator = batch.eager.call
        lr = lr if isinstance(lr, Tensor) else batch.rate("lr", lr)

        def call(grads: list[Tensor]) -> None:
            operator(
                batch.p, grads, **batch.lists, **self._numbers(batch, group, lr), **shared,
                found_inf=found_inf, inv_scale=inv_scale, **self._attributes(group),
            )  # fmt: skip

        if torch.compiler.is_compiling():  # a program raises too late for what follows
            grads = [laid_as(p, grad) for p, grad in zip(batch.p, grads)]
        try:
            try:
                call(grads)
            except ValueError:  # and nothing is written: gradients may lie in another order
                laid = [laid_as(p, grad) for p, grad in zip(batch.p, grads)]
                if all(map(is_, laid, grads)):
                    raise
                call(laid)
        except Exception as error:
            batch.step.sub_(done)
            self._refuse_sparse(grads, error)
            raise

    def _refuse_dtype(self, p: Tensor) -> None:
        if p.dtype not in _DTYPES:
            raise RuntimeError(f"{self._name} does not support parameters of {p.dtype}")

    def _refuse_sparse(self, grads: Sequence[Any], error: Exception | None = None) -> None:
        if any(grad.layout is not torch.strided for grad in grads):
            raise RuntimeError(
                f"{self._name} does not support sparse gradients{self._instead}"
            ) from error

    def _holds(self, held: _Held, group: dict[str, Any], absent: list[int]) -> bool:
        """Whether nothing but gradients came, went or was exchanged since the batches were made."""
        return (
            held.absent == absent
            and _same(held.params, group["params"])
            and held.names == self._names(group)
            and _same(held.states, self.state.values())
            and _same(held.tensors, _tensors(held.states))
        )

    def _keep(self) -> None:
        """All batches stay as they are: what came or was exchanged is this step's."""
        states = list(self.state.values())
        tensors = _tensors(states)
        for held in self._held.values():
            held.states[:], held.tensors[:] = states, tensors

    def _hold(self, group: dict[str, Any], grads: Sequence[Any], absent: list[int]) -> _Held:
        """The batches of a group; makes what its parameters lack of states."""
        steps: dict[Any, Tensor] = {}  # those that are new or were read, by device and value
        places: dict[Any, list[int]] = {}
        params, names, zeros = list(group["params"]), self._names(group), []
        for at, (p, grad) in enumerate(zip(params, grads)):
            if grad is None:
                continue
            state = self.state[p]
            zeros += self._complete(state, p, names, group)
            step = state["step"]
            if p.device.type == "cpu" or not isinstance(step, Tensor) or step.device != p.device:
                key = (p.device, float(step))
                if key not in steps:
                    steps[key] = torch.full((), key[1], dtype=torch.float32, device=p.device)
                step = state["step"] = steps[key]
            wide = p.dtype is torch.float64
            kind = (p.device, wide, "master_param" in state, id(step))
            places.setdefault(kind, []).append(at)
        _zero(zeros)
        owners = Counter(id(state.get("step")) for state in self.state.values())
        batches = []
        for (_, _, mastered, step_id), ats in places.items():
            states = [self.state[params[at]] for at in ats]
            step = states[0]["step"]
            if owners[step_id] > len(ats):  # others keep it, who take no step now
                step = step.clone()
                for state in states:
                    state["step"] = step
            lists = self._lists(states, {**names, "master_param": "master"} if mastered else names)
            eager = None if torch.compiler.is_compiling() else _Eager(self._operator)
            batches.append(Batch(ats, [params[at] for at in ats], lists, step, eager))
        every = list(self.state.values())
        return _Held(batches, params, absent, names, every, _tensors(every))

    def _lists(self, states: list[dict[str, Any]], names: dict[str, str]) -> dict[str, Any]:
        return {called: [state[name] for state in states] for name, called in names.items()}

    def _complete(
        self, state: dict[str, Any], p: Tensor, names: dict[str, str], group: dict[str, Any]
    ) -> list[Tensor]:
        """Makes the states that are missing; those that are still to be zeroed."""
        self._refuse_dtype(p)
        state.setdefault("step", 0.0)
        zeros = []
        for name in names:
            if name not in state:
                state[name] = self._first(name, p, state, group)
                if state[name] is None:
                    state[name] = torch.empty_like(p, dtype=self._state_dtype(p))
                    zeros.append(state[name])
        if self._has_master(p) and "master_param" not in state:
            state["master_param"] = p.detach().to(torch.float32)
        return zeros

    def _has_master(self, p: Tensor) -> bool:
        return self.master_weights and p.dtype in _HALVES

    def _state_dtype(self, p: Tensor) -> torch.dtype:
        if p.dtype is torch.float64:
            return p.dtype
        return self.state_dtype or (torch.float32 if self._has_master(p) else p.dtype)

    def state_dict(self) -> dict[str, Any]:
        """torch.optim's; with master_weights a "master_param" for each parameter. Waits to read the steps."""
        found: dict[str, Any] = super().state_dict()
        capturable = {at: g.get("capturable") for g in found["param_groups"] for at in g["params"]}
        read: dict[int, Tensor] = {}
        for at, state in list(found["state"].items()):
            step = state.get("step", 0.0)
            if not isinstance(step, Tensor):
                step = torch.tensor(step)
            elif not capturable.get(at):
                if id(step) not in read:
                    read[id(step)] = step.cpu()
                step = read[id(step)]
            found["state"][at] = self._saved({**state, "step": step.clone()})
            if not found["state"][at]:
                del found["state"][at]
        return found

    def _with_steps(self, found: dict[str, Any]) -> dict[str, Any]:
        """A state dict whose groups have a step each too, as Apex's."""
        for group in found["param_groups"]:
            states = [found["state"][at] for at in group["params"] if at in found["state"]]
            if states:
                group["step"] = int(max(float(state["step"]) for state in states))
        return found

    def _saved(self, state: dict[str, Any]) -> dict[str, Any]:
        """What a state dict has of a state."""
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over torch.optim's state dict, Apex's or this one's; states keep their precision.

        Raises  ValueError that names the parameter where a state is another optimizer's or of another shape.
        """
        loaded: dict[str, Any] = {}

        def look(_: Any, found: dict[str, Any]) -> dict[str, Any]:  # after the users' hooks
            loaded.update(found, state=self._checked(found))
            return loaded

        hook = self.register_load_state_dict_pre_hook(look)
        try:
            super().load_state_dict(state_dict)
        finally:
            hook.remove()
        for group, saved in zip(self.param_groups, loaded["param_groups"]):
            group.pop("step", None)
            for p, at in zip(group["params"], saved["params"]):
                if loaded["state"].get(at):
                    self.state[p] = self._taken(p, loaded["state"][at])

    def _checked(self, found: dict[str, Any]) -> dict[Any, Any]:
        """The states of a state dict, with a step each."""
        states = dict(found["state"])
        for group, saved in zip(self.param_groups, found["param_groups"]):
            self._refuse_amsgrad(saved)
            names = group.get("param_names", saved["params"])
            for p, at, called in zip(group["params"], saved["params"], names):
                state = found["state"].get(at)
                if not state:
                    continue
                self._check(p, called, state)
                states[at] = {"step": self._step_of(state, saved), **state}
        return states

    def _step_of(self, state: dict[str, Any], group: dict[str, Any]) -> Any:
        """The steps that were taken, where a saved state does not say; Apex has one for a group."""
        return group.get("step", 0.0)

    def _check(self, p: Tensor, called: Any, state: dict[str, Any]) -> None:
        may_lack = self._may_lack and {*state} <= {*self._states, "step", *_OF_SOME}
        for name in (*self._states, *(name for name in _OF_SOME if name in state)):
            if state.get(name) is None:
                if may_lack:
                    continue
                raise ValueError(
                    f"{self._name}: the state of parameter {called} has no {name}, but "
                    f"{', '.join(map(str, state))}: it is another optimizer's"
                )
            if state[name].shape != self._shape(name, p):
                raise ValueError(
                    f"{self._name}: {name} of parameter {called} has shape {tuple(state[name].shape)}, "
                    f"expected {tuple(self._shape(name, p))}"
                )

    def _shape(self, name: str, p: Tensor) -> torch.Size:
        """Of a state."""
        return p.shape

    def _taken(self, p: Tensor, saved: dict[str, Any]) -> dict[str, Any]:
        state = {**saved, "step": float(saved["step"])}
        for name in self._states:
            if state.get(name) is None:
                state.pop(name, None)
            else:
                state[name] = laid_as(p, saved[name].to(p.device, self._state_dtype(p)))
        if "master_param" in saved:
            del state["master_param"]
            if self._has_master(p):
                master = saved["master_param"].to(p.device, torch.float32)
                state["master_param"] = laid_as(p, master)
        return state

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), **{name: getattr(self, name) for name in _OWN}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._held = {}
        for group in self.param_groups:  # a loaded one has torch's options
            for name, value in self.defaults.items():
                group.setdefault(name, value)


def laid_as(p: Tensor, other: Tensor) -> Tensor:
    """That tensor with the strides of p; itself where it has them."""
    if other.layout is not torch.strided or other.stride() == p.stride() or other.shape != p.shape:
        return other
    return torch.empty_like(p, dtype=other.dtype).copy_(other)


def _same(held: Sequence[Any], now: Any) -> bool:
    return len(held) == len(now) and all(map(is_, held, now))


def _tensors(states: list[dict[str, Any]]) -> list[Any]:
    """What the states hold, in turn."""
    return list(chain.from_iterable(state.values() for state in states))


def _on(value: Tensor | None, device: torch.device) -> Tensor | None:
    """Without waiting, but for what the CPU reads."""
    return None if value is None else value.to(device, non_blocking=device.type != "cpu")


def _zero(tensors: list[Tensor]) -> None:
    """By few launches: a stream's queue holds about a thousand, and who adds more waits for the device."""
    kinds: dict[Any, list[Tensor]] = {}
    for one in tensors:
        kinds.setdefault((one.device, one.dtype), []).append(one)
    for each in kinds.values():
        torch._foreach_zero_(each)
