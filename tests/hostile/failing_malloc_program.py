# SPDX-License-Identifier: Apache-2.0
"""Run under failing_malloc.so: each entry point with its k-th allocation failing, k = 1, 2, … until it needs no more.

Prints a line for each entry point: its name, and how many allocations there were to fail.
"""

import ctypes
import faulthandler
import os
import sys
import tempfile
import threading

faulthandler.enable()
failing = ctypes.CDLL(None)
failing.FailingArm.argtypes = [ctypes.c_long, ctypes.c_int]
failing.FailingDisarm.restype = ctypes.c_long
ONCE, FROM_THEN_ON = 0, 1
MOST = 20000

# How many k are tried: all, or the first 20 and every thirtieth, from one on that is drawn by the commit.
sys.path.append(os.path.join(os.path.dirname(__file__), "..", "shared"))
from drawn import FULL, part  # noqa: E402

FIRST, STEP = (40, 1) if FULL else (20, 30)

# As a child each: what an import leaves behind cannot be taken back. What runs when the libraries are loaded is the
# CUDA runtime's, which cannot do without memory.
if sys.argv[1] == "import":
    import importlib.util

    import numpy as np

    package = importlib.util.find_spec("anyop").submodule_search_locations[0]
    for library in ("lib/libanyop.so", "_anyop.abi3.so"):
        ctypes.CDLL(os.path.join(package, library))

    # How many there are grows with every operator: a child counts, in which none fails.
    reader, writer = os.pipe()
    if os.fork() == 0:
        failing.FailingArm(sys.maxsize, ONCE)
        import anyop

        os.write(writer, b"%d" % failing.FailingDisarm())
        os._exit(0)
    os.wait()
    most = int(os.read(reader, 20)) + 500  # none ends later, but by a few that came another way

    k = failed = 1
    while failed:
        child = os.fork()
        if child == 0:
            failing.FailingArm(k, ONCE)
            try:
                import anyop
            except (MemoryError, ImportError) as error:
                failing.FailingDisarm()
                assert isinstance(error, MemoryError) or "memory" in str(error), error
                sys.modules.pop("anyop", None)
                os._exit(1)
            n = failing.FailingDisarm()
            if n >= k:
                os._exit(2)  # it did without
            x = np.arange(-3, 3, dtype=np.float32)
            assert np.array_equal(anyop.relu(x), np.maximum(x, 0))
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, 1, 2), f"import, k = {k}: {status}"
        failed, k = status, k + (1 if k < FIRST else STEP * 3)
        assert k < most
    print(f"import: {k}")
    sys.exit()

import anyop  # noqa: E402
import numpy as np  # noqa: E402

x = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
w = np.ones(4, np.float32)
relu = np.maximum(x, 0)
folder = tempfile.TemporaryDirectory()
routes, log = os.path.join(folder.name, "routes.txt"), os.path.join(folder.name, "log.jsonl")
with open(routes, "w") as file:
    file.write("rms_norm = cpu\n*norm* = aten, cpu\naten.mm = native\n")


def same(found, expected):
    return np.allclose(np.asarray(found), expected, rtol=1e-6)


def register():
    anyop.register("relu", "mine", lambda x: np.maximum(x, 0), name="mine", priority=9)
    return anyop.relu(x)


def unregister():
    register()
    anyop.unregister("relu", "mine")
    return anyop.relu(x)


def load_routes():
    anyop.load_routes(routes)
    return anyop.relu(x)


def no_routes():
    anyop.load_routes(None)
    return anyop.relu(x)


def refused():
    try:
        anyop.rms_norm(x, x)
    except ValueError as error:
        return "weight" in str(error) or error


def bad_routes():
    try:
        anyop.use("nobody").__enter__()
    except ValueError as error:
        return "nobody" in str(error) or error


def use():
    with anyop.use("cpu"):
        return anyop.relu(x)


def log_dispatch(level):
    anyop.log_dispatch(level, log, stderr=False)
    return anyop.relu(x)


def record():
    anyop.record(log + "2")
    found = anyop.relu(x)
    anyop.record(None)
    return found


def deterministic(on):
    anyop.use_deterministic(on)
    return anyop.relu(x)


# Name -> the call, and what it gives; they are made in this order.
ENTRIES = {
    "call": (lambda: anyop.relu(x), lambda r: same(r, relu)),
    "out": (lambda: anyop.relu(x, out=np.empty_like(x)), lambda r: same(r, relu)),
    "several results": (lambda: anyop.topk(x, 2), lambda r: same(r[0], x[:, :1:-1])),
    "a view": (lambda: anyop.relu(x[:, ::2]), lambda r: same(r, relu[:, ::2])),
    "broadcast": (lambda: anyop.add(x, w), lambda r: same(r, x + 1)),
    "buffer": (lambda: anyop.relu(memoryview(x)), lambda r: same(r, relu)),
    "refused": (refused, lambda r: r is True),
    "schema": (lambda: anyop.schema("relu"), lambda r: r.startswith("relu(")),
    "metadata": (lambda: anyop.metadata("relu")["name"], lambda r: r == "relu"),
    "list": (lambda: len(anyop._load.core.functions()), lambda r: r == len(anyop.list_ops())),
    "explain": (lambda: anyop.explain("relu", x).chosen, lambda r: r == "cpu"),
    "backends": (lambda: anyop.backends("relu"), lambda r: "cpu" in r),
    "register": (register, lambda r: same(r, relu)),
    "python kernel": (lambda: anyop.relu(x), lambda r: same(r, relu)),
    "unregister": (unregister, lambda r: same(r, relu)),
    "load_routes": (load_routes, lambda r: same(r, relu)),
    "routes": (lambda: anyop._load.core.routes(), lambda r: "rms_norm" in r),
    "routed": (lambda: anyop.rms_norm(x, w), lambda r: same(r, anyop.rms_norm(x, w))),
    "no routes": (no_routes, lambda r: same(r, relu)),
    "use": (use, lambda r: same(r, relu)),
    "use of nobody": (bad_routes, lambda r: r is True),
    "log": (lambda: log_dispatch(2), lambda r: same(r, relu)),
    "logged": (lambda: anyop.relu(x), lambda r: same(r, relu)),
    "no log": (lambda: log_dispatch(0), lambda r: same(r, relu)),
    "record": (record, lambda r: same(r, relu)),
    "deterministic": (lambda: deterministic(True), lambda r: same(r, relu)),
    "not deterministic": (lambda: deterministic(False), lambda r: same(r, relu)),
    "observe": (lambda: anyop._load.core.observe("gelu"), lambda r: r is None),
    "observed": (lambda: anyop._load.core.kernel_calls("gelu"), lambda r: len(r) > 0),
    "promote": (lambda: anyop._load.core.promote("int8", "float32"), lambda r: r == "float32"),
    "set_num_threads": (lambda: anyop.set_num_threads(2), lambda r: r is None),
}


def add_torch():
    import anyop.torch
    import torch

    t, expected = torch.tensor(x), torch.tensor(relu)
    ones = torch.ones(4)
    ENTRIES["torch"] = (lambda: anyop.relu(t), lambda r: torch.equal(r, expected))
    ENTRIES["torch.ops"] = (
        lambda: torch.ops.anyop.relu(t),
        lambda r: torch.equal(r, expected),
    )
    ENTRIES["torch, explain"] = (lambda: anyop.explain("relu", t).chosen, lambda r: r == "cpu")
    ENTRIES["torch, python kernel"] = (
        lambda: python_kernel(t, torch.relu, "torch"),
        lambda r: torch.equal(r, expected),
    )
    ENTRIES["torch, broadcast"] = (lambda: anyop.add(t, ones), lambda r: torch.equal(r, t + 1))
    ENTRIES["aten"] = (lambda: anyop.aten.relu(t), lambda r: torch.equal(r, expected))
    ENTRIES["aten of numpy"] = (lambda: anyop.aten.add(x, x, alpha=2), lambda r: same(r, 3 * x))
    ENTRIES["aten, refused"] = (aten_refused, lambda r: r is True)
    ENTRIES["aten, resolve"] = (
        lambda: anyop.aten.resolve("add", x, x),
        lambda r: r == "add.Tensor",
    )
    ENTRIES["aten, lists"] = (
        lambda: anyop.aten.cat([x, x], dim=1),
        lambda r: same(r, np.concatenate([x, x], 1)),
    )


def python_kernel(tensor, function, framework):
    """Registered, called by its name, and taken away."""
    anyop.register("relu", "mine", function, name="mine", priority=-9, framework=framework)
    try:
        with anyop.use("mine"):
            return anyop.relu(tensor)
    finally:
        anyop.unregister("relu", "mine")


def aten_refused():
    try:
        anyop.aten.add(x, "text")
    except TypeError as error:
        return "add" in str(error) or error


def add_tvm_ffi():
    import tvm_ffi

    function = tvm_ffi.get_global_func("anyop.relu")
    ENTRIES["tvm_ffi"] = (lambda: same(np.from_dlpack(function(x)), relu), lambda r: r is True)


def add_c_abi():
    """The functions of include/anyop/anyop.h themselves: statuses in the place of exceptions."""
    package = os.path.dirname(anyop.__file__)
    c = ctypes.CDLL(os.path.join(package, "lib", "libanyop.so"))
    c.AnyopFindOperator.restype = ctypes.c_void_p
    c.AnyopLastError.restype = ctypes.c_char_p
    text, length = ctypes.create_string_buffer(4096), ctypes.c_int64()
    values = (ctypes.c_int64 * (6 * 3))()
    shape, tensor = (ctypes.c_int64 * 2)(3, 4), ctypes.c_void_p()

    def good(status, expected=0):
        if status == 4:  # kAnyopOutOfMemory
            raise MemoryError(c.AnyopLastError())
        return status == expected or c.AnyopLastError()

    def relu_of_c():
        found = c.AnyopFindOperator(b"relu")
        if not found:
            good(4 if b"memory" in c.AnyopLastError() else 1)
        return ctypes.c_void_p(found)

    def new_tensor():
        right = good(c.AnyopNewTensor(8, 2, shape, ctypes.byref(tensor)))
        c.AnyopDeleteTensor(tensor)
        return right

    def listed():
        count = c.AnyopListOperators(None, 0)
        return good(0 if count > 0 else 4)

    calls = {
        "AnyopFindOperator": lambda: bool(relu_of_c().value),
        "AnyopListOperators": listed,
        "AnyopInvoke, refused": lambda: good(c.AnyopInvoke(relu_of_c(), values, 0, None), 2),
        "AnyopExplain, refused": lambda: good(
            c.AnyopExplain(relu_of_c(), values, 0, None, text, 4096, ctypes.byref(length)), 2
        ),
        "AnyopNewTensor": new_tensor,
        "AnyopRegisterLibrary": lambda: good(c.AnyopRegisterLibrary(None), 1),
        "AnyopLoadLibrary": lambda: good(c.AnyopLoadLibrary(b"/nowhere/lib.so"), 1),
        "AnyopLoadRoutes": lambda: good(c.AnyopLoadRoutes(routes.encode())),
        "AnyopLoadRoutes, none": lambda: good(c.AnyopLoadRoutes(None)),
        "AnyopRemoveImplementation": lambda: good(
            c.AnyopRemoveImplementation(relu_of_c(), b"a name that needs more than a short text"), 1
        ),
        "AnyopSetDeterministic": lambda: good(c.AnyopSetDeterministic(0)),
        "AnyopSetNumThreads": lambda: good(c.AnyopSetNumThreads(2)),
        "AnyopRegisterImplementation": lambda: good(
            c.AnyopRegisterImplementation(relu_of_c(), None), 1
        ),
    }
    for name, call in calls.items():
        ENTRIES[name] = (call, lambda r: r is True)


def add_jax():
    import anyop.jax
    import jax

    call, j = jax.jit(anyop.relu), jax.numpy.asarray(x)
    ENTRIES["jax"] = (lambda: np.asarray(call(j)), lambda r: same(r, relu))
    ENTRIES["jax, explain"] = (lambda: anyop.explain("relu", j).chosen, lambda r: r == "cpu")


def add_paddle():
    import anyop.paddle
    import paddle

    t, ones = paddle.to_tensor(x), paddle.ones([4])
    ENTRIES["paddle"] = (lambda: anyop.relu(t), lambda r: same(r.numpy(), relu))
    ENTRIES["paddle, broadcast"] = (lambda: anyop.add(t, ones), lambda r: same(r.numpy(), x + 1))
    ENTRIES["paddle, explain"] = (lambda: anyop.explain("relu", t).chosen, lambda r: r == "cpu")
    ENTRIES["paddle, python kernel"] = (
        lambda: python_kernel(t, lambda a: np.maximum(a, 0), "numpy"),
        lambda r: same(r.numpy(), relu),
    )


for what in sys.argv[1:]:
    if what != "numpy":
        if what != "torch":
            ENTRIES.clear()
        globals()[f"add_{what}"]()


def attempt(call, k, how):
    error = found = None
    failing.FailingArm(k, how)
    try:
        found = call()
    except BaseException as caught:
        error = caught
    return found, error, failing.FailingDisarm()


def in_a_new_thread(call, k, how):
    """What a thread needs at its first call of anything is allocated there, too."""
    got = []
    thread = threading.Thread(target=lambda: got.append(attempt(call, k, how)))
    thread.start()
    thread.join()
    return got[0]


for name, (call, is_right) in ENTRIES.items():
    for place, how in (attempt, ONCE), (attempt, FROM_THEN_ON), (in_a_new_thread, ONCE):
        for k in [*range(1, FIRST), *range(FIRST + part(STEP, "allocations"), MOST, STEP)]:
            print(f"{name}, {place.__name__}, {k}, {how}", file=sys.stderr)  # where, should it die
            found, error, n = place(call, k, how)
            no_memory = isinstance(error, MemoryError) or "memory" in str(error)
            assert error is None or no_memory, (name, k, how, error)
            assert error is not None or is_right(found), (name, k, how, found)
            assert is_right(call()), (name, k, how, "afterwards")
            if n < k:
                assert error is None, (name, error)
                break
        else:
            raise AssertionError(f"{name} never ends")
    print(f"{name}: {n}")
