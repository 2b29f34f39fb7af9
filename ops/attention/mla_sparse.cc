// SPDX-License-Identifier: Apache-2.0
// Attention to listed latent rows: each token is a problem of attention's blocks with one group of
// heads, whose keys are the rows of its indices, of floats or of FlashMLA's bytes.
#include "anyop/ops/mla_sparse.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "anyop/ops/mla_sparse_fp8.h"
#include "attention_blocks.h"
#include "attention_packed.h"

namespace anyop {
namespace {

// How many of a token's indices count.
template <typename Args>
int64_t LengthOf(const Args& args, int64_t t) {
  return args.lengths ? static_cast<const int32_t*>(args.lengths->data)[t] : args.K;
}

// Indices that count and are not -1.
template <typename Args>
std::vector<int32_t> ListOf(const Args& args, int64_t t) {
  const int32_t* indices = static_cast<const int32_t*>(args.indices->data) + t * args.K;
  std::vector<int32_t> list;
  std::copy_if(indices, indices + LengthOf(args, t), std::back_inserter(list),
               [](int32_t index) { return index >= 0; });
  return list;
}

template <typename Args>
int32_t CheckIndices(AnyopCall* call, const Args& args) {
  const int64_t places = CountPlaces(args.N, args.P);
  const auto* indices = static_cast<const int32_t*>(args.indices->data);
  char text[160];
  for (int64_t t = 0; t < args.T; ++t) {
    const int64_t length = LengthOf(args, t);
    if (length < 0 || length > args.K) {
      std::snprintf(text, sizeof text, "lengths[%lld] is %lld, expected 0 to %lld",
                    static_cast<long long>(t), static_cast<long long>(length),
                    static_cast<long long>(args.K));
      return call->fail(call, kAnyopIndexError, text);
    }
    for (int64_t k = 0; k < length; ++k) {
      const int32_t index = indices[t * args.K + k];
      if (index >= -1 && index < places) continue;
      std::snprintf(text, sizeof text, "indices[%lld, %lld] is %d, expected -1 <= index < %lld",
                    static_cast<long long>(t), static_cast<long long>(k), index,
                    static_cast<long long>(places));
      return call->fail(call, kAnyopIndexError, text);
    }
  }
  return kAnyopOk;
}

template <typename Args>
int32_t AttendListed(const Args& args, AnyopCall* call) {
  if (const int32_t status = CheckIndices(call, args)) return status;
  if (args.T == 0 || args.H == 0) return kAnyopOk;
  const auto with = [&](int64_t t, const auto& visit) {
    const std::vector<int32_t> list = ListOf(args, t);
    HeadsFirst q(args.q, t, t + 1), out(args.out, t, t + 1), lse(args.lse, t, t + 1);
    const KeyWindow all(static_cast<int64_t>(list.size()), false, 0, -1, -1);
    visit(LatentProblem(q.get(), args.cache, args.sinks, out.get(), lse.get(), all, args.scale,
                        {list.data(), args.P, nullptr, nullptr, true}));
  };
  return AttendTogether<float>(args.T, with, call);
}

}  // namespace
}  // namespace anyop

extern "C" int32_t anyop_mla_sparse_cpu(const MlaSparseArgs* args, AnyopCall* call) {
  return anyop::AttendListed(*args, call);
}
extern "C" int32_t anyop_mla_sparse_fp8_cpu(const MlaSparseFp8Args* args, AnyopCall* call) {
  return anyop::AttendListed(*args, call);
}
