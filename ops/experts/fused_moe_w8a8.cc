// SPDX-License-Identifier: Apache-2.0
// fused_moe_w8a8 on the CPU: see quantized_experts.h; products are those of linear_w8a8.
#include "anyop/ops/fused_moe_w8a8.h"

#include "../grouped/segments.h"
#include "../linear/byte_floats.h"
#include "../linear/dots.h"
#include "../linear/filled_product.h"
#include "../linear/int8_product.h"
#include "../linear/scaled_sums.h"
#include "quantized_experts.h"

namespace anyop {
namespace {

// int8 by int8_product.cc where the CPU has it; else both operands in bfloat16 (float32), in which
// each of their numbers is exact.
class ByteProduct {
 public:
  static constexpr int64_t kGroup = std::numeric_limits<int32_t>::max();

  ByteProduct(AnyopCall* call, const AnyopTensor* weight, int64_t most, int64_t N, int64_t K)
      : call_(call),
        dtype_(AnyopDtypeOf(weight)),
        N_(N),
        K_(K),
        by_int8_(dtype_ == kAnyopInt8 && FitsInt8({nullptr, nullptr, most, N, K})),
        filled_(call, HasBF16Dots() ? kAnyopBFloat16 : kAnyopFloat32, by_int8_ ? 0 : most,
                by_int8_ ? 0 : N, by_int8_ ? 0 : K) {}

  bool has_memory() const { return filled_.has_memory(); }

  int32_t Run(int64_t M, const char* rows, float* scales, const AnyopTensor* weight,
              const AnyopTensor* weight_scale, int64_t e, float* to) {
    const char* of_expert = ElementOf(weight, e * N_ * K_);
    const cpu::Matrix out(weight_scale, to, M, N_), row_scale(weight_scale, scales, M, 1),
        column_scale(weight_scale, ElementOf(weight_scale, e * N_), N_, 1);
    const cpu::ScaledSums work = {&out.tensor, &row_scale.tensor, &column_scale.tensor, nullptr,
                                  N_};
    if (by_int8_) {
      const Int8Problem problem = {reinterpret_cast<const int8_t*>(rows),
                                   reinterpret_cast<const int8_t*>(of_expert), M, N_, K_};
      if (MultiplyInt8(call_, problem, cpu::StoreScaledBlock, &work)) return kAnyopOk;
      return call_->fail(call_, kAnyopOutOfMemory, "no memory for the workspace");
    }
    const auto rows_of = [&](const char* from) {
      return [=](int64_t row, void* to) {
        if (HasBF16Dots())
          cpu::WidenBytes(dtype_, from + row * K_, K_, 1, static_cast<cpu::bfloat16*>(to));
        else
          cpu::WidenBytes(dtype_, from + row * K_, K_, 1, static_cast<float*>(to));
      };
    };
    return filled_.Run(M, rows_of(rows), rows_of(of_expert), cpu::StoreScaled(call_, work));
  }

 private:
  AnyopCall* call_;
  AnyopDtype dtype_;
  int64_t N_, K_;
  bool by_int8_;
  FilledProduct filled_;
};

}  // namespace
}  // namespace anyop

extern "C" int32_t anyop_fused_moe_w8a8_cpu(const FusedMoeW8a8Args* args, AnyopCall* call) {
  using namespace anyop;
  return QuantizedExperts<FusedMoeW8a8Args, ByteProduct>(args, call, nullptr).Run();
}
