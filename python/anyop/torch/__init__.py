# SPDX-License-Identifier: Apache-2.0
"""anyop in PyTorch: ``import anyop.torch`` makes every operator one of torch's own, as ``torch.ops.anyop.<op>``.

Gradients, torch.compile, torch.export, torch.func, autocast and the flop counter work on ``anyop.<op>`` and
``torch.ops.anyop.<op>`` alike. Needs torch 2.9 or newer.
"""

OLDEST = (2, 9)


def _import_torch() -> None:
    try:
        import torch
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


_import_torch()

from anyop.torch import install as _install  # noqa: E402
from anyop.torch.dispatch import slow_call  # noqa: E402

_install.install_all()

from anyop.torch import nn  # noqa: E402
from anyop.torch.replace import replace  # noqa: E402

__all__ = ["nn", "replace", "slow_call"]
