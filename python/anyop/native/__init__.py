# SPDX-License-Identifier: Apache-2.0
"""Libraries that are compiled against a framework: recipes, one loader, the glues and the PyTorch device."""
