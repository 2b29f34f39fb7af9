// SPDX-License-Identifier: Apache-2.0
// Writes rows of keys and values to the places of a cache that slots name: a thread has 16 bytes of
// a row, or an element where rows are no multiples of 16 bytes; a block has a token. Each number is
// read and written once.
#include <algorithm>

#include "../quant/quantize_cuda.h"
#include "anyop/cuda.h"
#include "anyop/ops/append_kv.h"

namespace anyop::cuda {
namespace {

constexpr int kAppendThreads = 256;

// Keys, or values.
struct AppendHalf {
  void* cache;
  const void* rows;
  const float* scale;  // nullptr: 1
  int64_t page_step, place_step, cache_head_step, token_step, head_step, scale_step, pieces;
  bool read_aligned, write_aligned;
};
struct AppendView {
  AppendHalf keys, values;
  const void* slots;
  int64_t T, G, P, places;
  bool wide_slots;
  AnyopDtype to;
};

// 32 bits divide in a tenth of the time.
__device__ inline int64_t Divide(int64_t a, int64_t b) {
  return (a | b) <= UINT32_MAX ? static_cast<uint32_t>(a) / static_cast<uint32_t>(b) : a / b;
}
template <typename T>
__device__ T Stored(T, float v) {
  return Narrow<T>(v);
}
__device__ inline uint8_t Stored(uint8_t, float v) { return static_cast<uint8_t>(ToE4M3(v)); }

template <typename To, int kPer>
__device__ void Store(To* to, bool aligned, const Piece<float, kPer>& numbers) {
  Vector<To, kPer> packed;
#pragma unroll
  for (int i = 0; i < kPer; ++i) packed.at[i] = Stored(To(), numbers[i]);
  if (aligned) {
    *reinterpret_cast<Vector<To, kPer>*>(to) = packed;
    return;
  }
#pragma unroll
  for (int i = 0; i < kPer; ++i) to[i] = packed.at[i];
}

// A piece of a token's row, times its scale, which needs no slot.
template <typename From, int kPer>
__device__ Piece<float, kPer> ReadRow(const AppendHalf& half, int64_t t, int64_t g, int64_t piece) {
  const From* from =
      static_cast<const From*>(half.rows) + t * half.token_step + g * half.head_step + piece * kPer;
  auto numbers = ReadPiece<kPer>(from, half.read_aligned);
  if (half.scale) {
    const float factor = Scale::Given(half.scale[g * half.scale_step]).factor;
#pragma unroll
    for (int i = 0; i < kPer; ++i) numbers.at[i] *= factor;
  }
  return numbers;
}

// A block has a token: blockIdx.x + 2^31 * blockIdx.y.
template <typename From, int kPer>
__global__ __launch_bounds__(kAppendThreads) void Append(const __grid_constant__ AppendView p) {
  const int64_t t = blockIdx.x + int64_t{blockIdx.y} * INT32_MAX;
  if (t >= p.T) return;
  const int64_t slot = p.wide_slots ? static_cast<const int64_t*>(p.slots)[t]
                                    : static_cast<const int32_t*>(p.slots)[t];
  const int64_t per_head = p.keys.pieces + p.values.pieces, work = p.G * per_head;
  for (int64_t i = threadIdx.x; i < work; i += blockDim.x) {
    const int64_t g = Divide(i, per_head);
    int64_t piece = i - g * per_head;
    const bool is_key = piece < p.keys.pieces;
    const AppendHalf& half = is_key ? p.keys : p.values;
    if (!is_key) piece -= p.keys.pieces;
    const Piece<float, kPer> numbers = ReadRow<From, kPer>(half, t, g, piece);
    if (slot < 0 || slot >= p.places) return;
    const int64_t page = Divide(slot, p.P);
    const int64_t to = page * half.page_step + (slot - page * p.P) * half.place_step +
                       g * half.cache_head_step + piece * kPer;
    switch (p.to) {
      case kAnyopFloat32:
        Store(static_cast<float*>(half.cache) + to, half.write_aligned, numbers);
        break;
      case kAnyopFloat16:
        Store(static_cast<__half*>(half.cache) + to, half.write_aligned, numbers);
        break;
      case kAnyopBFloat16:
        Store(static_cast<__nv_bfloat16*>(half.cache) + to, half.write_aligned, numbers);
        break;
      default:
        Store(static_cast<uint8_t*>(half.cache) + to, half.write_aligned, numbers);
    }
  }
}

bool AllMultiples(const AnyopTensor& x, int64_t per) {
  bool whole = x.shape[x.ndim - 1] % per == 0;
  for (int d = 0; d + 1 < x.ndim; ++d) whole &= x.strides[d] % per == 0 || x.shape[d] <= 1;
  return whole && IsAligned(static_cast<const char*>(x.data),
                            static_cast<uintptr_t>(per * x.dtype_bits / 8));
}

AppendHalf HalfOf(const AnyopTensor& cache, const AnyopTensor& rows, const AnyopTensor* scale,
                  int64_t per) {
  return {cache.data,
          rows.data,
          scale ? static_cast<const float*>(scale->data) : nullptr,
          cache.strides[0],
          cache.strides[1],
          cache.strides[2],
          rows.strides[0],
          rows.strides[1],
          scale ? scale->strides[0] : 0,
          cache.shape[3] / per,
          AllMultiples(rows, per),
          AllMultiples(cache, per)};
}

template <typename From, int kPer>
int32_t RunPieces(const AppendKvArgs& args, AnyopCall* call) {
  const AppendView view = {HalfOf(*args.k_cache, *args.k, args.k_scale, kPer),
                           HalfOf(*args.v_cache, *args.v, args.v_scale, kPer),
                           args.slots->data,
                           args.T,
                           args.G,
                           args.P,
                           args.N * args.P,
                           args.slots->dtype_bits == 64,
                           AnyopDtypeOf(args.k_cache)};
  const int64_t work = args.G * (view.keys.pieces + view.values.pieces);
  if (args.T == 0 || work == 0 || view.places == 0) return kAnyopOk;
  const int64_t columns = std::min<int64_t>(args.T, INT32_MAX);
  const int64_t threads = std::min<int64_t>(CeilDiv(work, int64_t{32}) * 32, kAppendThreads);
  const Launch launch = {
      dim3(static_cast<unsigned>(columns), static_cast<unsigned>(CeilDiv(args.T, columns))),
      dim3(static_cast<unsigned>(threads))};
  return launch.Run(call, Append<From, kPer>, view);
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_append_kv_cuda(const AppendKvArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  return WithFloat32Sums(AnyopDtypeOf(args->k), [&](auto zero) {
    using T = decltype(zero);
    constexpr int kPer = kPerVector<T>;
    const bool vectors = args->D % kPer == 0 && args->E % kPer == 0;
    return vectors ? RunPieces<T, kPer>(*args, call) : RunPieces<T, 1>(*args, call);
  });
}
