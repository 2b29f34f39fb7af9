// SPDX-License-Identifier: Apache-2.0
// Attention to pages on Hopper: which calls it takes, and how they are those of attention's kernel.
#pragma once

#include "anyop/ops/attention_paged.h"
#include "attention_sm90.h"

namespace anyop::cuda {
namespace {

// A tensor with other dimensions.
class SeenTensor {
 public:
  // (tokens, heads, ...) as (sequences, heads, tokens of each, ...).
  SeenTensor(const AnyopTensor* x, int64_t sequences, int64_t each) {
    if (!x) return;
    shape_[0] = sequences, shape_[1] = x->shape[1], shape_[2] = each;
    strides_[0] = each * x->strides[0], strides_[1] = x->strides[1], strides_[2] = x->strides[0];
    if (x->ndim == 3) shape_[3] = x->shape[2], strides_[3] = x->strides[2];
    See(*x, x->ndim + 1);
  }
  // (pages, places, groups, features) as (pages, groups, places, features).
  explicit SeenTensor(const AnyopTensor& x) {
    constexpr int kFrom[4] = {0, 2, 1, 3};
    for (int d = 0; d < 4; ++d) shape_[d] = x.shape[kFrom[d]], strides_[d] = x.strides[kFrom[d]];
    See(x, 4);
  }
  SeenTensor(const SeenTensor&) = delete;

  // nullptr where none was given.
  const AnyopTensor* get() const { return tensor_.ndim ? &tensor_ : nullptr; }

 private:
  void See(const AnyopTensor& x, int32_t dimensions) {
    tensor_ = x;
    tensor_.ndim = dimensions, tensor_.shape = shape_, tensor_.strides = strides_;
  }

  int64_t shape_[4] = {}, strides_[4] = {};
  AnyopTensor tensor_ = {};
};

// Queries as (sequences, heads, tokens, features), of one sequence where cu_seqlens_q says where
// each begins; keys and values as pages.
class ProblemOfPages {
 public:
  explicit ProblemOfPages(const AttentionPagedArgs& args)
      : args_(args),
        B_(args.cu_seqlens_q ? 1 : args.B),
        each_(args.S / B_),
        q_(args.q, B_, each_),
        out_(args.out, B_, each_),
        lse_(args.lse, B_, each_),
        k_(*args.k_cache),
        v_(*args.v_cache),
        problem_{q_.get(),
                 k_.get(),
                 v_.get(),
                 nullptr,
                 args.sinks,
                 nullptr,
                 out_.get(),
                 lse_.get(),
                 B_,
                 args.H,
                 args.G,
                 each_,
                 CountPlaces(args),
                 args.D,
                 args.E,
                 KeyWindow(CountPlaces(args), args.causal, 0, args.window_left, -1),
                 ScaleOf(args),
                 args.softcap} {}

  const AttentionProblem& problem() const { return problem_; }
  AttentionView View(int rows) const {
    AttentionView view = ViewOf(problem_, rows);
    if (args_.cu_seqlens_q) {
      view.cu_q = static_cast<const int32_t*>(args_.cu_seqlens_q->data);
      view.sequences = static_cast<int>(args_.B);
      view.tiles = static_cast<int>(args_.S / rows + args_.B + 2);
      view.items = args_.H * view.tiles;
    }
    view.table = static_cast<const int32_t*>(args_.page_table->data);
    view.lengths = static_cast<const int32_t*>(args_.seqlens_k->data);
    view.pages = static_cast<int>(args_.N), view.places = static_cast<int>(args_.P);
    view.columns = static_cast<int>(args_.M);
    view.box = static_cast<int>(args_.P & -args_.P);
    return view;
  }

 private:
  const AttentionPagedArgs& args_;
  int64_t B_, each_;
  SeenTensor q_, out_, lse_, k_, v_;
  AttentionProblem problem_;
};

// Whether tiles of 128 queries of a head end sooner here than tiles of 64 rows of a group by the
// kernel for all GPUs, which divides keys until all multiprocessors have some. The times of a tile
// are those of an H100, for as many keys.
inline bool HasEnoughQueries(const AttentionPagedArgs& args, int64_t multiprocessors) {
  const int64_t time_here = std::max(args.D, args.E) > 192 ? 8 : 13, time_there = 22;
  const int64_t sequences = std::max<int64_t>(args.B, 1), each = CeilDiv(args.S, sequences);
  const int64_t here = CeilDiv(sequences * args.H * CeilDiv(each, int64_t{128}), multiprocessors);
  const int64_t there = sequences * args.G * CeilDiv(each * (args.H / args.G), int64_t{64});
  return time_here * here * multiprocessors <= time_there * there;
}

}  // namespace
}  // namespace anyop::cuda
