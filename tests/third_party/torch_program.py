# SPDX-License-Identifier: Apache-2.0
"""What tests/torch/torch_import_test.py runs in a process of its own: the operators of odd/ as torch's."""

import sys
from functools import partial

import anyop
import torch
from anyop._load import core

if sys.argv[2] == "before":
    anyop.load(sys.argv[1])
import anyop.torch

if sys.argv[2] == "after":
    anyop.load(sys.argv[1])
ops, odd = torch.ops.odd, anyop.ops.odd
assert len(anyop.load(sys.argv[1])) == len(vars(odd))  # again is no error


def refused(error, text, call):
    try:
        call()
    except error as found:
        assert text in str(found), found
    else:
        raise AssertionError(f"expected {error.__name__}: {text}")


# A changed argument and a result: versions, functionalisation, both forms.
def count(x, index, y, seen):
    total = odd.count_into(x, index, y, seen)
    return total + 1, x * 2, seen * 1


def counted(f):
    x, seen = torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)
    found = f(x, torch.tensor([2, 0, 2]), torch.ones(3, 2), seen)
    return (*found, x, seen)


expected = [[2, 1, 3], [[2, 2], [0, 0], [4, 4]], [1, 0, 2], [[1, 1], [0, 0], [2, 2]], [1, 0, 2]]
for f in (count, torch.compile(count, fullgraph=True, backend="aot_eager")):
    assert [part.tolist() for part in counted(f)] == expected
arguments = (
    torch.zeros(3, 2),
    torch.tensor([2, 0]),
    torch.ones(2, 2),
    torch.zeros(3, dtype=torch.int64),
)
for op in (ops.count_into, odd.count_into):
    versions = [tensor._version for tensor in arguments]
    op(*arguments)
    changes = [tensor._version - before for tensor, before in zip(arguments, versions)]
    assert changes == [1, 0, 0, 1], changes
torch.library.opcheck(ops.count_into.default, arguments)
refused(
    RuntimeError,
    "a leaf Variable",
    lambda: odd.count_into(torch.zeros(3, 2, requires_grad=True), *arguments[1:]),
)
refused(
    RuntimeError,
    "a leaf Variable",
    lambda: ops.count_into(torch.zeros(3, 2, requires_grad=True), *arguments[1:]),
)
wants = torch.ones(2, 2, requires_grad=True)
for op in (ops.count_into, odd.count_into):
    refused(
        NotImplementedError,
        "odd.count_into: has no gradient",
        lambda op=op: op(*arguments[:2], wants),
    )

# Lists that are changed, and values of every kind.
problem = core.torch_problem("odd.scale_all")
if problem:  # torch's parser takes no defaults of lists of text
    print("odd.scale_all is not tested:", problem)
    xs = [torch.zeros(2)]
    odd.scale_all(xs, [torch.ones(2)])
    assert xs[0].tolist() == [2.0, 2.0]
    with torch._subclasses.FakeTensorMode():
        fakes = [torch.empty(2)]
        refused(NotImplementedError, problem, lambda: odd.scale_all(fakes, fakes))
else:
    for make in (lambda f: f, lambda f: torch.compile(f, fullgraph=True, backend="aot_eager")):
        for op in (odd.scale_all, ops.scale_all):
            xs = [torch.zeros(2), torch.zeros(3, 1)]

            def scale(xs, ys, op=op):
                op(xs, ys, 2.0, pads=[1, 2], notes=["b", "ü"], seed=5)
                return xs[0] + 1

            found = make(scale)(xs, [torch.ones(2), torch.ones(3, 1)])
            assert xs[0].tolist() == [2 + 1 + 20 + 2 + 5] * 2 and found.tolist() == [31.0, 31.0]
    torch.library.opcheck(
        ops.scale_all.default, ([torch.zeros(2)], [torch.ones(2)]), {"pads": [1, 2]}
    )
    two, three = torch.zeros(2, device="meta"), torch.zeros(3, device="meta")
    says = "odd.scale_all: ys has 1 tensors, expected 2"
    refused(ValueError, says, lambda: ops.scale_all([two, two], [two]))
    refused(ValueError, "[element 1]", lambda: ops.scale_all([two, two], [two, three]))

# A result that is made only when it is wanted.
x = torch.arange(8.0).view(2, 4)
total, squares = ops.stats(x)
assert total.tolist() == [6.0, 22.0] and squares.dtype == torch.float64
assert ops.stats(x, results=1)[1] is None and ops.stats(x, torch.float64)[0].dtype == torch.float64
assert odd.stats(x, squares=False)[1] is None
torch.library.opcheck(ops.stats.default, (x,), {"shift": 1.0})
compiled = torch.compile(
    lambda x: odd.stats(x, "float64", squares=False)[0] + 1, fullgraph=True, backend="aot_eager"
)
assert compiled(x).tolist() == [7.0, 23.0]
place = torch.empty(2)
with torch._subclasses.FakeTensorMode():
    fake, fake_place = torch.empty(2, 4), torch.empty(2)
    assert odd.stats(fake, out=(fake_place, None))[0] is fake_place
assert odd.stats(x, total=place)[0] is place and place.tolist() == [6.0, 22.0]

# Lists with None in them; sizes that are expressions of attributes.
parts = [torch.ones(2), None, torch.ones(3, dtype=torch.float64)]
summed = torch.compile(lambda x: odd.sum_parts(x, parts) * 2, fullgraph=True, backend="aot_eager")
assert ops.sum_parts(x, parts)[0, 0] == 5.0 and summed(x)[0, 0] == 10.0
torch.library.opcheck(ops.sum_parts.default, (x, parts))
found = torch.vmap(lambda row: ops.sum_parts(row, parts))(x)
assert torch.equal(found, x + 5)
windows = ops.windows(torch.arange(6, dtype=torch.int16, device="meta"), 3, 2)
assert windows.shape == (2, 3) and windows.dtype == torch.int16
refused(ValueError, "odd.windows: expected width <= L with L=2, width=3", lambda: ops.windows(
    torch.zeros(2, dtype=torch.int16, device="meta"), 3))  # fmt: skip


# A result of an optional tensor's dtype; one tensor is the gradient of two inputs, which are used again elsewhere.
def gained(op, x, y, weight):
    out, total = op(x, y, weight)
    return (out * out).sum() + (total * x).sum() + y.sum()


def plain(x, y, weight):
    total = x + y
    out = total.to(weight.dtype) * weight if weight is not None else total
    return out, total


def leaves(weight_dtype):
    torch.manual_seed(0)
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    weight = None if weight_dtype is None else torch.randn(4, dtype=weight_dtype)
    return [value if value is None else value.requires_grad_() for value in (x, y, weight)]


for dtype in (None, torch.float32, torch.float64):
    given = leaves(dtype)
    expected = torch.autograd.grad(gained(plain, *given), [v for v in given if v is not None])
    assert (ops.gain(*given)[0].dtype, ops.gain(*given)[1].dtype) == (
        dtype or torch.float32,
        torch.float32,
    )
    with torch._subclasses.FakeTensorMode() as mode:
        fakes = [value if value is None else mode.from_tensor(value) for value in given]
        assert ops.gain(*fakes)[0].dtype == (dtype or torch.float32)
    for op in (ops.gain, odd.gain):

        def run(*values, op=op):
            return gained(op, *values)

        for make in (lambda f: f, lambda f: torch.compile(f, fullgraph=True, backend="aot_eager")):
            values = leaves(dtype)
            make(run)(*values).backward()
            for value, wanted in zip((v for v in values if v is not None), expected):
                assert value.grad.dtype == wanted.dtype
                torch.testing.assert_close(value.grad, wanted)
        plain_values = [value if value is None else value.detach() for value in given]
        found = torch.func.grad(run, argnums=tuple(range(len(expected))))(*plain_values)
        for value, wanted in zip(found, expected):
            torch.testing.assert_close(value, wanted)
        only_y = torch.autograd.grad(run(plain_values[0], *given[1:]), given[1])[0]
        torch.testing.assert_close(only_y, expected[1])
        one, two = plain_values[0].clone(), plain_values[1].clone()
        written = op.out if op is ops.gain else op
        write = partial(written, *given, out=one, sum=two)
        refused(RuntimeError, "support automatic differentiation", write)
        if dtype is not torch.float64:
            found = op(one, two, plain_values[2])
            written(one, two, plain_values[2], out=one, sum=two)
            assert torch.equal(one, found[0]) and torch.equal(two, found[1])


# Of a result that nothing depends on there is no gradient, not zeros: 0 * inf would be NaN.
def only_sum(op, x, y, weight):
    return op(x, y, weight)[1].sum()


for op in (ops.gain, odd.gain):
    x, y, weight = leaves(torch.float32)
    endless = torch.full((4,), torch.inf)
    only_sum(op, x, y, endless).backward()
    assert x.grad.unique().tolist() == y.grad.unique().tolist() == [1.0]
    found = torch.func.grad(partial(only_sum, op))(x.detach(), y.detach(), endless)
    assert found.unique().tolist() == [1.0]
refused(TypeError, "odd.gain: weight has dtype int32", lambda: odd.gain(
    torch.ones(2), torch.ones(2), torch.ones(2, dtype=torch.int32)))  # fmt: skip
print("all right")
