// SPDX-License-Identifier: Apache-2.0
// fused_moe and native_fused_moe on CUDA: the sort (sort_cuda.h), the tokens in the order of
// experts (where the first product does not take them where they lie), a product of segments
// (weight_form.h), the activation, another product, and the sums of tokens (token_rows_cuda.h). All
// in the call's workspace; the host waits for nothing.
//
// A plain gate ('silu', 'gelu', 'gelu_tanh') of 16-bit weights in rows ends in the first product's
// tile; else its sums are float32 in memory, and a thread takes an element of the hidden features.
// The second product's results are float32, too, or of the elements' type on Hopper.
#pragma once

#include <cmath>

#include "anyop/ops/fused_moe.h"
#include "anyop/ops/native_fused_moe.h"
#include "gates_cuda.h"
#include "sort_cuda.h"
#include "token_rows_cuda.h"
#include "weight_form.h"

namespace anyop::cuda {
namespace {

// Rows of sums (width) become rows of hidden features (I), and are kept where that is wanted.
struct HiddenFeatures {
  Gates gates;
  const float* sums;
  void *to, *kept;
  int64_t rows;
};

template <typename T>
__global__ void __launch_bounds__(256) ActivateRows(const __grid_constant__ HiddenFeatures p) {
  WaitForWork();
  LetNextStart();
  const Gates& gates = p.gates;
  const int64_t step = int64_t{gridDim.x} * 256;
  for (int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x; i < p.rows * gates.I; i += step) {
    const int64_t at = i / gates.I * gates.width + i % gates.I;
    const float g = p.sums[at + gates.gate], u = p.sums[at + gates.up];
    static_cast<T*>(p.to)[i] = Narrow<T>(HiddenFeature(gates, g, u).Value());
    if (!p.kept) continue;
    static_cast<T*>(p.kept)[at + gates.gate] = Narrow<T>(g);
    if (gates.up != gates.gate) static_cast<T*>(p.kept)[at + gates.up] = Narrow<T>(u);
  }
}

// Zeroes the rows from row *first on.
template <typename T>
__global__ void __launch_bounds__(256)
    ZeroRowsFrom(const int32_t* first, int64_t rows, int64_t width, T* to) {
  WaitForWork();
  LetNextStart();
  const int64_t step = int64_t{gridDim.x} * 256;
  int64_t i = *first * width + int64_t{blockIdx.x} * 256 + threadIdx.x;
  for (; i < rows * width; i += step) to[i] = Narrow<T>(0);
}

// What native_fused_moe gives besides; of fused_moe NULL.
struct Kept {
  void *hidden, *order, *offsets;
};

// ProductsOf<T>: who multiplies.
template <typename T, template <typename> class ProductsOf, typename Args>
class Experts {
 public:
  Experts(const Args* args, AnyopCall* call, const Gates& gates, const Kept& kept)
      : a_(*args), call_(call), slots_(a_.T * a_.K), kept_(kept) {
    hidden_.gates = gates, hidden_.rows = slots_;
    in_tile_ = sizeof(T) == 2 && gates.kind <= Gate::kGeluTanh && !a_.bias13 && !a_.up_first &&
               !a_.transposed && std::isinf(gates.limit) &&
               (gates.alpha == 1 || gates.kind != Gate::kSilu);
  }

  int32_t Run() {
    const int64_t I = hidden_.gates.I, width = hidden_.gates.width;
    if (int32_t status = CheckSlots(call_, slots_)) return status;
    if (int32_t status = CheckCounts(call_, slots_, a_.E * width, a_.E * a_.H)) return status;
    if (int32_t status = CheckCounts(call_, 0, a_.E * I, 0)) return status;
    if (int32_t status = Products::Accept(call_, a_.w13->data, a_.w2->data, a_.H, I)) return status;
    if (int32_t status = Allocate()) return status;
    if (int32_t status = SortSlotsOf(call_, a_, order_, inverse_, offsets_)) return status;
    if (slots_ > 0) {
      if (int32_t status = in_tile_ ? Gated() : Activated()) return status;
      TileProblem second = Problem(hidden_.to, a_.w2, a_.bias2, results_, a_.H, I);
      if (!std::is_same_v<Result, float>) second.result = AnyopDtypeOf(a_.x);
      if (int32_t status = MultiplyRows<Products>(call_, second, a_.transposed)) return status;
    }
    return SumTokens<Result, T>(call_, {results_, inverse_, static_cast<float*>(a_.weights->data),
                                        a_.out->data, slots_, a_.T, a_.K, a_.H});
  }

 private:
  using Products = ProductsOf<T>;
  using Result = typename Products::Result;

  int32_t Allocate() {
    WorkspacePlan plan;
    const auto place = [&](int64_t wanted) { return plan.Place(wanted); };
    constexpr int64_t kItem = sizeof(T);
    const Gates& gates = hidden_.gates;
    const bool sums_are_kept = kItem == 4 && kept_.hidden;
    const int64_t order = place(slots_ * 4), inverse = place(slots_ * 4),
                  offsets = place((a_.E + 1) * 4), tokens = place(slots_ * a_.H * kItem),
                  sums = place(in_tile_ || sums_are_kept ? 0 : slots_ * gates.width * 4),
                  hidden = place(slots_ * gates.I * kItem),
                  results = place(slots_ * a_.H * int64_t{sizeof(Result)});
    char* memory = plan.Take(call_);
    if (!memory) return kAnyopOutOfMemory;
    order_ = static_cast<int32_t*>(kept_.order ? kept_.order : memory + order);
    inverse_ = reinterpret_cast<int32_t*>(memory + inverse);
    offsets_ = static_cast<int32_t*>(kept_.offsets ? kept_.offsets : memory + offsets);
    tokens_ = memory + tokens;
    hidden_.sums = static_cast<float*>(sums_are_kept ? kept_.hidden : memory + sums);
    hidden_.to = memory + hidden;
    hidden_.kept = sums_are_kept ? nullptr : kept_.hidden;
    results_ = memory + results;
    return kAnyopOk;
  }

  // The tokens of slots, in the order of experts.
  int32_t Gather() {
    return GatherTokens(call_, a_.x->data, order_, slots_, slots_, static_cast<int>(a_.K),
                        a_.H * int64_t{sizeof(T)}, tokens_);
  }

  // float32 results.
  TileProblem Problem(const void* x, const AnyopTensor* weight, const AnyopTensor* bias, void* out,
                      int64_t N, int64_t K) const {
    TileProblem p = {};
    p.x = x, p.weight = weight->data, p.out = out;
    p.rows = p.capacity = static_cast<int>(slots_);
    p.N = static_cast<int>(N), p.K = static_cast<int>(K), p.experts = static_cast<int>(a_.E);
    p.offsets = offsets_;
    p.result = kAnyopFloat32;
    if (bias) p.bias = bias->data, p.bias_type = AnyopDtypeOf(bias);
    return p;
  }

  int32_t Gated() {
    const Gates& gates = hidden_.gates;
    if constexpr (sizeof(T) == 2) {
      TileProblem p = Problem(tokens_, a_.w13, nullptr, hidden_.to, gates.I, a_.H);
      p.result = AnyopDtypeOf(a_.x);
      p.pre = kept_.hidden;
      p.activation = gates.kind == Gate::kSilu   ? Activation::kSilu
                     : gates.kind == Gate::kGelu ? Activation::kGelu
                                                 : Activation::kGeluTanh;
      p.x = a_.x->data, p.order = order_, p.top_k = static_cast<int>(a_.K);
      if (!Products::Gathers(call_, p)) {
        p.x = tokens_, p.order = nullptr;
        if (int32_t status = Gather()) return status;
      }
      if (int32_t status = Products::MultiplyGated(call_, p)) return status;
    }
    if (!kept_.hidden) return kAnyopOk;
    const Launch launch{dim3(256), dim3(256), 0, true};
    return launch.Run(call_, ZeroRowsFrom<T>, static_cast<const int32_t*>(offsets_ + a_.E), slots_,
                      gates.width, static_cast<T*>(kept_.hidden));
  }

  int32_t Activated() {
    const Gates& gates = hidden_.gates;
    if (int32_t status = Gather()) return status;
    auto* sums = const_cast<float*>(hidden_.sums);
    const TileProblem p = Problem(tokens_, a_.w13, a_.bias13, sums, gates.width, a_.H);
    if (int32_t status = MultiplyRows<Products>(call_, p, a_.transposed)) return status;
    if (gates.I == 0) return kAnyopOk;
    const Launch launch{dim3(GridFor(slots_ * gates.I, 256)), dim3(256), 0, true};
    return launch.Run(call_, ActivateRows<T>, hidden_);
  }

  const Args& a_;
  AnyopCall* call_;
  int64_t slots_;
  HiddenFeatures hidden_ = {};
  Kept kept_;
  bool in_tile_ = false;
  int32_t *order_ = nullptr, *inverse_ = nullptr, *offsets_ = nullptr;
  void *tokens_ = nullptr, *results_ = nullptr;
};

template <typename T, template <typename> class ProductsOf, typename Args>
int32_t RunExperts(const Args* args, AnyopCall* call, const Kept& kept) {
  Gates gates;
  if (int32_t status = ReadGates(args, call, &gates)) return status;
  return Experts<T, ProductsOf, Args>(args, call, gates, kept).Run();
}

}  // namespace
}  // namespace anyop::cuda
