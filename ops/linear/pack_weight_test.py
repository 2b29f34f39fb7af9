# SPDX-License-Identifier: Apache-2.0
"""The order of packed weights, by NumPy."""


def reference(weight):
    N, K = weight.shape
    return weight.reshape(N // 64, 64, K // 2, 2).transpose(0, 2, 1, 3)
