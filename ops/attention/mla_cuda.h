// SPDX-License-Identifier: Apache-2.0
// Attention of all heads of a token to the same latent rows, on every GPU from Ampere on, float16
// and bfloat16 by mma.sync.
//
// The heads of a sequence's queries are rows of tiles, 16 or 64 of them; a row of the cache is read
// once for a tile, as a key and as a value. A block has a tile and a part of the keys, 32 at a
// time, two tiles of them: one comes by cp.async while the other is multiplied; where rows lie is
// looked up one tile before. Of 16 rows each of four warps (of 64 rows, each of eight: two to 16
// rows) multiplies its share of the keys; scores meet in shared memory, and then each warp weighs
// all of them and has its share of the columns of the values. Parts are joined in their order
// (attention_paged_join.h).
#pragma once

#include "attention_mma.h"
#include "attention_paged_join.h"
#include "attention_paged_view.h"
#include "latent_row_cuda.h"

namespace anyop::cuda {
namespace {

// kRows queries, 16 or 64.
template <int kQueryRows>
struct LatentTile {
  static constexpr int kRows = kQueryRows, kKeys = 32, kNumbers = 576, kValues = 512;
  static constexpr int kSharers = kRows == 16 ? 4 : 2;  // warps that share 16 rows
  static constexpr int kThreads = 32 * kSharers * kRows / 16;
  static constexpr int kColumns = kValues / kSharers, kOwnKeys = kKeys / kSharers;
  static constexpr uint32_t kQueryBytes = kRows * kNumbers * 2, kKeyBytes = kKeys * kNumbers * 2;
  static constexpr int kScoreStep = kKeys + 4;  // floats of a row of scores
  static constexpr uint32_t kScores = kQueryBytes + 2 * kKeyBytes;
  static constexpr uint32_t kSharedBytes = kScores + kRows * kScoreStep * 4;
};

// Rows of 16-bit numbers to a tile, zeroes behind their W numbers and where there is none.
template <typename T, typename Tile>
__device__ void FillLatent(uint32_t to, const T* cache, const int64_t* rows, int width,
                           bool aligned) {
  constexpr int kPieces = Tile::kNumbers / 8;
#pragma unroll 3
  for (int i = threadIdx.x; i < Tile::kKeys * kPieces; i += Tile::kThreads) {
    const int row = i / kPieces, piece = i - row * kPieces, left = width - 8 * piece;
    const bool is_there = rows[row] != RowPlace::kNone && left > 0;
    const T* from = cache + (is_there ? rows[row] + 8 * piece : 0);
    CopyPiece(to + InTile<Tile::kKeys>(row, piece), from, is_there ? left : 0, aligned);
  }
}
// Rows of 656 bytes, each number as one of T, which holds it but for its scale.
template <typename T, typename Tile>
__device__ void FillLatent(uint32_t to, const uint8_t* cache, const int64_t* rows, int,
                           bool aligned) {
  constexpr int kPieces = Tile::kNumbers / 8;
#pragma unroll 1
  for (int i = threadIdx.x; i < Tile::kKeys * kPieces; i += Tile::kThreads) {
    const int row = i / kPieces, piece = i - row * kPieces;
    uint32_t words[4] = {};
    if (rows[row] != RowPlace::kNone) {
      float numbers[8];
      ReadLatentPiece(cache + rows[row], piece, aligned, numbers);
#pragma unroll
      for (int w = 0; w < 4; ++w) words[w] = NarrowTwo(T(), numbers[2 * w], numbers[2 * w + 1]);
    }
    StoreShared(to + InTile<Tile::kKeys>(row, piece), words);
  }
}

// The rows of a tile of queries, zeroes behind them.
template <typename T, typename Tile>
__device__ void FillLatentQueries(uint32_t to, const PagedView& p, const PagedPlace& at) {
  constexpr int kPieces = Tile::kNumbers / 8;
#pragma unroll 1
  for (int i = threadIdx.x; i < Tile::kRows * kPieces; i += Tile::kThreads) {
    const int r = i / kPieces, piece = i - r * kPieces, row = at.row + r;
    const int left = row < at.rows ? p.D - 8 * piece : 0;
    const T* q = static_cast<const T*>(p.q);
    if (left > 0) q += p.At(p.q_steps, row % p.H, at.first + row / p.H) + 8 * piece;
    CopyPiece(to + InTile<Tile::kRows>(r, piece), q, left, p.q_aligned);
  }
}

// What a warp has of its 16 rows: scores of its keys, weights of all, its columns of the values.
// kScaled: each 128 numbers of a key have a scale of their own, which scores and weights get.
template <typename T, typename Tile, bool kScaled>
struct LatentWarp {
  static constexpr int kSets = Tile::kOwnKeys / 8;
  float out[Tile::kColumns / 8][4] = {}, scores[kSets][4], weights[Tile::kKeys / 8][4];
  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {};

  // row: the warp's first of the tile of queries q; key: its first of the tile of keys k; scales:
  // four of each key.
  __device__ void Multiply(uint32_t q, int row, uint32_t k, int key, const float (*scales)[4]) {
#pragma unroll
    for (int n = 0; n < kSets; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) scores[n][c] = 0;
    if constexpr (kScaled) {
#pragma unroll 1
      for (int g = 0; g < Tile::kValues / kLatentGroup; ++g)
        AddProducts<4>(q, row, k, key, 4 * g, scales + key, g);
      AddProducts<2>(q, row, k, key, Tile::kValues / 32, nullptr, 0);
    } else {
      AddProducts<Tile::kNumbers / 32>(q, row, k, key, 0, nullptr, 0);
    }
  }
  // Of all keys, from rows of scores as multiples of ln 2.
  __device__ void Weigh(const float* rows) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < Tile::kKeys / 8; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        weights[n][c] =
            rows[(lane / 4 + c / 2 * 8) * Tile::kScoreStep + 8 * n + lane % 4 * 2 + c % 2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = max[half];
#pragma unroll
      for (int n = 0; n < Tile::kKeys / 8; ++n)
        most = fmaxf(most, fmaxf(weights[n][2 * half], weights[n][2 * half + 1]));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      const float base = most == -INFINITY ? 0 : most, factor = PowerOfTwo(max[half] - base);
      max[half] = most, sum[half] *= factor;
#pragma unroll
      for (int n = 0; n < Tile::kKeys / 8; ++n)
#pragma unroll
        for (int c = 2 * half; c < 2 * half + 2; ++c) {
          weights[n][c] = PowerOfTwo(weights[n][c] - base);
          sum[half] += weights[n][c];
        }
#pragma unroll
      for (int n = 0; n < Tile::kColumns / 8; ++n)
        out[n][2 * half] *= factor, out[n][2 * half + 1] *= factor;
    }
  }
  // column: the warp's first.
  __device__ void AddValues(uint32_t v, int column, const float (*scales)[4]) {
    constexpr int kGroup = kScaled ? kLatentGroup : Tile::kColumns;
    const uint32_t lane = ComputedHere(threadIdx.x) % 32;
#pragma unroll
    for (int g = 0; g < Tile::kColumns / kGroup; ++g)
#pragma unroll
      for (int n = 0; n < Tile::kKeys / 16; ++n) {
        uint32_t a[4];
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          float two[2];
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            two[c] = weights[2 * n + w / 2][w % 2 * 2 + c];
            if (kScaled && two[c] != 0)
              two[c] *= scales[16 * n + w / 2 * 8 + lane % 4 * 2 + c][column / kGroup + g];
          }
          a[w] = NarrowTwo(T(), two[0], two[1]);
        }
#pragma unroll
        for (int e = g * kGroup / 16; e < (g + 1) * kGroup / 16; ++e) {
          uint32_t b[4];
          LoadTransposed(
              b, v + InTile<Tile::kKeys>(16 * n + lane % 16, column / 8 + 2 * e + lane / 16));
          MultiplyAdd<kOperandOf<T>>(out[2 * e], a, b[0], b[1]);
          MultiplyAdd<kOperandOf<T>>(out[2 * e + 1], a, b[2], b[3]);
        }
      }
  }

 private:
  // Products of 32 numbers at a time, from step `first` on, times the keys' scales of a group.
  template <int kSteps>
  __device__ void AddProducts(uint32_t q, int row, uint32_t k, int key, int first,
                              const float (*scales)[4], int group) {
    const uint32_t lane = ComputedHere(threadIdx.x) % 32;
    float sums[2][kSets][4] = {};  // of even steps and odd ones
#pragma unroll(kSteps > 4 ? 3 : kSteps)
    for (int h = first; h < first + kSteps; ++h) {
      uint32_t b[kSets][4];
#pragma unroll
      for (int n = 0; n < kSets; ++n)  // 8 keys, 32 numbers
        LoadMatrices(b[n], k + InTile<Tile::kKeys>(key + 8 * n + lane % 8, 4 * h + lane / 8));
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        uint32_t a[4];
        LoadMatrices(a, q + InTile<Tile::kRows>(row + lane % 16, 4 * h + 2 * step + lane / 16));
#pragma unroll
        for (int n = 0; n < kSets; ++n)
          MultiplyAdd<kOperandOf<T>>(sums[step][n], a, b[n][2 * step], b[n][2 * step + 1]);
      }
    }
#pragma unroll
    for (int n = 0; n < kSets; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float found = sums[0][n][c] + sums[1][n][c];
        scores[n][c] += scales ? found * scales[8 * n + lane % 4 * 2 + c % 2][group] : found;
      }
  }
};

// Puts zeroes for NaN and infinities into a tile of keys whose scores are there: they show by their
// weights, for the queries that see them alone.
template <typename T, typename Tile>
__device__ void CleanLatent(uint32_t tile) {
#pragma unroll 1
  for (int i = threadIdx.x; i < Tile::kKeys * Tile::kValues / 8; i += Tile::kThreads) {
    const uint32_t place =
        tile + InTile<Tile::kKeys>(i / (Tile::kValues / 8), i % (Tile::kValues / 8));
    uint32_t words[4];
    LoadShared(words, place);
#pragma unroll
    for (uint32_t& word : words)
      word &= (IsBad<T>(word) ? 0 : 0xffffu) | (IsBad<T>(word >> 16) ? 0 : 0xffff0000u);
    StoreShared(place, words);
  }
}

template <typename T, typename C, int kRows>
__device__ __forceinline__ void AttendLatent(const PagedView& p, const PagedPlace& at, int part) {
  using Tile = LatentTile<kRows>;
  constexpr int kKeys = Tile::kKeys;
  constexpr bool kScaled = sizeof(C) == 1;
  __shared__ float scales[kScaled ? 2 : 1][kScaled ? kKeys : 1][4];
  __shared__ bool is_wrong;
  __shared__ int64_t places[3][kKeys];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int group = warp / Tile::kSharers * 16, mine = warp % Tile::kSharers;  // rows, share
  const int rows = std::min(at.rows - at.row, kRows);
  PagedKeys keys = {at.T - at.S, p.left, p.right, part * p.part, 0};
  keys.end = std::min(at.T, keys.begin + p.part);
  const int end = keys.End((at.row + rows - 1) / p.H), all_end = keys.End(at.row / p.H);
  const int count = end > keys.begin ? (end - keys.begin + kKeys - 1) / kKeys : 0;
  const uint32_t queries = DynamicSharedAddress(), ring = queries + Tile::kQueryBytes;
  auto* scores =
      reinterpret_cast<float*>(reinterpret_cast<uint8_t*>(DynamicShared()) + Tile::kScores);
  if (thread == 0) is_wrong = at.is_wrong;
  __syncthreads();
  const auto look_up = [&](int n) {
    return PlaceOfKey(p, at, keys.begin + n * kKeys + thread, keys.end);
  };
  const auto keep = [&](int n, const KeyPlace& place) {
    if (place.IsWrong(p)) is_wrong = true;
    places[n % 3][thread] =
        place.IsRight(p) ? p.k_steps.At(place.page, 0, place.place) : RowPlace::kNone;
  };
  const auto fill = [&](int n) {
    const int64_t* from = places[n % 3];
    FillLatent<T, Tile>(ring + n % 2 * Tile::kKeyBytes, static_cast<const C*>(p.k), from, p.D,
                        p.k_aligned);
    CommitCopies();
    if constexpr (kScaled) {
      if (thread >= 4 * kKeys) return;
      const int64_t row = from[thread / 4];
      scales[n % 2][thread / 4][thread % 4] =
          row == RowPlace::kNone ? 0
                                 : ReadLatentScale(static_cast<const C*>(p.k) + row, thread % 4);
    }
  };
  for (int n = 0; n < 2 && n < count; ++n)
    if (thread < kKeys) keep(n, look_up(n));
  FillLatentQueries<T, Tile>(queries, p, at);
  CommitCopies();
  __syncthreads();
  if (count > 0) fill(0);
  LatentWarp<T, Tile, kScaled> own;
  for (int n = 0; n < count; ++n) {
    WaitForCopies<0>();
    __syncthreads();  // tile n is there, and nobody reads the one before or its scores
    if (n + 1 < count) fill(n + 1);
    const bool is_next = thread < kKeys && n + 2 < count;
    const KeyPlace next = is_next ? look_up(n + 2) : KeyPlace{};
    const uint32_t tile = ring + n % 2 * Tile::kKeyBytes;
    const auto* of_keys = scales[kScaled ? n % 2 : 0];
    own.Multiply(queries, group, tile, mine * Tile::kOwnKeys, of_keys);
#pragma unroll
    for (int set = 0; set < Tile::kOwnKeys / 8; ++set)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int key = mine * Tile::kOwnKeys + 8 * set + lane % 4 * 2 + c % 2;
        const int row = group + lane / 4 + c / 2 * 8;
        const bool is_seen = places[n % 3][key] != RowPlace::kNone &&
                             keys.begin + n * kKeys + key < keys.End((at.row + row) / p.H);
        scores[row * Tile::kScoreStep + key] =
            is_seen ? own.scores[set][c] * (p.scale * 1.44269504088896340736f) : -INFINITY;
      }
    __syncthreads();
    if (keys.begin + (n + 1) * kKeys > all_end) {
      CleanLatent<T, Tile>(tile);
      __syncthreads();
    }
    own.Weigh(scores + group * Tile::kScoreStep);
    own.AddValues(tile, mine * Tile::kColumns, of_keys);
    if (is_next) keep(n + 2, next);
  }
  WaitForCopies<0>();
  __syncthreads();  // is_wrong is there
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float total = own.sum[half];
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    const int r = group + lane / 4 + 8 * half, row = at.row + r;
    if (r >= rows) continue;
    const float wrong = is_wrong ? NAN : 0;
    const PagedRow place = {at.first + row / p.H, row % p.H, part};
    const float share = EndPagedRow(p, place, own.max[half] + wrong, total + wrong);
    const PagedTarget<T> target(p, place);
#pragma unroll
    for (int n = 0; n < Tile::kColumns / 8; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int e = mine * Tile::kColumns + 8 * n + lane % 4 * 2 + c;
        if (e < p.E) target.Write(e, own.out[n][2 * half + c] * share);
      }
  }
}

template <typename T, typename C, int kRows>
__global__ __launch_bounds__(LatentTile<kRows>::kThreads,
                             1) void AttendLatentRows(const __grid_constant__ PagedView p) {
  LetNextStart();
  PagedPlace at = FindPaged(p, blockIdx.x, kRows);
  const int part = blockIdx.y;
  if (at.is_wrong) at.T = 0;
  if (!at.is_there || (part > 0 && int64_t{part} * p.part >= at.T)) return;
  AttendLatent<T, C, kRows>(p, at, part);
}

// ---- float32, by plain arithmetic: a warp for a token's head ----

template <typename C>
__device__ float LatentNumber(const C* row, int w) {
  return Widen(row[w]);
}
__device__ inline float LatentNumber(const uint8_t* row, int w) {
  if (w >= kLatentScalesAt) {
    const uint8_t* at = row + kLatentKeyAt + 2 * (w - kLatentScalesAt);
    return __uint_as_float((uint32_t{at[0]} | uint32_t{at[1]} << 8) << 16);
  }
  return WidenLow(__half(), WidenTwo<Operand::kE4M3>(row[w])) *
         ReadLatentScale(row, w / kLatentGroup);
}

template <typename C>
__global__ __launch_bounds__(128) void AttendLatentPlainly(const __grid_constant__ PagedView p) {
  constexpr int kEach = LatentTile<16>::kValues / 32;
  const int token = static_cast<int>(blockIdx.x), lane = threadIdx.x % 32;
  const int h = static_cast<int>(blockIdx.y) * 4 + static_cast<int>(threadIdx.x) / 32;
  if (h >= p.H) return;
  PagedPlace at = {};
  at.b = token / p.each, at.first = at.b * p.each, at.S = p.each;
  const int64_t length = p.LengthOf(at.b);
  bool is_wrong = length < 0 || length > p.places;
  at.T = is_wrong ? 0 : static_cast<int>(length);
  const PagedKeys keys = {at.T - at.S, p.left, p.right, 0, at.T};
  const int end = keys.End(token - at.first);
  const float* q = static_cast<const float*>(p.q) + p.At(p.q_steps, h, token);
  float max = -INFINITY, sum = 0, out[kEach] = {};
  for (int t0 = 0; t0 < end; t0 += 32) {
    const KeyPlace place = PlaceOfKey(p, at, t0 + lane, end);
    is_wrong |= place.IsWrong(p);
    const bool is_there = place.IsRight(p);
    const int64_t row = is_there ? p.k_steps.At(place.page, 0, place.place) : 0;
    float score = is_there ? 0 : -INFINITY;
    for (int w = 0; is_there && w < p.D; ++w)
      score = MulAdd(q[w], LatentNumber(static_cast<const C*>(p.k) + row, w), score);
    if (is_there) score *= p.scale * 1.44269504088896340736f;
    float most = score <= max ? max : score;
    for (int by = 16; by > 0; by /= 2) {
      const float other = __shfl_xor_sync(~0u, most, by);
      most = most < other ? other : most;
    }
    const float base = most == -INFINITY ? 0 : most, factor = PowerOfTwo(max - base);
    const float weight = is_there ? PowerOfTwo(score - base) : 0;
    max = most, sum = sum * factor + weight;
#pragma unroll
    for (float& value : out) value *= factor;
    for (unsigned left = __ballot_sync(~0u, is_there); left; left &= left - 1) {
      const int from = __ffs(static_cast<int>(left)) - 1;
      const float share = __shfl_sync(~0u, weight, from);
      const C* values = static_cast<const C*>(p.k) + __shfl_sync(~0u, row, from);
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        if (lane + 32 * i < p.E)
          out[i] = MulAdd(share, LatentNumber(values, lane + 32 * i), out[i]);
    }
  }
  for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
  if (__any_sync(~0u, is_wrong)) max = sum = NAN;
  const PagedRow place = {token, h, 0};
  const float share = EndPagedRow(p, place, max, sum);
  const PagedTarget<float> target(p, place);
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    if (lane + 32 * i < p.E) target.Write(lane + 32 * i, out[i] * share);
}

// ---- host ----

// Parts of split_size, or so many that there are two blocks for each multiprocessor, of no fewer
// than 256 keys.
inline int32_t DivideLatent(AnyopCall* call, int64_t split_size, const Limits& limits,
                            PagedView* p) {
  int64_t part = split_size;
  if (split_size == 0) {
    const int64_t most = std::max<int64_t>(2 * limits.multiprocessors / std::max(p->tiles, 1), 1);
    part = std::max<int64_t>(CeilDiv(std::max<int64_t>(p->places, 1), most), 256);
  }
  return TakeParts(call, part, p);
}

template <typename T, typename C, int kRows>
int32_t RunLatentTiles(PagedView* p, int64_t split_size, const Limits& limits, AnyopCall* call) {
  using Tile = LatentTile<kRows>;
  constexpr auto kernel = AttendLatentRows<T, C, kRows>;
  p->tiles = p->B * static_cast<int>(CeilDiv(int64_t{p->each} * p->H, kRows));
  if (const int32_t status = DivideLatent(call, split_size, limits, p)) return status;
  if (const int32_t status = AllowShared<kernel>(call, Tile::kSharedBytes)) return status;
  const Launch launch = {dim3(static_cast<unsigned>(p->tiles), static_cast<unsigned>(p->count)),
                         dim3(Tile::kThreads), Tile::kSharedBytes};
  if (const int32_t status = launch.Run(call, kernel, *p)) return status;
  return RunJoin<T, Tile::kValues>(*p, call);
}

// Tiles of 64 rows where there are as many and the GPU has the memory.
template <typename T, typename C>
int32_t RunLatent(PagedView* p, int64_t split_size, AnyopCall* call) {
  Limits limits;
  if (const int32_t status = ReadLimits(call, &limits)) return status;
  if (int64_t{p->each} * p->H > 32 &&
      limits.shared_bytes_of_block >= static_cast<int>(LatentTile<64>::kSharedBytes))
    return RunLatentTiles<T, C, 64>(p, split_size, limits, call);
  return RunLatentTiles<T, C, 16>(p, split_size, limits, call);
}

template <typename C>
int32_t RunLatentPlainly(const PagedView& p, AnyopCall* call) {
  const Launch launch = {dim3(static_cast<unsigned>(p.S), static_cast<unsigned>(CeilDiv(p.H, 4))),
                         dim3(128)};
  return launch.Run(call, AttendLatentPlainly<C>, p);
}

// kBytes: rows of 656 bytes, else of q's type.
template <bool kBytes>
int32_t AttendToLatent(PagedView* p, AnyopDtype dtype, int64_t split_size, AnyopCall* call) {
  if (p->S == 0 || p->H == 0) return kAnyopOk;
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    using C = std::conditional_t<kBytes, uint8_t, T>;
    if constexpr (sizeof(T) == 4) {
      return RunLatentPlainly<C>(*p, call);
    } else {
      return RunLatent<T, C>(p, split_size, call);
    }
  };
  if (dtype == kAnyopFloat32) return run(float());
  return dtype == kAnyopFloat16 ? run(__half()) : run(__nv_bfloat16());
}

}  // namespace
}  // namespace anyop::cuda
