// SPDX-License-Identifier: Apache-2.0
// The element-wise scheme of CPU kernels: out[i] = f(in[i]...) for any strides, broadcasting and
// element types.
#ifndef ANYOP_CPU_MAP_H_
#define ANYOP_CPU_MAP_H_

#include "anyop/cpu.h"

namespace anyop::cpu {

constexpr int kMaxRank = 32;  // the core passes no more

// A tensor seen in row-major order of the output: dimensions innermost first, merged where memory
// allows.
struct Walk {
  char* data;
  AnyopDtype dtype;
  int item_bytes;
  int rank;  // at least 1
  int64_t size[kMaxRank];
  int64_t stride_bytes[kMaxRank];
};

// order: dimensions of the tensor, innermost first.
__attribute__((noinline)) inline void InitWalk(const AnyopTensor& tensor, const int* order,
                                               int rank, Walk* walk) {
  walk->data = static_cast<char*>(tensor.data);
  walk->dtype = AnyopDtypeOf(&tensor);
  walk->item_bytes = tensor.dtype_bits / 8;
  walk->rank = 1;
  walk->size[0] = 1;
  walk->stride_bytes[0] = walk->item_bytes;
  int last = -1;
  for (int i = 0; i < rank; ++i) {
    const int64_t size = tensor.shape[order[i]];
    const int64_t stride = tensor.strides[order[i]] * walk->item_bytes;
    if (last >= 0 && stride == walk->stride_bytes[last] * walk->size[last]) {
      walk->size[last] *= size;
      continue;
    }
    walk->size[++last] = size;
    walk->stride_bytes[last] = stride;
    walk->rank = last + 1;
  }
}

// The walks of one output and N inputs of its shape (inputs that were broadcast have stride 0).
template <int N>
struct Plan {
  int64_t count;
  Walk out;
  Walk in[N];

  Plan(const AnyopTensor* output, const AnyopTensor* const (&inputs)[N]) {
    int order[kMaxRank];
    int rank = 0;
    count = 1;
    // Innermost first: the smallest stride of the output, and of equal ones the last dimension.
    for (int d = output->ndim - 1; d >= 0; --d) {
      count *= output->shape[d];
      if (output->shape[d] == 1) continue;
      int at = rank++;
      for (; at > 0 && Span(output, order[at - 1]) > Span(output, d); --at)
        order[at] = order[at - 1];
      order[at] = d;
    }
    InitWalk(*output, order, rank, &out);
    for (int k = 0; k < N; ++k) InitWalk(*inputs[k], order, rank, &in[k]);
  }

  bool HasOneType() const {
    for (const Walk& walk : in) {
      if (walk.dtype != out.dtype) return false;
    }
    return true;
  }

 private:
  static int64_t Span(const AnyopTensor* tensor, int d) {
    return tensor->strides[d] < 0 ? -tensor->strides[d] : tensor->strides[d];
  }
};

// n elements of a fixed width from one stride to another; a stride of 0 repeats.
template <typename Item>
inline void CopyItems(const char* from, int64_t from_stride, int64_t n, char* to,
                      int64_t to_stride) {
  for (int64_t i = 0; i < n; ++i) {
    Item item;
    __builtin_memcpy(&item, from + i * from_stride, sizeof(Item));
    __builtin_memcpy(to + i * to_stride, &item, sizeof(Item));
  }
}
inline void CopyRun(int item_bytes, const char* from, int64_t from_stride, int64_t n, char* to,
                    int64_t to_stride) {
  if (from_stride == item_bytes && to_stride == item_bytes) {
    __builtin_memcpy(to, from, n * item_bytes);
    return;
  }
  switch (item_bytes) {
    case 1:
      return CopyItems<uint8_t>(from, from_stride, n, to, to_stride);
    case 2:
      return CopyItems<uint16_t>(from, from_stride, n, to, to_stride);
    case 4:
      return CopyItems<uint32_t>(from, from_stride, n, to, to_stride);
    default:
      return CopyItems<uint64_t>(from, from_stride, n, to, to_stride);
  }
}

// A place in a walk.
class Cursor {
 public:
  __attribute__((noinline)) Cursor(const Walk& walk, int64_t begin) : walk_(walk), at_(walk.data) {
    for (int d = 0; d < walk.rank; ++d) {
      index_[d] = d + 1 < walk.rank ? begin % walk.size[d] : begin;
      begin /= walk.size[d];
      at_ += index_[d] * walk.stride_bytes[d];
    }
  }

  // How many of the next elements are contiguous, and where the next n are when they are that, else
  // nullptr.
  int64_t ContiguousRun() const {
    return walk_.stride_bytes[0] == walk_.item_bytes ? walk_.size[0] - index_[0] : 0;
  }
  char* Contiguous(int64_t n) const { return ContiguousRun() >= n ? at_ : nullptr; }

  // Moves past `run` elements, which must not leave the innermost run.
  void Advance(int64_t run) {
    at_ += run * walk_.stride_bytes[0];
    index_[0] += run;
    for (int d = 0; index_[d] == walk_.size[d] && d + 1 < walk_.rank; ++d) {
      at_ += walk_.stride_bytes[d + 1] - walk_.size[d] * walk_.stride_bytes[d];
      index_[d] = 0;
      ++index_[d + 1];
    }
  }

  // Copy the next n elements to or from contiguous memory and move past them. Not inlined: loops
  // that only move bytes gain nothing from being compiled per instruction set and element type.
  __attribute__((noinline)) void Gather(int64_t n, char* to) {
    for (int64_t run; n > 0; n -= run, to += run * walk_.item_bytes) {
      run = Run(n);
      CopyRun(walk_.item_bytes, at_, walk_.stride_bytes[0], run, to, walk_.item_bytes);
      Advance(run);
    }
  }
  __attribute__((noinline)) void Scatter(int64_t n, const char* from) {
    for (int64_t run; n > 0; n -= run, from += run * walk_.item_bytes) {
      run = Run(n);
      CopyRun(walk_.item_bytes, from, walk_.item_bytes, run, at_, walk_.stride_bytes[0]);
      Advance(run);
    }
  }

 private:
  int64_t Run(int64_t n) const {
    const int64_t left = walk_.size[0] - index_[0];
    return n < left ? n : left;
  }

  const Walk& walk_;
  char* at_;
  int64_t index_[kMaxRank];
};

// One input or output: hands out blocks of E, in place where the tensor has them, else through its
// buffer. Others: the other types that the tensor may have. raw: kBlock * 8 bytes, for elements on
// their way between a strided tensor and a conversion. Its functions are not inlined, for the
// reason given at Gather.
template <typename E, typename Others>
class Blocks {
 public:
  Blocks(const Walk& walk, int64_t begin) : walk_(walk), cursor_(walk, begin) {}

  // How many of the next elements need no buffer. More than kBlock may be asked for only up to
  // that.
  int64_t InPlace() const { return walk_.dtype == kDtype<E> ? cursor_.ContiguousRun() : 0; }

  __attribute__((noinline)) const E* Read(int64_t n, char* raw) {
    const bool converts = walk_.dtype != kDtype<E>;
    const char* source = cursor_.Contiguous(n);
    if (source) {
      cursor_.Advance(n);
    } else {
      source = converts ? raw : reinterpret_cast<char*>(buffer_);
      cursor_.Gather(n, const_cast<char*>(source));
    }
    if (!converts) return reinterpret_cast<const E*>(source);
    Widen(Others(), walk_.dtype, source, n, buffer_);
    return buffer_;
  }

  // Where the next n results may be put; Write then brings them into the tensor.
  E* Target(int64_t n) {
    char* at = walk_.dtype == kDtype<E> ? cursor_.Contiguous(n) : nullptr;
    return at ? reinterpret_cast<E*>(at) : buffer_;
  }
  __attribute__((noinline)) void Write(const E* target, int64_t n, char* raw) {
    char* direct = cursor_.Contiguous(n);
    const char* source = reinterpret_cast<const char*>(target);
    if (walk_.dtype != kDtype<E>) {
      Narrow(Others(), target, n, walk_.dtype, direct ? direct : raw);
      source = raw;
    }
    if (direct) return cursor_.Advance(n);
    cursor_.Scatter(n, source);
  }

 private:
  const Walk& walk_;
  Cursor cursor_;
  alignas(64) E buffer_[kBlock];
};

// How much f does: kLight takes less time than the memory.
enum Weight { kHeavy, kLight };

// Elements [begin, end) of out = f(in...), with loops over E. From and To: the other types that
// inputs and output may have.
template <Weight weight, typename E, typename To, int N, typename F, typename... In>
inline void MapBlocks(const Plan<N>& plan, int64_t begin, int64_t end, F f, In&&... in) {
  alignas(64) char raw[kBlock * 8];
  Blocks<E, To> out(plan.out, begin);
  for (int64_t n, i = begin; i < end; i += n) {
    n = out.InPlace();
    ((n = in.InPlace() < n ? in.InPlace() : n), ...);
    if (n < kBlock) n = kBlock;
    if (n > end - i) n = end - i;
    E* target = out.Target(n);
    if constexpr (weight == kLight && sizeof(E) >= 4) {
      ApplyLight(n, f, target, in.Read(n, raw)...);
    } else {
      Apply(n, f, target, in.Read(n, raw)...);
    }
    out.Write(target, n, raw);
  }
}
template <Weight weight, typename E, typename From, typename To, typename F>
inline void Map(const Plan<1>& plan, int64_t begin, int64_t end, F f) {
  MapBlocks<weight, E, To>(plan, begin, end, f, Blocks<E, From>(plan.in[0], begin));
}
template <Weight weight, typename E, typename From, typename To, typename F>
inline void Map(const Plan<2>& plan, int64_t begin, int64_t end, F f) {
  MapBlocks<weight, E, To>(plan, begin, end, f, Blocks<E, From>(plan.in[0], begin),
                           Blocks<E, From>(plan.in[1], begin));
}

// For kernels whose tensors all have one floating-point type: f is called with float, or double for
// float64.
template <Weight weight = kHeavy, int N, typename F>
inline void MapFloats(const Plan<N>& plan, int64_t begin, int64_t end, F f) {
  using Half = Types<float16, bfloat16>;
  if (plan.out.dtype == kAnyopFloat64)
    return Map<weight, double, Types<>, Types<>>(plan, begin, end, f);
  Map<weight, float, Half, Half>(plan, begin, end, f);
}

// Where the tensors are all float16: converts in registers, for kernels that do little else. f is
// called with float and with vectors of it, by reference. False: they are not.
template <int N, typename F>
inline bool MapFloat16(const Plan<N>& plan, int64_t begin, int64_t end, F f) {
  if (plan.out.dtype != kAnyopFloat16 || !plan.HasOneType()) return false;
  Map<kLight, float16, Types<>, Types<>>(plan, begin, end, f);
  return true;
}

// For kernels of little work on promote(x, y), any inputs: f is called with float, vectors of it,
// or double.
template <int N, typename F>
inline void MapFloatNumbers(const Plan<N>& plan, int64_t begin, int64_t end, F f) {
  using Half = Types<float16, bfloat16>;
  using Numbers =
      Types<boolean, uint8_t, int8_t, int16_t, int32_t, int64_t, float16, bfloat16, float, double>;
  if (MapFloat16(plan, begin, end, f)) return;
  if (plan.out.dtype == kAnyopBFloat16 && plan.HasOneType()) {
    return Map<kLight, bfloat16, Types<>, Types<>>(plan, begin, end, f);
  }
  if (plan.out.dtype == kAnyopFloat64)
    return Map<kLight, double, Numbers, Types<>>(plan, begin, end, f);
  Map<kLight, float, Numbers, Half>(plan, begin, end, f);
}
// The same where promote(x, y) is an integer or bool: f is called with it, or with int32_t where
// types are mixed and small. For bool f is called with uint8_t 0 and 1, and all but 0 is True.
template <int N, typename F>
inline void MapIntegers(const Plan<N>& plan, int64_t begin, int64_t end, F f) {
  using Small = Types<boolean, uint8_t, int8_t, int16_t>;
  using UpTo32 = Types<boolean, uint8_t, int8_t, int16_t, int32_t>;
  const AnyopDtype dtype = plan.out.dtype;
  if (dtype == kAnyopInt64) return Map<kLight, int64_t, UpTo32, Types<>>(plan, begin, end, f);
  if (dtype == kAnyopInt32 || !plan.HasOneType())
    return Map<kLight, int32_t, Small, Small>(plan, begin, end, f);
  switch (dtype) {
    case kAnyopInt16:
      return Map<kLight, int16_t, Types<>, Types<>>(plan, begin, end, f);
    case kAnyopInt8:
      return Map<kLight, int8_t, Types<>, Types<>>(plan, begin, end, f);
    case kAnyopUInt8:
      return Map<kLight, uint8_t, Types<>, Types<>>(plan, begin, end, f);
    default:
      return Map<kLight, boolean, Types<>, Types<>>(plan, begin, end, f);
  }
}

// Runs `run(plan, begin, end)` on the call's threads.
template <int N, typename Run>
inline int32_t RunMap(AnyopCall* call, const Plan<N>& plan, Run run) {
  ParallelFor(call, plan.count, kGrain, [&](int64_t begin, int64_t end) { run(plan, begin, end); });
  return kAnyopOk;
}

}  // namespace anyop::cpu

#endif  // ANYOP_CPU_MAP_H_
