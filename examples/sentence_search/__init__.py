# SPDX-License-Identifier: Apache-2.0
"""Search text by meaning with a real BERT encoder, every heavy step an anyop operator."""


class InputError(Exception):
    """What the user gave cannot be used; the text is one line that says why and what to do."""
