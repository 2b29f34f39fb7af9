# SPDX-License-Identifier: Apache-2.0
"""Junk of Paddle: values of static graphs, sparse tensors and those without memory, odd dtypes, states of the mode."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import junk_arrays  # noqa: F401  registers
import numpy as np

warnings.filterwarnings("ignore")
import paddle  # noqa: E402
from anyop.testing.paddle_cases import to_array, to_paddle  # noqa: E402
from junk_draft import NOTHING, Bridge, Unfit, junk  # noqa: E402

paddle.set_device("cpu")


class Paddle(Bridge):
    """On the CPU."""

    name = "paddle"

    def tensor(self, array: np.ndarray) -> Any:
        if min(array.strides, default=0) < 0:
            raise Unfit  # Paddle has no such tensors
        try:
            return to_paddle(array)
        except Exception:
            raise Unfit from None

    def array(self, value: Any) -> np.ndarray | None:
        if not isinstance(value, paddle.Tensor):
            return super().array(value)
        try:
            if value.is_sparse():
                return None  # Paddle's numpy() of one in float16 ends the process
            with paddle.no_grad():
                return to_array(value)
        except Exception:
            return None

    def owns(self, value: Any) -> bool:
        return isinstance(value, (paddle.Tensor, paddle.pir.Value))

    def has_dtype(self, name: str) -> bool:
        return hasattr(paddle, name)

    def contexts(self, draft: Any) -> list:
        if draft.dice.random() > 0.1:
            return []
        name = draft.dice.choice(["no_grad", "static"])
        draft.note(f"under {name}")
        draft.is_fake |= name == "static"
        return [paddle.no_grad() if name == "no_grad" else static()]

    def is_its_own(self, draft: Any, error: BaseException) -> bool:
        wanted = isinstance(error, RuntimeError) and "out=" in str(error)
        return wanted and draft.subject.metadata["name"] in str(error)


PROGRAMS: list = []  # Paddle ends the process when it prints a value whose program was freed


@contextlib.contextmanager
def static():
    """As behind paddle.enable_static(), in a program of its own."""
    PROGRAMS.append(paddle.static.Program())
    paddle.enable_static()
    try:
        with paddle.static.program_guard(PROGRAMS[-1]):
            yield
    finally:
        paddle.disable_static()


def _value(x: Any) -> Any:
    with static():
        return paddle.static.data("x", x.shape, x.dtype)  # of another program


def _wants_gradient(x: Any) -> Any:
    x = x.clone()
    x.stop_gradient = False
    return x


def _cleared(x: Any) -> Any:
    x = x.clone()
    x._clear_data()
    return x


class Subclass(paddle.Tensor):
    """Does nothing of its own."""


_kept: list = []  # what Paddle's objects point into without holding it: their str would read freed memory
MADE = {
    "static value": _value,
    "wants a gradient": _wants_gradient,
    "not a leaf": lambda x: _wants_gradient(x) * 1,
    "cleared": _cleared,
    "uninitialized": lambda x: paddle.Tensor(),
    "parameter": lambda x: paddle.create_parameter(x.shape, "float32"),
    "sparse": lambda x: x.to_sparse_coo(x.ndim),
    "compressed": lambda x: x.to_sparse_csr(),
    "subclass": lambda x: Subclass(x.numpy()),
    "selected rows": lambda x: paddle.base.core.SelectedRows([0], 3),
    "DenseTensor": lambda x: (_kept.append(x), x.get_tensor())[1],
    "place": lambda x: paddle.CPUPlace(),
    "dtype": lambda x: paddle.float32,
    "class": lambda x: paddle.Tensor,
    "scalar": lambda x: paddle.to_tensor(0.5),
    "int scalar": lambda x: paddle.to_tensor(1),
    "uint16 of NumPy": lambda x: x.numpy().view(np.uint16),
    "strided": lambda x: x.t() if x.ndim == 2 else x[..., ::2],
    "distributed": lambda x: paddle.distributed.shard_tensor(
        x, paddle.distributed.ProcessMesh([0], dim_names=["a"]), [paddle.distributed.Replicate()]
    ),
    "array": lambda x: paddle.tensor.create_array("float32"),
}


def _one(draft, place, good, name):
    array = good if isinstance(good, np.ndarray) else np.ones((2, 3), np.float32)
    tensor = draft.bridge.tensor(draft.fresh(array))
    try:
        made = MADE[name](tensor)
    except Exception:
        raise Unfit from None
    odd = ("static value", "cleared", "sparse", "compressed", "selected rows", "array")
    if name == "uninitialized":
        return draft.means(made, np.zeros(0, np.float32))
    return draft.means(made, NOTHING) if name in odd else made


for _label in MADE:
    junk("Tensor", "int", "float", "bool", "ScalarType", label=f"Paddle's: {_label}")(
        lambda draft, place, good, name=_label: _one(draft, place, good, name)
    )

BRIDGE = Paddle
