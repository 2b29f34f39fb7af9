# SPDX-License-Identifier: Apache-2.0
"""Times kernels in OpenCL C on a GPU beside CUDA on the same one, and a launch on the host.

    OCL_ICD_VENDORS=folder ANYOP_OPENCL_DEVICE=NVIDIA python bench/gpu/opencl.py [--rounds 15] [--dry]

The folder holds a file nvidia.icd with the line libnvidia-opencl.so.1: without it another OpenCL answers, so the
device's name must be that of torch's. `add` is a + b -> c of three times 256 MiB of float32, its share that of torch's
`add(out=)`; norms and `softmax` read and write 8192 x 8192 bfloat16, shares of that same rate; `matmul` is 4096^3 of
float32 beside torch's without TF32. Both sides take turns, each by the clock of its own device, medians. Results are
compared with torch's first. A launch is the time of launch_kernel on the host, of a kernel that does nothing, by
ctypes. One line of JSON each goes to bench/results/opencl.jsonl.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import anyop
import ml_dtypes
import numpy as np
import torch
from anyop.conformance.device_table import Image, Launch, Pointer, Properties
from harness import environment, write

from examples.sentence_search.on_device import NumpyOnDevice

SHARES = {"add": 0.95, "rms_norm": 0.85, "layer_norm": 0.85, "softmax": 0.85, "matmul": 0.30}
LAUNCH_US = 10
ROWS, MATRIX, ELEMENTS = 8192, 4096, 64 << 20


def by_opencl(device, call: Callable[[], object], calls: int) -> float:
    """Microseconds of a call by the device's events."""
    begin, end = (device.made("create_event", 0) for _ in range(2))
    device.record_event(0, begin, None)
    for _ in range(calls):
        call()
    device.record_event(0, end, None)
    device.synchronize_event(0, end)
    found = device.made("elapsed_ms", 0, begin, end, kind=ctypes.c_float)
    device.destroy_event(0, begin)
    device.destroy_event(0, end)
    return found * 1e3 / calls


def by_cuda(call: Callable[[], object], calls: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / calls


def turns(device, ours: Callable, theirs: Callable, rounds: int, calls: int) -> list[list[float]]:
    by_opencl(device, ours, 2), by_cuda(theirs, 2)
    times = [(by_opencl(device, ours, calls), by_cuda(theirs, calls)) for _ in range(rounds)]
    return [list(side) for side in zip(*times)]


def cases(there: NumpyOnDevice):
    """Name, bytes moved (0: compared with torch's time), our call, torch's, and what shows that both are right."""
    random = np.random.default_rng(0)

    def pair(*shape: int, bfloat16: bool = False):
        made = random.standard_normal(shape, np.float32)
        here = made.astype(ml_dtypes.bfloat16) if bfloat16 else made
        tensor = torch.from_numpy(made).cuda()
        return there.tensor(here), tensor.bfloat16() if bfloat16 else tensor

    def case(name: str, moved: int, out, ours: Callable, theirs: Callable, limit: float):
        ours(), there.device.synchronize_device(0)
        found = there.array(out).astype(np.float32)
        far = np.abs(found - theirs().float().cpu().numpy()).max()
        if not far <= limit:
            raise SystemExit(f"{name}: off by {far}, nothing was timed")
        return name, moved, ours, theirs

    (a, ta), (b, tb) = pair(ELEMENTS), pair(ELEMENTS)
    c, tc = there.empty((ELEMENTS,)), torch.empty_like(ta)
    yield case(
        "add", 12 * ELEMENTS, c,
        lambda: anyop.add(a, b, out=c), lambda: torch.add(ta, tb, out=tc), 1e-6,
    )  # fmt: skip
    (x, tx), (w, tw) = pair(ROWS, ROWS, bfloat16=True), pair(ROWS, bfloat16=True)
    out, moved = there.empty((ROWS, ROWS), ml_dtypes.bfloat16), 4 * ROWS * ROWS
    F = torch.nn.functional
    for name, ours, theirs in (
        (
            "rms_norm",
            lambda: anyop.rms_norm(x, w, out=out),
            lambda: F.rms_norm(tx, (ROWS,), tw, 1e-6),
        ),
        (
            "layer_norm",
            lambda: anyop.layer_norm(x, w, None, out=out),
            lambda: F.layer_norm(tx, (ROWS,), tw),
        ),
        ("softmax", lambda: anyop.softmax(x, -1, out=out), lambda: F.softmax(tx, -1)),
    ):
        yield case(name, moved, out, ours, theirs, 0.07)
    (m, tm), (n, tn) = pair(MATRIX, MATRIX), pair(MATRIX, MATRIX)
    product = there.empty((MATRIX, MATRIX))
    yield case("matmul", 0, product, lambda: anyop.matmul(m, n, out=product), lambda: tm @ tn, 0.01)


def device_name(device) -> str:
    facts = Properties(size=ctypes.sizeof(Properties))
    device.properties(0, ctypes.byref(facts))
    return facts.name.decode()


EMPTY = b"__kernel void nothing(__global int* x, ulong skip) {}"


def launch_us(device, rounds: int) -> list[float]:
    """Of one launch_kernel, among 200 behind one another on an idle stream."""
    options = b"-DREAL=float -DREAL_IS_DOUBLE=0"
    image = Image(ctypes.sizeof(Image), 0, b"nothing.cl", EMPTY, len(EMPTY), options)
    loaded = device.made("load_image", 0, ctypes.byref(image))
    kernel = device.made("find_kernel", 0, loaded, b"nothing")
    memory = Pointer(device.made("allocate", 0, 256))
    values, sizes = (Pointer * 1)(ctypes.addressof(memory)), (ctypes.c_uint32 * 1)()
    how = ctypes.byref(Launch(ctypes.sizeof(Launch), 1, values, sizes, (1, 1, 1), (32, 1, 1), 0))
    launch, found = device.table.launch_kernel, []
    for _ in range(rounds + 1):
        device.synchronize_device(0)
        begin = time.perf_counter()
        for _ in range(200):
            launch(0, None, kernel, how)
        found.append((time.perf_counter() - begin) / 200 * 1e6)
    return found[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--dry", action="store_true", help="write no results")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    there = NumpyOnDevice("opencl")
    name = device_name(there.device)
    if name != torch.cuda.get_device_name(0):
        raise SystemExit(f"OpenCL's device is {name}, torch's {torch.cuda.get_device_name(0)}")
    rows, ceiling = [], 0.0
    for case, moved, ours, theirs in cases(there):
        ocl, cuda = turns(there.device, ours, theirs, options.rounds, 5 if moved else 2)
        ours_us, theirs_us = statistics.median(ocl), statistics.median(cuda)
        if case == "add":
            ceiling = moved / theirs_us
        share = moved / ours_us / ceiling if moved else theirs_us / ours_us
        note = "" if share >= SHARES[case] else "  missed"
        print(
            f"{case:11}{ours_us:9.1f} us, torch on CUDA {theirs_us:9.1f} us, {share:6.1%} of "
            f"{'a + b -> c' if moved else 'torch'}, asked {SHARES[case]:.0%}{note}", flush=True,
        )  # fmt: skip
        times = {"opencl_us": round(ours_us, 2), "torch_us": round(theirs_us, 2)}
        times |= {"opencl_min_us": round(min(ocl), 2), "torch_min_us": round(min(cuda), 2)}
        rows.append({"case": case, **times, "share": round(share, 4), "asked": SHARES[case]})
    found = launch_us(there.device, options.rounds)
    rows.append(
        {"case": "launch", "host_us": round(statistics.median(found), 2), "asked": LAUNCH_US}
    )
    rows[-1]["host_min_us"] = round(min(found), 2)
    print(f"launch {rows[-1]}")
    where = environment(np, torch, anyop) | {"device": name}
    if not options.dry:
        write("opencl", rows, where)


if __name__ == "__main__":
    main()
