// SPDX-License-Identifier: Apache-2.0
// A decoder's layer in one launch, for up to 8 sequences: a block a multiprocessor, which meet four
// times. Norms are computed by every block for itself; products: decoder_products.h; attention:
// decoder_attention.h. What a phase leaves for the next one lies in the second cache. Bytes moved:
// the weights, and the keys and values of each sequence, once.
// No __shared__ variables: where blocks are fibers, they may then run side by side.
#define ANYOP_BLOCKS_MEET 1
#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "anyop/cuda/parts.h"
#include "anyop/ops/decoder_layer.h"
#include "decoder_attention.h"
#include "decoder_products.h"

namespace anyop::cuda {
namespace {

// All blocks run at once (Launch::cooperative), and every one comes to each WaitForGrid.
template <typename T, int C>
__global__ __launch_bounds__(kLayerThreads,
                             1) void RunLayer(const __grid_constant__ LayerView<T> p) {
  WeightStream<T> stream(p);
  if (blockIdx.x == 0)
    for (int i = threadIdx.x; i < p.B * p.G; i += kLayerThreads) p.counters[i] = 0;
  FetchKeys<C>(p);
  Normalize<T>(p, p.attention_norm, nullptr, nullptr);
  Multiply<1>(p, kHeads, stream, SharedRows<T>(), p.D + kRowPad,
              [&](int b, int row, const float (&sum)[1]) {
                p.heads[int64_t{b} * p.weights[kHeads].rows + row] =
                    sum[0] + (p.bias ? Widen(p.bias[row]) : 0);
              });
  WaitForGrid();
  AttendToPages<C>(p);
  WaitForGrid();
  const BroughtRows<T> attended(p, p.attended, p.weights[kOut].columns);
  Multiply<1>(
      p, kOut, stream, attended.data, attended.apart,
      [&](int b, int row, const float (&sum)[1]) { p.added[int64_t{b} * p.D + row] = sum[0]; });
  WaitForGrid();
  Normalize<T>(p, p.ffn_norm, p.added, p.x_out);
  Multiply<2>(p, kGate, stream, SharedRows<T>(), p.D + kRowPad,
              [&](int b, int row, const float (&sum)[2]) {
                const float gate = sum[0] / (1 + __expf(-sum[0]));
                p.gated[int64_t{b} * p.F + row] = Narrow<T>(gate * sum[1]);
              });
  WaitForGrid();
  const BroughtRows<T> gated(p, p.gated, p.F);
  Multiply<1>(p, kDown, stream, gated.data, gated.apart,
              [&](int b, int row, const float (&sum)[1]) {
                p.delta_out[int64_t{b} * p.D + row] = Narrow<T>(sum[0]);
              });
}

// ---- host ----

template <typename T>
const T* DataOf(const AnyopTensor* x) {
  return x ? static_cast<const T*>(x->data) : nullptr;
}
template <typename T>
Cache<T> CacheOf(const AnyopTensor& x) {
  return {static_cast<T*>(x.data), x.strides[0], x.strides[1], x.strides[2]};
}
// nullptr is.
bool AreAligned(std::initializer_list<const AnyopTensor*> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const AnyopTensor* x) {
    return !x || IsAligned(static_cast<const char*>(x->data), 16);
  });
}
bool HasAlignedHeads(const AnyopTensor& x) {
  bool whole = AreAligned({&x});
  for (int d = 0; d < 3; ++d) whole &= x.strides[d] % 8 == 0 || x.shape[d] <= 1;
  return whole;
}

// nullptr where the kernel takes the call; else what it takes.
const char* WhatIsMissing(const DecoderLayerArgs& a) {
  if (a.heads > kMostTokens * a.G) return "takes up to 8 heads of queries for each of keys";
  constexpr int64_t kMost = 1 << 30;
  if (std::max({(a.heads + 2 * a.G) * a.C, a.D, 2 * a.F, a.M * a.P, a.N, a.L}) > kMost)
    return "takes sizes up to 2^30";
  return nullptr;
}

// Everything but the workspace.
template <typename T>
LayerView<T> ViewOf(const DecoderLayerArgs& a) {
  LayerView<T> p = {};
  const auto size = [](int64_t n) { return static_cast<int>(n); };
  p.B = size(a.B), p.D = size(a.D), p.F = size(a.F), p.H = size(a.heads), p.G = size(a.G);
  p.N = size(a.N), p.P = size(a.P), p.M = size(a.M), p.L = size(a.L), p.group = p.H / p.G;
  p.weights[kHeads] = {DataOf<T>(a.qkv), size((a.heads + 2 * a.G) * a.C), p.D, 1};
  p.weights[kOut] = {DataOf<T>(a.out_weight), p.D, size(a.heads * a.C), 1};
  p.weights[kGate] = {DataOf<T>(a.gate_up), p.F, p.D, 2};
  p.weights[kDown] = {DataOf<T>(a.down), p.D, p.F, 1};
  p.keys = CacheOf<T>(*a.k_cache), p.values = CacheOf<T>(*a.v_cache);
  p.x = DataOf<T>(a.x), p.delta = DataOf<T>(a.delta);
  p.attention_norm = DataOf<T>(a.attention_norm), p.ffn_norm = DataOf<T>(a.ffn_norm);
  p.q_norm = DataOf<T>(a.q_norm), p.k_norm = DataOf<T>(a.k_norm), p.bias = DataOf<T>(a.qkv_bias);
  p.cos = a.cos->data, p.sin = a.sin->data;
  p.is_wide_table = AnyopDtypeOf(a.cos) == kAnyopFloat32;
  p.table = DataOf<int32_t>(a.page_table), p.lengths = DataOf<int32_t>(a.seqlens_k);
  p.x_out = static_cast<T*>(a.x_out->data), p.delta_out = static_cast<T*>(a.delta_out->data);
  p.aligned_weights = AreAligned({a.qkv, a.out_weight, a.gate_up, a.down});
  p.aligned_rows = AreAligned({a.x, a.delta, a.attention_norm, a.ffn_norm, a.x_out});
  p.aligned_heads = HasAlignedHeads(*a.k_cache) && HasAlignedHeads(*a.v_cache);
  p.eps = EpsilonOf<T>(a.eps);
  const double scale = a.scale.has ? a.scale.value : 1 / std::sqrt(static_cast<double>(a.C));
  p.scale = static_cast<float>(scale * 1.44269504088896340736);
  return p;
}

template <typename T>
bool TakeWorkspace(AnyopCall* call, const DecoderLayerArgs& a, LayerView<T>* p) {
  const auto take = [&](auto** to, int64_t count) {
    using Element = std::remove_reference_t<decltype(**to)>;
    *to = static_cast<Element*>(call->workspace(call, count * int64_t{sizeof(Element)} + 16));
    return *to != nullptr;
  };
  const int64_t items = a.B * a.G * p->most_parts;
  return take(&p->heads, a.B * (a.heads + 2 * a.G) * a.C) && take(&p->added, a.B * a.D) &&
         take(&p->parts, items * p->group * a.C) && take(&p->ends, items * kMostTokens * 2) &&
         take(&p->attended, a.B * a.heads * a.C) && take(&p->gated, a.B * a.F) &&
         take(&p->counters, a.B * a.G);
}

template <typename T, int C>
int32_t Run(const DecoderLayerArgs& args, AnyopCall* call) {
  if (const char* text = WhatIsMissing(args)) return call->fail(call, kAnyopDeclined, text);
  Limits limits;
  if (const int32_t status = ReadLimits(call, &limits)) return status;
  LayerView<T> p = ViewOf<T>(args);
  // As many parts of keys as there are blocks for.
  p.most_parts = std::max(1, limits.multiprocessors / (p.B * p.G));
  // What norms and attention must have; what products read as far as it fits.
  const int64_t attention =
      CeilDiv(AttentionRoom<T, C>::Bytes(p.group), 16) * 16 - int64_t{kFixedBytes - kRingBytes};
  const int64_t least = std::max(p.B * (args.D + kRowPad) * 2, attention);
  const int64_t wanted = p.B * (std::max(args.F, args.heads * C) + kRowPad) * 2;
  const int64_t there = limits.shared_bytes_of_block - int64_t{kFixedBytes};
  if (least > there)
    return call->fail(call, kAnyopDeclined, "takes what fits into a block's shared memory");
  const int64_t room = std::min(std::max(least, wanted), there) / 16 * 16;
  p.room = static_cast<int>(room / 2);
  if (!TakeWorkspace(call, args, &p))
    return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  constexpr auto kernel = RunLayer<T, C>;
  if (const int32_t status = AllowShared<kernel>(call, limits.shared_bytes_of_block)) return status;
  Launch launch = {dim3(static_cast<unsigned>(limits.multiprocessors)), dim3(kLayerThreads),
                   static_cast<size_t>(kFixedBytes + room)};
  launch.cooperative = true;
  const cudaError_t started = launch.Start(call, kernel, p);
  if (started == cudaErrorCooperativeLaunchTooLarge || started == cudaErrorNotSupported) {
    cudaGetLastError();
    return call->fail(call, kAnyopDeclined, "takes a device that it has for itself");
  }
  return Check(call, started, "starting its kernel");
}

template <typename T>
int32_t RunHeads(const DecoderLayerArgs& args, AnyopCall* call) {
  return args.C == 64 ? Run<T, 64>(args, call) : Run<T, 128>(args, call);
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_decoder_layer_cuda(const DecoderLayerArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  if (args->B == 0) return kAnyopOk;
  return AnyopDtypeOf(args->x) == kAnyopFloat16 ? RunHeads<__half>(*args, call)
                                                : RunHeads<__nv_bfloat16>(*args, call);
}
