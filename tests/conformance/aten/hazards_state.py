# SPDX-License-Identifier: Apache-2.0
"""The host thread's state: never changed by a call from NumPy, and of no matter to it."""

from __future__ import annotations

import contextlib
import random

import anyop.aten as aten
import numpy as np
import torch
from hazards_case import CLEAR, case
from numpy.testing import assert_array_equal
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def state() -> dict:
    """What a thread of torch's user can see and set."""
    held = {
        "gradients": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "anomaly": torch.is_anomaly_enabled(),
        "denormals": float(np.float32(1e-40) * np.float32(1)),
        "views in forward": torch._C._is_fwd_grad_enabled(),
        "modes": (torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()),
        "functorch": torch._C._functorch.peek_interpreter_stack() is None,
        "tracing": torch._C._get_tracing_state() is None,
        "torch's random numbers": random_state(),
        "NumPy's random numbers": np.random.get_state()[1].tolist(),
        "Python's random numbers": random.getstate(),
    }
    keys = ("Autograd", "ADInplaceOrView", "BackendSelect", "AutocastCPU", "Python", "CPU")
    for key in keys:
        found = getattr(torch._C.DispatchKey, key, None)
        if found is not None and hasattr(torch._C, "_dispatch_tls_is_dispatch_key_excluded"):
            held[f"{key} excluded"] = torch._C._dispatch_tls_is_dispatch_key_excluded(found)
            held[f"{key} included"] = torch._C._dispatch_tls_is_dispatch_key_included(found)
    return held


def random_state() -> bytes:
    """Of torch's generator, whatever modes the thread has."""
    plain = temporarily_clear_interpreter_stack()
    with torch._C.DisableTorchFunction(), _disable_current_modes(), plain:
        return torch.default_generator.get_state().numpy().tobytes()


def right_calls() -> None:
    """Varied calls, each judged."""
    with np.errstate(all="ignore"):
        assert_array_equal(aten.add(X, X, alpha=2), 3 * X)
        assert_array_equal(aten.matmul(X, X.T), X @ X.T)
        assert_array_equal(aten.t(X), X.T)
        assert_array_equal(aten.cat([X, X], 1), np.concatenate([X, X], 1))
        assert_array_equal(aten.ones([2], dtype="float32"), [1, 1])
        written = X.copy()
        assert aten.mul_(written, 2) is written
        assert_array_equal(written, 2 * X)
        np.testing.assert_allclose(aten.softmax(X, 1), np.exp(X) / np.exp(X).sum(1)[:, None], 1e-5)
        assert_array_equal(aten.max(X, 1)[1], [2, 2])
        assert_array_equal(aten.rand([3], generator=3), aten.rand([3], generator=3))
        linear = aten.linear(X, X)
        assert linear.dtype == np.float32 and type(linear) is np.ndarray
        assert_array_equal(linear, X @ X.T)


def wrong_calls() -> None:
    for call in (
        lambda: aten.mm(X, X),
        lambda: aten.select(X, 7, 0),
        lambda: aten.add(X, "x"),
        lambda: aten.add(X, 1, out=np.zeros(2, np.float32)),
        lambda: aten.empty([1 << 60]),
        lambda: aten.linalg_inv_ex(X),
        lambda: aten.nonexistent(X),
        lambda: aten.rand([2], generator="x"),
        lambda: aten.to_sparse(X),
    ):
        try:
            call()
        except (*CLEAR, AttributeError):
            continue
        raise AssertionError("an error was expected")


def unchanged() -> None:
    """Right and wrong calls, and the state before and after."""
    right_calls()  # opens torch's libraries and makes its threads, once
    before = state()
    for calls in (right_calls, wrong_calls):
        calls()
        after = state()
        changed = {key: (before[key], after[key]) for key in before if before[key] != after[key]}
        assert not changed, f"changed by {calls.__name__}: {changed!r:.400}"


@contextlib.contextmanager
def setting(put, value, old):
    put(value)
    try:
        yield
    finally:
        put(old)


class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Dispatches(TorchDispatchMode):
    """Would see what a call from NumPy runs, if the thread's modes mattered to it."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


def fake_mode():
    from torch._subclasses import FakeTensorMode

    return FakeTensorMode()


HOSTS = {
    "plain": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "fake_tensors": fake_mode,
    "meta_device": lambda: torch.device("meta"),
    "a_function_mode": Functions,
    "forward_mode": torch.autograd.forward_ad.dual_level,
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "saved_tensors_hooks": lambda: torch.autograd.graph.saved_tensors_hooks(id, id),
    "a_profiler": torch.profiler.profile,
    "deterministic": lambda: setting(torch.use_deterministic_algorithms, True, False),
    "float64_by_default": lambda: setting(torch.set_default_dtype, torch.float64, torch.float32),
}


def under(name: str, host) -> None:
    def check() -> None:
        with host():
            unchanged()
        right_calls()

    check.__name__ = f"under_{name}"
    case(check)


for one, host in HOSTS.items():
    under(one, host)


@case
def under_a_dispatch_mode():
    right_calls()
    with Dispatches() as mode:
        right_calls()
        wrong_calls()
        torch.ones(2)
    assert mode.seen == ["aten.ones.default"], mode.seen


@case
def inside_vmap_and_grad():
    seen = []

    def function(x):
        seen.append(1)
        unchanged()
        return (x * float(aten.sum(X))).sum()

    total = float(X.sum())
    assert torch.equal(torch.vmap(function)(torch.ones(2, 3)), torch.tensor([3 * total] * 2))
    assert torch.equal(torch.func.grad(function)(torch.ones(3)), torch.full((3,), total))
    assert len(seen) == 2


@case
def inside_a_custom_gradient():
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            unchanged()
            return x * 2

        @staticmethod
        def backward(context, gradient):
            unchanged()
            return gradient * float(aten.sum(X))

    x = torch.ones(2, requires_grad=True)
    Function.apply(x).sum().backward()
    assert torch.equal(x.grad, torch.full((2,), float(X.sum())))


@case
def inside_a_traced_function():
    def function(x):
        unchanged_total = float(aten.sum(X))
        right_calls()
        return x * unchanged_total

    traced = torch.jit.trace(function, torch.ones(2), check_trace=False)
    assert torch.equal(traced(torch.ones(2)), torch.full((2,), float(X.sum())))
    assert "aten::sum" not in str(traced.graph)


@case
def inside_torch_compile():
    def function(x):
        return x * float(aten.sum(aten.add(X, 1)))

    compiled = torch.compile(function, backend="eager")
    expected = torch.full((2,), float((X + 1).sum()))
    assert torch.equal(compiled(torch.ones(2)), expected)
    assert torch.equal(compiled(torch.ones(2)), expected)


@case
def random_numbers_follow_torchs_seed():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    assert_array_equal(aten.rand([3]), expected.numpy())
