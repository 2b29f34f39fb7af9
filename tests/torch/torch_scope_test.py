# SPDX-License-Identifier: Apache-2.0
"""anyop.use in PyTorch: calls, gradients and graphs run where they were called or traced, and nowhere else."""

from __future__ import annotations

import asyncio
import sys
import threading

import anyop
import numpy as np
import prepared
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import anyop.torch  # noqa: E402
from anyop import _scope  # noqa: E402
from anyop.torch.adapter import python_kernels  # noqa: E402
from torch._dynamo.testing import CompileCounter, CompileCounterWithBackend  # noqa: E402

says_scope = pytest.mark.skipif(
    python_kernels.IS_OLD, reason="torch before 2.10 passes no text to kernels"
)
WAYS = ("function", "torch.ops", pytest.param("use=", marks=says_scope))
COMPILERS = ("eager", "aot_eager", "inductor")
X, W = torch.randn(4, 8), torch.ones(8)
ran: list[str] = []  # "backend" of a forward, "backend'" of a backward

SPIES = """
def spy(backend):
    def forward(x, weight, eps):
        ran.append(backend)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight

    def backward(grad_out, x, weight, eps, *, grad_x, grad_weight):
        ran.append(backend + "'")
        for place in (grad_x, grad_weight):
            if place is not None:
                place[...] = 3

    anyop.register("rms_norm", backend, forward)
    anyop.register("rms_norm_backward", backend, backward)

spy("one")
spy("two")
"""


@pytest.fixture(autouse=True)
def spies():
    torch._dynamo.reset()
    exec(SPIES, {"anyop": anyop, "np": np, "ran": ran})
    ran.clear()
    yield
    for name in ("rms_norm", "rms_norm_backward"):
        anyop.unregister(name, "one")
        anyop.unregister(name, "two")
    torch._dynamo.reset()
    assert not _scope.active and _scope.current.get() is None


def spied():
    """What ran since this was asked for last."""
    found = list(ran)
    ran.clear()
    return found


def leaf():
    return X.clone().requires_grad_()


def norm(x=X):
    return anyop.rms_norm(x, W)


def in_scope(way, x, backend="one"):
    """A call that runs on this backend."""
    if way == "use=":
        return torch.ops.anyop.rms_norm(x, W, use=backend)
    with anyop.use(backend):
        return norm(x) if way == "function" else torch.ops.anyop.rms_norm(x, W)


def in_thread(function, *args):
    thread = threading.Thread(target=function, args=args)
    thread.start()
    thread.join()


# ---- calls ----


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_call(way):
    expected = norm()
    found = in_scope(way, X)
    assert spied() == ["one"]
    torch.testing.assert_close(found, expected)
    torch.ops.anyop.rms_norm(X, W)
    norm()
    assert spied() == []


@says_scope
def test_what_a_call_says_goes_before_the_block():
    place = torch.empty_like(X)
    with anyop.use("one"):
        torch.ops.anyop.rms_norm(X, W, use="two")
        torch.ops.anyop.rms_norm.out(X, W, out=place, use="two=rms_*")
        torch.ops.anyop.rms_norm.out(X, W, out=place)
        torch.ops.anyop.rms_norm(
            X, W, use="two=topk"
        )  # its own scope, which says nothing of this operator
    assert spied() == ["two", "two", "one"]
    torch.testing.assert_close(place, norm())


@says_scope
@pytest.mark.parametrize("text", ["", "one=", ";", "=one", "one=*;;", "one=*\0"])
def test_a_mistake_in_the_text_is_an_error(text):
    with pytest.raises(ValueError, match="rms_norm: use"):
        torch.ops.anyop.rms_norm(X, W, use=text)
    with pytest.raises(RuntimeError, match="use"):
        torch.ops.anyop.rms_norm(X, W, use=3)


@pytest.mark.parametrize("way", WAYS)
def test_transforms_keep_it(way):
    batch = torch.randn(3, 4, 8)
    torch.func.vmap(lambda x: in_scope(way, x))(batch)
    assert spied() == ["one"]
    found = torch.func.grad(lambda x: in_scope(way, x).sum())(X)
    assert spied() == ["one", "one'"] and torch.all(found == 3)
    with torch.autocast("cpu", torch.bfloat16):
        in_scope(way, X)
    assert spied() == ["one"]


@says_scope
def test_a_tangent_runs_where_its_call_says():
    torch.func.jvp(lambda w: torch.ops.anyop.rms_norm(X, w, use="two"), (W,), (W,))
    assert spied() == ["two", "two"]  # the value, and the tangent by the formula


# ---- gradients ----


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("run", [lambda f: f(), in_thread], ids=["same thread", "other thread"])
def test_a_gradient_runs_where_its_forward_call_did(way, run):
    x = leaf()
    y = in_scope(way, x)
    run(y.sum().backward)
    assert spied() == ["one", "one'"] and torch.all(x.grad == 3)

    def elsewhere():
        with anyop.use("two"):
            plain.sum().backward()
            other.sum().backward()

    plain, other = norm(leaf()), in_scope(way, leaf())
    run(elsewhere)
    assert spied() == ["one", "one'"]  # and that without a scope on neither


def run_threads(work, *names):
    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run_tasks(call):
    """Two tasks whose calls take turns."""

    async def task(backend):
        with anyop.use(backend):
            for _ in range(3):
                call()
                await asyncio.sleep(0)

    async def tasks():
        await asyncio.gather(task("one"), task("two"))

    asyncio.run(tasks())
    assert spied() == ["one", "two"] * 3


def test_threads_and_tasks_at_once():
    def work(backend):
        for _ in range(50):
            with anyop.use(backend):
                y = torch.ops.anyop.rms_norm(leaf(), W)
            y.sum().backward()

    run_threads(work, "one", "two")
    found = spied()
    assert {name: found.count(name) for name in found} == dict.fromkeys(
        ("one", "one'", "two", "two'"), 50
    )
    run_tasks(norm)
    run_tasks(lambda: torch.ops.anyop.rms_norm(X, W))


def test_blocks_end_with_errors_and_with_generators():
    with pytest.raises(KeyError), anyop.use("one"):
        raise KeyError
    norm()
    assert spied() == []

    def rows():
        with anyop.use("one"):
            yield norm()
            yield norm()

    with anyop.use("two"):
        assert len(list(rows())) == 2
        norm()
    assert spied() == ["one", "one", "two"]

    @anyop.use("two")
    def layer():
        return norm()

    layer()
    norm()
    assert spied() == ["two"]


# ---- compiled code ----


@says_scope
@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_block_around_compiled_code(compiler):
    counter = CompileCounterWithBackend(compiler)
    compiled = torch.compile(norm, fullgraph=True, backend=counter)
    for _ in range(2):
        compiled(leaf()).sum().backward()
        assert spied() == []
        for backend in ("one", "two"):
            with anyop.use(backend):
                x, y = leaf(), compiled(leaf())
                with anyop.use("two", "topk"):
                    y.sum().backward()
                assert spied() == [backend, backend + "'"]
                y = compiled(x)
            y.sum().backward()
            assert spied() == [backend, backend + "'"] and torch.all(x.grad == 3)
    assert counter.frame_count == 3  # a graph for each of none, one and two


def two_blocks(x):
    y = norm(x)
    with anyop.use("one", ["rms_norm*"]):
        y = norm(y)
        with anyop.use("two"):
            y = norm(y)
        y = torch.ops.anyop.rms_norm(y, W, use="two")
        y = norm(y)
    return norm(y)


@says_scope
@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_block_inside_compiled_code(compiler):
    compiled = torch.compile(two_blocks, fullgraph=True, backend=compiler)
    y = compiled(leaf())
    assert spied() == ["one", "two", "two", "one"]
    torch.testing.assert_close(y, two_blocks(X), atol=1e-5, rtol=1e-5)
    ran.clear()
    y.sum().backward()
    assert spied() == ["one'", "two'", "two'", "one'"]
    with anyop.use("two"):
        compiled(X)
    assert spied() == ["two", "one", "two", "two", "one", "two"]
    decorated = anyop.use("one")(norm)
    torch.compile(lambda x: norm(decorated(x)), fullgraph=True, backend=compiler)(X)
    assert spied() == ["one"]


@says_scope
def test_blocks_in_code_that_compiles_in_pieces():
    """A block with a break inside, one whose object was made elsewhere, one that an error leaves."""
    made_before = anyop.use("two")

    @torch.compile(backend="eager")
    def broken(x):
        with anyop.use("one"):
            y = norm(x)
            torch._dynamo.graph_break()
            return norm(y)

    @torch.compile(backend="eager")
    def entered(x):
        with made_before:
            return norm(x)

    @torch.compile(backend="eager")
    def left(x):
        try:
            with anyop.use("one"):
                y = norm(x)
                raise ValueError
        except ValueError:
            return norm(y)

    for _ in range(2):
        broken(X)
        assert spied() == ["one", "one"]
        entered(X)
        assert spied() == ["two"]
        left(X)
        assert spied() == ["one"]


def test_a_mistake_inside_compiled_code_is_an_error():
    def wrong(x):
        with anyop.use("nonsense"):
            return norm(x)

    with pytest.raises(torch._dynamo.exc.Unsupported, match="nonsense"):
        torch.compile(wrong, backend="eager", fullgraph=True)(X)
    with pytest.raises(ValueError, match="nonsense"):
        torch.compile(wrong, backend="eager")(X)


@says_scope
def test_threads_and_tasks_have_their_own_graphs():
    counter = CompileCounter()
    compiled = torch.compile(norm, fullgraph=True, backend=counter)

    def work(backend):
        for _ in range(20):
            with anyop.use(backend):
                compiled(X)

    run_threads(work, "one", "two")
    assert (ran.count("one"), ran.count("two")) == (20, 20)
    ran.clear()
    run_tasks(lambda: compiled(X))
    compiled(X)
    assert spied() == [] and counter.frame_count == 3


@says_scope
def test_without_a_scope_graphs_say_nothing_of_it():
    graphs = []

    def keep(module, inputs):
        graphs.append(module.graph)
        return module

    compiled = torch.compile(norm, fullgraph=True, backend=keep)
    compiled(X)
    with anyop.use("one", ["rms_norm", "topk"]):
        compiled(X)
    said = [
        [node.kwargs.get("use") for node in graph.nodes if "rms_norm" in str(node.target)]
        for graph in graphs
    ]
    assert said == [[None], ["one=rms_norm,topk"]]


@says_scope
def test_opcheck_with_a_scope():
    torch.library.opcheck(torch.ops.anyop.rms_norm.default, (leaf(), W), {"use": "two=topk"})


# ---- exported programs ----


class Norm(torch.nn.Module):
    def forward(self, x):
        y = anyop.rms_norm(x, x.new_ones(8))
        with anyop.use("two"):
            return anyop.rms_norm(y, x.new_ones(8))


ELSEWHERE = f"""
import sys, numpy as np, torch, anyop, anyop.torch
from anyop import testing
ran = []
{SPIES}
for name in ("rms_norm", "rms_norm_backward"):
    testing.observe(name)
program = torch.export.load(sys.argv[1]).module()
program(torch.randn(5, 8))
calls = {{kernel.backend: kernel.calls for kernel in testing.kernel_calls("rms_norm")}}
print(ran, calls["cpu"])
"""


@says_scope
@pytest.mark.parametrize("strict", [True, False], ids=["strict", "not strict"])
def test_an_exported_program_keeps_it(tmp_path, strict):
    batch = ({0: torch.export.Dim("batch", min=2)},)
    with anyop.use("one"):
        program = torch.export.export(Norm(), (X,), dynamic_shapes=batch, strict=strict)
    spied()
    program.module()(torch.randn(6, 8))
    assert spied() == ["one", "two"]
    torch.export.save(program, tmp_path / "norm.pt2")
    command = [sys.executable, "-c", ELSEWHERE, str(tmp_path / "norm.pt2")]
    found = prepared.run("torch", command, timeout=300)
    assert found.stdout == "['one', 'two'] 0\n", found.stdout + found.stderr


# ---- operators that cannot say it ----

PICK = """
#include "{name}/ops/pick.h"
int32_t {name}_pick_cpu(const PickArgs* args, AnyopCall*) {{
  const auto* x = (const float*)args->x->data;
  for (int64_t i = 0; i < args->rows; ++i) ((float*)args->out->data)[i] = x[i] + (float)args->use;
  return kAnyopOk;
}}
"""


def test_an_argument_named_use_stays_what_it_is():
    name = "torch_scope_pick"
    schema = {"schema": "pick(Tensor x, int use=0) -> Tensor", "shapes": {"x": "*", "out": "*"}}
    made = anyop.jit.load(name, source=PICK.format(name=name), schemas=[schema])
    pick = getattr(torch.ops, name).pick
    assert torch.equal(pick(X, use=3), X + 3) and torch.equal(pick(X, 2), X + 2)
    anyop.register(f"{name}.pick", "one", lambda x, use: x - use)
    compiled = torch.compile(made.pick, backend="eager", fullgraph=True)
    assert torch.equal(compiled(X, use=3), X + 3)
    with anyop.use("one"):
        assert torch.equal(made.pick(X, use=3), X - 3) and torch.equal(pick(X, use=3), X - 3)
        assert torch.equal(torch.func.vmap(lambda x: made.pick(x, use=3))(X), X - 3)
        with pytest.raises(torch._dynamo.exc.Unsupported, match="a graph cannot keep the scope"):
            compiled(X, use=3)
    anyop.unregister(f"{name}.pick", "one")
