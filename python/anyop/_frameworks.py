# SPDX-License-Identifier: Apache-2.0
"""Which framework the name torch means: PyTorch, or Paddle behind paddle.compat.enable_torch_proxy()."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

VARIABLE = "ANYOP_FRAMEWORK"


def real_torch() -> ModuleType | None:
    """PyTorch where it is loaded, also while the proxy hides it."""
    proxy = sys.modules.get("paddle.compat.proxy")
    hidden = getattr(proxy, "TORCH_MODULES_CACHE", {}).get("torch")
    found = sys.modules.get("torch") if hidden is None else hidden
    return None if found is None or _is_paddle(found) else found


def no_proxy() -> AbstractContextManager:
    """Inside, torch is PyTorch."""
    compat: Any = sys.modules.get("paddle.compat")
    if hasattr(compat, "use_torch_proxy_guard"):
        return compat.use_torch_proxy_guard(enable=False, silent=True)
    return nullcontext()


def import_real_torch() -> ModuleType:
    """PyTorch, imported past the proxy where it is not loaded yet. Raises ImportError."""
    with no_proxy():
        return real_torch() or importlib.import_module("torch")


def torch_is_paddle() -> bool:
    """Whether `import torch` in the module that asks gives Paddle; ANYOP_FRAMEWORK=torch or paddle forces it.

    Raises ImportError where the variable has another value.
    """
    forced = os.environ.get(VARIABLE, "")
    if forced not in ("", "torch", "paddle"):
        raise ImportError(f"{VARIABLE} is '{forced}', expected torch or paddle")
    if forced or "paddle" not in sys.modules:
        return forced == "paddle"
    try:
        return _is_paddle(importlib.import_module("torch"))
    except ImportError:
        return False


def hide_from_proxy(package: str) -> None:
    """Modules of this package that are imported from now on import PyTorch, whatever the proxy does to others."""
    compat: Any = sys.modules.get("paddle.compat")
    if hasattr(compat, "extend_torch_proxy_blocked_modules"):
        compat.extend_torch_proxy_blocked_modules({package})


def of_tensor(tensor: Any) -> ModuleType:
    """PyTorch or Paddle, by what the tensor is; TypeError for all else."""
    torch, paddle = real_torch(), sys.modules.get("paddle")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return torch
    if paddle is None or not paddle.is_tensor(tensor):
        raise TypeError(f"{type(tensor).__qualname__} is no tensor of PyTorch or Paddle")
    return paddle


def samples(torch: ModuleType, count: int) -> list[Any]:
    """Tensors and, at odd places, parameters that no mode of this thread sees: a trace of the call would keep them."""
    modes = torch._C._len_torch_dispatch_stack() + (
        torch._ops._len_torch_dispatch_stack_pre_dispatch()
    )
    with no_proxy(), torch._C.DisableTorchFunction():
        disabled = torch.utils._python_dispatch._disable_current_modes
        with disabled() if modes else nullcontext():  # it imports half of torch
            found = [torch.empty(size, device="cpu") for size in range(1, count + 1)]
            return [torch.nn.Parameter(x) if at % 2 else x for at, x in enumerate(found)]


def _is_paddle(module: Any) -> bool:
    tensor = getattr(sys.modules.get("paddle"), "Tensor", None)
    return tensor is not None and module.__dict__.get("Tensor") is tensor
