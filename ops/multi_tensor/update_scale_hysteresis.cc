// SPDX-License-Identifier: Apache-2.0
// update_scale_hysteresis on the CPU.
#include "anyop/cpu/lists.h"
#include "scale_update.h"

extern "C" int32_t anyop_update_scale_hysteresis_cpu(const UpdateScaleHysteresisArgs* args,
                                                     AnyopCall*) {
  const anyop::ScaleUpdate<anyop::cpu::Single> update(*args);
  for (int64_t i = 0; i < args->rows; ++i) update(i);
  return kAnyopOk;
}
