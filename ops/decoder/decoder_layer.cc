// SPDX-License-Identifier: Apache-2.0
// A decoder's layer on the CPU, phase by phase; also the readable reference. Products are gemm.cc's
// in float32; what goes from one phase to the next is rounded to the tensors' dtype, but for the
// results of products, which are rounded when something has been added to them.
#include "anyop/ops/decoder_layer.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "../linear/convert.h"
#include "../linear/gemm.h"

namespace anyop {
namespace {

class Layer {
 public:
  Layer(const DecoderLayerArgs& args, AnyopCall* call)
      : a_(args),
        call_(call),
        dtype_(AnyopDtypeOf(args.x)),
        B_(args.B),
        D_(args.D),
        Q_(args.heads * args.C),
        K_(args.G * args.C),
        scale_(args.scale.has ? static_cast<float>(args.scale.value)
                              : 1 / std::sqrt(static_cast<float>(args.C))) {}

  int32_t Run() {
    if (const int32_t status = CheckPlaces()) return status;
    const int64_t all = Q_ + 2 * K_, widest = std::max({D_, Q_, a_.F});
    wide_ = Take<float>(B_ * std::max({all, 2 * a_.F, D_}));
    scratch_ = Take<float>(B_ * a_.heads * (2 * a_.C + 1) + B_ * 2 * std::max(D_, a_.F));
    rows_ = Take<char>(B_ * widest * SizeOf(dtype_));
    sum_ = Take<char>(B_ * D_ * SizeOf(dtype_));
    if (!wide_ || !scratch_ || !rows_ || !sum_)
      return call_->fail(call_, kAnyopOutOfMemory, "no memory for the workspace");
    Normalize(a_.x->data, a_.delta ? a_.delta->data : nullptr, nullptr, *a_.attention_norm, sum_);
    if (const int32_t status = Multiply(*a_.qkv, D_, all, wide_)) return status;
    AppendHeads();
    Attend();
    if (const int32_t status = Multiply(*a_.out_weight, Q_, D_, wide_)) return status;
    Normalize(sum_, nullptr, wide_, *a_.ffn_norm, a_.x_out->data);
    if (const int32_t status = Multiply(*a_.gate_up, D_, 2 * a_.F, wide_)) return status;
    Gate();
    return Multiply(*a_.down, a_.F, D_, nullptr);
  }

 private:
  int64_t LengthOf(int64_t b) const { return static_cast<const int32_t*>(a_.seqlens_k->data)[b]; }
  int64_t PageOf(int64_t b, int64_t t) const {
    return static_cast<const int32_t*>(a_.page_table->data)[b * a_.M + t / a_.P];
  }
  // Elements to a head of a place.
  int64_t At(const AnyopTensor& cache, int64_t b, int64_t t, int64_t g) const {
    return PageOf(b, t) * cache.strides[0] + t % a_.P * cache.strides[1] + g * cache.strides[2];
  }
  template <typename T>
  T* Take(int64_t count) const {
    return static_cast<T*>(call_->workspace(call_, (count + 1) * static_cast<int64_t>(sizeof(T))));
  }

  int32_t CheckPlaces() const {
    char text[128];
    for (int64_t b = 0; b < B_; ++b) {
      const int64_t length = LengthOf(b), most = std::min(a_.M * a_.P, a_.L);
      if (length < 0 || length > most) {
        std::snprintf(text, sizeof text, "seqlens_k[%lld] is %lld, expected 0 to %lld",
                      static_cast<long long>(b), static_cast<long long>(length),
                      static_cast<long long>(most));
        return call_->fail(call_, kAnyopIndexError, text);
      }
      for (int64_t t = 0; t < length; t += a_.P) {
        if (PageOf(b, t) >= 0 && PageOf(b, t) < a_.N) continue;
        std::snprintf(text, sizeof text,
                      "page_table[%lld, %lld] is %lld, expected 0 <= page < %lld",
                      static_cast<long long>(b), static_cast<long long>(t / a_.P),
                      static_cast<long long>(PageOf(b, t)), static_cast<long long>(a_.N));
        return call_->fail(call_, kAnyopIndexError, text);
      }
    }
    return kAnyopOk;
  }

  // to = x + delta + product, and rows_ that normalised.
  void Normalize(const void* x, const void* delta, const float* product, const AnyopTensor& weight,
                 void* to) const {
    ParallelFor(call_, B_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        float *sum = scratch_ + b * 2 * D_, *more = sum + D_;
        Widen(dtype_, x, b * D_, 1, D_, sum);
        if (delta) Widen(dtype_, delta, b * D_, 1, D_, more);
        for (int64_t d = 0; d < D_; ++d)
          sum[d] += delta ? more[d] : product ? product[b * D_ + d] : 0;
        Narrow(sum, D_, dtype_, to, b * D_);
        Widen(dtype_, to, b * D_, 1, D_, sum);
        Widen(dtype_, weight.data, 0, 1, D_, more);
        Scale(sum, more, D_);
        Narrow(sum, D_, dtype_, rows_, b * D_);
      }
    });
  }
  void Scale(float* v, const float* weight, int64_t n) const {
    double squares = 0;
    for (int64_t i = 0; i < n; ++i) squares += double{v[i]} * v[i];
    const double mean = n > 0 ? squares / static_cast<double>(n) : 0;
    const auto scale = static_cast<float>(1 / std::sqrt(mean + a_.eps));
    for (int64_t i = 0; i < n; ++i) v[i] *= scale * weight[i];
  }

  // rows_ (B, K) by the rows of weight (N, K): to `wide`, or rounded to delta_out.
  int32_t Multiply(const AnyopTensor& weight, int64_t K, int64_t N, float* wide) const {
    GemmProblem problem = {};
    problem.dtype = dtype_;
    problem.M = B_, problem.N = N, problem.K = K;
    problem.a = {rows_, K, 1, nullptr, nullptr};
    problem.b = {weight.data, 1, K, nullptr, nullptr};
    problem.out = wide ? wide : a_.delta_out->data;
    problem.wide_out = wide != nullptr;
    problem.fixed_tiles = true;
    return Gemm(call_, problem);
  }

  // Norms and turns queries, which stay, and keys, which go to the cache with values.
  void AppendHeads() const {
    const int64_t heads = a_.heads + 2 * a_.G, C = a_.C;
    ParallelFor(call_, B_ * a_.G, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t b = i / a_.G, g = i % a_.G, group = a_.heads / a_.G, t = LengthOf(b) - 1;
        float* scratch = scratch_ + i * 2 * C;
        if (t < 0) continue;
        for (int64_t j = 0; j < group + 2; ++j) {
          const int64_t head = j < group ? g * group + j : a_.heads + g + (j - group) * a_.G;
          float* v = wide_ + (b * heads + head) * C;
          if (a_.qkv_bias) {
            Widen(dtype_, a_.qkv_bias->data, head * C, 1, C, scratch);
            for (int64_t c = 0; c < C; ++c) v[c] += scratch[c];
          }
          if (j <= group) Turn(v, j < group ? a_.q_norm : a_.k_norm, t, scratch);
          const AnyopTensor& cache = j == group ? *a_.k_cache : *a_.v_cache;
          if (j >= group) {
            Narrow(v, C, dtype_, cache.data, At(cache, b, t, g));
          } else {
            Narrow(v, C, dtype_, scratch, 0);
            Widen(dtype_, scratch, 0, 1, C, v);
          }
        }
      }
    });
  }
  void Turn(float* v, const AnyopTensor* norm, int64_t position, float* scratch) const {
    const int64_t C = a_.C, half = C / 2;
    if (norm) {
      Widen(dtype_, norm->data, 0, 1, C, scratch);
      Scale(v, scratch, C);
    }
    const AnyopDtype of_table = AnyopDtypeOf(a_.cos);
    float *cos = scratch, *sin = scratch + C;
    Widen(of_table, a_.cos->data, position * C, 1, C, cos);
    Widen(of_table, a_.sin->data, position * C, 1, C, sin);
    for (int64_t c = 0; c < half; ++c) {
      const float first = v[c], second = v[c + half];
      v[c] = first * cos[c] - second * sin[c];
      v[c + half] = second * cos[c + half] + first * sin[c + half];
    }
  }

  // rows_ (B, heads * C) of the queries in wide_.
  void Attend() const {
    const int64_t C = a_.C, of_token = Q_ + 2 * K_;
    ParallelFor(call_, B_ * a_.heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t b = i / a_.heads, h = i % a_.heads, g = h / (a_.heads / a_.G);
        const float* q = wide_ + b * of_token + h * C;
        float *row = scratch_ + i * 2 * C, *out = row + C, most = -INFINITY, total = 0;
        std::fill(out, out + C, 0.0f);
        for (int64_t t = 0; t < LengthOf(b); ++t) {
          Widen(dtype_, a_.k_cache->data, At(*a_.k_cache, b, t, g), 1, C, row);
          float score = 0;
          for (int64_t c = 0; c < C; ++c) score += q[c] * row[c];
          score *= scale_;
          const float top = std::max(most, score);
          const float kept = std::exp(most - top), weight = std::exp(score - top);
          most = top, total = total * kept + weight;
          Widen(dtype_, a_.v_cache->data, At(*a_.v_cache, b, t, g), 1, C, row);
          for (int64_t c = 0; c < C; ++c) out[c] = out[c] * kept + weight * row[c];
        }
        for (int64_t c = 0; c < C && total != 0; ++c) out[c] /= total;
        Narrow(out, C, dtype_, rows_, i * C);
      }
    });
  }

  // rows_ (B, F) of gates and values in wide_.
  void Gate() const {
    ParallelFor(call_, B_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        const float *gate = wide_ + b * 2 * a_.F, *up = gate + a_.F;
        float* out = scratch_ + b * a_.F;
        for (int64_t f = 0; f < a_.F; ++f) out[f] = gate[f] / (1 + std::exp(-gate[f])) * up[f];
        Narrow(out, a_.F, dtype_, rows_, b * a_.F);
      }
    });
  }

  const DecoderLayerArgs& a_;
  AnyopCall* call_;
  AnyopDtype dtype_;
  int64_t B_, D_, Q_, K_;  // Q_, K_: features of all heads of queries, of keys
  float scale_;
  float *wide_ = nullptr, *scratch_ = nullptr;
  char *rows_ = nullptr, *sum_ = nullptr;
};

}  // namespace
}  // namespace anyop

extern "C" int32_t anyop_decoder_layer_cpu(const DecoderLayerArgs* args, AnyopCall* call) {
  return anyop::Layer(*args, call).Run();
}
