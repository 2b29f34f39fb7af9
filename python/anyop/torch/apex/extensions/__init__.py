# SPDX-License-Identifier: Apache-2.0
"""Apex's extension modules by their names: fused_layer_norm_cuda, scaled_masked_softmax_cuda and others.

Their functions record no gradients, as Apex's, and run on every device that the operators have.
"""
