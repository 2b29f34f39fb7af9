# SPDX-License-Identifier: Apache-2.0
"""Operators: views, writes in place, results given by out=, factories, indexing, scalars, modules, printing."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.anyplatform, pytest.mark.usefixtures("platform")]

VIEWS = {
    "view": lambda x: x.view(4, 6),
    "reshape": lambda x: x.reshape(2, 12),
    "t": lambda x: x.mT,
    "permute": lambda x: x.permute(2, 0, 1),
    "movedim": lambda x: x.movedim(0, 2),
    "select": lambda x: x[1],
    "slice": lambda x: x[:, 1:3],
    "narrow": lambda x: x.narrow(2, 1, 2),
    "steps": lambda x: x[:, ::2, 1::2],
    "diagonal": lambda x: x.diagonal(dim1=1, dim2=2),
    "unfold": lambda x: x.unfold(2, 2, 2),
    "as_strided": lambda x: x.as_strided((3, 4), (5, 1), 2),
    "expand": lambda x: x[:, :1].expand(2, 1, 4)[:, 0],
    "squeeze": lambda x: x.unsqueeze(1).squeeze(1),
    "split": lambda x: x.split(2, 1)[0],
    "chunk": lambda x: x.chunk(2, 2)[1],
    "unbind": lambda x: x.unbind(0)[1],
    "flatten": lambda x: x.flatten(1),
    "detach": lambda x: x.detach(),
    "view_as": lambda x: x.view_as(x),
    "view_dtype": lambda x: x.view(torch.int32).view(torch.float32),
    "set_": lambda x: torch.empty(0, device=x.device).set_(x),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "unflatten": lambda x: x.unflatten(2, (2, 2)),
    "tensor_split": lambda x: x.tensor_split(2)[1],
    "hsplit": lambda x: x.hsplit(3)[2],
    "ravel": lambda x: x.ravel(),
    "data": lambda x: x.data,
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_alias(name, same):
    def write(device):
        x = torch.arange(24.0).reshape(2, 3, 4).to(device)
        view = VIEWS[name](x)
        assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        version = x._version
        view.mul_(10).add_(1)
        assert name in ("detach", "data", "set_") or x._version > version
        x[0, 0, 0] = -5
        return x, view, view.contiguous(), view.clone()

    same(write)


def test_views_of_complex_values(same):
    def write(device):
        x = torch.view_as_complex(torch.arange(12.0).reshape(2, 3, 2).to(device))
        x.real.mul_(2)
        x.imag.add_(1)
        torch.view_as_real(x)[0, 0] = 7
        y = x.conj()
        return x, y * 2, y.resolve_conj(), y.imag.resolve_neg(), y.imag + 1, y.T @ x

    same(write)


def test_views_keep_their_base(same):
    def grads(device):
        x = torch.arange(6.0).to(device).requires_grad_()
        y = x * 1
        y.view(2, 3)[0].mul_(3)
        y.sum().backward()
        assert y.view(2, 3)._base is not None
        return x.grad

    same(grads)


def test_in_place_returns_its_argument(same):
    def write(device):
        x = torch.arange(-3.0, 3.0).to(device)
        for step in (
            lambda: x.add_(1),
            lambda: x.relu_(),
            lambda: x.mul_(x),
            lambda: x.clamp_(max=3),
            lambda: x.copy_(x.flip(0)),
            lambda: x.index_fill_(0, torch.tensor([1], device=device), 9),
            lambda: x.masked_fill_(x > 8, -1),
            lambda: torch.nn.functional.dropout(x, 0.0, inplace=True),
            lambda: x.t_(),
        ):
            assert step() is x
        return x

    same(write)


def test_out_takes_results(same):
    def write(device):
        x, empty = torch.arange(6.0).reshape(2, 3).to(device), torch.empty(0).to(device)
        right, turned = torch.empty(2, 3).to(device), torch.empty(3, 2).to(device).T
        assert torch.add(x, 1, out=right) is right and torch.mul(x, 2, out=turned) is turned
        assert torch.mm(x, x.T, out=empty) is empty
        values, indices = torch.empty(0).to(device), torch.empty(0, dtype=torch.int64).to(device)
        torch.sort(x, descending=True, out=(values, indices))
        part = torch.zeros(4, 3).to(device)
        torch.exp(x, out=part[1:3])
        torch.add(x, x, out=x)
        return right, turned, empty, values, indices, part, x

    same(write)


def test_resizing(same):
    def resize(device):
        x = torch.arange(4.0).to(device)
        view = x[1:]
        x.resize_(2, 3)
        x[1].fill_(5)
        x.resize_as_(view)
        y = torch.arange(6.0).to(device)
        y.resize_(0).resize_(2, 2).fill_(1)
        return x, view, y

    same(resize)


def test_factories(same):
    def make(device):
        on = {"device": device}
        like = torch.ones(2, 3, dtype=torch.float64).to(device)
        return [
            torch.zeros(2, **on),
            torch.ones(2, dtype=torch.int8, **on),
            torch.full((2,), 3, **on),
            torch.arange(1, 10, 3, **on),
            torch.linspace(0, 1, 5, **on),
            torch.logspace(0, 1, 3, **on),
            torch.eye(3, **on),
            torch.tensor([[1, 2], [3, 4]], **on),
            torch.as_tensor([1.0, 2.0], **on),
            torch.scalar_tensor(2.0, **on),
            torch.tril_indices(3, 3, **on),
            torch.hann_window(8, **on),
            torch.zeros_like(like),
            torch.full_like(like, 2),
            like.new_zeros(3),
            like.new_tensor([1, 2]),
            like.new_full((2,), 7),
            torch.complex(like, like),
            torch.stft(torch.arange(32.0, **on), 8, return_complex=True),
            torch.empty(0, 3, **on),
        ]

    same(make)


def test_indexing(same):
    def index(device):
        x = torch.arange(24.0).reshape(4, 6).to(device)
        i, here = torch.tensor([2, 0]), torch.tensor([3, 1]).to(device)
        found = [x[i], x[here], x[:, i], x[here, i], x[x > 10], x[..., None, -1], x[[0, 1], [2, 3]]]
        x[here] = 7
        x[i, 1] = torch.tensor(-1.0)  # a CPU scalar
        x[x == 7] = 0
        x.index_add_(0, here, torch.ones(2, 6).to(device))
        x.scatter_(1, here[:, None], 3.0)
        x[1, 2] = 5
        return [
            *found,
            x,
            x.nonzero(),
            x.unique(),
            torch.where(x > 1),
            x.gather(0, here[None]),
            x.argmax(),
        ]

    same(index)


def test_scalars_come_to_python():
    x = torch.tensor([1.5, 2.5], device="anyop")
    assert (
        x.sum().item() == 4 and float(x[0]) == 1.5 and int(x[1]) == 2 and x.tolist() == [1.5, 2.5]
    )
    assert bool((x > 1).all()) and len(x) == 2 and [float(v) for v in x] == [1.5, 2.5]
    assert f"{x[0]:.2f}" == "1.50" and (3 if x[0] > 1 else 0) == 3 and x[1] in x
    assert torch.equal(x, x.clone()) and torch.allclose(x, x + 1e-9) and not torch.equal(x, -x)
    with pytest.raises(TypeError, match=r"(?i)cpu"):
        x.numpy()
    assert x.cpu().numpy().tolist() == [1.5, 2.5]


def test_printing():
    assert repr(torch.tensor([1.0, 2.0], device="anyop")) == "tensor([1., 2.], device='anyop:0')"
    assert "size=(0, 3)" in repr(torch.empty(0, 3, device="anyop"))
    assert "requires_grad=True" in repr(torch.ones(2, device="anyop", requires_grad=True))
    assert "..." in repr(torch.zeros(2000, 2000, device="anyop"))


def test_dtypes_and_copies(same):
    def cast(device):
        x = torch.linspace(-3, 3, 12).reshape(3, 4).to(device)
        found = [x.to(t) for t in (torch.float16, torch.int8, torch.bool, torch.complex64)]
        back = [x.cpu().to(device), x.T.cpu().to(device, torch.float64)]
        y = torch.zeros(4, 3, dtype=torch.bfloat16).to(device).T.copy_(x)
        y[:, 1:3] = torch.ones(3, 1)  # from the CPU, broadcast
        z = torch.zeros(2, 3, 4).to(device).copy_(x)
        z[1].copy_(torch._efficientzerotensor((3, 4), device=device))
        channels = torch.ones(1, 2, 3, 4).to(device).to(memory_format=torch.channels_last)
        assert channels.is_contiguous(memory_format=torch.channels_last)
        return [*found, *back, y, z, channels, x.half().float(), x.expand(2, 3, 4).contiguous()]

    same(cast)


def test_nothing_is_left_of_how_the_last_tensor_lay(same):
    def calls(device):
        x = torch.arange(24.0).to(device)
        pixels = x.view(1, 2, 3, 4)
        forms = [x, x.view(2, 3, 4), x.view(1, 2, 3, 2, 2, 1), x.view(4, 6).T, x[5], x[:0]]
        forms += [pixels.to(memory_format=torch.channels_last), pixels, x.view(4, 6)[1:, ::2]]
        forms += [x[:1].expand(3, 4), x.long().view(2, 12), x.view(torch.complex64).conj(), x > 3]
        found = []
        for form in [*forms, *reversed(forms)]:
            double = torch.cat([form, form]) if form.dim() else form + 1
            made = [form * form, form.clone(), form.clone().mul_(form), double]
            made += [form.to(torch.complex128), form.half() if form.is_floating_point() else form]
            found += made + [torch.tensor(each.stride()).to(device) for each in made]
        return found

    same(calls)


def test_foreach(same):
    def many(device):
        xs = [torch.full((n,), float(n)).to(device) for n in (1, 3, 5)]
        torch._foreach_add_(xs, 1)
        torch._foreach_mul_(xs, xs)
        return [*xs, *torch._foreach_norm(xs), *torch._foreach_sqrt(xs), *torch._foreach_div(xs, 2)]

    same(many)


def test_tied_weights_stay_tied():
    """By .to, .anyop() and a copy; a step changes both."""

    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(5, 4)
            self.head = torch.nn.Linear(4, 5, bias=False)
            self.head.weight = self.embedding.weight

    for move in (
        lambda m: m.to("anyop"),
        lambda m: m.anyop(),
        lambda m: copy.deepcopy(m.to("anyop")),
    ):
        model = move(Tied())
        assert model.head.weight is model.embedding.weight and model.head.weight.is_anyop
        assert isinstance(model.head.weight, torch.nn.Parameter)
        assert len(list(model.parameters())) == 1
        model.head(model.embedding(torch.tensor([1], device="anyop"))).sum().backward()
        torch.optim.SGD(model.parameters(), 1.0).step()
        assert torch.equal(model.embedding.weight, model.head.weight)
    back = model.to("cpu")
    assert back.head.weight is back.embedding.weight and back.head.weight.is_cpu


def test_modules_move_whole():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    model(torch.randn(4, 3)).sum().backward()
    weight = model[0].weight
    model.to("anyop")
    assert all(t.is_anyop for t in [*model.parameters(), *model.buffers()])
    assert all(p.grad.is_anyop for p in model.parameters())
    assert model[0].weight is weight, "an optimizer made before still has its parameter"
    model.half()
    assert model[0].weight.dtype == torch.float16 and model[0].weight.is_anyop
    model.load_state_dict({key: value.cpu() for key, value in model.state_dict().items()})
    assert model[0].weight.is_anyop


def test_deepcopy():
    x = torch.arange(4.0, device="anyop").requires_grad_()
    x.grad = torch.ones(4, device="anyop")
    y, shared = copy.deepcopy(x), [x.detach()[1:], x.detach()]
    assert y.is_anyop and y.requires_grad and torch.equal(y, x) and y.data_ptr() != x.data_ptr()
    assert torch.equal(y.grad, x.grad) and y.grad.data_ptr() != x.grad.data_ptr()
    a, b = copy.deepcopy(shared)
    a.fill_(9)
    assert b.tolist() == [0, 9, 9, 9] and x.tolist() == [0, 1, 2, 3]
    assert copy.copy(x).data_ptr() == x.data_ptr()


def test_registered_operators():
    import anyop.torch.device as device

    ops = device.registered_ops()
    assert len(ops) == len(set(ops)) > 900
    assert {"add.Tensor", "mm", "convolution", "convolution_backward", "relu_"} <= set(ops)


def test_an_operator_of_the_user(same):
    with torch.library._scoped_library("anyop_device_test", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        same(lambda device: torch.ops.anyop_device_test.twice(torch.arange(3.0).to(device)))


def test_errors_are_torchs(inner):
    """The same exception, the same text but for the device's name; afterwards all is well."""
    mistakes = {
        "shapes": lambda x: x @ x.new_ones(7, 7),
        "broadcast": lambda x: x + x.new_ones(5),
        "dimension": lambda x: x.sum(4),
        "index": lambda x: x[9],
        "dtype": lambda x: x.gather(0, x),
        "view": lambda x: x.view(5),
        "singular": lambda x: torch.linalg.inv(x.new_zeros(2, 2)),
        "type": lambda x: torch.bitwise_and(x, x),
    }
    for name, mistake in mistakes.items():
        texts = []
        for device in (inner, "anyop"):
            with pytest.raises((RuntimeError, IndexError, NotImplementedError)) as raised:
                mistake(torch.ones(3, 4, device=device))
            texts.append((raised.type, str(raised.value).replace("anyop", inner).split("\n")[0]))
        assert texts[0] == texts[1], name
    assert torch.ones(3, device="anyop").sum().item() == 3
