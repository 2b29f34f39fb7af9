// SPDX-License-Identifier: Apache-2.0
// moe_route on the CPU: threads take tokens, and of each choose top_k times the greatest key left.
#include "anyop/ops/moe_route.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "anyop/cpu.h"
#include "element_types.h"
#include "route_forms.h"

namespace anyop::cpu {
namespace {

constexpr int64_t kMostExperts = 1024;
constexpr float kLeast = -std::numeric_limits<float>::infinity();

float Sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

struct Token {
  float logits[kMostExperts], keys[kMostExperts];
  bool open[kMostExperts];  // may be chosen
};

// The first of the greatest keys that are open.
int64_t Greatest(const float* keys, const bool* open, int64_t n) {
  int64_t best = -1;
  for (int64_t i = 0; i < n; ++i)
    if (open[i] && (best < 0 || keys[i] > keys[best])) best = i;
  return best;
}

class Router {
 public:
  explicit Router(const MoeRouteArgs& args) : args_(args), score_(ScoreOf(args.score)) {}

  void Route(int64_t t, Token* token) const {
    const float most =
        *std::max_element(token->logits, token->logits + args_.E,
                          [](float a, float b) { return a < b || (a != a && b == b); });
    float sum = 0;
    if (score_ == Score::kSoftmax && (args_.bias || !args_.renormalize))
      for (int64_t e = 0; e < args_.E; ++e) sum += std::exp(token->logits[e] - most);
    const auto score = [&](float x) {
      return score_ == Score::kSoftmax ? std::exp(x - most) / sum : Sigmoid(x);
    };
    for (int64_t e = 0; e < args_.E; ++e) {
      float key = token->logits[e];
      if (args_.bias) {
        if (score_ != Score::kTopkSoftmax) key = score(key);
        key += static_cast<const float*>(args_.bias->data)[e];
      }
      token->keys[e] = key == key ? key : kLeast;
    }
    OpenGroups(token);
    const int64_t k = args_.top_k;
    auto* ids = static_cast<int32_t*>(args_.ids->data) + t * k;
    auto* weights = static_cast<float*>(args_.weights->data) + t * k;
    for (int64_t j = 0; j < k; ++j) {
      const int64_t e = Greatest(token->keys, token->open, args_.E);
      token->open[e] = false;
      ids[j] = static_cast<int32_t>(e);
      weights[j] = token->logits[e];
    }
    const float scale = static_cast<float>(args_.scale);
    if (OfChosen(score_, args_.renormalize)) {
      float greatest = kLeast, total = 0;
      for (int64_t j = 0; j < k; ++j) greatest = std::fmax(greatest, weights[j]);
      for (int64_t j = 0; j < k; ++j) total += weights[j] = std::exp(weights[j] - greatest);
      for (int64_t j = 0; j < k; ++j) weights[j] = weights[j] / total * scale;
      return;
    }
    float total = args_.renormalize ? 1e-20f : 1;
    for (int64_t j = 0; j < k; ++j) {
      weights[j] = score(weights[j]);
      if (args_.renormalize) total += weights[j];
    }
    for (int64_t j = 0; j < k; ++j) weights[j] = weights[j] / total * scale;
  }

 private:
  void OpenGroups(Token* token) const {
    std::fill_n(token->open, args_.E, args_.top_groups == args_.groups);
    if (args_.top_groups == args_.groups) return;
    const int64_t members = args_.E / args_.groups;
    float of_group[kMostExperts];
    bool left[kMostExperts];
    for (int64_t g = 0; g < args_.groups; ++g) {
      float best = kLeast, second = kLeast;
      for (int64_t e = g * members; e < (g + 1) * members; ++e) {
        const float key = token->keys[e];
        second = std::max(second, std::min(best, key));
        best = std::max(best, key);
      }
      const float sum = args_.bias && members > 1 ? best + second : best;
      of_group[g] = sum == sum ? sum : kLeast;
      left[g] = true;
    }
    for (int64_t i = 0; i < args_.top_groups; ++i) {
      const int64_t g = Greatest(of_group, left, args_.groups);
      left[g] = false;
      std::fill_n(token->open + g * members, members, true);
    }
  }

  const MoeRouteArgs& args_;
  Score score_;
};

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_moe_route_cpu(const MoeRouteArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  if (args->top_k == 0) return kAnyopOk;
  const Router router(*args);
  const int64_t E = args->E, grain = 16384 / (E * (args->top_k + 4)) + 1;
  anyop::WithElement(AnyopDtypeOf(args->logits), [&](auto zero) {
    const auto* logits = static_cast<const decltype(zero)*>(args->logits->data);
    anyop::ParallelFor(call, args->T, grain, [&](int64_t begin, int64_t end) {
      Token token;
      for (int64_t t = begin; t < end; ++t) {
        for (int64_t e = 0; e < E; ++e) token.logits[e] = Load<float>(logits[t * E + e]);
        router.Route(t, &token);
      }
    });
  });
  return kAnyopOk;
}
