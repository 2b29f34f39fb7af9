/* SPDX-License-Identifier: Apache-2.0 */
/* One row of a CUDA kernel whose columns are summed as well: who holds what of it, and its sums. */
#ifndef ANYOP_CUDA_SUMMING_ROW_H_
#define ANYOP_CUDA_SUMMING_ROW_H_

#include "anyop/cuda/ring.h"
#include "anyop/cuda/row.h"

// What an operator of cuda/row_sums.h is given as its row.
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
struct Meeting {
  W sums[2][kMeetingOfBlock + kMaxSlices * kMaxTotals];
  uint64_t barriers[2];  // of what other blocks write
};

// What a block has of its rows, in vectors; slices: the blocks that share a row, a cluster.
struct Slice {
  int first, count, of_row, slices;
};
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

  // By all threads of the cluster, before the first row and the ring's start.
  __device__ void Start() const {
#if __CUDA_ARCH__ >= 900
    if (slice_.slices == 1) return;
    if (threadIdx.x == 0) {
      for (uint64_t& barrier : meeting_.barriers) MakeBarrier(&barrier, 1);
      ShowBarriers();
    }
    asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
#endif
  }
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
    if constexpr (!kRing) {
      ForEach([&](W x) { v[0] += x; }, held);
      Totals(v);
      return v[0] * inverse_D;
    }

    // Words whose distance is odd lie in different banks.
    const int at = static_cast<int>(threadIdx.x) % 32 * ((slice_.of_row / 8 - 1) | 1);
    // Of a cluster each block has a slice only, and must come to the same bits.
    const void* from = in[n].At(index_);
#if __CUDA_ARCH__ >= 900
    if (slice_.slices == 1) from = stage_ + n * slice_.count;
#endif  // before, other threads' part of the stage may not be there yet
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
      W* const sums = meeting_.sums[turn_ & 1];
      if (lane < kCount) sums[warp * kCount + lane] = v[0];
      __syncthreads();
      Collect(sums, static_cast<int>(blockDim.x) / 32 * kCount, v);
#if __CUDA_ARCH__ >= 900
      if (slice_.slices > 1) {
        Tell(v, sums + kMeetingOfBlock);
        Collect(sums + kMeetingOfBlock, slice_.slices * kCount, v);
      }
#endif
      ++turn_;
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
  // Writes this block's values to `place` of every block of the cluster, one block's behind
  // another's, until all have come. Barriers take turns too: a block that is ahead by a turn counts
  // for the other one, and none can be ahead by two.
  template <int kCount>
  __device__ void Tell(const W (&v)[kCount], const W* place) const {
    static_assert(sizeof(W) == 4, "");
    uint64_t* const barrier = meeting_.barriers + (turn_ & 1);
    const int value = threadIdx.x % kCount, block = threadIdx.x / kCount;
    if (block < slice_.slices) {
      W mine = v[0];
#pragma unroll
      for (int c = 1; c < kCount; ++c) mine = value == c ? v[c] : mine;
      unsigned rank, to, signal;
      asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
      asm("mapa.shared::cluster.u32 %0, %1, %2;"
          : "=r"(to)
          : "r"(SharedAddress(place + rank * kCount + value)), "r"(block));
      asm("mapa.shared::cluster.u32 %0, %1, %2;"
          : "=r"(signal)
          : "r"(SharedAddress(barrier)), "r"(block));
      asm volatile(
          "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(to),
          "r"(__float_as_uint(mine)), "r"(signal)
          : "memory");
    }
    if (threadIdx.x == 0) ArriveFor(barrier, slice_.slices * kCount * 4);
    WaitFor(barrier, turn_ >> 1 & 1);
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
    if constexpr (kInputs == 2) return {{this->Read(in[0]), this->Read(in[1])}};
    if constexpr (kInputs == 3) return {{this->Read(in[0]), this->Read(in[1]), this->Read(in[2])}};
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
#pragma unroll(kPer > 1 ? 2 : Base::kAhead)
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

}  // namespace anyop::cuda

#endif  // ANYOP_CUDA_SUMMING_ROW_H_
