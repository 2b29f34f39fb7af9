# SPDX-License-Identifier: Apache-2.0
"""anyop in PyTorch: ``import anyop.torch`` makes every operator one of torch's own, as ``torch.ops.anyop.<op>``.

Gradients, torch.compile, torch.export, torch.func, autocast and the flop counter work on ``anyop.<op>`` and
``torch.ops.anyop.<op>`` alike. Needs torch 2.9 or newer.
"""

import importlib
from typing import TYPE_CHECKING, Any

from anyop import _frameworks

OLDEST = (2, 9)
# Imported when they are first asked for, and not by this package: a thread that imports anyop.torch.nn itself holds its
# lock while it waits for the package (tests/border/import_locks_test.py).
_LATER = ("apex", "attention", "experts", "nn", "optim")
_FUNCTIONS = {"overlay": "overlaying", "replace": "replacing"}  # likewise, and where they are
# Imported by users alone, by their whole names.
_PARTS = ("deep_gemm", "device", "flashinfer")


def _import_torch() -> None:
    try:
        torch = _frameworks.import_real_torch()
    except ImportError as error:
        raise ImportError(
            "anyop.torch needs PyTorch, which is not installed: pip install torch "
            "(https://pytorch.org/get-started)"
        ) from error
    found = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if found < OLDEST:
        raise ImportError(
            f"anyop.torch needs torch {OLDEST[0]}.{OLDEST[1]} or newer; this is torch {torch.__version__}"
        )


def _unknown(name: str) -> AttributeError:
    if name in _PARTS:
        return AttributeError(
            f"module {__name__!r} has no attribute {name!r}: import anyop.torch.{name}"
        )
    from anyop._operators import no_attribute

    return no_attribute(__name__, name, [*__all__, *_PARTS])


_is_paddle = _frameworks.torch_is_paddle()
_frameworks.hide_from_proxy(__name__)  # what this package imports from here on is PyTorch's

if _is_paddle:  # what code written for torch gets under Paddle's proxy
    from anyop.paddle import slow_call

    def __getattr__(name: str) -> Any:
        if name in (*_LATER, *_FUNCTIONS, *_PARTS) and name != "flashinfer":
            raise ImportError(
                f"anyop.torch.{name} is for PyTorch, and torch is Paddle here (its torch proxy, or "
                "ANYOP_FRAMEWORK=paddle): call anyop.<op> on Paddle's tensors, as anyop.paddle does; "
                "ANYOP_FRAMEWORK=torch takes PyTorch"
            )
        raise _unknown(name)

    __all__ = ["slow_call"]
else:
    _import_torch()

    from anyop.torch.adapter import install as _install
    from anyop.torch.adapter.dispatch import slow_call  # type: ignore[assignment]

    with _frameworks.no_proxy():  # parts of torch that it imports would stay where Paddle's are
        _install.install_all()

    if TYPE_CHECKING:
        from anyop.torch.overlaying import overlay as overlay
        from anyop.torch.replacing import replace as replace

    def __getattr__(name: str) -> Any:
        if name not in (*_LATER, *_FUNCTIONS):
            raise _unknown(name)
        with _frameworks.no_proxy():  # which may have come since
            module = importlib.import_module(f"anyop.torch.{_FUNCTIONS.get(name, name)}")
        if name not in _FUNCTIONS:
            return module
        return globals().setdefault(name, getattr(module, name))

    __all__ = [*_LATER, *_FUNCTIONS, "slow_call"]


def __dir__() -> list[str]:
    """What users call, without the modules behind it."""
    users = {*__all__, *({"device"} & globals().keys())}
    own = {name for name in globals() if name[:2] == "__" and name != "__getattr__"}
    return sorted((users - {"slow_call"}) | own)
