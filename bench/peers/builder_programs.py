# SPDX-License-Identifier: Apache-2.0
"""What bench/builds/builder.py runs in fresh processes; each compares its results and prints seconds."""

_CHECK = """
from math import erf
import numpy as np
def check(function, wrap=lambda x: x):
    x, bias = np.linspace(-3, 3, 24, dtype=np.float32).reshape(4, 6), np.ones(6, np.float32)
    expected = [[0.5 * (a + 1) * (1 + erf((a + 1) / 2**0.5)) for a in row] for row in x.tolist()]
    np.testing.assert_allclose(function(wrap(x), wrap(bias)), expected, rtol=2e-6, atol=2e-6)
"""
# Arguments: the folder of operators.
BUILD = (
    """
import sys, time
import anyop
begin = time.perf_counter()
library = anyop.build(sys.argv[1], name="moved")
print(time.perf_counter() - begin)
"""
    + _CHECK
    + "anyop.load(library); check(anyop.ops.moved.bias_gelu)\n"
)
# Arguments: the folder of before/.
INLINE = (
    """
import sys, time
import torch
from torch.utils.cpp_extension import load_inline
lines = open(sys.argv[1] + "/before/bias_gelu_pybind.cc").read().splitlines()
source = "\\n".join(line for line in lines if not line.startswith("PYBIND11_MODULE"))
paths = [sys.argv[1] + "/before"]
begin = time.perf_counter()
module = load_inline("moved", [source], functions=["BiasGelu"], extra_include_paths=paths)
print(time.perf_counter() - begin)
"""
    + _CHECK
    + "check(module.BiasGelu, torch.from_numpy)\n"
)
# Arguments: a library. On a machine with a GPU its results are compared too.
CUDA = (
    _CHECK
    + """
import sys
import anyop, torch
assert anyop.load(sys.argv[1]) == ["peer.bias_gelu_cuda"]
if torch.cuda.is_available():
    function = anyop.ops.peer.bias_gelu_cuda
    check(lambda *xs: function(*xs).cpu(), lambda x: torch.from_numpy(x).cuda())
"""
)
# Arguments: the folder of operators. Seconds of the first and of the second time.
WARM = """
import sys, time
import anyop
for _ in range(2):
    begin = time.perf_counter()
    anyop.load(sys.argv[1])
    print(time.perf_counter() - begin)
"""
# Arguments: libexports.so. The same kernels must give the same bits.
EXPORTS = """
import sys
import anyop, numpy as np, tvm_ffi
exported = tvm_ffi.load_module(sys.argv[1])
x, weight = np.random.default_rng(0).standard_normal((2, 5, 64)).astype(np.float32)
out = np.empty_like(x)
exported.rms_norm(x, weight[0], 1e-6, out)
np.testing.assert_array_equal(out, anyop.rms_norm(x, weight[0]))
exported.softmax(x, -1, out)
np.testing.assert_array_equal(out, anyop.softmax(x))
exported.gelu_backward(x, weight, "tanh", out)
np.testing.assert_array_equal(out, anyop.gelu_backward(x, weight, approximate="tanh"))
"""
