// SPDX-License-Identifier: Apache-2.0
// Writes latent numbers in groups of 8 bits, their scales and rotated keys to the rows of a cache
// that slots name.
#include "anyop/ops/append_latent_fp8.h"

#include "append_rows.h"
#include "latent_row.h"

namespace anyop {
namespace {

// Spoils the numbers. The convention is that of ../quant/quantize_row.h.
void WriteLatent(float* latent, uint8_t* row) {
  for (int64_t g = 0; g < LatentRow::kGroups; ++g) {
    float* part = latent + g * LatentRow::kGroup;
    const float most = cpu::FoldBlock(0.0f, cpu::GreaterMagnitude(), cpu::Magnitude<float>,
                                      LatentRow::kGroup, part);
    const float scale = cpu::ScaleOf(most, cpu::kGreatestE4M3), factor = cpu::FactorOf(scale);
    for (int64_t i = 0; i < LatentRow::kGroup; ++i) part[i] *= factor;
    cpu::StoreE4M3(part, LatentRow::kGroup, row + g * LatentRow::kGroup);
    std::memcpy(row + LatentRow::kScalesAt + g * 4, &scale, 4);
  }
}

void WriteKey(const float* rope, uint8_t* row) {
  uint16_t key[LatentRow::kKey];
  Narrow(rope, LatentRow::kKey, kAnyopBFloat16, key, 0);
  std::memcpy(row + LatentRow::kKeyAt, key, sizeof key);
}

int32_t Append(const AppendLatentFp8Args& args, AnyopCall* call) {
  if (const int32_t status = CheckSlots(call, *args.slots, args.N, args.P)) return status;
  const AnyopTensor &cache = *args.cache, &latent = *args.latent, &rope = *args.rope;
  const auto write = [&](int64_t t, int64_t slot, float* scratch) {
    uint8_t* row = static_cast<uint8_t*>(cache.data) + slot / args.P * cache.strides[0] +
                   slot % args.P * cache.strides[1];
    const AnyopDtype dtype = AnyopDtypeOf(&latent);
    Widen(dtype, latent.data, t * latent.strides[0], 1, LatentRow::kLatent, scratch);
    WriteLatent(scratch, row);
    Widen(dtype, rope.data, t * rope.strides[0], 1, LatentRow::kKey, scratch);
    WriteKey(scratch, row);
  };
  ForSlots(call, *args.slots, LatentRow::kNumbers, LatentRow::kLatent, write);
  return kAnyopOk;
}

}  // namespace
}  // namespace anyop

extern "C" int32_t anyop_append_latent_fp8_cpu(const AppendLatentFp8Args* args, AnyopCall* call) {
  return anyop::Append(*args, call);
}
