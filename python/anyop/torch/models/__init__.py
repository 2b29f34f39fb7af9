# SPDX-License-Identifier: Apache-2.0
"""Parts of models of transformers that anyop operators stand in for: anyop.torch.replacing puts them there."""
