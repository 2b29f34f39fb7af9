// SPDX-License-Identifier: Apache-2.0
// fused_moe from Ampere on, in float16 and bfloat16: the sort (sort_cuda.h), the tokens in the
// order of experts, a product of segments (../linear/tile_mma.h), the activation, another product,
// and the sums of tokens (token_rows_cuda.h). All in the call's workspace; the host waits for
// nothing.
//
// A plain gate ('silu', 'gelu', 'gelu_tanh') ends in the first product's tile; else its sums are
// float32 in memory, and a thread takes an element of the hidden features. The second product's
// results are float32, too: only hidden features and the end are rounded.
#include <cmath>
#include <limits>

#include "../linear/tile_mma.h"
#include "anyop/ops/fused_moe.h"
#include "sort_cuda.h"
#include "token_rows_cuda.h"

namespace anyop::cuda {
namespace {

enum class Gate : int { kSilu, kGelu, kGeluTanh, kRelu2, kSwigluOai };

// Rows of sums (width) become rows of hidden features (I).
struct HiddenFeatures {
  const float* sums;
  void* to;
  int64_t rows, I, width, gate, up;  // gate, up: where they begin in a row
  Gate kind;
  float alpha, limit;
};

template <typename T>
__global__ void __launch_bounds__(256) ActivateRows(const __grid_constant__ HiddenFeatures p) {
  const int64_t step = int64_t{gridDim.x} * 256;
  for (int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x; i < p.rows * p.I; i += step) {
    const float* sums = p.sums + i / p.I * p.width + i % p.I;
    float g = sums[p.gate], u = sums[p.up], value;
    g = g > p.limit ? p.limit : g;  // NaN stays NaN
    u = u > p.limit ? p.limit : u < -p.limit ? -p.limit : u;
    if (p.kind == Gate::kGelu) {
      value = GeluErfForm::Value(g) * u;
    } else if (p.kind == Gate::kGeluTanh) {
      value = GeluTanhForm::Value(g) * u;
    } else if (p.kind == Gate::kRelu2) {
      value = ReluForm::Value(g) * ReluForm::Value(g);
    } else {
      value = g * Sigmoid<float>(p.alpha * g).value * (p.kind == Gate::kSilu ? u : u + 1);
    }
    static_cast<T*>(p.to)[i] = Narrow<T>(value);
  }
}

inline Gate ReadGate(const char* name) {
  constexpr const char* kNames[] = {"silu", "gelu", "gelu_tanh", "relu2", "swigluoai"};
  int i = 0;
  while (i < 4 && std::strcmp(name, kNames[i]) != 0) ++i;
  return static_cast<Gate>(i);
}

template <typename T, Operand kType>
class Experts {
 public:
  Experts(const FusedMoeArgs* args, AnyopCall* call, float limit)
      : a_(*args), call_(call), slots_(a_.T * a_.K) {
    const Gate kind = ReadGate(a_.activation.data);
    const int64_t width = a_.A + a_.B - a_.H, I = kind == Gate::kRelu2 ? width : width / 2;
    hidden_ = {nullptr, nullptr, slots_, I, width, 0, 0, kind, static_cast<float>(a_.alpha), limit};
    if (kind != Gate::kRelu2) (a_.up_first ? hidden_.gate : hidden_.up) = I;
    in_tile_ = kind <= Gate::kGeluTanh && !a_.bias13 && !a_.up_first && std::isinf(limit) &&
               (a_.alpha == 1 || kind != Gate::kSilu);
  }

  int32_t Run() {
    if (a_.T == 0 || a_.H == 0) return kAnyopOk;
    if (int32_t status = CheckSlots(call_, slots_)) return status;
    if (int32_t status = CheckCounts(call_, slots_, a_.E * hidden_.width, a_.E * a_.H))
      return status;
    if (int32_t status = Allocate()) return status;
    if (int32_t status = Sort()) return status;
    if (int32_t status = GatherTokens(call_, a_.x->data, order_, slots_, slots_,
                                      static_cast<int>(a_.K), a_.H * 2, tokens_))
      return status;
    if (int32_t status = in_tile_ ? Gated() : Activated()) return status;
    const TileProblem second =
        Problem(hidden_.to, a_.w2, a_.bias2, results_, a_.H, hidden_.I, kAnyopFloat32);
    if (int32_t status = RunByMma<kType, TileForm::kPlain>(call_, second)) return status;
    return SumTokens<float, T>(call_, {results_, inverse_, static_cast<float*>(a_.weights->data),
                                       a_.out->data, slots_, a_.T, a_.K, a_.H});
  }

 private:
  int32_t Allocate() {
    int64_t bytes = 0;
    const auto place = [&](int64_t wanted) {
      const int64_t at = bytes;
      bytes += (wanted + 255) / 256 * 256;
      return at;
    };
    const int64_t order = place(slots_ * 4), inverse = place(slots_ * 4),
                  offsets = place((a_.E + 1) * 4), tokens = place(slots_ * a_.H * 2),
                  sums = place(in_tile_ ? 0 : slots_ * hidden_.width * 4),
                  hidden = place(slots_ * hidden_.I * 2), results = place(slots_ * a_.H * 4);
    auto* memory = static_cast<char*>(call_->workspace(call_, bytes));
    if (!memory) return call_->fail(call_, kAnyopOutOfMemory, "no memory for the workspace");
    order_ = reinterpret_cast<int32_t*>(memory + order);
    inverse_ = reinterpret_cast<int32_t*>(memory + inverse);
    offsets_ = reinterpret_cast<int32_t*>(memory + offsets);
    tokens_ = memory + tokens;
    hidden_.sums = reinterpret_cast<float*>(memory + sums);
    hidden_.to = memory + hidden;
    results_ = memory + results;
    return kAnyopOk;
  }

  int32_t Sort() {
    SlotSort p = {};
    p.ids = static_cast<const int32_t*>(a_.ids->data);
    p.expert_map = a_.expert_map ? static_cast<const int32_t*>(a_.expert_map->data) : nullptr;
    p.slots = p.room = static_cast<int>(slots_);
    p.known = static_cast<int>(a_.expert_map ? a_.G : a_.E);
    p.experts = static_cast<int>(a_.E);
    p.block = 1, p.rest = -1;
    p.order = order_, p.inverse = inverse_, p.offsets = offsets_;
    return RunSlotSort(call_, p);
  }

  TileProblem Problem(const void* x, const AnyopTensor* weight, const AnyopTensor* bias, void* out,
                      int64_t N, int64_t K, AnyopDtype result) const {
    TileProblem p = {};
    p.x = x, p.weight = weight->data, p.out = out;
    p.rows = p.capacity = static_cast<int>(slots_);
    p.N = static_cast<int>(N), p.K = static_cast<int>(K), p.experts = static_cast<int>(a_.E);
    p.offsets = offsets_;
    p.result = result;
    if (bias) p.bias = bias->data, p.bias_type = AnyopDtypeOf(bias);
    return p;
  }

  int32_t Gated() {
    TileProblem p =
        Problem(tokens_, a_.w13, nullptr, hidden_.to, hidden_.I, a_.H, AnyopDtypeOf(a_.x));
    p.activation = hidden_.kind == Gate::kSilu   ? Activation::kSilu
                   : hidden_.kind == Gate::kGelu ? Activation::kGelu
                                                 : Activation::kGeluTanh;
    return RunByMma<kType, TileForm::kGated>(call_, p);
  }

  int32_t Activated() {
    auto* sums = const_cast<float*>(hidden_.sums);
    const TileProblem p =
        Problem(tokens_, a_.w13, a_.bias13, sums, hidden_.width, a_.H, kAnyopFloat32);
    if (int32_t status = RunByMma<kType, TileForm::kPlain>(call_, p)) return status;
    if (slots_ * hidden_.I == 0) return kAnyopOk;
    const Launch launch{dim3(GridFor(slots_ * hidden_.I, 256)), dim3(256)};
    return launch.Run(call_, ActivateRows<T>, hidden_);
  }

  const FusedMoeArgs& a_;
  AnyopCall* call_;
  int64_t slots_;
  HiddenFeatures hidden_ = {};
  bool in_tile_ = false;
  int32_t *order_ = nullptr, *inverse_ = nullptr, *offsets_ = nullptr;
  void *tokens_ = nullptr, *results_ = nullptr;
};

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_fused_moe_cuda(const FusedMoeArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  const float limit = args->limit.has ? static_cast<float>(args->limit.value)
                                      : std::numeric_limits<float>::infinity();
  if (!(limit > 0)) return call->fail(call, kAnyopValueError, "limit is not positive");
  if (AnyopDtypeOf(args->x) == kAnyopFloat16)
    return Experts<__half, Operand::kFloat16>(args, call, limit).Run();
  return Experts<__nv_bfloat16, Operand::kBFloat16>(args, call, limit).Run();
}
