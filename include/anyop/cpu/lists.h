// SPDX-License-Identifier: Apache-2.0
// For CPU kernels over lists of tensors: chunks of all tensors shared by threads, blocks of any
// dtype.
#ifndef ANYOP_CPU_LISTS_H_
#define ANYOP_CPU_LISTS_H_

#include "anyop/cpu/convert.h"

namespace anyop::cpu {

using Floats = Types<float, double, float16, bfloat16>;

constexpr int64_t kListChunk = 4 * kBlock;  // elements

inline int64_t ElementsOf(const AnyopTensor& t) {
  int64_t numel = 1;
  for (int d = 0; d < t.ndim; ++d) numel *= t.shape[d];
  return numel;
}

// The chunks of all tensors of a list, one behind the other.
class ListChunks {
 public:
  // Where the memory for it lacks, status() says so.
  ListChunks(AnyopCall* call, const AnyopTensorList& list)
      : list_(list),
        first_(static_cast<int64_t*>(
            call->workspace(call, (list.count + 1) * int64_t{sizeof(int64_t)}))) {
    int64_t chunks = 0;
    for (int64_t i = 0; first_ && i < list.count; ++i) {
      first_[i] = chunks;
      chunks += (ElementsOf(list.data[i]) + kListChunk - 1) / kListChunk;
    }
    if (first_) first_[list.count] = chunks;
  }

  int32_t status() const { return first_ ? kAnyopOk : kAnyopOutOfMemory; }
  int64_t count() const { return first_[list_.count]; }
  int64_t First(int64_t tensor) const { return first_[tensor]; }

  // body(chunk, tensor, begin, n): elements of a tensor, in any order and on several threads.
  template <typename Body>
  void ForEach(AnyopCall* call, const Body& body) const {
    ParallelFor(call, count(), kGrain / kListChunk, [&](int64_t at, int64_t end) {
      int64_t tensor = TensorOf(at);
      for (; at < end; ++at) {
        while (first_[tensor + 1] <= at) ++tensor;
        const int64_t begin = (at - first_[tensor]) * kListChunk;
        const int64_t rest = ElementsOf(list_.data[tensor]) - begin;
        body(at, tensor, begin, rest < kListChunk ? rest : kListChunk);
      }
    });
  }

 private:
  int64_t TensorOf(int64_t chunk) const {
    int64_t low = 0, high = list_.count - 1;
    while (low < high) {
      const int64_t middle = (low + high + 1) / 2;
      (first_[middle] <= chunk ? low : high) = first_[middle] <= chunk ? middle : middle - 1;
    }
    return low;
  }

  const AnyopTensorList& list_;
  int64_t* first_;
};

// Whether a tensor of a list is of float64, so that all are computed in it. Lists not given have no
// data.
template <typename... Lists>
bool AnyFloat64(const Lists&... lists) {
  const auto has = [](const AnyopTensorList& list) {
    for (int64_t i = 0; list.data && i < list.count; ++i)
      if (list.data[i].dtype_bits == 64) return true;
    return false;
  };
  return (has(lists) || ...);
}

// Up to kBlock elements of a tensor as Wide: in their place, or converted. Those of a tensor that
// is not given (NULL) are 0 and are written nowhere.
template <typename Wide>
class Elements {
 public:
  Elements(const AnyopTensor* t, int64_t begin, int64_t n)
      : dtype_(t ? AnyopDtypeOf(t) : kDtype<Wide>),
        place_(t ? static_cast<char*>(t->data) + begin * (t->dtype_bits / 8) : nullptr),
        n_(n),
        data_(t && dtype_ == kDtype<Wide> ? reinterpret_cast<Wide*>(place_) : converted_) {}
  Elements(const AnyopTensor& t, int64_t begin, int64_t n) : Elements(&t, begin, n) {}

  Wide* data() { return data_; }
  const Wide* Read() {
    if (!place_) {
      for (int64_t i = 0; i < n_; ++i) converted_[i] = 0;
    } else if (data_ == converted_) {
      // The next elements, which the memory would be idle until then.
      const int64_t bytes = n_ * (dtype_ == kAnyopFloat32 ? 4 : 2);
      for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(place_ + bytes + i, 0, 2);
      Widen(Floats(), dtype_, place_, n_, converted_);
    }
    return data_;
  }
  void Write() {
    if (place_ && data_ == converted_) Narrow(Floats(), converted_, n_, dtype_, place_);
  }

 private:
  const AnyopDtype dtype_;
  char* const place_;
  const int64_t n_;
  Wide converted_[kBlock];
  Wide* const data_;
};

// Whether all are finite.
template <typename Wide>
inline bool AreFinite(const Wide* x, int64_t n) {
  Wide zero = 0;  // of what is not, NaN
#pragma omp simd reduction(+ : zero)
  for (int64_t i = 0; i < n; ++i) zero += x[i] * 0;
  return zero == 0;
}

// The value of a tensor of one element; NULL: not given.
inline double ValueOf(const AnyopTensor* t, double otherwise) {
  if (!t) return otherwise;
  const AnyopDtype dtype = AnyopDtypeOf(t);
  if (dtype == kAnyopInt32) return *static_cast<const int32_t*>(t->data);
  if (dtype == kAnyopInt64) return static_cast<double>(*static_cast<const int64_t*>(t->data));
  if (dtype == kAnyopFloat64) return *static_cast<const double*>(t->data);
  return static_cast<double>(*static_cast<const float*>(t->data));
}
// A tensor of one element, as anyop/cuda/lists.h has it.
struct Single {
  const AnyopTensor* tensor = nullptr;
  double Read(double otherwise) const { return ValueOf(tensor, otherwise); }
  bool IsSet() const { return tensor && Read(0) != 0; }
};
// Sets found_inf, of one element, or nothing where it is not given.
inline void SetFound(AnyopTensor* t) {
  if (!t) return;
  if (AnyopDtypeOf(t) == kAnyopInt32) {
    *static_cast<int32_t*>(t->data) = 1;
  } else {
    *static_cast<float*>(t->data) = 1;
  }
}

// What several threads find.
class Found {
 public:
  void Note(bool found) {
    if (found) __atomic_store_n(&found_, true, __ATOMIC_RELAXED);
  }
  bool any() const { return found_; }

 private:
  bool found_ = false;
};

}  // namespace anyop::cpu

#endif  // ANYOP_CPU_LISTS_H_
