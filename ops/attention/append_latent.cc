// SPDX-License-Identifier: Apache-2.0
// Writes latent numbers and rotated keys side by side to the rows of a cache that slots name.
#include "anyop/ops/append_latent.h"

#include "append_rows.h"

namespace anyop {
namespace {

int32_t Append(const AppendLatentArgs& args, AnyopCall* call) {
  if (const int32_t status = CheckSlots(call, *args.slots, args.N, args.P)) return status;
  const AppendedRows latent(*args.cache, *args.latent, nullptr);
  const AppendedRows rope(*args.cache, *args.rope, nullptr, args.R);
  ForSlots(call, *args.slots, args.W, args.W, [&](int64_t t, int64_t slot, float* scratch) {
    latent.Write(t, slot, scratch);
    rope.Write(t, slot, scratch);
  });
  return kAnyopOk;
}

}  // namespace
}  // namespace anyop

extern "C" int32_t anyop_append_latent_cpu(const AppendLatentArgs* args, AnyopCall* call) {
  return anyop::Append(*args, call);
}
