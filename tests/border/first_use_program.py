# SPDX-License-Identifier: Apache-2.0
"""A process whose first calls of anyop eight threads make at once: first_use_program.py FOLDER SEED FRAMEWORK...

Prints what raised, gave wrong values or did not end; nothing where all is right.
"""

from __future__ import annotations

import faulthandler
import importlib
import random
import sys
import threading
import traceback
from pathlib import Path

import numpy as np

THREADS, EACH = 8, 6
folder, seed, frameworks = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
draw = random.Random(seed)
faulthandler.dump_traceback_later(240, exit=True)

x = np.linspace(-2, 2, 24, dtype=np.float32).reshape(6, 4)
w = np.linspace(1, 2, 4, dtype=np.float32)
relu = np.maximum(x, 0)
norm = x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6) * w
routes = folder / "routes.txt"
# Imported by itself, perhaps before the package: what users name, and what imports no package around it.
PUBLIC = [
    "anyop",
    "anyop.aten",
    "anyop.cache",
    "anyop.doctor",
    "anyop.jit",
    "anyop.testing",
    "anyop.tune",
]
OWN = {
    "torch": ["anyop.torch", "anyop.torch.nn", "anyop.torch.attention", "anyop.torch.deep_gemm"],
    "jax": ["anyop.jax", "anyop.jax.aten"],
    "paddle": ["anyop.paddle"],
}
PARTS = ["adapter", "backend", "builder", "cache", "codegen"]
NEEDS = {
    "anyop.backend.torch_calls": "torch",
    "anyop.backend.triton": "triton",
}  # as their names begin
engine = threading.Lock()  # Paddle's breaks memory where threads are in it, without anyop too


def same(found: object, expected: object) -> None:
    np.testing.assert_allclose(np.asarray(found), expected, rtol=2e-5, atol=1e-6)


def call() -> None:
    import anyop

    same(anyop.relu(x), relu)
    same(anyop.rms_norm(x, w, 1e-6), norm)


def lists() -> None:
    import anyop

    assert "relu" in anyop.list_ops() and "relu" in anyop.list_ops("anyop")
    assert anyop.schema("relu").startswith("relu(") and anyop.metadata("relu")["name"] == "relu"
    assert "rms_norm" in dir(anyop) and len(dir(anyop.ops)) > 1


def asks() -> None:
    import anyop

    assert anyop.explain("silu", x).chosen
    assert "cpu" in anyop.backends("relu")


def registers() -> None:
    import anyop

    name = f"mine{threading.get_ident()}"
    anyop.register("relu", "mine", lambda x: np.maximum(x, 0), name=name, priority=9)
    same(anyop.relu(x), relu)
    anyop.unregister("relu", name)


def uses() -> None:
    import anyop

    with anyop.use("cpu"):
        same(anyop.relu(x), relu)
    if "torch" in frameworks:
        with anyop.use("aten"):
            same(anyop.relu(x), relu)


def loads_routes() -> None:
    import anyop

    anyop.load_routes(draw.choice([routes, None, "cpu", "auto"]))
    same(anyop.rms_norm(x, w, 1e-6), norm)


def logs() -> None:
    import anyop

    anyop.log_dispatch(draw.choice([0, 1, 2]), folder / "log.jsonl", stderr=False)
    anyop.record(draw.choice([None, folder / f"calls{threading.get_ident()}.jsonl"]))
    anyop.use_deterministic(False)
    same(anyop.relu(x), relu)


def sets() -> None:
    import anyop

    anyop.set_num_threads(draw.choice([1, 2]))
    big = np.ones((512, 1024), np.float32)
    same(anyop.relu(big), big)
    same(anyop.linear(x, np.ones((3, 4), np.float32)), x.sum(1, keepdims=True).repeat(3, 1))


def builds() -> None:
    import anyop

    assert anyop.load(folder / "acme") == ["acme.scale", "acme.scale_backward"]
    same(anyop.ops.acme.scale(x, 3.0), 3 * x)
    assert "acme.scale" in anyop.list_ops()


def builds_for_torch() -> None:
    import anyop
    import anyop.torch
    import torch

    assert "acme.scale" in anyop.load(folder / "acme")
    t = torch.tensor(x, requires_grad=True)
    torch.ops.acme.scale(t, 2.0).sum().backward()
    same(t.grad, np.full_like(x, 2))


def jits() -> None:
    import anyop

    text = "void add_one(const float* x, float* y, int64_t n) { for (int64_t i = 0; i < n; ++i) y[i] = x[i] + 1; }"
    out = np.empty_like(x)
    made = anyop.jit.load("first", source=text, functions=["add_one"])
    made.add_one(x, out, x.size)
    assert made.namespace == "first"
    same(out, x + 1)


def pickles() -> None:
    import pickle

    import anyop

    same(pickle.loads(pickle.dumps(anyop.relu))(x), relu)


def misspells() -> None:
    import anyop

    for wrong in (lambda: anyop.rms_nrm, lambda: anyop.ops.acme.scal, lambda: anyop.ops.acne):
        try:
            wrong()
        except AttributeError:
            continue
        raise AssertionError("no error")


def imports() -> None:
    for name in draw.sample(modules(), 8):
        importlib.import_module(name)


def modules() -> list[str]:
    root = next(Path(place) / "anyop" for place in sys.path if (Path(place) / "anyop").is_dir())
    found = [*PUBLIC, *(name for framework in frameworks for name in OWN.get(framework, ()))]
    for path in (path for part in PARTS for path in (root / part).rglob("*.py")):
        name = ".".join(("anyop", *path.relative_to(root).with_suffix("").parts))
        name = name.removesuffix(".__init__")
        absent = next((of for start, of in NEEDS.items() if name.startswith(start)), None)
        if path.stem != "__main__" and (absent is None or absent in frameworks):
            found.append(name)
    return found


def calls_torch() -> None:
    import anyop
    import torch

    t, v = torch.tensor(x), torch.tensor(w)
    same(anyop.rms_norm(t, v, 1e-6), norm)
    g = t.clone().requires_grad_()
    anyop.relu(g).sum().backward()
    same(g.grad, (x > 0).astype(np.float32))
    same(torch.func.vmap(anyop.relu)(t), relu)


def calls_torch_ops() -> None:
    import anyop.torch  # noqa: F401
    import torch

    t, v = torch.tensor(x, requires_grad=True), torch.tensor(w)
    y = torch.ops.anyop.rms_norm(t, v, 1e-6)
    y.sum().backward()
    same(y.detach(), norm)
    assert t.grad is not None and t.grad.shape == t.shape
    with torch._subclasses.FakeTensorMode():
        assert torch.ops.anyop.relu(torch.empty(3, 4)).shape == (3, 4)


def calls_aten() -> None:
    import anyop
    import torch

    same(anyop.aten.add(x, x, alpha=2), 3 * x)
    same(anyop.aten.relu(torch.tensor(x)), relu)
    same(anyop.aten.topk(x, 2)[0], x[:, :1:-1])
    assert anyop.aten.resolve("add", x, x) == "add.Tensor"
    same(anyop.aten.cat([x, x], dim=1), np.concatenate([x, x], 1))


def replaces() -> None:
    import anyop.torch
    import torch

    model = torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.GELU())
    expected = model(torch.tensor(x)).detach()
    anyop.torch.replace(model, timed=False, verbose=False)
    same(model(torch.tensor(x)).detach(), expected)


def calls_jax() -> None:
    import anyop
    import jax

    j, u = jax.numpy.asarray(x), jax.numpy.asarray(w)
    same(anyop.rms_norm(j, u, 1e-6), norm)
    same(jax.jit(anyop.relu)(j), relu)
    same(jax.grad(lambda j: anyop.relu(j).sum())(j), (x > 0).astype(np.float32))
    same(jax.vmap(anyop.relu)(j), relu)


def aten_of_jax() -> None:
    import anyop
    import jax

    same(anyop.aten.add(jax.numpy.asarray(x), jax.numpy.asarray(x)), 2 * x)


def calls_paddle() -> None:
    import anyop
    import paddle

    p, q = paddle.to_tensor(x), paddle.to_tensor(w)
    same(anyop.rms_norm(p, q, 1e-6), norm)
    p.stop_gradient = False
    with engine:
        slope = paddle.grad(anyop.relu(p).sum(), p)[0]
    same(slope, (x > 0).astype(np.float32))


def calls_tvm_ffi() -> None:
    import anyop  # noqa: F401
    import tvm_ffi

    same(np.from_dlpack(tvm_ffi.get_global_func("anyop.relu")(x)), relu)


CALLS = [call, lists, asks, registers, uses, loads_routes, logs, sets, builds, jits, pickles]
CALLS += [misspells, imports, imports, imports]
OF = {
    "torch": [calls_torch, calls_torch_ops, calls_aten, replaces, builds_for_torch],
    "jax": [calls_jax, calls_jax],
    "paddle": [calls_paddle, calls_paddle],
    "tvm_ffi": [calls_tvm_ffi],
}


def prepare() -> list[list]:
    """What each thread calls; the frameworks are loaded, anyop is not."""
    calls = list(CALLS)
    for name in frameworks:
        importlib.import_module(name)
        calls += OF[name] * 2
    if {"torch", "jax"} <= {*frameworks}:
        calls.append(aten_of_jax)
    # Half of the processes let few things meet themselves again and again.
    if draw.random() < 0.5:
        calls = draw.sample(calls, 3)
    return [[draw.choice(calls) for _ in range(EACH)] for _ in range(THREADS)]


def main() -> None:
    works = prepare()
    gate, wrong = threading.Barrier(THREADS), []

    def run(work: list) -> None:
        gate.wait()
        for call in work:
            try:
                call()
            except BaseException:
                wrong.append(f"{call.__name__}: {traceback.format_exc()}")

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    sys.setswitchinterval(1e-6)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(0.005)
    print("\n".join(wrong), end="")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
