// SPDX-License-Identifier: Apache-2.0
// Gradients of fused_moe on CUDA: the rows of grad_out by w2, the slopes of the activation (which
// is computed again), and products of them (weight_form.h). All in the call's workspace.
//
// Of the slopes a warp takes a row: it writes the gradient of the hidden sums and the weighted
// hidden features, each rounded once, and adds up the gradient of the slot's weight. Rows of tokens
// are added in the order of their slots: no atomics.
#pragma once

#include "../grouped/grouped_gradients.h"
#include "anyop/cuda/row_operands.h"
#include "anyop/ops/fused_moe_backward.h"
#include "gates_cuda.h"
#include "token_rows_cuda.h"
#include "weight_form.h"

namespace anyop::cuda {
namespace {

struct Slopes {
  Gates gates;
  int64_t slots, H;
  int experts;
  const int32_t *order, *offsets;
  const float *weights, *of_features;  // of slots; rows of I: grad_out by w2
  const void *hidden, *grad, *bias2;   // rows of width, of H; experts H or NULL
  void *to, *features;                 // rows of width, of I
  float *row_weights, *grad_weights;   // of rows; of slots or NULL
  int32_t* inverse;                    // of slots: their rows; or NULL
  bool aligned;                        // hidden, to 16 bytes
};

// The expert of a row by the rule of TileWalk, or -1; by a whole warp.
__device__ inline int ExpertOfRow(const Slopes& p, int64_t row) {
  const int lane = threadIdx.x % 32;
  for (int first = 0; first < p.experts; first += 32) {
    const int e = first + lane;
    const unsigned later = __ballot_sync(~0u, e < p.experts && p.offsets[e + 1] > row);
    if (later) return p.offsets[0] <= row ? first + __ffs(later) - 1 : -1;
  }
  return -1;
}

// A lane takes kPer features at a time, of which I is a multiple.
template <typename T, int kPer>
__global__ void __launch_bounds__(256) DifferentiateRows(const __grid_constant__ Slopes p) {
  WaitForWork();
  LetNextStart();
  const Gates& gates = p.gates;
  const ColumnsAt<float, false, false> of_features = {p.of_features, 0};
  const int lane = threadIdx.x % 32;
  const int64_t step = int64_t{gridDim.x} * 8;
  for (int64_t row = int64_t{blockIdx.x} * 8 + threadIdx.x / 32; row < p.slots; row += step) {
    const int slot = p.order[row], expert = ExpertOfRow(p, row);
    const bool inside = slot >= 0 && slot < p.slots && expert >= 0;
    const float weight = inside ? p.weights[slot] : 0;
    if (lane == 0) p.row_weights[row] = weight;
    if (lane == 0 && inside && p.inverse) p.inverse[slot] = static_cast<int32_t>(row);
    const T* hidden = static_cast<const T*>(p.hidden) + row * gates.width;
    T* to = static_cast<T*>(p.to) + row * gates.width;
    T* features = static_cast<T*>(p.features) + row * gates.I;
    float sum = 0;
    for (int64_t i = lane * kPer; i < gates.I; i += 32 * kPer) {
      const auto d = ReadColumns<kPer, float>(of_features, row * gates.I + i);
      const auto gate = ReadPiece<kPer>(hidden + gates.gate + i, p.aligned);
      const auto up = ReadPiece<kPer>(hidden + gates.up + i, p.aligned);
      Piece<float, kPer> feature, of_gate, of_up;
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        const HiddenFeature f(gates, gate[j], up[j]);
        sum = MulAdd(d[j], f.Value(), sum);
        feature.at[j] = weight * f.Value();
        of_gate.at[j] = f.gate_is_beyond ? 0 : weight * d[j] * f.up * f.slope;
        of_up.at[j] = f.up_is_beyond ? 0 : weight * d[j] * f.factor;
      }
      WritePiece<kPer>(features + i, true, feature);
      WritePiece<kPer>(to + gates.gate + i, true, of_gate);
      if (gates.up != gates.gate) WritePiece<kPer>(to + gates.up + i, true, of_up);
    }
    if (!p.grad_weights || !inside) continue;
    if (p.bias2)
      for (int64_t h = lane; h < p.H; h += 32)
        sum = MulAdd(Widen(static_cast<const T*>(p.grad)[row * p.H + h]),
                     Widen(static_cast<const T*>(p.bias2)[expert * p.H + h]), sum);
#pragma unroll
    for (int half = 16; half; half /= 2) sum += __shfl_xor_sync(~0u, sum, half);
    if (lane == 0) p.grad_weights[slot] = sum;
  }
}

// ProductsOf<T>: who multiplies.
template <typename T, template <typename> class ProductsOf>
class Gradients {
 public:
  Gradients(const FusedMoeBackwardArgs* args, AnyopCall* call, const Gates& gates)
      : a_(*args), call_(call), slots_(a_.T * a_.K) {
    p_.gates = gates;
    p_.slots = slots_, p_.H = a_.H, p_.experts = static_cast<int>(a_.E);
    p_.order = static_cast<const int32_t*>(a_.order->data);
    p_.offsets = static_cast<const int32_t*>(a_.offsets->data);
    p_.weights = static_cast<const float*>(a_.weights->data);
    p_.hidden = a_.hidden->data, p_.aligned = IsAligned(p_.hidden, 16);
    p_.bias2 = a_.bias2 ? a_.bias2->data : nullptr;
    p_.grad_weights = a_.grad_weights ? static_cast<float*>(a_.grad_weights->data) : nullptr;
  }

  int32_t Run() {
    const int64_t I = p_.gates.I, width = p_.gates.width, H = a_.H;
    if (int32_t status = CheckCounts(call_, slots_, a_.E * width, a_.E * H)) return status;
    if (int32_t status = CheckCounts(call_, 0, a_.E * I, 0)) return status;
    if (int32_t status = Products::Accept(call_, a_.w13->data, a_.w2->data, H, I)) return status;
    if (int32_t status = Allocate()) return status;
    if (int32_t status = Differentiate()) return status;
    if (a_.grad_w2)
      if (int32_t status = OfWeight(grad_, H, p_.features, I, a_.grad_w2)) return status;
    if (a_.grad_bias2)
      if (int32_t status = SumRows(grad_, H, p_.row_weights, a_.grad_bias2)) return status;
    if (a_.grad_bias13)
      if (int32_t status = SumRows(p_.to, width, nullptr, a_.grad_bias13)) return status;
    if (a_.grad_w13) {
      if (int32_t status = Gather(a_.x, tokens_)) return status;
      if (int32_t status = OfWeight(p_.to, width, tokens_, H, a_.grad_w13)) return status;
    }
    return a_.grad_x ? OfTokens() : kAnyopOk;
  }

 private:
  using Products = ProductsOf<T>;
  using Result = typename Products::Result;
  static constexpr int64_t kItem = sizeof(T);

  int32_t Allocate() {
    WorkspacePlan plan;
    const auto place = [&](int64_t wanted) { return plan.Place(wanted); };
    const int64_t inverse = place(slots_ * 4), row_weights = place(slots_ * 4 + 1),
                  of_features = place(slots_ * p_.gates.I * 4),
                  features = place(slots_ * p_.gates.I * kItem),
                  of_hidden = place(slots_ * p_.gates.width * kItem),
                  grad = place(slots_ * a_.H * kItem), tokens = place(slots_ * a_.H * kItem);
    char* memory = plan.Take(call_);
    if (!memory) return kAnyopOutOfMemory;
    if (a_.grad_x) p_.inverse = reinterpret_cast<int32_t*>(memory + inverse);
    p_.row_weights = reinterpret_cast<float*>(memory + row_weights);
    p_.of_features = reinterpret_cast<float*>(memory + of_features);
    p_.features = memory + features, p_.to = memory + of_hidden;
    p_.grad = grad_ = memory + grad;
    tokens_ = memory + tokens;
    return kAnyopOk;
  }

  int32_t Gather(const AnyopTensor* x, void* to) const {
    return GatherTokens(call_, x->data, p_.order, slots_, slots_, static_cast<int>(a_.K),
                        a_.H * kItem, to);
  }

  int32_t Fill(void* to, int byte, int64_t count) const {
    if (count == 0) return kAnyopOk;
    return Check(call_, cudaMemsetAsync(to, byte, static_cast<size_t>(count * 4), StreamOf(call_)),
                 "filling its memory");
  }

  int32_t Differentiate() {
    if (p_.grad_weights)
      if (int32_t status = Fill(p_.grad_weights, 0, slots_)) return status;
    if (slots_ == 0) return kAnyopOk;
    if (p_.inverse)
      if (int32_t status = Fill(p_.inverse, 255, slots_)) return status;
    if (int32_t status = Gather(a_.grad_out, grad_)) return status;
    if (int32_t status = ByWeight(grad_, a_.H, a_.w2, p_.gates.I, kAnyopFloat32,
                                  const_cast<float*>(p_.of_features)))
      return status;
    const Launch launch{dim3(GridFor(slots_, 8)), dim3(256), 0, true};
    constexpr int kPer = kPerVector<T>;
    return p_.gates.I % kPer ? launch.Run(call_, DifferentiateRows<T, 1>, p_)
                             : launch.Run(call_, DifferentiateRows<T, kPer>, p_);
  }

  TileProblem Problem(const void* x, const void* weight, void* out, int64_t N) const {
    TileProblem p = {};
    p.x = x, p.weight = weight, p.out = out;
    p.rows = static_cast<int>(slots_), p.N = static_cast<int>(N);
    p.experts = static_cast<int>(a_.E);
    p.offsets = a_.offsets->data;
    return p;
  }

  // Rows (K) by a weight K N, or N K where transposed, to rows (N).
  int32_t ByWeight(const void* rows, int64_t K, const AnyopTensor* weight, int64_t N,
                   AnyopDtype result, void* out) {
    TileProblem p = Problem(rows, weight->data, out, N);
    p.K = static_cast<int>(K), p.capacity = p.rows, p.result = result;
    return MultiplyRows<Products>(call_, p, !a_.transposed);
  }

  // The gradient M N of a weight, or N M where transposed: of rows (M) by rows (N).
  int32_t OfWeight(const void* grad, int64_t M, const void* rows, int64_t N,
                   const AnyopTensor* to) {
    TileProblem p =
        a_.transposed ? Problem(rows, grad, to->data, M) : Problem(grad, rows, to->data, N);
    p.capacity = static_cast<int>(a_.transposed ? N : M), p.result = AnyopDtypeOf(to);
    return Products::template Multiply<WeightForm::kGradient>(call_, p);
  }

  // The sums of each expert's rows (N), times their weights.
  int32_t SumRows(const void* rows, int64_t N, const float* weights, const AnyopTensor* to) {
    if (N == 0) return kAnyopOk;
    TileProblem p = Problem(rows, nullptr, to->data, N);
    p.capacity = p.N, p.result = AnyopDtypeOf(to);
    p.row_scale = weights, p.row_scale_stride = 1;
    const Launch launch{dim3(static_cast<unsigned>(CeilDiv(N, 32)), static_cast<unsigned>(a_.E)),
                        dim3(256)};
    return launch.Run(call_, SumSegments<T>, p);
  }

  // The rows' gradients, Result, lie where grad_out's and x's rows lay.
  int32_t OfTokens() {
    if (slots_ > 0) {
      const AnyopDtype result =
          std::is_same_v<Result, float> ? kAnyopFloat32 : AnyopDtypeOf(a_.grad_x);
      if (int32_t status = ByWeight(p_.to, p_.gates.width, a_.w13, a_.H, result, grad_))
        return status;
    }
    return SumTokens<Result, T>(
        call_, {grad_, p_.inverse, nullptr, a_.grad_x->data, slots_, a_.T, a_.K, a_.H});
  }

  const FusedMoeBackwardArgs& a_;
  AnyopCall* call_;
  int64_t slots_;
  Slopes p_ = {};
  void *grad_ = nullptr, *tokens_ = nullptr;
};

template <typename T, template <typename> class ProductsOf>
int32_t RunExpertGradients(const FusedMoeBackwardArgs* args, AnyopCall* call) {
  Gates gates;
  if (int32_t status = ReadGates(args, call, &gates)) return status;
  return Gradients<T, ProductsOf>(args, call, gates).Run();
}

}  // namespace
}  // namespace anyop::cuda
