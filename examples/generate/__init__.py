# SPDX-License-Identifier: Apache-2.0
"""Text from a language model whose every heavy step is an anyop operator: python -m examples.generate."""


class InputError(Exception):
    """A folder or an argument that cannot be used; the message says which and why."""
