# SPDX-License-Identifier: Apache-2.0
"""One table of all frameworks: speed, difference from float64, and which kernels each of them ran.

Everything happens in one process, so that the kernels can be told apart by their address: calls are
counted where they arrive, at the machine code itself.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
from anyop import testing

from . import InputError
from .corpus import Corpus, Passage
from .frameworks import KINDS
from .index import embed, search
from .reference import reference
from .session import Model, make_encoder, note, open_corpus, open_folder, working_anyop
from .weights import ACTIVATIONS

SAMPLE = 128  # passages that each framework embeds
ROUNDS = 3  # after a first run of each framework; in turn, so that a busy moment is everyone's
REFERENCED = 8  # of them are computed in float64 too, which is slow
# Of vectors of length 1; float32 in another order of addition differs by about 3e-7.
TOLERANCE = 1e-5
OPERATORS = ("embedding", "add", "layer_norm", "linear", "attention", "masked_mean", "l2_normalize")


@dataclass
class Row:
    """What one framework gave; problem says why there is nothing else."""

    name: str
    problem: str = ""
    failed: bool = False  # the problem is a fault, not a framework that is not there
    version: str = ""
    encoder: Callable | None = None
    seconds: float = math.inf  # of the fastest round
    difference: float = 0.0
    answer: str = ""
    calls: Counter = field(default_factory=Counter)  # of each operator's kernel


class Comparison:
    def __init__(self, options: argparse.Namespace, query: str):
        self._anyop = working_anyop(options.threads)
        self._options = options
        self._query = query
        folder = open_folder(options)
        self._model = Model.read(folder)
        note(f"model: {folder.origin}")
        self._read(open_corpus(options))
        self.operators = [*OPERATORS, ACTIVATIONS[self._model.config.activation][0], "topk"]
        for name in self.operators:
            testing.observe(name)

    def _read(self, corpus: Corpus) -> None:
        """Take passages from all over the corpus."""
        passages = corpus.read().passages
        self._passages = _spread(passages, SAMPLE)
        self._title = corpus.title
        tokenizer = self._model.tokenizer
        self._tokens = tokenizer.encode([passage.text for passage in self._passages])
        self._query_tokens = tokenizer.encode([self._query])
        self._referenced = _spread(range(len(self._passages)), REFERENCED)
        note(f"computing {len(self._referenced)} of {len(self._passages)} passages in float64")
        ids = (self._tokens[i].ids for i in self._referenced)
        config, weights = self._model.config, self._model.weights
        self._expected = np.stack([reference(config, weights, text) for text in ids])

    def rows(self) -> list[Row]:
        """One of each framework, whether it is installed or not."""
        rows = [Row(name) for name in KINDS]
        for row in rows:
            self._step(row, self._open)
            self._step(row, self._first_run)
        for _ in range(ROUNDS):
            for row in rows:
                self._step(row, self._round)
        return rows

    def _step(self, row: Row, step: Callable[[Row], None]) -> None:
        """Do one step of a row, unless it has a problem, and count the calls of kernels meanwhile."""
        if row.problem:
            return
        before = {name: self._kernel(name).calls for name in self.operators}
        try:
            step(row)
        except Exception as error:  # one framework's fault must not hide the others' results
            row.failed, row.problem = True, f"failed: {type(error).__name__}: {_first_line(error)}"
        row.calls.update({name: self._kernel(name).calls - before[name] for name in self.operators})

    def _open(self, row: Row) -> None:
        try:
            framework = KINDS[row.name]()
        except InputError as error:
            row.problem = str(error).removeprefix(f"{row.name} ").removeprefix("is ")
            return
        row.version = framework.version
        row.encoder = make_encoder(self._anyop, self._model, framework)

    def _first_run(self, row: Row) -> None:
        note(f"{row.name} {row.version}: {len(self._passages)} passages")
        size = self._options.batch_size
        vectors = embed(row.encoder, self._tokens, size)
        row.difference = float(np.abs(vectors[self._referenced] - self._expected).max())
        query = embed(row.encoder, self._query_tokens, 1)
        tensors = row.encoder.tensor(query), row.encoder.tensor(vectors)
        score, passage = search(self._anyop, row.encoder.framework, self._passages, *tensors, 1)[0]
        row.answer = f"{score:.3f} {_place(passage)}"

    def _round(self, row: Row) -> None:
        begin = perf_counter()
        embed(row.encoder, self._tokens, self._options.batch_size)
        row.seconds = min(row.seconds, perf_counter() - begin)

    def _kernel(self, name: str) -> testing.Kernel:
        return next(kernel for kernel in testing.kernel_calls(name) if kernel.backend == "cpu")

    def lines(self, rows: list[Row]) -> list[str]:
        """The table, then the kernels."""
        return [
            f"{len(self._passages)} passages of {self._title}, {self._options.batch_size} at a "
            f"time, {self._anyop.get_num_threads()} threads, the fastest of {ROUNDS} rounds",
            f"difference: from float64 NumPy without anyop, {len(self._referenced)} passages",
            "",
            *self._table(rows),
            "",
            *self._kernels([row for row in rows if not row.problem]),
        ]

    def _table(self, rows: list[Row]) -> list[str]:
        head = f"{'framework':11}{'version':14}{'sentences/s':>12}{'difference':>13}{'kernels':>9}"
        lines = [f"{head}  best answer"]
        for row in rows:
            if row.problem:
                lines.append(f"{row.name:11}{row.problem}")
                continue
            shared = f"{sum(map(bool, row.calls.values()))}/{len(self.operators)}"
            speed = len(self._passages) / max(row.seconds, 1e-9)
            lines.append(
                f"{row.name:11}{row.version:14}{speed:12,.0f}"
                f"{row.difference:13.1e}{shared:>9}  {row.answer}"
            )
        return lines

    def _kernels(self, rows: list[Row]) -> list[str]:
        """Where the machine code of each operator lies, and how often each framework came there."""
        lines = [f"{'calls that arrived at':48}" + "".join(f"{row.name:>10}" for row in rows)]
        for name in self.operators:
            kernel = self._kernel(name)
            where = f"{os.path.basename(kernel.library or '?')}+{kernel.offset:#x}"
            calls = "".join(f"{row.calls[name]:10,}" for row in rows)
            lines.append(f"{'anyop_' + name + '_' + kernel.backend:24}{where:24}{calls}")
        return lines


def compare(options: argparse.Namespace, query: str) -> int:
    """Print the table; 1 where a framework failed, differs or did not run the kernels, else 0."""
    comparison = Comparison(options, query)
    rows = comparison.rows()
    print("\n".join(comparison.lines(rows)), flush=True)
    problems = [problem for row in rows for problem in _problems(row)]
    for problem in problems:
        print(f"sentence_search: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _problems(row: Row) -> list[str]:
    if row.problem:
        return [f"{row.name} {row.problem}"] * row.failed
    unused = [name for name, calls in row.calls.items() if not calls]
    problems = [f"{row.name} did not run the kernel of {', '.join(unused)}"] * bool(unused)
    if not row.difference <= TOLERANCE:
        problems.append(f"{row.name} differs by {row.difference:.1e}, expected {TOLERANCE:.0e}")
    return problems


def _spread(items, count: int) -> list:
    """At most count items, from all over."""
    step = max(1, len(items) // count)
    return list(items[::step][:count])


def _place(passage: Passage) -> str:
    return f"{passage.place} · {passage.part}"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]
