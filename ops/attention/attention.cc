// SPDX-License-Identifier: Apache-2.0
// Attention of the frameworks' tensors, of packed sequences and of paged ones, by blocks.
#include "anyop/ops/attention.h"

#include <algorithm>

#include "anyop/ops/attention_paged.h"
#include "anyop/ops/attention_varlen.h"
#include "anyop/ops/attention_varlen_with_lse.h"
#include "anyop/ops/attention_with_lse.h"
#include "attention_blocks.h"
#include "attention_packed.h"

namespace anyop {
namespace {

template <typename T>
int32_t AttendIn(const AttentionProblem& args, const Blas* blas, AnyopCall* call) {
  const Attention<T> attention(args, blas);
  void* memory = TakeMemory(call, attention.CountBytes());
  if (!memory) return kAnyopOutOfMemory;
  attention.Run(call, memory);
  return kAnyopOk;
}

int32_t Attend(const AttentionProblem& args, AnyopCall* call) {
  if (const int32_t status = CheckSoftcap(call, args.softcap)) return status;
  if (args.B == 0 || args.H == 0 || args.S == 0 || (args.E == 0 && !args.lse)) return kAnyopOk;
  const Blas* blas = nullptr;
  if (args.T > 0) {
    if (const int32_t status = GetBlas(call, &blas)) return status;
  }
  return args.q->dtype_bits == 64 ? AttendIn<double>(args, blas, call)
                                  : AttendIn<float>(args, blas, call);
}

// ---- packed sequences ----

// visit_all(visit) gives one problem after the other.
template <typename T, typename VisitAll>
int32_t AttendEach(const VisitAll& visit_all, const Blas* blas, AnyopCall* call) {
  int64_t bytes = 0;
  visit_all([&](const AttentionProblem& problem) {
    bytes = std::max(bytes, Attention<T>(problem, blas).CountBytes());
  });
  void* memory = TakeMemory(call, bytes);
  if (!memory) return kAnyopOutOfMemory;
  visit_all(
      [&](const AttentionProblem& problem) { Attention<T>(problem, blas).Run(call, memory); });
  return kAnyopOk;
}

template <typename Args>
int32_t AttendPacked(const Args& args, const AnyopTensor* lse, AnyopCall* call) {
  if (const int32_t status = CheckPacked(call, args)) return status;
  if (args.H == 0 || args.S == 0 || (args.E == 0 && !lse)) return kAnyopOk;
  const Blas* blas = nullptr;
  if (args.T > 0) {
    if (const int32_t status = GetBlas(call, &blas)) return status;
  }
  const auto visit_all = [&](const auto& visit) {
    ForSequences(args,
                 [&](const Sequence& at) { visit(SequenceProblem(args, lse, at).problem()); });
  };
  return args.q->dtype_bits == 64 ? AttendEach<double>(visit_all, blas, call)
                                  : AttendEach<float>(visit_all, blas, call);
}

int32_t AttendPaged(const AttentionPagedArgs& args, AnyopCall* call) {
  if (const int32_t status = CheckPaged(call, args)) return status;
  if (args.H == 0 || args.S == 0 || (args.E == 0 && !args.lse)) return kAnyopOk;
  const Blas* blas = nullptr;
  if (CountPlaces(args) > 0) {
    if (const int32_t status = GetBlas(call, &blas)) return status;
  }
  const auto visit_all = [&](const auto& visit) {
    ForPagedSequences(args, [&](int64_t b, int64_t first, int64_t end) {
      visit(PagedProblem(args, b, first, end).problem());
    });
  };
  return AttendEach<float>(visit_all, blas, call);
}

}  // namespace
}  // namespace anyop

extern "C" int32_t anyop_attention_cpu(const AttentionArgs* args, AnyopCall* call) {
  return anyop::Attend(anyop::ProblemOf(*args, nullptr), call);
}
extern "C" int32_t anyop_attention_with_lse_cpu(const AttentionWithLseArgs* args, AnyopCall* call) {
  return anyop::Attend(anyop::ProblemOf(*args, args->lse), call);
}
extern "C" int32_t anyop_attention_varlen_cpu(const AttentionVarlenArgs* args, AnyopCall* call) {
  return anyop::AttendPacked(*args, nullptr, call);
}
extern "C" int32_t anyop_attention_paged_cpu(const AttentionPagedArgs* args, AnyopCall* call) {
  return anyop::AttendPaged(*args, call);
}
extern "C" int32_t anyop_attention_varlen_with_lse_cpu(const AttentionVarlenWithLseArgs* args,
                                                       AnyopCall* call) {
  return anyop::AttendPacked(*args, args->lse, call);
}
