// SPDX-License-Identifier: Apache-2.0
// Writes rows of keys and values to the places of a cache that slots name.
#include "anyop/ops/append_kv.h"

#include <algorithm>

#include "append_rows.h"

namespace anyop {
namespace {

int32_t Append(const AppendKvArgs& args, AnyopCall* call) {
  if (const int32_t status = CheckSlots(call, *args.slots, args.N, args.P)) return status;
  const AppendedRows keys(*args.k_cache, *args.k, args.k_scale);
  const AppendedRows values(*args.v_cache, *args.v, args.v_scale);
  ForSlots(call, *args.slots, args.G * (args.D + args.E), std::max(args.D, args.E),
           [&](int64_t t, int64_t slot, float* scratch) {
             keys.Write(t, slot, scratch);
             values.Write(t, slot, scratch);
           });
  return kAnyopOk;
}

}  // namespace
}  // namespace anyop

extern "C" int32_t anyop_append_kv_cpu(const AppendKvArgs* args, AnyopCall* call) {
  return anyop::Append(*args, call);
}
