# SPDX-License-Identifier: Apache-2.0
"""apex.mlp."""

from anyop.torch.apex.mlp.mlp import MLP, MlpFunction, mlp_function

__all__ = ["MLP", "MlpFunction", "mlp_function"]
