// SPDX-License-Identifier: Apache-2.0
// Latent attention in float16 and bfloat16 on Hopper: one warpgroup that loads (two of bytes, which
// they widen), two that multiply by wgmma.
//
// A tile of 64 heads of a sequence's queries meets blocks of 64 rows, two at a time in two buffers,
// each both key and value. Each of the two warpgroups makes the scores and weights of one of both
// blocks, and has half of the columns of all values; weights go to the other through shared memory.
// The second starts with the first's weights while it makes its own, and the first has the next
// scores while the second weighs: both follow one maximum for a row, which grows only by factors
// above 2^8. A buffer is given back by quarters, as values are through. Blocks are persistent;
// parts of the keys are joined in their order (attention_paged_join.h).
#pragma once

#include "attention_paged_join.h"
#include "attention_sm90_rows.h"
#include "mla_sm90_bytes.h"

namespace anyop::cuda {
namespace {

// How rows come: in boxes of pages, one by one, or so and as bytes.
enum class LatentSource { kPages, kRows, kBytes };

// A warpgroup: scores and weights of every second block of 64 keys, half of the columns of the
// values of all. kHalf: which of both.
template <typename T, typename Tile, LatentSource kSource, int kHalf>
struct LatentHalf {
  static constexpr bool kByRows = kSource != LatentSource::kPages;
  static constexpr Operand kType = kOperandOf<T>;
  HopperRows<T, Tile> rows;
  const PagedView& p;
  LatentState& state;
  const uint32_t queries, buffers;
  const float scale;
  uint32_t pair = 0, others[16];

  __device__ LatentHalf(const PagedView& view, LatentState& shared, uint32_t q, uint32_t tiles)
      : p(view),
        state(shared),
        queries(q),
        buffers(tiles),
        scale(view.scale * 1.44269504088896340736f) {}

  // Computed where they are wanted: kept, they would not fit.
  __device__ int Thread() const { return ComputedHere(threadIdx.x) % 128; }
  __device__ int Lane() const { return ComputedHere(threadIdx.x) % 32; }
  __device__ int Row() const { return Thread() / 32 * 16 + Lane() / 4; }
  __device__ uint32_t Buffer(int b) const { return buffers + b * Tile::kBuffer; }
  __device__ uint32_t Values(int b) const { return Buffer(b) + 4 * kHalf * Tile::kPanel; }
  // The first's lie apart, the second's where the last numbers of its keys were.
  __device__ uint32_t Weights(int b) const { return Buffer(2) - b * Tile::kPanel; }
  __device__ void Arrive(const uint64_t& barrier) const {
    if (threadIdx.x % 32 == 0) cuda::Arrive(SharedAddress(&barrier));
  }

  // Scores of own keys by some panels, once they are there.
  template <int kFirst, int kEnd>
  __device__ void AddPanels() {
    constexpr uint64_t kStep = Tile::kPanel >> 4;  // of what TileOf says
    const uint64_t q = TileOf(ComputedHere(queries)), k = TileOf(ComputedHere(Buffer(kHalf)));
#pragma unroll
    for (int i = kFirst; i < kEnd; ++i) {
      const int panel = Tile::PanelOf(kHalf, i);
      if (i % 2 == 0) {
        WaitAt(SharedAddress(&state.full[kHalf][panel / 2]), pair & 1);
        if (kSource == LatentSource::kRows) FenceForTma();  // bytes: who stored them did
        FenceProducts();
      }
#pragma unroll
      for (int n = 0; n < 4; ++n)
        Product<64>::template Add<kType>(rows.scores, q + panel * kStep + 2 * n,
                                         k + panel * kStep + 2 * n, i > 0 || n > 0);
    }
    CommitProducts();
  }
  // The other's weights, as a left side.
  __device__ void FetchOthers() {
    const uint32_t lane = Lane(), at = Thread() / 32 * 16 + lane % 16;
    const uint32_t weights = ComputedHere(Weights(1 - kHalf));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t four[4];
      LoadMatrices(four, weights + Swizzled(at, 2 * i + lane / 16));
#pragma unroll
      for (int w = 0; w < 4; ++w) others[4 * i + w] = four[w];
    }
  }
  // Weights times the values of block b, by quarters of the columns.
  __device__ void AddValues(const uint32_t (&weights)[16], int b) {
    const uint64_t values = PanelsOf(ComputedHere(Values(b)), Tile::kPanel);
    FenceProducts();
#pragma unroll
    for (int quarter = 0; quarter < 2; ++quarter) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        Product<128>::template AddRegisters<kType, 1>(
            reinterpret_cast<float (&)[64]>(rows.out[64 * quarter]), weights + 4 * i,
            values + quarter * (2 * Tile::kPanel >> 4) + 128 * i, 1);
      CommitProducts();
    }
  }
  // Waits for these products, and gives the quarters back.
  __device__ void Release(int b) {
    WaitForProducts<1>();
    Pin(reinterpret_cast<float (&)[64]>(rows.out[0]));
    Arrive(state.empty[b][2 * kHalf]);
    WaitForProducts<0>();
    Pin(reinterpret_cast<float (&)[64]>(rows.out[64]));
    Arrive(state.empty[b][2 * kHalf + 1]);
  }
  // Own keys that not all rows see: their scores, and what is not finite in their values.
  __device__ void Cut(const LatentItem& item, int block) {
    const int s = item.at.row + Row(), lane = Lane(), t = 64 * (item.first + block) + lane % 4 * 2;
    const int first = item.keys.begin;
    rows.Hide(t, {first, first}, {item.keys.End(s / p.H), item.keys.End((s + 8) / p.H)});
    MeetAt(kLatentOwn + kHalf, 128);
    CleanTile<64, 512, T>(ComputedHere(Buffer(kHalf)), Thread(), 64, &state.is_bad);
    FenceForTma();
    if (kHalf == 0) MeetAt(kLatentOwn, 128);
  }
  __device__ void HideMissing() {
    const uint4 bytes = *reinterpret_cast<const uint4*>(state.there[kHalf]);
    if ((bytes.x & bytes.y & bytes.z & bytes.w) == 0x0f0f0f0fu) return;
    const int lane = Lane(), shift = lane % 4 / 2 * 8 + lane % 2 * 2;
    const uint32_t words[4] = {bytes.x >> shift, bytes.y >> shift, bytes.z >> shift,
                               bytes.w >> shift};
#pragma unroll
    for (int i = 0; i < 32; ++i)
      if (!(words[i / 8] >> (i / 4 % 2 * 16 + i % 2) & 1)) rows.scores[i] = -INFINITY;
  }
  // Scores to weights; whether what was summed is to grow.
  __device__ bool Weigh(const LatentItem& item, int block, bool is_cut) {
    if (is_cut) Cut(item, block);
    if (kByRows) HideMissing();
    const bool grows = rows.template Weigh<false>(scale);
    rows.Narrow();
    return grows;
  }
  // Weights and what they are multiples of, for the other.
  __device__ void ShowWeights() {
    if (kHalf == 1) MeetAt(kLatentOwn + 1, 128);  // nobody's scores need the panel now
    const int lane = Lane(), row = Row();
    const uint32_t tile = ComputedHere(Weights(kHalf)), at = Thread() / 32 * 16 + lane % 16;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      StoreMatrices(tile + Swizzled(at, 2 * i + lane / 16), rows.weights[4 * i],
                    rows.weights[4 * i + 1], rows.weights[4 * i + 2], rows.weights[4 * i + 3]);
    if (lane % 4 == 0)
      state.base[kHalf][row] = rows.max[0], state.base[kHalf][row + 8] = rows.max[1];
  }
  // Takes the maximum that the other has weighed by; whether what was summed is to grow.
  __device__ bool Follow() {
    const int row = Row();
    bool moves = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float base = state.base[1 - kHalf][row + 8 * r];
      const bool differs = base != rows.max[r];
      rows.factor[r] = differs ? PowerOfTwo((rows.max[r] - base) * scale) : 1;
      rows.sum[r] *= rows.factor[r], rows.max[r] = base;
      moves |= differs;
    }
    return __any_sync(~0u, moves);
  }

  __device__ void Attend(const LatentItem& item, int n) {
#pragma unroll
    for (float& value : rows.out) value = 0;
    Pin(rows.out);
    rows.max[0] = rows.max[1] = -INFINITY, rows.sum[0] = rows.sum[1] = 0;
    WaitAt(SharedAddress(&state.q_full), n & 1);
    FenceForTma();
    if constexpr (kHalf == 0)
      AttendFirst(item);
    else
      AttendSecond(item);
    Finish(item);
  }
  // No product is under way where a loop goes round: ptxas would wait for each of them.
  __device__ void AttendFirst(const LatentItem& item) {
    const int pairs = item.pairs, whole = item.whole, whole_end = item.whole_end;
#pragma unroll 1
    for (int i = 0; i < pairs; ++i, ++pair) {
      AddPanels<0, Tile::kPanels>();
      WaitForProducts<0>();
      Pin(rows.scores);
      if (i + 1 == pairs) Arrive(state.q_empty);
      const bool grows = Weigh(item, 2 * i, 2 * i < whole || 2 * i >= whole_end);
      ShowWeights();
      ArriveAtMeeting(kLatentFirst, 256);
      if (grows) rows.Grow();
      AddValues(rows.weights, 0);
      Release(0);
      MeetAt(kLatentSecond, 256);
      if (Follow()) rows.Grow();
      FetchOthers();
      AddValues(others, 1);
      Release(1);
    }
  }
  __device__ void AttendSecond(const LatentItem& item) {
    AddFirst<true>(item, 1);
#pragma unroll 1
    for (int i = 1; i < item.pairs; ++i) {
      AddLast();
      AddFirst<false>(item, 2 * i + 1);
    }
    AddLast();
  }
  // Adds the first's values, and weighs own scores meanwhile.
  template <bool kIsFirst>
  __device__ void AddFirst(const LatentItem& item, int block) {
    AddPanels<0, 6>();
    MeetAt(kLatentFirst, 256);
    const bool moves = Follow();
    FetchOthers();
    AddPanels<6, Tile::kPanels>();
    if (moves && !kIsFirst) rows.Grow();
    AddValues(others, 0);
    WaitForProducts<2>();
    Pin(rows.scores);
    if (block + 1 == 2 * item.pairs) Arrive(state.q_empty);
    const bool grows = Weigh(item, block, block < item.whole || block >= item.whole_end);
    Release(0);
    ShowWeights();
    ArriveAtMeeting(kLatentSecond, 256);
    if (grows) rows.Grow();
  }
  __device__ void AddLast() {
    AddValues(rows.weights, 1);
    FenceForTma();  // weights, which TMA writes over
    ++pair;
    Release(1);
  }
  __device__ void Finish(const LatentItem& item) {
    const int lane = Lane(), row = Row();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = rows.sum[half];
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      if (lane % 4 == 0) state.sum[kHalf][row + 8 * half] = total;
    }
    // Each meeting has one place where it is waited for: synccheck takes two for a fault.
    if (kHalf == 0) ArriveAtMeeting(kLatentFirst, 256);
    MeetAt(kHalf == 0 ? kLatentSecond : kLatentFirst, 256);
    if (kHalf == 1) ArriveAtMeeting(kLatentSecond, 256);
    const float wrong = item.at.is_wrong ? NAN : 0;
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {  // once for both: code that runs once is slow to come
      const int r = row + 8 * half, at = item.at.row + r;
      const bool is_there = r < item.rows;
      const PagedRow place = {item.at.first + (is_there ? at / p.H : 0), is_there ? at % p.H : 0,
                              item.part};
      const float total = state.sum[0][r] + state.sum[1][r] + wrong;
      float share = 0;
      if (is_there) share = EndPagedRow(p, place, rows.max[0] * scale + wrong, total);
      WriteFirst(place, is_there, share);
      rows.max[0] = rows.max[1];
#pragma unroll
      for (int i = 0; i < 128; i += 4)
        rows.out[i] = rows.out[i + 2], rows.out[i + 1] = rows.out[i + 3];
    }
  }
  // The first of the thread's two rows.
  __device__ void WriteFirst(const PagedRow& place, bool is_there, float share) {
    const PagedTarget<T> target(p, place);
    if (!p.out_aligned) {
#pragma unroll
      for (int i = 0; i < 128; i += i % 2 ? 3 : 1) {
        const int e = 256 * kHalf + i / 4 * 8 + Lane() % 4 * 2 + i % 2;
        if (is_there && e < p.E) target.Write(e, share == 0 ? 0 : rows.out[i] * share);
      }
      return;
    }
    if (!target.part) {
      rows.Write(is_there ? target.out + 256 * kHalf : nullptr, 0, share, p.E - 256 * kHalf);
      return;
    }
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      const int e = 256 * kHalf + 8 * j + Lane() % 4 * 2;
      if (is_there && e < p.E)
        *reinterpret_cast<float2*>(target.part + e) =
            make_float2(rows.out[4 * j] * share, rows.out[4 * j + 1] * share);
    }
  }
};

// Bytes are widened by two warpgroups.
template <LatentSource kSource>
constexpr int kLatentThreads = kSource == LatentSource::kBytes ? 512 : 384;

template <typename T, typename Tile, LatentSource kSource>
__global__ __launch_bounds__(kLatentThreads<kSource>,
                             1) void AttendLatentOnHopper(const __grid_constant__ CUtensorMap map,
                                                          const __grid_constant__ PagedView p,
                                                          const int box) {
  constexpr bool kByRows = kSource != LatentSource::kPages;
  constexpr bool kBytes = kSource == LatentSource::kBytes;
  // Together three times 168 or four times 128, which a thread has at first: more would be waited
  // for without end.
  constexpr int kLoading = kBytes ? 48 : 56;
  constexpr int kMultiplying = kBytes ? 2 * 128 - kLoading : (3 * 168 - kLoading) / 2;
  constexpr int kLoaders = kBytes ? 256 : 128;
  uint8_t* const shared = SharedTiles();
  __shared__ LatentState state;
  const uint32_t queries = SharedAddress(shared), buffers = queries + Tile::kBuffer;
  LetNextStart();
  if (threadIdx.x == 0) {
    InitBarrier(SharedAddress(&state.q_full), kByRows ? 128 : 96);
    InitBarrier(SharedAddress(&state.q_empty), 8);
    for (uint64_t& told : state.told) InitBarrier(SharedAddress(&told), 1);
    for (int b = 0; b < 2; ++b) {
      for (int g = 0; g < Tile::kGroups; ++g)
        InitBarrier(SharedAddress(&state.full[b][g]),
                    !kByRows ? 1 : kLoaders + (g == 0 ? kLoaders / 32 : 0));
      for (uint64_t& quarter : state.empty[b]) InitBarrier(SharedAddress(&quarter), 4);
    }
    FenceBarriers();
    if (!kByRows) PrefetchMap(&map);
  }
  __syncthreads();
  const auto multiply = [&](auto& half) {
    TakeRegisters<kMultiplying>();
    ForLatentItems<false>(p, state, [&](const LatentItem& item, int n) { half.Attend(item, n); });
  };
  if (threadIdx.x < 128) {
    GiveRegisters<kLoading>();
    if constexpr (kSource == LatentSource::kBytes) {
      LoadLatentBytes<T, Tile, 0>(p, state, queries, buffers);
    } else if constexpr (kByRows) {
      LoadLatentRows<T, Tile>(p, state, queries, buffers);
    } else if (threadIdx.x < 32) {
      LoadLatentPages<Tile>(p, &map, state, buffers, box);
    } else {
      LoadAllLatentQueries<T, Tile>(p, state, queries);
    }
  } else if (threadIdx.x < 256) {
    LatentHalf<T, Tile, kSource, 0> half(p, state, queries, buffers);
    multiply(half);
  } else if (!kBytes || threadIdx.x < 384) {
    LatentHalf<T, Tile, kSource, 1> half(p, state, queries, buffers);
    multiply(half);
  } else if constexpr (kBytes) {
    GiveRegisters<kLoading>();
    LoadLatentBytes<T, Tile, 1>(p, state, queries, buffers);
  }
}

// ---- host ----

inline int32_t DeclineHopper(AnyopCall* call) {
  return call->fail(call, kAnyopDeclined,
                    "it takes rows that are multiples of 16 bytes, and a scale above 0");
}
// A map of pages, in boxes of as many rows as divide a page. 0: rows come one by one.
inline int EncodePages(CUtensorMap* map, const PagedView& p, AnyopDtype dtype) {
  const int box = std::min(p.P & -p.P, 64);
  const auto step = [](int64_t count, int64_t elements) { return count > 1 ? 2 * elements : 16; };
  const int64_t row = step(p.P, p.k_steps.row), page = step(p.N, p.k_steps.batch);
  if (p.indices || box < 8 || row <= 0 || page <= 0 || p.N == 0) return 0;
  const CUtensorMapDataType type =
      dtype == kAnyopFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const bool done = EncodeMap(map, {p.k, p.P, p.D, row, type, 2, box, 4, p.N, page, 1, 16});
  return done ? box : 0;
}
// Parts of split_size, or as many as end soonest: a multiprocessor has one block, which loses the
// time of so many keys with each part, and the join that of a few for each.
inline int64_t LatentPartOf(const PagedView& p, int64_t split_size, int multiprocessors) {
  if (split_size > 0) return split_size;
  constexpr int64_t kLost = 256, kJoined = 8;
  int64_t best = INT64_MAX, part = 1 << 30;
  const int64_t blocks = CeilDiv(std::max<int64_t>(p.places, 1), 128);
  const int64_t most = std::max<int64_t>(2 * multiprocessors / std::max(p.tiles, 1), 1);
  for (int64_t count = 1; count <= std::min(most, blocks); ++count) {
    const int64_t keys = 128 * CeilDiv(blocks, count);
    const int64_t rounds = CeilDiv(p.tiles * count, multiprocessors);
    const int64_t joined = count > 1 ? kJoined * count : 0;
    const int64_t time = rounds * (keys + kLost) + joined;
    if (time < best) best = time, part = count > 1 ? keys : 1 << 30;
  }
  return part;
}

template <typename T, typename Tile, LatentSource kSource>
int32_t StartLatent(const CUtensorMap& map, const PagedView& p, int box, int multiprocessors,
                    AnyopCall* call) {
  constexpr auto kernel = AttendLatentOnHopper<T, Tile, kSource>;
  if (const int32_t status = AllowShared<kernel>(call, Tile::kSharedBytes)) return status;
  const int blocks = std::min(p.tiles * p.count, multiprocessors);
  const Launch launch = {dim3(static_cast<unsigned>(blocks)), dim3(kLatentThreads<kSource>),
                         Tile::kSharedBytes};
  if (const int32_t status = launch.Run(call, kernel, map, p, box)) return status;
  return RunJoin<T, 512>(p, call);
}

// kBytes: to rows of 656.
template <typename T, bool kBytes>
int32_t RunLatentOnHopper(PagedView* p, int64_t split_size, AnyopDtype dtype, AnyopCall* call) {
  Limits limits;
  if (const int32_t status = ReadLimits(call, &limits)) return status;
  p->tiles = p->B * static_cast<int>(CeilDiv(int64_t{p->each} * p->H, 64));
  // Pages one behind the other are as one: indices need no division.
  const bool is_one = p->N <= 1 || p->k_steps.batch == p->P * p->k_steps.row;
  if (p->indices && is_one && int64_t{p->N} * p->P <= INT32_MAX)
    p->P *= p->N, p->N = std::min(p->N, 1);
  if (kBytes &&
      (p->N > 1 || p->k_steps.row < 0 || p->P * p->k_steps.row > (int64_t{1} << 35) - 1024))
    return call->fail(call, kAnyopDeclined,
                      "it takes pages that lie one behind the other, up to 32 GiB");
  const int multiprocessors = limits.multiprocessors;
  const int64_t part = LatentPartOf(*p, split_size, multiprocessors);
  if (const int32_t status = TakeParts(call, part, p)) return status;
  CUtensorMap map = {};
  if constexpr (kBytes) {
    return StartLatent<T, LatentHopper<576>, LatentSource::kBytes>(map, *p, 0, multiprocessors,
                                                                   call);
  } else {
    const int box = EncodePages(&map, *p, dtype);
    const auto start = [&](auto tile) {
      using Tile = decltype(tile);
      if (box)
        return StartLatent<T, Tile, LatentSource::kPages>(map, *p, box, multiprocessors, call);
      return StartLatent<T, Tile, LatentSource::kRows>(map, *p, box, multiprocessors, call);
    };
    return p->D > 512 ? start(LatentHopper<576>()) : start(LatentHopper<512>());
  }
}

}  // namespace
}  // namespace anyop::cuda
