# SPDX-License-Identifier: Apache-2.0
"""Compares attention's results and logarithms with other projects' on CUDA, on every shape of the benchmarks.

    python tests/peers/attention.py [--only dense,varlen,...] [--implementations cuda_sm90,cuda]

Cases and calls are those of bench/gpu/cuda_attention.py and bench/gpu/cuda_latent.py: torch's cuDNN and flash kernels,
flash-attn-4, fa3-fwd, FlashInfer and FlashMLA, whichever can be imported. Whole results are compared, each side is also
compared with float64 where the benchmarks do, and what was left out is said with the reason. Ends with 1 where ours is
off in float64's eyes, or differs from a peer that is right there by more than twice a case's limit.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2] / "bench" / "gpu"))
import cuda_attention as dense_bench
import cuda_latent as latent_bench
from cuda_attention import Case, listed, torch

FAMILIES = dense_bench.FAMILIES | {
    f"latent_{name}": family for name, family in latent_bench.FAMILIES.items()
}
PACKAGES = {  # what pip calls it: its modules, of which one is enough
    "fa3-fwd": ("flash_attn_interface", "fa3_fwd_interface"),
    "flash-attn-4": ("flash_attn.cute",),
    "flashinfer-python": ("flashinfer",),
    "sgl-flash-mla": ("flash_mla", "sgl_flash_mla"),
}
WITH_LSE = {"attention": "attention_with_lse", "attention_varlen": "attention_varlen_with_lse"}
ASKS_FOR_LSE = ("return_lse", "return_softmax_lse", "return_attn_probs")  # by project and version
LSE_LIMIT = 2e-3


class Side(NamedTuple):
    """Results in the benchmark's order; logarithms as they came, where there are any."""

    name: str
    results: tuple
    lse: Any
    off: float  # from float64, in the queries and heads that the benchmarks look at


def missing() -> Iterator[str]:
    """Packages that cannot be imported, and why."""
    for package, modules in PACKAGES.items():
        reasons = []
        for module in modules:
            try:
                importlib.import_module(module)
            except Exception as error:  # an extension may fail with anything
                reasons.append(f"{module}: {first_line(error)}")
        if len(reasons) == len(modules):
            yield f"{package} ({'; '.join(reasons)})"


def first_line(error: Exception) -> str:
    text = (str(error).strip() or "no text").splitlines()[0][:120]
    return f"{type(error).__name__}: {text}"


def own_call(case: Case, anyop: Any) -> Callable:
    """Ours with logarithms."""
    if case.operator not in WITH_LSE:
        return case.call
    return partial(getattr(anyop, WITH_LSE[case.operator]), *case.call.args, **case.call.keywords)


def peers_call(case: Case, name: str, call: Callable) -> Callable:
    """A peer's with logarithms, where it is known how to ask for them."""
    aten = torch.ops.aten
    if case.operator == "attention" and name.startswith("torch"):
        q, k, v = case.call.args
        causal = case.call.keywords["causal"]
        if name == "torch cudnn":
            run = aten._scaled_dot_product_cudnn_attention
            return lambda: run(q, k, v, None, True, 0.0, causal, False)[:2]
        run = aten._scaled_dot_product_flash_attention
        return lambda: run(q, k, v, 0.0, causal, False)[:2]
    if not isinstance(call, partial):
        return call
    known = inspect.signature(call.func).parameters
    flag = next((flag for flag in ASKS_FOR_LSE if flag in known), None)
    return partial(call, **{flag: True}) if flag else call


def side_of(case: Case, name: str, call: Callable) -> Side:
    found = listed(call())
    torch.cuda.synchronize()
    off = off_float64(case, found)
    if case.operator == "attention_backward" or len(found) == 1:
        return Side(name, tuple(x for x in found if x is not None)[:3], None, off)
    return Side(name, found[:1], found[-1], off)  # FlashMLA has the largest scores between them


def off_float64(case: Case, found: tuple) -> float:
    """As a part of the case's limit: above 1 it is wrong."""
    exact = case.exact()
    part = case.part(found if len(found) > 1 else found[0]).double()
    error = (part - exact).abs().max().item()
    room = case.limit * (1 + exact.abs().max().item())
    return (error / room if room else math.inf * error) if error else 0.0


def laid_out_like(ours: Any, theirs: Any) -> Any:
    """Heads before tokens where ours are, sequences behind one another, and no dimension of 1 more."""
    if theirs.dim() == ours.dim() + 1:
        theirs = theirs[..., 0] if theirs.shape[-1] == 1 else theirs.transpose(1, 2).flatten(0, 1)
    for one, other in ((0, 1), (1, 2)):
        if theirs.shape != ours.shape and theirs.dim() > other:
            turned = theirs.transpose(one, other)
            theirs = turned if turned.shape == ours.shape else theirs
    if theirs.shape != ours.shape:
        raise ValueError(f"shape {tuple(theirs.shape)}, ours is {tuple(ours.shape)}")
    return theirs


def difference(ours: Any, theirs: Any) -> float:
    """The largest, as a part of 1 and the largest of theirs; infinite where only one is not a number."""
    worst, most = 0.0, 0.0
    theirs = laid_out_like(ours, theirs)
    for a, b in zip(ours, theirs):  # by parts: float64 of all may not fit
        a, b = a.double(), b.double()
        same = (a == b) | (a.isnan() & b.isnan())
        gap = (a - b).abs().masked_fill(same, 0).nan_to_num(nan=math.inf)
        worst = max(worst, gap.max().item() if gap.numel() else 0.0)
        finite = b[b.isfinite()]
        most = max(most, finite.abs().max().item() if finite.numel() else 0.0)
    return worst / (1 + most)


def lse_difference(ours: Any, theirs: Any) -> tuple[float, str]:
    """In the base that is nearer, natural or of 2, for not every version of a peer says which."""
    theirs = laid_out_like(ours, theirs).double()
    gaps = {base: difference(ours, theirs * by) for base, by in (("e", 1.0), ("2", math.log(2)))}
    base = min(gaps, key=gaps.__getitem__)
    return gaps[base], base


def compare(case: Case, ours: Side, theirs: Side) -> tuple[str, bool]:
    """A line of the table, and whether ours is in order."""
    pairs = zip(ours.results, theirs.results, strict=True)
    results = max(difference(a, b) for a, b in pairs)
    lse, base, fits = 0.0, "-", results <= 2 * case.limit
    if ours.lse is not None and theirs.lse is not None:
        lse, base = lse_difference(ours.lse, theirs.lse)
        fits = fits and lse <= LSE_LIMIT
    wrong = [side.name for side in (ours, theirs) if not side.off <= 1]
    right = ours.off <= 1 and (fits or theirs.name in wrong)
    verdict = "" if fits and not wrong else " off float64: " + (", ".join(wrong) or "neither")
    line = (
        f"{case.operator:20}{case.shape:>46} {ours.name:16}{theirs.name:14}{results:10.1e}"
        f"{2 * case.limit:9.1e}{lse if base != '-' else math.nan:10.1e} {base}{verdict}"
    )
    return line, right


def check_case(case: Case, anyop: Any, names: list[str]) -> Iterator[str]:
    """Prints a case's part of the table; gives what is wrong with ours."""
    peers = []
    for name, call in case.peers.items():
        try:
            peers.append(side_of(case, name, peers_call(case, name, call)))
        except Exception as error:  # another project may refuse a call
            print(f"left out: {case.operator} {case.shape} by {name}: {first_line(error)}")
    there = [name for name in names if name in anyop.backends(case.operator)]
    if not there:
        print(f"left out: {case.operator} {case.shape}: this build has none of {', '.join(names)}")
    for name in there:
        with anyop.use(name):
            ours = side_of(case, f"anyop {name}", own_call(case, anyop))
        if not peers:
            print(f"{case.operator:20}{case.shape:>46} {ours.name:16}{'float64':14}")
        if not ours.off <= 1:
            yield f"{case.operator} {case.shape} by {name}: {ours.off:.1f} limits off float64"
        for theirs in peers:
            line, right = compare(case, ours, theirs)
            print(line, flush=True)
            if not right:
                yield f"{case.operator} {case.shape} by {name}: differs from {theirs.name}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(FAMILIES), metavar="FAMILY,FAMILY")
    parser.add_argument("--implementations", default="cuda_sm90,cuda")
    options = parser.parse_args()
    if torch is None or not torch.cuda.is_available():
        print("skipped: there is no CUDA device that torch can use")
        return 0
    import anyop
    import anyop.torch

    for package in missing():
        print("left out, cannot be imported:", package)
    print(f"{'':82} {'differs from':14}{'results':>10}{'limit':>9}{'lse':>10} base")
    wrong = []
    for family in options.only.split(","):
        for case in FAMILIES[family](anyop):
            wrong += check_case(case, anyop, options.implementations.split(","))
    print("\n".join(wrong) or "nothing of ours is off")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
