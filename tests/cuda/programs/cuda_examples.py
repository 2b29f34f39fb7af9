# SPDX-License-Identifier: Apache-2.0
"""The operators of examples/bitonic_sort and examples/mla_decode on CUDA: standard tests, and the CPU's results.

Both folders are built by anyop.build for the device of this machine. For a look at every access to memory:
compute-sanitizer python -m pytest tests/cuda/programs/cuda_examples.py
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import anyop
import pytest
from anyop import testing

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is ml_dtypes'")
if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device that torch can use", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parents[1] / "operators"))
from cuda_operators import fits_torch, on_cuda  # noqa: E402  needs a device

EXAMPLES = Path(__file__).parents[3] / "examples"
FOLDERS = {"sorting": EXAMPLES / "bitonic_sort" / "ops", "mla": EXAMPLES / "mla_decode" / "ops"}
try:
    for library, folder in FOLDERS.items():
        anyop.load(anyop.build(folder, name=library))
except anyop.MissingToolError as error:
    pytest.skip(str(error), allow_module_level=True)

SORT, MLA = anyop.ops.sorting.bitonic_sort, anyop.ops.mla
CHOICES = [
    pytest.param(subject, choice, id=f"{subject.name}-{choice}")
    for folder in FOLDERS.values()
    for subject in testing.find_subjects(folder)
    for choice in testing.dtype_choices(subject.metadata)
]


@pytest.mark.parametrize(("subject", "choice"), CHOICES)
def test_standard_cases(subject, choice):
    there, failures, count = replace(subject, function=on_cuda(subject.function)), [], 0
    for case in filter(fits_torch, testing.standard_cases(subject, choice)):
        count += 1
        try:
            testing.check_case(there, case)
        except testing.CheckError as error:
            failures.append(str(error))
    assert count >= 40 and not failures, f"{len(failures)}:\n" + "\n".join(failures[:8])


# ---- bitonic_sort ----

# Around the elements that a lane holds, the lanes that share a row, the warps of a long one.
WIDTHS = [
    *range(1, 36), 47, 63, 64, 65, 96, 127, 128, 129, 255, 256, 257, 511, 512, 513, 777, 1000, 1023, 1024,
    1025, 2047, 2048, 2049, 3000, 4096, 4097, 8191, 8192,
]  # fmt: skip
SORTED = ("float32", "float16", "bfloat16", "int32")


def numbers(rows: int, D: int, dtype: str):
    """Many of them equal; for floats NaN, infinities and -0 among them."""
    generator = torch.Generator().manual_seed(rows * 1031 + D)
    x = torch.randint(-9, 10, (rows, D), generator=generator).to(getattr(torch, dtype))
    special = [float("nan"), float("inf"), -float("inf"), -0.0]
    if dtype == "int32":
        special = [torch.iinfo(torch.int32).min, torch.iinfo(torch.int32).max]
    for value in special:
        x[torch.rand(x.shape, generator=generator) < 0.05] = value
    return x


def check_sorted(found, x, descending):
    """The bits of the CPU kernel, which sorting_test.py compares with torch."""
    values, indices = SORT(x, descending)
    assert found[0].is_cuda and found[0].dtype == x.dtype and found[1].dtype == torch.int64
    assert torch.equal(found[1].cpu(), indices)
    bits = torch.int32 if x.element_size() == 4 else torch.int16
    assert torch.equal(found[0].cpu().view(bits), values.view(bits))


@pytest.mark.parametrize("dtype", SORTED)
@pytest.mark.parametrize("descending", [False, True])
def test_sort_of_every_width(dtype, descending):
    for D in WIDTHS:
        x = numbers(37, D, dtype)
        check_sorted(SORT(x.cuda(), descending), x, descending)


@pytest.mark.parametrize("rows", [0, 1, 3, 4, 127, 129, 70_001])
def test_sort_of_any_number_of_rows(rows):
    for D in (1, 2, 5, 16, 33, 130, 1030):
        x = numbers(rows, D, "float32")
        check_sorted(SORT(x.cuda()), x, False)


@pytest.mark.parametrize("dtype", SORTED)
def test_sort_of_views(dtype):
    """Rows with gaps, at odd places, in another order; results into such."""
    x = numbers(60, 300, dtype)
    there = x.cuda()
    views = [
        lambda t: t[:, 7:208],
        lambda t: t[::3, 1:],
        lambda t: t.view(3, 4, 5, 300).permute(2, 0, 1, 3),
    ]
    for view in views:
        check_sorted(SORT(view(there), True), view(x), True)
    values, indices = torch.zeros_like(there), torch.full((60, 300), -7, device="cuda")
    found = SORT(there[:, 3:204], values=values[:, 5:206], indices=indices[:, 9:210])
    check_sorted([t.contiguous() for t in found], x[:, 3:204], False)
    assert (indices[:, :9] == -7).all() and (indices[:, 210:] == -7).all()
    assert (values[:, :5] == 0).all() and (values[:, 206:] == 0).all()


def test_sort_refuses_long_rows():
    with pytest.raises(ValueError, match="D <= 8192"):
        SORT(torch.zeros(2, 8193, device="cuda"))


# ---- mla ----

# B, H, W, R, S, M: rows of whole tiles go to tensor cores (16-bit floats), by 16 or by 32 heads; others do not.
BATCHES = [
    (4, 16, 576, 512, 64, 9), (3, 128, 576, 512, 64, 5), (5, 1, 576, 512, 16, 7), (2, 17, 64, 48, 1, 70),
    (2, 33, 32, 16, 3, 33), (1, 40, 1024, 512, 8, 9), (3, 9, 96, 96, 5, 31), (2, 16, 64, 40, 16, 3),
    (2, 12, 100, 70, 7, 12), (1, 3, 1000, 1000, 16, 4), (3, 8, 7, 3, 2, 40), (2, 5, 1, 1, 3, 22),
]  # fmt: skip
FLOATS = ("float32", "float16", "bfloat16")


class Batch:
    """Sequences of several lengths, 0 and full ones among them, in pages that lie anywhere."""

    def __init__(self, sizes, dtype: str, tokens: int = 75) -> None:
        B, H, W, self.R, S, M = sizes
        random, kind = torch.Generator().manual_seed(W), getattr(torch, dtype)
        N = B * M + 2
        self.q = torch.randn(B, H, W, generator=random).to(kind)
        self.cache = torch.randn(N, S, W, generator=random).to(kind)
        self.pages = torch.randperm(N, generator=random)[: B * M].reshape(B, M).int()
        self.lengths = torch.randint(1, M * S + 1, (B,), generator=random).int()
        self.lengths[0] = M * S
        if B > 2:
            self.lengths[1] = 0
        self.indices = torch.randint(0, N * S, (B, tokens), generator=random).int()
        self.indices[0, ::3] = -1

    def there(self) -> Batch:
        copy = object.__new__(Batch)
        copy.__dict__ = {
            k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in vars(self).items()
        }
        return copy

    def decode(self, splits: int):
        return MLA.decode(self.q, self.cache, self.pages, self.lengths, self.R, None, splits)

    def sparse(self, splits: int):
        return MLA.sparse_decode(self.q, self.cache, self.indices, self.R, None, splits)


def check_parts(found, expected, limit: float = 2e-5):
    for one, other in zip(found, expected, strict=True):
        one = one.cpu()
        assert one.dtype == other.dtype and one.shape == other.shape
        empty = other == -torch.inf
        assert torch.equal(one == -torch.inf, empty)
        one, other = one[~empty].double(), other[~empty].double()
        assert ((one - other).abs() <= limit * (1 + other.abs())).all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("sizes", BATCHES, ids=str)
def test_decode(sizes, dtype):
    for tokens in (0, 1, 31, 75):
        batch = Batch(sizes, dtype, tokens)
        there = batch.there()
        for splits in (1, 3, 8):
            check_parts(there.sparse(splits), batch.sparse(splits))
            if tokens == 75:
                check_parts(there.decode(splits), batch.decode(splits))
                check_parts(MLA.combine(*there.decode(splits)), MLA.combine(*batch.decode(splits)))


@pytest.mark.parametrize("dtype", FLOATS)
def test_decode_of_views(dtype):
    """Queries and caches with gaps, aligned to 16 bytes and not."""
    batch = Batch(BATCHES[0], dtype)
    expected = batch.decode(2)
    for pad, begin in ((8, 0), (8, 8), (3, 0), (3, 1)):
        there = batch.there()
        for name in ("q", "cache"):
            tensor = getattr(there, name)
            wide = torch.full(
                (*tensor.shape[:2], 576 + pad), torch.nan, dtype=tensor.dtype, device="cuda"
            )
            view = wide[..., begin : begin + 576]
            setattr(there, name, view.copy_(tensor))
        check_parts(there.decode(2), expected)
    there.q = batch.there().q.transpose(0, 1).contiguous().transpose(0, 1)
    check_parts(there.decode(2), expected)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("sizes", [BATCHES[0], BATCHES[1], BATCHES[10]], ids=str)
def test_what_is_outside_is_nan_and_nothing_else(sizes, dtype):
    for name, at, bad in (
        ("lengths", 2, -1), ("lengths", 2, 10**6), ("pages", (2, 0), -1), ("pages", (2, 0), 10**6),
        ("indices", (2, 40), -2), ("indices", (2, 40), 10**6),
    ):  # fmt: skip
        batch, there = Batch(sizes, dtype), Batch(sizes, dtype).there()
        getattr(there, name)[at] = bad
        run = Batch.sparse if name == "indices" else Batch.decode
        for found, expected in zip(run(there, 1), run(batch, 1), strict=True):
            assert found[2].isnan().all()
            others = [b for b in range(len(found)) if b != 2]
            check_parts([found[others]], [expected[others]])


def test_pages_behind_the_length_are_not_looked_at():
    batch, there = Batch(BATCHES[0], "bfloat16"), Batch(BATCHES[0], "bfloat16").there()
    for b, length in enumerate(batch.lengths.tolist()):
        there.pages[b, -(-length // 64) :] = -(10**9)
    check_parts(there.decode(3), batch.decode(3))


def test_a_cache_of_more_than_two_to_the_31_elements():
    sizes = (2, 16, 576, 512, 64, 9)
    N = (1 << 31) // (64 * 576) + 20
    free, _ = torch.cuda.mem_get_info()
    if free < 3 * N * 64 * 576:
        pytest.skip(f"{free >> 30} GiB are free, {3 * N * 64 * 576 >> 30} are needed")
    batch = Batch(sizes, "bfloat16")
    there, moved = batch.there(), N - len(batch.cache)
    there.cache = torch.zeros(N, 64, 576, dtype=torch.bfloat16, device="cuda")
    there.cache[moved:] = batch.cache.cuda()
    there.pages += moved
    check_parts(there.decode(2), batch.decode(2))
    there.indices[there.indices >= 0] += moved * 64
    if N * 64 < 1 << 31:  # indices are int32
        check_parts(there.sparse(2), batch.sparse(2))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("K", [0, 1, 2, 33])
def test_combine(K, dtype):
    for B, H, R in ((3, 5, 512), (1, 1, 1), (2, 3, 700), (2, 3, 0), (300, 128, 33)):
        random = torch.Generator().manual_seed(K)
        partial = torch.randn(B, K, H, R, generator=random)
        lse = torch.randn(B, K, H, generator=random) * 9
        lse[0, ::2] = -torch.inf
        partial[0, ::2] = torch.nan  # not looked at
        kind = getattr(torch, dtype)
        found, expected = (
            MLA.combine(partial.cuda(), lse.cuda(), dtype=kind),
            MLA.combine(partial, lse, dtype=kind),
        )
        check_parts(found, expected, {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}[dtype])


# ---- both ----


def test_the_callers_stream():
    """Work that was started on another stream, slowly, is done before; nothing waits for the host."""
    stream, batch, x = (
        torch.cuda.Stream(),
        Batch(BATCHES[0], "bfloat16"),
        numbers(5000, 1000, "float32"),
    )
    later, there = torch.zeros_like(x).cuda(), batch.there()
    cache, there.cache = there.cache, torch.zeros_like(there.cache)
    source, slow = x.cuda(), torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(40):
            slow = slow @ slow * 1e-3
        later.copy_(source)
        there.cache.copy_(cache)
        found, parts = SORT(later), there.decode(2)
        joined = MLA.combine(*parts)
    stream.synchronize()
    check_sorted(found, x, False)
    check_parts(joined, MLA.combine(*batch.decode(2)))


def test_in_a_cuda_graph():
    batch = Batch(BATCHES[0], "bfloat16")
    there, graph = batch.there(), torch.cuda.CUDAGraph()
    MLA.combine(*there.decode(4))
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        found = MLA.combine(*there.decode(4))
    there.q.mul_(-1)
    batch.q.mul_(-1)
    graph.replay()
    check_parts(found, MLA.combine(*batch.decode(4)))
