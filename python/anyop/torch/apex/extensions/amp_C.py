# SPDX-License-Identifier: Apache-2.0
"""amp_C: operators over lists of tensors, raw.

chunk_size changes nothing. noop_flag, int32 of shape (1), is set and read as by Apex's functions: see each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import anyop
from anyop.torch.apex.calls import check

Lists = Sequence[Sequence[Tensor]]


@torch.no_grad()
def multi_tensor_scale(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, scale: float | Tensor
) -> None:
    """Lists x, out: out = x * scale. Sets noop_flag where x is infinite or NaN, and writes all the same."""
    x, out = _lists(tensor_lists, 2)
    if x:
        anyop.multi_tensor_scale(x, out, _number(scale, x), noop_flag)


@torch.no_grad()
def multi_tensor_axpby(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, a: float, b: float, arg_to_check: int
) -> None:
    """Lists x, y, out: out = a * x + b * y. Sets noop_flag where what is checked (0 x, 1 y, -1 both) is not finite."""
    x, y, out = _lists(tensor_lists, 3)
    if x:
        anyop.multi_tensor_axpby(
            x, y, out, _number(a, x), _number(b, x), noop_flag, check=arg_to_check
        )


@torch.no_grad()
def multi_tensor_l2norm(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, per_tensor_python: bool | None = None
) -> tuple[Tensor, Tensor]:
    """List x: the norm of all, of shape (1), and of each, or nothing. Sets noop_flag where the first is not finite."""
    return _norms(noop_flag, _lists(tensor_lists, 1)[0], None, per_tensor_python)


@torch.no_grad()
def multi_tensor_l2norm_mp(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, per_tensor_python: bool | None = None
) -> tuple[Tensor, Tensor]:
    """multi_tensor_l2norm; norms are 0 where noop_flag is set already."""
    skipped = noop_flag != 0
    found = _norms(noop_flag, _lists(tensor_lists, 1)[0], None, per_tensor_python)
    return found[0].masked_fill(skipped, 0), found[1].masked_fill(skipped, 0)


@torch.no_grad()
def multi_tensor_l2norm_scale(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, scale: float,
    per_tensor_python: bool | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Lists x, out: out = x * scale, and the norms of x * scale. Sets noop_flag where they are not finite."""
    x, out = _lists(tensor_lists, 2)
    if x:
        scale = _number(scale, x)
        found = _norms(noop_flag, x, scale, per_tensor_python)
        anyop.multi_tensor_scale(x, out, scale)
        return found
    return _norms(noop_flag, x, None, per_tensor_python)


@torch.no_grad()
def multi_tensor_unscale_l2norm(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, inv_scale: Tensor,
    per_tensor_python: bool | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """List x: the norms of x * inv_scale, which is not written. Sets noop_flag where they are not finite."""
    return _norms(noop_flag, _lists(tensor_lists, 1)[0], inv_scale, per_tensor_python)


@torch.no_grad()
def multi_tensor_adam(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, lr: float, beta1: float, beta2: float,
    epsilon: float, step: int, mode: int, bias_correction: int, weight_decay: float,
) -> None:  # fmt: skip
    """Lists g, p, m, v: a step of Adam (mode 0: L2, 1: AdamW). noop_flag is not looked at."""
    g, p, m, v = _lists(tensor_lists, 4)
    rates = beta1, beta2, epsilon, mode, bias_correction, weight_decay
    _adam(p, g, m, v, lr, step, None, None, None, *rates)


@torch.no_grad()
def multi_tensor_adam_capturable(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, lr: Tensor, beta1: float, beta2: float,
    epsilon: float, step: Tensor, mode: int, bias_correction: int, weight_decay: float, inv_scale: Tensor,
) -> None:  # fmt: skip
    """Lists g, p, m, v: multi_tensor_adam of g * inv_scale; g stays as it is. Nothing where noop_flag is set."""
    g, p, m, v = _lists(tensor_lists, 4)
    rates = beta1, beta2, epsilon, mode, bias_correction, weight_decay
    _adam(p, g, m, v, lr, step.float(), None, noop_flag, inv_scale, *rates)


@torch.no_grad()
def multi_tensor_adam_capturable_master(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, lr: Tensor, beta1: float, beta2: float,
    epsilon: float, step: Tensor, mode: int, bias_correction: int, weight_decay: float, inv_scale: Tensor,
) -> None:  # fmt: skip
    """Lists g, p, m, v, master: multi_tensor_adam_capturable of master, to which p is rounded."""
    g, p, m, v, master = _lists(tensor_lists, 5)
    rates = beta1, beta2, epsilon, mode, bias_correction, weight_decay
    _adam(p, g, m, v, lr, step.float(), master, noop_flag, inv_scale, *rates)


def _adam(
    p: list[Tensor], g: list[Tensor], m: list[Tensor], v: list[Tensor], lr: Any, step: Any, master: Any,
    found_inf: Any, inv_scale: Any, beta1: float, beta2: float, eps: float, mode: int, correct: int,
    decay: float,
) -> None:  # fmt: skip
    if p:
        anyop.multi_tensor_adam(
            p, g, m, v, lr, step, master, found_inf=found_inf, inv_scale=inv_scale, beta1=beta1, beta2=beta2,
            eps=eps, weight_decay=decay, decoupled=mode == 1, bias_correction=correct == 1,
        )  # fmt: skip


@torch.no_grad()
def multi_tensor_sgd(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, wd: float, momentum: float, dampening: float,
    lr: float, nesterov: bool, first_run: bool, wd_after_momentum: bool, scale: float,
) -> None:  # fmt: skip
    """Lists g, p, momentum and, of 16 bits, copies of p: SGD with g * scale. Nothing where noop_flag is set."""
    g, p, buffer, *copies = _lists(tensor_lists, 4 if len(tensor_lists) == 4 else 3)
    if not p:
        return
    p, master = (copies[0], p) if copies else (p, None)
    anyop.multi_tensor_sgd(
        p, _gradients(g, p), lr, buffer if momentum else None, 1.0 if first_run else 2.0, master, found_inf=noop_flag,
        inv_scale=scale, momentum=momentum, dampening=dampening, weight_decay=wd, nesterov=nesterov,
        wd_after_momentum=wd_after_momentum,
    )  # fmt: skip


@torch.no_grad()
def multi_tensor_adagrad(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, lr: float, epsilon: float, mode: int,
    weight_decay: float,
) -> None:  # fmt: skip
    """Lists g, p, sum: a step of Adagrad (mode 0: L2, 1: decoupled decay). noop_flag is not looked at."""
    g, p, squares = _lists(tensor_lists, 3)
    if p:
        anyop.multi_tensor_adagrad(
            p, g, squares, lr, eps=epsilon, weight_decay=weight_decay, decoupled=mode == 1
        )


@torch.no_grad()
def multi_tensor_lamb_mp(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, lr: Tensor, beta1: float, beta2: float,
    epsilon: float, step: Tensor, bias_correction: int, weight_decay: float, grad_averaging: int, mode: int,
    global_grad_norm: Tensor, max_grad_norm: Tensor, use_nvlamb_python: bool | None, found_inf: Tensor,
    inv_scale: Tensor,
) -> None:  # fmt: skip
    """Lists g, p, m, v and, of 16 bits, copies of p: LAMB of g * inv_scale. Nothing where noop_flag is set.

    Both norms are of scaled gradients. found_inf is not looked at, as by Apex.
    """
    g, p, m, v, *copies = _lists(tensor_lists, 5 if len(tensor_lists) == 5 else 4)
    if p:
        update = [torch.empty_like(x, dtype=torch.promote_types(x.dtype, torch.float32)) for x in p]
        p, master = (copies[0], p) if copies else (p, None)
        anyop.multi_tensor_lamb(
            p, g, m, v, update, lr.float(), step.float(), global_grad_norm, max_grad_norm, master,
            found_inf=noop_flag, inv_scale=inv_scale, beta1=beta1, beta2=beta2, eps=epsilon,
            weight_decay=weight_decay, decoupled=mode == 1, bias_correction=bias_correction == 1,
            grad_averaging=grad_averaging == 1, use_nvlamb=bool(use_nvlamb_python),
        )  # fmt: skip


@torch.no_grad()
def multi_tensor_novograd(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, grad_norms: Tensor, lr: float, beta1: float,
    beta2: float, epsilon: float, step: int, bias_correction: int, weight_decay: float, grad_averaging: int,
    mode: int, norm_type: int,
) -> None:  # fmt: skip
    """Lists g, p, m: NovoGrad (mode 0: reg_inside_moment); writes grad_norms. noop_flag is not looked at."""
    g, p, m = _lists(tensor_lists, 3)
    if p:
        anyop.multi_tensor_novograd(
            p, g, m, grad_norms, lr, float(step), beta1=beta1, beta2=beta2, eps=epsilon,
            weight_decay=weight_decay, bias_correction=bias_correction == 1,
            grad_averaging=grad_averaging == 1, reg_inside_moment=mode == 0, norm_type=norm_type,
        )  # fmt: skip


@torch.no_grad()
def multi_tensor_lamb(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, lr: float, beta1: float, beta2: float,
    epsilon: float, step: int, bias_correction: int, weight_decay: float, grad_averaging: int, mode: int,
    global_grad_norm: float | Tensor, max_grad_norm: float,
    use_nvlamb_python: bool | None = None,
) -> None:  # fmt: skip
    """Lists g, p, m, v: a step of LAMB (mode 0: L2, 1: decoupled decay); g is kept. noop_flag is not looked at."""
    g, p, m, v = _lists(tensor_lists, 4)
    if p:
        update = [torch.empty_like(x, dtype=torch.promote_types(x.dtype, torch.float32)) for x in p]
        anyop.multi_tensor_lamb(
            p, g, m, v, update, lr, float(step), _number(global_grad_norm, p), max_grad_norm or None,
            beta1=beta1, beta2=beta2, eps=epsilon, weight_decay=weight_decay, decoupled=mode == 1,
            bias_correction=bias_correction == 1, grad_averaging=grad_averaging == 1,
            use_nvlamb=bool(use_nvlamb_python),
        )  # fmt: skip


@torch.no_grad()
def multi_tensor_lamb_stage1_cuda(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, per_tensor_decay: Tensor, step: int,
    beta1: float, beta2: float, epsilon: float, global_grad_norm: float | Tensor, max_global_grad_norm: float,
) -> None:  # fmt: skip
    """Lists g, p, m, v, update: what step + 1 of LAMB subtracts, before norms. noop_flag is not looked at.

    per_tensor_decay: (N,), of N tensors; decoupled.
    """
    g, p, m, v, update = _lists(tensor_lists, 5)
    count = per_tensor_decay.numel()
    check(count == len(p), f"expected {len(p)} decays, one for each tensor, found {count}")
    if p:
        wide = _updates(update, p)
        anyop.multi_tensor_lamb_stage1(
            p, _gradients(g, p), m, v, wide, float(step + 1), _number(global_grad_norm, p),
            max_global_grad_norm or None, beta1=beta1, beta2=beta2, eps=epsilon, weight_decay=0.0,
        )  # fmt: skip
        decays = per_tensor_decay.to(p[0].device).reshape(-1).unbind()
        for out, made, q, decay in zip(update, wide, p, decays):
            made.addcmul_(q, decay)
            if made is not out:
                out.copy_(made)


@torch.no_grad()
def multi_tensor_lamb_stage2_cuda(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, per_tensor_param_norm: Tensor,
    per_tensor_update_norm: Tensor, lr: float, weight_decay: float, use_nvlamb_python: bool | None = None,
) -> None:  # fmt: skip
    """Lists p, update: subtracts lr * update, as large as p by the norms. noop_flag is not looked at."""
    p, update = _lists(tensor_lists, 2)
    if p:
        wide = _updates(update, p)
        for made, given in zip(wide, update):
            if made is not given:
                made.copy_(given)
        anyop.multi_tensor_lamb_stage2(
            p, wide, per_tensor_param_norm, per_tensor_update_norm, lr, weight_decay=weight_decay,
            use_nvlamb=bool(use_nvlamb_python),
        )  # fmt: skip


@torch.no_grad()
def update_scale_hysteresis(
    current_scale: Tensor, growth_tracker: Tensor, hysteresis_tracker: Tensor, found_inf: Tensor,
    growth_factor: float, backoff_factor: float, growth_interval: int, hysteresis: int,
) -> Tensor:  # fmt: skip
    """Moves the scale of a loss, which is returned: down only after `hysteresis` steps that met an infinity."""
    anyop.update_scale_hysteresis(
        current_scale, growth_tracker, hysteresis_tracker, found_inf, growth_factor, backoff_factor,
        growth_interval, hysteresis,
    )  # fmt: skip
    return current_scale


def _gradients(g: list[Tensor], p: list[Tensor]) -> list[Tensor]:
    """In a dtype that steps read: the parameter's or float32."""
    return [x if x.dtype in (q.dtype, torch.float32) else x.to(q.dtype) for x, q in zip(g, p)]


def _updates(update: list[Tensor], p: list[Tensor]) -> list[Tensor]:
    """Those that are of the dtype the stages of LAMB have, else memory for them."""
    dtypes = [torch.promote_types(q.dtype, torch.float32) for q in p]
    return [u if u.dtype is d else torch.empty_like(u, dtype=d) for u, d in zip(update, dtypes)]


def _norms(
    noop_flag: Tensor, x: list[Tensor], scale: Tensor | None, per_tensor: bool | None
) -> tuple[Tensor, Tensor]:
    if not x:
        return torch.zeros(1, device=noop_flag.device), torch.empty(0, device=noop_flag.device)
    total, each = anyop.multi_tensor_l2norm(x, scale)
    assert each is not None  # which was asked for
    noop_flag.masked_fill_(~total.isfinite(), 1)
    return total.reshape(1), each if per_tensor else each.new_empty(0)


def _lists(tensor_lists: Lists, count: int) -> list[list[Tensor]]:
    """The lists; tensors that have as many elements as those of the first list, in another shape, are seen flat."""
    check(
        len(tensor_lists) == count, f"expected {count} lists of tensors, found {len(tensor_lists)}"
    )
    lists = [list(tensors) for tensors in tensor_lists]
    check(len({len(tensors) for tensors in lists}) == 1, "expected lists of one length")
    for at, row in enumerate(zip(*lists)):
        if any(t.shape != row[0].shape for t in row[1:]):
            for tensors, t in zip(lists, row):
                tensors[at] = t.view(-1)
    return lists


def _number(value: float | Tensor, like: Sequence[Tensor]) -> Any:
    """A tensor where like is, float32: callers give Apex's clip_grad's on the device."""
    return value.float().to(like[0].device) if isinstance(value, Tensor) else value
