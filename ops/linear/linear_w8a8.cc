// SPDX-License-Identifier: Apache-2.0
// linear_w8a8 on the CPU: int8 by int8_product.cc. Elsewhere both operands become bfloat16, in
// which each of their numbers is exact (float32 where the CPU has no products of bfloat16), block
// by block; the sums of products are float32, scaled and rounded once. Sums of int8 are exact up to
// 2^24.
#include "anyop/ops/linear_w8a8.h"

#include "byte_floats.h"
#include "dots.h"
#include "filled_product.h"
#include "int8_product.h"
#include "scaled_sums.h"

extern "C" int32_t anyop_linear_w8a8_cpu(const LinearW8a8Args* args, AnyopCall* call) {
  using namespace anyop;
  const AnyopDtype dtype = AnyopDtypeOf(args->x);
  const int64_t K = args->K;
  const cpu::ScaledSums work = {args->out, args->x_scale, args->weight_scale, args->bias, args->N};
  const Int8Problem problem = {static_cast<const int8_t*>(args->x->data),
                               static_cast<const int8_t*>(args->weight->data), args->M, args->N, K};
  if (dtype == kAnyopInt8 && FitsInt8(problem)) {
    if (MultiplyInt8(call, problem, cpu::StoreScaledBlock, &work)) return kAnyopOk;
    return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  }
  FilledProduct product(call, HasBF16Dots() ? kAnyopBFloat16 : kAnyopFloat32, args->M, args->N, K);
  if (!product.has_memory())
    return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  const auto rows_of = [&](const AnyopTensor* tensor) {
    return [=](int64_t row, void* to) {
      const char* from = static_cast<const char*>(tensor->data) + row * K;
      if (HasBF16Dots()) {
        cpu::WidenBytes(dtype, from, K, 1, static_cast<cpu::bfloat16*>(to));
      } else {
        cpu::WidenBytes(dtype, from, K, 1, static_cast<float*>(to));
      }
    };
  };
  return product.Run(args->M, rows_of(args->x), rows_of(args->weight),
                     cpu::StoreScaled(call, work));
}
