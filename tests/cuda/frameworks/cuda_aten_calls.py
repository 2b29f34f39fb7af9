# SPDX-License-Identifier: Apache-2.0
"""Varied calls of anyop.aten with CUDA tensors and CuPy's arrays: values against torch, memory, streams, random."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device that torch can use", allow_module_level=True)
sys.path.insert(0, str(Path(__file__).parents[2] / "conformance" / "aten"))

import compare  # noqa: E402
import frameworks  # noqa: E402
import inputs  # noqa: E402
import oracle  # noqa: E402
from anyop import aten  # noqa: E402

CALLS = """
add.Tensor(f32(4, 4), f32(4, 4), alpha=2)
add.Scalar(f64(3, 4), 1.5, 2)
mul.Tensor(c64(3, 4), c64(4))
mul.Tensor(i64(3, 1), i64(1, 4))
sub.Tensor(bf16(3, 4), bf16(3, 4))
div.Tensor_mode(f32(3, 4), f32(3, 4, kind='above one'), rounding_mode='floor')
pow.Tensor_Scalar(f32(3, 4, kind='positive'), 2.5)
bitwise_and.Tensor(i32(3, 4), i32(3, 4))
logical_or(b1(3, 4), b1(4))
where.self(b1(3, 4), f32(3, 4), f32(4))
clamp(f32(3, 4), -0.5, 0.5)
relu(f16(3, 4))
gelu(f32(3, 4), approximate='tanh')
sigmoid(bf16(5))
exp(f64(2, 3, 4))
angle(c64(3, 4))
sum(f32(3, 4))
sum.dim_IntList(f32(3, 4), [1], True, dtype='float64')
mean.dim(f16(3, 4), [0])
amax(i64(3, 4), [1])
argmax(f32(3, 4), 1)
var.correction(f32(3, 4), [1], correction=0)
std_mean.correction(f32(3, 4), [0])
cumsum(i32(3, 4), 1)
max.dim(f32(3, 4), 1)
topk(f32(3, 6), 2)
sort(f32(3, 6), 1, True)
kthvalue(f32(6), 2)
any.dim(b1(3, 4), 0)
nonzero(b1(3, 4))
masked_select(f32(3, 4), b1(3, 4))
unique_dim(i64(5, 2, below=2), 0)
cat([f32(3, 4), f32(2, 4)])
stack([i64(3), i64(3), i64(3)], 1)
split.Tensor(f32(6, 2), 4)
unbind.int(f32(3, 4))
index.Tensor(f32(3, 4), [None, i64([1, 3, 0])])
index_select(f32(3, 4), 1, i64([3, 0]))
index_put(f32(3, 4), [i64([0, 2])], f32(4))
gather(f32(3, 4), 1, i64(3, 2, below=4))
embedding(f32(5, 3), i64(2, 4, below=5))
view(f32(3, 4), [12])
transpose.int(c64(3, 4), 0, 1)
slice.Tensor(f32(6, 2), 0, 1, 6, 2)
expand(f32(3, 1), [3, 4])
permute_copy(f32(2, 3, 4), [2, 0, 1])
mm(f32(3, 4), f32(4, 5))
bmm(f64(2, 3, 4), f64(2, 4, 5))
addmm(f32(5), f32(3, 4), f32(4, 5), beta=0.5)
linear(bf16(3, 4), bf16(5, 4), bf16(5))
einsum('ij,jk->ik', [f32(3, 4), f32(4, 5)])
linalg_solve(f64(4, 4, kind='definite'), f64(4, 2))
linalg_eigh(f64(4, 4, kind='definite'))
conv2d(f32(2, 4, 6, 6), f32(4, 2, 3, 3), f32(4), [1, 1], [1, 1], [1, 1], 2)
max_pool2d_with_indices(f32(2, 3, 6, 6), [2, 2])
native_layer_norm(f32(3, 4), [4], f32(4), f32(4), 1e-05)
_softmax(f32(3, 4), 1, False)
nll_loss(f32(3, 4), i64(3, below=4))
scaled_dot_product_attention(f32(2, 2, 5, 8), f32(2, 2, 5, 8), f32(2, 2, 5, 8))
upsample_bilinear2d.vec(f32(2, 3, 4, 4), None, False, [2.0, 1.5])
fft_rfft(f32(8))
_foreach_add.List([f32(3), f32(2, 2)], [f32(3), f32(2, 2)], alpha=2)
add_.Tensor(f32(3, 4), f32(3, 4))
fill_.Scalar(i64(3, 4), 7)
index_add_(f32(3, 4), 0, i64([0, 2]), f32(2, 4))
add.out(f32(3, 4), f32(3, 4), out=f32(3, 4))
mm.out(f32(3, 4), f32(4, 5), out=f32(3, 5))
dropout(f32(64), 0.5, True)
normal_(f32(64), 1.0, 2.0)
rand_like(f32(64))
""".strip().splitlines()


def put(value, convert):
    """A copy of a call's arguments, arrays converted; and these arrays."""
    if isinstance(value, np.ndarray):
        return convert(value)
    if isinstance(value, list | tuple):
        return [put(item, convert) for item in value]
    return {k: put(v, convert) for k, v in value.items()} if isinstance(value, dict) else value


def cuda(array):
    return frameworks.Torch().put(array).cuda()


def on_host(value):
    if isinstance(value, torch.Tensor):
        return oracle.to_numpy(value.cpu())
    return value.get() if hasattr(value, "get") else value


def torch_says(overload, args, kwargs) -> tuple[list, list]:
    args, kwargs = oracle.as_torch(overload, args, kwargs)
    args, kwargs = (put_tensors(value, lambda tensor: tensor.cuda()) for value in (args, kwargs))
    tensors = [leaf for leaf in compare.leaves([args, kwargs]) if isinstance(leaf, torch.Tensor)]
    results = compare.leaves(oracle.call(overload.name, args, kwargs))
    return [on_host(leaf) for leaf in results], [on_host(tensor) for tensor in tensors]


def put_tensors(value, convert):
    if isinstance(value, torch.Tensor):
        return convert(value)
    if isinstance(value, list | tuple):
        return [put_tensors(item, convert) for item in value]
    return (
        {k: put_tensors(v, convert) for k, v in value.items()} if isinstance(value, dict) else value
    )


def converter(framework: str):
    if framework == "torch":
        return cuda
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    return cupy.asarray


def check_call(line: str, convert) -> None:
    call = inputs.parse(line)
    overload = oracle.overloads()[call.name]
    args, kwargs = inputs.arrays(call)
    expected, after = torch_says(overload, args, kwargs)
    given = [put(list(args), convert), put(kwargs, convert)]
    arrays = [leaf for leaf in compare.leaves(given) if hasattr(leaf, "__dlpack__")]
    torch.manual_seed(oracle.SEED)
    name = call.name if "." in call.name else call.name + ".default"
    found = compare.leaves(aten.call(name, *given[0], **given[1]))
    assert len(found) == len(expected)
    for f, e in zip(found, expected):
        assert not isinstance(e, np.ndarray) or type(f) is type(arrays[0]), type(f)
        assert compare.difference(on_host(f), e) in ("", "close"), compare.difference(on_host(f), e)
    for f, e in zip(arrays, after):
        assert compare.difference(on_host(f), e) in ("", "close"), "an argument afterwards"
    if overload.kind in ("in-place", "out"):
        assert any(found[0] is array for array in arrays), "the result is not the caller's object"


@pytest.mark.parametrize("framework", ["torch", "cupy"])
@pytest.mark.parametrize("line", CALLS, ids=lambda line: line.partition("(")[0])
def test_calls(framework, line):
    convert = converter(framework)
    if framework == "cupy" and "bf16" in line:
        try:
            convert(inputs.arrays(inputs.parse(line))[0][0])
        except (TypeError, ValueError):
            pytest.skip("this CuPy has no bfloat16")
    with torch.no_grad():
        check_call(line, convert)


def test_views_of_cupys_arrays_share_its_memory():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    x = cupy.arange(12, dtype=cupy.float32)
    view = aten.view(x, [3, 4])
    view += 1
    assert x[11] == 12 and aten.t(view).data.ptr == x.data.ptr
    del x
    assert view[0, 0] == 1


def test_cupys_current_stream_is_taken():
    """The input is written on a side stream, behind a long wait: another stream would read it too early."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    spin = cupy.RawKernel(
        'extern "C" __global__ void spin(long long n) { long long t = clock64(); while (clock64() - t < n); }',
        "spin",
    )
    x, zeros = cupy.zeros(1 << 20, cupy.float32), cupy.zeros(1 << 20, cupy.float32)
    before = torch.cuda.current_stream()
    with cupy.cuda.Stream(non_blocking=True) as side:
        for _ in range(3):
            x.fill(0)
            spin((1,), (1,), (np.int64(200_000_000),))
            x.fill(2)
            found = aten.add(x, zeros)
            side.synchronize()
            assert (found == 2).all()
    assert torch.cuda.current_stream() == before


def test_torchs_current_stream_is_taken():
    x, zeros = torch.zeros(1 << 20, device="cuda"), torch.zeros(1 << 20, device="cuda")
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        x.fill_(2)
        found = aten.add(x, zeros)
    side.synchronize()
    assert (found == 2).all()


def test_factories_on_the_device():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    made = aten.full([2, 3], 1.5, dtype="float32", device="cuda", like="cupy")
    assert type(made) is cupy.ndarray and (made == 1.5).all()
    made = aten.arange(5, device="cuda", like="torch")
    assert made.is_cuda and made.tolist() == [0, 1, 2, 3, 4]


def test_seeds_are_repeated_and_the_default_generator_is_left_alone():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    x = cupy.zeros(1000, cupy.float32)
    state = torch.cuda.get_rng_state()
    one, other = (aten.uniform(x, generator=7) for _ in range(2))
    generator = torch.Generator("cuda").manual_seed(7)
    expected = torch.zeros(1000, device="cuda").uniform_(generator=generator)
    assert (one == other).all() and (one.get() == expected.cpu().numpy()).all()
    assert torch.equal(state, torch.cuda.get_rng_state())


def test_memory_of_host_and_device_are_not_mixed():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    with pytest.raises((TypeError, ValueError, RuntimeError)):
        aten.add(cupy.ones(3), np.ones(3))
    with pytest.raises((TypeError, ValueError, RuntimeError)):
        aten.add(torch.ones(3), torch.ones(3, device="cuda"))
