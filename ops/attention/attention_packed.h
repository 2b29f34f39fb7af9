// SPDX-License-Identifier: Apache-2.0
// Attention over packed sequences: each of them as a problem of its own.
#pragma once

#include "attention_problem.h"

namespace anyop {

// Tokens of (tokens, heads) or (tokens, heads, features) as (1, heads, tokens, ...).
class HeadsFirst {
 public:
  // Tokens first to end.
  HeadsFirst(const AnyopTensor* packed, int64_t first, int64_t end) {
    if (packed) Set(*packed, 0, end - first, first * packed->strides[0]);
  }
  // All tokens of sequence b of (sequences, tokens, heads, ...).
  HeadsFirst(const AnyopTensor* batch, int64_t b) {
    if (batch) Set(*batch, 1, batch->shape[1], b * batch->strides[0]);
  }
  HeadsFirst(const HeadsFirst&) = delete;

  // nullptr where none was given.
  AnyopTensor* get() { return tensor_.ndim ? &tensor_ : nullptr; }

 private:
  // tokens: which dimension they are; offset in elements.
  void Set(const AnyopTensor& x, int tokens, int64_t count, int64_t offset) {
    const int64_t *shape = x.shape + tokens, *strides = x.strides + tokens;
    tensor_ = x;
    tensor_.ndim = x.ndim - tokens + 1, tensor_.shape = shape_, tensor_.strides = strides_;
    shape_[0] = 1, shape_[1] = shape[1], shape_[2] = count;
    strides_[0] = 0, strides_[1] = strides[1], strides_[2] = strides[0];
    if (tensor_.ndim == 4) shape_[3] = shape[2], strides_[3] = strides[2];
    if (tensor_.data)
      tensor_.data = static_cast<char*>(tensor_.data) + offset * (tensor_.dtype_bits / 8);
  }

  int64_t shape_[4] = {}, strides_[4] = {};
  AnyopTensor tensor_ = {};
};

// Queries and keys of a sequence.
struct Sequence {
  int64_t q, q_end, k, k_end;
  int64_t S() const { return q_end - q; }
  int64_t T() const { return k_end - k; }
};

// One sequence of attention_varlen; its last query lies at its last key.
class SequenceProblem {
 public:
  template <typename Args>
  SequenceProblem(const Args& args, const AnyopTensor* lse, const Sequence& at)
      : q_(args.q, at.q, at.q_end),
        k_(args.k, at.k, at.k_end),
        v_(args.v, at.k, at.k_end),
        out_(args.out, at.q, at.q_end),
        lse_(lse, at.q, at.q_end),
        problem_{
            q_.get(),
            k_.get(),
            v_.get(),
            nullptr,
            args.sinks,
            args.alibi_slopes,
            out_.get(),
            lse_.get(),
            1,
            args.H,
            args.G,
            at.S(),
            at.T(),
            args.D,
            args.E,
            KeyWindow(at.T(), args.causal, at.T() - at.S(), args.window_left, args.window_right),
            ScaleOf(args),
            args.softcap} {}

  const AttentionProblem& problem() const { return problem_; }

 private:
  HeadsFirst q_, k_, v_, out_, lse_;
  AttentionProblem problem_;
};

// Queries first to end of attention_paged, and the keys of sequence b; -1: of none.
class PagedProblem {
 public:
  template <typename Args>
  PagedProblem(const Args& args, int64_t b, int64_t first, int64_t end)
      : length_(b < 0 ? 0 : static_cast<const int32_t*>(args.seqlens_k->data)[b]),
        q_(args.q, first, end),
        out_(args.out, first, end),
        lse_(args.lse, first, end),
        problem_{q_.get(),
                 args.k_cache,
                 args.v_cache,
                 nullptr,
                 args.sinks,
                 args.alibi_slopes,
                 out_.get(),
                 lse_.get(),
                 1,
                 args.H,
                 args.G,
                 end - first,
                 length_,
                 args.D,
                 args.E,
                 KeyWindow(length_, args.causal, length_ - (end - first), args.window_left, -1),
                 ScaleOf(args),
                 args.softcap,
                 {static_cast<const int32_t*>(args.page_table->data) + (b < 0 ? 0 : b * args.M),
                  args.P, args.k_scale, args.v_scale}} {}

  const AttentionProblem& problem() const { return problem_; }

 private:
  int64_t length_;
  HeadsFirst q_, out_, lse_;
  AttentionProblem problem_;
};

// Numbers that ascend, from 0 on and up to the number of tokens.
inline int32_t CheckPlaces(AnyopCall* call, const char* name, const AnyopTensor& places,
                           int64_t tokens) {
  const auto* at = static_cast<const int32_t*>(places.data);
  for (int64_t i = 0, least = 0; i < places.shape[0]; least = at[i++]) {
    if (at[i] >= least && at[i] <= tokens) continue;
    char text[160];
    std::snprintf(text, sizeof text, "%s[%lld] is %d, expected %lld to %lld", name,
                  static_cast<long long>(i), at[i], static_cast<long long>(least),
                  static_cast<long long>(tokens));
    return call->fail(call, kAnyopIndexError, text);
  }
  return kAnyopOk;
}
template <typename Args>
int32_t CheckPacked(AnyopCall* call, const Args& args) {
  if (const int32_t status = CheckSoftcap(call, args.softcap)) return status;
  if (const int32_t status = CheckPlaces(call, "cu_seqlens_q", *args.cu_seqlens_q, args.S))
    return status;
  return CheckPlaces(call, "cu_seqlens_k", *args.cu_seqlens_k, args.T);
}

// Keys that the pages of a sequence hold.
template <typename Args>
int64_t CountPlaces(const Args& args) {
  return CountPlaces(args.M, args.P);
}

// Lengths that their pages hold, and pages that are there.
template <typename Args>
int32_t CheckPages(AnyopCall* call, const Args& args) {
  const int64_t places = CountPlaces(args);
  const auto* lengths = static_cast<const int32_t*>(args.seqlens_k->data);
  const auto* table = static_cast<const int32_t*>(args.page_table->data);
  char text[160];
  for (int64_t b = 0; b < args.B; ++b) {
    if (lengths[b] < 0 || lengths[b] > places) {
      std::snprintf(text, sizeof text, "seqlens_k[%lld] is %d, expected 0 to %lld",
                    static_cast<long long>(b), lengths[b], static_cast<long long>(places));
      return call->fail(call, kAnyopIndexError, text);
    }
    for (int64_t j = 0; j * args.P < lengths[b]; ++j) {
      const int32_t page = table[b * args.M + j];
      if (page >= 0 && page < args.N) continue;
      std::snprintf(text, sizeof text, "page_table[%lld, %lld] is %d, expected 0 <= page < %lld",
                    static_cast<long long>(b), static_cast<long long>(j), page,
                    static_cast<long long>(args.N));
      return call->fail(call, kAnyopIndexError, text);
    }
  }
  return kAnyopOk;
}

// Without cu_seqlens_q each sequence has as many queries.
template <typename Args>
int32_t CheckQueries(AnyopCall* call, const Args& args) {
  if (args.cu_seqlens_q || (args.B == 0 ? args.S == 0 : args.S % args.B == 0)) return kAnyopOk;
  char text[160];
  std::snprintf(text, sizeof text,
                "q has %lld tokens, expected a multiple of the %lld sequences, or cu_seqlens_q",
                static_cast<long long>(args.S), static_cast<long long>(args.B));
  return call->fail(call, kAnyopValueError, text);
}
template <typename Args>
int32_t CheckPaged(AnyopCall* call, const Args& args) {
  if (const int32_t status = CheckSoftcap(call, args.softcap)) return status;
  if (const int32_t status = CheckQueries(call, args)) return status;
  if (args.cu_seqlens_q) {
    if (const int32_t status = CheckPlaces(call, "cu_seqlens_q", *args.cu_seqlens_q, args.S))
      return status;
  }
  return CheckPages(call, args);
}

// visit(b, first, end) for the sequences with queries, in order; -1: queries of none, before and
// behind them.
template <typename Args, typename Visit>
void ForPagedSequences(const Args& args, const Visit& visit) {
  const auto visit_some = [&](int64_t b, int64_t first, int64_t end) {
    if (first < end) visit(b, first, end);
  };
  if (!args.cu_seqlens_q) {
    for (int64_t b = 0; b < args.B; ++b)
      visit_some(b, b * (args.S / args.B), (b + 1) * (args.S / args.B));
    return;
  }
  const auto* q = static_cast<const int32_t*>(args.cu_seqlens_q->data);
  visit_some(-1, 0, q[0]);
  for (int64_t b = 0; b < args.B; ++b) visit_some(b, q[b], q[b + 1]);
  visit_some(-1, q[args.B], args.S);
}

// The sequences with queries, in order; before and behind them queries of none, which see no key.
template <typename Args, typename Visit>
void ForSequences(const Args& args, const Visit& visit) {
  const auto* q = static_cast<const int32_t*>(args.cu_seqlens_q->data);
  const auto* k = static_cast<const int32_t*>(args.cu_seqlens_k->data);
  const auto visit_some = [&](const Sequence& at) {
    if (at.S() > 0) visit(at);
  };
  visit_some({0, q[0], 0, 0});
  for (int64_t i = 0; i < args.B; ++i) visit_some({q[i], q[i + 1], k[i], k[i + 1]});
  visit_some({q[args.B], args.S, 0, 0});
}

}  // namespace anyop
