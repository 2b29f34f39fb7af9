# SPDX-License-Identifier: Apache-2.0
"""Trains the small language model of examples/generate: python -m examples.train_small."""
