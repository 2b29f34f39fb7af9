/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of CUDA kernels whose columns are summed as well, as the gradient of a norm's weight is. */
#ifndef ANYOP_CUDA_ROW_SUMS_H_
#define ANYOP_CUDA_ROW_SUMS_H_

#include "anyop/cuda_parts.h"
#include "anyop/cuda_ring.h"
#include "anyop/cuda_row.h"

// The operator is as in cuda_row.h, with these besides:
//
//   static constexpr int kInputs = 2, kSums = 1, kColumns = 1;
//   static constexpr bool kPlain = !kAny;
//   RowsAt<kAny> in[kInputs];
//   template <typename Row, typename Sums, typename Release, typename Column>
//   __device__ void operator()(Row& row, Sums& sums, const Release& release,
//                              const Column& column) const {
//     const auto v = row.ReadAll(in);
//     W totals[2] = {};  // 1, 2 or 4
//     row.ForEach([&](W a, W b, W w) { totals[0] += ...; }, v[0], v[1], column);
//     row.Totals(totals);
//     release();                               // the inputs are read: what comes next is fetched
//     const Notes<W> notes = row.Note(scale);  // what AddColumn needs of the row
//     row.WriteAndAdd(*this, out, sums, notes, f, v, column);
//   }
//   __device__ static void AddColumn(W (&sums)[kSums], const Notes<W>& notes,
//                                    const W (&in)[kInputs], W w);
//   template <typename F>
//   __device__ auto WithColumns(const F& f) const { return f(weight); }
//
// f and AddColumn get the inputs of a column as an array, then those of WithColumns, which come to
// the operator as they are held: a thread keeps its columns from row to row. Totals, or a barrier
// of the block, stands between ReadAll and release.
//
// Who does what: as many blocks as fit stay on the device and walk over rows, which are copied to
// shared memory ahead (cuda_ring.h); a thread keeps the sums of its columns in registers. Short
// rows are shared by lanes of a warp, without the copies, long ones by the blocks of a cluster
// (Hopper), each of which takes a slice of the columns. Each walker writes its sums as a part,
// and a second kernel adds the parts in order. Rows that are too long or not aligned are read again
// for their columns, by blocks that walk down some columns.
namespace anyop::cuda {

// What kSums sums over rows are made of, in registers.
template <typename T, int kVectors, int kSums>
struct HeldSums {
  Wide<T> at[kVectors][kPerVector<T>][kSums] = {};
};
struct NoSums {};

// What a row says of itself to its columns.
template <typename W>
struct Notes {
  W at[2];
};

template <typename Held, int kInputs>
struct Inputs {
  Held of[kInputs];
  __device__ const Held& operator[](int i) const { return of[i]; }
};

// What a thread keeps of its columns, widened, or where it reads them again for each row.
template <typename W, int kVectors, int kPer>
struct KeptColumns {
  Piece<W, kPer> of[kVectors];
};
template <typename Columns>
struct AgainColumns {
  const Columns& columns;
};

// ---- rows ----

template <typename T, int kVectors, int kInputs>
struct HeldInputs {
  HeldRow<T, kVectors> of[kInputs];
  __device__ const HeldRow<T, kVectors>& operator[](int i) const { return of[i]; }
};

constexpr int kMaxSummingThreads =
    512;  // with 128 registers each: one such block on a multiprocessor
constexpr int kMaxTotals = 4;

// Where the warps of a block meet, then the blocks of a cluster; reductions take turns.
constexpr int kMaxSlices = 8, kMeetingOfBlock = kMaxSummingThreads / 32 * kMaxTotals;
template <typename W>
using Meeting = W[2][kMeetingOfBlock + kMaxSlices * kMaxTotals];

// What a block has of its rows, in vectors; slices: the blocks that share a row, a cluster.
struct Slice {
  int first, count, of_row, slices;
};
#if __CUDA_ARCH__ >= 900
// All threads of the cluster: what was written to shared memory before is seen behind.
__device__ inline void MeetCluster() {
  asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
}
#endif

// A row in the stage of a ring, shared by the block; with kVectors = 1 it is read from memory and
// shared by `lanes` threads, a power of two up to 32.
template <typename T, int kVectors, int kInputs>
class SummingRow {
 public:
  using W = Wide<T>;
  static constexpr int kPer = kPerVector<T>;
  static constexpr bool kRing = kVectors > 1;
  using Held = HeldRow<T, kVectors>;

  __device__ SummingRow(int lanes, Meeting<W>& meeting, Slice slice)
      : meeting_(meeting),
        slice_(slice),
        lanes_(lanes),
        lane_(kRing ? threadIdx.x : threadIdx.x & (lanes - 1)) {}

  // stage: the row's place in a ring, or NULL.
  __device__ void Take(int64_t row, int64_t rows, const uint4* stage) {
    index_ = row;
    mine_ = row < rows ? slice_.count : 0;
    stage_ = stage;
  }
  __device__ int64_t index() const { return index_; }

  template <bool kAny>
  __device__ HeldInputs<T, kVectors, kInputs> ReadAll(const RowsAt<kAny> (&in)[kInputs]) const {
    HeldInputs<T, kVectors, kInputs> held;
#pragma unroll
    for (int n = 0; n < kInputs; ++n) {
      const uint4* from = stage_ + n * slice_.count;
      if constexpr (!kRing) from = reinterpret_cast<const uint4*>(in[n].At(mine_ ? index_ : 0));
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        held.of[n].bits[i] = {};
        if (At(i) < mine_) held.of[n].bits[i] = kRing ? from[At(i)] : LoadNow(from + At(i));
      }
    }
    return held;
  }
  // Before the first row.
  template <bool kKeeps, typename Columns>
  __device__ auto Hold(const Columns& from) const {
    if constexpr (kKeeps) {
      KeptColumns<W, kVectors, kPer> kept;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        kept.of[i] = {};
        if (At(i) < slice_.count) kept.of[i] = ReadColumns<kPer, W>(from, Column(i));
      }
      return kept;
    } else {
      return AgainColumns<Columns>{from};
    }
  }

  // f(elements...) of each column of this thread.
  template <typename F, typename... Some>
  __device__ void ForEach(const F& f, const Some&... some) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (At(i) < mine_) EachOf(f, Elements(some, i)...);
    }
  }
  // Close to the mean of the input that is `held`, so that sums around it keep their digits: the
  // mean of 32 elements of the row, or of all.
  template <bool kAny>
  __device__ W About(const RowsAt<kAny> (&in)[kInputs], int n, const Held& held, W inverse_D) {
    W v[1] = {};
    if (!kRing || slice_.slices > 1) {
      ForEach([&](W x) { v[0] += x; }, held);
      Totals(v);
      return v[0] * inverse_D;
    }

    // Words whose distance is odd lie in different banks.
    const int at = static_cast<int>(threadIdx.x) % 32 * ((slice_.count / 8 - 1) | 1);
#if __CUDA_ARCH__ >= 900
    const void* from = stage_ + n * slice_.count;
#else
    const void* from = in[n].At(index_);  // other threads' part of the stage may not be there yet
#endif
    return SumLanes(Widen(static_cast<const T*>(from)[at * int{4 / sizeof(T)}]), 32) / 32;
  }
  // Of each thread's values; every thread gets the same bits.
  template <int kCount>
  __device__ void Totals(W (&v)[kCount]) {
    static_assert(kCount == 1 || kCount == 2 || kCount == 4, "");
    if constexpr (!kRing) {
#pragma unroll
      for (int c = 0; c < kCount; ++c) v[c] = SumLanes(v[c], lanes_);
    } else {
      const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
      // Lane i takes over value i % kCount, so that a shuffle moves several.
#pragma unroll
      for (int half = 1; half < kCount; half *= 2) {
#pragma unroll
        for (int c = 0; c < kCount; c += 2 * half) {
          const bool high = lane & half;
          const W given = high ? v[c] : v[c + half];
          v[c] = (high ? v[c + half] : v[c]) + __shfl_xor_sync(~0u, given, half);
        }
      }
#pragma unroll
      for (int step = kCount; step < 32; step *= 2) v[0] += __shfl_xor_sync(~0u, v[0], step);
      W* const sums = meeting_[turn_];
      turn_ ^= 1;
      if (lane < kCount) sums[warp * kCount + lane] = v[0];
      __syncthreads();
      Collect(sums, static_cast<int>(blockDim.x) / 32 * kCount, v);
#if __CUDA_ARCH__ >= 900
      if (slice_.slices > 1) {
        Tell(v, sums + kMeetingOfBlock);
        MeetCluster();
        Collect(sums + kMeetingOfBlock, slice_.slices * kCount, v);
      }
#endif
    }
  }
  __device__ Notes<W> Note(W first, W second = 0) const { return {{first, second}}; }

  // out[d] = f(inputs, columns...), and Op::AddColumn of the inputs.
  template <typename Op, bool kAny, int kSums, typename F, typename... Columns>
  __device__ void WriteAndAdd(const Op&, const RowsAt<kAny>& out,
                              HeldSums<T, kVectors, kSums>& sums, const Notes<W>& notes, const F& f,
                              const HeldInputs<T, kVectors, kInputs>& in,
                              const Columns&... columns) const {
    const bool writes = out.exists();
    char* row = out.At(mine_ ? index_ : 0);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (At(i) >= mine_) continue;
      Unpacked<T> v[kInputs];
#pragma unroll
      for (int n = 0; n < kInputs; ++n)
        v[n] = kVectors <= 2 ? Unpack<T>(in[n].bits[i]) : UnpackAgain<T>(in[n].bits[i]);
      const Piece<W, kPer> result =
          EachColumn<Op>(sums.at[i], notes, f, v, Elements(columns, i)...);
      if (writes) WriteVector(out, row, Column(i), result);
    }
  }

  // The sums of this thread, as part number `part`: (part, sum, D).
  template <int kSums>
  __device__ void WritePart(const HeldSums<T, kVectors, kSums>& sums, W* parts,
                            int64_t part) const {
    constexpr int kStore = 16 / int{sizeof(W)};
    const int64_t D = int64_t{slice_.of_row} * kPer;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (At(i) >= slice_.count) continue;
#pragma unroll
      for (int s = 0; s < kSums; ++s) {
        // A part begins at a multiple of D elements, and so of 16 bytes.
        auto* to = reinterpret_cast<Vector<W, kStore>*>(parts + (part * kSums + s) * D + Column(i));
#pragma unroll
        for (int k = 0; k < kPer; k += kStore) {
          Vector<W, kStore> piece;
#pragma unroll
          for (int j = 0; j < kStore; ++j) piece.at[j] = sums.at[i][k + j][s];
          to[k / kStore] = piece;
        }
      }
    }
  }

 private:
  // Adds up count numbers, of which number i belongs to value i % kCount.
  template <int kCount>
  __device__ static void Collect(const W* from, int count, W (&v)[kCount]) {
    const int lane = threadIdx.x % 32;
    W sum = 0;
#pragma unroll
    for (int i = 0; i < kMeetingOfBlock / kMaxTotals * kCount; i += 32)
      sum += lane + i < count ? from[lane + i] : W(0);
#pragma unroll
    for (int step = kCount; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
#pragma unroll
    for (int c = 0; c < kCount; ++c) v[c] = kCount == 1 ? sum : __shfl_sync(~0u, sum, c);
  }
#if __CUDA_ARCH__ >= 900
  // Writes this block's values to `place` of every block of the cluster, behind one another.
  template <int kCount>
  __device__ void Tell(const W (&v)[kCount], const W* place) const {
    static_assert(sizeof(W) == 4, "");
    const int value = threadIdx.x % kCount, block = threadIdx.x / kCount;
    if (block >= slice_.slices) return;
    W mine = v[0];
#pragma unroll
    for (int c = 1; c < kCount; ++c) mine = value == c ? v[c] : mine;
    unsigned rank, to;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(to)
        : "r"(static_cast<unsigned>(__cvta_generic_to_shared(place + rank * kCount + value))),
          "r"(block));
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to), "f"(mine) : "memory");
  }
#endif
  __device__ int At(int i) const {
    return kRing ? lane_ + i * static_cast<int>(blockDim.x) : lane_;
  }
  __device__ int64_t Column(int i) const { return int64_t{slice_.first + At(i)} * kPer; }
  __device__ Unpacked<T> Elements(const Held& held, int i) const { return Unpack<T>(held.bits[i]); }
  __device__ const Piece<W, kPer>& Elements(const KeptColumns<W, kVectors, kPer>& kept,
                                            int i) const {
    return kept.of[i];
  }
  template <typename Columns>
  __device__ Piece<W, kPer> Elements(const AgainColumns<Columns>& again, int i) const {
    return ReadColumns<kPer, W>(again.columns, Column(i));
  }
  template <typename F, typename... Pieces>
  __device__ static void EachOf(const F& f, const Pieces&... pieces) {
#pragma unroll
    for (int k = 0; k < kPer; ++k) f(pieces.at[k]...);
  }
  template <typename Op, int kSums, typename F, typename... Columns>
  __device__ static Piece<W, kPer> EachColumn(W (&sums)[kPer][kSums], const Notes<W>& notes,
                                              const F& f, const Unpacked<T> (&v)[kInputs],
                                              const Columns&... columns) {
    Piece<W, kPer> result;
#pragma unroll
    for (int k = 0; k < kPer; ++k) {
      W each[kInputs];
#pragma unroll
      for (int n = 0; n < kInputs; ++n) each[n] = v[n].at[k];
      Op::AddColumn(sums[k], notes, each, columns.at[k]...);
      result.at[k] = f(each, columns.at[k]...);
    }
    return result;
  }
  template <bool kAny>
  __device__ static void WriteVector(const RowsAt<kAny>& out, char* row, int64_t at,
                                     const Piece<W, kPer>& v) {
    if constexpr (kAny) {
      WritePieceOf<T, kPer>(out, row, at, v);
    } else {
      WritePiece<kPer>(reinterpret_cast<T*>(row) + at, true, v);
    }
  }

  Meeting<W>& meeting_;
  Slice slice_;
  int lanes_, lane_, mine_ = 0, turn_ = 0;  // mine_ in vectors
  int64_t index_ = 0;
  const uint4* stage_ = nullptr;
};

// StreamRow that writes its notes down for a later walk along the columns.
template <typename T, int kPiece, int kInputs>
class NotingRow : public StreamRow<T, kPiece> {
 public:
  using W = Wide<T>;
  using Base = StreamRow<T, kPiece>;
  using Base::kPer;

  __device__ NotingRow(int lanes, Partials<W>& partials, int64_t D, W* notes, int64_t rows)
      : Base(lanes, partials, D), notes_(notes), rows_(rows) {}

  __device__ Inputs<StreamedRow<true>, kInputs> ReadAll(const RowsAt<true> (&in)[kInputs]) const {
    if constexpr (kInputs == 2) return {{{in[0]}, {in[1]}}};
    if constexpr (kInputs == 3) return {{{in[0]}, {in[1]}, {in[2]}}};
  }
  __device__ Notes<W> Note(W first, W second = 0) const {
    if (notes_ && this->IsFirst()) {
      notes_[this->index_] = first;
      notes_[rows_ + this->index_] = second;
    }
    return {{first, second}};
  }
  template <typename F, typename... Some>
  __device__ void ForEach(const F& f, const Some&... some) const {
#pragma unroll 4
    for (int64_t at = this->lane(); at < this->mine_; at += this->lanes_)
      EachOf(f, this->Elements(some, at)...);
  }
  __device__ W About(const RowsAt<true> (&)[kInputs], int, const StreamedRow<true>& row,
                     W inverse_D) {
    return this->Sum([](W sum, W v) { return sum + v; }, row) * inverse_D;
  }
  template <int kCount>
  __device__ void Totals(W (&v)[kCount]) {
    for (W& each : v) each = this->Total(each);
  }
  template <typename Op, typename F, typename... Columns>
  __device__ void WriteAndAdd(const Op&, const RowsAt<true>& out, NoSums&, const Notes<W>&,
                              const F& f, const Inputs<StreamedRow<true>, kInputs>& in,
                              const Columns&... columns) const {
    if (!out.exists() || !this->inside_) return;
    char* row = out.At(this->index_);
    for (int64_t at = this->lane(); at < this->mine_; at += this->lanes_) {
      Piece<W, kPer> v[kInputs];
#pragma unroll
      for (int n = 0; n < kInputs; ++n) v[n] = this->Elements(in[n], at);
      WritePieceOf<T, kPer>(out, row, at * kPer, EachColumn(f, v, this->Elements(columns, at)...));
    }
  }

 private:
  template <typename F, typename... Pieces>
  __device__ static void EachOf(const F& f, const Pieces&... pieces) {
#pragma unroll
    for (int k = 0; k < kPer; ++k) f(pieces.at[k]...);
  }
  template <typename F, typename... Columns>
  __device__ static Piece<W, kPer> EachColumn(const F& f, const Piece<W, kPer> (&v)[kInputs],
                                              const Columns&... columns) {
    Piece<W, kPer> result;
#pragma unroll
    for (int k = 0; k < kPer; ++k) {
      W each[kInputs];
#pragma unroll
      for (int n = 0; n < kInputs; ++n) each[n] = v[n].at[k];
      result.at[k] = f(each, columns.at[k]...);
    }
    return result;
  }

  W* notes_;
  int64_t rows_;
};

// ---- kernels ----

// Whether a thread has registers for its columns besides its sums and its part of a row.
template <typename T, int kVectors, typename Op>
constexpr bool kHasRegisters =
    kVectors * (kPerVector<T> * (Op::kSums + Op::kColumns) + 4 * Op::kInputs) <= 96;

// Blocks that share a row, a cluster, take `slice` of its vectors each; they walk over rows walker,
// walker + walkers, ...
template <typename T, int kVectors, typename Op>
__global__ void __launch_bounds__(kMaxSummingThreads, 1)
    SumInRing(const __grid_constant__ Op op, int64_t rows, int vectors, int slice, int slices,
              int stages, Wide<T>* parts) {
  __shared__ Meeting<Wide<T>> meeting;
  __shared__ __align__(8) uint64_t barriers[RowRing<Op::kInputs>::kMaxStages];
  const int walker = static_cast<int>(blockIdx.x) / slices;
  const int first = (static_cast<int>(blockIdx.x) - walker * slices) * slice;
  const int count = vectors - first < slice ? vectors - first : slice;
  SummingRow<T, kVectors, Op::kInputs> row(0, meeting, {first, count, vectors, slices});
  const auto row_of = [&](int input, int64_t r) {
    return reinterpret_cast<const uint4*>(op.in[input].At(r)) + first;
  };
  RowRing<Op::kInputs> ring(DynamicShared(), barriers, stages, count);
  const int step = static_cast<int>(gridDim.x) / slices;
  LetNextStart();  // it waits for the end of this one where there is room
  ring.Start(walker, step, rows, row_of);
#if __CUDA_ARCH__ >= 900
  if (slices > 1) MeetCluster();  // before anyone writes to another's memory
#endif
  HeldSums<T, kVectors, Op::kSums> sums;
  const auto walk = [&](const auto&... columns) {
    for (int64_t r = walker; r < rows; r += step) {
      row.Take(r, rows, ring.Wait(0));
      op(row, sums, [&] { ring.Refill(r + stages * step, rows, row_of); }, columns...);
    }
  };
  op.WithColumns([&](const auto&... columns) {
    constexpr bool kKeeps = Op::kPlain && kHasRegisters<T, kVectors, Op>;
    walk(row.template Hold<kKeeps>(columns)...);
  });
  if (parts) row.WritePart(sums, parts, walker);
}

// The lanes of a warp that share rows walk over them.
template <typename T, typename Op>
__global__ void __launch_bounds__(128)
    SumInLanes(const __grid_constant__ Op op, int64_t rows, int64_t D, int lanes, Wide<T>* parts) {
  __shared__ Meeting<Wide<T>> meeting;
  const int vectors = static_cast<int>(D / kPerVector<T>);
  SummingRow<T, 1, Op::kInputs> row(lanes, meeting, {0, vectors, vectors, 1});
  const int of_block = blockDim.x / lanes, mine = threadIdx.x / lanes;
  LetNextStart();
  HeldSums<T, 1, Op::kSums> sums;
  const auto walk = [&](const auto&... columns) {
    for (int64_t first = int64_t{blockIdx.x} * of_block; first < rows;
         first += int64_t{gridDim.x} * of_block) {
      row.Take(first + mine, rows, nullptr);
      op(row, sums, [] {}, columns...);
    }
  };
  op.WithColumns([&](const auto&... columns) { walk(row.template Hold<true>(columns)...); });
  if (parts) row.WritePart(sums, parts, int64_t{blockIdx.x} * of_block + mine);
}

template <typename T, int kPiece, typename Op>
__global__ void __launch_bounds__(1024)
    NoteRows(const __grid_constant__ Op op, int64_t rows, int64_t D, int lanes, Wide<T>* notes) {
  __shared__ Partials<Wide<T>> partials;
  NotingRow<T, kPiece, Op::kInputs> row(lanes, partials, D, notes, rows);
  NoSums none;
  const int of_block = blockDim.x / lanes;
  for (int64_t first = int64_t{blockIdx.x} * of_block; first < rows;
       first += int64_t{gridDim.x} * of_block) {
    row.Take(first + threadIdx.x / lanes, rows);
    op.WithColumns([&](const auto&... columns) { op(row, none, [] {}, row.Columns(columns)...); });
  }
}

constexpr int kRowLanes = 8;  // threads that share columns

// add(notes, inputs, columns...) of each row of this thread.
template <typename T, int kPer, typename Op, typename F, typename... Columns>
__device__ void AddRows(const Op& op, int64_t rows, int64_t d, const Wide<T>* notes, const F& add,
                        const Columns&... columns) {
  using W = Wide<T>;
  const int64_t step = int64_t{gridDim.y} * kRowLanes;
#pragma unroll 2
  for (int64_t row = int64_t{blockIdx.y} * kRowLanes + threadIdx.y; row < rows; row += step) {
    Piece<W, kPer> v[Op::kInputs];
#pragma unroll
    for (int n = 0; n < Op::kInputs; ++n) v[n] = ReadPieceOf<T, kPer>(op.in[n], row, d);
    add(Notes<W>{{notes[row], notes[rows + row]}}, v, columns...);
  }
}

// Block (b, c): 32 pieces of columns from 32 b on, rows c * kRowLanes + lane, ... of every
// gridDim.y * kRowLanes.
template <typename T, int kPer, typename Op>
__global__ void __launch_bounds__(32 * kRowLanes)
    SumDownColumns(const __grid_constant__ Op op, int64_t rows, int64_t D, const Wide<T>* notes,
                   Wide<T>* parts) {
  using W = Wide<T>;
  __shared__ W shared[kRowLanes][Op::kSums][kPer][32];
  const int64_t d = (int64_t{blockIdx.x} * 32 + threadIdx.x) * kPer;
  W sums[kPer][Op::kSums] = {};
  const auto add = [&](const Notes<W>& noted, const Piece<W, kPer>(&v)[Op::kInputs],
                       const auto&... columns) {
#pragma unroll
    for (int k = 0; k < kPer; ++k) {
      W each[Op::kInputs];
#pragma unroll
      for (int n = 0; n < Op::kInputs; ++n) each[n] = v[n].at[k];
      Op::AddColumn(sums[k], noted, each, columns.at[k]...);
    }
  };
  op.WithColumns([&](const auto&... columns) {
    if (d < D) AddRows<T, kPer>(op, rows, d, notes, add, ReadColumns<kPer, W>(columns, d)...);
  });
#pragma unroll
  for (int s = 0; s < Op::kSums; ++s) {
#pragma unroll
    for (int k = 0; k < kPer; ++k) shared[threadIdx.y][s][k][threadIdx.x] = sums[k][s];
  }
  __syncthreads();
  if (threadIdx.y || d >= D) return;
#pragma unroll
  for (int s = 0; s < Op::kSums; ++s) {
#pragma unroll
    for (int k = 0; k < kPer; ++k) {
      W sum = sums[k][s];
      for (int i = 1; i < kRowLanes; ++i) sum += shared[i][s][k][threadIdx.x];
      parts[(int64_t{blockIdx.y} * Op::kSums + s) * D + d + k] = sum;
    }
  }
}

// ---- launches ----

// A call: what RunRowsAndSums goes through, one step after the other.
template <typename T, int kSums>
struct SummingCall {
  using W = Wide<T>;
  AnyopCall* call;
  RowShape shape;
  SumsTo<kSums> to;
  Limits limits = {};

  bool WantsSums() const {
    for (const char* data : to.data) {
      if (data) return true;
    }
    return false;
  }
  W* Workspace(int64_t count) const {
    return static_cast<W*>(call->workspace(call, count * int64_t{sizeof(W)}));
  }
  int32_t Add(const W* parts, int64_t count, bool overlaps) const {
    return RunAddParts(call, parts, to, count, shape.D, overlaps);
  }

  template <int kVectors, typename Op>
  int32_t InRing(const Op& op, int slice, unsigned slices, int threads, int stages,
                 bool* fits) const {
    const auto kernel = SumInRing<T, kVectors, Op>;
    const int bytes = stages * Op::kInputs * 16 * slice;
    if (int32_t status = Check(
            call, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
            "asking for shared memory"))
      return status;
    Launch launch{dim3(slices), dim3(threads), static_cast<size_t>(bytes), false, slices};
    int walkers = limits.multiprocessors * (kMaxSummingThreads / threads);
    if (slices > 1) {
      if (int32_t status = launch.CountClusters(call, kernel, &walkers)) return status;
      *fits = walkers > 0;
      if (!*fits) return kAnyopOk;
    }
    // Equally many rows for every walker: no turn that only a few of them take.
    const int64_t turns = CeilDiv(shape.rows, walkers), count = CeilDiv(shape.rows, turns);
    W* parts = WantsSums() ? Workspace(count * kSums * shape.D) : nullptr;
    if (WantsSums() && !parts) return kAnyopOutOfMemory;
    launch.grid = dim3(static_cast<unsigned>(count) * slices);
    const int vectors = static_cast<int>(shape.D / kPerVector<T>), n = static_cast<int>(slices);
    if (int32_t status = launch.Run(call, kernel, op, shape.rows, vectors, slice, n, stages, parts))
      return status;
    return parts ? Add(parts, count, limits.major >= 9) : kAnyopOk;
  }

  // Rows of 33 vectors and more; *fits is false where they are too long, or shared memory is too
  // small for them.
  template <typename Op>
  int32_t RunInRing(const Op& op, bool* fits) const {
    constexpr int64_t kKept = 2048;  // of each block, for its own variables and the system
    constexpr int64_t kMaxStages = 3, kOfTwo = 2 * kMaxSummingThreads, kOfFour = 2 * kOfTwo;
    const int64_t vectors = shape.D / kPerVector<T>;
    unsigned slices = 1;
    if (limits.major >= 9) {
      while (slices < kMaxSlices && vectors > slices * (kHasRegisters<T, 4, Op> ? kOfFour : kOfTwo))
        slices *= 2;
    }
    const int64_t slice = CeilDiv(vectors, slices);
    *fits = slice <= kOfFour;
    if (!*fits) return kAnyopOk;
    const int of_thread = slice > kOfTwo ? 4 : 2;
    int threads = static_cast<int>(CeilDiv(CeilDiv(slice, of_thread), 32) * 32);
    if (threads < 64) threads = 64;  // so that threads meet at barriers of the block
    const int64_t room = limits.shared_bytes / (kMaxSummingThreads / threads) - kKept,
                  most = limits.shared_bytes_of_block - kKept;
    int64_t stages = (room < most ? room : most) / (Op::kInputs * 16 * slice);
    *fits = stages >= 1;
    if (!*fits) return kAnyopOk;
    if (stages > kMaxStages) stages = kMaxStages;
    const int s = static_cast<int>(slice), n = static_cast<int>(stages);
    // Not plain: one kernel for both, whose threads take the same columns.
    if constexpr (Op::kPlain) {
      if (of_thread == 2) return InRing<2>(op, s, slices, threads, n, fits);
    }
    return InRing<4>(op, s, slices, threads, n, fits);
  }

  // Rows of up to 32 vectors.
  template <typename Op>
  int32_t RunInLanes(const Op& op) const {
    const RowThreads threads(shape.D / kPerVector<T>, 1, 32);
    const int64_t of_block = threads.threads / threads.lanes;
    const int64_t most = int64_t{limits.multiprocessors} * 8,
                  needed = CeilDiv(shape.rows, of_block);
    const int64_t blocks = needed < most ? needed : most;
    W* parts = WantsSums() ? Workspace(blocks * of_block * kSums * shape.D) : nullptr;
    if (WantsSums() && !parts) return kAnyopOutOfMemory;
    const Launch launch{dim3(static_cast<unsigned>(blocks)), dim3(threads.threads)};
    if (int32_t status =
            launch.Run(call, SumInLanes<T, Op>, op, shape.rows, shape.D, threads.lanes, parts))
      return status;
    return parts ? Add(parts, blocks * of_block, limits.major >= 9) : kAnyopOk;
  }

  template <int kPer, typename Op>
  int32_t RunInStreams(const Op& op) const {
    W* notes = nullptr;
    if (WantsSums()) {
      notes = Workspace(shape.rows * 2);
      if (!notes) return kAnyopOutOfMemory;
    }
    const RowThreads threads(shape.D / kPer, 4, 1024);
    if (int32_t status =
            threads.LaunchFor(shape.rows)
                .Run(call, NoteRows<T, kPer, Op>, op, shape.rows, shape.D, threads.lanes, notes))
      return status;
    if (!notes) return kAnyopOk;
    // Enough blocks for the device, no more parts than needed for that.
    const int64_t blocks = CeilDiv(shape.D, 32 * kPer);
    const int64_t wanted = CeilDiv(int64_t{limits.multiprocessors} * 8, blocks);
    const int64_t most = CeilDiv(shape.rows, kRowLanes);
    const int64_t count = wanted < most ? wanted : most;
    W* parts = Workspace(count * kSums * shape.D);
    if (!parts) return kAnyopOutOfMemory;
    const Launch launch{dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(count)),
                        dim3(32, kRowLanes)};
    const W* noted = notes;
    if (int32_t status =
            launch.Run(call, SumDownColumns<T, kPer, Op>, op, shape.rows, shape.D, noted, parts))
      return status;
    return Add(parts, count, false);
  }
};

// Runs make(kAny) as RunRows does, and writes the sums over rows to `sums`.
template <typename T, typename Make, size_t kRead, size_t kWritten, size_t kSums>
int32_t RunRowsAndSums(AnyopCall* call, RowShape shape, const AnyopTensor* const (&read)[kRead],
                       const AnyopTensor* const (&written)[kWritten],
                       const AnyopTensor* const (&sums)[kSums], const Make& make) {
  SummingCall<T, static_cast<int>(kSums)> run = {call, shape, {}};
  for (size_t s = 0; s < kSums; ++s) {
    run.to.data[s] = sums[s] ? static_cast<char*>(sums[s]->data) : nullptr;
    run.to.dtype[s] = sums[s] ? AnyopDtypeOf(sums[s]) : kAnyopNoDtype;
  }
  if (shape.D == 0) return kAnyopOk;
  if (shape.D > int64_t{32} * 0x7fffffff)  // more blocks than a grid has
    return call->fail(call, kAnyopNotImplemented, "rows are longer than 2^36");
  if (shape.rows == 0) return run.WantsSums() ? run.Add(nullptr, 0, false) : kAnyopOk;
  if (int32_t status = ReadLimits(call, &run.limits)) return status;
  const RowsFit fit = FitRows<T>(shape, read, written);
  const int64_t vectors = shape.D / kPerVector<T>;
  if constexpr (sizeof(T) < 8) {  // as in RunRows
    if (fit.vectors && fit.one_stride && vectors <= 32)
      return fit.plain ? run.RunInLanes(make(std::false_type()))
                       : run.RunInLanes(make(std::true_type()));
    if (fit.vectors && fit.one_stride) {
      bool fits = false;
      const int32_t status = fit.plain ? run.RunInRing(make(std::false_type()), &fits)
                                       : run.RunInRing(make(std::true_type()), &fits);
      if (fits || status) return status;
    }
  }
  if constexpr (sizeof(T) < 8) {
    if (fit.vectors) return run.template RunInStreams<kPerVector<T>>(make(std::true_type()));
  }
  return run.template RunInStreams<1>(make(std::true_type()));
}

}  // namespace anyop::cuda

#endif  // ANYOP_CUDA_ROW_SUMS_H_
