# SPDX-License-Identifier: Apache-2.0
"""The reference of update_scale_hysteresis."""

import numpy as np


def reference(current_scale, growth_tracker, hysteresis_tracker, found_inf, growth_factor, backoff_factor,
              growth_interval, hysteresis):  # fmt: skip
    if found_inf.reshape(()) != 0:
        growth_tracker[...] = 0
        hysteresis_tracker[...] -= 1
        current_scale[...] *= np.where(hysteresis_tracker <= 0, backoff_factor, 1)
        return
    hysteresis_tracker[...] = hysteresis
    growth_tracker[...] += 1
    grows = growth_tracker == growth_interval
    growth_tracker[grows] = 0
    current_scale[...] *= np.where(grows, growth_factor, 1)
