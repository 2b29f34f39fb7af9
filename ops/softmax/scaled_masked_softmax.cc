// SPDX-License-Identifier: Apache-2.0
// scaled_masked_softmax on the CPU: a row of x and of the mask is read from memory once; see
// scaled_row.h.
#include "anyop/ops/scaled_masked_softmax.h"

#include "scaled_row.h"

namespace anyop::cpu {
namespace {

// A row of the mask as 0 and 1; its elements may lie apart, or be one.
template <typename Wide>
class MaskReader {
 public:
  MaskReader(const char* row, int64_t stride) : row_(row), stride_(stride) {}

  const Wide* Read(int64_t begin, int64_t n) {
    const auto* from = reinterpret_cast<const boolean*>(row_ + begin * stride_);
    if (stride_ == 1) {
      WidenFrom(from, n, buffer_);
    } else {
      for (int64_t i = 0; i < n; ++i) buffer_[i] = Load<Wide>(from[i * stride_]);
    }
    return buffer_;
  }

 private:
  const char* row_;
  int64_t stride_;
  alignas(64) Wide buffer_[kBlock];
};

ANYOP_CPU_CLONES void Run(const ScaledMaskedSoftmaxArgs* args, int64_t begin, int64_t end) {
  const AnyopTensor* given = args->mask;
  const Rows x(args->x), out(args->out), mask(given ? given : args->x);
  const int64_t stride = given ? given->strides[given->ndim - 1] : 0;
  WithFloat(x.dtype(), [&](auto wide) {
    using Wide = decltype(wide);
    for (int64_t row = begin; row < end; ++row) {
      RowReader<Wide> in(x.dtype(), x[row], args->D);
      RowWriter<Wide> to(x.dtype(), out[row]);
      MaskReader<Wide> skip(mask[row], stride);
      given ? ScaledSoftmaxRow(args->D, args->scale, to, in, skip)
            : ScaledSoftmaxRow(args->D, args->scale, to, in);
    }
  });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_scaled_masked_softmax_cpu(const ScaledMaskedSoftmaxArgs* args,
                                                   AnyopCall* call) {
  return anyop::cpu::RunRows(call, args, args->rows, args->D, anyop::cpu::Run);
}
