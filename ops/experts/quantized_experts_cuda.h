// SPDX-License-Identifier: Apache-2.0
// fused_moe of 8-bit weights on CUDA, for fused_moe_w8a8 and fused_moe_fp8_block: tokens are
// quantised once, sorted and gathered as 8 bits, multiplied, activated and quantised again, and
// multiplied; then each token's rows are added in the order of its slots.
//
// Sums of products and experts' results are float32. What is quantised follows
// ../quant/quantize_row.h: a warp takes a group of columns, which it computes twice, for the
// greatest magnitude and for the codes.
#pragma once

#include <cmath>

#include "../linear/tile_problem.h"
#include "../quant/quantize_cuda.h"
#include "anyop/cuda/mma.h"
#include "gates_cuda.h"
#include "sort_cuda.h"
#include "token_rows_cuda.h"

namespace anyop::cuda {
namespace {

// Rows of D numbers become codes, each `group` columns with a scale.
struct Codes {
  uint8_t* to;
  float* scales;
  const float* given;  // as scales, or NULL: from the rows
  int64_t rows, D, group, groups;
  bool is_int8;
};

template <typename T>
struct TokenValues {
  const T* x;
  int64_t D;
  __device__ float operator()(int64_t row, int64_t i) const { return Widen(x[row * D + i]); }
};
struct HiddenValues {
  Gates gates;
  const float* sums;
  __device__ float operator()(int64_t row, int64_t i) const {
    const float* at = sums + row * gates.width + i;
    return HiddenFeature(gates, at[gates.gate], at[gates.up]).Value();
  }
};

template <typename Values>
__global__ void __launch_bounds__(256)
    QuantizeGroups(const __grid_constant__ Values values, const __grid_constant__ Codes p) {
  WaitForWork();
  LetNextStart();
  const int lane = threadIdx.x % 32;
  const float limit = p.is_int8 ? 127 : kGreatestE4M3;
  const int64_t step = int64_t{gridDim.x} * 8;
  int64_t at = int64_t{blockIdx.x} * 8 + threadIdx.x / 32;
  for (; at < p.rows * p.groups; at += step) {
    const int64_t row = at / p.groups, begin = at % p.groups * p.group;
    const int64_t end = begin + p.group < p.D ? begin + p.group : p.D;
    float most = 0;
    if (!p.given)
      for (int64_t i = begin + lane; i < end; i += 32)
        most = GreaterMagnitude()(most, values(row, i));
#pragma unroll
    for (int half = 16; half; half /= 2)
      most = GreaterMagnitude()(most, __shfl_xor_sync(~0u, most, half));
    const Scale scale = p.given ? Scale::Given(p.given[at]) : Scale::Of(most, limit, 1 / limit);
    if (lane == 0) p.scales[at] = scale.value;
    for (int64_t i = begin + lane; i < end; i += 32) {
      const float v = values(row, i) * scale.factor;
      p.to[row * p.D + i] = static_cast<uint8_t>(p.is_int8 ? ToInt8(v) : ToE4M3(v));
    }
  }
}

template <typename Values>
int32_t Quantize(AnyopCall* call, const Values& values, const Codes& p) {
  if (p.rows == 0) return kAnyopOk;
  const Launch launch{dim3(GridFor(p.rows * p.groups, 8)), dim3(256), 0, true};
  return launch.Run(call, QuantizeGroups<Values>, values, p);
}

__global__ void __launch_bounds__(256) SetOnes(float* to, int64_t n) {
  WaitForWork();
  LetNextStart();
  const int64_t step = int64_t{gridDim.x} * 256;
  for (int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x; i < n; i += step) to[i] = 1;
}

// kBlocks: scales of 128 columns, and of 128 x 128 of weights; else of rows. Products: who
// multiplies, by Accept(call, w13, w2, result), which may decline, and Multiply<type, form>; where
// it kMakesCodes and MakesCodes(call, p), MultiplyToCodes activates and quantises sums of blocks.
template <bool kBlocks, typename Products, typename Args>
class QuantizedExperts {
 public:
  QuantizedExperts(const Args* args, AnyopCall* call, const AnyopTensor* x_scale)
      : a_(*args), call_(call), x_scale_(x_scale), slots_(a_.T * a_.K) {
    const Gate kind = ReadGate(a_.activation.data);
    const bool gated = kind != Gate::kRelu2;
    const int64_t I = gated ? a_.A / 2 : a_.A;
    gates_ = {kind, 1, INFINITY, I, a_.A, 0, gated ? I : 0};
    is_int8_ = AnyopDtypeOf(a_.w13) == kAnyopInt8;
    in_codes_ = AnyopDtypeOf(a_.x) == AnyopDtypeOf(a_.w13);
  }

  int32_t Run() {
    const int64_t I = gates_.I, H = a_.H;
    if (int32_t status = CheckSlots(call_, slots_)) return status;
    if (int32_t status = CheckCounts(call_, slots_, a_.E * a_.A, a_.E * H)) return status;
    if (int32_t status = Products::Accept(call_, a_.w13, a_.w2, AnyopDtypeOf(a_.out)))
      return status;
    if (int32_t status = Allocate()) return status;
    if (int32_t status = SortSlotsOf(call_, a_, order_, inverse_, offsets_)) return status;
    if (slots_ > 0) {
      if (int32_t status = Gather()) return status;
      if (int32_t status = Hidden()) return status;
      if (int32_t status = Multiply(hidden_, hidden_scales_, a_.w2, a_.w2_scale, results_, H, I))
        return status;
    }
    const TokenSums sums = {results_,     inverse_, static_cast<float*>(a_.weights->data),
                            a_.out->data, slots_,   a_.T,
                            a_.K,         H};
    const AnyopDtype dtype = AnyopDtypeOf(a_.out);
    if (dtype == kAnyopFloat32) return SumTokens<float, float>(call_, sums);
    if (dtype == kAnyopFloat16) return SumTokens<float, __half>(call_, sums);
    return SumTokens<float, __nv_bfloat16>(call_, sums);
  }

 private:
  static constexpr bool kMayMakeCodes = kBlocks && Products::kMakesCodes;

  // At least one, whose scale counts for nothing.
  static int64_t GroupsOf(int64_t D) { return kBlocks && D > 0 ? CeilDiv(D, 128) : 1; }

  Codes CodesOf(uint8_t* to, float* scales, const float* given, int64_t rows, int64_t D) const {
    return {to, scales, given, rows, D, kBlocks ? 128 : D, GroupsOf(D), is_int8_};
  }

  int32_t Allocate() {
    const int64_t I = gates_.I, H = a_.H, groups = GroupsOf(H), of_hidden = GroupsOf(I);
    const int64_t tokens = in_codes_ ? 0 : a_.T;
    if constexpr (kMayMakeCodes)
      makes_codes_ = slots_ > 0 && a_.E > 0 && gates_.kind != Gate::kRelu2 &&
                     Products::MakesCodes(call_, ProblemOfCodes());
    WorkspacePlan plan;
    const int64_t order = plan.Place(slots_ * 4), inverse = plan.Place(slots_ * 4),
                  offsets = plan.Place((a_.E + 1) * 4), codes = plan.Place(tokens * H),
                  scales = plan.Place(a_.T * groups * 4), rows = plan.Place(slots_ * H),
                  row_scales = plan.Place(slots_ * groups * 4),
                  sums = plan.Place(makes_codes_ ? 0 : slots_ * a_.A * 4),
                  hidden = plan.Place(slots_ * I),
                  hidden_scales = plan.Place(slots_ * of_hidden * 4),
                  results = plan.Place(slots_ * H * 4);
    char* memory = plan.Take(call_);
    if (!memory) return kAnyopOutOfMemory;
    order_ = reinterpret_cast<int32_t*>(memory + order);
    inverse_ = reinterpret_cast<int32_t*>(memory + inverse);
    offsets_ = reinterpret_cast<int32_t*>(memory + offsets);
    codes_ = reinterpret_cast<uint8_t*>(memory + codes);
    scales_ = reinterpret_cast<float*>(memory + scales);
    tokens_ = reinterpret_cast<uint8_t*>(memory + rows);
    token_scales_ = reinterpret_cast<float*>(memory + row_scales);
    sums_ = reinterpret_cast<float*>(memory + sums);
    hidden_ = reinterpret_cast<uint8_t*>(memory + hidden);
    hidden_scales_ = reinterpret_cast<float*>(memory + hidden_scales);
    results_ = reinterpret_cast<float*>(memory + results);
    return kAnyopOk;
  }

  // The tokens' codes and scales in the order of experts.
  int32_t Gather() {
    const float* given = x_scale_ && a_.H ? static_cast<float*>(x_scale_->data) : nullptr;
    const int64_t groups = GroupsOf(a_.H);
    if (!in_codes_)
      if (int32_t status = QuantizeTokens(given)) return status;
    const auto gather = [&](const void* from, int64_t row_bytes, void* to) {
      return GatherTokens(call_, from, order_, slots_, slots_, static_cast<int>(a_.K), row_bytes,
                          to);
    };
    const void* codes = in_codes_ ? a_.x->data : codes_;
    if (int32_t status = gather(codes, a_.H, tokens_)) return status;
    if (!in_codes_ || given) return gather(in_codes_ ? given : scales_, groups * 4, token_scales_);
    const Launch launch{dim3(GridFor(slots_ * groups, 256)), dim3(256), 0, true};
    return launch.Run(call_, SetOnes, token_scales_, slots_ * groups);
  }

  int32_t QuantizeTokens(const float* given) {
    const Codes p = CodesOf(codes_, scales_, given, a_.T, a_.H);
    return WithFloat32Sums(AnyopDtypeOf(a_.x), [&](auto zero) {
      using T = decltype(zero);
      return Quantize(call_, TokenValues<T>{static_cast<const T*>(a_.x->data), a_.H}, p);
    });
  }

  // The first product's problem where its tiles make codes of their sums.
  TileProblem ProblemOfCodes() const {
    TileProblem p = ProblemOf(tokens_, token_scales_, a_.w13, a_.w13_scale, hidden_, a_.A, a_.H);
    p.N = static_cast<int>(gates_.I), p.out_scale = hidden_scales_;
    p.activation = gates_.kind == Gate::kSilu   ? Activation::kSilu
                   : gates_.kind == Gate::kGelu ? Activation::kGelu
                                                : Activation::kGeluTanh;
    return p;
  }

  // The hidden features' codes and scales.
  int32_t Hidden() {
    if constexpr (kMayMakeCodes)
      if (makes_codes_) return Products::MultiplyToCodes(call_, ProblemOfCodes());
    if (int32_t status = Multiply(tokens_, token_scales_, a_.w13, a_.w13_scale, sums_, a_.A, a_.H))
      return status;
    return Quantize(call_, HiddenValues{gates_, sums_},
                    CodesOf(hidden_, hidden_scales_, nullptr, slots_, gates_.I));
  }

  // Rows (K) by experts' weights (N K), to rows (N).
  TileProblem ProblemOf(const uint8_t* rows, const float* scales, const AnyopTensor* weight,
                        const AnyopTensor* weight_scale, void* out, int64_t N, int64_t K) const {
    TileProblem p = {};
    p.x = rows, p.weight = weight->data, p.out = out;
    p.rows = p.capacity = static_cast<int>(slots_);
    p.N = static_cast<int>(N), p.K = static_cast<int>(K), p.experts = static_cast<int>(a_.E);
    p.offsets = offsets_;
    p.result = kAnyopFloat32;
    const auto* of_weight = static_cast<const float*>(weight_scale->data);
    if constexpr (kBlocks) {
      const int64_t across = CeilDiv(K, 128);
      p.x_scale = scales, p.x_scale_row = across, p.x_scale_k = 1;
      p.weight_scale = of_weight, p.weight_scale_row = across, p.weight_scale_k = 1;
      p.weight_scale_expert = CeilDiv(N, 128) * across;
    } else {
      p.row_scale = scales, p.row_scale_stride = 1;
      p.column_scale = of_weight, p.column_scale_stride = 1, p.column_scale_expert = N;
    }
    return p;
  }

  int32_t Multiply(const uint8_t* rows, const float* scales, const AnyopTensor* weight,
                   const AnyopTensor* weight_scale, float* out, int64_t N, int64_t K) {
    const TileProblem p = ProblemOf(rows, scales, weight, weight_scale, out, N, K);
    if constexpr (kBlocks)
      return Products::template Multiply<Operand::kE4M3, TileForm::kBlocks>(call_, p);
    else
      return is_int8_ ? Products::template Multiply<Operand::kInt8, TileForm::kSegments>(call_, p)
                      : Products::template Multiply<Operand::kE4M3, TileForm::kSegments>(call_, p);
  }

  const Args& a_;
  AnyopCall* call_;
  const AnyopTensor* x_scale_;
  int64_t slots_;
  Gates gates_;
  bool is_int8_, in_codes_, makes_codes_ = false;
  int32_t *order_ = nullptr, *inverse_ = nullptr, *offsets_ = nullptr;
  uint8_t *codes_ = nullptr, *tokens_ = nullptr, *hidden_ = nullptr;
  float *scales_ = nullptr, *token_scales_ = nullptr, *sums_ = nullptr, *hidden_scales_ = nullptr,
        *results_ = nullptr;
};

}  // namespace
}  // namespace anyop::cuda
