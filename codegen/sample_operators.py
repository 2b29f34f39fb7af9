# SPDX-License-Identifier: Apache-2.0
"""Operators that the tests state: those of docs/operators.md, and rarer parts of the grammar."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

HALVES = ["float16", "bfloat16"]
FLOATS = ["float32", "float16", "bfloat16"]
ALL_FLOATS = ["float16", "bfloat16", "float32", "float64"]


def sample(
    schema: str, shapes: dict[str, str], dtypes: dict[str, Any], **more: Any
) -> dict[str, Any]:
    """A whole operator file as a dict; what a test does not care about is filled in."""
    name = re.match(r"(?:\w+::)?(\w+)", schema)[1]
    arguments = re.findall(
        r"(\w+)(?:=(?:\[[^\]]*\]|'[^']*'|[^,()\[\]]+))?(?=,|\))", schema.split("->")[0]
    )
    return {
        "schema": schema,
        "brief": f"The operator {name}.",
        "arguments": dict.fromkeys(arguments, "something"),
        "shapes": shapes,
        "dtypes": dtypes,
        "kernels": {"cpu": f"{name}.cc"},
        "tolerance": dict.fromkeys(_floats(dtypes), 0.001),
        **more,
    }


def _floats(dtypes: dict[str, Any]) -> list[str]:
    names = [name for value in dtypes.values() if isinstance(value, list) for name in value]
    return [name for name in ALL_FLOATS if name in names]


def toml_of(data: dict[str, Any]) -> str:
    """TOML text: plain keys first, then sections."""
    lines = [
        f"{key} = {_value(value)}" for key, value in data.items() if not isinstance(value, dict)
    ]
    for section, table in data.items():
        if isinstance(table, dict):
            lines += [
                "",
                f"[{section}]",
                *(f"{key} = {_value(value)}" for key, value in table.items()),
            ]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + " }"
    return json.dumps(value)


def write_sample(folder: Path, data: dict[str, Any]) -> Path:
    """Writes the .toml and an empty file for every kernel that it names."""
    folder.mkdir(parents=True, exist_ok=True)
    name = re.match(r"\s*(?:\w+::)?(\w+)", data["schema"])[1]
    path = folder / f"{name}.toml"
    path.write_text(toml_of(data), encoding="utf-8")
    for entry in data.get("kernels", {}).values():
        files = entry.get("file") if isinstance(entry, dict) else entry
        for file in [files] if isinstance(files, str) else files:
            (folder / file).touch()
    return path


_NORM = {"x": FLOATS, "weight": "x", "bias": "x", "out": "x"}
_SAME = {"x": FLOATS, "out": "x"}

SAMPLES = [
    sample(
        "rms_norm(Tensor x, Tensor weight, float eps=1e-6) -> Tensor",
        {"x": "* D", "weight": "D", "out": "* D"},
        {"x": FLOATS, "weight": "x", "out": "x"},
        inplace=["x"],
        source='A "quoted" \\ backslash, ümlaut and ??/ trigraph',
        bench={"decode": "B=64 D=8192"},
        test={"sizes": {"D": [1, 7]}},
    ),
    sample(
        "layer_norm(Tensor x, Tensor? weight=None, Tensor? bias=None, float eps=1e-5) "
        "-> (Tensor out, Tensor mean, Tensor rstd)",
        {"x": "* D", "weight": "D", "bias": "D", "out": "* D", "mean": "*", "rstd": "*"},
        {**_NORM, "mean": ["float32"], "rstd": ["float32"]},
    ),
    sample(
        "softmax(Tensor x, int dim=-1) -> Tensor",
        {"x": "*X", "out": "*X"},
        _SAME,
        conditions=["-rank(X) <= dim", "dim < rank(X)"],
    ),
    sample(
        "log_softmax(Tensor x, int dim=-1) -> Tensor",
        {"x": "*", "out": "*"},
        _SAME,
        conditions=["-rank(_) <= dim and dim < rank(_)"],
    ),
    sample("gelu(Tensor x, *, str approximate='none') -> Tensor", {"x": "*", "out": "*"}, _SAME),
    sample("silu(Tensor x) -> Tensor", {"x": "*", "out": "*"}, _SAME),
    sample("silu_and_mul(Tensor x) -> Tensor", {"x": "* 2*D", "out": "* D"}, _SAME),
    sample("relu(Tensor x) -> Tensor", {"x": "*", "out": "*"}, _SAME),
    sample(
        "add(Tensor x, Tensor y, *, float alpha=1) -> Tensor",
        {"x": "*X", "y": "*Y", "out": "broadcast(*X, *Y)"},
        {"x": [*ALL_FLOATS, "int32"], "y": [*ALL_FLOATS, "int32"], "out": "promote(x, y)"},
    ),
    sample(
        "mul(Tensor x, Tensor y) -> Tensor",
        {"x": "*X", "y": "*Y", "out": "broadcast(x, y)"},
        {"x": FLOATS, "y": "x", "out": "x"},
        inplace=["x", "y"],
    ),
    sample(
        "embedding(Tensor indices, Tensor weight) -> Tensor",
        {"indices": "*", "weight": "V D", "out": "* D"},
        {"indices": ["int32", "int64"], "weight": FLOATS, "out": "weight"},
        test={"range": {"indices": [0, "V"]}},
        layouts={"weight": "rows, copied"},
    ),
    sample(
        "linear(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor",
        {"x": "* K", "weight": "N K", "bias": "N", "out": "* N"},
        _NORM,
        kernels={"cpu": ["linear.cc", "gemm.cc"]},
        alignment={"weight": 16},
    ),
    sample(
        "matmul(Tensor a, Tensor b) -> Tensor",
        {"a": "*X M K", "b": "*Y K N", "out": "broadcast(*X, *Y) M N"},
        {"a": FLOATS, "b": "a", "out": "a"},
        kernels={
            "cpu": ["matmul.cc", "gemm.cc"],
            "cuda": {"file": "matmul.cu", "arch": "80+", "priority": 2},
        },
        bench={"batched": "X=8x2 Y=1 M=64 N=64 K=64 dtype=bfloat16"},
    ),
    sample(
        "attention(Tensor q, Tensor k, Tensor v, Tensor? mask=None, float? scale=None, "
        "bool causal=False) -> (Tensor out, Tensor lse)",
        {
            "q": "B H S D",
            "k": "B G T D",
            "v": "B G T E",
            "mask": "expand(B H S T)",
            "out": "B H S E",
            "lse": "B H S",
        },
        {"q": FLOATS, "k": "q", "v": "q", "mask": ["bool", "q"], "out": "q", "lse": ["float32"]},
        conditions=["G > 0", "H % G == 0"],
        test={"sizes": {"G": [1, 2], "H": ["G", "2*G"]}},
    ),
    sample(
        "masked_mean(Tensor x, Tensor mask) -> Tensor",
        {"x": "B T D", "mask": "B T", "out": "B D"},
        {"x": FLOATS, "mask": ["bool", "int64"], "out": "x"},
    ),
    sample(
        "l2_normalize(Tensor x, float eps=1e-12) -> Tensor",
        {"x": "* D", "out": "* D"},
        _SAME,
        layouts={"x": "strided"},
    ),
    sample(
        "topk(Tensor x, int k, bool largest=True, bool sorted=True) "
        "-> (Tensor values, Tensor indices)",
        {"x": "* D", "values": "* k", "indices": "* k"},
        {"x": FLOATS, "values": "x", "indices": ["int64"]},
        conditions=["0 <= k", "k <= D"],
        test={"values": {"k": [0, 1, "D"], "largest": [True]}, "rank": {"_": [0, 2]}},
    ),
    sample(
        "cast(Tensor x, ScalarType dtype) -> Tensor",
        {"x": "*", "out": "*"},
        {"x": FLOATS, "dtype": FLOATS, "out": "dtype"},
    ),
    sample(
        "softmax_as(Tensor x, ScalarType? dtype=None) -> Tensor",
        {"x": "*", "out": "*"},
        {"x": FLOATS, "dtype": ["float32"], "out": "dtype or x"},
    ),
    sample(
        "conv_nhwc(Tensor x, Tensor weight, int[2] stride=1, int groups=1) -> Tensor",
        {"x": "N H W C", "weight": "F P Q C//groups", "out": "N H-P+1 W-Q+1 F"},
        {"x": FLOATS, "weight": "x", "out": "x"},
        conditions=["groups > 0", "C % groups == 0 and F % groups == 0", "P <= H and Q <= W"],
    ),
    sample(
        "varlen(Tensor x, Tensor cu_seqlens) -> Tensor",
        {"x": "T D", "cu_seqlens": "B+1", "out": "B D"},
        {"x": FLOATS, "cu_seqlens": ["int32"], "out": "x"},
    ),
    sample(
        "rms_norm_quant(Tensor x, Tensor weight) -> (Tensor q, Tensor scale)",
        {"x": "* D", "weight": "D", "q": "* D", "scale": "* ceil(D/128)"},
        {"x": FLOATS, "weight": "x", "q": ["int8"], "scale": ["float32"]},
    ),
    sample(
        "multi_tensor_adam(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, "
        "Tensor(c!)[]? max_exp_avg_sqs=None, *, float lr=1e-3, float[] betas=[0.9, 0.999], "
        "float? clip=1.0, int step=1, int[]? steps=None, str mode='adam, \"w\"', "
        "str[] notes=['a', \"b'c\"], ScalarType? dtype=None, "
        "ScalarType[] dtypes=[float32, bfloat16], bool[3] mask=True, "
        "int? seed=None, float? decay=None, str? tag=None, int[] empty=[]) -> ()",
        {"params": "[N] *P", "grads": "[N] *P", "exp_avgs": "[N] *P", "max_exp_avg_sqs": "[N] *P"},
        {
            "params": ["float32", "bfloat16"],
            "grads": "params",
            "exp_avgs": ["float32"],
            "max_exp_avg_sqs": ["float32"],
        },
        conditions=["step >= 1"],
    ),
    sample(
        "acme::odd(Tensor x, int first=1, *, int op=2, Tensor stream, int made=3, "
        "str s='/* */ \\\\') -> (Tensor out, Tensor sum)",
        {"x": "*X", "stream": "*", "out": "*X", "sum": ""},
        {
            "x": ["float16", "bfloat16"],
            "stream": ["bfloat16"],
            "out": "promote(x, stream)",
            "sum": "x",
        },
        tolerance={"float32": 1e-6, "bfloat16": 1e-2},
    ),
    sample(
        "acme::index_put(Tensor(a!) x, Tensor?[] indices, Tensor values) -> ()",
        {"x": "*X", "indices": "[N] *I", "values": "*V"},
        {"x": FLOATS, "indices": ["int64"], "values": "x"},
    ),
    sample(
        "dropout_backward(Tensor grad, Tensor mask, Tensor? x=None) -> (Tensor? dx, Tensor? dmask)",
        {"grad": "*", "mask": "*", "x": "*", "dx": "*", "dmask": "*"},
        {"grad": FLOATS, "mask": ["bool"], "x": "grad", "dx": "grad", "dmask": ["grad", "float32"]},
    ),
    sample(
        "native_dropout(Tensor x, float p=0.5) -> (Tensor out, Tensor mask)",
        {"x": "*", "out": "*", "mask": "*"},
        {"x": FLOATS, "out": "x", "mask": ["bool"]},
    ),
    sample(
        "dropout(Tensor x, float p=0.5) -> Tensor",
        {"x": "*", "out": "*"},
        _SAME,
        backward={"name": "dropout_gradient", "saves": ["x", "mask"], "forward": "native_dropout"},
    ),
    sample(
        "dropout_gradient(Tensor grad_out, Tensor mask, Tensor x, float p) -> Tensor grad_x",
        {"grad_out": "*", "mask": "*", "x": "*", "grad_x": "*"},
        {"grad_out": FLOATS, "mask": ["bool"], "x": "grad_out", "grad_x": "x"},
    ),
    sample(
        "tanh_gradient(Tensor grad_out, Tensor out) -> Tensor grad_x",
        {"grad_out": "*", "out": "*", "grad_x": "*"},
        {"grad_out": FLOATS, "out": "grad_out", "grad_x": "grad_out"},
    ),
    sample(
        "mul_gradient(Tensor grad_out, Tensor x, Tensor y) -> (Tensor? grad_x, Tensor? grad_y)",
        {
            "grad_out": "broadcast(*X, *Y)",
            "x": "*X",
            "y": "*Y",
            "grad_x": "*X",
            "grad_y": "*Y",
        },
        {"grad_out": FLOATS, "x": "grad_out", "y": "x", "grad_x": "x", "grad_y": "y"},
    ),
    sample(
        "tanh(Tensor x) -> Tensor",
        {"x": "*", "out": "*"},
        _SAME,
        autocast="float32",
        flops="20 * numel(*)",
        backward={"name": "tanh_gradient", "saves": ["out"]},
    ),
    sample(
        "repack(Tensor x, int k=1, str mode='rows', str end='', Tensor? y=None) -> Tensor",
        {
            "x": "A B",
            "y": "* A*(mode=='rows')",
            "out": "(mode=='rows')*A+(mode!='rows')*B*k A+3*(dtype(x)=='int8')",
        },
        {"x": ["int8", "float32"], "y": ["int8"], "out": "x"},
        conditions=[
            "mode in ('rows', 'columns', 'é\"')",
            "end in ('', 'longer than a word')",
            "(mode == 'rows') <= (dtype(x) == 'int8') or end != '' or dtype(y) == 'int8'",
        ],
    ),
    sample(
        "shapes_of_all_kinds(Tensor x, Tensor y, Tensor z, int k, SymInt m=3) -> Tensor",
        {
            "x": "A *G 2*B+1",
            "y": "C*3-2 A*B",
            "z": "min(A, B, k) max(m, 2) A//2 A%3",
            "out": "A+B-C 7 ceil((A*B+k)/3) numel(G) rank(G)+1",
        },
        {"x": FLOATS, "y": FLOATS, "z": FLOATS, "out": "promote(x, y)"},
        conditions=[
            "A + B >= C",
            "A != 99 or B == 1 and (k < 3 or m <= 9)",
            "0 < numel(G) <= 1000",
        ],
    ),
]
