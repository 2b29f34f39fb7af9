# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.transducer.transducer: the joint and the loss of a transducer, as modules."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import anyop
from anyop.torch.apex.extensions.transducer_joint_cuda import random_place

__all__ = ["TransducerJoint", "TransducerLoss"]


class TransducerJoint(torch.nn.Module):
    """f (B, T, H) plus g (B, U, H), for all frames and tokens, with ReLU and dropout; packed or not.

    opt and fwd_tile_size change nothing. probe_mask: masks are put into self.mask_probe.
    """

    def __init__(
        self, pack_output: bool = False, relu: bool = False, dropout: bool = False, opt: int = 1,
        fwd_tile_size: int = 4, dropout_prob: float = 0, probe_mask: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.pack_output, self.relu, self.dropout = pack_output, relu, dropout
        self.opt, self.fwd_tile_size, self.dropout_prob = opt, fwd_tile_size, dropout_prob
        masked = relu or dropout
        self.mask_probe: list[Tensor] | None = [] if masked and probe_mask else None
        if masked and opt != 1:
            raise NotImplementedError("ReLU and dropout fusion is only supported with opt=1")

    def forward(
        self, f: Tensor, g: Tensor, f_len: Tensor, g_len: Tensor,
        batch_offset: Tensor | None = None, packed_batch: int = 0,
    ) -> Tensor:  # fmt: skip
        """(B, T, U, H); packed (packed_batch, H), sequences ending at batch_offset = cumsum(f_len * g_len)."""
        if self.pack_output and (batch_offset is None or packed_batch == 0):
            raise Exception(  # Apex's own type
                "Please specify batch_offset and packed_batch when packing is enabled"
            )
        dropout = float(self.dropout_prob) if self.dropout and self.training else 0.0
        place = random_place(f.device) if dropout else (None, None)
        given = f.contiguous(), g.contiguous(), f_len, g_len.to(f_len.dtype)
        wanted: dict[str, Any] = {"relu": self.relu, "dropout": dropout}
        if self.mask_probe is None:
            wanted["mask"] = False
        if self.pack_output:
            assert batch_offset is not None
            out, mask = anyop.transducer_joint_packed(
                *given, batch_offset.long(), packed_batch, *place, **wanted
            )
        else:
            out, mask = anyop.transducer_joint(*given, *place, **wanted)
        if self.mask_probe is not None:
            self.mask_probe.append(mask)
        return out


class TransducerLoss(torch.nn.Module):
    """The transducer loss of logits, one of each sequence, in their dtype.

    fuse_softmax_backward and opt change nothing: the softmax is always within the loss.
    """

    def __init__(
        self, fuse_softmax_backward: bool = True, opt: int = 1, packed_input: bool = False
    ) -> None:
        super().__init__()
        self.fuse_softmax_backward, self.opt = fuse_softmax_backward, opt
        self.packed_input = packed_input

    def forward(
        self, x: Tensor, label: Tensor, f_len: Tensor, y_len: Tensor, blank_idx: int,
        batch_offset: Tensor | None = None, max_f_len: int | None = None,
        debug_list: list[Tensor] | None = None,
    ) -> Tensor:  # fmt: skip
        """Of logits (B, T, U, V); packed (rows, V), sequences ending at batch_offset = cumsum(f_len * (y_len + 1)).

        An empty debug_list gets what the gradient is made of: the shares of alignments that take a
        blank, and a label.
        """
        given = x.contiguous(), label.contiguous(), f_len, y_len.to(f_len.dtype)
        if self.packed_input:
            if batch_offset is None or max_f_len is None:
                raise Exception(  # Apex's own type
                    "Please specify batch_offset and max_f_len when packing is enabled"
                )
            loss, *moves, _ = anyop.transducer_loss_packed(*given, batch_offset.long(), blank_idx)
        else:
            loss, *moves, _ = anyop.transducer_loss(*given, blank_idx)
        if debug_list == []:
            debug_list += moves
        return loss.to(x.dtype)
