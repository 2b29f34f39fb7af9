/* SPDX-License-Identifier: Apache-2.0 */
/* For CUDA kernels that sort: the items of each row by their digits, equal ones in their order. */
#ifndef ANYOP_CUDA_SORT_H_
#define ANYOP_CUDA_SORT_H_

#include "anyop/cuda.h"

// An item is an integer of the element's bits, Raw, and where in its row it comes from. Place says
// where it belongs, the smaller the earlier:
//
//   struct Rising {
//     __device__ uint32_t operator()(uint32_t raw) const { return raw; }
//   };
//   return RunRowSort(call, RowSort<uint32_t, Rising>{x, rows, D, k, values, indices, Rising(),
//   4});
//
// A radix sort from the lowest digit of 8 bits up; the same bits each time. Rows of up to 16,384
// items (8,192 of 8 bytes) lie in the shared memory of a block, and are read once. Longer ones are
// cut into tiles: for each digit the tiles count theirs, the counts are added up, and the tiles
// move their items, which they bring into order first so that neighbours are written together.
namespace anyop::cuda {

template <typename Raw, typename Place>
struct RowSort {
  const Raw* x;  // (rows, D)
  int64_t rows, D;
  int64_t k;         // of each row, that are written: at most D
  Raw* values;       // (rows, k)
  int64_t* indices;  // (rows, k)
  Place place;
  int digits;  // of 8 bits, that places have
};

constexpr int kDigitBits = 8, kDigits = 1 << kDigitBits;
constexpr int kSortItems = 16;  // of a thread, at most
template <typename Raw>
constexpr int kSortThreads = sizeof(Raw) > 4 ? 512 : 1024;  // items of 8 bytes take more registers

template <typename Place, typename Raw>
__device__ unsigned DigitOf(const Place& place, Raw raw, int digit) {
  return static_cast<unsigned>(place(raw) >> (digit * kDigitBits)) & (kDigits - 1);
}

// ---- the items of a block ----

// Each warp holds a run of items, a lane each 32nd of it.
__device__ inline int ItemAt(int items, int i) {
  return (static_cast<int>(threadIdx.x) / 32 * items + i) * 32 + static_cast<int>(threadIdx.x) % 32;
}

__device__ inline unsigned LanesWith(unsigned digit) {
  unsigned same = ~0u;
#pragma unroll
  for (int bit = 0; bit < kDigitBits; ++bit) {
    const bool set = digit >> bit & 1;
    const unsigned votes = __ballot_sync(~0u, set);
    same &= set ? votes : ~votes;
  }
  return same;
}
__device__ inline unsigned LanesBefore() { return (1u << threadIdx.x % 32) - 1; }

// Counts become the sums of those before them. By the first warp, between barriers of the block.
__device__ inline void ScanDigits(unsigned* counts) {
  constexpr int kOfLane = kDigits / 32;
  if (threadIdx.x >= 32) return;
  unsigned own[kOfLane], sum = 0;
#pragma unroll
  for (int j = 0; j < kOfLane; ++j) sum += own[j] = counts[threadIdx.x * kOfLane + j];
  unsigned before = sum;
  for (unsigned step = 1; step < 32; step *= 2) {
    const unsigned other = __shfl_up_sync(~0u, before, step);
    if (threadIdx.x >= step) before += other;
  }
  before -= sum;
#pragma unroll
  for (int j = 0; j < kOfLane; ++j) {
    counts[threadIdx.x * kOfLane + j] = before;
    before += own[j];
  }
}

// ranks[i]: where item i of this thread comes by its digit. counts: kDigits for each warp; starts:
// kDigits, where those with a digit begin. What is behind the last item has the last digit.
template <typename Digit>
__device__ void RankItems(int items, unsigned* counts, unsigned* starts, const Digit& digit_of,
                          unsigned (&ranks)[kSortItems]) {
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  unsigned* mine = counts + threadIdx.x / 32 * kDigits;
  for (int d = lane; d < kDigits; d += 32) mine[d] = 0;
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kSortItems; ++i) {
    if (i >= items) break;
    const unsigned digit = digit_of(i), same = LanesWith(digit), before = mine[digit];
    __syncwarp();
    if (same >> lane == 1) mine[digit] = before + __popc(same);  // the last of them
    __syncwarp();
    ranks[i] = before + __popc(same & LanesBefore());
  }
  __syncthreads();
  for (int d = threadIdx.x; d < kDigits; d += blockDim.x) {
    unsigned sum = 0;
    for (int w = 0; w < warps; ++w) {
      const unsigned count = counts[w * kDigits + d];
      counts[w * kDigits + d] = sum;
      sum += count;
    }
    starts[d] = sum;
  }
  __syncthreads();
  ScanDigits(starts);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kSortItems; ++i) {
    if (i >= items) break;
    const unsigned digit = digit_of(i);
    ranks[i] += mine[digit] + starts[digit];
  }
}

// A row in shared memory.
template <typename Raw>
struct BlockItems {
  Raw* raws;
  unsigned *counts, *starts;
  uint16_t* indices;

  __device__ BlockItems(void* memory, int warps, int n)
      : raws(static_cast<Raw*>(memory)),
        counts(reinterpret_cast<unsigned*>(raws + (n + 1) / 2 * 2)),
        starts(counts + warps * kDigits),
        indices(reinterpret_cast<uint16_t*>(starts + kDigits)) {}
  static int64_t Bytes(int warps, int64_t n) {
    return (n + 1) / 2 * 2 * int64_t{sizeof(Raw)} + (warps + 1) * kDigits * 4 + n * 2;
  }

  template <typename Place>
  __device__ void Sort(int n, const Place& place, int digits) const {
    const int items = (n + static_cast<int>(blockDim.x) - 1) / static_cast<int>(blockDim.x);
    for (int d = 0; d < digits; ++d) {
      Raw held[kSortItems];
      unsigned ranks[kSortItems];
#pragma unroll
      for (int i = 0; i < kSortItems; ++i)
        if (i < items && ItemAt(items, i) < n) held[i] = raws[ItemAt(items, i)];
      const auto digit_of = [&](int i) {
        return ItemAt(items, i) < n ? DigitOf(place, held[i], d) : kDigits - 1u;
      };
      RankItems(items, counts, starts, digit_of, ranks);  // its barriers come before the writes
      Move(raws, held, items, n, ranks);
      uint16_t from[kSortItems];
#pragma unroll
      for (int i = 0; i < kSortItems; ++i)
        if (i < items && ItemAt(items, i) < n) from[i] = indices[ItemAt(items, i)];
      __syncthreads();
      Move(indices, from, items, n, ranks);
      __syncthreads();
    }
  }

 private:
  template <typename V>
  __device__ static void Move(V* to, const V (&held)[kSortItems], int items, int n,
                              const unsigned (&ranks)[kSortItems]) {
#pragma unroll
    for (int i = 0; i < kSortItems; ++i)
      if (i < items && ItemAt(items, i) < n) to[ranks[i]] = held[i];
  }
};

// A block for rows of n items.
template <typename Raw>
struct BlockPlan {
  int64_t most;  // items of a row that a block of the device takes
  int threads;
  size_t bytes;

  // kept: of the n, in shared memory. Few rows: more threads, of fewer items each.
  BlockPlan(const Limits& limits, int64_t rows, int64_t n, int64_t kept)
      : most(kSortItems * kSortThreads<Raw>) {
    while (BlockItems<Raw>::Bytes(static_cast<int>(most / kSortItems / 32), most) >
           limits.shared_bytes_of_block)
      most /= 2;
    const int64_t largest = most / kSortItems;
    const int64_t wanted = CeilDiv(CeilDiv(n, rows < limits.multiprocessors ? 4 : kSortItems), 32);
    threads = static_cast<int>(wanted * 32 < largest ? wanted * 32 : largest);
    bytes = static_cast<size_t>(BlockItems<Raw>::Bytes(threads / 32, kept));
  }
  template <typename Params>
  int32_t Run(AnyopCall* call, int64_t blocks, void (*kernel)(Params), const Params& p) const {
    if (bytes > 48 << 10) {
      const auto error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              static_cast<int>(bytes));
      if (int32_t status = Check(call, error, "asking for shared memory")) return status;
    }
    const Launch launch{dim3(static_cast<unsigned>(blocks < 0x7fffffff ? blocks : 0x7fffffff)),
                        dim3(static_cast<unsigned>(threads)), bytes};
    return launch.Run(call, kernel, p);
  }
};

template <typename Raw, typename Place>
__global__ void __launch_bounds__(kSortThreads<Raw>)
    SortInBlock(const __grid_constant__ RowSort<Raw, Place> p) {
  const int n = static_cast<int>(p.D);
  const BlockItems<Raw> row(DynamicShared(), blockDim.x / 32, n);
  for (int64_t r = blockIdx.x; r < p.rows; r += gridDim.x) {
    for (int at = threadIdx.x; at < n; at += blockDim.x) {
      row.raws[at] = p.x[r * n + at];
      row.indices[at] = static_cast<uint16_t>(at);
    }
    __syncthreads();
    row.Sort(n, p.place, p.digits);
    for (int at = threadIdx.x; at < p.k; at += blockDim.x) {
      p.values[r * p.k + at] = row.raws[at];
      p.indices[r * p.k + at] = row.indices[at];
    }
    __syncthreads();
  }
}

// ---- rows of many blocks ----

constexpr int kTileThreads = kDigits, kTile = kTileThreads * kSortItems;

// One digit. from_indices is NULL for the first, indices for all but the last.
template <typename Raw, typename Place>
struct DigitPass {
  const Raw* from;
  const uint32_t* from_indices;
  Raw* to;
  uint32_t* to_indices;
  int64_t* indices;
  int64_t D, k, tiles;  // of a row; k: where rows of `to` begin, and what is written of them
  unsigned* counts;     // (row, digit, tile), which become their sums
  unsigned* totals;     // (row, digit)
  Place place;
  int digit;
};

template <typename Raw, typename Place>
__global__ void __launch_bounds__(kTileThreads)
    CountTiles(const __grid_constant__ DigitPass<Raw, Place> p) {
  __shared__ unsigned counts[kDigits];
  const int64_t row = blockIdx.x / p.tiles, tile = blockIdx.x % p.tiles;
  counts[threadIdx.x] = 0;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kSortItems; ++i) {
    const int64_t at = tile * kTile + i * kTileThreads + threadIdx.x;
    const bool inside = at < p.D;
    const unsigned digit = inside ? DigitOf(p.place, p.from[row * p.D + at], p.digit) : kDigits - 1;
    const unsigned same = LanesWith(digit) & __ballot_sync(~0u, inside);
    if (inside && (same & LanesBefore()) == 0) atomicAdd(&counts[digit], unsigned(__popc(same)));
  }
  __syncthreads();
  p.counts[(row * kDigits + threadIdx.x) * p.tiles + tile] = counts[threadIdx.x];
}

// A warp adds up the counts of one digit of one row.
template <typename Raw, typename Place>
__global__ void __launch_bounds__(kTileThreads)
    AddCounts(const __grid_constant__ DigitPass<Raw, Place> p) {
  constexpr int kBatch = 8;  // loads on their way
  const unsigned lane = threadIdx.x % 32;
  const int64_t which = int64_t{blockIdx.x} * (kTileThreads / 32) + threadIdx.x / 32;
  unsigned* counts = p.counts + which * p.tiles;
  unsigned before = 0;
  for (int64_t first = 0; first < p.tiles; first += kBatch * 32) {
    unsigned own[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int64_t at = first + j * 32 + lane;
      own[j] = at < p.tiles ? counts[at] : 0;
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      unsigned sum = own[j];
      for (unsigned step = 1; step < 32; step *= 2) {
        const unsigned other = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += other;
      }
      const int64_t at = first + j * 32 + lane;
      if (at < p.tiles) counts[at] = before + sum - own[j];
      before += __shfl_sync(~0u, sum, 31);
    }
  }
  if (lane == 0) p.totals[which] = before;
}

template <typename Raw, typename Place>
__global__ void __launch_bounds__(kTileThreads)
    MoveTiles(const __grid_constant__ DigitPass<Raw, Place> p) {
  constexpr int kBytes = sizeof(Raw) > 4 ? sizeof(Raw) : 4;
  __shared__ __align__(16) char memory[kTile * kBytes];  // items, then where they come from
  __shared__ unsigned counts[kTileThreads / 32 * kDigits], starts[kDigits], bases[kDigits];
  auto* raws = reinterpret_cast<Raw*>(memory);
  auto* sources = reinterpret_cast<uint32_t*>(memory);
  const int64_t row = blockIdx.x / p.tiles, tile = blockIdx.x % p.tiles, first = tile * kTile;
  const int n = static_cast<int>(p.D - first < kTile ? p.D - first : kTile);
  const Raw* from = p.from + row * p.D + first;
  Raw held[kSortItems];
  unsigned ranks[kSortItems], to[kSortItems];
#pragma unroll
  for (int i = 0; i < kSortItems; ++i)
    if (ItemAt(kSortItems, i) < n) held[i] = from[ItemAt(kSortItems, i)];
  bases[threadIdx.x] = p.totals[row * kDigits + threadIdx.x];
  __syncthreads();
  ScanDigits(bases);
  RankItems(
      kSortItems, counts, starts,
      [&](int i) {
        return ItemAt(kSortItems, i) < n ? DigitOf(p.place, held[i], p.digit) : kDigits - 1u;
      },
      ranks);
  bases[threadIdx.x] += p.counts[(row * kDigits + threadIdx.x) * p.tiles + tile];
#pragma unroll
  for (int i = 0; i < kSortItems; ++i)
    if (ItemAt(kSortItems, i) < n) raws[ranks[i]] = held[i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kSortItems; ++i) {
    const int at = i * kTileThreads + static_cast<int>(threadIdx.x);
    if (at >= n) break;
    const Raw raw = raws[at];
    const unsigned digit = DigitOf(p.place, raw, p.digit);
    to[i] = bases[digit] + static_cast<unsigned>(at) - starts[digit];
    if (to[i] < p.k) p.to[row * p.k + to[i]] = raw;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kSortItems; ++i) {
    const int at = ItemAt(kSortItems, i);
    if (at >= n) break;
    sources[ranks[i]] =
        p.from_indices ? p.from_indices[row * p.D + first + at] : static_cast<uint32_t>(first + at);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kSortItems; ++i) {
    const int at = i * kTileThreads + static_cast<int>(threadIdx.x);
    if (at >= n || to[i] >= p.k) continue;
    if (p.indices) {
      p.indices[row * p.k + to[i]] = sources[at];
    } else {
      p.to_indices[row * p.k + to[i]] = sources[at];
    }
  }
}

// ---- launches ----

template <typename Raw, typename Place>
int32_t RunTileSort(AnyopCall* call, const RowSort<Raw, Place>& p) {
  const int64_t tiles = CeilDiv(p.D, kTile), blocks = p.rows * tiles, count = p.rows * p.D;
  if (p.D > 0xffffffff || blocks > 0x7fffffff || p.rows >= (1 << 26))
    return call->fail(call, kAnyopDeclined, "rows are longer than 2^32, or too many");
  const int64_t lists = p.digits < 3 ? p.digits - 1 : 2;
  const int64_t list_bytes = CeilDiv(count * int64_t{sizeof(Raw)}, 16) * 16 + count * 4;
  const int64_t aligned_bytes = CeilDiv(list_bytes, 16) * 16;
  auto* memory = static_cast<char*>(call->workspace(
      call, lists * aligned_bytes + p.rows * kDigits * (tiles + 1) * int64_t{sizeof(unsigned)}));
  if (!memory) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  DigitPass<Raw, Place> pass = {p.x, nullptr, nullptr, nullptr, nullptr, p.D,
                                p.D, tiles,   nullptr, nullptr, p.place, 0};
  pass.counts = reinterpret_cast<unsigned*>(memory + lists * aligned_bytes);
  pass.totals = pass.counts + p.rows * kDigits * tiles;
  const Launch tile_launch{dim3(static_cast<unsigned>(blocks)), dim3(kTileThreads)};
  const Launch add_launch{dim3(static_cast<unsigned>(p.rows * kDigits / (kTileThreads / 32))),
                          dim3(kTileThreads)};
  for (; pass.digit < p.digits; ++pass.digit) {
    pass.to = reinterpret_cast<Raw*>(memory + pass.digit % 2 * aligned_bytes);
    pass.to_indices = reinterpret_cast<uint32_t*>(reinterpret_cast<char*>(pass.to) +
                                                  CeilDiv(count * int64_t{sizeof(Raw)}, 16) * 16);
    if (pass.digit + 1 == p.digits) {
      pass.to = p.values;
      pass.indices = p.indices;
      pass.k = p.k;
    }
    if (int32_t status = tile_launch.Run(call, CountTiles<Raw, Place>, pass)) return status;
    if (int32_t status = add_launch.Run(call, AddCounts<Raw, Place>, pass)) return status;
    if (int32_t status = tile_launch.Run(call, MoveTiles<Raw, Place>, pass)) return status;
    pass.from = pass.to;
    pass.from_indices = pass.to_indices;
  }
  return kAnyopOk;
}

// values and indices: the first k items of each row, in order.
template <typename Raw, typename Place>
int32_t RunRowSort(AnyopCall* call, const RowSort<Raw, Place>& p) {
  if (p.rows == 0 || p.D == 0 || p.k == 0) return kAnyopOk;
  Limits limits;
  if (int32_t status = ReadLimits(call, &limits)) return status;
  const BlockPlan<Raw> plan(limits, p.rows, p.D, p.D);
  if (p.D > plan.most) return RunTileSort(call, p);
  return plan.Run(call, p.rows, SortInBlock<Raw, Place>, p);
}

}  // namespace anyop::cuda

#endif  // ANYOP_CUDA_SORT_H_
