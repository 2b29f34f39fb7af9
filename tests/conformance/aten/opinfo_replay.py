# SPDX-License-Identifier: Apache-2.0
"""Replays torch's OpInfo samples through anyop.aten from NumPy arrays, one leaf call of ATen at a time.

    python tests/conformance/aten/opinfo_replay.py [--dtype float32] [--jobs 2] [--samples 2] [--ops add,mul] [--write]

A leaf counts as tried when NumPy can hold all its tensors; the others are counted by reason. It passes when results and
written arguments are torch's; random ones start from the same state of torch's generator. An operator that changes the
shape of its argument is judged by its result; uninitialised results by shape and dtype. --write adds a line to
bench/results/aten_opinfo.jsonl.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from opinfo_compare import difference
from opinfo_record import Freezer, Frozen, Leaf, NotForNumpy, record
from torch.utils._pytree import tree_leaves, tree_map

DTYPES = ("float32", "complex64", "int64", "bool", "bfloat16")


@dataclass
class Count:
    """What was tried and what passed; operators are entries of OpInfo."""

    leaves: Counter = field(default_factory=Counter)  # tried, passed, unfit
    samples: Counter = field(default_factory=Counter)  # whole: all leaves of the sample pass
    operators: Counter = field(default_factory=Counter)
    unfit: Counter = field(default_factory=Counter)  # leaves by reason
    failures: list[tuple[str, str]] = field(default_factory=list)  # leaf, what is wrong
    overloads: set[str] = field(default_factory=set)  # that passed

    def add(self, other: Count) -> None:
        for mine, theirs in zip(vars(self).values(), vars(other).values()):
            mine.extend(theirs) if isinstance(mine, list) else mine.update(theirs)

    def share(self, what: str) -> float:
        counts = getattr(self, what)
        return counts["passed"] / max(1, counts["tried"])


def plain(value: Any) -> Any:
    """What NumPy's user says instead of torch's names."""
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return str(value).removeprefix("torch.")
    return str(value) if isinstance(value, torch.device) else value


def replay(leaf: Leaf, call: Callable) -> str | None:
    """What is wrong with a leaf called from NumPy; None: nothing."""
    copies: dict = {}
    args, kwargs = leaf.arguments(lambda frozen: frozen.array(copies), plain)
    names = [param.name for param in leaf.function._schema.arguments]
    if leaf.random:
        torch.set_rng_state(leaf.rng)
    try:
        results = call(leaf.name, *args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return difference(leaf, results, dict(zip(names, args)) | kwargs)


def stable(leaf: Leaf) -> bool:
    """Whether torch itself gives the recorded values again: parts of some results are never written."""
    copies: dict = {}
    args, kwargs = leaf.arguments(lambda frozen: frozen.tensor(copies))
    if leaf.random:
        torch.set_rng_state(leaf.rng)
    try:
        found = Freezer()(leaf.function(*args, **kwargs))
    except (NotForNumpy, RuntimeError):
        return False

    def arrays(value: Any) -> Any:
        return value.array({}) if isinstance(value, Frozen) else value

    values = tree_map(arrays, found, is_leaf=lambda v: isinstance(v, Frozen))
    return difference(Leaf(leaf.function, results=leaf.results), values, {}) is None


def run_sample(program: Callable[[], Any], call: Callable, count: Count) -> bool | None:
    """Whether every leaf of a sample passes; None: it cannot be judged."""
    state = torch.get_rng_state()
    try:
        leaves = record(program)
    except Exception:
        count.samples["torch refuses"] += 1
        return None
    after = torch.get_rng_state()
    whole = not any(leaf.unfit for leaf in leaves)
    count.unfit.update(leaf.unfit for leaf in leaves if leaf.unfit)
    right = True
    for leaf in leaves:
        if leaf.unfit:
            continue
        wrong = replay(leaf, call)
        if wrong and not stable(leaf):
            count.unfit[f"{leaf.name}: torch itself gives other values each time"] += 1
            continue
        count.leaves.update(["tried"] if wrong else ["tried", "passed"])
        right = right and not wrong
        count.failures += [(leaf.name, wrong)] if wrong else []
        count.overloads.update([] if wrong else [leaf.name])
    torch.set_rng_state(after if len(leaves) else state)
    count.samples.update((["tried", "passed"] if right else ["tried"]) if whole else ["in part"])
    return right


def program(info, sample) -> None:
    """The operator, and its gradient where it has one."""
    results = tree_leaves(info(sample.input, *sample.args, **sample.kwargs))
    wanted = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    if wanted:
        with contextlib.suppress(RuntimeError):  # the samples do not say which have none
            torch.autograd.backward(wanted, [torch.ones_like(result) for result in wanted])


def run_operator(info, dtype: torch.dtype, samples: int | None, call: Callable) -> Count:
    count = Count()
    if dtype not in info.supported_dtypes("cpu"):
        return count
    torch.manual_seed(0)
    backward = info.supports_autograd and dtype in info.supported_backward_dtypes("cpu")
    found = itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=backward), samples)
    judged = [run_sample(partial(program, info, sample), call, count) for sample in found]
    if any(right is not None for right in judged):
        passed = all(right is not False for right in judged)
        count.operators.update(["tried", "passed"] if passed else ["tried"])
    return count


def run(
    names: Iterable[str], dtype: str, samples: int | None, call: Callable | None = None
) -> Count:
    """Operators of OpInfo with these names; call: anyop.aten.call unless told."""
    from torch.testing._internal.common_methods_invocations import op_db

    if call is None:
        import anyop.aten

        call = anyop.aten.call
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    wanted, total = set(names), Count()
    for info in op_db:
        if info.formatted_name in wanted:
            total.add(run_operator(info, getattr(torch, dtype), samples, call))
    return total


def all_names() -> list[str]:
    from torch.testing._internal.common_methods_invocations import op_db

    return list(dict.fromkeys(info.formatted_name for info in op_db))


def run_apart(names: list[str], dtype: str, samples: int | None, jobs: int) -> Count:
    """The same in some processes; small pieces, so that none is last for long."""
    pieces = [names[i :: jobs * 4] for i in range(jobs * 4)]
    total = Count()
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for count in pool.map(run, pieces, [dtype] * len(pieces), [samples] * len(pieces)):
            total.add(count)
    return total


def report(dtype: str, count: Count) -> str:
    lines = [f"OpInfo {dtype}, from NumPy arrays"]
    for what in ("leaves", "samples", "operators"):
        counts = getattr(count, what)
        share = f"{count.share(what):.3%}"
        lines.append(f"  {what:<10}{counts['passed']:>9,} of {counts['tried']:>9,} pass  {share}")
    lines.append(f"  overloads {len(count.overloads):>9,} exercised with right values")
    lines.append(f"  samples of which NumPy can hold a part only: {count.samples['in part']:,}")
    lines += [f"  not tried: {n:>7,} leaves, {reason}" for reason, n in count.unfit.most_common()]
    rest = {k: n for k, n in count.samples.items() if k not in ("tried", "passed", "in part")}
    lines += [f"  {reason}: {n}" for reason, n in rest.items()]
    wrong = Counter((name, text.split("\n")[0][:150]) for name, text in count.failures)
    lines += [f"  FAILS {n:>5} times {name}: {text}" for (name, text), n in wrong.most_common(60)]
    return "\n".join(lines)


def row(dtype: str, samples: int | None, count: Count) -> dict:
    """One line of the results' file."""
    numbers = {
        what: {key: getattr(count, what)[key] for key in ("tried", "passed")}
        for what in ("leaves", "samples", "operators")
    }
    return {
        "dtype": dtype,
        "samples_each": samples or "all",
        **numbers,
        "overloads": len(count.overloads),
        "not_tried": dict(count.unfit.most_common()),
        "fails": dict(Counter(name for name, _ in count.failures).most_common()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="float32", help=f"some of {','.join(DTYPES)}; or all")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--samples", type=int, help="of each operator; all unless told")
    parser.add_argument("--ops", help="names of OpInfo; all unless told")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--json", action="store_true", help="print a line for each dtype, too")
    options = parser.parse_args()
    names = options.ops.split(",") if options.ops else all_names()
    for dtype in DTYPES if options.dtype == "all" else options.dtype.split(","):
        if options.jobs > 1:
            count = run_apart(names, dtype, options.samples, options.jobs)
        else:
            count = run(names, dtype, options.samples)
        print(report(dtype, count), flush=True)
        found = row(dtype, options.samples, count)
        if options.json:
            print("row " + json.dumps(found), flush=True)
        if options.write:
            write_row(found)


def write_row(found: dict) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))
    import anyop
    import numpy as np
    from harness import environment, write

    write("aten_opinfo", [found], environment(anyop, np, torch))


if __name__ == "__main__":
    main()
