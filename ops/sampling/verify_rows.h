// SPDX-License-Identifier: Apache-2.0
// Drafted tokens beside the target's probabilities, on the CPU and on CUDA: how far a chain or a
// tree is accepted, and from which row the token behind it is drawn.
#ifndef ANYOP_OPS_SAMPLING_VERIFY_ROWS_H_
#define ANYOP_OPS_SAMPLING_VERIFY_ROWS_H_

#include "draw.h"

namespace anyop::sampling {

// Probabilities are at most this; sums of what is greater are of no use.
constexpr float kMostProb = 0x1p80f;
ANYOP_DRAW_FUNCTION bool IsProb(float x) { return x >= 0 && x <= kMostProb; }
// What target has above draft; what is too small is never drawn.
ANYOP_DRAW_FUNCTION float RestOf(float target, float draft) {
  const float rest = target - draft;
  return rest >= 0x1p-100f ? rest : 0.0f;
}

// Where drafted tokens end: the token there is drawn from row `target` less row `draft` (-1: less
// nothing), and is none of the children of `node` (-1: any). token: NULL where there is no row.
struct End {
  int64_t target, draft, node;
  int32_t* token;
};

// Who walks: one thread, or lanes that have a drafted token each (verify_rows_cuda.h).
struct OneLane {
  static constexpr int kCount = 1;
  ANYOP_DRAW_FUNCTION int lane() const { return 0; }
  ANYOP_DRAW_FUNCTION unsigned Votes(bool yes) const { return yes; }
};

template <typename Int>
struct Chains {
  const Int* drafted;
  PerRow<int64_t> seed, offset;
  int32_t *tokens, *accepted, *emitted;
  int64_t B, N, V;

  // target_at(row, token), draft_at(row, token): a probability as float32.
  template <typename Lanes, typename TargetAt, typename DraftAt>
  ANYOP_DRAW_FUNCTION End Walk(int64_t b, const Lanes& lanes, bool writes,
                               const TargetAt& target_at, const DraftAt& draft_at) const {
    int64_t taken = N, good = 0;
    bool is_token = true;  // the one that ended the chain
    for (int64_t first = 0; first < N; first += Lanes::kCount) {
      const int64_t i = first + lanes.lane();
      const int64_t token = i < N ? drafted[b * N + i] : -1;
      const bool inside = token >= 0 && token < V,
                 accepts = inside && Accepts(b, i, token, target_at, draft_at);
      const unsigned kept = lanes.Votes(accepts), rejected = lanes.Votes(i < N && !accepts);
      const unsigned tokens_inside = lanes.Votes(inside);
      for (unsigned rest = kept; rest; rest &= rest - 1) ++good;
      if (rejected && taken == N) {
        const unsigned least = rejected & -rejected;
        for (taken = first; least >> (taken - first) > 1;) ++taken;
        is_token = tokens_inside & least;
      }
      if (writes && i < N) tokens[b * (N + 1) + i] = taken > i ? static_cast<int32_t>(token) : -1;
    }
    if (writes && lanes.lane() == 0) {
      tokens[b * (N + 1) + N] = -1;
      accepted[b] = static_cast<int32_t>(good);
      emitted[b] = static_cast<int32_t>(taken);
    }
    const bool rejects = taken < N && is_token;
    return {b * (N + 1) + taken, rejects ? b * N + taken : -1, -1, tokens + b * (N + 1) + taken};
  }
  template <typename TargetAt, typename DraftAt>
  ANYOP_DRAW_FUNCTION bool Accepts(int64_t b, int64_t i, int64_t token, const TargetAt& target_at,
                                   const DraftAt& draft_at) const {
    const float target = target_at(b * (N + 1) + i, token), draft = draft_at(b * N + i, token);
    const float coin = CoinOf(static_cast<uint64_t>(seed[b]), static_cast<uint64_t>(offset[b]),
                              static_cast<uint32_t>(i));
    return IsProb(target) && IsProb(draft) && coin * draft < target;
  }
  ANYOP_DRAW_FUNCTION bool IsRejected(int64_t, const End&, int64_t) const { return false; }
};

template <typename Int>
struct Trees {
  const Int *candidates, *next_token, *next_sibling;
  PerRow<int64_t> seed, offset;
  float threshold_single, threshold_acc;
  bool has_draft;
  int32_t *tokens, *index, *accepted;
  int64_t B, D, V;

  // Nodes are not trusted: a list may run in circles.
  template <typename Lanes, typename TargetAt, typename DraftAt>
  ANYOP_DRAW_FUNCTION End Walk(int64_t b, const Lanes& lanes, bool writes,
                               const TargetAt& target_at, const DraftAt&) const {
    writes &= lanes.lane() == 0;
    const int64_t row = b * D;
    int64_t node = 0, taken = 0, looks = 0;
    bool rejects = false;
    if (D == 0) {
      if (writes) accepted[b] = 0;
      return {0, -1, -1, nullptr};
    }
    if (writes)
      for (int64_t d = 0; d < D; ++d) tokens[row + d] = index[row + d] = -1;
    for (;; ++taken) {
      if (writes) index[row + taken] = static_cast<int32_t>(node);
      rejects = false;
      if (taken + 1 == D) break;
      const float coin = CoinOf(static_cast<uint64_t>(seed[b]), static_cast<uint64_t>(offset[b]),
                                static_cast<uint32_t>(node));
      float sum = 0;
      int64_t child = next_token[row + node];
      bool accepts = false;
      while (child >= 0 && child < D && looks < D) {
        const int64_t token = candidates[row + child];
        const float target = token >= 0 && token < V ? target_at(row + node, token) : 0.0f;
        sum += IsProb(target) ? target : 0.0f;
        accepts = target > 0 && IsProb(target) &&
                  (coin * threshold_acc < sum || target >= threshold_single);
        if (accepts) break;
        rejects = true;
        child = next_sibling[row + child];
        ++looks;
      }
      if (!accepts) break;
      if (writes) tokens[row + taken] = static_cast<int32_t>(candidates[row + child]);
      node = child;
    }
    if (writes) accepted[b] = static_cast<int32_t>(taken);
    return {row + node, rejects && has_draft ? row + node : -1, rejects ? node : -1,
            tokens + row + taken};
  }

  // Whether a token is a child of the node whose children were not accepted.
  ANYOP_DRAW_FUNCTION bool IsRejected(int64_t b, const End& end, int64_t token) const {
    if (end.node < 0) return false;
    const int64_t row = b * D;
    int64_t child = next_token[row + end.node];
    for (int64_t looks = 0; child >= 0 && child < D && looks < D; ++looks) {
      if (candidates[row + child] == token) return true;
      child = next_sibling[row + child];
    }
    return false;
  }
};

template <typename Int, typename Args>
Chains<Int> ChainsOf(const Args& args) {
  const auto to = [](const auto* t) { return static_cast<int32_t*>(t->data); };
  return {static_cast<const Int*>(args.draft_tokens->data),
          PerRowOf<int64_t>(args.seed),
          PerRowOf<int64_t>(args.offset),
          to(args.tokens),
          to(args.accepted),
          to(args.emitted),
          args.B,
          args.N,
          args.V};
}

template <typename Int, typename Args>
Trees<Int> TreesOf(const Args& args) {
  const auto of = [](const auto* t) { return static_cast<const Int*>(t->data); };
  const auto to = [](const auto* t) { return static_cast<int32_t*>(t->data); };
  return {of(args.candidates),
          of(args.next_token),
          of(args.next_sibling),
          PerRowOf<int64_t>(args.seed),
          PerRowOf<int64_t>(args.offset),
          static_cast<float>(args.threshold_single),
          static_cast<float>(args.threshold_acc),
          args.draft_probs != nullptr,
          to(args.tokens),
          to(args.index),
          to(args.accepted),
          args.B,
          args.D,
          args.V};
}

}  // namespace anyop::sampling

#endif  // ANYOP_OPS_SAMPLING_VERIFY_ROWS_H_
