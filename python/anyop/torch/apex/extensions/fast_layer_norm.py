# SPDX-License-Identifier: Apache-2.0
"""fast_layer_norm: layer norm of a matrix and its gradient, raw."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from anyop.torch.apex.extensions import fused_layer_norm_cuda


def ln_fwd(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> list[Tensor]:
    """The result in gamma's dtype, the mean and 1 / the deviation of each row."""
    shape = tuple(gamma.shape)
    norm: Callable[..., list[Tensor]] = fused_layer_norm_cuda.forward_affine_mixed_dtypes
    return norm(x, shape, gamma, beta, epsilon)


def ln_bwd(
    dz: Tensor, x_or_z: Tensor, mu: Tensor | None, rsigma: Tensor, gamma: Tensor,
    beta: Tensor | None = None, memory_efficient: bool = False,
) -> list[Tensor | None]:  # fmt: skip
    """Gradients of x, gamma and beta, and the sums of parts of the rows: here one part, float32.

    epsilon is not given: without memory_efficient it is what rsigma says.
    """
    shape, second = tuple(gamma.shape), gamma if beta is None else beta
    if memory_efficient:
        more = shape, gamma, second, 0.0, True
        grads = fused_layer_norm_cuda.backward_affine(dz, mu, rsigma, x_or_z, *more)
    else:  # the normalised rows are a result without parameters
        assert mu is not None
        wide = dz.float()
        normal = (x_or_z.float() - mu.view(-1, 1)) * rsigma.view(-1, 1)
        scaled = wide * gamma.float()
        grad = fused_layer_norm_cuda.backward(scaled, None, rsigma, normal, shape, 0.0, True)
        found = grad, (wide * normal).sum(0), wide.sum(0)
        grads = [
            None if g is None else g.to(p.dtype) for g, p in zip(found, (x_or_z, gamma, second))
        ]
    parts = [None if g is None else g.float().unsqueeze(0) for g in grads[1:]]
    return [*grads, *parts]
