# SPDX-License-Identifier: Apache-2.0
"""Draws arguments for an overload by the names and types of its parameters, likely ones first."""

from __future__ import annotations

import random
import zlib

import oracle
from inputs import Call, Spec

SHAPES = [
    (3, 4),
    (4, 4),
    (4,),
    (2, 3, 4),
    (2, 3, 4, 4),
    (2, 4, 6, 6),
    (2, 2, 4, 4, 4),
    (2, 4, 4),
    (),
    (3,),
    (2,),
    (4, 3),
    (4, 1),
    (1, 4),
    (2, 4),
    (1,),
    (6,),
    (2, 3, 8, 8),
]
SHARED = [  # shapes and dtypes that all floating tensors of a call have, tried first
    ("float32", (3, 4)),
    ("float32", (4, 4)),
    ("float32", (4,)),
    ("float32", (2, 3, 4)),
    ("int64", (3, 4)),
    ("bool", (3, 4)),
    ("complex64", (3, 4)),
    ("float32", (2, 3, 4, 4)),
    ("float32", (2, 2, 4, 4, 4)),
    ("float32", ()),
    ("float64", (3, 4)),
    ("int32", (4,)),
    ("int8", (4, 4)),
    ("float16", (3, 4)),
    ("bfloat16", (3, 4)),
    ("uint8", (2, 3, 4)),
]
MORE = [
    ("float64", (2, 5)),
    ("bfloat16", (3, 4)),
    ("int64", (2, 3)),
    ("complex64", (2, 3)),
    ("bool", (5,)),
]
INDICES = (
    "index",
    "indices",
    "target",
    "offsets",
    "batch1_sizes",
    "idx",
    "ind",
    "lengths",
    "batch_sizes",
)
MASKS = ("mask", "condition", "padding_mask", "mask_indices", "found_inf_mask")
SMALL = {
    "dim": [0, 1, -1],
    "dim0": [0],
    "dim1": [1],
    "dim2": [1],
    "groups": [1, 2],
    "k": [1, 2],
    "n": [2, 3],
    "chunks": [2],
    "sections": [2, 1],
}
LISTS = {
    "size": [[3, 4], [2, 3], [12], [4, 4], [2, 3, 4, 4]],
    "dim": [[0], [1], [0, 1]],
    "dims": [[0, 1], [1, 0], [0]],
    "kernel_size": 2,
    "stride": 1,
    "padding": 0,
    "dilation": 1,
    "output_padding": 0,
    "output_size": 2,
}
TEXTS = {
    "reduce": ["sum", "mean", "amax", "prod"],
    "reduction": ["sum"],
    "mode": ["reduced", "complete", "constant", "floor"],
    "rounding_mode": ["floor", "trunc"],
    "padding": ["valid", "same"],
    "UPLO": ["L", "U"],
    "ord": ["fro", "nuc"],
    "equation": ["ij,ij->ij", "ij,jk->ik"],
    "indexing": ["ij"],
    "side": ["left"],
    "compute_mode": ["donot_use_mm_for_euclid_dist"],
    "approximate": ["none", "tanh"],
    "driver": ["gels"],
    "norm": ["ortho"],
    "interpolation": ["linear"],
    "hash": ["x"],
}


class Maker:
    """Draws arguments of one overload."""

    def __init__(self, overload: oracle.Overload):
        self.overload = overload
        self.random = random.Random(zlib.crc32(overload.name.encode()))

    def candidates(self, tries: int):
        """Calls, likely ones first."""
        for everything in (False, True):
            for shared in SHARED:
                for _ in range(3 if self.loose(everything) else 1):
                    yield self.draw(shared, everything)
        for number in range(tries):
            shared = self.random.choice(SHARED) if number % 2 else None
            yield self.draw(shared, number % 3 == 0)

    def loose(self, everything: bool) -> bool:
        return any(
            ("int" in p.type or "str" in p.type or "number" in p.type)
            and (everything or not p.has_default)
            for p in self.overload.params
        )

    def draw(self, shared, everything: bool) -> Call:
        args, kwargs = [], {}
        named = False
        for param in self.overload.params:
            if param.has_default and (not everything or self.random.random() < 0.4):
                named = True
                continue
            value = self.value(param, shared)
            if param.keyword_only or named:
                kwargs[param.name] = value
            else:
                args.append(value)
        return Call(self.overload.name, tuple(args), kwargs)

    def value(self, param: oracle.Param, shared):
        kind = param.type
        if kind.startswith("Optional["):
            if not param.has_default and self.random.random() < 0.5:
                return None
            kind = kind[9:-1]
        if kind.startswith("List["):
            return self.items(param, kind[5:-1], shared)
        return self.one(param, kind, shared)

    def items(self, param, kind, shared):
        pick = self.random.choice
        if kind in ("Tensor", "Optional[Tensor]"):
            return [self.tensor(param, shared) for _ in range(pick([1, 2, 2, 3]))]
        if kind == "int":
            known = LISTS.get(param.name)
            if param.count and (isinstance(known, int) or known is None):
                base = (
                    known
                    if isinstance(known, int) and self.random.random() < 0.7
                    else pick([0, 1, 2])
                )
                return [base] * pick([param.count, 2, 1, 3])
            if known and not isinstance(known, int):
                return list(pick(known))
            if isinstance(known, int):
                return [known] * pick([1, 2, 3])
            return list(
                pick(
                    [
                        [1],
                        [0],
                        [1, 1],
                        [2, 2],
                        [3, 4],
                        [0, 1],
                        [1, 2, 3],
                        [0, 0],
                        [2, 3],
                        [1, 1, 1],
                        [],
                    ]
                )
            )
        if kind == "bool":
            return [True] * (param.count or pick([1, 2, 3]))
        return [self.one(param, kind, shared) for _ in range(param.count or pick([1, 2, 2, 3]))]

    def one(self, param, kind, shared):
        pick = self.random.choice
        if kind == "Tensor":
            return self.tensor(param, shared)
        if kind == "int":
            return pick(SMALL.get(param.name, [0, 1, 2, 1, 3, 4]))
        if kind == "float":
            return pick([0.5, 1.0, 0.25, 2.0, 1e-5, 0.0])
        if kind == "number":
            return pick([2, 0.5, 1, 3]) if not shared or "float" in shared[0] else pick([2, 1, 3])
        if kind == "bool":
            return pick([False, True])
        if kind == "str":
            return pick(TEXTS.get(param.name, ["none", "mean", "sum", "linear"]))
        if kind == "ScalarType":
            return pick(["float32", "float64", "int64", shared[0] if shared else "float32"])
        if kind == "Layout":
            return "strided"
        if kind == "MemoryFormat":
            return pick(["contiguous_format", "preserve_format"])
        if kind == "Device":
            return "cpu"
        if kind == "Generator":
            return None
        raise TypeError(f"no value for {param.type}")

    def tensor(self, param, shared) -> Spec:
        pick = self.random.choice
        dtype, shape = shared or (pick(["float32"] * 3 + ["int64"]), pick(SHAPES))
        if shared and self.random.random() < 0.1:
            shape = pick(SHAPES)
        name = param.name
        if any(word in name for word in INDICES) or name.endswith(("_idx", "_ids")):
            return Spec(
                "int64",
                shape if self.random.random() < 0.7 else pick([(3,), (2,), (4,), (2, 3)]),
                "",
                2,
            )
        if any(word in name for word in MASKS) and self.random.random() < 0.8:
            return Spec("bool", shape)
        kind = ""
        if dtype.startswith("float") and self.random.random() < 0.3:
            kind = pick(["unit", "positive", "above one"])
        if (
            dtype.startswith("float")
            and len(shape) >= 2
            and shape[-1] == shape[-2]
            and self.random.random() < 0.2
        ):
            kind = "definite"
        return Spec(dtype, shape, kind)
