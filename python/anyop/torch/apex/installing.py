# SPDX-License-Identifier: Apache-2.0
"""Puts this tree into sys.modules under Apex's names, and takes it out again."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType, TracebackType

_ROOT = __package__
_TREE = (
    "apex",
    "apex.contrib",
    "apex.contrib.bottleneck",
    "apex.contrib.bottleneck.bottleneck",
    "apex.contrib.clip_grad",
    "apex.contrib.clip_grad.clip_grad",
    "apex.contrib.conv_bias_relu",
    "apex.contrib.conv_bias_relu.conv_bias_relu",
    "apex.contrib.focal_loss",
    "apex.contrib.focal_loss.focal_loss",
    "apex.contrib.group_norm",
    "apex.contrib.group_norm.group_norm",
    "apex.contrib.index_mul_2d",
    "apex.contrib.index_mul_2d.index_mul_2d",
    "apex.contrib.layer_norm",
    "apex.contrib.layer_norm.layer_norm",
    "apex.contrib.optimizers",
    "apex.contrib.optimizers.fp16_optimizer",
    "apex.contrib.optimizers.fused_adam",
    "apex.contrib.optimizers.fused_lamb",
    "apex.contrib.optimizers.fused_sgd",
    "apex.contrib.sparsity",
    "apex.contrib.sparsity.asp",
    "apex.contrib.sparsity.permutation_lib",
    "apex.contrib.sparsity.permutation_search_kernels",
    "apex.contrib.sparsity.permutation_search_kernels.call_permutation_search_kernels",
    "apex.contrib.sparsity.permutation_search_kernels.channel_swap",
    "apex.contrib.sparsity.permutation_search_kernels.exhaustive_search",
    "apex.contrib.sparsity.permutation_search_kernels.permutation_utilities",
    "apex.contrib.sparsity.sparse_masklib",
    "apex.contrib.transducer",
    "apex.contrib.transducer.transducer",
    "apex.contrib.xentropy",
    "apex.contrib.xentropy.softmax_xentropy",
    "apex.fused_dense",
    "apex.fused_dense.fused_dense",
    "apex.mlp",
    "apex.mlp.mlp",
    "apex.multi_tensor_apply",
    "apex.multi_tensor_apply.multi_tensor_apply",
    "apex.normalization",
    "apex.normalization.fused_layer_norm",
    "apex.optimizers",
    "apex.optimizers.fused_adagrad",
    "apex.optimizers.fused_adam",
    "apex.optimizers.fused_lamb",
    "apex.optimizers.fused_mixed_precision_lamb",
    "apex.optimizers.fused_novograd",
    "apex.optimizers.fused_sgd",
    "apex.parallel",
    "apex.parallel.optimized_sync_batchnorm",
    "apex.transformer",
    "apex.transformer.enums",
    "apex.transformer.functional",
    "apex.transformer.functional.fused_rope",
    "apex.transformer.functional.fused_softmax",
)
EXTENSIONS = (
    "amp_C",
    "apex_C",
    "fast_bottleneck",
    "fast_layer_norm",
    "focal_loss_cuda",
    "fused_adam_cuda",
    "fused_conv_bias_relu",
    "fused_dense_cuda",
    "fused_lamb_cuda",
    "fused_index_mul_2d",
    "fused_layer_norm_cuda",
    "fused_rotary_positional_embedding",
    "fused_weight_gradient_mlp_cuda",
    "generic_scaled_masked_softmax_cuda",
    "group_norm_cuda",
    "group_norm_v2_cuda",
    "mlp_cuda",
    "permutation_search_cuda",
    "scaled_masked_softmax_cuda",
    "scaled_softmax_cuda",
    "scaled_upper_triang_masked_softmax_cuda",
    "syncbn",
    "transducer_joint_cuda",
    "transducer_loss_cuda",
    "xentropy_cuda",
)
# Apex's other extensions. A program that asks for one gets an ImportError that says so.
NOT_YET = (
    "_apex_gpu_direct_storage", "_apex_nccl_allocator", "bnp", "cudnn_gbn_lib",
    "distributed_adam_cuda", "distributed_lamb_cuda", "fast_multihead_attn",
    "fmhalib", "nccl_p2p_cuda", "peer_memory_cuda",
)  # fmt: skip


def install(replace: bool = False) -> Installed:
    """Make ``import apex`` and its extensions this tree: for good, or as a context manager until its end.

    replace:  also where a real Apex is installed; else that one is left alone, and nothing is done.
    Returns   what was done, with undo(); `active` is False where a real Apex was left alone.
    Raises    RuntimeError, with both paths, when another Apex is loaded already.

    importlib.util.find_spec finds what is here. What Apex has and this tree has not is an ImportError that says so.
    A second install while one holds does nothing, and its undo neither.
    """
    ours = _modules()
    loaded = {name: module for name in ours if (module := sys.modules.get(name)) is not None}
    for name, module in loaded.items():
        if module is not ours[name]:
            raise RuntimeError(
                f"anyop.torch.apex.install: {name} is loaded already, from {_path(module)}; this "
                f"one is {_path(ours[name])}. Install before the first import of Apex"
            )
    if loaded:
        return Installed({}, active=True)
    found = [name for name in ("apex", *EXTENSIONS) if _is_installed(name)]
    if found and not replace:
        return Installed({}, active=False)
    sys.modules.update(ours)
    return Installed(ours, active=True)


class Installed:
    """What install() did; as a context manager it undoes that at the end."""

    def __init__(self, modules: dict[str, ModuleType], active: bool) -> None:
        self.active = active
        self._modules = modules
        self._finders: list[object] = []
        if modules:
            first, last = _InTree(), _Last()
            sys.meta_path.insert(0, first)
            sys.meta_path.append(last)  # real extensions of other names are found before
            self._finders = [first, last]

    def undo(self) -> None:
        """Take the names away again; a second time it does nothing. What was imported stays usable."""
        for name, module in self._modules.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder not in self._finders]
        self.active = self.active and not self._modules
        self._modules, self._finders = {}, []

    def __enter__(self) -> Installed:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.undo()


def _modules() -> dict[str, ModuleType]:
    """Apex's names and the modules that stand for them."""
    places = {name: _ROOT + name[len("apex") :] for name in _TREE}
    places |= {name: f"{_ROOT}.extensions.{name}" for name in EXTENSIONS}
    return {name: importlib.import_module(place) for name, place in places.items()}


def _is_installed(name: str) -> bool:
    """Whether there is such a module; a folder of that name without code is none."""
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None


def _path(module: ModuleType) -> str:
    return getattr(module, "__file__", None) or "no file"


class _InTree:
    """Says of names below apex that they are not there: nothing of this package is found under a second name."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.startswith("apex.") and name not in _TREE and not _only_asked():
            raise _missing(name)
        return None


class _Last:
    """Says the same of what no other finder has: Apex's other extensions, and `from apex import amp`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        below = name.startswith(f"{_ROOT}.")
        if (name in NOT_YET or below) and not _only_asked():
            raise _missing("apex" + name[len(_ROOT) :] if below else name)
        return None


def _missing(name: str) -> ImportError:
    return ImportError(
        f"{name} is not in anyop.torch.apex yet, which stands for Apex here; it has "
        f"{', '.join((*_TREE[1:], *EXTENSIONS))}. docs/apex.md says what comes",
        name=name,
    )


def _only_asked() -> bool:
    """Whether importlib.util.find_spec asks, which is answered, rather than an import, which fails."""
    frame: FrameType | None = sys._getframe(2)
    while frame and frame.f_globals.get("__name__") == "importlib._bootstrap":
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") == "importlib.util"
