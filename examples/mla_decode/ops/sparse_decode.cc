// SPDX-License-Identifier: Apache-2.0
// sparse_decode on the CPU: the indices are looked at first, so that nothing is read outside.
#include "mla/ops/sparse_decode.h"

#include "partial.h"

namespace anyop::mla {
namespace {

ANYOP_CPU_CLONES void Run(const Work<ListedTokens>* work, int64_t begin, int64_t end) {
  for (int64_t task = begin; task < end; ++task) Attend(*work, task);
}

}  // namespace
}  // namespace anyop::mla

extern "C" int32_t mla_sparse_decode_cpu(const SparseDecodeArgs* args, AnyopCall* call) {
  using namespace anyop::mla;
  const ListedTokens tokens = ListOf(*args);
  for (int64_t i = 0; i < args->B * args->T; ++i) {
    if (tokens.RowOf(0, i) == kOutside) {
      return call->fail(call, kAnyopValueError,
                        "an index is outside, expected -1 <= index < N * S");
    }
  }
  return RunParts(*args, call, tokens, Run);
}
