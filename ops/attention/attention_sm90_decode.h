// SPDX-License-Identifier: Apache-2.0
// Attention to pages on Hopper where all rows of a sequence are one tile, as in decoding: as
// attention_paged_cuda.h, but a fifth warp loads by TMA, so that the four that multiply neither
// look up pages nor wait for one another.
#pragma once

#include "attention_paged_cuda.h"
#include "attention_sm90_few.h"
#include "attention_sm90_pages.h"

namespace anyop::cuda {
namespace {

template <typename T, int kFeatures>
struct DecodeTile : PagedTile<T, T, kFeatures, true> {
  static constexpr uint32_t kKeyPanel = kPagedKeys * 128;  // as LoadTile takes it
  static constexpr int kThreads = 160;
};
template <int kStages>
struct DecodeBarriers {
  uint64_t full[kStages], empty[kStages];
};
// The tiles of keys that a block goes over: `count` from key `start` on; first, end: of the keys
// that a row sees.
struct DecodeKeys {
  int start, count, first, end;
};

// By a warp. A lane looks up a box, for as many tiles as there are lanes, and one lane loads all.
// The last stage holds queries first.
template <typename Tile, int kFeatures>
__device__ void LoadDecodeKeys(const PagedView& p, const PagedPlace& at, int g,
                               const DecodeKeys& keys, const CUtensorMap* k_map,
                               const CUtensorMap* v_map, uint32_t ring,
                               DecodeBarriers<Tile::kStages>& barriers, int box, bool* is_wrong) {
  const int lane = threadIdx.x % 32, boxes = kPagedKeys / box, tiles = 32 / boxes;
  const auto key_of = [&](int n) {
    return keys.start + (n + lane / boxes) * kPagedKeys + lane % boxes * box;
  };
  const auto look_up = [&](int n) {
    const int t = key_of(n);
    const bool is_needed = t < keys.end && t + box > keys.first;
    return is_needed ? p.table[int64_t{at.b} * p.M + t / p.P] : -1;
  };
  RingPlace<Tile::kStages> to;
  int next = look_up(0);
  for (int n = 0; n < keys.count; n += tiles) {
    const int t = key_of(n), place = t % p.P, entry = next;
    const bool is_needed = t < keys.end && t + box > keys.first;
    const bool is_there = is_needed && entry >= 0 && entry < p.N;
    const int page = is_there ? entry : p.N;  // behind the last: zeroes
    if (is_needed && !is_there) *is_wrong = true;
    next = look_up(n + tiles);
    for (int i = 0; i < tiles && n + i < keys.count; ++i, to.Next()) {
      const uint32_t full = SharedAddress(&barriers.full[to.stage]);
      const uint32_t parity = to.parity ^ (to.stage + 1 == Tile::kStages ? 0 : 1);
      WaitAt(SharedAddress(&barriers.empty[to.stage]), parity);
      __syncwarp();
      if (lane == 0) ArriveForBytes(full, 2 * Tile::kKeyBytes);
      __syncwarp();
      const uint32_t stage = ring + to.stage * 2 * Tile::kKeyBytes;
      const bool is_elected = IsElected();
#pragma unroll 1
      for (int j = 0; j < boxes; ++j) {
        const int from = __shfl_sync(~0u, page, i * boxes + j);
        const int row = __shfl_sync(~0u, place, i * boxes + j);
        const uint32_t rows = stage + j * box * 128;
        if (!is_elected) continue;
        LoadTile<kFeatures, Tile>(k_map, rows, full, row, g, from);
        LoadTile<kFeatures, Tile>(v_map, rows + Tile::kKeyBytes, full, row, g, from);
      }
    }
  }
}

// By the four warps that multiply.
template <typename T, int kFeatures>
__device__ void Decode(const PagedView& p, const PagedPlace& at, int g, int part,
                       const PagedKeys& keys, const DecodeKeys& seen, uint8_t* shared,
                       DecodeBarriers<DecodeTile<T, kFeatures>::kStages>& barriers, bool* is_bad,
                       const bool& is_wrong) {
  using Tile = DecodeTile<T, kFeatures>;
  const int thread = threadIdx.x, warp = thread / 32;
  const int all_first = keys.First((at.rows - 1) / p.group), all_end = keys.End(0);  // for all rows
  const uint32_t ring = SharedAddress(shared);
  const auto meet = [] { MeetAt(1, 128); };
  const auto give_back = [&](int stage) {
    __syncwarp();
    if (thread % 32 == 0) Arrive(SharedAddress(&barriers.empty[stage]));
  };
  FillQueries<T, kFeatures, kSharedRows>(ring + Tile::kQueries, p, at, g, at.rows);
  CommitCopies();
  WaitForCopies<0>();
  meet();
  PagedWarp<T, kFeatures, 16, false> mine;
  mine.LoadQueries(ring + Tile::kQueries, 0);
  mine.SetRows(p, keys, 0, g);
  FenceForTma();  // which writes over them
  give_back(Tile::kStages - 1);
  RingPlace<Tile::kStages> from;
  for (int n = 0; n < seen.count; ++n, from.Next()) {
    const uint32_t k = ring + from.stage * 2 * Tile::kKeyBytes, v = k + Tile::kKeyBytes;
    const int t = seen.start + n * kPagedKeys;
    const bool cut = t < all_first || t + kPagedKeys > all_end;
    WaitAt(SharedAddress(&barriers.full[from.stage]), from.parity);
    if (cut) {
      CleanTile<kPagedKeys, kFeatures, T>(v, thread, keys.end - t, is_bad);
      FenceForTma();
      meet();
    }
    mine.Multiply(k, 16 * warp);
    mine.SetScores(p, p.scale, t + 16 * warp, cut);
    mine.Weigh();
    mine.AddValues(v, 16 * warp);
    give_back(from.stage);
  }
  meet();
  mine.EndSums();
  const auto row_of = [&](int r) {
    return PagedRow{at.first + r / p.group, g * p.group + r % p.group, part};
  };
  JoinWarps<T, kFeatures>(mine, p, row_of, at.rows, is_wrong, 1, reinterpret_cast<float*>(shared),
                          meet);
  meet();
  if (*is_bad) AddBadPages<T, T>(p, at, keys, g, at.rows, part, 1);
}

template <typename T, int kFeatures>
__global__ __launch_bounds__(
    DecodeTile<T, kFeatures>::kThreads,
    kPagedBlocks<T, T, kFeatures, true>) void DecodePages(const __grid_constant__ CUtensorMap k_map,
                                                          const __grid_constant__ CUtensorMap v_map,
                                                          const __grid_constant__ PagedView p,
                                                          const int box) {
  using Tile = DecodeTile<T, kFeatures>;
  uint8_t* const shared = SharedTiles();
  __shared__ DecodeBarriers<Tile::kStages> barriers;
  __shared__ bool is_bad, is_wrong;
  // Groups of one page's keys are neighbours in memory, and their blocks in time.
  const int tile = static_cast<int>(blockIdx.x) / p.G,
            g = static_cast<int>(blockIdx.x) - tile * p.G, part = blockIdx.y;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Tile::kStages; ++i)
      InitBarrier(SharedAddress(&barriers.full[i]), 1),
          InitBarrier(SharedAddress(&barriers.empty[i]), 4);
    FenceBarriers();
    PrefetchMap(&k_map), PrefetchMap(&v_map);
  }
  WaitForWork();
  LetNextStart();
  PagedPlace at = FindPaged(p, tile, kPagedRows);
  if (at.is_wrong) at.T = 0;
  if (!at.is_there || (part > 0 && int64_t{part} * p.part >= at.T)) return;
  PagedKeys keys = {at.T - at.S, p.left, p.right, part * p.part, 0};
  keys.end = std::min(at.T, keys.begin + p.part);
  const int first = keys.First(0), end = keys.End((at.rows - 1) / p.group);
  const int start = keys.begin + (first - keys.begin) / kPagedKeys * kPagedKeys;
  const int count = end > first ? (end - start + kPagedKeys - 1) / kPagedKeys : 0;
  const DecodeKeys seen = {start, count, first, end};
  if (threadIdx.x == 0) is_bad = false, is_wrong = at.is_wrong;
  __syncthreads();
  if (threadIdx.x < 128) {
    Decode<T, kFeatures>(p, at, g, part, keys, seen, shared, barriers, &is_bad, is_wrong);
  } else {
    LoadDecodeKeys<Tile, kFeatures>(p, at, g, seen, &k_map, &v_map, SharedAddress(shared), barriers,
                                    box, &is_wrong);
  }
}

// ---- host ----

// As decoding has many such calls, nobody is told.
inline int32_t DeclineSilently(AnyopCall* call) { return call->fail(call, kAnyopDeclined, ""); }

inline bool IsDecoding(const AttentionPagedArgs& args) {
  const int64_t each = args.B > 0 ? args.S / args.B : 0;
  return !args.cu_seqlens_q && args.B > 0 && each * (args.H / args.G) <= kSharedRows &&
         args.D <= 128 && args.E <= 128 && args.S <= (1 << 24) && args.M <= (1 << 24) &&
         AreCounted(args);
}

template <typename T, int kFeatures>
int32_t RunDecoding(const AttentionPagedArgs& args, PagedView p, int64_t multiprocessors,
                    AnyopCall* call) {
  using Tile = DecodeTile<T, kFeatures>;
  constexpr auto kernel = DecodePages<T, kFeatures>;
  const int box = std::min(p.P & -p.P, kPagedKeys);
  CUtensorMap k, v;
  if (!EncodeHeads(&k, *SeenTensor(*args.k_cache).get(), box) ||
      !EncodeHeads(&v, *SeenTensor(*args.v_cache).get(), box))
    return DeclineSilently(call);
  const int64_t slots = multiprocessors * kPagedBlocks<T, T, kFeatures, true>;
  if (const int32_t status = Divide(call, 0, slots, &p)) return status;
  if (const int32_t status = AllowShared<kernel>(call, Tile::kSharedBytes)) return status;
  const Launch launch = {dim3(static_cast<unsigned>(p.tiles) * p.G, static_cast<unsigned>(p.count)),
                         dim3(Tile::kThreads), Tile::kSharedBytes, true};
  if (const int32_t status = launch.Run(call, kernel, k, v, p, box)) return status;
  return RunJoin<T>(p, call);
}

inline int32_t AttendByDecoding(const AttentionPagedArgs& args, int64_t multiprocessors,
                                AnyopCall* call) {
  const PagedView p = ViewOfPages(args);
  if (!p.k_aligned || !p.v_aligned || args.E == 0) return DeclineSilently(call);
  const auto run = [&](auto type) {
    using T = decltype(type);
    FewView view;
    if (MakeFew(p, sizeof(T), &view)) {
      constexpr int64_t kMostOfFew = 1 << 21;  // keys, beyond which the warp that loads is worth it
      const int shift = ShiftOfCluster(p, multiprocessors);
      if (shift >= 0) return RunInCluster<T>(p, view, shift, call);
      if (p.places <= kMostOfFew / (int64_t{p.B} * p.G))
        return RunFew<T, T>(p, view, multiprocessors, call);
    }
    if (std::max(p.D, p.E) <= 64) return RunDecoding<T, 64>(args, p, multiprocessors, call);
    return RunDecoding<T, 128>(args, p, multiprocessors, call);
  };
  return AnyopDtypeOf(args.q) == kAnyopFloat16 ? run(__half()) : run(__nv_bfloat16());
}

}  // namespace
}  // namespace anyop::cuda
