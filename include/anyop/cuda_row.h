/* SPDX-License-Identifier: Apache-2.0 */
/* The row scheme of CUDA kernels: an operator says what happens to one row, and each row is read
   from memory once. */
#ifndef ANYOP_CUDA_ROW_H_
#define ANYOP_CUDA_ROW_H_

#include "anyop/cuda_ring.h"
#include "anyop/cuda_row_operands.h"

// An operator is a struct of its operands with one function, which all threads of a row run:
//
//   template <typename Row>
//   __device__ void operator()(Row& row) const {
//     const auto v = row.Read(x);
//     const W squares = row.Sum([](W sum, W v) { return MulAdd(v, v, sum); }, v);
//     const W scale = ReciprocalRoot(MulAdd(squares, inverse_D, eps));
//     row.Write(out, [=](W v, W w) { return v * scale * w; }, v, row.Columns(weight));
//   }
//
// and, where rows may be copied ahead, what they are read from, in the order of its Reads:
//
//   static constexpr int kInputs = 1;
//   __device__ const char* InputAt(int, int64_t row) const { return x.At(row); }
//
// RunRows chooses who the threads are. Rows of vectors of 16 bytes lie in registers, shared by 1 to
// 32 lanes of a warp or by a block. Long ones are copied to shared memory a turn ahead, by a block
// or (Hopper) by a cluster of blocks. Rows that are too long for that, not aligned or of several
// dtypes are read again for each Sum, Max and Write, from the second cache.
namespace anyop::cuda {

// ---- a row in registers ----

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
template <typename T, bool kAny>
__device__ uint4 LoadColumns(const ColumnsAt<T, kAny>& columns, int vector) {
  if constexpr (!kAny) return LoadNow(reinterpret_cast<const uint4*>(columns.data) + vector);
  return LoadAt(columns.data + int64_t{vector} * kPerVector<T>, columns.aligned());
}
template <typename T, int kVectors, bool kAny>
struct HeldColumns {
  static constexpr bool kEarly = kVectors <= 4;  // loaded while the threads meet
  const ColumnsAt<T, kAny>& columns;
  uint4 bits[kEarly ? kVectors : 1];
};

// What a block has of its rows: all, or a part; kSlice: that of its blockIdx.y, for an operator
// that does not join all of a row; kCluster: that of its rank.
enum class Share { kAll, kSlice, kCluster };

template <typename T, int kVectors, Share kShare = Share::kAll>
class RegisterRow : public RowTeam<Wide<T>, kShare == Share::kCluster> {
 public:
  using W = Wide<T>;
  using Team = RowTeam<W, kShare == Share::kCluster>;
  using TeamPartials = Partials<W, kShare == Share::kCluster>;
  static constexpr int kPer = kPerVector<T>;

  // slice: vectors of a block of a cluster.
  __device__ RegisterRow(int lanes, TeamPartials& partials, int64_t D, int slice = 0)
      : Team(lanes, partials), vectors_(static_cast<int>(D / kPer)) {
    if constexpr (kShare == Share::kSlice) begin_ = static_cast<int>(blockIdx.y) * kVectors * lanes;
    if constexpr (kShare == Share::kCluster) {
      begin_ = RankInCluster() * slice;
      if (vectors_ > begin_ + slice) vectors_ = begin_ + slice;
    }
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

  template <bool kAny>
  __device__ HeldRow<T, kVectors> Read(const RowsAt<kAny>& from) const {
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

  template <typename TW, bool kAny>
  __device__ HeldColumns<TW, kVectors, kAny> Columns(const ColumnsAt<TW, kAny>& from) const {
    HeldColumns<TW, kVectors, kAny> columns{from, {}};
    if constexpr (IsEarly<TW>()) {
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
  template <typename F, typename... Held>
  __device__ W Max(const F& f, const Held&... held) {
    return this->Greatest(Fold(
        static_cast<W>(-INFINITY), [&](W most, auto... v) { return fmax(most, f(v...)); },
        held...));
  }
  // The greatest element, but for NaN.
  __device__ W Most(const HeldRow<T, kVectors>& held) { return this->Greatest(MostOfThread(held)); }
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
  template <bool kAny, typename F, typename... Held>
  __device__ void Write(const RowsAt<kAny>& out, const F& f, const Held&... held) const {
    if (!this->inside_) return;
    char* row = out.At(this->index_);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (At(i) < mine_) WritePieceAt(out, row, int64_t{At(i)} * kPer, Apply(f, Later(held, i)...));
    }
  }
  // Zeros behind what Keep left.
  template <bool kAny>
  __device__ void WriteRest(const RowsAt<kAny>& out) const {
    if (!this->inside_) return;
    char* row = out.At(this->index_);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (At(i) >= mine_ && At(i) < vectors_)
        WritePieceAt(out, row, int64_t{At(i)} * kPer, Unpacked<T>{});
    }
  }
  // use(d, most, pieces...), most being what join makes of f(0, elements...) of `group` columns: a
  // power of two of pieces that divides the threads of the row; 0: no groups, and most is 0.
  template <typename F, typename Join, typename Use, typename... Held>
  __device__ void EachGroup(int64_t group, const F& f, const Join& join, const Use& use,
                            const Held&... held) const {
    const int lanes = static_cast<int>(group / kPer);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const bool there = At(i) < mine_;
      const auto each = [&](const auto&... pieces) {
        W most = there && group ? FoldPiece(W(0), f, pieces...) : W(0);
        most = this->JoinLanes(most, lanes, join);
        if (there) use(int64_t{At(i)} * kPer, most, pieces...);
      };
      each(Later(held, i)...);
    }
  }
  // Writes it too, and holds what was written, rounded. out is of the kernel's type.
  template <bool kAny, typename F, typename... Held>
  __device__ HeldRow<T, kVectors> WriteAndHold(const RowsAt<kAny>& out, const F& f,
                                               const Held&... held) const {
    HeldRow<T, kVectors> made;
    char* row = out.At(this->inside_ ? this->index_ : 0);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      made.bits[i] = Pack<T>(Apply(f, Elements(held, i)...));
      if (At(i) < mine_)
        StoreAt(reinterpret_cast<T*>(row) + int64_t{At(i)} * kPer, out.aligned, made.bits[i]);
    }
    return made;
  }

 protected:
  template <typename TW>
  static constexpr bool IsEarly() {
    return HeldColumns<TW, kVectors, false>::kEarly && sizeof(TW) == sizeof(T);
  }
  __device__ int At(int i) const { return begin_ + this->lane() + i * this->lanes_; }

  __device__ Unpacked<T> Elements(const HeldRow<T, kVectors>& held, int i) const {
    return Unpack<T>(held.bits[i]);
  }
  __device__ Unpacked<T> Elements(const HeldAgain<T, kVectors>& again, int i) const {
    return kVectors <= 2 ? Unpack<T>(again.held.bits[i]) : UnpackAgain<T>(again.held.bits[i]);
  }
  template <typename TW, bool kAny>
  __device__ Unpacked<T> Elements(const HeldColumns<TW, kVectors, kAny>& held, int i) const {
    Unpacked<T> wide;
    if constexpr (IsEarly<TW>()) {
      const Unpacked<TW> some = Unpack<TW>(held.bits[i]);
#pragma unroll
      for (int k = 0; k < kPer; ++k) wide.at[k] = some.at[k] + held.columns.add;
    } else {
      const auto some = ReadColumns<kPer, W>(held.columns, int64_t{At(i)} * kPer);
#pragma unroll
      for (int k = 0; k < kPer; ++k) wide.at[k] = some.at[k];
    }
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
  template <bool kAny>
  __device__ static void WritePieceAt(const RowsAt<kAny>& out, char* row, int64_t at,
                                      const Unpacked<T>& v) {
    if (out.template IsOf<T>()) {
      StoreAt(reinterpret_cast<T*>(row) + at, out.aligned, Pack<T>(v));
      return;
    }
#pragma unroll
    for (int k = 0; k < kPer; ++k) WriteFloating<W>(row, at + k, out.dtype(), v.at[k]);
  }

  int vectors_, mine_ = 0, begin_ = 0;
};

// ---- a row copied ahead ----

// What Op says that its rows are read from; 0 where it does not.
template <typename Op, typename = void>
constexpr int kInputsOf = 0;
template <typename Op>
constexpr int kInputsOf<Op, std::void_t<decltype(Op::kInputs)>> = Op::kInputs;

// A block has a slice of its cluster's rows; the next row's is copied to shared memory as soon as
// this one's is in registers, which the threads know where they have met.
template <typename T, int kVectors, typename Op>
class RingRow : public RegisterRow<T, kVectors, Share::kCluster> {
 public:
  using Base = RegisterRow<T, kVectors, Share::kCluster>;
  using typename Base::W;
  using Ring = RowRing<Op::kInputs>;

  __device__ RingRow(const Op& op, typename Base::TeamPartials& partials,
                     uint64_t (&barriers)[Ring::kMaxStages], int64_t rows, int64_t D, int slice)
      : Base(blockDim.x, partials, D, slice),
        op_(op),
        rows_(rows),
        step_(gridDim.x / BlocksOfCluster()),
        ring_(DynamicShared(), barriers, 1, this->vectors_ - this->begin_) {
    ring_.Start(blockIdx.x / BlocksOfCluster(), step_, rows, From());
  }
  // Op on all rows of the cluster.
  __device__ void Run() {
    for (int64_t row = blockIdx.x / BlocksOfCluster(); row < rows_; row += step_) {
      this->Take(row, rows_);
      stage_ = ring_.Wait(0);
      copied_ = false;
      op_(*this);
      if (copied_) continue;
      __syncthreads();
      CopyNext();
    }
    this->Leave();
  }

  template <bool kAny>
  __device__ HeldRow<T, kVectors> Read(const RowsAt<kAny>&) {
    HeldRow<T, kVectors> held;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (this->At(i) < this->mine_) held.bits[i] = stage_[this->At(i) - this->begin_];
    }
    stage_ += this->vectors_ - this->begin_;
    return held;
  }
  using Base::Read;  // of flags
  template <typename F, typename... Held>
  __device__ W Sum(const F& f, const Held&... held) {
    return Met(Base::Sum(f, held...));
  }
  template <typename F, typename... Held>
  __device__ W Max(const F& f, const Held&... held) {
    return Met(Base::Max(f, held...));
  }
  template <typename F>
  __device__ W Join(W v, W none, const F& join) {
    return Met(Base::Join(v, none, join));
  }
  __device__ W Most(const HeldRow<T, kVectors>& held) { return Met(Base::Most(held)); }

 private:
  __device__ auto From() const {
    return [this](int input, int64_t row) {
      return reinterpret_cast<const uint4*>(op_.InputAt(input, row)) + this->begin_;
    };
  }
  __device__ void CopyNext() {
    ring_.Refill(this->index_ + step_, rows_, From());
    copied_ = true;
  }
  __device__ W Met(W v) {
    if (!copied_) CopyNext();
    return v;
  }

  const Op& op_;
  int64_t rows_, step_;
  Ring ring_;
  const uint4* stage_ = nullptr;
  bool copied_ = false;
};

// ---- any row ----

// A row that is read each time: in pieces of 16 bytes, or by elements of any dtype.
template <bool kAny>
struct StreamedRow {
  const RowsAt<kAny>& rows;
};
template <typename T>
struct StreamedSigned {
  const RowsAt<true>& rows;
  Wide<T> sign;
};
template <typename Held, typename FlagsHeld, typename W>
struct StreamedReplaced {
  Held held;
  FlagsHeld flags;
  W value;
};
template <typename T, bool kAny>
struct StreamedColumns {
  const ColumnsAt<T, kAny>& columns;
};

template <typename T, int kPiece>
class StreamRow : public RowTeam<Wide<T>> {
 public:
  using W = Wide<T>;
  using TeamPartials = Partials<W>;
  static constexpr int kPer = kPiece;

  __device__ StreamRow(int lanes, Partials<W>& partials, int64_t D)
      : RowTeam<W>(lanes, partials), pieces_(D / kPer) {}
  __device__ void Take(int64_t row, int64_t rows) {
    RowTeam<W>::Take(row, rows);
    mine_ = this->inside_ ? pieces_ : 0;
  }
  __device__ void Keep(int64_t n) {
    if (this->inside_) mine_ = (n + kPer - 1) / kPer;
  }

  __device__ StreamedRow<true> Read(const RowsAt<true>& from) const { return {from}; }
  __device__ StreamedFlags Read(const FlagsAt& from) const { return {from}; }
  __device__ BehindFlags Behind(int64_t n) const { return {n}; }
  template <typename Held>
  __device__ const Held& Again(const Held& row) const {
    return row;
  }
  __device__ StreamedSigned<T> Signed(const StreamedRow<true>& row, W sign) const {
    return {row.rows, sign};
  }
  template <typename Held, typename FlagsHeld>
  __device__ StreamedReplaced<Held, FlagsHeld, W> Replace(const Held& held, const FlagsHeld& flags,
                                                          W value) const {
    return {held, flags, value};
  }
  template <typename TW, bool kAny>
  __device__ StreamedColumns<TW, kAny> Columns(const ColumnsAt<TW, kAny>& from) const {
    return {from};
  }

  // A thread that has many elements adds up sums of a few: float32 keeps its digits.
  template <typename F, typename... Held>
  __device__ W Sum(const F& f, const Held&... held) {
    constexpr int kFew = 64 / kPer;
    W sum = 0;
    for (int64_t at = this->lane(); at < mine_; at += int64_t{kFew} * this->lanes_) {
      W few = 0;
      const int64_t end =
          at + int64_t{kFew} * this->lanes_ < mine_ ? at + int64_t{kFew} * this->lanes_ : mine_;
#pragma unroll 4
      for (int64_t i = at; i < end; i += this->lanes_)
        few = FoldPiece(few, f, Elements(held, i)...);
      sum += few;
    }
    return this->Total(sum);
  }
  template <typename F, typename... Held>
  __device__ W Max(const F& f, const Held&... held) {
    return this->Greatest(Fold(
        static_cast<W>(-INFINITY), [&](W most, auto... v) { return fmax(most, f(v...)); },
        held...));
  }
  template <typename Held>
  __device__ W Most(const Held& held) {
    return Max([](W v) { return v; }, held);
  }
  template <typename F, typename... Held>
  __device__ W Fold(W start, const F& f, const Held&... held) const {
#pragma unroll 4
    for (int64_t at = this->lane(); at < mine_; at += this->lanes_)
      start = FoldPiece(start, f, Elements(held, at)...);
    return start;
  }
  template <typename F, typename... Held>
  __device__ void Write(const RowsAt<true>& out, const F& f, const Held&... held) const {
    if (!this->inside_) return;
    char* row = out.At(this->index_);
#pragma unroll 2
    for (int64_t at = this->lane(); at < mine_; at += this->lanes_)
      WritePieceOf<T, kPer>(out, row, at * kPer, Apply(f, Elements(held, at)...));
  }
  __device__ void WriteRest(const RowsAt<true>& out) const {
    if (!this->inside_) return;
    char* row = out.At(this->index_);
    for (int64_t at = this->lane(); at < pieces_; at += this->lanes_) {
      if (at >= mine_) WritePieceOf<T, kPer>(out, row, at * kPer, Piece<W, kPer>{});
    }
  }
  // A group of any number of pieces: some lanes of a warp take one after the other.
  template <typename F, typename Join, typename Use, typename... Held>
  __device__ void EachGroup(int64_t group, const F& f, const Join& join, const Use& use,
                            const Held&... held) const {
    const int64_t pieces = group ? group / kPer : 1;
    int lanes = 1;
    while (lanes < pieces && lanes < 32 && lanes < this->lanes_) lanes *= 2;
    __syncwarp();  // what another lane has written may be read; a block has met before
    for (int64_t first = 0; first < pieces_; first += this->lanes_ / lanes * pieces) {
      const int64_t begin = first + this->lane() / lanes * pieces + this->lane() % lanes;
      const int64_t behind = begin - this->lane() % lanes + pieces,
                    end = behind < mine_ ? behind : mine_;
      W most = 0;
      for (int64_t at = begin; at < end && group; at += lanes)
        most = FoldPiece(most, f, Elements(held, at)...);
      most = this->JoinLanes(most, lanes, join);
      for (int64_t at = begin; at < end; at += lanes) use(at * kPer, most, Elements(held, at)...);
    }
  }
  // A thread reads again what it wrote itself.
  template <typename F, typename... Held>
  __device__ StreamedRow<true> WriteAndHold(const RowsAt<true>& out, const F& f,
                                            const Held&... held) const {
    Write(out, f, held...);
    return {out};
  }

 protected:
  __device__ Piece<W, kPer> Elements(const StreamedRow<true>& held, int64_t at) const {
    return ReadPieceOf<T, kPer>(held.rows, this->index_, at * kPer);
  }
  template <typename TW, bool kAny>
  __device__ Piece<W, kPer> Elements(const StreamedColumns<TW, kAny>& held, int64_t at) const {
    return ReadColumns<kPer, W>(held.columns, at * kPer);
  }
  __device__ Flags<kPer> Elements(const StreamedFlags& held, int64_t at) const {
    return ReadFlags<kPer>(held.flags, held.flags.At(this->index_), at * kPer);
  }
  __device__ Piece<W, kPer> Elements(const StreamedSigned<T>& held, int64_t at) const {
    Piece<W, kPer> v = Elements(StreamedRow<true>{held.rows}, at);
#pragma unroll
    for (int k = 0; k < kPer; ++k) v.at[k] *= held.sign;
    return v;
  }
  __device__ BehindFlags Elements(const BehindFlags& held, int64_t at) const {
    return held.From(at * kPer);
  }
  template <typename Held, typename FlagsHeld>
  __device__ Piece<W, kPer> Elements(const StreamedReplaced<Held, FlagsHeld, W>& held,
                                     int64_t at) const {
    Piece<W, kPer> v = Elements(held.held, at);
    const auto flags = Elements(held.flags, at);
#pragma unroll
    for (int k = 0; k < kPer; ++k) v.at[k] = flags[k] ? held.value : v.at[k];
    return v;
  }
  template <typename F, typename... Pieces>
  __device__ static W FoldPiece(W start, const F& f, const Pieces&... pieces) {
#pragma unroll
    for (int k = 0; k < kPer; ++k) start = f(start, pieces[k]...);
    return start;
  }
  template <typename F, typename... Pieces>
  __device__ static Piece<W, kPer> Apply(const F& f, const Pieces&... pieces) {
    Piece<W, kPer> result;
#pragma unroll
    for (int k = 0; k < kPer; ++k) result.at[k] = f(pieces[k]...);
    return result;
  }

  int64_t pieces_, mine_ = 0;
};

// ---- launches ----

// Vectors of a thread: 1 of rows of up to 32; else what Op asks for, up to so many threads, or 4 up
// to 256 threads; 8 of longer rows. MaxThreads: of a block; MinBlocks: that must fit on a
// multiprocessor, so that enough loads are on their way.
template <typename Op, typename = void>
constexpr int kVectorsOf = 4;
template <typename Op>
constexpr int kVectorsOf<Op, std::void_t<decltype(Op::kVectors)>> = Op::kVectors;

constexpr int kMaxHeld = 8 * 1024;
constexpr int MaxThreads(int of_thread) {
  return of_thread == 1 ? 128 : of_thread == 4 ? 512 : 1024;
}
constexpr int MinBlocks(int of_thread) { return of_thread == 1 ? 8 : of_thread == 4 ? 2 : 1; }
template <typename Op>
int VectorsOfThread(int64_t vectors) {
  if (vectors <= 32) return 1;
  const bool two = kInputsOf<Op> > 1;  // rows that are held
  return vectors <= (two ? 2048 : 1024) ? kVectorsOf<Op> : 8;
}

template <typename Row, typename Op>
__device__ void WalkRows(const Op& op, int64_t rows, int64_t D, int lanes, int64_t walker,
                         int64_t walkers) {
  __shared__ typename Row::TeamPartials partials;
  Row row(lanes, partials, D);
  const bool in_warp = lanes <= 32;
  const int own = in_warp ? DivideByLanes(threadIdx.x, lanes) : 0,
            rows_of_block = in_warp ? DivideByLanes(blockDim.x, lanes) : 1;
  for (int64_t first = walker * rows_of_block; first < rows; first += walkers * rows_of_block) {
    row.Take(first + own, rows);
    op(row);
  }
}

template <typename T, int kVectors, typename Op>
__global__ void __launch_bounds__(MaxThreads(kVectors), MinBlocks(kVectors))
    RunInRegisters(const __grid_constant__ Op op, int64_t rows, int64_t D, int lanes) {
  WalkRows<RegisterRow<T, kVectors>>(op, rows, D, lanes, blockIdx.x, gridDim.x);
}
template <typename T, typename Op>
__global__ void __launch_bounds__(MaxThreads(4), MinBlocks(4))
    RunInSlices(const __grid_constant__ Op op, int64_t rows, int64_t D) {
  WalkRows<RegisterRow<T, 4, Share::kSlice>>(op, rows, D, blockDim.x, blockIdx.x, gridDim.x);
}
template <typename T, int kVectors, typename Op>
__global__ void __launch_bounds__(1024)
    RunInRing(const __grid_constant__ Op op, int64_t rows, int64_t D, int slice) {
  using Row = RingRow<T, kVectors, Op>;
  __shared__ typename Row::TeamPartials partials;
  __shared__ __align__(8) uint64_t barriers[Row::Ring::kMaxStages];
  Row row(op, partials, barriers, rows, D, slice);
  row.Run();
}
template <typename T, int kPiece, typename Op>
__global__ void __launch_bounds__(1024)
    RunInStreams(const __grid_constant__ Op op, int64_t rows, int64_t D, int lanes) {
  WalkRows<StreamRow<T, kPiece>>(op, rows, D, lanes, blockIdx.x, gridDim.x);
}

// Threads of a row and of a block, for so many pieces of which a thread takes some.
struct RowThreads {
  int lanes, threads;
  RowThreads(int64_t pieces, int of_thread, int most) {
    const int64_t needed = CeilDiv(pieces, of_thread);
    lanes = 1;
    while (lanes < needed && lanes < 32) lanes *= 2;
    if (needed > 32) lanes = static_cast<int>(needed < most ? CeilDiv(needed, 32) * 32 : most);
    threads = lanes <= 32 ? 128 : lanes;
  }
  Launch LaunchFor(int64_t rows) const {
    const int64_t blocks = CeilDiv(rows, threads / lanes);
    return {dim3(static_cast<unsigned>(blocks < 0x7fffffff ? blocks : 0x7fffffff)), dim3(threads)};
  }
};

// kAny: one kernel for all, whose threads share rows as the plain ones do, for the same bits.
template <typename T, bool kAny, typename Op>
int32_t LaunchInRegisters(AnyopCall* call, RowShape shape, const Op& op) {
  const int64_t vectors = shape.D / kPerVector<T>;
  const int of_thread = VectorsOfThread<Op>(vectors);
  const RowThreads threads(vectors, of_thread, 1024);
  const Launch launch = threads.LaunchFor(shape.rows);
  if (kAny || of_thread == 8)
    return launch.Run(call, RunInRegisters<T, 8, Op>, op, shape.rows, shape.D, threads.lanes);
  if constexpr (!kAny) {
    if (of_thread == 1)
      return launch.Run(call, RunInRegisters<T, 1, Op>, op, shape.rows, shape.D, threads.lanes);
    return launch.Run(call, RunInRegisters<T, kVectorsOf<Op>, Op>, op, shape.rows, shape.D,
                      threads.lanes);
  }
  return kAnyopInternalError;
}

// Rows that are copied ahead: a block of up to 1,024 threads has 8 vectors of one input or 4 of two
// for each, a cluster 8 such blocks. *fits is false where the device cannot.
template <typename T, typename Op>
int32_t LaunchInRing(AnyopCall* call, RowShape shape, const Op& op, bool* fits) {
  constexpr int kInputs = Op::kInputs, kVectors = kInputs > 1 ? 4 : 8;
  constexpr int64_t kKept = 8192;  // shared memory of each block for its own variables
  Limits limits;
  if (int32_t status = ReadLimits(call, &limits)) return status;
  const int64_t vectors = shape.D / kPerVector<T>;
  const int most = limits.major >= 9 ? kMaxBlocks : 1;
  int blocks = 1;
  const auto bytes = [&] { return CeilDiv(vectors, blocks) * 16 * kInputs; };
  const auto is_large = [&] {
    return CeilDiv(vectors, blocks) > 1024 * kVectors ||
           bytes() > limits.shared_bytes_of_block - kKept;
  };
  while (blocks < most && is_large()) blocks *= 2;
  *fits = !is_large();
  if (!*fits) return kAnyopOk;
  const auto kernel = RunInRing<T, kVectors, Op>;
  if (int32_t status =
          Check(call,
                cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(bytes())),
                "asking for shared memory"))
    return status;
  // Equally many rows for every cluster.
  const int64_t turns = CeilDiv(shape.rows, CeilDiv(limits.multiprocessors, blocks)),
                clusters = CeilDiv(shape.rows, turns), slice = CeilDiv(vectors, blocks);
  const int64_t threads = CeilDiv(CeilDiv(slice, kVectors), 32) * 32;
  Launch launch{dim3(static_cast<unsigned>(clusters * blocks)),
                dim3(static_cast<unsigned>(threads)), static_cast<size_t>(bytes())};
  launch.cluster = blocks;
  return launch.Run(call, kernel, op, shape.rows, shape.D, static_cast<int>(slice));
}

// Rows that are read once; *fits is false where they are too long.
template <typename T, bool kAny, typename Op>
int32_t LaunchHeld(AnyopCall* call, RowShape shape, const Op& op, bool* fits) {
  const int64_t vectors = shape.D / kPerVector<T>;
  if constexpr (kInputsOf<Op> > 0) {
    if (vectors > (kInputsOf<Op> > 1 ? 2048 : 4096)) {
      if (int32_t status = LaunchInRing<T>(call, shape, op, fits)) return status;
      if (*fits) return kAnyopOk;
    }
  }
  *fits = vectors <= kMaxHeld;
  return *fits ? LaunchInRegisters<T, kAny>(call, shape, op) : int32_t{kAnyopOk};
}

// kPlain: what is written does, whatever `fit` says.
template <typename T, bool kPlain = false, typename Make>
int32_t RunFitted(AnyopCall* call, RowShape shape, RowsFit fit, const Make& make) {
  if (shape.rows == 0 || shape.D == 0) return kAnyopOk;
  if constexpr (sizeof(T) < 8) {  // float64, which GPUs are slow at, is not worth their size
    if (fit.vectors && fit.one_stride && shape.D / kPerVector<T> < (1 << 24)) {
      bool fits = false;
      int32_t status = kAnyopOk;
      if (kPlain || fit.plain) {
        status = LaunchHeld<T, false>(call, shape, make(std::false_type()), &fits);
      } else if constexpr (!kPlain) {
        status = LaunchHeld<T, true>(call, shape, make(std::true_type()), &fits);
      }
      if (fits || status) return status;
    }
  }
  const auto op = make(std::true_type());
  using Op = std::remove_const_t<decltype(op)>;
  const int64_t pieces = fit.columns ? 1 : fit.vectors ? shape.D / kPerVector<T> : shape.D;
  const RowThreads threads(pieces, 4, 1024);  // side by side: a thread for each
  const Launch launch = threads.LaunchFor(shape.rows);
  if constexpr (sizeof(T) < 8) {
    if (fit.vectors)
      return launch.Run(call, RunInStreams<T, kPerVector<T>, Op>, op, shape.rows, shape.D,
                        threads.lanes);
  }
  return launch.Run(call, RunInStreams<T, 1, Op>, op, shape.rows, shape.D, threads.lanes);
}

// Runs make(kAny), an operator, over rows of D elements of T. NULL tensors are left out.
template <typename T, typename Make, size_t kRead, size_t kWritten>
int32_t RunRows(AnyopCall* call, RowShape shape, const AnyopTensor* const (&read)[kRead],
                const AnyopTensor* const (&written)[kWritten], const Make& make) {
  return RunFitted<T>(call, shape, FitRows<T>(shape, read, written), make);
}
// Of rows and columns.
template <typename T, typename Make, size_t kRead, size_t kWritten, size_t kColumns>
int32_t RunRows(AnyopCall* call, RowShape shape, const AnyopTensor* const (&read)[kRead],
                const AnyopTensor* const (&written)[kWritten],
                const AnyopTensor* const (&columns)[kColumns], const Make& make) {
  return RunFitted<T>(call, shape, FitRows<T>(shape, read, written, columns), make);
}

}  // namespace anyop::cuda

#endif  // ANYOP_CUDA_ROW_H_
