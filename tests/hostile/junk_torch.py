# SPDX-License-Identifier: Apache-2.0
"""Junk of torch: tensors without plain memory, of other devices and subclasses, modes, and storage that goes away."""

from __future__ import annotations

import contextlib
import os
import traceback
import warnings
from typing import Any

import anyop.torch  # noqa: F401  registers
import junk_arrays  # noqa: F401  registers
import numpy as np
import torch
from anyop.cases.dtype_choices import numpy_dtype
from junk_draft import NOTHING, Bridge, Unfit, junk
from torch._subclasses.fake_tensor import FakeTensorMode

warnings.filterwarnings("ignore")
FAKE = FakeTensorMode()


# Operators of torch.library alone: what torch's dispatcher makes of a value before any operator is asked.
# It takes every number for an int, whatever has a truth for a bool, bytes for a str, and a number for a dtype.
READERS = torch.library.Library("anyop_junk", "DEF")
READ: list = []
for _kind in ("int", "bool", "float", "str", "ScalarType"):
    READERS.define(f"read_{_kind}({_kind} value) -> ()")
    READERS.impl(f"read_{_kind}", READ.append, "CompositeExplicitAutograd")
# It asks every argument for __torch_function__: what __getattr__ raises is forgotten, what it returns is called with 4
# arguments. junk_calls_test.py shows all of it with operators of torch's own.
CALLED = "expected at most 1 argument, got 4"


def over(array: np.ndarray) -> Any:
    """A tensor in the array's memory where torch can, else a copy."""
    name = array.dtype.name
    try:
        if array.dtype.isbuiltin == 1:
            return torch.from_numpy(array)
        bits = torch.from_numpy(array.view(f"i{array.itemsize}"))  # of ml_dtypes
        return bits.view(getattr(torch, name))
    except (TypeError, ValueError, RuntimeError, AttributeError):  # negative strides, odd dtypes
        try:
            return torch.tensor(np.ascontiguousarray(array))
        except Exception:
            raise Unfit from None


def _is_whole(tensor: torch.Tensor) -> bool:
    """Whether all elements lie in the storage, which may have been shrunk."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride()))
    end = (tensor.storage_offset() + last + 1) * tensor.element_size()
    return tensor.numel() == 0 or end <= tensor.untyped_storage().nbytes()


class Torch(Bridge):
    """On the CPU."""

    name = "torch"

    def __init__(self) -> None:
        self.changers = [_free_storages]
        self.keys = _keys()
        self.guards: list = []  # never let go of: they would set the keys of before

    def tensor(self, array: np.ndarray) -> Any:
        return over(array)

    def array(self, value: Any) -> np.ndarray | None:
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            return super().array(value)  # one array among tensors is refused, all of them are not
        try:
            if not _is_whole(value):  # torch and NumPy would copy what is not there
                return None
            with torch.no_grad(), torch.inference_mode():
                plain = value.detach().resolve_conj().resolve_neg().contiguous()
                name = str(plain.dtype).removeprefix("torch.")
                if hasattr(np, name):
                    return plain.numpy().copy()
                bits = {1: torch.uint8, 2: torch.uint16}[plain.element_size()]
                return plain.view(bits).numpy().view(numpy_dtype(name)).copy()
        except Exception:
            return None

    def owns(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def has_dtype(self, name: str) -> bool:
        return hasattr(torch, name)

    def contexts(self, draft: Any) -> list:
        if draft.dice.random() > 0.1:
            return []
        name = draft.dice.choice(["no_grad", "inference", "meta", "fake"])
        draft.note(f"under {name}")
        draft.is_fake |= name in ("meta", "fake")
        return [
            {
                "no_grad": torch.no_grad,
                "inference": torch.inference_mode,
                "meta": lambda: torch.device("meta"),
                "fake": lambda: FAKE,
            }[name]()
        ]

    def settle(self, draft: Any) -> str | None:
        """Torch's keys as at the start, and a complaint where a call changed them.

        Known: under a fake mode inside a forward level torch fails while it prints a real tensor; a guard that its
        frame holds then sets the keys of inside that mode, and every neg view is read without its sign from there on.
        """
        if (found := _keys()) == self.keys:
            return None
        guard = torch._C._ForceDispatchKeyGuard(*self.keys)
        guard.__enter__()
        self.guards.append(guard)
        if any("tangent" in note for note in draft.notes) and "under fake" in draft.notes:
            return None
        return f"torch's dispatch keys were {self.keys}, and are {found}"

    def entry(self, draft: Any) -> Any:
        operator = getattr(torch.ops.anyop, draft.subject.metadata["name"])
        draft.by_ops = not draft.outputs and draft.dice.random() < 0.15
        # torch.ops prints what it refuses, and dies where that is a tensor without its memory.
        draft.by_ops &= "emptied storage" not in draft.notes
        return operator if draft.by_ops else draft.subject.function

    def reads(self, draft: Any, param: dict[str, Any], value: Any) -> Any:
        reader = getattr(torch.ops.anyop_junk, f"read_{param['kind']}", None)
        if reader is None or param.get("list"):
            return NOTHING
        if getattr(draft, "action", "") in ("change", "recurse"):
            draft.is_unread = True  # to ask it once more would be another call
            return NOTHING
        READ.clear()
        try:
            reader(value)
        except BaseException:  # of the value's own, too
            return NOTHING
        return str(READ[0]).removeprefix("torch.") if param["kind"] == "ScalarType" else READ[0]

    def swallows(self, draft: Any) -> bool:
        methods = ("__getattr__", "__index__", "__int__", "__float__")
        return draft.by_ops and any(f"whose {m} does" in n for m in methods for n in draft.notes)

    def is_its_own(self, draft: Any, error: BaseException) -> bool:
        text = str(error)
        if draft.is_fake and draft.by_ops and "Please convert all Tensors to FakeTensors" in text:
            return True  # a mode of torch's that takes no real ones
        own = ("Missing required argument 'input'", "Too many positional arguments: ")
        if draft.by_ops and draft.torchs_own and any(part in text for part in own):
            return True  # of torch.nested
        if draft.by_ops and draft.torchs_own and "Cannot access storage of" in text:
            return True  # torch asks a tensor for the number that stands in it
        if draft.by_ops and CALLED in text and type(error) is TypeError:
            return True
        if draft.by_ops and "Unable to cast Python instance of type <class 'str'>" in text:
            return True  # a keyword that is no Unicode text
        if draft.by_ops and "Not yet supported ScalarType" in text:
            return True  # a number that is no dtype, converted before any kernel is asked
        if draft.by_ops and ("__repr__ returned non-string" in text or _is_in_repr(error)):
            return True  # torch prints what it refuses
        if draft.by_ops and draft.subject.metadata["name"] in text:
            return isinstance(error, (RuntimeError, TypeError, ValueError, NotImplementedError))
        if draft.by_ops and text == "Unknown keyword argument 'x":
            return True  # followed by a NUL, where torch's text ends
        if isinstance(error, RuntimeError) and "doesn't support automatic differentiation" in text:
            return True  # torch's text, as of any out=
        if isinstance(error, RuntimeError) and "Inference tensors cannot be saved" in text:
            return True  # likewise
        if type(error) is MemoryError and text == "std::bad_alloc":
            return (
                draft.by_ops or draft.is_fake
            )  # the dispatcher takes a tensor for a list of its rows
        if draft.torchs_own and ("INTERNAL ASSERT" in text or "ZeroTensors are immutable" in text):
            return True
        if draft.torchs_own and (
            "functorch" in text
            or "BatchedTensorImpl" in text
            or "interpreter must not be" in text
            or "maybe_level" in text
        ):
            return True  # a tensor of a transform that is over
        if isinstance(error, RecursionError) and draft.may_recurse:
            return True
        named = draft.subject.metadata["name"] in text
        if named and "Multiple dispatch failed" in text:
            return draft.torchs_own and isinstance(error, TypeError)
        return (
            named
            and (draft.torchs_own or draft.is_fake)
            and isinstance(error, (RuntimeError, NotImplementedError))
        )


def _keys() -> tuple:
    """What torch's dispatcher adds and leaves out, in this thread."""
    return torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()


def _is_in_repr(error: BaseException) -> bool:
    """Whether printing of an odd array, or of a storage under a fake mode, raised it."""
    frames = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    return frames[-1].co_filename.endswith("arrayprint.py") or any(
        code.co_name == "__repr__" and code.co_filename.startswith(os.path.dirname(torch.__file__))
        for code in frames
    )


def _free_storages(draft: Any) -> None:
    """What FSDP does, or set_, while the call reads its other arguments."""
    for value in [*draft.arguments.values(), *draft.positional]:
        if type(value) is torch.Tensor and value.numel():
            with contextlib.suppress(Exception):
                draft.dice.choice(
                    [
                        lambda v=value: v.resize_(0),
                        lambda v=value: v.set_(),
                        lambda v=value: v.untyped_storage().resize_(0),
                        lambda v=value: v.unsqueeze_(0),
                        lambda v=value: v.t_(),
                    ]
                )()
    draft.changed = True


class Subclass(torch.Tensor):
    """Does nothing of its own."""


class Dispatching(torch.Tensor):
    """Raises for whatever is done with it."""

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise ZeroDivisionError("mine")


def _dispatching(t: torch.Tensor) -> torch.Tensor:
    return torch.Tensor._make_wrapper_subclass(Dispatching, t.shape, dtype=t.dtype)


def _emptied(t: torch.Tensor) -> torch.Tensor:
    t = t.clone()
    t.untyped_storage().resize_(0)
    return t


def _shrunk(t: torch.Tensor) -> torch.Tensor:
    t = t.clone()
    t.untyped_storage().resize_(max(t.untyped_storage().nbytes() // 2, 1))
    return t


def _of_functorch(t: torch.Tensor) -> torch.Tensor:
    found: list = []
    torch.func.vmap(lambda x: (found.append(x), x)[1])(t[None])
    return found[0]  # of a level that is over


def _inference(t: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return t.clone()


MADE = {
    "requires grad": lambda t: t.clone().requires_grad_(),
    "not a leaf": lambda t: t.clone().requires_grad_() * 1,
    "parameter": lambda t: torch.nn.Parameter(t.clone()),
    "uninitialized parameter": lambda t: torch.nn.UninitializedParameter(),
    "buffer": lambda t: torch.nn.Buffer(t.clone()),
    "meta": lambda t: t.to("meta"),
    "fake": lambda t: FAKE.from_tensor(t.clone()),
    "sparse": lambda t: t.to_sparse(),
    "compressed": lambda t: t.to_sparse_csr(),
    "quantized": lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8),
    "nested": lambda t: torch.nested.nested_tensor([t, t]),
    "jagged": lambda t: torch.nested.nested_tensor([t, t], layout=torch.jagged),
    "oneDNN": lambda t: t.to_mkldnn(),
    "conjugate": lambda t: torch.complex(t, t).conj(),
    "negative": lambda t: torch.complex(t, t).conj().imag,
    "real part": lambda t: torch.complex(t, t).real,
    "zero": lambda t: torch._efficientzerotensor(t.shape, dtype=t.dtype),
    "subclass": lambda t: t.clone().as_subclass(Subclass),
    "dispatching": _dispatching,
    "emptied storage": _emptied,
    "shrunk storage": _shrunk,
    "functorch's": _of_functorch,
    "inference": _inference,
    "expanded": lambda t: t[:1].expand(t.shape),
    "window": lambda t: torch.as_strided(t.clone(), t.shape, (1,) * t.ndim),
    "empty view": lambda t: t.as_strided((2**40, 0), (1, 1)),
    "undefined grad": lambda t: t.grad,
    "storage": lambda t: t.untyped_storage(),
    "generator": lambda t: torch.Generator(),
    "dtype": lambda t: torch.float32,
    "device": lambda t: torch.device("cpu"),
    "size": lambda t: t.shape,
    "symbolic": lambda t: torch.sym_max(1, 2),
    "class": lambda t: torch.Tensor,
    "legacy": lambda t: torch.Tensor(),
    "scalar": lambda t: torch.tensor(0.5),
    "pinned": lambda t: t.pin_memory(),
    "functional": lambda t: torch._to_functional_tensor(t),
    "with a tangent": None,
}


@junk("Tensor", "int", "float", "bool", "ScalarType", label="of torch")
def of_torch(draft, place, good):
    """Every kind of tensor that torch knows."""
    name = draft.dice.choice(list(MADE))
    draft.note(name)
    array = good if isinstance(good, np.ndarray) else np.ones((2, 3), np.float32)
    tensor = over(draft.fresh(array))
    draft.torchs_own = True  # "RuntimeError: ... functorch ..." and the like name the operator
    if name == "with a tangent":
        level = torch.autograd.forward_ad.dual_level()
        draft.contexts.append(level)
        with level:
            return torch.autograd.forward_ad.make_dual(tensor, torch.ones_like(tensor))
    try:
        made = MADE[name](tensor)
    except Exception:
        raise Unfit from None
    if place.kind == "Tensor" and name == "inference":
        return draft.means(made, np.array(array))
    if place.kind == "Tensor" and name in ("buffer", "subclass", "fake", "functional"):
        draft.is_fake = True
        return draft.means(made, np.array(array))
    if name == "meta":
        draft.is_fake = True
        return draft.means(made, np.array(array))
    if name == "zero":
        return draft.means(made, np.zeros(array.shape, array.dtype))
    return made


for _label in MADE:
    junk("Tensor", label=f"torch's: {_label}")(
        lambda draft, place, good, name=_label: _one(draft, place, good, name)
    )


def _one(draft, place, good, name):
    kept = draft.dice
    draft.dice = type("Fixed", (), {"choice": staticmethod(lambda _: name)})
    try:
        return of_torch(draft, place, good)
    finally:
        draft.dice = kept


BRIDGE = Torch
