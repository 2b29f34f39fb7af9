# SPDX-License-Identifier: Apache-2.0
"""Qwen3 of transformers infers and trains on torch's device "anyop", compared with the same model on cpu or cuda."""


class InputError(Exception):
    """What the user gave cannot be used; the text is one line that says why and what to do."""
