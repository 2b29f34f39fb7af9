# SPDX-License-Identifier: Apache-2.0
"""One run of the program: opens model and corpus, gets or makes the index, answers queries."""

from __future__ import annotations

import argparse
import sys
import textwrap
from time import perf_counter_ns
from typing import NamedTuple

import numpy as np

from . import InputError, cache
from .corpus import Corpus, Passage, printable, standard_library, text_folder
from .folder import ModelFolder, model_folder, packaged_model
from .frameworks import KINDS, Framework, Torch
from .index import Index, build, embed, search
from .model import Encoder
from .progress import Progress
from .recorder import Recorder
from .tensor_model import TensorEncoder
from .tokens import Tokenizer
from .weights import Config, read_config, read_weights

SHOWN_CHARACTERS = 240
SHOWN_FILES = 5


class Model(NamedTuple):
    """What the files of a model hold."""

    config: Config
    tokenizer: Tokenizer
    weights: dict[str, np.ndarray]

    @classmethod
    def read(cls, folder: ModelFolder) -> Model:
        config = read_config(folder)
        tokenizer = Tokenizer(folder.read("tokenizer.json"), config.limit)
        if tokenizer.vocabulary > config.V:
            found = f"{tokenizer.vocabulary} words, config.json {config.V}"
            raise InputError(f"the model's files disagree: tokenizer.json has {found}")
        return cls(config, tokenizer, read_weights(folder, config))


class Session:
    def __init__(self, options: argparse.Namespace):
        self._anyop = working_anyop(options.threads)
        self._options = options
        self._ops = Recorder(self._anyop, options.device)
        self._queries = 0
        self._query_ns = 0
        corpus, folder = open_corpus(options), open_folder(options)
        framework = open_framework(options)
        model = Model.read(folder)
        self._tokenizer = model.tokenizer
        self._encoder = make_encoder(self._anyop, model, framework, self._ops)
        note(f"model: {folder.origin}")
        self._index, self._cached = self._get_index(corpus, folder.digest())
        self._vectors = self._encoder.tensor(self._index.vectors)
        self._describe_index()

    def answer(self, query: str) -> list[str]:
        """Lines that show the best passages."""
        begin_ns = perf_counter_ns()
        with self._ops.measure():
            tokens = self._tokenizer.encode([query])
            if len(tokens[0].ids) <= self._tokenizer.special:
                raise InputError("the query has no characters that the model can read")
            vector = embed(self._encoder, tokens, 1)
            tensors = self._encoder.tensor(vector), self._vectors
            passages, top = self._index.passages, self._options.top
            hits = search(self._ops, self._encoder.framework, passages, *tensors, top)
        self._queries += 1
        self._query_ns += perf_counter_ns() - begin_ns
        if tokens[0].truncated:
            limit = self._tokenizer.limit
            note(f"the query has {tokens[0].count:,} tokens, the model reads the first {limit}")
        lines = [f"query: {printable(query)}", ""]
        for rank, (score, passage) in enumerate(hits, start=1):
            lines += show(rank, score, passage)
        return lines

    def last_query(self) -> str:
        """One line of where the time went since the last call."""
        line = self._ops.line()
        self._ops.clear()
        return line

    def report(self) -> list[str]:
        """Lines that show speed, and which operators ran where for which share of the time."""
        index = self._index
        made = f"{len(index.passages):,} passages at {index.sentences_per_second:,.0f} sentences/s"
        when = "kept from an earlier run" if self._cached else f"made in {index.seconds:.1f} s"
        lines = [f"index: {made} ({when})"]
        if self._queries:
            speed = self._queries / (self._query_ns / 1e9)
            lines.append(f"query: {self._query_ns / 1e6:.1f} ms, {speed:,.0f} sentences/s")
        if self._ops.total_ns:
            lines += ["", *self._ops.table()]
            self._ops.clear()
        return lines

    def _get_index(self, corpus: Corpus, model_digest: str) -> tuple[Index, bool]:
        """The index of this corpus and model, and whether it came from the cache."""
        framework = self._options.framework + " compiled" * self._options.compile
        parts = (model_digest, self._anyop.__version__, framework, self._options.device)
        if not self._options.no_cache:
            index = load_cached(cache.key(corpus.digest(), *parts))
            if index is not None:
                return index, True
        note(f"reading {corpus.title}")
        reading = corpus.read()
        progress = Progress("indexing", len(reading.passages))
        size = self._options.batch_size
        with self._ops.measure():
            index = build(self._encoder, self._tokenizer, reading, size, progress)
        if not self._options.no_cache:
            # The digest of what was read: a file may have changed since the first look.
            save_cached(cache.key(reading.digest, *parts), index)
        return index, False

    def _describe_index(self) -> None:
        skipped, truncated = self._index.skipped, self._index.truncated
        for line in skipped[:SHOWN_FILES]:
            note(f"skipped {line}")
        if len(skipped) > SHOWN_FILES:
            note(f"skipped {len(skipped) - SHOWN_FILES:,} more files")
        if truncated:
            limit = self._tokenizer.limit
            note(f"{truncated:,} passages were truncated at the model's limit of {limit} tokens")


def working_anyop(threads: int | None):
    """The module anyop, tried out: what it lacks here is said before any time is spent."""
    try:
        import anyop
    except ImportError as error:
        raise InputError(f"anyop cannot be imported ({error}): run make in its folder") from None
    one = np.ones((1, 1))  # float64: some products of float32 need no library
    try:
        if threads is not None:
            anyop.set_num_threads(threads)
        anyop.linear(one, one)  # matrix products need a library of their own
    except (ValueError, NotImplementedError) as error:
        raise InputError(str(error)) from None
    return anyop


def open_corpus(options: argparse.Namespace) -> Corpus:
    return standard_library() if options.corpus is None else text_folder(options.corpus)


def open_folder(options: argparse.Namespace) -> ModelFolder:
    return packaged_model() if options.model is None else model_folder(options.model)


def open_framework(options: argparse.Namespace) -> Framework:
    if options.device != "cpu":
        from . import on_device

        return on_device.KINDS[options.framework](options.device)
    return Torch(compiled=True) if options.compile else KINDS[options.framework]()


def make_encoder(
    anyop, model: Model, framework: Framework, recorder: Recorder | None = None
) -> Encoder | TensorEncoder:
    """The model on the framework's tensors; the recorder, where there is one, notes its calls."""
    if framework.name == "numpy":  # where all results go into memory that is kept
        return Encoder(recorder or anyop, model.config, model.weights, framework)
    # A graph has no place for the recorder's clock: there the model is timed as a whole.
    ops = anyop if framework.compiler else recorder or anyop
    encoder = TensorEncoder(ops, model.config, model.weights, framework)
    return encoder.timed(recorder) if recorder and framework.compiler else encoder


def load_cached(name: str) -> Index | None:
    try:
        return cache.load(name)
    except cache.DamagedError:
        note("the cached index is damaged and will be made again")
    except OSError as error:
        note(f"no index can be kept ({error.strerror or error}), going on without")
    return None


def save_cached(name: str, index: Index) -> None:
    try:
        cache.save(name, index)
    except OSError as error:
        note(f"the index is not kept ({error.strerror or error}), going on without")


def show(rank: int, score: float, passage: Passage) -> list[str]:
    text = printable(passage.text)
    if len(text) > SHOWN_CHARACTERS:
        text = text[:SHOWN_CHARACTERS].rpartition(" ")[0] + " …"
    head = f"{rank:3}  {score:6.3f}  {passage.place} · {passage.part}"
    return [head, *textwrap.wrap(text, 92, initial_indent=" " * 13, subsequent_indent=" " * 13), ""]


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
