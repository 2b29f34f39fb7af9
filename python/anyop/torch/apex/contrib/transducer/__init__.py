# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.transducer."""

from anyop.torch.apex.contrib.transducer.transducer import TransducerJoint, TransducerLoss

__all__ = ["TransducerJoint", "TransducerLoss"]
