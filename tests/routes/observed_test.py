# SPDX-License-Identifier: Apache-2.0
"""Calls that arrive at kernels are counted, whatever way they come."""

import subprocess
import sys
import threading
from pathlib import Path

import anyop
import numpy as np
import pytest
from anyop import testing

LIBRARY = Path(anyop._anyop.__file__).parent / "lib" / "libanyop.so"


def kernel(name: str) -> testing.Kernel:
    return next(found for found in testing.kernel_calls(name) if found.backend == "cpu")


def test_nobody_observes_at_first_and_the_kernel_stays_the_same():
    program = (
        "import anyop, numpy as np\n"
        "from anyop import testing\n"
        "x = np.ones((2, 4), np.float32)\n"
        "(before,) = (k for k in testing.kernel_calls('softmax') if k.backend == 'cpu')\n"
        "anyop.softmax(x)\n"
        "testing.observe('softmax')\n"
        "expected = anyop.softmax(x)\n"
        "testing.observe('anyop.softmax')  # once more: nothing changes\n"
        "assert (anyop.softmax(x) == expected).all() and expected[0, 0] == 0.25\n"
        "(after,) = (k for k in testing.kernel_calls('softmax') if k.backend == 'cpu')\n"
        "assert before.calls is None and after.calls == 2\n"
        "assert before._replace(calls=2) == after\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_calls_of_every_way_are_counted_and_refused_ones_are_not():
    testing.observe("silu")
    x, before = np.ones(3, np.float32), kernel("silu").calls
    anyop.silu(x)
    anyop.silu(x, out=x)
    threads = [threading.Thread(target=anyop.silu, args=(np.ones(9),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with pytest.raises(TypeError):
        anyop.silu(np.ones(3, np.int32))
    assert kernel("silu").calls == before + 6


def test_calls_through_torch_are_counted():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import anyop.torch

    testing.observe("silu")
    testing.observe("silu_backward")
    before = [kernel(name).calls for name in ("silu", "silu_backward")]
    x = torch.ones(3, requires_grad=True)
    anyop.silu(x).sum().backward()
    torch.ops.anyop.silu(x.detach())
    after = [kernel(name).calls for name in ("silu", "silu_backward")]
    assert [b - a for a, b in zip(before, after)] == [2, 1]


def test_place_is_that_of_the_function_in_the_library():
    found = kernel("rms_norm")
    assert Path(found.library).resolve() == LIBRARY.resolve()
    try:
        nm = subprocess.run(["nm", LIBRARY], capture_output=True, text=True, check=True).stdout
    except OSError:
        pytest.skip("nm is not installed")
    if "anyop_rms_norm_cpu" not in nm:
        pytest.skip("the library was installed without its table of symbols")
    assert f"{found.offset:016x} t anyop_rms_norm_cpu" in nm


def test_unknown_operators_are_refused():
    for function in (testing.observe, testing.kernel_calls):
        with pytest.raises(ValueError, match="no operator"):
            function("rms_morn")
        with pytest.raises(TypeError):
            function(3)
