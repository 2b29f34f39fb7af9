/* SPDX-License-Identifier: Apache-2.0 */
/* anyop/cuda/hopper.h for fibers on a CPU: what attention's kernels and products' use. */
// Boxes come late and in any order, but products are done where they are started, so that a missing
// wait for them is not found; fences and registers do nothing. What ends the process: a barrier
// that too many arrive at, a tile that does not begin at 1,024 bytes, waiting without end, what
// blocks of a cluster say to each other.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>

#include "anyop/cuda/mma.h"

using std::max;
using std::min;
struct int2 {
  int x, y;
};
struct int4 {
  int x, y, z, w;
};
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
enum CUtensorMapDataType {
  CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
  CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
  CU_TENSOR_MAP_DATA_TYPE_UINT8
};
inline int __all_sync(unsigned mask, int yes) { return __ballot_sync(mask, yes) == ~0u; }
inline unsigned __reduce_add_sync(unsigned mask, unsigned v) {
  for (int by = 16; by > 0; by /= 2) v += __shfl_xor_sync(mask, v, by);
  return v;
}

#pragma GCC visibility push(hidden)  // one of each in a library, not in the process
namespace anyop::cuda {

inline void Expect(bool is_right, const char* what) {
  if (is_right) return;
  std::fprintf(stderr, "cuda_on_cpu: %s\n", what);
  std::abort();
}

struct MatrixOfMap {
  const void* data;
  int64_t rows, columns, row_bytes;
  CUtensorMapDataType type;
  int element_bytes, box_rows;
  int dimensions = 2;
  int64_t count = 1, count_bytes = 16, groups = 1, group_bytes = 16;
  int box_count = 1;
};

// ---- threads, shared memory ----

template <int kRegisters>
void GiveRegisters() {}
template <int kRegisters>
void TakeRegisters() {}
inline void FenceForTma() {}

inline uint8_t* SharedTiles() { return reinterpret_cast<uint8_t*>(DynamicShared()); }
// Of dynamic memory its bytes, of variables what they are away from one, from 2^31 on.
inline char origin;
inline uint32_t SharedAddress(const void* p) {
  const auto at = reinterpret_cast<intptr_t>(p);
  const intptr_t in_tiles = at - reinterpret_cast<intptr_t>(DynamicShared());
  if (in_tiles >= 0 && in_tiles < 256 << 10) return static_cast<uint32_t>(in_tiles);
  return static_cast<uint32_t>(at - reinterpret_cast<intptr_t>(&origin)) + 0x80000000u;
}

// What a block has besides: meetings, and boxes that have not come, or not gone.
struct BlockState {
  uint64_t block = 0;
  struct {
    int here;
    uint64_t ended;
  } meetings[16] = {};
  std::deque<std::function<void()>> boxes, stores;
};
inline BlockState& StateOfBlock() {
  static BlockState state;
  if (state.block != cuda_on_cpu::BlocksBegun()) {
    Expect(state.boxes.empty() && state.stores.empty(), "a box moves behind the end of its block");
    state = BlockState{cuda_on_cpu::BlocksBegun()};
  }
  return state;
}
inline void ArriveAtMeeting(int meeting, int threads) {
  auto& at = StateOfBlock().meetings[meeting];
  if (++at.here == threads) at.here = 0, ++at.ended;
}
inline void MeetAt(int meeting, int threads) {
  const auto& at = StateOfBlock().meetings[meeting];
  const uint64_t ended = at.ended;
  ArriveAtMeeting(meeting, threads);
  while (at.ended == ended) cuda_on_cpu::Poll();
}

// ---- barriers ----

struct MemoryBarrier {
  uint32_t expected : 12, left : 12, parity : 1;
  int32_t bytes;
};
static_assert(sizeof(MemoryBarrier) == 8, "");
inline MemoryBarrier& BarrierAt(uint32_t address) {
  if (address < 256 << 10) return *reinterpret_cast<MemoryBarrier*>(SharedAt(address));
  return *reinterpret_cast<MemoryBarrier*>(&origin + static_cast<int32_t>(address - 0x80000000u));
}
inline void EndPhase(MemoryBarrier& barrier) {
  if (barrier.left == 0 && barrier.bytes == 0) barrier.parity ^= 1, barrier.left = barrier.expected;
}
inline void InitBarrier(uint32_t at, uint32_t count) { BarrierAt(at) = {count, count, 0, 0}; }
inline void FenceBarriers() {}
inline void ArriveForBytes(uint32_t at, uint32_t bytes) {
  MemoryBarrier& barrier = BarrierAt(at);
  Expect(barrier.left > 0, "more arrive at a barrier than it counts");
  barrier.bytes += static_cast<int32_t>(bytes);
  --barrier.left;
  EndPhase(barrier);
}
inline void Arrive(uint32_t at) { ArriveForBytes(at, 0); }
inline void ArriveWhenCopied(uint32_t at) { Arrive(at); }
inline bool HasEnded(uint32_t at, uint32_t parity) { return BarrierAt(at).parity != (parity & 1); }
// One of them moves, now and then.
inline void MoveOne(std::deque<std::function<void()>>& boxes) {
  if (boxes.empty() || std::rand() % 8 != 0) return;
  const auto one = boxes.begin() + std::rand() % static_cast<int>(boxes.size());
  const auto move = std::move(*one);
  boxes.erase(one);
  move();
}
inline void WaitAt(uint32_t at, uint32_t parity) {
  while (!HasEnded(at, parity)) {
    MoveOne(StateOfBlock().boxes);
    MoveOne(StateOfBlock().stores);
    cuda_on_cpu::Poll();
  }
}
template <int kStages>
struct RingPlace {
  uint32_t stage = 0, parity = 0;
  void Next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
  RingPlace Behind() const {
    RingPlace behind = *this;
    behind.Next();
    return behind;
  }
};

// ---- boxes ----

}  // namespace anyop::cuda
struct CUtensorMap {
  anyop::cuda::MatrixOfMap matrix;
};
namespace anyop::cuda {

inline bool EncodeMap(CUtensorMap* map, const MatrixOfMap& m) {
  map->matrix = m;
  return reinterpret_cast<uintptr_t>(m.data) % 16 == 0 && m.row_bytes > 0 &&
         (m.row_bytes | m.count_bytes | m.group_bytes) % 16 == 0 && m.box_rows > 0 &&
         m.box_rows <= 256;
}
inline void PrefetchMap(const CUtensorMap*) {}
// Where a byte lies in rows of 128 bytes from a multiple of 1,024 on.
inline uint32_t InSwizzle(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }
// visit(where a number of a box lies in shared memory, where in the matrices, or NULL).
template <typename Visit>
void ForBox(const MatrixOfMap& m, uint32_t box, int x, int y, int which, int group,
            const Visit& visit) {
  for (int64_t i = 0; i < int64_t{m.box_count} * m.box_rows; ++i)
    for (int64_t c = 0; c < 128 / m.element_bytes; ++c) {
      const int64_t matrix = which + i / m.box_rows, row = y + i % m.box_rows, column = x + c;
      const bool is_in = matrix >= 0 && matrix < m.count && group >= 0 && group < m.groups &&
                         row >= 0 && row < m.rows && column >= 0 && column < m.columns;
      const int64_t at = matrix * m.count_bytes + group * m.group_bytes + row * m.row_bytes +
                         column * m.element_bytes;
      char* data = static_cast<char*>(const_cast<void*>(m.data));
      visit(SharedAt(InSwizzle(box + static_cast<uint32_t>(i * 128 + c * m.element_bytes))),
            is_in ? data + at : nullptr);
    }
}
inline void LoadBox(uint32_t to, const CUtensorMap* map, uint32_t barrier, int x, int y, int which,
                    int group) {
  const MatrixOfMap m = map->matrix;
  Expect(to % 128 == 0, "a box lies beside its rows");
  StateOfBlock().boxes.push_back([=] {
    ForBox(m, to, x, y, which, group, [&](uint8_t* shared, const char* from) {
      std::memset(shared, 0, m.element_bytes);
      if (from) std::memcpy(shared, from, m.element_bytes);
    });
    MemoryBarrier& at = BarrierAt(barrier);
    at.bytes -= m.box_count * m.box_rows * 128;
    EndPhase(at);
  });
}
inline void StoreBox(const CUtensorMap* map, uint32_t from, int x, int y, int which, int group) {
  const MatrixOfMap m = map->matrix;
  Expect(from % 128 == 0, "a box lies beside its rows");
  StateOfBlock().stores.push_back([=] {
    ForBox(m, from, x, y, which, group, [&](const uint8_t* shared, char* to) {
      if (to) std::memcpy(to, shared, m.element_bytes);
    });
  });
}
inline void LoadBox(uint32_t to, const CUtensorMap* map, uint32_t barrier, int x, int y,
                    uint64_t = 0) {
  LoadBox(to, map, barrier, x, y, 0, 0);
}
inline void StoreBox(const CUtensorMap* map, uint32_t from, int x, int y) {
  StoreBox(map, from, x, y, 0, 0);
}
inline void PrefetchBox(const CUtensorMap*, int, int) {}
inline uint64_t ReadOnce() { return 0; }
inline uint64_t ReadByAll() { return 0; }
inline void CommitStores() {}
// All threads' stores: those of one are not told apart.
template <int kGroups>
void WaitForStores() {
  auto& stores = StateOfBlock().stores;
  for (; !stores.empty(); stores.pop_front()) stores.front()();
}
inline void StoreMatrices(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  const uint32_t words[4] = {a, b, c, d};
  const unsigned lane = threadIdx.x % 32;
  for (int i = 0; i < 4; ++i) {
    const uint32_t at = __shfl_sync(~0u, row, static_cast<int>(8 * i + lane / 4));
    reinterpret_cast<uint32_t*>(SharedAt(at))[lane % 4] = words[i];
  }
}
inline void StoreTransposed(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  const uint32_t words[4] = {a, b, c, d};
  const unsigned lane = threadIdx.x % 32;
  for (int i = 0; i < 8; ++i) {
    const uint32_t at = __shfl_sync(~0u, row, static_cast<int>(i / 2 * 8 + lane % 4 * 2 + i % 2));
    reinterpret_cast<uint16_t*>(SharedAt(at))[lane / 4] =
        static_cast<uint16_t>(words[i / 2] >> 16 * (i % 2));
  }
}

// ---- clusters: kernels that have them are compiled, no more ----

inline void NoCluster() { Expect(false, "a cluster of several blocks"); }
inline uint32_t ClusterRank() { return 0; }
inline uint32_t ClusterIndex() { return blockIdx.x; }
inline uint32_t ClusterCount() { return gridDim.x; }
inline void ClusterSync() { NoCluster(); }
inline uint32_t PeerAddress(uint32_t, uint32_t) { return NoCluster(), 0; }
inline void ArriveAtPeer(uint32_t, uint32_t) { NoCluster(); }
inline void WaitForCluster(uint32_t, uint32_t) { NoCluster(); }
inline void SendTwo(uint32_t, uint32_t, float, float) { NoCluster(); }
template <typename... Places>
void LoadBoxForMany(uint32_t, const CUtensorMap*, uint32_t, Places...) {
  NoCluster();
}

// ---- products ----

inline uint64_t PanelsOf(uint32_t address, uint32_t panel_bytes) {
  return (address & 0x3ffff) >> 4 | uint64_t{panel_bytes >> 4} << 16 | uint64_t{1024 >> 4} << 32 |
         uint64_t{1} << 62;
}
inline uint64_t TileOf(uint32_t address) { return PanelsOf(address, 16); }
inline uint64_t MovedBy(uint64_t tile, uint32_t sixteens) { return tile + sixteens; }
inline void FenceProducts() {}
inline void CommitProducts() {}
template <int kGroups>
void WaitForProducts() {}
template <typename Sums>
void Pin(Sums&) {}

inline float OfE4M3(unsigned code) {
  const unsigned exponent = code >> 3 & 15, fraction = code & 7;
  const float magnitude = (code & 127) == 127 ? NAN
                          : exponent ? std::ldexp(8.0f + fraction, static_cast<int>(exponent) - 10)
                                     : std::ldexp(1.0f * fraction, -9);
  return code & 128 ? -magnitude : magnitude;
}
// As a GPU reads a number `at` bytes behind the beginning of a tile.
template <Operand kType>
float NumberIn(uint64_t tile, uint32_t at) {
  const uint32_t begin = (tile & 0x3fff) << 4;
  Expect(begin % 1024 < 128, "a tile does not begin at 1,024 bytes");
  const uint8_t* bytes = SharedAt(InSwizzle(begin + at));
  if constexpr (kType == Operand::kE4M3) return OfE4M3(*bytes);
  if constexpr (kType == Operand::kFloat16) return Widen(*reinterpret_cast<const __half*>(bytes));
  return Widen(*reinterpret_cast<const __nv_bfloat16*>(bytes));
}

template <int kColumns>
struct Product {
  using Sums = float (&)[kColumns / 2];
  template <Operand kType, int kOfA = 0>
  static void Add(Sums d, uint64_t tile_a, uint64_t tile_b, int add) {
    static_assert(kOfA == 0, "A lies in rows");
    constexpr uint32_t kTerms = kType == Operand::kE4M3 ? 32 : 16, kBytes = 32 / kTerms;
    float a[2][kTerms];
    for (uint32_t half = 0; half < 2; ++half)
      for (uint32_t k = 0; k < kTerms; ++k) {
        const uint32_t row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + 8 * half;
        a[half][k] = NumberIn<kType>(tile_a, row * 128 + kBytes * k);
      }
    AddUp<kType, 0>(d, a, tile_b, add);
  }
  template <Operand kType, int kTransposed>
  static void AddRegisters(Sums d, const uint32_t* pairs, uint64_t tile_b, int add) {
    using T = std::conditional_t<kType == Operand::kFloat16, __half, __nv_bfloat16>;
    float a[2][16];
    for (int from = 0; from < 4; ++from)
      for (int w = 0; w < 4; ++w) {
        const int lane = static_cast<int>(threadIdx.x % 32 / 4 * 4) + from,
                  k = 2 * from + w / 2 * 8;
        const uint32_t pair = __shfl_sync(~0u, pairs[w], lane);
        a[w % 2][k] = WidenLow(T(), pair), a[w % 2][k + 1] = WidenHigh(T(), pair);
      }
    AddUp<kType, kTransposed>(d, a, tile_b, add);
  }

 private:
  template <Operand kType, int kTransposed, uint32_t kTerms>
  static void AddUp(Sums d, const float (&a)[2][kTerms], uint64_t tile_b, int add) {
    constexpr uint32_t kBytes = 32 / kTerms;
    const uint32_t panel_bytes = static_cast<uint32_t>(tile_b >> 16 & 0x3fff) << 4;
    for (uint32_t i = 0; i < kColumns / 2; ++i) {
      const uint32_t n = i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
      float sum = add ? d[i] : 0;
      for (uint32_t k = 0; k < kTerms; ++k) {
        const uint32_t at =
            kTransposed ? n / 64 * panel_bytes + k * 128 + n % 64 * 2 : n * 128 + kBytes * k;
        sum += a[i / 2 % 2][k] * NumberIn<kType>(tile_b, at);
      }
      d[i] = sum;
    }
  }
};

}  // namespace anyop::cuda
#pragma GCC visibility pop
