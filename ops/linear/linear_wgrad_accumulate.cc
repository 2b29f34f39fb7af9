// SPDX-License-Identifier: Apache-2.0
// linear_wgrad_accumulate on the CPU: blocks of rows of the product in float32, added to what is
// there and rounded once.
#include "anyop/ops/linear_wgrad_accumulate.h"

#include "anyop/cpu_rows.h"
#include "gemm_blocks.h"

namespace anyop::cpu {
namespace {

struct Work {
  const AnyopTensor* to;
  int64_t K;
  int64_t first = 0;
  const float* sums = nullptr;
};

ANYOP_CPU_CLONES void Add(const Work* work, int64_t begin, int64_t end) {
  const Rows to(work->to);
  const int64_t K = work->K;
  for (int64_t i = begin; i < end; ++i) {
    char* row = to[work->first + i];
    RowReader<float> before(to.dtype(), row, K);
    RowReader<float> more(kAnyopFloat32, reinterpret_cast<const char*>(work->sums + i * K), K);
    RowWriter<float> after(to.dtype(), row);
    MapRow(K, [](float a, float b) { return a + b; }, after, before, more);
  }
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_linear_wgrad_accumulate_cpu(const LinearWgradAccumulateArgs* args,
                                                     AnyopCall* call) {
  using namespace anyop;
  cpu::Work work = {args->grad_weight, args->K};
  const GemmProblem problem = GradientOfWeight(AnyopDtypeOf(args->x), args->rows, args->N, args->K,
                                               args->grad_out->data, args->x->data, nullptr);
  return GemmInBlocks(call, problem, [&](int64_t first, int64_t rows, const void* sums) {
    work.first = first;
    work.sums = static_cast<const float*>(sums);
    cpu::RunRows(call, &work, rows, work.K, cpu::Add);
  });
}
