# SPDX-License-Identifier: Apache-2.0
"""Draws bench/results as SVGs, anyop beside its peers, and prints the same figures as Markdown tables.

    python bench/plot.py [NAME ...] [--gpu H100] [--results bench/results] [--out docs/figures]

The newest line of each case and side counts. The bars' lengths are

    FAMILY                  operators on rows, on the GPU with most lines: share of the bytes' ceiling, which
                            is a + b -> c of the same run
    KIND_flops, KIND_bytes  on one kind of GPU: TFLOP/s where products bound the best side, else that share
    lists, sampling,        on a GPU: the same share, of operators on lists of tensors, of draws,
    batch_norm              of a batch norm's forward and backward
    cpu_FAMILY              on one thread of a CPU: torch's time over anyop's; below 1 torch is faster.
                            One row alone is left out: its time is that of the call
    calls_FRAMEWORK         nanoseconds of a call
    generate                tokens a second, as multiples of those of transformers' eager generate()

Needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ANYOP, TORCH = "#c0392b", "#7f8c8d"
# Sides in the order of their bars. A side that has no colour here is not drawn.
ROWS = {
    "anyop": ANYOP, "torch": TORCH, "torch.compile": "#2c3e50", "liger": "#2980b9",
    "flag_gems": "#d9a441",
}  # fmt: skip
KERNELS = {
    "anyop": ANYOP, "anyop cuda_sm90": "#e67e22", "anyop cuda": "#f5b7a1", "torch": TORCH,
    "torch, product alone": "#bdc3c7", "torch, two products alone": "#bdc3c7",
    "torch cudnn": "#2c3e50", "torch flash": "#95a5a6", "torch flex": "#5d6d7e", "fa3": "#2980b9",
    "flashinfer": "#27ae60", "flash_mla": "#8e44ad",
}  # fmt: skip
LISTS = {
    "anyop": ANYOP, "anyop, of probs": "#e67e22", "torch": TORCH, "torch foreach": "#95a5a6",
    "torch fused": "#bdc3c7", "torch, synchronised": "#95a5a6", "flashinfer": "#27ae60",
    "flashinfer, of probs": "#7dcea0",
}  # fmt: skip
# What tells the cases of bench/results/cuda_NAME.jsonl apart.
SHARES = {
    "lists": ("case", "shape", "dtype"), "sampling": ("case", "rows"),
    "batch_norm": ("shape", "dtype"),
}  # fmt: skip
DTYPES = {"float32": ANYOP, "bfloat16": "#e67e22", "float16": "#f5b7a1"}
PEER = "transformers"
WRITERS = {
    "anyop from numpy": "#e6b0aa", "anyop from torch": ANYOP, "anyop from jax": "#d98880",
    "anyop from paddle": "#f2d7d5", f"{PEER}, joined": "#2980b9", f"{PEER}, replaced": "#7fb3d5",
    PEER: TORCH, f"{PEER}, static": "#2c3e50",
}  # fmt: skip
CALLS = {"anyop": ANYOP, "others": TORCH}
HEAVY_TFLOPS = 100.0  # of the best side: below, a case is bound by bytes
SHORT_US = 60.0  # as bench/gpu/cuda_rows.py: below, a graph's own time is taken off


@dataclass
class Picture:
    title: str
    label: str  # of the axis
    colours: dict[str, str]
    bars: dict[tuple[str, ...], dict[str, tuple[float, str]]]  # by case and side: length, text
    even: float | None = None  # where bars begin, on an axis of powers of 2: two sides are alike

    def sides(self) -> list[str]:
        return [side for side in self.colours if any(side in case for case in self.bars.values())]


def lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def newest(rows: list[dict], *case: str, side: str = "side") -> dict[tuple, dict[str, dict]]:
    """Lines by case, then side."""
    found: dict = defaultdict(dict)
    for row in rows:
        found[tuple(row[field] for field in case)][row[side]] = row
    return found


# ---- each kind of result ----


def of_rows(results: Path, _gpu: str) -> Iterator[tuple[str, Picture]]:
    families: dict = defaultdict(list)
    for row in lines(results / "cuda_rows.jsonl"):
        if "family" in row and row["side"] in ROWS:
            families[row["family"]].append(row)
    for family, rows in families.items():
        gpu, _ = Counter(row["gpu"] for row in rows).most_common(1)[0]
        cases = newest([row for row in rows if row["gpu"] == gpu], "case", "shape")
        for sides in cases.values():
            fill_shares(sides)
        label = f"share of a + b -> c, % ({gpu}); at the bars: us"
        bars = {
            case: {side: shared(row, f"{row['median_us']:.1f}") for side, row in sides.items()}
            for case, sides in cases.items()
        }
        yield family, Picture(family, label, ROWS, bars)


def fill_shares(sides: dict[str, dict]) -> None:
    """Of lines that do not say how many bytes must move, as others of the same call do."""
    moved = max(row["bytes"] for row in sides.values())
    for row in sides.values():
        if not row["bytes"]:
            median = row["median_us"]
            busy = median - row["idle_us"] if median < SHORT_US else median
            row["share_of_ceiling"] = round(moved / busy / (row["ceiling_gb_per_s"] * 1e3), 3)


def shared(row: dict, text: str) -> tuple[float, str]:
    share = row["share_of_ceiling"]
    return 100 * share, f"{text} ({share:.0%})"


def of_kernels(results: Path, gpu: str) -> Iterator[tuple[str, Picture]]:
    for name in ("products", "attention", "latent"):
        rows = [
            row
            for row in lines(results / f"cuda_{name}.jsonl")
            if gpu in row.get("gpu", "") and row["side"] in KERNELS
        ]
        kinds: dict = {"flops": {}, "bytes": {}}
        for case, sides in newest(rows, "case", "shape").items():
            is_heavy = max(row["tflops"] for row in sides.values()) > HEAVY_TFLOPS
            kinds["flops" if is_heavy else "bytes"][case] = {
                side: (row["tflops"], f"{row['tflops']:.0f}")
                if is_heavy
                else shared(row, f"{row['median_us']:.1f}")
                for side, row in sides.items()
            }
        for kind, label in (
            ("flops", "TFLOP/s"),
            ("bytes", "share of a + b -> c, %; at the bars: us"),
        ):
            yield f"{name}_{kind}", Picture(name, f"{label} ({gpu})", KERNELS, kinds[kind])


def of_shares(results: Path, gpu: str) -> Iterator[tuple[str, Picture]]:
    for name, keys in SHARES.items():
        rows = [row for row in lines(results / f"cuda_{name}.jsonl") if gpu in row["gpu"]]
        bars = {
            tuple(map(str, case)): {
                side: shared(row, f"{row['median_us']:.0f}")
                for side, row in sides.items()
                if row.get("share_of_ceiling")
            }
            for case, sides in newest(rows, *keys).items()
        }
        label = f"share of a + b -> c, % ({gpu}); at the bars: us"
        yield name, Picture(name.replace("_", " "), label, LISTS, bars)


def of_cpu(results: Path, _gpu: str) -> Iterator[tuple[str, Picture]]:
    families: dict = defaultdict(list)
    for file in ("kernels", "products", "attention", "convolutions"):
        for row in lines(results / f"{file}.jsonl"):
            if row["threads"] == 1 and row["dtype"] in DTYPES and row.get("rows") != 1:
                case = row.get("case") or row.get("operator") or f"conv_bias_act {row['what']}"
                sizes = row.get("sizes") or f"{row['rows']}x{row['columns']}"
                if family := family_of(case.split()[0]):
                    families[family].append(row | {"case": case, "sizes": sizes})
    for family, rows in families.items():
        bars = {
            case: {dtype: (row["ratio"], f"{row['ratio']:.2f}") for dtype, row in sides.items()}
            for case, sides in newest(rows, "case", "sizes", side="dtype").items()
        }
        label = f"torch's time / anyop's, one thread ({rows[-1]['cpu']})"
        yield f"cpu_{family}", Picture(family, label, DTYPES, bars, even=1)


@cache
def family_of(operator: str) -> str:
    """The folder of its file; nothing for "copy", which is no operator."""
    found = next((ROOT / "ops").glob(f"*/{operator}.toml"), None)
    return found.parent.name if found else ""


def of_calls(results: Path, _gpu: str) -> Iterator[tuple[str, Picture]]:
    for file, name in (("call", "numpy"), ("torch_call", "torch"), ("paddle_call", "paddle")):
        rows = [row for row in lines(results / f"{file}.jsonl") if "call" in row]
        cpu = rows[-1]["cpu"]
        rows = [row for row in rows if row["cpu"] == cpu and row.get("glue", True)]
        bars = {
            case: {
                "anyop" if "anyop" in case[0] else "others": (row["min_ns"], f"{row['min_ns']:.0f}")
                for row in sides.values()
            }
            for case, sides in newest(rows, "call", side="call").items()
        }
        label = f"ns of a call, minima ({cpu})"
        yield f"calls_{name}", Picture(f"calls, {name}", label, CALLS, bars)


def of_generate(results: Path, _gpu: str) -> Iterator[tuple[str, Picture]]:
    rates: dict = defaultdict(dict)
    for row in lines(results / "generate.jsonl"):
        place = row.get("gpu", f"{row['device']}, {row['threads']} threads")
        name = f"{row['size']}, {row['rows']} × {row['context']}, {row['dtype']}, {place}"
        side = row["side"] if row["side"].startswith(PEER) else f"anyop from {row['side']}"
        # A GPU's first.
        rates[row["device"] != "cuda", name][side] = 1e3 * row["rows"] / row["step_ms"]
    bars = {
        (name,): {
            side: (rate / sides[PEER], f"{rate:.0f} ({rate / sides[PEER]:.2f})")
            for side, rate in sides.items()
        }
        for (_, name), sides in sorted(rates.items())
        if PEER in sides
    }
    label = f"tokens a second (at the bars), as multiples of {PEER}'"
    yield "generate", Picture("", label, WRITERS, bars)


KINDS = (of_rows, of_kernels, of_shares, of_cpu, of_calls, of_generate)


# ---- a picture ----


def table(picture: Picture) -> str:
    """The texts of its bars, as Markdown."""
    columns = picture.sides()
    width = len(next(iter(picture.bars)))
    heads = ["case", "shape", "dtype"][:width] + columns
    rows = [heads, ["---"] * len(heads)]
    for case, sides in picture.bars.items():
        rows.append([*case, *(sides[side][1] if side in sides else "" for side in columns)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def draw(picture: Picture, file: Path) -> None:
    """A group of bars for each case, one for each side that was measured."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "anyop"  # the same file for the same numbers
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot

    columns = picture.sides()
    count = sum(len(sides) + 0.6 for sides in picture.bars.values())
    figure, axes = pyplot.subplots(figsize=(9, 1.1 + 0.13 * count), layout="constrained")
    at, ticks = 0.0, []
    for case, sides in picture.bars.items():
        shown = [side for side in columns if side in sides]
        ticks.append((at + (len(shown) - 1) / 2, "  ".join(case)))
        for side in shown:
            length, text = sides[side]
            start = picture.even or 0
            axes.barh(at, length - start, 0.9, start, color=picture.colours[side], label=side)
            axes.text(length, at, f" {text}", va="center", fontsize=6)
            at += 1
        at += 0.6
    axes.set_yticks(*zip(*ticks), fontsize=7)
    axes.set_ylim(at, -1)
    axes.margins(x=0.12)
    axes.set_xlabel(picture.label, fontsize=8)
    axes.set_title(picture.title)
    if picture.even:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
    handles = dict(zip(*reversed(axes.get_legend_handles_labels())))
    figure.legend(
        [handles[side] for side in columns],
        columns,
        loc="outside lower center",
        ncols=4,
        fontsize=7,
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)
    svg = re.sub(r"<!--.*?-->|^ +|(?<=\.\d\d)\d+(?= |$|\")", "", file.read_text(), flags=re.M)
    file.write_text(svg)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of pictures; all without")
    parser.add_argument("--gpu", default="H100", help="the kind of GPU of products and attention")
    parser.add_argument("--results", type=Path, default=ROOT / "bench/results")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/figures")
    options = parser.parse_args()
    for kind in KINDS:
        for name, picture in kind(options.results, options.gpu):
            if picture.bars and (not options.names or name in options.names):
                draw(picture, options.out / f"{name}.svg")
                print(f"## {name}\n\n{table(picture)}\n")


if __name__ == "__main__":
    main()
