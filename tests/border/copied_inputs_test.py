# SPDX-License-Identifier: Apache-2.0
"""Inputs that an operator copies where they have not its layout: from every caller, the values, and what is said."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import anyop
import numpy as np
import pytest
from anyop import testing
from anyop._load import core
from anyop.testing.standard import has_reference
from anyop.testing.torch_memory import fits_device

# out = 2 x + y over the elements as they lie: wrong for anything but rows without gaps.
SCHEMAS = {
    "blend": """\
schema = "copied::blend(Tensor x, Tensor y, Tensor rows) -> Tensor"
shapes = { x = "*S", y = "*S", rows = "*S", out = "*S" }
layouts = { x = "contiguous, copied", rows = "rows, copied" }
[dtypes]
x = ["float32"]
[kernels]
cpu = "blend.cc"
[backward]
name = "copied::blend_backward"
saves = ["x"]
""",
    "blend_backward": """\
schema = "copied::blend_backward(Tensor grad_out, Tensor x) -> Tensor grad_x"
shapes = { grad_out = "*S", x = "*S", grad_x = "*S" }
dtypes = { grad_out = ["float32"] }
""",
    "lined": """\
schema = "copied::lined(Tensor x) -> Tensor"
shapes = { x = "*", out = "*" }
layouts = { x = "contiguous, copied" }
alignment = { x = 4096 }
""",
    "gather": """\
schema = "copied::gather(Tensor bias, Tensor?[] xs) -> Tensor"
shapes = { xs = "[N] M K", bias = "*B", out = "N" }
dtypes = { bias = ["float32", "complex128", "int8"], xs = "bias", out = "bias" }
layouts = { xs = "contiguous, copied" }
""",
    "spread": """\
schema = "copied::spread(Tensor x, Tensor y) -> Tensor"
shapes = { x = "*X", y = "*Y", out = "broadcast(*X, *Y)" }
layouts = { x = "contiguous, copied", y = "contiguous, copied" }
""",
}
KERNELS = {
    "blend": """\
#include "copied/ops/blend.h"
int32_t copied_blend_cpu(const BlendArgs* args, AnyopCall* call) {
  auto* x = static_cast<const float*>(args->x->data);
  auto* y = static_cast<const float*>(args->y->data);
  auto* out = static_cast<float*>(args->out->data);
  const int64_t n = args->numel_S;
  if (n == 0) return kAnyopOk;
  const AnyopTensor& r = *args->rows;
  const int64_t D = r.ndim ? r.shape[r.ndim - 1] : 1;
  if (D > 1 && r.strides[r.ndim - 1] != 1) return call->fail(call, kAnyopInternalError, "rows");
  for (int64_t i = 0; i < n; ++i) {
    int64_t at = i % D, row = i / D;
    for (int d = r.ndim - 2; d >= 0; --d) {
      at += row % r.shape[d] * r.strides[d];
      row /= r.shape[d];
    }
    out[i] = 2 * x[i] + y[i] + static_cast<const float*>(r.data)[at];
  }
  return kAnyopOk;
}
""",
    "blend_backward": """\
#include "copied/ops/blend_backward.h"
int32_t copied_blend_backward_cpu(const BlendBackwardArgs* args, AnyopCall*) {
  auto* grad = static_cast<const float*>(args->grad_out->data);
  auto* x = static_cast<const float*>(args->x->data);
  auto* out = static_cast<float*>(args->grad_x->data);
  for (int64_t i = 0; i < args->numel_S; ++i) out[i] = 2 * grad[i] + 0 * x[i];
  return kAnyopOk;
}
""",
    "lined": """\
#include <cstring>
#include "copied/ops/lined.h"
int32_t copied_lined_cpu(const LinedArgs* args, AnyopCall* call) {
  const char* x = static_cast<const char*>(args->x->data);
  if (reinterpret_cast<uintptr_t>(x) % 4096) return call->fail(call, kAnyopInternalError, "address");
  std::memcpy(args->out->data, x, static_cast<size_t>(4 * args->rows));
  return kAnyopOk;
}
""",
    "gather": """\
#include <cstring>
#include "copied/ops/gather.h"
// The last element of each.
int32_t copied_gather_cpu(const GatherArgs* args, AnyopCall*) {
  const int64_t item = args->out->dtype_bits / 8;
  for (int64_t k = 0; k < args->N; ++k) {
    const AnyopTensor& x = args->xs.data[k];
    auto* to = static_cast<char*>(args->out->data) + k * item;
    std::memset(to, 0, static_cast<size_t>(item));
    if (x.ndim != 2 || x.shape[0] * x.shape[1] == 0) continue;
    const int64_t last = x.shape[0] * x.shape[1] - 1;
    std::memcpy(to, static_cast<const char*>(x.data) + last * item, static_cast<size_t>(item));
  }
  return kAnyopOk;
}
""",
    "spread": """\
#include "copied/ops/spread.h"
int32_t copied_spread_cpu(const SpreadArgs* args, AnyopCall*) {
  auto *x = static_cast<const float*>(args->x->data), *y = static_cast<const float*>(args->y->data);
  auto* out = static_cast<float*>(args->out->data);
  for (int64_t i = 0; i < args->numel_XY; ++i) {
    int64_t rest = i, at_x = 0, at_y = 0;
    for (int d = args->out->ndim; d--;) {
      const int64_t k = rest % args->out->shape[d];
      rest /= args->out->shape[d];
      at_x += k * args->x->strides[d];
      at_y += k * args->y->strides[d];
    }
    out[i] = x[at_x] + 10 * y[at_y];
  }
  return kAnyopOk;
}
""",
}
REFERENCES = {
    "blend": "def reference(x, y, rows):\n    return 2 * x + y + rows\n",
    "spread": "def reference(x, y):\n    return x + 10 * y\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The operators of this file, loaded."""
    folder = tmp_path_factory.mktemp("copied") / "copied"
    folder.mkdir()
    for name, schema in SCHEMAS.items():
        (folder / f"{name}.toml").write_text(schema)
        (folder / f"{name}.cc").write_text(KERNELS[name])
    for name, reference in REFERENCES.items():
        (folder / f"{name}_test.py").write_text(reference)
    anyop.load(anyop.build(folder))
    return folder


def plain(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


VIEWS = {
    "transposed": plain((70, 45)).T,
    "three turned": plain((5, 6, 7)).transpose(2, 0, 1),
    "rows apart": plain((9, 12))[:, 2:9],
    "steps": plain((9, 12))[::2, ::3],
    "back": plain((4, 6))[::-1, ::-1],
    "one back": plain((11,))[::-1],
    "repeated": np.broadcast_to(plain((6,)), (4, 6)),
    "repeated columns": np.broadcast_to(plain((4, 1)), (4, 6)),
    "one repeated": np.broadcast_to(np.float32(3), (3, 2)),
    "number": np.asarray(np.float32(5)),
    "empty": plain((6, 4))[:0].T,
    "large": plain((700, 900)).T,
}


@pytest.mark.parametrize("kind", VIEWS)
def test_numpys_views_give_the_values_of_their_copies(folder, kind):
    x = VIEWS[kind]
    y = np.ascontiguousarray(x).reshape(x.shape) / 2
    before = x.tobytes()
    wanted = 2 * x + y + x
    np.testing.assert_array_equal(anyop.ops.copied.blend(x, y, x), wanted)
    out = np.full(x.shape, np.nan, np.float32)
    assert anyop.ops.copied.blend(x, y, x, out=out) is out
    np.testing.assert_array_equal(out, wanted)
    assert x.tobytes() == before
    if x.size > 1:
        with pytest.raises(
            ValueError, match=r"blend: y has sizes .* expected it contiguous; copy it first"
        ):
            anyop.ops.copied.blend(y, x, y)


def test_an_address_between_elements_is_refused_and_one_for_vectors_is_the_copys(folder):
    memory = np.zeros(4096 * 3, np.uint8)
    first = -memory.ctypes.data % 4096
    shifted = np.ndarray((3, 2), np.float32, memory.data, first + 4, (16, 4))
    shifted[...] = plain((3, 2))
    np.testing.assert_array_equal(anyop.ops.copied.lined(shifted), shifted)
    between = np.ndarray((3, 2), np.float32, memory.data, first + 2, (16, 4))
    dense = np.ndarray((3, 2), np.float32, memory.data, first + 4)
    for x, bytes_ in ((between, 4), (dense, 4096)):
        with pytest.raises(
            ValueError, match=f"x lies at an address that is no multiple of {bytes_}"
        ):
            anyop.ops.copied.lined(x)


def test_an_input_may_not_overlap_what_is_written(folder):
    memory = plain((4, 4))
    with pytest.raises(ValueError, match="out overlaps x"):
        anyop.ops.copied.blend(memory.T, plain((4, 4)), plain((4, 4)), out=memory)


@pytest.mark.parametrize("dtype", ["float32", "complex128", "int8"])
def test_elements_of_a_list(folder, dtype):
    xs = [
        plain((3, 4)).astype(dtype).T,
        None,
        plain((2, 5)).astype(dtype),
        plain((4, 6)).astype(dtype)[:, 1:3],
    ]
    found = anyop.ops.copied.gather(np.zeros(1, dtype), xs)
    assert found.tolist() == [11, 0, 9, 20]


def test_broadcast_inputs_are_copied_as_they_are_given(folder):
    x, y = plain((3, 2)).T, plain((4, 6))[:, ::2]
    x, y = x[:, None, :], y[None, :, :]
    found = anyop.ops.copied.spread(x, y)
    np.testing.assert_array_equal(found, x + 10 * y)


def test_what_the_router_sees_and_explains(folder):
    x, y = plain((4, 3)).T, plain((3, 4))
    for arguments, copied in (
        ((x, y, y), ["x"]),
        ((x, y, x), ["x", "rows"]),
        ((y, y, y[:, :]), []),
    ):
        assert anyop.explain("copied.blend", *arguments).copied == copied
    text = repr(anyop.explain("copied.blend", x, y, x))
    assert "copies x, rows: not contiguous" in text, text
    inputs = {p["name"]: p["copied"] for p in anyop.metadata("copied.blend")["inputs"]}
    assert inputs == {"x": True, "y": False, "rows": True}
    seen = []
    anyop.register("copied.blend", "plain", lambda x, y, rows, out: seen.append(x.strides) or np.copyto(out, x),
                   device="cpu", when="contiguous(x)=1")  # fmt: skip
    try:
        with anyop.use("plain"):
            assert anyop.explain("copied.blend", x, y, y).chosen == "plain"
            np.testing.assert_array_equal(anyop.ops.copied.blend(x, y, y), x)
    finally:
        anyop.unregister("copied.blend", "plain")
    assert seen == [(16, 4)]


def test_the_standard_tests_take_views_as_good_cases(folder):
    subjects = {s.name.split(".")[-1]: s for s in testing.find_subjects(folder)}
    for name in REFERENCES:
        subject = subjects[name]
        views, calls = set(), 0
        assert has_reference(subject)
        for choice in testing.dtype_choices(subject.metadata):
            for case in testing.standard_cases(subject, choice):
                views |= set(case.layouts.values())
                calls += testing.check_case(subject, case).calls
        assert {"turned", "back", "last_zero"} <= views and calls > 100
        good = testing.Good(subject)
        refused = list(testing.refusals(good, with_torch=False))
        layouts = {r.argument for r in refused if r.kind == "not contiguous"}
        assert layouts == ({"y", "out"} if name == "blend" else {"out"})
        for refusal in refused:
            testing.check_refusal(good, refusal)
        on_device = [c for c in testing.good_cases(subject, good.choice) if fits_device(subject, c)]
        assert {kind for c in on_device for kind in c.layouts.values()} <= {
            "offset",
            "rows",
            "rows_turned",
            "rows_zero",
        }


def test_torch_with_gradients_compile_and_vmap(folder):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import anyop.torch

    x = torch.arange(12.0).reshape(4, 3).t()
    y = torch.ones(3, 4)
    wanted = 3 * x + 1
    call, op = anyop.ops.copied.blend, torch.ops.copied.blend
    for function in (call, op):
        assert torch.equal(function(x, y, x), wanted)
        assert torch.equal(function(x[:0], y[:0], x[:0]), wanted[:0])
        wide = torch.ones(1).expand(3, 4)
        assert torch.equal(function(wide, y, wide), torch.full((3, 4), 4.0))
    faked = op(x.to("meta"), y.to("meta"), x.to("meta"))
    assert faked.shape == (3, 4) and faked.is_contiguous()
    graph = torch.compile(lambda x, y: op(x.sin().t(), y, x.t()) + 1, fullgraph=True)
    torch.testing.assert_close(graph(x.t().contiguous().t().t(), y), op(x.sin(), y, x) + 1)
    eager = torch.compile(lambda x, y: op(x, y, x) * 2, backend="aot_eager", fullgraph=True)
    assert torch.equal(eager(x, y), 2 * wanted)
    batch = torch.arange(24.0).reshape(3, 2, 4).permute(1, 2, 0)  # vmap over it
    found = torch.vmap(op)(batch, torch.ones(2, 4, 3), batch)
    assert torch.equal(found, 3 * batch + 1)
    for function in (call, op):  # what is saved is the view; the gradient's operator takes rows
        leaf = torch.arange(12.0).reshape(4, 3).requires_grad_()
        function(leaf.t(), y, y).backward(torch.arange(12.0).reshape(4, 3).t())
        assert torch.equal(leaf.grad, 2 * torch.arange(12.0).reshape(4, 3))
    with pytest.raises(ValueError, match=r"y has sizes .* copy it first"):
        call(y, x, y)


def test_paddle(folder):
    paddle = pytest.importorskip("paddle", reason="PaddlePaddle is not installed")
    plain_x = paddle.arange(12, dtype="float32").reshape([4, 3])
    y = paddle.ones([3, 4])
    for x in (paddle.transpose(plain_x, [1, 0]), plain_x.as_strided([3, 4], [1, 3])):
        np.testing.assert_array_equal(anyop.ops.copied.blend(x, y, x).numpy(), 3 * x.numpy() + 1)
    assert not x.is_contiguous()
    leaf = paddle.arange(12, dtype="float32").reshape([4, 3])
    leaf.stop_gradient = False
    anyop.ops.copied.blend(paddle.transpose(leaf, [1, 0]), y, y).sum().backward()
    np.testing.assert_array_equal(leaf.grad.numpy(), np.full((4, 3), 2.0))


def test_jax(folder):
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    x = jax.numpy.arange(12.0).reshape(4, 3).T
    found = jax.jit(lambda x: anyop.ops.copied.blend(x, x * 0, x))(x)
    np.testing.assert_array_equal(found, 3 * x)


def test_tvm_ffi(folder):
    tvm_ffi = pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")
    x, y, out = plain((4, 3)).T, plain((3, 4)), np.zeros((3, 4), np.float32)
    function = tvm_ffi.get_global_func("copied.blend")
    function(*map(tvm_ffi.from_dlpack, (x, y, x)), tvm_ffi.from_dlpack(out))
    np.testing.assert_array_equal(out, 3 * x + y)


class Tensor(ctypes.Structure):
    """AnyopTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip

    @staticmethod
    def of(array: np.ndarray) -> Tensor:
        """The array's memory."""
        sizes = (
            (ctypes.c_int64 * 2)(*array.shape),
            (ctypes.c_int64 * 2)(*(s // 4 for s in array.strides)),
        )
        made = Tensor(array.ctypes.data, 1, 0, 2, 2, 32, 1, *map(ctypes.addressof, sizes), 0)
        made.keep = sizes
        return made


class Value(ctypes.Structure):
    """AnyopValue of a tensor."""

    _fields_ = (
        ("kind", ctypes.c_int32), ("reserved", ctypes.c_int32),
        ("tensor", ctypes.POINTER(Tensor)), ("count", ctypes.c_int64),
    )  # fmt: skip


def test_a_call_from_c(folder):
    library = ctypes.CDLL(os.path.join(os.path.dirname(core.__file__), "lib", "libanyop.so"))
    library.AnyopFindOperator.restype = ctypes.c_void_p
    library.AnyopLastError.restype = ctypes.c_char_p
    x, y, out = plain((4, 3)).T, plain((3, 4)), np.zeros((3, 4), np.float32)
    op = ctypes.c_void_p(library.AnyopFindOperator(b"copied.blend"))

    def call(*arrays: np.ndarray, device: int = 1) -> tuple[list[Tensor], int]:
        tensors = [Tensor.of(array) for array in arrays]
        for tensor in tensors:
            tensor.device_type = device
        values = (Value * 4)(*(Value(1, 0, ctypes.pointer(t), 0) for t in tensors))
        return tensors, library.AnyopInvoke(op, values, 4, None)

    tensors, status = call(x, y, x, out)
    assert status == 0, library.AnyopLastError()
    np.testing.assert_array_equal(out, 3 * x + y)
    given = [(t.data, t.shape, t.strides) for t in tensors]
    assert given == [
        (a.ctypes.data, *map(ctypes.addressof, t.keep)) for a, t in zip((x, y, x, out), tensors)
    ]
    assert list(tensors[0].keep[1]) == [1, 3]
    assert call(x, x, x, out)[1] == 1 and b"y has sizes" in library.AnyopLastError()
    assert call(x, y, y, out, device=2)[1] == 1
    said = b"contiguous; copy it first, by .contiguous() or the like: the operator copies it on the CPU"
    assert said in library.AnyopLastError()


# It is said once in each process.
SAID = """
import sys
import numpy as np, anyop
anyop.load(sys.argv[1])
x, y = np.ones((4, 3), np.float32).T, np.ones((3, 4), np.float32)
blend = anyop.ops.copied.blend
anyop.explain("copied.blend", x, y, x)
print("explained", file=sys.stderr, flush=True)
blend(y, y, y[::-1])  # its rows are dense: no copy
print("plain", file=sys.stderr, flush=True)
for _ in range(3):
    blend(x, y, y)
    blend(x[:2], y[:2], y[:2])
print("other", file=sys.stderr, flush=True)
blend(x, y, x)
blend(x, y, x)
"""


@pytest.mark.parametrize("fallback", ["warn", "silent", "error"])
def test_a_copy_is_said_once_for_each_argument(folder, fallback):
    found = subprocess.run(
        [sys.executable, "-c", SAID, anyop.build(folder)],
        env=os.environ | {"ANYOP_FALLBACK": fallback},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 0, found.stderr
    layout = "has sizes (3, 4) and strides (1, 3): it is copied; one that is contiguous"
    said = ["explained", "plain", f"anyop: copied.blend: x {layout} is not", "other"]
    said += [f"anyop: copied.blend: rows {layout} in its last dimension is not"]
    silent = [line for line in said if not line.startswith("anyop")]
    assert found.stderr.splitlines() == (silent if fallback == "silent" else said)
