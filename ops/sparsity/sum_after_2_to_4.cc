// SPDX-License-Identifier: Apache-2.0
// sum_after_2_to_4 on the CPU: a thread takes parts of 16 rows, whose sums are added in order: the
// same bits for any number of threads.
#include "anyop/ops/sum_after_2_to_4.h"

#include "anyop/cpu.h"
#include "two_of_four.h"

namespace anyop::cpu {
namespace {

constexpr int64_t kRowsOfPart = 16;

struct Work {
  const SumAfter2To4Args& args;
  int64_t parts;  // of a matrix
  double* sums;   // of parts
};

ANYOP_CPU_CLONES void Run(const Work* work, int64_t begin, int64_t end) {
  const int64_t R = work->args.R, S = work->args.S;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t matrix = i / work->parts, first = i % work->parts * kRowsOfPart;
    const int64_t rows = R - first < kRowsOfPart ? R - first : kRowsOfPart;
    const float* x =
        static_cast<const float*>(work->args.matrix->data) + (matrix * R + first) * 4 * S;
    double sum = 0;
    for (int64_t c = 0; c < rows * 4 * S; c += 4) sum += Kept(x[c], x[c + 1], x[c + 2], x[c + 3]);
    work->sums[i] = sum;
  }
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_sum_after_2_to_4_cpu(const SumAfter2To4Args* args, AnyopCall* call) {
  using namespace anyop;
  const int64_t parts = (args->R + cpu::kRowsOfPart - 1) / cpu::kRowsOfPart;
  const auto bytes = static_cast<int64_t>(args->rows * parts * sizeof(double));
  auto* sums = static_cast<double*>(call->workspace(call, bytes));
  if (!sums && bytes) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  const cpu::Work work = {*args, parts, sums};
  ParallelFor(call, args->rows * parts, cpu::kGrain / (args->S * 4 * cpu::kRowsOfPart + 1) + 1,
              [&](int64_t begin, int64_t end) { cpu::Run(&work, begin, end); });
  for (int64_t matrix = 0; matrix < args->rows; ++matrix) {
    double sum = 0;
    for (int64_t i = 0; i < parts; ++i) sum += sums[matrix * parts + i];
    static_cast<float*>(args->out->data)[matrix] = static_cast<float>(sum);
  }
  return kAnyopOk;
}
