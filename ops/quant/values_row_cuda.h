// SPDX-License-Identifier: Apache-2.0
// A row in registers (anyop/cuda/held_row.h) whose values are kept as floats until they are
// quantised (quantize_cuda.h), and what threads that share groups of columns tell each other.
#pragma once

#include "anyop/cuda/row.h"

namespace anyop::cuda {
namespace {

// A row of few vectors a thread, whose values are made once: they stay as floats while the threads
// find the greatest.
template <typename T, int kVectors>
class ValuesRow : public RegisterRow<T, kVectors> {
 public:
  using Base = RegisterRow<T, kVectors>;
  static constexpr int kPer = Base::kPer, kCount = kVectors;
  struct Values {
    static constexpr int kCount = kVectors;
    float at[kVectors][kPer];
  };

  __device__ ValuesRow(int lanes, Partials<float>& partials, int64_t D)
      : Base(lanes, partials, D) {}

  __device__ bool Has(int i) const { return this->At(i) < this->mine_; }
  __device__ int64_t ColumnOf(int i) const { return int64_t{this->At(i)} * kPer; }

  // Zeros behind the row, so that what is made of them needs no branch.
  __device__ HeldRow<T, kVectors> Read(const RowsAt<false>& from) const {
    HeldRow<T, kVectors> held = {};
    const auto* row = reinterpret_cast<const uint4*>(from.At(this->inside_ ? this->index_ : 0));
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (Has(i)) held.bits[i] = LoadNow(row + this->At(i));
    }
    return held;
  }
  // f(elements...), of which f(0, ...) is 0.
  template <typename F, typename... Held>
  __device__ Values Make(const F& f, const Held&... held) const {
    Values made;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const auto wide = this->Apply(f, ElementsOf(held, i)...);
#pragma unroll
      for (int k = 0; k < kPer; ++k) made.at[i][k] = wide.at[k];
    }
    return made;
  }
  // Groups of `lanes` vectors, a power of two from kVectors to 32: as many threads side by side
  // share them, of which each looks after one of the groups that they have a vector of.
  __device__ int MyGroup(int lanes) const {  // as i of ColumnOf
    int mine = 0;
#pragma unroll
    for (int count = kVectors; count > 1; count /= 2) {
      lanes /= 2;
      mine += this->lane() & lanes ? count / 2 : 0;
    }
    return mine;
  }
  __device__ bool IsFirstOfGroup(int lanes) const {
    return (this->lane() & (lanes / kVectors - 1)) == 0;
  }
  // What join makes of the threads' v[i], for the group that this thread looks after.
  template <typename Join>
  __device__ float JoinGroups(float (&v)[kVectors], int lanes, const Join& join) const {
    const auto from = [](float v, int step) { return __shfl_xor_sync(~0u, v, step); };
#pragma unroll
    for (int count = kVectors; count > 1; count /= 2) {
      lanes /= 2;
      const bool upper = this->lane() & lanes;
#pragma unroll
      for (int i = 0; i < count / 2; ++i) {
        const float low = v[i], high = v[i + count / 2];
        v[i] = join(upper ? high : low, from(upper ? low : high, lanes));
      }
    }
#pragma unroll 1
    while (lanes /= 2) v[0] = join(v[0], from(v[0], lanes));
    return v[0];
  }
  // v of the thread that looks after group i.
  __device__ float OfGroup(int i, int lanes, float v) const {
    int at = static_cast<int>(threadIdx.x) & 31 & ~(lanes - 1);  // of the warp, not of the row
#pragma unroll
    for (int bit = kVectors / 2; bit; bit /= 2) {
      lanes /= 2;
      at += i & bit ? lanes : 0;
    }
    return __shfl_sync(~0u, v, at);
  }

 private:
  template <typename Held>
  __device__ Unpacked<T> ElementsOf(const Held& held, int i) const {
    return this->Elements(held, i);
  }
  template <typename ColumnsType>
  __device__ Unpacked<T> ElementsOf(const HeldColumns<ColumnsType, kVectors>& held, int i) const {
    constexpr bool kIsHeld = Base::template IsEarly<ColumnsType>();  // else it reads them now
    return kIsHeld || Has(i) ? this->Elements(held, i) : Unpacked<T>{};
  }
};

template <typename Row, typename = void>
constexpr bool kMakesValues = false;
template <typename Row>
constexpr bool kMakesValues<Row, std::void_t<typename Row::Values>> = true;

}  // namespace
}  // namespace anyop::cuda
