# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.sparsity.permutation_search_kernels: orders of columns of which pruning to 2 of 4 keeps more."""

from anyop.torch.apex.contrib.sparsity.permutation_search_kernels.call_permutation_search_kernels import (
    accelerated_search_for_good_permutation,
)
from anyop.torch.apex.contrib.sparsity.permutation_search_kernels.permutation_utilities import (
    sum_after_2_to_4,
)

__all__ = ["accelerated_search_for_good_permutation", "sum_after_2_to_4"]
