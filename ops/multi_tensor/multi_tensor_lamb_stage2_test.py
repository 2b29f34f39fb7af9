# SPDX-License-Identifier: Apache-2.0
"""The reference of multi_tensor_lamb_stage2."""


def reference(
    p, update, norms, update_norms, lr, master, copy, found_inf, weight_decay, use_nvlamb
):
    if found_inf is not None and found_inf.reshape(()) != 0:
        return
    for n in range(len(p)):
        adapts = (use_nvlamb or weight_decay) and norms[n] != 0 and update_norms[n] != 0
        rate = lr.reshape(()) * (norms[n] / update_norms[n] if adapts else 1)
        new = (p if master is None else master)[n] - rate * update[n]
        for written in (p, master, copy):
            if written is not None:
                written[n][...] = new
