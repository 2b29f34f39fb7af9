/* SPDX-License-Identifier: Apache-2.0 */
/* The row scheme of CUDA kernels (cuda/row.h): a row that is read again for each step. */
#ifndef ANYOP_CUDA_STREAMED_ROW_H_
#define ANYOP_CUDA_STREAMED_ROW_H_

#include "anyop/cuda/row_operands.h"

namespace anyop::cuda {

// A row that is read each time: in pieces of 16 bytes, or by elements of any dtype.
template <bool kAligned>
struct StreamedRow {
  const RowsAt<true>& rows;
  const char* row;
};
template <typename W>
struct StreamedSigned {
  StreamedRow<true> held;
  W sign;
};
template <typename Held, typename FlagsHeld, typename W>
struct StreamedReplaced {
  Held held;
  FlagsHeld flags;
  W value;
};
template <typename Columns>
struct StreamedColumns {
  const Columns& columns;
};

// slice: pieces that are summed for themselves, as the blocks of a cluster do.
template <typename T, int kPiece>
class StreamRow : public RowTeam<Wide<T>> {
 public:
  using W = Wide<T>;
  using TeamPartials = Partials<W>;
  static constexpr int kPer = kPiece;
  static constexpr int kAhead =
      sizeof(W) == 8 ? 2 : 4;  // turns of a loop whose loads are on their way at once

  __device__ StreamRow(int lanes, Partials<W>& partials, int64_t D, int64_t slice = INT64_MAX)
      : RowTeam<W>(lanes, partials), pieces_(D / kPer), slice_(slice) {}
  __device__ void Take(int64_t row, int64_t rows) {
    RowTeam<W>::Take(row, rows);
    mine_ = this->inside_ ? pieces_ : 0;
  }
  __device__ void Keep(int64_t n) {
    if (this->inside_) mine_ = (n + kPer - 1) / kPer;
  }

  __device__ StreamedRow<true> Read(const RowsAt<true>& from) const {
    return {from, from.At(this->index_)};
  }
  __device__ StreamedFlags Read(const FlagsAt& from) const { return {from}; }
  __device__ BehindFlags Behind(int64_t n) const { return {n}; }
  template <typename Held>
  __device__ const Held& Again(const Held& row) const {
    return row;
  }
  __device__ StreamedSigned<W> Signed(const StreamedRow<true>& row, W sign) const {
    return {row, sign};
  }
  template <typename Held, typename FlagsHeld>
  __device__ StreamedReplaced<Held, FlagsHeld, W> Replace(const Held& held, const FlagsHeld& flags,
                                                          W value) const {
    return {held, flags, value};
  }
  template <typename ColumnsType>
  __device__ StreamedColumns<ColumnsType> Columns(const ColumnsType& from) const {
    return {from};
  }

  template <typename F, typename... Held>
  __device__ W Sum(const F& f, const Held&... held) {
    W sum = 0;
    for (int64_t from = 0; from < pieces_; from += slice_)
      sum += this->Total(SumOfSlice(from, f, held...));
    return sum;
  }
  template <typename F, typename G, typename... Held>
  __device__ void TwoSums(W* first, W* second, const F& f, const G& g, const Held&... held) {
    *first = *second = 0;
    for (int64_t from = 0; from < pieces_; from += slice_) {
      W one = 0, other = 0;
      const int64_t behind = BehindSlice(from);
#pragma unroll(kAhead / 2)
      for (int64_t at = from + this->lane(); at < behind; at += this->lanes_) {
        one = FoldPiece(one, f, Elements(held, at)...);
        other = FoldPiece(other, g, Elements(held, at)...);
      }
      this->Totals(one, other);
      *first += one;
      *second += other;
    }
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
#pragma unroll kAhead
    for (int64_t at = this->lane(); at < mine_; at += this->lanes_)
      start = FoldPiece(start, f, Elements(held, at)...);
    return start;
  }
  template <typename F, typename... Held>
  __device__ void Write(const RowsAt<true>& out, const F& f, const Held&... held) const {
    if (!this->inside_) return;
    char* row = out.At(this->index_);
#pragma unroll(kAhead / 2)
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
  template <typename Held>
  __device__ W MostMagnitude(const Held& held) const {
    return Fold(W(0), GreaterMagnitude(), held);
  }
  template <typename Use, typename... Held>
  __device__ void EachPiece(const Use& use, const Held&... held) const {
    for (int64_t at = this->lane(); at < mine_; at += this->lanes_)
      use(at * kPer, Elements(held, at)...);
  }
  // A group of any number of pieces: some lanes of a warp take one after the other.
  template <typename F, typename Join, typename Use, typename... Held>
  __device__ void EachGroup(int64_t group, const F& f, const Join& join, const Use& use,
                            const Held&... held) const {
    const int64_t pieces = group / kPer;
    int lanes = 1;
    while (lanes < pieces && lanes < 32 && lanes < this->lanes_) lanes *= 2;
    __syncwarp();  // what another lane has written may be read; a block has met before
    for (int64_t first = 0; first < pieces_; first += this->lanes_ / lanes * pieces) {
      const int64_t begin = first + this->lane() / lanes * pieces + this->lane() % lanes;
      const int64_t behind = begin - this->lane() % lanes + pieces,
                    end = behind < mine_ ? behind : mine_;
      W most = 0;
      for (int64_t at = begin; at < end; at += lanes)
        most = FoldPiece(most, f, Elements(held, at)...);
      most = this->JoinLanes(most, lanes, join);
      for (int64_t at = begin; at < end; at += lanes) use(at * kPer, most, Elements(held, at)...);
    }
  }
  // A thread reads again what it wrote itself.
  template <typename F, typename... Held>
  __device__ StreamedRow<false> WriteAndHold(const RowsAt<true>& out, const F& f,
                                             const Held&... held) const {
    Write(out, f, held...);
    return {out, out.At(this->index_)};
  }

 protected:
  __device__ int64_t BehindSlice(int64_t from) const {
    return slice_ < mine_ - from ? from + slice_ : mine_;
  }
  // Of this thread. One that has many elements adds up sums of a few: float32 keeps its digits.
  template <typename F, typename... Held>
  __device__ W SumOfSlice(int64_t from, const F& f, const Held&... held) const {
    constexpr int kFew = 64 / kPer;
    const int64_t behind = BehindSlice(from);
    W sum = 0;
    for (int64_t at = from + this->lane(); at < behind; at += int64_t{kFew} * this->lanes_) {
      W few = 0;
      const int64_t end =
          at + int64_t{kFew} * this->lanes_ < behind ? at + int64_t{kFew} * this->lanes_ : behind;
#pragma unroll kAhead
      for (int64_t i = at; i < end; i += this->lanes_)
        few = FoldPiece(few, f, Elements(held, i)...);
      sum += few;
    }
    return sum;
  }
  template <bool kAligned>
  __device__ Piece<W, kPer> Elements(const StreamedRow<kAligned>& held, int64_t at) const {
    return ReadPieceOf<T, kPer, kAligned>(held.rows, held.row, at * kPer);
  }
  template <typename ColumnsType>
  __device__ Piece<W, kPer> Elements(const StreamedColumns<ColumnsType>& held, int64_t at) const {
    return ReadColumns<kPer, W>(held.columns, at * kPer);
  }
  __device__ Flags<kPer> Elements(const StreamedFlags& held, int64_t at) const {
    return ReadFlags<kPer>(held.flags, held.flags.At(this->index_), at * kPer);
  }
  __device__ Piece<W, kPer> Elements(const StreamedSigned<W>& signed_row, int64_t at) const {
    Piece<W, kPer> v = Elements(signed_row.held, at);
#pragma unroll
    for (int k = 0; k < kPer; ++k) v.at[k] *= signed_row.sign;
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

  int64_t pieces_, slice_, mine_ = 0;
};

}  // namespace anyop::cuda

#endif  // ANYOP_CUDA_STREAMED_ROW_H_
