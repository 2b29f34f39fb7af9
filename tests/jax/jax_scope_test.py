# SPDX-License-Identifier: Apache-2.0
"""anyop.use in JAX: eager calls, traces and programs run where they were called or traced, and nowhere else."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import Counter

import anyop
import numpy as np
import prepared
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")
import anyop.jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from anyop import _scope  # noqa: E402
from jax import export  # noqa: E402
from xla_text import call_sites  # noqa: E402

X = jnp.array(np.random.default_rng(0).standard_normal((4, 16)), jnp.float32)
W = jnp.linspace(0.5, 2, 16, dtype=jnp.float32)

SPIES = """
def spy(x, weight, eps):
    calls["rms_norm"] += 1
    return np.full_like(x, 7)

def spy_backward(grad_out, x, weight, eps, *, grad_x=None, grad_weight=None):
    calls["rms_norm_backward"] += 1
    for place in (grad_x, grad_weight):
        if place is not None:
            place[...] = 3

anyop.register("rms_norm", "spy", spy)
anyop.register("rms_norm_backward", "spy", spy_backward)
anyop.register("mul", "spy", lambda x, y: np.full(np.broadcast_shapes(x.shape, y.shape), 5, np.float32))
"""
calls: Counter = Counter()


@pytest.fixture(autouse=True)
def spies():
    exec(SPIES, {"anyop": anyop, "np": np, "calls": calls})
    calls.clear()
    yield
    for name in ("rms_norm", "rms_norm_backward", "mul"):
        anyop.unregister(name, "spy")
    assert not _scope.active and _scope.current.get() is None


def is_spied(array):
    """All of the spy's, or nothing."""
    found = np.unique(np.asarray(array)).tolist()
    assert found in ([7.0], [3.0], [5.0]) or len(found) > 4, found
    return len(found) == 1


def norm(x):
    return anyop.rms_norm(x, W)


def loss(x):
    return norm(x).sum()


def test_eager_calls():
    """Also those that find their site by a key."""
    for _ in range(3):
        assert not is_spied(anyop.rms_norm(X, W))
        with anyop.use("spy"):
            assert is_spied(anyop.rms_norm(X, W))
        with anyop.use("spy", ops="*softmax*"):
            assert not is_spied(anyop.rms_norm(X, W))
    with anyop.use("spy"), anyop.use("cpu", ops=["rms_*"]):
        assert not is_spied(anyop.rms_norm(X, W))
    assert calls["rms_norm"] == 3


def test_jit_traces_once_for_each_scope():
    traces = []
    with anyop.use("spy"):
        pass  # the process's first block makes JAX trace again what it has

    @jax.jit
    def traced(x):
        traces.append(_scope.current.get())
        return norm(x)

    for _ in range(3):
        assert not is_spied(traced(X))
        with anyop.use("spy"):
            assert is_spied(traced(X))
        with anyop.use("spy", ops="topk"):
            assert not is_spied(traced(X))
    assert sorted(traces, key=str) == sorted([None, "spy=*", "spy=topk"], key=str)


def test_a_block_inside_a_function():
    @jax.jit
    def traced(x):
        with anyop.use("spy"):
            inside = norm(x)
        return inside, norm(x)

    for _ in range(2):
        assert [is_spied(found) for found in traced(X)] == [True, False]
        with anyop.use("cpu"):
            assert [is_spied(found) for found in traced(X)] == [True, False]


def test_jaxprs_and_programs_say_it():
    with anyop.use("spy"):
        assert "weight_offset=0.0, dtype=None, use='spy=*')" in str(jax.make_jaxpr(norm)(X))
        text = jax.jit(norm).lower(X).as_text()
    (site,) = call_sites(text)
    assert site["operator"] == "anyop.rms_norm" and site["use"] == "spy=*"
    assert text.count("spy") == 1, "nothing else in the program differs"
    assert "use=" not in str(jax.make_jaxpr(norm)(X))


TRANSFORMS = {
    "jit": jax.jit(norm),
    "vmap": jax.vmap(norm),
    "vmap in a loop": lambda x: jax.vmap(anyop.rms_norm, (None, 0))(x, jnp.stack([W, W])),
    "jit vmap": jax.jit(jax.vmap(norm)),
    "scan": lambda x: jax.lax.scan(lambda c, _: (norm(c), None), x, None, length=2)[0],
    "fori_loop": lambda x: jax.lax.fori_loop(0, 2, lambda i, c: norm(c), x),
    "cond": lambda x: jax.lax.cond(x[0, 0] > -99, norm, lambda x: x, x),
    "map": lambda x: jax.lax.map(norm, x),
    "checkpoint": jax.checkpoint(norm),
    "grad": jax.grad(loss),
    "jit grad": jax.jit(jax.grad(loss)),
    "grad jit": jax.grad(jax.jit(loss)),
    "grad checkpoint": jax.grad(jax.checkpoint(loss)),
    "grad vmap": jax.grad(lambda x: jax.vmap(norm)(x).sum()),
    "vmap grad": jax.vmap(jax.grad(loss)),
    "jvp": lambda x: jax.jvp(norm, (x,), (x,))[1],
    "jit jvp": jax.jit(lambda x: jax.jvp(norm, (x,), (x,))[1]),
    "linearize": lambda x: jax.linearize(norm, x)[1](x),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name):
    """Before, inside and after a block: the same functions, which JAX keeps traces of."""
    run = TRANSFORMS[name]
    assert not is_spied(run(X))
    with anyop.use("spy"):
        assert is_spied(run(X))
    assert not is_spied(run(X))
    with anyop.use("spy"):
        assert is_spied(run(X))


def test_disable_jit():
    with jax.disable_jit():
        assert not is_spied(jax.jit(norm)(X))
        with anyop.use("spy"):
            assert is_spied(jax.jit(norm)(X)) and is_spied(jax.grad(loss)(X))


@pytest.mark.parametrize("make", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_derivatives_run_in_the_scope_of_their_forward_call(make):
    """Backward and tangent, long after the block; and those of calls before it, inside."""
    forward = make(norm)
    plain, plain_pull = jax.vjp(forward, X)
    _, plain_push = jax.linearize(forward, X)
    with anyop.use("spy"):
        out, pull = jax.vjp(forward, X)
        _, push = jax.linearize(forward, X)
        assert not is_spied(plain_pull(plain)[0]) and not is_spied(plain_push(X))
    assert is_spied(pull(out)[0]) and is_spied(push(X))
    assert is_spied(jax.jit(pull)(out)[0]) and is_spied(jax.vmap(push)(X[None])[0])


def test_what_is_compiled_keeps_its_scope():
    """Lowered ahead of time, there is no key: the scope of the trace holds, in whatever scope and thread it runs."""
    plain = jax.jit(norm).lower(X).compile()
    with anyop.use("spy"):
        inside = jax.jit(norm).lower(X).compile()
        assert not is_spied(plain(X))
    assert is_spied(inside(X)) and not is_spied(plain(X))


PROGRAM = """
import sys, jax.export, numpy as np, anyop, anyop.jax
from collections import Counter
calls = Counter()
program = jax.export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
x, w = np.load(sys.argv[2]).values()
print(np.unique(program.call(x, w)).tolist())
"""


def run(program, *arguments, **environment):
    return prepared.run(
        "jax", [sys.executable, "-c", program, *map(str, arguments)], timeout=300, env=os.environ | environment,
    )  # fmt: skip


def test_export_to_another_process(tmp_path):
    pytest.importorskip(
        "flatbuffers", reason="jax.export serialises by flatbuffers, which is not installed"
    )
    checks = [export.DisabledSafetyCheck.custom_call(anyop.jax.TARGET)]
    with anyop.use("spy"):
        program = export.export(jax.jit(anyop.rms_norm), disabled_checks=checks)(X, W)
    (tmp_path / "program").write_bytes(program.serialize())
    np.savez(tmp_path / "in.npz", X, W)
    files = tmp_path / "program", tmp_path / "in.npz"
    known = run(PROGRAM.replace("program =", SPIES + "\nprogram ="), *files)
    assert known.stdout == "[7.0]\n", known.stderr
    unknown = run(PROGRAM, *files)  # there is no backend `spy`
    assert len(unknown.stdout) > 100 and "spy is not there; cpu runs instead" in unknown.stderr
    refused = run(PROGRAM, *files, ANYOP_FALLBACK="error")
    assert refused.returncode == 1 and "rms_norm: spy is not there" in refused.stderr


def test_several_devices():
    """shard_map, and sharded arrays, whose calls are made anew for each device."""
    program = """
import jax, jax.numpy as jnp, numpy as np, anyop
from collections import Counter
from jax.sharding import NamedSharding, PartitionSpec as P
calls = Counter()
mesh = jax.make_mesh((4,), ("a",))
x = jax.device_put(jnp.arange(64.0).reshape(8, 8) + 1, NamedSharding(mesh, P("a")))
w = jax.device_put(jnp.ones(8), NamedSharding(mesh, P()))
mapped = jax.jit(jax.shard_map(anyop.rms_norm, mesh=mesh, in_specs=(P("a"), P()), out_specs=P("a")))
for function in (jax.jit(anyop.rms_norm), anyop.rms_norm, mapped):
    for expected in (0, 1, 0, 1):
        calls.clear()
        with anyop.use("spy" if expected else "cpu"):
            found = np.asarray(function(x, w))
        assert calls["rms_norm"] == 4 * expected and (found == 7).all() == bool(expected), calls
with anyop.use("spy"):
    out, pull = jax.vjp(jax.jit(anyop.rms_norm), x, w)
assert (np.asarray(pull(out)[1]) == 3 * 4).all()  # summed over the devices
print("done")
"""
    flags = "--xla_force_host_platform_device_count=4"
    found = run(program.replace("mesh =", SPIES + "\nmesh =", 1), XLA_FLAGS=flags)
    assert found.stdout == "done\n", found.stderr


def test_jax_that_is_imported_inside_a_block():
    program = """
import anyop, numpy as np
from collections import Counter
calls = Counter()
with anyop.use("spy"):
    import jax, jax.numpy as jnp
    x, norm = jnp.ones((2, 4)), jax.jit(lambda x: anyop.rms_norm(x, jnp.ones(4)))
    assert (norm(x) == 7).all() and (norm(x) == 7).all()
assert (norm(x) != 7).all() and calls["rms_norm"] == 2
assert (jax.jit(norm)(x) != 7).all()
print("done")
"""
    found = run(program.replace("with", SPIES + "\nwith", 1))
    assert found.stdout == "done\n", found.stderr


# ---- threads and tasks ----


def test_threads_have_their_own():
    wrong, ready = [], threading.Barrier(4)
    traced = jax.jit(norm)

    def work(number):
        ready.wait(20)
        for _ in range(20):
            if number % 2:
                with anyop.use("spy"):
                    found = [traced(X), norm(X), jax.grad(loss)(X)]
            else:
                found = [traced(X), norm(X), jax.grad(loss)(X)]
            if [is_spied(each) for each in found] != [bool(number % 2)] * 3:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and not any(thread.is_alive() for thread in threads)


def test_python_backends_under_xlas_threads():
    """XLA's threads take Python's lock while others hold it, wait for them, or dispatch more; nobody waits for ever."""
    program = """
import threading, faulthandler, jax, jax.numpy as jnp, numpy as np, anyop
from collections import Counter
faulthandler.dump_traceback_later(100, exit=True)
calls = Counter()
x, w = jnp.ones((64, 256)), jnp.ones(256)
def chain(x):
    for _ in range(4):
        x = anyop.rms_norm(x, w) + anyop.rms_norm(x * 2, w)
    return x
jitted = jax.jit(chain)
def work():
    for _ in range(10):
        with anyop.use("spy"):
            pending = [jitted(x + k) for k in range(6)]  # asynchronous
        sum(range(20000))
        assert all(float(p.min()) == 14 for p in pending)
        with anyop.use("spy"):
            assert float(jax.grad(lambda x: jitted(x).sum())(x).max()) > 0
threads = [threading.Thread(target=work) for _ in range(6)]
[t.start() for t in threads]
work()
[t.join() for t in threads]
assert calls["rms_norm"] >= 7 * 10 * 14 * 4, calls
print("done")
"""
    found = run(program.replace("def chain", SPIES + "\ndef chain", 1))
    assert found.stdout == "done\n", found.stderr[-3000:]


def test_a_kernel_written_in_jax_is_refused():
    """It would compute with XLA's threads, which wait for it. Elsewhere it runs."""
    anyop.register("relu", "spy", lambda x: jnp.maximum(x, 0) + 1, framework="jax")
    try:
        with anyop.use("spy", ops="relu"):
            assert anyop.relu(np.float32([-1, 2])).tolist() == [1, 3]
            for function in (anyop.relu, jax.jit(anyop.relu)):
                with pytest.raises(Exception, match=r"spy: .*cannot run inside a program of JAX"):
                    jax.block_until_ready(function(X))
    finally:
        anyop.unregister("relu", "spy")


def test_aten_under_xlas_threads():
    """Its first calls, which import torch, from several of XLA's threads at once."""
    pytest.importorskip("torch", reason="torch is not installed")
    program = """
import threading, faulthandler, jax, jax.numpy as jnp, numpy as np, anyop
faulthandler.dump_traceback_later(100, exit=True)
x, w = jnp.arange(4096.0).reshape(16, 256), jnp.ones(256)
expected = anyop.rms_norm(x, w)
norm = jax.jit(anyop.rms_norm)
def work():
    for _ in range(20):
        with anyop.use("aten"):
            found = [norm(x, w), anyop.rms_norm(x, w)]
        assert all(np.allclose(f, expected, atol=1e-5) for f in found)
anyop.testing.observe("rms_norm")
threads = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in threads]
work()
[t.join() for t in threads]
assert {k.backend: k.calls for k in anyop.testing.kernel_calls("rms_norm")}["aten"] == 5 * 20 * 2
print("done")
"""
    found = run("import anyop.testing\n" + program, ANYOP_FALLBACK="error")
    assert found.stdout == "done\n", found.stderr[-3000:]


def test_async_tasks():
    """Tasks have scopes of their own. JAX's keys are the thread's: what would be kept wrongly is an error."""

    async def spied(first):
        with anyop.use("spy"):
            first.set()
            await asyncio.sleep(0)
            assert is_spied(anyop.rms_norm(X, W)), "eager calls know the task"
            await asyncio.sleep(0.05)
        assert not is_spied(jax.jit(norm)(X))

    async def plain(first):
        await first.wait()
        assert not is_spied(anyop.rms_norm(X, W))
        with pytest.raises(RuntimeError, match=r"rms_norm: is traced in no scope.*'spy=\*'"):
            jax.jit(lambda x: norm(x))(X)
        with anyop.use("spy"):
            assert is_spied(jax.jit(norm)(X))

    async def both():
        first = asyncio.Event()
        await asyncio.gather(spied(first), plain(first))

    asyncio.run(both())
    assert not is_spied(jax.jit(norm)(X)), "blocks that end out of order leave nothing behind"
