# SPDX-License-Identifier: Apache-2.0
"""The reference of multi_tensor_average."""


def reference(p, average, count, rate):
    number = count.reshape(())
    weight = 1.0 if number == 0 else 1 / (number + 1) if rate is None else rate.reshape(())
    for a, b in zip(average, p):  # as torch.lerp where one is infinite
        mean = a + weight * (b - a) if weight < 0.5 else b - (1 - weight) * (b - a)
        a[...] = b if weight == 1 else mean
