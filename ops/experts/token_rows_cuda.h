// SPDX-License-Identifier: Apache-2.0
// Moves rows between the order of tokens and that of experts on CUDA, for moe_permute,
// moe_unpermute and fused_moe.
//
// A warp takes a row, or for sums of wide rows 32 units of one; a unit is 16 bytes where rows
// allow. A sum adds the rows of its token in the order of its slots: no atomics.
#pragma once

#include "anyop/cuda.h"

namespace anyop::cuda {
namespace {

// Where the parts of a call's workspace lie; each begins at a multiple of 256 bytes.
struct WorkspacePlan {
  int64_t bytes = 0;

  int64_t Place(int64_t wanted) {
    const int64_t at = bytes;
    bytes += (wanted + 255) / 256 * 256;
    return at;
  }
  // NULL with the error noted.
  char* Take(AnyopCall* call) const {
    auto* memory = static_cast<char*>(call->workspace(call, bytes));
    if (!memory) call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
    return memory;
  }
};

inline unsigned GridFor(int64_t items, int64_t of_block) {
  const int64_t blocks = CeilDiv(items, of_block);
  return static_cast<unsigned>(blocks < 0x7fffffff ? blocks : 0x7fffffff);
}

template <typename Unit>
__global__ void __launch_bounds__(256)
    GatherRows(const Unit* x, const int32_t* order, int64_t rows, int64_t slots, int top_k,
               int64_t units, Unit* out) {
  WaitForWork();
  LetNextStart();
  constexpr int kAhead = 8;  // units that are on their way at once
  const int lane = threadIdx.x % 32;
  const int64_t step = int64_t{gridDim.x} * 8;
  for (int64_t row = int64_t{blockIdx.x} * 8 + threadIdx.x / 32; row < rows; row += step) {
    const int slot = order[row];
    const bool inside = slot >= 0 && slot < slots;
    const Unit* from = x + (inside ? int64_t{slot / top_k} * units : 0);
    for (int64_t first = lane; first < units; first += 32 * kAhead) {
      Unit some[kAhead] = {};
#pragma unroll
      for (int k = 0; k < kAhead; ++k)
        if (inside && first + 32 * k < units) some[k] = from[first + 32 * k];
#pragma unroll
      for (int k = 0; k < kAhead; ++k)
        if (first + 32 * k < units) out[row * units + first + 32 * k] = some[k];
    }
  }
}

template <typename Unit>
int32_t GatherUnits(AnyopCall* call, const void* x, const int32_t* order, int64_t rows,
                    int64_t slots, int top_k, int64_t row_bytes, void* out) {
  const Launch launch{dim3(GridFor(rows, 8)), dim3(256), 0, true};
  return launch.Run(call, GatherRows<Unit>, static_cast<const Unit*>(x), order, rows, slots, top_k,
                    row_bytes / int64_t{sizeof(Unit)}, static_cast<Unit*>(out));
}

// out[i] = x[order[i] / top_k]; 0 where order[i] is outside of [0, slots).
inline int32_t GatherTokens(AnyopCall* call, const void* x, const int32_t* order, int64_t rows,
                            int64_t slots, int top_k, int64_t row_bytes, void* out) {
  if (rows == 0 || row_bytes == 0) return kAnyopOk;
  const auto fits = [&](uintptr_t bytes) {
    return row_bytes % static_cast<int64_t>(bytes) == 0 && IsAligned(x, bytes) &&
           IsAligned(out, bytes);
  };
  if (fits(16)) return GatherUnits<uint4>(call, x, order, rows, slots, top_k, row_bytes, out);
  if (fits(4)) return GatherUnits<uint32_t>(call, x, order, rows, slots, top_k, row_bytes, out);
  if (fits(2)) return GatherUnits<uint16_t>(call, x, order, rows, slots, top_k, row_bytes, out);
  return GatherUnits<uint8_t>(call, x, order, rows, slots, top_k, row_bytes, out);
}

// inverse[order[i]] = i; no slot comes twice.
__global__ void __launch_bounds__(256)
    Invert(const int32_t* order, int64_t rows, int64_t slots, int32_t* inverse) {
  WaitForWork();
  LetNextStart();
  const int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (i >= rows) return;
  const int slot = order[i];
  if (slot >= 0 && slot < slots) inverse[slot] = static_cast<int32_t>(i);
}

struct TokenSums {
  const void* rows;  // (N, H)
  const int32_t* inverse;
  const float* weights;  // (T, K) or NULL: 1
  void* out;             // (T, H)
  int64_t N, T, K, H;
};

template <typename From, typename To, int kPer>
__global__ void __launch_bounds__(256) SumRowsOfTokens(const __grid_constant__ TokenSums p) {
  WaitForWork();
  LetNextStart();
  constexpr int kAhead = 16 / int{sizeof(From)};  // rows that are on their way at once
  using W = Wide<From>;
  using Bits = std::conditional_t<kPer == 1, From, uint4>;
  const int64_t units = p.H / kPer, step = int64_t{gridDim.x} * 256;
  for (int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x; i < p.T * units; i += step) {
    const int64_t t = i / units, at = i % units;
    Piece<W, kPer> sum = {};
    for (int64_t first = 0; first < p.K; first += kAhead) {
      int64_t row[kAhead];
      Bits bits[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        row[k] = first + k < p.K ? p.inverse[t * p.K + first + k] : -1;
        if (row[k] >= p.N) row[k] = -1;
      }
#pragma unroll
      for (int k = 0; k < kAhead; ++k)
        if (row[k] >= 0)
          bits[k] = *reinterpret_cast<const Bits*>(static_cast<const From*>(p.rows) + row[k] * p.H +
                                                   at * kPer);
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        if (row[k] < 0) continue;
        const W weight = p.weights ? p.weights[t * p.K + first + k] : 1;
        const auto piece = ReadPiece<kPer>(reinterpret_cast<const From*>(bits + k), true);
#pragma unroll
        for (int j = 0; j < kPer; ++j) sum.at[j] = MulAdd(weight, piece[j], sum.at[j]);
      }
    }
    Vector<To, kPer> result;
#pragma unroll
    for (int j = 0; j < kPer; ++j) result.at[j] = Narrow<To>(sum.at[j]);
    *reinterpret_cast<Vector<To, kPer>*>(static_cast<To*>(p.out) + t * p.H + at * kPer) = result;
  }
}

template <typename From, typename To>
int32_t SumTokens(AnyopCall* call, const TokenSums& p) {
  if (p.T == 0 || p.H == 0) return kAnyopOk;
  constexpr int kPer = kPerVector<From>;
  if (p.H % kPer == 0 && IsAligned(p.rows, 16) && IsAligned(p.out, 16)) {
    const Launch launch{dim3(GridFor(p.T * (p.H / kPer), 256)), dim3(256), 0, true};
    return launch.Run(call, SumRowsOfTokens<From, To, kPer>, p);
  }
  const Launch launch{dim3(GridFor(p.T * p.H, 256)), dim3(256), 0, true};
  return launch.Run(call, SumRowsOfTokens<From, To, 1>, p);
}

}  // namespace
}  // namespace anyop::cuda
