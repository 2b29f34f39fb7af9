# SPDX-License-Identifier: Apache-2.0
"""What mla_decode_test.py runs in a process of its own: python mla_checks.py LIBRARY OPS."""

from __future__ import annotations

import sys

import anyop
import numpy as np
from anyop import testing

SPLITS = (1, 2, 3, 8, 200)  # 200: more than there are tokens


def standard_tests(ops: str) -> int:
    """All standard tests of the three schemas; how many."""
    calls = 0
    for subject in testing.find_subjects(ops):
        for choice in testing.dtype_choices(subject.metadata):
            for case in testing.standard_cases(subject, choice):
                testing.check_case(subject, case)
                calls += 1
        good = testing.Good(subject)
        for refusal in testing.refusals(good):
            testing.check_refusal(good, refusal)
            calls += 1
    return calls


def attention(q: np.ndarray, tokens: np.ndarray, R: int, scale: float):
    """Softmax attention of one sequence in float64, and the logarithm of its sum of exponentials."""
    scores = scale * q.astype(float) @ tokens.astype(float).T
    if len(tokens) == 0:
        return np.zeros((len(q), R)), np.full(len(q), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    total = weights.sum(-1, keepdims=True)
    return weights / total @ tokens[:, :R].astype(float), np.log(total)[:, 0] + scores.max(-1)


class Batch:
    """Sequences of several lengths, 0 among them, in pages that lie anywhere."""

    B, H, R, W, S, M = 5, 20, 48, 64, 8, 6

    def __init__(self, dtype) -> None:
        random = np.random.default_rng(0)
        self.q = random.standard_normal((self.B, self.H, self.W)).astype(dtype)
        self.cache = random.standard_normal((40, self.S, self.W)).astype(dtype)
        self.pages = random.permutation(40)[: self.B * self.M].reshape(self.B, self.M).astype("i4")
        self.lengths = np.array([48, 0, 1, 17, 33], "i4")
        self.pages[4, 5:] = -1  # behind the length: never looked at
        self.indices = random.integers(0, 40 * self.S, (self.B, 37)).astype("i4")
        self.indices[0, ::3] = self.indices[1] = -1
        self.scale = 0.2

    def tokens(self, b: int) -> np.ndarray:
        pages = self.pages[b, : -(-self.lengths[b] // self.S)]
        return self.cache[pages].reshape(-1, self.W)[: self.lengths[b]]

    def chosen(self, b: int) -> np.ndarray:
        return self.cache.reshape(-1, self.W)[self.indices[b][self.indices[b] >= 0]]

    def decode(self, splits: int, mla=None):
        mla = mla or anyop.ops.mla
        partial, lse = mla.decode(
            self.q, self.cache, self.pages, self.lengths, self.R, self.scale, splits
        )
        return mla.combine(partial, lse)

    def sparse(self, splits: int):
        mla = anyop.ops.mla
        parts = mla.sparse_decode(self.q, self.cache, self.indices, self.R, self.scale, splits)
        return mla.combine(*parts)

    def check(self, found, tokens) -> None:
        """Every sequence against attention in one piece."""
        out, total = map(np.asarray, found)
        assert np.isfinite(out).all() and not np.isnan(total).any()
        for b in range(self.B):
            expected, lse = attention(self.q[b], tokens(b), self.R, self.scale)
            np.testing.assert_allclose(out[b], expected, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(total[b], lse, rtol=1e-5, atol=1e-5)


def any_number_of_splits() -> int:
    """Both kinds of decoding with combine, for each dtype and number of splits; how many."""
    import ml_dtypes

    count = 0
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
        batch = Batch(dtype)
        for splits in SPLITS:
            batch.check(batch.decode(splits), batch.tokens)
            batch.check(batch.sparse(splits), batch.chosen)
            out, total = batch.decode(splits)
            assert (out[1] == 0).all() and (total[1] == -np.inf).all()
            count += 2
    return count


def same_in_torch() -> str:
    """torch.ops, compiled, gives NumPy's bits; the result in the dtype that is asked for."""
    import anyop.torch  # noqa: F401  registers torch.ops.mla
    import torch

    batch, there = Batch(np.float32), Batch(np.float32)
    for name in ("q", "cache", "pages", "lengths"):
        setattr(there, name, torch.from_numpy(getattr(batch, name)))
    compiled = torch.compile(lambda b: b.decode(3, torch.ops.mla), fullgraph=True, backend="eager")
    for expected, found in zip(batch.decode(3), compiled(there), strict=True):
        assert expected.tobytes() == found.numpy().tobytes()
    half = torch.ops.mla.combine(torch.ones(2, 3, 4, 5), torch.zeros(2, 3, 4), dtype=torch.bfloat16)
    assert half[0].dtype == torch.bfloat16 and (half[0] == 1).all()
    return "torch agrees"


def same_in_jax() -> str:
    """Decode and combine under jit, where JAX is installed."""
    try:
        import jax
    except ImportError:
        return "jax is not installed"
    batch = Batch(np.float32)

    @jax.jit
    def run(q, cache, pages, lengths):
        parts = anyop.ops.mla.decode(q, cache, pages, lengths, batch.R, batch.scale, 3)
        return anyop.ops.mla.combine(*parts)

    batch.check(run(batch.q, batch.cache, batch.pages, batch.lengths), batch.tokens)
    return "jax agrees"


def errors() -> None:
    """Prints what is said of a length, a page and an index that are outside."""
    for name, value in (("lengths", 49), ("lengths", -1), ("pages", 40), ("indices", -2)):
        batch = Batch(np.float32)
        getattr(batch, name).reshape(-1)[0] = value
        try:
            batch.sparse(2) if name == "indices" else batch.decode(2)
        except ValueError as error:
            print(error)


def main() -> None:
    library, ops = sys.argv[1:]
    assert anyop.load(library) == ["mla.combine", "mla.decode", "mla.sparse_decode"]
    print(standard_tests(ops), "standard tests")
    print(any_number_of_splits(), "batches in splits")
    print(same_in_torch())
    print(same_in_jax())
    errors()


if __name__ == "__main__":
    main()
