// SPDX-License-Identifier: Apache-2.0
// linear_w4 on the CPU: few rows by dot products (w4_dots.cc); for more, weights are unpacked block
// by block and go by the engines of linear: rounded to bfloat16 for x of bfloat16 where the CPU has
// its products, else in float32.
#include "anyop/ops/linear_w4.h"

#include <cstring>

#include "dots.h"
#include "filled_product.h"
#include "scaled_sums.h"
#include "w4_dots.h"

namespace anyop {
namespace {

ANYOP_CPU_CLONES void UnpackRow(const w4::Rows* w, const float* gathered, int64_t n, int64_t first,
                                int64_t count, float* to) {
  w4::UnpackPart(*w, gathered, n, first, count, to);
}

void FillWeight(const w4::Rows& w, const float* gathered, AnyopDtype dtype, int64_t n, void* to) {
  if (dtype == kAnyopFloat32) return UnpackRow(&w, gathered, n, 0, w.K, static_cast<float*>(to));
  float part[cpu::kBlock];
  for (int64_t k = 0; k < w.K; k += cpu::kBlock) {
    const int64_t count = std::min(cpu::kBlock, w.K - k);
    UnpackRow(&w, gathered, n, k, count, part);
    Narrow(part, count, dtype, to, k);
  }
}

int32_t MultiplyUnpacked(AnyopCall* call, const LinearW4Args* args, const W4Product& p) {
  const int64_t K = p.weight.K, N = p.weight.N;
  const bool narrow = p.dtype == kAnyopBFloat16 && HasBF16Dots();
  const AnyopDtype dtype = narrow ? kAnyopBFloat16 : kAnyopFloat32;
  FilledProduct product(call, dtype, p.M, N, K);
  const int64_t numbers = 2 * N * w4::GroupsOf(p.weight) + 1;
  auto* gathered = static_cast<float*>(call->workspace(call, numbers * 4));
  if (!product.has_memory() || !gathered)
    return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  w4::GatherAll(call, p.weight, gathered);
  const auto fill_x = [&](int64_t row, void* to) {
    const char* from = static_cast<const char*>(p.x) + row * K * SizeOf(p.dtype);
    if (dtype == p.dtype)
      std::memcpy(to, from, static_cast<size_t>(K * SizeOf(p.dtype)));
    else
      Widen(p.dtype, from, 0, 1, K, static_cast<float*>(to));
  };
  const auto fill_weight = [&](int64_t row, void* to) {
    FillWeight(p.weight, gathered, dtype, row, to);
  };
  const cpu::ScaledSums sums = {args->out, nullptr, nullptr, args->bias, N};
  return product.Run(p.M, fill_x, fill_weight, cpu::StoreScaled(call, sums));
}

}  // namespace
}  // namespace anyop

extern "C" int32_t anyop_linear_w4_cpu(const LinearW4Args* args, AnyopCall* call) {
  using namespace anyop;
  const W4Product p = {
      w4::RowsOf(args->weight, args->scale, args->zero, args->group_size, args->N, 2 * args->J),
      args->x->data,
      args->bias ? args->bias->data : nullptr,
      args->out->data,
      AnyopDtypeOf(args->x),
      args->rows};
  return p.M <= kMostW4Rows ? MultiplyW4Rows(call, p) : MultiplyUnpacked(call, args, p);
}
