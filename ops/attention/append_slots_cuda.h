// SPDX-License-Identifier: Apache-2.0
// Slots of new tokens, as CUDA kernels read them that write rows to a paged cache: which tokens a
// block has, where their rows go.
//
// A block has up to kTokens tokens, whose rows a thread reads before it writes the first: a single
// 16 bytes a thread leave the memory waiting for blocks that begin and end.
#pragma once

#include <algorithm>

#include "anyop/cuda.h"

namespace anyop::cuda {
namespace {

constexpr int kTokens = 4;

// 32 bits divide in a tenth of the time.
__device__ inline int64_t Divide(int64_t a, int64_t b) {
  return (a | b) <= UINT32_MAX ? static_cast<uint32_t>(a) / static_cast<uint32_t>(b) : a / b;
}

// Writes so many words at once, to a multiple of their bytes. The compiler writes them one by one
// where they come from an array of tokens, in twice the time.
template <int kWords>
__device__ void StoreWords(void* to, const uint32_t* words) {
#pragma unroll
  for (int i = 0; i < kWords; i += 4) {
    auto* at = static_cast<uint32_t*>(to) + i;
#if ANYOP_PTX
    if constexpr (kWords == 1) {
      *at = words[i];
    } else if constexpr (kWords == 2) {
      asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(at), "r"(words[i]), "r"(words[i + 1])
                   : "memory");
    } else {
      asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(words[i]),
                   "r"(words[i + 1]), "r"(words[i + 2]), "r"(words[i + 3])
                   : "memory");
    }
#else
    for (int w = 0; w < 4 && w < kWords; ++w) at[w] = words[i + w];
#endif
  }
}

struct Slots {
  const void* data;
  int64_t T, P, places;
  int shift;  // P is 1 << shift; -1: it is no power of two
  int each;   // tokens of a block
  bool is_wide;

  static constexpr int64_t kNone = -1;
  // Of token n of the block; kNone where nothing is to be written.
  __device__ int64_t Of(int64_t n) const {
    if (n >= each || First() + n >= T) return kNone;
    const int64_t t = First() + n;
    const int64_t slot =
        is_wide ? static_cast<const int64_t*>(data)[t] : static_cast<const int32_t*>(data)[t];
    return slot < 0 || slot >= places ? kNone : slot;
  }
  // A token whose rows may be read: n, or the last.
  __device__ int64_t TokenOf(int64_t n) const {
    return std::min(First() + std::min<int64_t>(n, each - 1), T - 1);
  }
  __device__ int64_t First() const { return (blockIdx.x + int64_t{blockIdx.y} * INT32_MAX) * each; }
  // Elements to a slot's row.
  __device__ int64_t RowOf(int64_t slot, int64_t page_step, int64_t place_step) const {
    const int64_t page = shift >= 0 ? slot >> shift : Divide(slot, P);
    return page * page_step + (slot - page * P) * place_step;
  }
};

// ---- host ----

template <typename Args>
Slots SlotsOf(const Args& args) {
  int shift = 0;
  while (shift < 62 && int64_t{1} << shift < args.P) ++shift;
  constexpr int64_t kMany = 4096;  // so that there are blocks for every multiprocessor
  return {args.slots->data,
          args.T,
          args.P,
          args.N * args.P,
          int64_t{1} << shift == args.P ? shift : -1,
          args.T < kMany ? 1 : kTokens,
          args.slots->dtype_bits == 64};
}
// Threads for so many pieces of a token, up to `most`.
inline Launch LaunchOfTokens(const Slots& slots, int64_t pieces, int64_t most) {
  const int64_t blocks = CeilDiv(slots.T, int64_t{slots.each});
  const int64_t columns = std::min<int64_t>(blocks, INT32_MAX);
  const int64_t threads = std::min<int64_t>(CeilDiv(pieces, int64_t{32}) * 32, most);
  return {dim3(static_cast<unsigned>(columns), static_cast<unsigned>(CeilDiv(blocks, columns))),
          dim3(static_cast<unsigned>(threads))};
}

}  // namespace
}  // namespace anyop::cuda
