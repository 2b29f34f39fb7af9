# SPDX-License-Identifier: Apache-2.0
"""The route native: operators of anyop's in the place of overloads, bit for bit anyop.<op>, and only where they fit."""

from __future__ import annotations

import anyop
import pytest

pytestmark = pytest.mark.anyplatform
host = (
    pytest.mark.host
)  # where every operator has a kernel of its own, and results are those on the CPU

N, M, K = 5, 3, 7


@pytest.fixture
def native(platform):
    """Routes overloads natively, "native, aten" where nothing is said; afterwards routes are as before."""
    import anyop.torch.device as device
    import torch

    changed = []

    def route(*overloads: str, to: str = "native, aten") -> None:
        for overload in overloads:
            device.set_route(overload, to)
            changed.append(overload)

    device.count_calls()
    yield route
    device.count_calls(False)
    for overload in changed:
        torch.ops.anyop_device.set_route(overload, "")


def served(overload: str) -> dict[str, int]:
    import anyop.torch.device as device

    return device.calls(overload)


def test_which_overloads_have_operators(platform):
    import torch

    found = set(torch.ops.anyop_device.native_ops())
    plain = {
        "add.Tensor", "mul.Tensor", "mm", "bmm", "addmm", "relu", "silu", "gelu", "_softmax", "_log_softmax",
        "native_layer_norm", "embedding", "embedding_dense_backward", "topk", "threshold_backward", "silu_backward",
        "gelu_backward", "_softmax_backward_data", "_log_softmax_backward_data", "_addmm_activation", "_grouped_mm",
    }  # fmt: skip
    assert plain <= found
    assert {"add_.Tensor", "add.out", "relu_", "mm.out", "topk.values"} <= found
    assert not found & {"linear", "layer_norm", "matmul"}  # torch makes them of others


# Overload, the call on torch's tensors, and the operator's.
CASES = [
    ("mm", lambda t, x, w, b: x @ w.t(), lambda x, w, b: anyop.matmul(x, w.t())),
    ("addmm", lambda t, x, w, b: t.nn.functional.linear(x, w, b), lambda x, w, b: anyop.linear(x, w, b)),
    ("bmm", lambda t, x, w, b: t.bmm(x[None], w.t()[None]), lambda x, w, b: anyop.matmul(x[None], w.t()[None])),
    ("add.Tensor", lambda t, x, w, b: t.add(x, x[:1], alpha=3), lambda x, w, b: anyop.add(x, x[:1], alpha=3)),
    ("mul.Tensor", lambda t, x, w, b: x * x[0], lambda x, w, b: anyop.mul(x, x[0])),
    ("relu", lambda t, x, w, b: x.relu(), lambda x, w, b: anyop.relu(x)),
    ("relu_", lambda t, x, w, b: x.clone().relu_(), lambda x, w, b: anyop.relu(x)),
    ("add_.Tensor", lambda t, x, w, b: x.clone().add_(x), lambda x, w, b: anyop.add(x, x)),
    ("silu", lambda t, x, w, b: t.nn.functional.silu(x), lambda x, w, b: anyop.silu(x)),
    ("gelu", lambda t, x, w, b: t.nn.functional.gelu(x, approximate="tanh"),
     lambda x, w, b: anyop.gelu(x, approximate="tanh")),
    ("_softmax", lambda t, x, w, b: x.softmax(0), lambda x, w, b: anyop.softmax(x, 0)),
    ("_log_softmax", lambda t, x, w, b: x.log_softmax(-1), lambda x, w, b: anyop.log_softmax(x)),
    ("native_layer_norm", lambda t, x, w, b: t.nn.functional.layer_norm(x, (K,), x[0], x[1], 1e-3),
     lambda x, w, b: anyop.native_layer_norm(x, x[0], x[1], 1e-3)[0]),
    ("topk", lambda t, x, w, b: x.topk(2)[1], lambda x, w, b: anyop.topk(x, 2)[1]),
    ("embedding", lambda t, x, w, b: t.nn.functional.embedding((b > 0).long(), x, padding_idx=0),
     lambda x, w, b: anyop.embedding((b > 0).long(), x)),
]  # fmt: skip


@pytest.mark.parametrize("overload, call, expected", CASES, ids=[case[0] for case in CASES])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_same_bits_as_the_operator(native, inner, overload, call, expected, dtype):
    """On CUDA, where an operator may have PyTorch's kernel alone, those of anyop.<op> on native tensors."""
    import torch

    torch.manual_seed(0)
    given = [torch.randn(*s, dtype=getattr(torch, dtype)) for s in ((N, K), (M, K), (M,))]
    try:
        right = expected(*(t.to(inner) for t in given))
    except NotImplementedError as error:
        pytest.skip(f"on {inner}: {error}")
    native(overload, to="native")
    before = served(overload)["native"]
    found = call(torch, *(t.to("anyop") for t in given))
    assert served(overload)["native"] == before + 1
    assert found.device.type == "anyop" and torch.equal(found.cpu(), right.cpu())


@host
def test_scaled_products_of_8_bits(native):
    """One scale for each operand and fast sums, as cuBLASLt's are; other calls of the overload are torch's."""
    import torch

    native("_scaled_mm")
    x, w = (torch.randint(-2, 3, s).to(torch.float8_e4m3fn) for s in ((32, 64), (48, 64)))
    half, two, bias = torch.tensor(0.5), torch.tensor(4.0), torch.randn(48).bfloat16()
    exact = 2 * x.double() @ w.double().t() + bias.double()
    there = [t.to("anyop") for t in (x, w, half, two, bias)]

    def call(x, w, a, b, bias, fast, dtype=torch.bfloat16):
        return torch._scaled_mm(x, w.t(), a, b, bias, out_dtype=dtype, use_fast_accum=fast)

    for fast, count in ((True, 1), (False, 0)):
        before = served("_scaled_mm")["native"]
        found = call(*there, fast)
        assert served("_scaled_mm")["native"] == before + count
        torch.testing.assert_close(found.cpu().double(), exact, rtol=2.0**-8, atol=2.0**-7)
    right = anyop.linear_w8a8(x, w, half, two, bias, out_dtype="bfloat16")
    assert torch.equal(call(*there, True).cpu(), right)


def test_an_activation_that_depends_on_the_device(native, inner):
    """torch's gelu of _addmm_activation is the exact one on the CPU and that by tanh on CUDA."""
    import torch

    native("_addmm_activation")
    torch.manual_seed(0)
    bias, x, w = torch.randn(24), torch.randn(8, 16), torch.randn(24, 16)
    there = [t.to("anyop") for t in (bias, x, w)]
    for use_gelu in (False, True):
        form = "relu" if not use_gelu else "gelu" if inner == "cpu" else "gelu_tanh"
        before = served("_addmm_activation")["native"]
        try:
            right = anyop.linear_act(*(t.to(inner) for t in (x, w, bias)), activation=form)
        except NotImplementedError as error:
            pytest.skip(f"on {inner}: {error}")
        found = torch._addmm_activation(*there[:2], there[2].t(), use_gelu=use_gelu)
        assert served("_addmm_activation")["native"] == before + 1
        assert torch.equal(found.cpu(), right.cpu())
        theirs = torch._addmm_activation(
            bias.to(inner), x.to(inner), w.to(inner).t(), use_gelu=use_gelu
        )
        torch.testing.assert_close(found.cpu(), theirs.cpu(), rtol=1e-5, atol=1e-5)
    for named in ({"beta": 2}, {"alpha": 0.5}):  # the operator has no factors
        before = served("_addmm_activation")
        torch._addmm_activation(*there[:2], there[2].t(), **named)
        assert served("_addmm_activation")["native"] == before["native"]


@host
def test_segments_by_their_ends(native):
    """_grouped_mm has where segments end; other ranks of it are torch's."""
    import torch

    native("_grouped_mm")
    torch.manual_seed(0)
    x, w = torch.randn(9, 16).bfloat16(), torch.randn(3, 24, 16).bfloat16()
    there = x.to("anyop"), w.to("anyop")
    for ends in ([2, 2, 9], [0, 0, 0], [9, 9, 9], [1, 4, 6]):
        ends = torch.tensor(ends, dtype=torch.int32)
        right = anyop.grouped_linear(x, w, torch.nn.functional.pad(ends, (1, 0)))
        for named in ({}, {"out_dtype": torch.bfloat16}):
            before = served("_grouped_mm")["native"]
            found = torch._grouped_mm(there[0], there[1].transpose(1, 2), ends.to("anyop"), **named)
            assert served("_grouped_mm")["native"] == before + 1
            assert torch.equal(found.cpu(), right)
    before = served("_grouped_mm")["native"]
    ends = torch.tensor([2, 9], dtype=torch.int32)
    for a, b in (
        (w[..., :8], w.transpose(1, 2)[:, :8].contiguous()),
        (x[:8].t().contiguous(), x[:8]),
    ):
        given = [] if a.dim() == 3 else [torch.tensor([8], dtype=torch.int32)]
        found = torch._grouped_mm(*(t.to("anyop") for t in (a, b, *given)))
        torch.testing.assert_close(found.cpu(), torch._grouped_mm(a, b, *given))
    with pytest.raises(RuntimeError):  # ends of two segments, three weights
        torch._grouped_mm(there[0], there[1].transpose(1, 2), ends.to("anyop"))
    assert served("_grouped_mm")["native"] == before


@host
def test_gradients_of_segments_are_atens_own(native):
    import torch

    native("_grouped_mm")
    ends = torch.tensor([3, 3, 9], dtype=torch.int32)
    x, w = torch.randn(9, 16).bfloat16(), torch.randn(3, 16, 24).bfloat16()

    def gradients(device):
        leaves = [t.to(device).requires_grad_() for t in (x, w)]
        torch._grouped_mm(*leaves, ends.to(device)).float().square().sum().backward()
        return [leaf.grad.cpu() for leaf in leaves]

    for found, expected in zip(gradients("anyop"), gradients("cpu")):
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


@host
def test_gradients_are_atens_own_and_backward_is_native_too(native):
    import torch
    import torch.nn.functional as F

    native(
        "mm",
        "silu",
        "silu_backward",
        "relu",
        "threshold_backward",
        "embedding",
        "embedding_dense_backward",
    )
    backward = "mm", "silu_backward", "threshold_backward", "embedding_dense_backward"
    before = {overload: served(overload) for overload in backward}  # by other tests of the process
    table, w = torch.randn(9, K), torch.randn(K, M)
    rows = torch.tensor([1, 2, 2, 8])

    def gradients(device):
        leaves = [t.to(device).requires_grad_() for t in (table, w)]
        x = F.silu(F.embedding(rows.to(device), leaves[0]))
        (x @ leaves[1]).relu().square().sum().backward()
        return [leaf.grad.cpu() for leaf in leaves]

    for found, expected in zip(gradients("anyop"), gradients("cpu")):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    for overload, counted in before.items():
        assert served(overload)["native"] > counted["native"]
        assert served(overload)["aten"] == counted["aten"]


def test_what_does_not_fit_is_the_next_ones(native, inner):
    """Numbers, other dtypes, constants that differ: torch's kernel, with torch's result."""
    import torch

    native("add.Tensor", "mm", "topk", "native_layer_norm", "mul.Tensor")
    x, before = torch.randn(4, 4, device="anyop"), served("add.Tensor")
    theirs, plain = x.cpu().to(inner), lambda t: t.cpu()
    assert torch.equal(plain(x + 1.5), plain(theirs + 1.5))
    y, z = x.cfloat(), theirs.cfloat()
    assert torch.equal(plain(y @ y), plain(z @ z))
    assert torch.equal(plain(x.topk(2, 0)[0]), plain(theirs.topk(2, 0)[0]))
    found, right = (torch.nn.functional.layer_norm(t, (4, 4)) for t in (x, theirs))
    assert torch.equal(plain(found), plain(right))
    zero = torch.ones((), dtype=torch.float64, device="anyop")
    assert (
        x * zero
    ).dtype == torch.float32  # torch's rule of numbers, not the operator's promotion
    for overload in ("add.Tensor", "mm", "topk", "native_layer_norm", "mul.Tensor"):
        assert served(overload)["aten"] > 0
    assert served("add.Tensor")["native"] == before["native"]


@pytest.mark.parametrize("a, b", [((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)), ((4,), (4, 5))])
def test_wrong_calls_are_refused_as_torch_does(native, a, b):
    """mm is the operator matmul, which takes more: what torch refuses stays refused."""
    import torch

    native("mm", "bmm")
    with pytest.raises(RuntimeError):
        torch.mm(torch.randn(a, device="anyop"), torch.randn(b, device="anyop"))
    with pytest.raises(RuntimeError):
        torch.bmm(torch.randn(1, 2, 3, device="anyop"), torch.randn(4, 3, 2, device="anyop"))


@host  # a wrong index ends a process that uses CUDA
def test_a_wrong_index_is_refused_as_torch_does(native):
    import torch

    native("embedding")
    with pytest.raises(IndexError):
        torch.nn.functional.embedding(
            torch.tensor([7], device="anyop"), torch.randn(3, 2, device="anyop")
        )


@host
def test_without_another_in_the_route_it_is_refused(program):
    """ANYOP_FALLBACK=error: nothing but operators may run."""
    text = """
anyop.torch.device.set_route("mm", "native")
x = torch.randn(2, 2, dtype=torch.cfloat).to("anyop")
y = torch.ones(2, 2).to("anyop")
print((y @ y).cpu().tolist())
try:
    x @ x
except NotImplementedError as error:
    print(error)
"""
    out = program(text, ANYOP_FALLBACK="error")
    assert "[[2.0, 2.0], [2.0, 2.0]]" in out and "matmul: a has dtype complex64" in out


def test_a_shrunk_storage_is_not_read_behind_its_end(program):
    text = """
anyop.torch.device.set_route("mm", "native")
x = torch.ones(4, 4).to("anyop")
x.untyped_storage().resize_(16)
try:
    print((x @ x).cpu().tolist())
except NotImplementedError as error:
    print(error)
"""
    assert "matmul does not take self as it is" in program(text, ANYOP_FALLBACK="error")


def test_without_another_in_the_route_torchs_runs(native, inner, capfd):
    """By default it is said once."""
    import torch

    native("bmm", to="native")
    x = torch.randn(2, 2, 2, dtype=torch.cfloat)
    for _ in range(2):
        found, right = (torch.bmm(*[x.to(device)] * 2).cpu() for device in ("anyop", inner))
        assert torch.equal(found, right)
    said = capfd.readouterr().err
    assert said.count("bmm on anyop:0") == 1 and "aten runs instead" in said


@host
def test_written_results(native):
    """In place and out=: the same memory; a result that does not fit is torch's to resize."""
    import torch

    native("add_.Tensor", "mm.out", "relu_")
    x = torch.randn(4, 6, device="anyop")
    view, expected = x[:, ::2], x.cpu()
    version = x._version
    assert view.add_(view) is view and x._version > version
    expected[:, ::2] *= 2
    assert torch.equal(x.cpu(), expected)
    out = torch.empty(0, device="anyop")
    torch.mm(x, x.t(), out=out)
    assert torch.equal(out.cpu(), x.cpu() @ x.cpu().t())
    whole = torch.empty(4, 4, device="anyop")
    assert torch.mm(x, x.t(), out=whole) is whole and served("mm.out")["native"] == 1
    assert torch.equal(whole.cpu(), anyop.matmul(x.cpu(), x.cpu().t()))


@host
def test_only_own_kernels(program):
    """Two layers run with torch's kernels taken away: every overload that computes is an operator of anyop's."""
    out = program(
        """
import anyop
from torch.nn import functional as F
table, w = torch.randn(9, 8), torch.randn(8, 8)
def run(table, w, rows):
    x = F.embedding(rows, table)
    return F.softmax(F.silu(x @ w) + x, -1)
args = [t.to("anyop") for t in (table, w, torch.tensor([3, 1]))]
found = run(*args)
print(torch.allclose(found.cpu(), run(table, w, torch.tensor([3, 1])), atol=1e-6))
try:
    args[0].exp()
except NotImplementedError as error:
    print("refused:", error)
""",
        ANYOP_DISABLE="boxed,cpu_fallback",
        ANYOP_OP_ATEN__EMBEDDING="native",
        ANYOP_OP_ATEN__MM="native",
        ANYOP_OP_ATEN__SILU="native",
        ANYOP_OP_ATEN__ADD="native",
        ANYOP_OP_ATEN___SOFTMAX="native",
    )
    assert out.splitlines()[0] == "True" and "refused: exp" in out


@host
def test_operators_that_come_later_stand_for_overloads(native, tmp_path):
    """A third party's folder names overloads in its schema."""
    import torch

    (tmp_path / "shifted.toml").write_text(
        'schema = "lately::shifted(Tensor x) -> Tensor"\nshapes = { x = "*", out = "*" }\n'
        'aten_overloads = ["digamma(x)"]\n'
    )
    (tmp_path / "shifted.cc").write_text(
        '#include "lately/ops/shifted.h"\n'
        'extern "C" int32_t lately_shifted_cpu(const ShiftedArgs* args, AnyopCall*) {\n'
        "  const float* x = static_cast<const float*>(args->x->data);\n"
        "  float* out = static_cast<float*>(args->out->data);\n"
        "  for (int64_t i = 0; i < args->rows; ++i) out[i] = x[i] + 1000;\n"
        "  return kAnyopOk;\n}\n"
    )
    anyop.load(tmp_path)
    native("digamma")
    x = torch.randn(6)
    assert torch.equal(torch.digamma(x.to("anyop")).cpu(), x + 1000)
