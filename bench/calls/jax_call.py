# SPDX-License-Identifier: Apache-2.0
"""Times calls on JAX's arrays, compiled and eager, in loops that XLA runs, and watches memory and imports.

    python bench/calls/jax_call.py [--rounds 15]

rms_norm of 4x64 float32 on the CPU, beside an identity and the same function in jnp, both compiled by jax.jit; a call
is dispatched and waited for. Memory is that of a process which makes 500,000 calls with an attribute. An import is the
median of some processes. One line of JSON for each goes to bench/results/jax_call.jsonl.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import ROOT, environment, spread, take_turns, write

CALLS = 2000
ITERATIONS = 100_000
MEMORY_CALLS = 500_000

MEMORY = """
import jax, jax.numpy as jnp, anyop.jax
x, w = jnp.ones((4, 64)), jnp.ones(64)
call = {call}
def resident_kib():
    return int(open("/proc/self/statm").read().split()[1]) * 4
def calls(count):
    for k in range(count):
        call(x, w, k)
    call(x, w, 0).block_until_ready()
calls({calls} // 10)
before = resident_kib()
calls({calls})
print(resident_kib() - before)
"""
MEMORY_SIDES = {
    "compiled": "(lambda f: lambda x, w, k: f(x, w))(jax.jit(lambda x, w: anyop.rms_norm(x, w, 1e-5)))",
    "eager": "lambda x, w, k: anyop.rms_norm(x, w, eps=1e-5)",
    "eager, eight values of the attribute": "lambda x, w, k: anyop.rms_norm(x, w, 1e-5 * (k % 8))",
}
IMPORT = "import jax, anyop, time; t = time.perf_counter(); import anyop.jax; print((time.perf_counter() - t) * 1e3)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    import anyop
    import jax
    import jaxlib.version

    anyop.set_num_threads(1)
    jaxlib.__version__ = jaxlib.version.__version__
    rows = [*time_calls(anyop, jax, rounds), *time_loops(anyop, jax, rounds)]
    rows += [*measure_memory(), *measure_import()]
    path = write("jax_call", rows, environment(anyop, jax, jaxlib))
    print("written to", path.relative_to(ROOT))


def time_calls(anyop, jax, rounds: int) -> list[dict]:
    jnp = jax.numpy
    x, w = jnp.linspace(-1, 1, 256, dtype="float32").reshape(4, 64), jnp.ones(64)
    identity, ours, theirs = jax.jit(lambda x: x), jax.jit(anyop.rms_norm), jax.jit(plain(jnp))
    with_both = jax.jit(lambda x, w: x, keep_unused=True)  # a further array costs XLA half a us
    assert jnp.allclose(ours(x, w), theirs(x, w), atol=1e-6)
    assert jnp.array_equal(ours(x, w), anyop.rms_norm(x, w))
    sides = {
        "jit identity": lambda: identity(x).block_until_ready(),
        "jit identity, both arrays": lambda: with_both(x, w).block_until_ready(),
        "jit rms_norm": lambda: ours(x, w).block_until_ready(),
        "jit rms_norm in jnp": lambda: theirs(x, w).block_until_ready(),
        "eager rms_norm": lambda: anyop.rms_norm(x, w).block_until_ready(),
        "eager rms_norm in jnp": lambda: plain(jnp)(x, w).block_until_ready(),
    }
    times = take_turns(sides, rounds, CALLS)
    rows = [{"call": name, **spread(values)} for name, values in times.items()]
    for row in rows:
        print(f"{row['call']:40}{row['min_ns']:10.0f} ns{row['median_ns']:10.0f} median")
    best = {row["call"]: row["min_ns"] for row in rows}
    ratio = best["jit rms_norm"] / best["jit identity"]
    fair = best["jit rms_norm"] / best["jit identity, both arrays"]
    rows.append(figure("jit rms_norm / jit identity, both arrays", fair, 1.25))
    return [*rows, figure("jit rms_norm / jit identity", ratio, 1.25)]


def plain(jnp):
    return lambda x, w: x * (1 / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)) * w


def time_loops(anyop, jax, rounds: int) -> list[dict]:
    """Microseconds of one iteration of a compiled loop."""
    x, w = jax.numpy.ones((4, 64)), jax.numpy.ones(64)

    def loop(body):
        compiled = jax.jit(
            lambda x, w: jax.lax.fori_loop(0, ITERATIONS, lambda _, y: body(y, w), x)
        )
        return lambda: compiled(x, w).block_until_ready()

    sides = {"rms_norm": loop(anyop.rms_norm), "rms_norm in jnp": loop(plain(jax.numpy))}
    times = take_turns(sides, rounds)
    rows = []
    for name, values in times.items():
        each = spread([value / ITERATIONS for value in values])
        rows.append({"loop": name, **each})
        print(f"{'fori_loop ' + name:40}{each['min_ns']:10.0f} ns{each['median_ns']:10.0f} median")
    return [*rows, figure("fori_loop rms_norm, us", rows[0]["min_ns"] / 1e3, 0.3)]


def measure_memory() -> list[dict]:
    rows = []
    for name, call in MEMORY_SIDES.items():
        begin = time.monotonic()
        grown = float(run(MEMORY.format(call=call, calls=MEMORY_CALLS))) / 1024
        print(f"{name}: {MEMORY_CALLS:,} calls in {time.monotonic() - begin:.0f} s")
        rows.append(figure(f"MiB more after {MEMORY_CALLS:,} calls, {name}", grown, 1.0))
    return rows


def measure_import() -> list[dict]:
    cost = statistics.median(float(run(IMPORT)) for _ in range(7))
    return [figure("import anyop.jax behind jax, ms", cost, 50)]


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


def figure(name: str, found: float, at_most: float) -> dict:
    verdict = "met" if found <= at_most else "MISSED"
    print(f"{name:60}{found:9.3f} at most {at_most:6.2f}  {verdict}")
    return {"figure": name, "found": round(found, 4), "at_most": at_most}


if __name__ == "__main__":
    main()
