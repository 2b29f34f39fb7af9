# SPDX-License-Identifier: Apache-2.0
"""CuPy's arrays: results by its allocator, its current stream, its devices, and what is refused."""

from __future__ import annotations

import anyop
import numpy as np
import pytest

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
if not cupy.is_available():
    pytest.skip("CuPy finds no CUDA device", allow_module_level=True)

SPIN = cupy.RawKernel(
    r"""extern "C" __global__ void spin(long long cycles) {
      const long long start = clock64();
      while (clock64() - start < cycles) {}
    }""",
    "spin",
)
SPIN_CYCLES = np.int64(200_000_000)  # 0.1 s and more


def operands(rows=50, D=96, dtype=np.float32):
    random = np.random.default_rng(0)
    return random.standard_normal((rows, D)).astype(dtype), random.standard_normal(D).astype(dtype)


def expected_of(x, weight):
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight.astype(np.float64)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_results_are_cupys(dtype):
    x, weight = operands(dtype=dtype)
    found = anyop.rms_norm(cupy.asarray(x), cupy.asarray(weight))
    assert type(found) is cupy.ndarray and found.dtype == dtype
    limit = 1e-5 if dtype is np.float32 else 2e-3
    np.testing.assert_allclose(cupy.asnumpy(found), expected_of(x, weight), limit, limit)


def test_results_lie_in_cupys_pool():
    pool = cupy.get_default_memory_pool()
    x = cupy.ones((1024, 1024), np.float32)
    before = pool.used_bytes()
    found = anyop.add(x, x)
    assert pool.used_bytes() - before >= found.nbytes
    del found
    assert pool.used_bytes() == before


def test_views_and_empty_arrays():
    x, weight = operands()
    wide = cupy.asarray(np.repeat(x, 2, 0))[::2]
    found = anyop.rms_norm(wide, cupy.asarray(weight))
    np.testing.assert_allclose(cupy.asnumpy(found), expected_of(x, weight), 1e-5, 1e-5)
    assert anyop.rms_norm(wide[:0], cupy.asarray(weight)).shape == (0, 96)


def test_several_results_some_unwanted():
    x, weight = (cupy.asarray(a) for a in operands())
    grad_x, none = anyop.rms_norm_backward(x, x, weight, grad_weight=False)
    again, _ = anyop.rms_norm_backward(x, x, weight)
    assert none is None and bool((grad_x == again).all())


def test_out_is_written_and_returned():
    x, weight = operands()
    out = cupy.empty(x.shape, np.float32)
    assert anyop.rms_norm(cupy.asarray(x), cupy.asarray(weight), out=out) is out
    np.testing.assert_allclose(cupy.asnumpy(out), expected_of(x, weight), 1e-5, 1e-5)


@pytest.mark.parametrize("non_blocking", [False, True])
def test_the_current_stream_is_used_and_not_waited_for(non_blocking):
    """The input is written behind a spin on the side stream: another stream would read zeros."""
    x, weight = operands(256, 512)
    source, weight_there = cupy.asarray(x), cupy.asarray(weight)
    anyop.rms_norm(source, weight_there)  # loads the kernel
    late = cupy.zeros_like(source)
    stream = cupy.cuda.Stream(non_blocking=non_blocking)
    cupy.cuda.Device().synchronize()
    with stream:
        SPIN((1,), (1,), (SPIN_CYCLES,))
        late[...] = source
        found = anyop.rms_norm(late, weight_there)
        assert not stream.done, "the call waited for the stream"
    stream.synchronize()
    np.testing.assert_allclose(cupy.asnumpy(found), expected_of(x, weight), 1e-4, 1e-4)


def test_each_thread_has_its_own_stream():
    import threading

    x, weight = operands(256, 512)
    wrong = []

    def work():
        with cupy.cuda.Stream(non_blocking=True) as stream:
            a, w = cupy.asarray(x), cupy.asarray(weight)
            for _ in range(100):
                found = anyop.rms_norm(a, w)
            stream.synchronize()
            if not np.allclose(cupy.asnumpy(found), expected_of(x, weight), 1e-4, 1e-4):
                wrong.append(threading.get_ident())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.skipif(
    cupy.cuda.runtime.getDeviceCount() < 2, reason="this machine has one CUDA device"
)
def test_the_device_of_the_arrays():
    x, weight = operands()
    with cupy.cuda.Device(1):
        there = [cupy.asarray(a) for a in (x, weight)]
    found = anyop.rms_norm(*there)  # device 0 is current
    assert found.device.id == 1 and cupy.cuda.Device().id == 0
    np.testing.assert_allclose(cupy.asnumpy(found), expected_of(x, weight), 1e-5, 1e-5)
    with pytest.raises(ValueError, match="is on device cuda:0, expected cuda:1"):
        anyop.rms_norm(there[0], cupy.asarray(weight))


def test_what_is_refused():
    x, weight = (cupy.asarray(a) for a in operands())
    with pytest.raises(TypeError, match=r"weight is a numpy.ndarray, expected a cupy.ndarray"):
        anyop.rms_norm(x, cupy.asnumpy(weight))
    with pytest.raises(ValueError, match="weight has shape"):
        anyop.rms_norm(x, weight[:3])
    with pytest.raises(TypeError, match="x has dtype int32"):
        anyop.rms_norm(x.astype(np.int32), weight)
    with pytest.raises(ValueError, match="overlaps"):
        anyop.rms_norm(x, x[0], out=x)
