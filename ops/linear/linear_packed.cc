// SPDX-License-Identifier: Apache-2.0
// x by packed weights: bfloat16 by panels.cc. Other types, a CPU without AVX512-BF16 and many rows
// on one with AMX go by gemm.cc, from a copy in the usual order.
#include "anyop/ops/linear_packed.h"

#include <cstring>

#include "dots.h"
#include "gemm.h"
#include "panels.h"

namespace anyop {
namespace {

constexpr int64_t kRowsForTiles = 64;

void Unpack(AnyopCall* call, const LinearPackedArgs& args, char* to) {
  const auto* from = static_cast<const char*>(args.weight->data);
  const int64_t J = args.J, pair = args.weight->dtype_bits / 4;  // bytes
  ParallelFor(call, args.P, 16384 / (J * kPanelColumns + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin * kPanelColumns; row < end * kPanelColumns; ++row) {
      const int64_t p = row / kPanelColumns, n = row % kPanelColumns;
      for (int64_t j = 0; j < J; ++j) {
        std::memcpy(to + (row * J + j) * pair, from + ((p * J + j) * kPanelColumns + n) * pair,
                    static_cast<size_t>(pair));
      }
    }
  });
}

}  // namespace
}  // namespace anyop

extern "C" int32_t anyop_linear_packed_cpu(const LinearPackedArgs* args, AnyopCall* call) {
  using namespace anyop;
  GemmProblem problem = {};
  problem.dtype = AnyopDtypeOf(args->out);
  problem.M = args->rows;
  problem.N = args->P * kPanelColumns;
  problem.K = args->J * 2;
  problem.a = {args->x->data, problem.K, 1, nullptr, nullptr};
  problem.b = {args->weight->data, 1, problem.K, nullptr, nullptr};
  problem.bias = args->bias ? args->bias->data : nullptr;
  problem.out = args->out->data;
  problem.fixed_tiles = true;  // of the types that panels do not take
  const bool tiles = HasBF16Tiles() && problem.M >= kRowsForTiles;
  if (problem.K > 0 && !tiles && PackedPanels(call, problem)) return kAnyopOk;
  void* copy = call->workspace(call, problem.N * problem.K * args->weight->dtype_bits / 8 + 1);
  if (!copy) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  Unpack(call, *args, static_cast<char*>(copy));
  problem.b.data = copy;
  return Gemm(call, problem);
}
