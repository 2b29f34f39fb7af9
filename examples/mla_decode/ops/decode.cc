// SPDX-License-Identifier: Apache-2.0
// decode on the CPU: the lengths and pages are looked at first, so that nothing is read outside.
#include "mla/ops/decode.h"

#include "partial.h"

namespace anyop::mla {
namespace {

ANYOP_CPU_CLONES void Run(const Work<PagedTokens>* work, int64_t begin, int64_t end) {
  for (int64_t task = begin; task < end; ++task) Attend(*work, task);
}

}  // namespace
}  // namespace anyop::mla

extern "C" int32_t mla_decode_cpu(const DecodeArgs* args, AnyopCall* call) {
  using namespace anyop::mla;
  const PagedTokens tokens = PagesOf(*args);
  for (int64_t b = 0; b < args->B; ++b) {
    const int64_t count = tokens.CountOf(b);
    if (count == kOutside) {
      return call->fail(call, kAnyopValueError,
                        "a length is outside, expected 0 <= length <= M * S");
    }
    for (int64_t t = 0; t < count; t += args->S) {
      if (tokens.RowOf(b, t) == kOutside)
        return call->fail(call, kAnyopValueError, "a page is outside, expected 0 <= page < N");
    }
  }
  return RunParts(*args, call, tokens, Run);
}
