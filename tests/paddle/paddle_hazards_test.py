# SPDX-License-Identifier: Apache-2.0
"""What Paddle's users may hand over by mistake: every refusal names the operator and the argument, nothing crashes."""

from __future__ import annotations

import sys

import numpy as np
import prepared
import pytest

paddle = pytest.importorskip("paddle", reason="PaddlePaddle is not installed")

import anyop  # noqa: E402
from anyop.native.glues import paddle_glue  # noqa: E402

NO_MEMORY = r"rms_norm: x is a paddle.Tensor without plain memory \(sparse, distributed, or not"


def lazy():
    with paddle.LazyGuard():
        return paddle.nn.Linear(64, 64).weight


def cleared():
    value = paddle.randn([4, 64])
    value._clear_data()
    return value


WITHOUT_MEMORY = {
    "sparse_coo": lambda: paddle.sparse.sparse_coo_tensor([[0, 1], [1, 2]], [1.0, 2.0], [4, 64]),
    "sparse_csr": lambda: paddle.ones([4, 64]).to_sparse_csr(),
    "cleared": cleared,
    "lazy": lazy,
}


@pytest.mark.parametrize("make", WITHOUT_MEMORY.values(), ids=WITHOUT_MEMORY)
@pytest.mark.parametrize("recorded", [True, False])
def test_without_memory(make, recorded):
    value, weight = make(), paddle.ones([64])
    weight.stop_gradient = not recorded
    with pytest.raises(TypeError, match=NO_MEMORY):
        anyop.rms_norm(value, weight)


def test_other_libraries_in_one_call():
    x = paddle.ones([4, 64])
    with pytest.raises(TypeError, match=r"weight is a numpy.ndarray, expected a paddle.Tensor as"):
        anyop.rms_norm(x, np.ones(64, np.float32))
    with pytest.raises(TypeError, match=r"weight is a paddle.Tensor, expected a numpy.ndarray as"):
        anyop.rms_norm(np.ones((4, 64), np.float32), paddle.ones([64]))
    x.stop_gradient = False
    with pytest.raises(TypeError, match=r"weight is a numpy.ndarray, expected a paddle.Tensor as"):
        anyop.rms_norm(x, np.ones(64, np.float32))
    with paddle.amp.auto_cast(), pytest.raises(TypeError, match=r"weight is a numpy.ndarray"):
        anyop.rms_norm(x, np.ones(64, np.float32))
    with paddle.amp.auto_cast(), pytest.raises(TypeError, match=r"rms_norm: x is a str"):
        anyop.rms_norm("x", x)


def test_torch_in_one_call():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with pytest.raises(TypeError, match=r"weight is a torch.Tensor, expected a paddle.Tensor as"):
        anyop.rms_norm(paddle.ones([4, 64]), torch.ones(64))
    with pytest.raises(TypeError, match=r"weight is a paddle.Tensor, expected a torch.Tensor as"):
        anyop.rms_norm(torch.ones(4, 64), paddle.ones([64]))


def test_dtypes_that_the_operator_has_not():
    for dtype in ("complex64", "float8_e4m3fn", "int64"):
        value = paddle.ones([4, 64]).astype(dtype)
        with pytest.raises(TypeError, match=f"rms_norm: x has dtype {dtype}, expected"):
            anyop.rms_norm(value, value)


def test_a_subclass_is_refused():
    class Own(paddle.Tensor):
        pass

    with pytest.raises(TypeError, match=r"relu: x is a .*Own, expected a paddle.Tensor"):
        anyop.relu(Own(paddle.ones([3])))


def test_what_would_be_dispatched_for_ever_is_refused():
    """A subclass as a result, and a value of a static graph where none is made: once a RecursionError."""

    class Own(paddle.Tensor):
        pass

    x = paddle.ones([2, 3])
    paddle.enable_static()
    with paddle.static.program_guard(paddle.static.Program()):
        value = paddle.static.data("value", [3], "float32")
    paddle.disable_static()
    for name, call in {
        "silu: out is a ": lambda: anyop.silu(x, out=Own(x.numpy())),
        "silu: x is a ": lambda: anyop.silu(value),
        "rms_norm: weight is a ": lambda: anyop.rms_norm(x, value),
        "silu: out is a paddle.base.libpaddle.pir.Value": lambda: anyop.silu(x, out=value),
    }.items():
        with pytest.raises(TypeError, match=f"^{name}.* expected an eager paddle.Tensor"):
            call()


DISTRIBUTED = """
import anyop, paddle
x = paddle.ones([2, 3])
mesh = paddle.distributed.ProcessMesh([0], dim_names=["a"])
odd = {
    "distributed": paddle.distributed.shard_tensor(x, mesh, [paddle.distributed.Replicate()]),
    "sparse": x.to_sparse_coo(2),
    "nothing": paddle.Tensor(),
}
paddle.enable_static()
with paddle.static.program_guard(paddle.static.Program()):
    for name, value in odd.items():
        try:
            anyop.silu(value)
        except TypeError as error:
            assert str(error).startswith("silu: x is a paddle.Tensor without plain memory"), error
            print(name)
"""


def test_tensors_without_memory_in_a_static_graph():
    """Paddle itself ends the process where a distributed tensor reaches its node."""
    words = [sys.executable, "-c", DISTRIBUTED]
    process = prepared.run(
        "paddle",
        words,
    )
    assert process.stdout.split() == ["distributed", "sparse", "nothing"], process.stderr[-2000:]


def test_views():
    """What the operator takes reaches it as it lies; what it does not take is refused, not copied in silence."""
    x = paddle.randn([64, 4])
    assert (anyop.add(x.t(), x.t()) == 2 * x.t()).all()
    wide = paddle.randn([4, 128])
    assert (anyop.rms_norm(wide[:, :64], paddle.ones([64])) == anyop.rms_norm(
        wide[:, :64].contiguous(), paddle.ones([64])
    )).all()  # fmt: skip
    with pytest.raises(ValueError, match=r"rms_norm: x has sizes .* and strides"):
        anyop.rms_norm(x.t(), paddle.ones([64]))


def test_a_view_beyond_its_storage():
    if paddle_glue.load() is None:
        pytest.skip("only the glue sees where the storage ends")
    beyond = paddle.ones([8]).as_strided([100000], [1])
    with pytest.raises((TypeError, ValueError), match="relu: x is larger than its storage"):
        anyop.relu(beyond)


def test_overlap_with_the_result():
    x = paddle.randn([10])
    with pytest.raises(ValueError, match="overlap"):
        anyop.softmax(x[1:], out=x[:-1])
    anyop.relu(x, out=x)
    assert (x >= 0).all()


def test_sizes():
    assert anyop.rms_norm(paddle.zeros([0, 64]), paddle.ones([64])).shape == [0, 64]
    scalar = anyop.add(paddle.to_tensor(1.5), paddle.to_tensor(2.0))
    assert scalar.shape == [] and float(scalar) == 3.5
    for result in (anyop.relu(paddle.ones([2, 3])), anyop.relu(paddle.zeros([0]))):
        assert type(result) is paddle.Tensor and result.place.is_cpu_place()
        assert result.is_contiguous() and result.stop_gradient and result.is_leaf


def test_results_are_paddles_own():
    """They grow, are differentiated and freed as Paddle's; thousands leave nothing behind."""
    x = paddle.randn([1000, 100])
    before = _resident_bytes()
    for _ in range(3000):
        result = anyop.relu(x)
    result.stop_gradient = False
    (result * 2).sum().backward()
    assert float(result.grad[0, 0]) == 2
    assert _resident_bytes() - before < 100e6  # 1.2 GB were made


def _resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


# ---- values of static graphs ----


def test_tensors_of_one_name_are_refused_in_a_graph():
    """Paddle finds them by their names: it gave 1 + 1 for 1 + 5."""
    one, five = paddle.full([2], 1.0), paddle.full([2], 5.0)
    five.name = one.name

    def program(x):
        return anyop.add(anyop.mul(x, one), anyop.mul(five, one))

    with pytest.raises(ValueError, match="mul: x is one of several tensors named"):
        paddle.jit.to_static(program, full_graph=True)(paddle.ones([2]))
    five.name = one.name + "_five"
    found = paddle.jit.to_static(program, full_graph=True)(paddle.ones([2]))
    assert found.numpy().tolist() == [6.0, 6.0]


OTHER_PROGRAMS = """
import numpy as np, paddle, anyop, anyop.paddle
from anyop.testing.paddle_cases import to_paddle

names = to_paddle(np.zeros(2, "uint64")), paddle.ones([2])
paddle.enable_static()
other, mine = paddle.static.Program(), paddle.static.Program()
with paddle.static.program_guard(other):
    foreign = paddle.static.data("x", [2], "float32")
with paddle.static.program_guard(mine):
    x = paddle.static.data("x", [2], "float32")
    for name, wrong in (("foreign", foreign), ("uint64", names[0])):
        try:
            print(name, anyop.cast(wrong, "float32") if name == "uint64" else anyop.mul(x, foreign))
        except (TypeError, ValueError) as error:
            print(name, type(error).__name__, error)
    for again in range(2):  # a value of a block of its own, and of the program's
        anyop.relu(paddle.static.nn.cond(x.sum() > 0, lambda: anyop.relu(x), lambda: x))
del foreign, other
"""


def test_values_that_no_graph_may_take_are_refused():
    """Of another program: Paddle took it, and ended the process when that program was freed."""
    words = [sys.executable, "-c", OTHER_PROGRAMS]
    process = prepared.run("paddle", words, timeout=300)
    assert process.returncode == 0, process.stderr[-3000:]
    said = process.stdout.splitlines()
    assert said[0].startswith("foreign ValueError mul: y is a value of another program"), said
    assert said[1].startswith("uint64 TypeError cast: x is an eager tensor of uint64"), said


def test_numbers_beyond_64_bits_are_refused_when_the_graph_is_made():
    """They would be refused when it runs, or worse, be others."""

    def function(x):
        return anyop.add(x, x, alpha=10**1000)

    with pytest.raises(ValueError, match="add: alpha is out of the range of float64"):
        paddle.jit.to_static(function, full_graph=True)(paddle.ones([2]))
