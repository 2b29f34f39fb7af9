/* SPDX-License-Identifier: Apache-2.0 */
/* The row scheme of CUDA kernels (cuda/row.h): a row that lies in registers. */
#ifndef ANYOP_CUDA_HELD_ROW_H_
#define ANYOP_CUDA_HELD_ROW_H_

#include "anyop/cuda/cluster.h"
#include "anyop/cuda/row_operands.h"

namespace anyop::cuda {

// A thread holds pieces lane, lane + lanes, ... of 16 bytes of each row that it reads.
template <typename T, int kVectors>
struct HeldRow {
  uint4 bits[kVectors];
};
// The same for the second time: the compiler would keep the elements of the first across a barrier.
template <typename T, int kVectors>
struct HeldAgain {
  const HeldRow<T, kVectors>& held;
};
template <typename Columns>
__device__ uint4 LoadColumns(const Columns& columns, int vector) {
  return LoadNow(reinterpret_cast<const uint4*>(columns.data) + vector);
}
template <typename ColumnsType, int kVectors>
struct HeldColumns {
  static constexpr bool kEarly = kVectors <= 4;  // loaded while the threads meet
  const ColumnsType& columns;
  uint4 bits[kEarly ? kVectors : 1];
};

// Loaded each time, from the first cache.
template <typename ColumnsType>
struct LateColumns {
  const ColumnsType& columns;
};

// What a block has of its rows: all, or a part; kSlice: that of its blockIdx.y, for an operator
// that does not join all of a row; kCluster: that of its rank.
enum class Share { kAll, kSlice, kCluster };

template <typename T, int kVectors, Share kShare = Share::kAll>
class RegisterRow
    : public std::conditional_t<kShare == Share::kCluster, ClusterTeam<Wide<T>>, RowTeam<Wide<T>>> {
 public:
  static constexpr bool kInCluster = kShare == Share::kCluster;
  using W = Wide<T>;
  using Team = std::conditional_t<kInCluster, ClusterTeam<W>, RowTeam<W>>;
  using TeamPartials = std::conditional_t<kInCluster, ClusterPartials<W>, Partials<W>>;
  static constexpr int kPer = kPerVector<T>;

  __device__ RegisterRow(int lanes, TeamPartials& partials, int64_t D)
      : Team(lanes, partials), vectors_(static_cast<int>(D / kPer)) {
    if constexpr (kShare == Share::kSlice) begin_ = static_cast<int>(blockIdx.y) * kVectors * lanes;
    if constexpr (kInCluster) begin_ = RankInCluster() * kVectors * lanes;
  }
  __device__ void Take(int64_t row, int64_t rows) {
    Team::Take(row, rows);
    mine_ = this->inside_ ? vectors_ : 0;
  }
  // Of the row that was taken, what comes next sees the first n columns alone, in whole pieces.
  __device__ void Keep(int64_t n) {
    const int64_t kept = (n + kPer - 1) / kPer;
    if (this->inside_) mine_ = static_cast<int>(kept < vectors_ ? kept : vectors_);
  }

  __device__ HeldRow<T, kVectors> Read(const RowsAt<false>& from) const {
    HeldRow<T, kVectors> held;  // what lies behind the row is never used
    const auto* row = reinterpret_cast<const uint4*>(from.At(this->inside_ ? this->index_ : 0));
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (At(i) < mine_) held.bits[i] = LoadNow(row + At(i));
    }
    return held;
  }
  __device__ HeldFlags<kVectors, kPer> Read(const FlagsAt& from) const {
    HeldFlags<kVectors, kPer> held;
    const char* row = from.At(this->inside_ ? this->index_ : 0);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (At(i) < mine_) held.of[i] = ReadFlags<kPer>(from, row, int64_t{At(i)} * kPer);
    }
    return held;
  }
  __device__ BehindFlags Behind(int64_t n) const { return {n}; }
  // For a second Sum.
  __device__ HeldAgain<T, kVectors> Again(const HeldRow<T, kVectors>& held) const { return {held}; }

  // Elements times sign, which is 1 or -1.
  __device__ HeldRow<T, kVectors> Signed(HeldRow<T, kVectors> held, W sign) const {
    const unsigned flips = sign > 0 ? 0 : sizeof(T) == 2 ? 0x80008000u : 0x80000000u;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      uint4& bits = held.bits[i];
      bits.x ^= flips, bits.y ^= flips, bits.z ^= flips, bits.w ^= flips;
    }
    return held;
  }
  // With `value` where there is a flag.
  __device__ HeldRow<T, kVectors> Replace(HeldRow<T, kVectors> held,
                                          const HeldFlags<kVectors, kPer>& flags, W value) const {
    const uint4 values = Pack<T>(All(value));
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
      held.bits[i] = cuda::Replace<T>(held.bits[i], flags.of[i], values);
    return held;
  }
  __device__ HeldRow<T, kVectors> Replace(HeldRow<T, kVectors> held, const BehindFlags& flags,
                                          W value) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int64_t kept = flags.n - int64_t{At(i)} * kPer;
      if (kept >= kPer) continue;
      Unpacked<T> v = Unpack<T>(held.bits[i]);
#pragma unroll
      for (int k = 0; k < kPer; ++k) v.at[k] = k < kept ? v.at[k] : value;
      held.bits[i] = Pack<T>(v);
    }
    return held;
  }

  template <typename ColumnsType>
  __device__ HeldColumns<ColumnsType, kVectors> Columns(const ColumnsType& from) const {
    HeldColumns<ColumnsType, kVectors> columns{from, {}};
    if constexpr (IsEarly<ColumnsType>()) {
      if (from.data) {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
          if (At(i) < mine_) columns.bits[i] = LoadColumns(from, At(i));
        }
      }
    }
    return columns;
  }

  // Sum over the row: sum = f(sum, elements...).
  template <typename F, typename... Held>
  __device__ W Sum(const F& f, const Held&... held) {
    return this->Total(Fold(W(0), f, held...));
  }
  // Two at once.
  template <typename F, typename G, typename... Held>
  __device__ void TwoSums(W* first, W* second, const F& f, const G& g, const Held&... held) {
    *first = Fold(W(0), f, held...);
    *second = Fold(W(0), g, held...);
    this->Totals(*first, *second);
  }
  template <typename F, typename... Held>
  __device__ W Max(const F& f, const Held&... held) {
    return this->Greatest(Fold(
        static_cast<W>(-INFINITY), [&](W most, auto... v) { return fmax(most, f(v...)); },
        held...));
  }
  // The greatest element, but for NaN.
  __device__ W Most(const HeldRow<T, kVectors>& held) { return this->Greatest(MostOfThread(held)); }
  // The greatest magnitude of the elements of this thread; of a NaN, NaN.
  __device__ W MostMagnitude(const HeldRow<T, kVectors>& held) const {
    if constexpr (sizeof(T) == 2) {  // two at once
      unsigned most = 0;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (At(i) >= mine_) continue;
        const uint4& bits = held.bits[i];
        for (unsigned two : {bits.x, bits.y, bits.z, bits.w})
          most = MaxMagnitudeOfTwo(T(), most, two);
      }
      return GreaterMagnitude()(WidenLow(T(), most), WidenHigh(T(), most));
    } else {
      return Fold(W(0), GreaterMagnitude(), held);
    }
  }
  // Of this thread alone.
  template <typename F, typename... Held>
  __device__ W Fold(W start, const F& f, const Held&... held) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (At(i) < mine_) start = FoldPiece(start, f, Elements(held, i)...);
    }
    return start;
  }

  // out[d] = f(elements...)
  template <typename F, typename... Held>
  __device__ void Write(const RowsAt<false>& out, const F& f, const Held&... held) const {
    if (!this->inside_) return;
    char* row = out.At(this->index_);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (At(i) < mine_) Store(row, i, Pack<T>(Apply(f, Later(held, i)...)));
    }
  }
  // Zeros behind what Keep left.
  __device__ void WriteRest(const RowsAt<false>& out) const {
    if (!this->inside_) return;
    char* row = out.At(this->index_);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (At(i) >= mine_ && At(i) < vectors_) Store(row, i, Pack<T>(Unpacked<T>{}));
    }
  }
  // use(d, pieces...)
  template <typename Use, typename... Held>
  __device__ void EachPiece(const Use& use, const Held&... held) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (At(i) < mine_) use(int64_t{At(i)} * kPer, Later(held, i)...);
    }
  }
  // use(d, most, pieces...), most being what join makes of f(0, elements...) of `group` columns: a
  // power of two of pieces that divides the threads of the row.
  template <typename F, typename Join, typename Use, typename... Held>
  __device__ void EachGroup(int64_t group, const F& f, const Join& join, const Use& use,
                            const Held&... held) const {
    const int lanes = static_cast<int>(group / kPer);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const bool there = At(i) < mine_;
      const auto each = [&](const auto&... pieces) {
        const W most = this->JoinLanes(there ? FoldPiece(W(0), f, pieces...) : W(0), lanes, join);
        if (there) use(int64_t{At(i)} * kPer, most, pieces...);
      };
      each(Later(held, i)...);
    }
  }
  // Writes it too, and holds what was written, rounded.
  template <typename F, typename... Held>
  __device__ HeldRow<T, kVectors> WriteAndHold(const RowsAt<false>& out, const F& f,
                                               const Held&... held) const {
    HeldRow<T, kVectors> made;
    char* row = out.At(this->inside_ ? this->index_ : 0);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      made.bits[i] = Pack<T>(Apply(f, Elements(held, i)...));
      if (At(i) < mine_) Store(row, i, made.bits[i]);
    }
    return made;
  }

 protected:
  template <typename ColumnsType>
  static constexpr bool IsEarly() {
    return HeldColumns<ColumnsType, kVectors>::kEarly &&
           sizeof(typename ColumnsType::Type) == sizeof(T);
  }
  __device__ int At(int i) const { return begin_ + this->lane() + i * this->lanes_; }

  __device__ Unpacked<T> Elements(const HeldRow<T, kVectors>& held, int i) const {
    return Unpack<T>(held.bits[i]);
  }
  __device__ Unpacked<T> Elements(const HeldAgain<T, kVectors>& again, int i) const {
    return kVectors <= 2 ? Unpack<T>(again.held.bits[i]) : UnpackAgain<T>(again.held.bits[i]);
  }
  template <typename ColumnsType>
  __device__ Unpacked<T> Elements(const HeldColumns<ColumnsType, kVectors>& held, int i) const {
    if constexpr (IsEarly<ColumnsType>()) {
      Unpacked<T> wide;
      const Unpacked<typename ColumnsType::Type> some =
          Unpack<typename ColumnsType::Type>(held.bits[i]);
#pragma unroll
      for (int k = 0; k < kPer; ++k) wide.at[k] = held.columns.Plus(some.at[k]);
      return wide;
    } else {
      return Elements(LateColumns<ColumnsType>{held.columns}, i);
    }
  }
  template <typename ColumnsType>
  __device__ Unpacked<T> Elements(const LateColumns<ColumnsType>& late, int i) const {
    const auto some = ReadColumns<kPer, W>(late.columns, int64_t{At(i)} * kPer);
    Unpacked<T> wide;
#pragma unroll
    for (int k = 0; k < kPer; ++k) wide.at[k] = some.at[k];
    return wide;
  }
  __device__ Flags<kPer> Elements(const HeldFlags<kVectors, kPer>& held, int i) const {
    return held.of[i];
  }
  __device__ BehindFlags Elements(const BehindFlags& held, int i) const {
    return held.From(int64_t{At(i)} * kPer);
  }
  // What comes behind a reduction.
  __device__ Unpacked<T> Later(const HeldRow<T, kVectors>& held, int i) const {
    return Elements(Again(held), i);
  }
  template <typename Held>
  __device__ auto Later(const Held& held, int i) const {
    return Elements(held, i);
  }

  __device__ static Unpacked<T> All(W v) {
    Unpacked<T> all;
#pragma unroll
    for (int k = 0; k < kPer; ++k) all.at[k] = v;
    return all;
  }
  __device__ W MostOfThread(const HeldRow<T, kVectors>& held) const {
    const W least = static_cast<W>(-INFINITY);
    if constexpr (sizeof(T) == 2) {  // two at once
      unsigned most = NarrowTwo(T(), least, least);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (At(i) >= mine_) continue;
        const uint4& bits = held.bits[i];
        most = MaxOfTwo(T(), most, MaxOfTwo(T(), bits.x, bits.y));
        most = MaxOfTwo(T(), most, MaxOfTwo(T(), bits.z, bits.w));
      }
      return fmax(WidenLow(T(), most), WidenHigh(T(), most));
    } else {
      return Fold(least, [](W most, W v) { return fmax(most, v); }, held);
    }
  }

  template <typename F, typename... Pieces>
  __device__ static W FoldPiece(W start, const F& f, const Pieces&... pieces) {
#pragma unroll
    for (int k = 0; k < kPer; ++k) start = f(start, pieces[k]...);
    return start;
  }
  template <typename F, typename... Pieces>
  __device__ static Unpacked<T> Apply(const F& f, const Pieces&... pieces) {
    Unpacked<T> result;
#pragma unroll
    for (int k = 0; k < kPer; ++k) result.at[k] = f(pieces[k]...);
    return result;
  }
  __device__ void Store(char* row, int i, const uint4& bits) const {
    StoreAt(reinterpret_cast<T*>(row) + int64_t{At(i)} * kPer, true, bits);
  }

  int vectors_, mine_ = 0, begin_ = 0;
};

}  // namespace anyop::cuda

#endif  // ANYOP_CUDA_HELD_ROW_H_
