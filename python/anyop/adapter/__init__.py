# SPDX-License-Identifier: Apache-2.0
"""What every framework's adapter takes from a schema: arguments, shapes, dtypes, gradients. Imports no framework."""
