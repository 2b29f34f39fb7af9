# SPDX-License-Identifier: Apache-2.0
"""anyop.use for NumPy and C: nesting, threads, async tasks; variables, fallbacks, mistakes; what it costs."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import anyop
import numpy as np
import pytest
from anyop import _scope
from anyop._load import core
from anyop._scope import now

X = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
W = np.ones(16, np.float32)
PLAIN = [anyop.relu(X), anyop.gelu(X)]

SPIES = """
for name, number in (("one", 1), ("two", 2)):
    for op in ("relu", "gelu"):
        anyop.register(op, name, lambda x, *_, number=number, **__: np.full_like(x, number))
anyop.register("relu", "small", lambda x: np.full_like(x, 3), when="numel(x)<=4")
"""


@pytest.fixture(autouse=True)
def spies():
    exec(SPIES, {"anyop": anyop, "np": np})
    yield
    for op, name in (
        ("relu", "small"),
        *((o, n) for o in ("relu", "gelu") for n in ("one", "two")),
    ):
        anyop.unregister(op, name)
    assert not _scope.active and _scope.current.get() is None


def ran(x=X):
    """Which spy ran relu, and which gelu; 0: neither."""
    found = anyop.relu(x), anyop.gelu(x)
    return tuple(int(f.flat[0]) if np.ptp(f) == 0 else 0 for f in found)


# ---- nesting ----


def test_blocks_nest():
    assert ran() == (0, 0)
    with anyop.use("one"):
        assert ran() == (1, 1)
        with anyop.use("two", ops="re*"):
            assert ran() == (2, 1)
            with anyop.use("cpu", ops=["topk", "gelu"]):
                assert ran() == (2, 0)
            assert ran() == (2, 1)
        assert ran() == (1, 1)
    assert ran() == (0, 0)


def test_the_last_pattern_that_fits_holds():
    with anyop.use("one", ops=["*"]), anyop.use("two", ops=["r?lu", "softmax"]):
        assert ran() == (2, 1)
    with anyop.use("two", ops="relu"), anyop.use("one"):
        assert ran() == (1, 1), (
            "an inner block before an outer one, although the outer one is exact"
        )
    for full_name in ("anyop.gelu", "anyop::gelu"):
        with anyop.use("one", ops=full_name):
            assert ran() == (0, 1)


@pytest.mark.parametrize("backend", ["small,one", ["small", "one"], "small, one"])
def test_the_first_backend_that_takes_a_call(backend):
    with anyop.use(backend, ops="relu"):
        assert [int(anyop.relu(np.ones(n, "f") * 9)[0]) for n in (4, 5)] == [3, 1]


def test_an_error_ends_the_block():
    with pytest.raises(ZeroDivisionError), anyop.use("one"):
        raise ZeroDivisionError
    with anyop.use("one"):
        with pytest.raises(ValueError, match=r"rms_norm: weight has shape"):
            anyop.rms_norm(X, W[:3])
        assert ran() == (1, 1)
    assert ran() == (0, 0)


def test_one_object_in_many_blocks():
    scope = anyop.use("one")
    with scope, anyop.use("two", ops="relu"), scope:
        assert ran() == (1, 1)
    assert ran() == (0, 0)


def test_decorators():
    @anyop.use("one")
    def run(depth=0):
        """Its text."""
        return run(depth - 1) if depth else (ran(), _scope.current.get())

    assert run() == ((1, 1), "one=*") and run.__doc__ == "Its text."
    assert run(50) == ((1, 1), "one=*"), "a scope in itself is the same scope"
    again = anyop.use("two", "relu")(
        anyop.use("one", "gelu")(lambda n: again(n - 1) if n else now())
    )
    assert again(9) == "two=relu;one=gelu"

    @anyop.use("one")
    async def run_later():
        await asyncio.sleep(0)
        return ran()

    assert asyncio.run(run_later()) == (1, 1)
    with pytest.raises(TypeError, match="use: a generator runs after its call has ended"):

        @anyop.use("one")
        def generate():
            yield ran()


def test_generators_may_end_out_of_order():
    def inside(backend, ops):
        with anyop.use(backend, ops=ops):
            yield

    first, second = inside("one", "relu"), inside("two", "gelu")
    next(first), next(second)
    assert ran() == (1, 2)
    first.close()
    assert ran() == (1, 2), "the second began inside the first"
    second.close()
    assert ran() == (0, 0)


# ---- threads and tasks ----


def test_threads_have_their_own():
    wrong, ready = [], threading.Barrier(8)

    def work(number):
        ready.wait(20)
        for _ in range(200):
            if number == 0:
                found = ran()
            else:
                with anyop.use("one" if number % 2 else "two"):
                    found = ran()
            if found != ((0, 0) if number == 0 else (1, 1) if number % 2 else (2, 2)):
                wrong.append((number, found))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and not any(thread.is_alive() for thread in threads)


def test_one_decorated_function_in_many_threads():
    inside = threading.Barrier(4)

    @anyop.use("one")
    def run():
        inside.wait(20)
        found = ran()
        inside.wait(20)
        return found

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: run(), range(4))) == [(1, 1)] * 4


def test_threads_do_not_inherit_unless_a_context_is_copied():
    with ThreadPoolExecutor(1) as pool, anyop.use("one"):
        assert pool.submit(ran).result() == (0, 0)
        assert pool.submit(contextvars.copy_context().run, ran).result() == (1, 1)


def test_async_tasks_have_their_own():
    """Interleaved in one thread, each in its block, and one in none."""

    async def work(backend, expected):
        for _ in range(20):
            await asyncio.sleep(0)
            if backend is None:
                assert ran() == expected
                continue
            with anyop.use(backend):
                await asyncio.sleep(0)
                assert ran() == expected
                with anyop.use("cpu", ops="gelu"):
                    await asyncio.sleep(0)
                    assert ran() == (expected[0], 0)

    async def all_of_them():
        await asyncio.gather(work("one", (1, 1)), work("two", (2, 2)), work(None, (0, 0)))

    asyncio.run(all_of_them())


def test_a_task_that_outlives_the_block_it_was_started_in():
    async def later(go):
        await go.wait()
        found = [ran()]
        with anyop.use("two", ops="relu"):
            found.append(ran())
        return [*found, ran()]

    async def start():
        go = asyncio.Event()
        with anyop.use("one"):
            task = asyncio.create_task(later(go))
        assert ran() == (0, 0)
        go.set()
        return await task

    assert asyncio.run(start()) == [(1, 1), (2, 1), (1, 1)]


def test_a_block_that_ends_elsewhere():
    scope = anyop.use("one")
    context = contextvars.copy_context()
    context.run(scope.__enter__)
    with pytest.raises(RuntimeError, match="ends in another thread or task than it began in"):
        scope.__exit__(None, None, None)
    context.run(scope.__exit__, None, None, None)


# ---- mistakes ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cpuu",), "unknown backend 'cpuu'; did you mean 'cpu'"),
        ((["cpu", "tritn"],), "unknown backend 'tritn'; did you mean 'triton'"),
        (("cpu", "rmsnorm"), "unknown operator 'rmsnorm'; did you mean 'rms_norm'"),
        (("cpu", ["relu", "nothing*"]), r"unknown operator 'nothing\*'"),
        (("",), "use: backend has '', expected a name"),
        ((" ",), "use: backend has ' ', expected a name"),
        (("cpu;aten",), "use: backend has 'cpu;aten', expected a name"),
        (("cpu", "relu=cpu"), "use: ops has 'relu=cpu', expected a name"),
        (([],), "use: backend has '', expected a name"),
        (("cpu", []), "use: ops has '', expected a name"),
        (("cpu,,aten",), "use is 'cpu,,aten=.*', expected backends=patterns"),
        ((None,), "use: backend is None, expected a name or a list of names"),
        ((["cpu", 3],), r"use: backend is \['cpu', 3\], expected a name or a list"),
        (("cpu", 3), "use: ops is 3, expected a name or a list of names"),
    ],
)
def test_mistakes(arguments, message):
    """When the block is made, not when a call finds them."""
    with pytest.raises((ValueError, TypeError), match=message):
        anyop.use(*arguments)


def test_a_backend_that_was_taken_away():
    """A text that was right when it was entered."""
    anyop.register("relu", "passing", lambda x: x * 0 + 8)
    with anyop.use("passing", ops="relu"):
        assert anyop.relu(X)[0, 0] == 8
        anyop.unregister("relu", "passing")
        assert np.array_equal(anyop.relu(X), PLAIN[0])


# ---- C ----


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class Value(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32), ("reserved", ctypes.c_int32),
        ("tensor", ctypes.POINTER(Tensor)), ("count", ctypes.c_int64),
    )  # fmt: skip


class Options(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint32), ("reserved", ctypes.c_uint32),
        ("stream", ctypes.c_void_p), ("use", ctypes.c_char_p),
    )  # fmt: skip


def invoke(use, size=None):
    """relu through AnyopInvoke: what ran, or the error."""
    library = ctypes.CDLL(os.path.join(os.path.dirname(core.__file__), "lib", "libanyop.so"))
    library.AnyopFindOperator.restype = ctypes.c_void_p
    library.AnyopLastError.restype = ctypes.c_char_p
    out = np.zeros_like(X)
    shape = (ctypes.c_int64 * 2)(*X.shape)
    tensors = [Tensor(a.ctypes.data, 1, 0, 2, 2, 32, 1, shape, None, 0) for a in (X, out)]
    values = (Value * 2)(*(Value(1, 0, ctypes.pointer(t), 0) for t in tensors))
    options = Options(size or ctypes.sizeof(Options), 0, None, use)
    relu = ctypes.c_void_p(library.AnyopFindOperator(b"relu"))
    if library.AnyopInvoke(relu, values, 2, ctypes.byref(options)):
        return library.AnyopLastError().decode()
    return int(out.flat[0]) if np.ptp(out) == 0 else 0


def test_calls_from_c():
    assert invoke(None) == 0 and invoke(b"one") == 1
    assert invoke(b"one=*;two=re*") == 2 and invoke(b"one=gelu") == 0
    assert invoke(b"small,two=relu") == 2
    assert invoke(b"one", size=16) == 0, "options of the first release end before use"
    assert "use is 'one=', expected backends=patterns" in invoke(b"one=")
    with anyop.use("one"):
        assert invoke(None) == 1 and invoke(b"two") == 2


# ---- the environment ----


def run(program, **environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ANYOP_OP_")}
    return subprocess.run(
        [sys.executable, "-c", "import anyop, sys, numpy as np\n" + program],
        capture_output=True, text=True, timeout=120, env=clean | environment,
    )  # fmt: skip


SHOW = f"""
{SPIES}
X = np.linspace(-1, 1, 64, dtype=np.float32)
def ran():
    found = anyop.relu(X), anyop.gelu(X)
    return tuple(int(f.flat[0]) if np.ptp(f) == 0 else 0 for f in found)
"""


def test_order_of_say(tmp_path):
    """Scope, variable, file, priorities."""
    routes = tmp_path / "my.routes"
    routes.write_text("namespace later\n* = two\n")
    program = f"""
{SHOW}
found = [ran()]
anyop.load_routes({str(routes)!r})
found.append(ran())
with anyop.use("cpu"):
    found.append(ran())
    with anyop.use("two", ops="relu"):
        found.append(ran())
print(*found, ran())
"""
    found = run(program, ANYOP_OP_RELU="cpu", ANYOP_LOG_DISPATCH="1")
    assert found.stdout == "(0, 0) (0, 2) (0, 0) (2, 0) (0, 2)\n", found.stderr
    assert found.stderr.splitlines() == [
        "anyop: relu on cpu:0: cpu (ANYOP_OP_RELU)",
        "anyop: gelu on cpu:0: cpu (default)",
        f"anyop: gelu on cpu:0: two ({routes}:2)",
        "anyop: relu on cpu:0: cpu (anyop.use('cpu=*'))",
        "anyop: gelu on cpu:0: cpu (anyop.use('cpu=*'))",
        "anyop: relu on cpu:0: two (anyop.use('cpu=*;two=relu'))",
        "anyop: gelu on cpu:0: cpu (anyop.use('cpu=*;two=relu'))",
    ]


@pytest.mark.parametrize(
    "name", ["ANYOP_OP_RELU", "ANYOP_OP_relu", "ANYOP_OP_ReLU", "ANYOP_OP_ANYOP__RELU"]
)
def test_variables(name):
    found = run("anyop.relu(np.ones(3, 'f'))", **{name: "cpu", "ANYOP_LOG_DISPATCH": "1"})
    assert found.stderr == f"anyop: relu on cpu:0: cpu ({name})\n"


def test_variables_that_fit_nothing_are_reported():
    found = run("", ANYOP_OP_RMSNORM="cpu", ANYOP_OP_LATER__X="cpu")
    assert found.returncode == 0
    assert found.stderr.splitlines() == [
        "anyop: ANYOP_OP_RMSNORM fits no operator; did you mean 'ANYOP_OP_RMS_NORM'?",
        "anyop: ANYOP_OP_LATER__X fitted no operator that was loaded",
    ]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ANYOP_OP_RELU", "cpuu", "ANYOP_OP_RELU: unknown backend 'cpuu'; did you mean 'cpu'"),
        ("ANYOP_OP_RELU", "", "ANYOP_OP_RELU is empty, expected a backend"),
        ("ANYOP_OP_RELU", ",", "ANYOP_OP_RELU is empty, expected a backend"),
        ("ANYOP_DISABLE", "atn", "ANYOP_DISABLE: unknown backend 'atn'; did you mean 'aten'"),
        ("ANYOP_FALLBACK", "yes", "ANYOP_FALLBACK is 'yes', expected warn, silent, error"),
        ("ANYOP_LOG_DISPATCH", "3", "ANYOP_LOG_DISPATCH is '3', expected 0, 1, 2"),
    ],
)
def test_variables_that_are_wrong(name, value, message):
    found = run("", **{name: value})
    assert found.returncode == 1 and message in found.stderr, found.stderr


FALLBACK = f"""
{SHOW}
for _ in range(2):
    with anyop.use("small", ops="relu"):
        try:
            print(ran())
        except NotImplementedError as error:
            print(error)
print(ran())
"""


@pytest.mark.parametrize("what", ["warn", "silent", "error"])
def test_what_the_chosen_backend_cannot_take(what):
    found = run(FALLBACK, ANYOP_FALLBACK=what)
    why = "relu: small takes numel(x)<=4, and numel(x) is 64"
    if what == "error":
        text = f"{why}; cpu would run instead, which ANYOP_FALLBACK=error forbids\n"
        assert found.stdout == f"{text}{text}(0, 0)\n", found.stderr
    else:
        assert found.stdout == "(0, 0)\n(0, 0)\n(0, 0)\n", found.stderr
    assert found.stderr == (f"anyop: {why}; cpu runs instead\n" if what == "warn" else "")


def test_what_is_disabled():
    program = f"""
{SHOW}
with anyop.use("one"):
    print(ran())
with anyop.use("one,two"):
    print(ran())
"""
    found = run(program, ANYOP_DISABLE="on*", ANYOP_FALLBACK="silent")
    assert found.stdout == "(0, 0)\n(2, 2)\n", found.stderr
    found = run(program, ANYOP_DISABLE="!reference")
    assert found.returncode == 1
    assert "NotImplementedError: relu: has no kernel for cpu" in found.stderr
    assert "one is disabled by ANYOP_DISABLE" in found.stderr, found.stderr


# ---- what it costs ----


def test_nothing_is_there_before_the_first_block():
    """Neither imported nor asked: calls leave the context alone."""
    program = """
import contextvars
anyop.relu(np.ones(3, "f"))
assert "anyop._scope" not in sys.modules
assert not [v for v in contextvars.copy_context() if v.name == "anyop.use"]
asked = []
from anyop import _scope
anyop._anyop.set_scope_variable(lambda: asked.append(1))
anyop.relu(np.ones(3, "f"))
assert not asked
with anyop.use("cpu"):
    anyop.relu(np.ones(3, "f"))
assert len(asked) == 1
anyop.relu(np.ones(3, "f"))
assert len(asked) == 1
assert "jax" not in sys.modules and "torch" not in sys.modules
print("done")
"""
    found = run(program)
    assert found.stdout == "done\n", found.stderr
