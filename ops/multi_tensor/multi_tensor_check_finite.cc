// SPDX-License-Identifier: Apache-2.0
// multi_tensor_check_finite on the CPU: one read an element.
#include "anyop/ops/multi_tensor_check_finite.h"

#include "anyop/cpu/lists.h"

namespace anyop::cpu {
namespace {

ANYOP_CPU_CLONES bool Run(const AnyopTensor& x, int64_t begin, int64_t count) {
  bool finite = true;
  WithFloat(AnyopDtypeOf(&x), [&](auto zero) {
    using Wide = decltype(zero);
    for (int64_t done = 0; done < count; done += kBlock) {
      const int64_t n = count - done < kBlock ? count - done : kBlock;
      Elements<Wide> in(x, begin + done, n);
      finite &= AreFinite(in.Read(), n);
    }
  });
  return finite;
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_multi_tensor_check_finite_cpu(const MultiTensorCheckFiniteArgs* args,
                                                       AnyopCall* call) {
  using namespace anyop::cpu;
  const ListChunks chunks(call, args->x);
  if (int32_t status = chunks.status()) return status;
  Found found;
  chunks.ForEach(call, [&](int64_t, int64_t k, int64_t begin, int64_t n) {
    found.Note(!Run(args->x.data[k], begin, n));
  });
  if (found.any()) SetFound(const_cast<AnyopTensor*>(args->found_inf));
  return kAnyopOk;
}
