# SPDX-License-Identifier: Apache-2.0
"""Times the host's part of one call of every operator on small tensors of a CUDA device, against torch's.

    python bench/calls/cuda_call.py [--backend aten] [--device cuda] [--dtype bfloat16] [--only relu] [--rounds 30]

64x1024 (attention: 4 heads of 64x64; on the CPU, where the host computes too, 4x64), from torch; then relu, rms_norm
and linear from CuPy, JAX and Paddle where they are installed, in float32. Sides take turns in one run; nothing waits
for the device but between turns. Peers: what torch's users call, where it is one call (torch), and the operator's text
for ATen in Python by torch.ops.aten (text). Without --backend the default routes. One line of JSON for each goes to
bench/results/cuda_call.jsonl.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import ROOT, environment, spread, write

SIZES = {"cuda": (64, 1024), "cpu": (4, 64)}  # rows, columns
CALLS = 20
UNARY = (
    "gelu",
    "gelu_and_mul",
    "l2_normalize",
    "relu",
    "silu",
    "silu_and_mul",
    "softmax",
    "log_softmax",
)
BINARY = ("add", "mul", "gelu_backward", "l2_normalize_backward", "relu_backward", "silu_backward")
BINARY += ("softmax_backward",)
KEPT = []  # memory of the tensors of schemas' cases
ONE_CALL, FURTHER_NS = 1.3, 1000  # asked of aten: a text's first call, each further one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    import torch

    names = sorted(path.stem for path in (ROOT / "ops").glob("*/*.toml"))
    for name in names if options.backend else []:  # read when anyop is imported
        os.environ[f"ANYOP_OP_{name.upper()}"] = options.backend
    import anyop
    import anyop.torch

    torch.set_num_threads(1)
    where = environment(anyop, torch)
    if options.device == "cuda":
        where["gpu"] = torch.cuda.get_device_name()
    rows = []
    with torch.no_grad():
        for name in options.only or names:
            rows += operator(anyop, torch, name, options)
        for caller, function in others(torch, options.device).items():
            rows += from_other(anyop, torch, caller, function, options)
    where |= {"device": options.device, "backend": options.backend or "default"}
    print("written to", write("cuda_call", rows, where).relative_to(ROOT))


def arguments(torch, name: str, dtype, device: str) -> dict:
    """Tensors and numbers of an operator: what models give it, or else the first good case of its schema."""
    import anyop

    if usual := usual_arguments(torch, name, dtype, device):
        return dict(zip((p["name"] for p in anyop.metadata(name)["inputs"]), usual))
    return case_arguments(name, str(dtype).removeprefix("torch."), device)


def case_arguments(name: str, dtype: str, device: str) -> dict:
    """Of the smallest case that the device's kernels take, in that dtype where there is one."""
    import anyop
    from anyop import testing
    from anyop.testing.torch_memory import DeviceMemory, fits_device

    (subject,) = (s for s in testing.find_subjects(ROOT / "ops") if s.name == name)
    choices = testing.dtype_choices(subject.metadata)
    choices.sort(key=lambda choice: (dtype not in choice.names.values(), not choice.is_uniform))
    for choice in choices:
        for case in testing.good_cases(subject, choice):
            if not fits_device(subject, case) or case.layouts:
                continue
            built, memory = testing.build(subject, case).arguments, DeviceMemory(device)
            given = {n: memory.there(value) for n, value in built.items()}
            if anyop.explain(name, **given).chosen:
                KEPT.append(memory)
                return given
    raise ValueError(f"no case of {name} runs on {device}")


def usual_arguments(torch, name: str, dtype, device: str) -> tuple | None:
    random, (T, D) = torch.Generator().manual_seed(0), SIZES[device]

    def make(*shape):
        return torch.randn(*shape, generator=random).to(device, dtype)

    x, y, w, b = make(T, D), make(T, D), make(D), make(D)
    square, heads = make(D, D), [make(1, 4, T, 64) for _ in range(4)]
    rows = torch.arange(T, device=device)
    mask, tokens = torch.ones(4, 16, device=device, dtype=torch.bool), make(4, 16, D)
    found = torch.topk(x, 8)
    named = {
        "attention": heads[:3],
        "cast": (x, "float32"),
        "embedding": (rows, square),
        "embedding_backward": (x, rows, D),
        "layer_norm": (x, w, b),
        "layer_norm_backward": (x, y, w),
        "linear": (x, square, b),
        "linear_backward": (x, y, square),
        "masked_mean": (tokens, mask),
        "masked_mean_backward": (make(4, D), mask),
        "matmul": (x, square),
        "matmul_backward": (x, y, square),
        "native_layer_norm": (x, w, b),
        "rms_norm": (x, w),
        "rms_norm_backward": (x, y, w),
        "silu_and_mul_backward": (make(T, D // 2), x),
        "topk": (x, 8),
        "topk_backward": (found[0], found[1], D),
    }
    named |= dict.fromkeys(("add_backward", "mul_backward"), (x, y, make(T, D)))
    named |= dict.fromkeys(BINARY, (x, y)) | dict.fromkeys(UNARY, (x,))
    return tuple(named[name]) if name in named else None


def torch_call(torch, name: str, args: tuple) -> Callable | None:
    """What a user of torch writes; None where that is more than one call."""
    functional, aten = torch.nn.functional, torch.ops.aten
    x, sizes = args[0], args[0].shape[-1:]
    calls = {
        "add": lambda: torch.add(*args),
        "attention": lambda: functional.scaled_dot_product_attention(*args),
        "cast": lambda: x.to(torch.float32),
        "embedding": lambda: functional.embedding(*args),
        "embedding_backward": lambda: aten.embedding_dense_backward(*args, -1, False),
        "gelu": lambda: functional.gelu(x),
        "gelu_backward": lambda: aten.gelu_backward(*args),
        "l2_normalize": lambda: functional.normalize(x, dim=-1),
        "layer_norm": lambda: functional.layer_norm(x, sizes, *args[1:]),
        "linear": lambda: functional.linear(*args),
        "log_softmax": lambda: torch.log_softmax(x, -1),
        "matmul": lambda: torch.matmul(*args),
        "mul": lambda: torch.mul(*args),
        "native_layer_norm": lambda: torch.native_layer_norm(x, sizes, *args[1:], 1e-5),
        "relu": lambda: torch.relu(x),
        "relu_backward": lambda: aten.threshold_backward(*args, 0),
        "rms_norm": lambda: torch.rms_norm(x, sizes, args[1], 1e-6),
        "silu": lambda: functional.silu(x),
        "silu_backward": lambda: aten.silu_backward(*args),
        "softmax": lambda: torch.softmax(x, -1),
        "topk": lambda: torch.topk(*args),
    }
    return calls.get(name)


def text_call(anyop, torch, name: str, given: dict) -> tuple[Callable | None, int]:
    """The same text by torch's Python, and how many operators it calls for them; None without a text."""
    from anyop.backend import aten
    from anyop.backend.call_text import read_call_text
    from anyop.backend.torch_calls import TorchCalls

    metadata = anyop.metadata(name)
    kernel = next((k for k in metadata["kernels"] if k["backend"] == "aten"), None)
    if not kernel or any(isinstance(value, (list, tuple)) for value in given.values()):
        return None, 0  # a list of tensors is converted on its way to the text
    found = getattr(anyop, name)(**given)
    values = [given.get(p["name"], p.get("default")) for p in metadata["inputs"]]
    if name == "cast":
        values[1] = torch.float32
    values += found if isinstance(found, tuple) else [found]
    names = [p["name"] for p in (*metadata["inputs"], *metadata["results"])]
    text = read_call_text(kernel, names)
    counted = [0]

    def resolve(operator, overload):
        function = getattr(getattr(torch.ops.aten, operator), overload or "default")

        def call(*positional, **named):
            counted[0] += 1
            return function(*positional, **named)

        return call

    aten._Call(torch, TorchCalls(torch), metadata, text, resolve).compute(*values)
    plain = aten._Call(torch, TorchCalls(torch), metadata, text, None).compute
    return (lambda: plain(*values)), counted[0]


def operator(anyop, torch, name: str, options) -> list[dict]:
    given = arguments(torch, name, getattr(torch, options.dtype), options.device)
    ours, args = getattr(anyop, name), tuple(given.values())
    text, count = text_call(anyop, torch, name, given)
    usual = usual_arguments(torch, name, torch.float32, "cpu") is not None  # by position
    sides = {"anyop": (lambda: ours(*args)) if usual else (lambda: ours(**given))} | (
        {"text": text} if text else {}
    )
    theirs = torch_call(torch, name, args) if usual else None
    if theirs:
        sides["torch"] = theirs
    times = turns(torch, sides, options)
    return [compare(name, "torch", options.dtype, times, count)]


def others(torch, device: str) -> dict[str, Callable]:
    """From torch's tensors to those of frameworks that are installed."""
    found = {}
    for caller in ("numpy", "cupy", "jax", "paddle"):
        try:
            module = __import__("jax.dlpack" if caller == "jax" else caller)
            if caller == "jax":
                found[caller] = module.dlpack.from_dlpack
            elif caller == "paddle":
                found[caller] = module.utils.dlpack.from_dlpack
            elif (caller == "cupy") == (device == "cuda"):
                found[caller] = module.from_dlpack
            if caller != "numpy":
                found[caller](torch.ones(1, device=device))
        except Exception as error:
            found.pop(caller, None)
            warnings.warn(f"not from {caller}: {error}", stacklevel=1)
    return found


def from_other(anyop, torch, caller: str, convert: Callable, options) -> list[dict]:
    rows = []
    for name in ("relu", "rms_norm", "linear"):
        if options.only and name not in options.only:
            continue
        given = arguments(torch, name, torch.float32, options.device)
        args = tuple(given.values())
        arrays, ours = [convert(arg) for arg in args], getattr(anyop, name)
        text, count = text_call(anyop, torch, name, given)
        sides = {"anyop": lambda ours=ours, arrays=arrays: ours(*arrays), "text": text}
        sides["torch"] = torch_call(torch, name, args)
        rows.append(compare(name, caller, "float32", turns(torch, sides, options), count))
    return rows


def turns(torch, sides: dict[str, Callable], options) -> dict[str, list[float]]:
    """As harness.take_turns, of a host that runs ahead of its device for CALLS calls."""
    wait = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    times_ns: dict[str, list[float]] = {name: [] for name in sides}
    order = list(sides)
    gc.collect()
    gc.disable()
    for _ in range(options.rounds):
        for name in order:
            side = sides[name]
            side()
            wait()
            begin_ns = time.perf_counter_ns()
            for _ in range(CALLS):
                side()
            times_ns[name].append((time.perf_counter_ns() - begin_ns) / CALLS)
        order.reverse()
    wait()
    gc.enable()
    return times_ns


def compare(name: str, caller: str, dtype: str, times: dict[str, list[float]], count: int) -> dict:
    found = {side: spread(values) for side, values in times.items()}
    ours, least = found["anyop"]["min_ns"], {s: row["min_ns"] for s, row in found.items()}
    row = {"op": name, "caller": caller, "dtype": dtype, "operators": count}
    row |= {
        f"{side}_{key}": value for side, values in found.items() for key, value in values.items()
    }
    peer = least.get("torch", least.get("text"))
    said = "".join(
        f"{least[side]:9.0f} {words}" if side in least else " " * (10 + len(words))
        for side, words in (("torch", "torch"), ("text", f"its text ({count})"))
    )
    if peer:
        one = peer if count <= 1 else least["text"]
        allowed = one + (ONE_CALL - 1) * one / max(count, 1) + max(count - 1, 0) * FURTHER_NS
        row |= {"ratio": round(ours / peer, 3), "at_most_ns": round(allowed)}
        row["met"] = ours <= allowed
        said += f"  {row['ratio']:5.2f}  {'met' if row['met'] else 'MISSED'}"
    print(f"{caller:7}{name:36}{ours:9.0f} ns {said}", flush=True)
    return row


if __name__ == "__main__":
    main()
