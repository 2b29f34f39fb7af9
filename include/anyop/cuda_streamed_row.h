/* SPDX-License-Identifier: Apache-2.0 */
/* The row scheme of CUDA kernels (cuda_row.h): a row that is read again for each step. */
#ifndef ANYOP_CUDA_STREAMED_ROW_H_
#define ANYOP_CUDA_STREAMED_ROW_H_

#include "anyop/cuda_row_operands.h"

namespace anyop::cuda {

// A row that is read each time: in pieces of 16 bytes, or by elements of any dtype.
struct StreamedRow {
  const RowsAt<true>& rows;
  const char* row;
};
template <typename W>
struct StreamedSigned {
  StreamedRow held;
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

  __device__ StreamedRow Read(const RowsAt<true>& from) const {
    return {from, from.At(this->index_)};
  }
  __device__ StreamedFlags Read(const FlagsAt& from) const { return {from}; }
  __device__ BehindFlags Behind(int64_t n) const { return {n}; }
  template <typename Held>
  __device__ const Held& Again(const Held& row) const {
    return row;
  }
  __device__ StreamedSigned<W> Signed(const StreamedRow& row, W sign) const { return {row, sign}; }
  template <typename Held, typename FlagsHeld>
  __device__ StreamedReplaced<Held, FlagsHeld, W> Replace(const Held& held, const FlagsHeld& flags,
                                                          W value) const {
    return {held, flags, value};
  }
  template <typename ColumnsType>
  __device__ StreamedColumns<ColumnsType> Columns(const ColumnsType& from) const {
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
  __device__ StreamedRow WriteAndHold(const RowsAt<true>& out, const F& f,
                                      const Held&... held) const {
    Write(out, f, held...);
    return Read(out);
  }

 protected:
  __device__ Piece<W, kPer> Elements(const StreamedRow& held, int64_t at) const {
    return ReadPieceOf<T, kPer>(held.rows, held.row, at * kPer);
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

  int64_t pieces_, mine_ = 0;
};

}  // namespace anyop::cuda

#endif  // ANYOP_CUDA_STREAMED_ROW_H_
