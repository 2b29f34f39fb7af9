// SPDX-License-Identifier: Apache-2.0
// The element-wise scheme of CPU kernels: out[i] = f(in[i]...) for any strides, broadcasting and element types.
#ifndef ANYOP_CPU_MAP_H_
#define ANYOP_CPU_MAP_H_

#include "anyop/cpu.h"

namespace anyop::cpu {

constexpr int kMaxRank = 32;  // the core passes no more

// A tensor seen in row-major order of the output: dimensions innermost first, merged where memory allows.
struct Walk {
  char* data;
  AnyopDtype dtype;
  int item_bytes;
  int rank;  // at least 1
  int64_t size[kMaxRank];
  int64_t stride_bytes[kMaxRank];

  bool IsContiguous(AnyopDtype wanted) const {
    return dtype == wanted && rank == 1 && stride_bytes[0] == item_bytes;
  }
};

// order: dimensions of the tensor, innermost first.
inline void InitWalk(const AnyopTensor& tensor, const int* order, int rank, Walk* walk) {
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
      for (; at > 0 && Span(output, order[at - 1]) > Span(output, d); --at) order[at] = order[at - 1];
      order[at] = d;
    }
    InitWalk(*output, order, rank, &out);
    for (int k = 0; k < N; ++k) InitWalk(*inputs[k], order, rank, &in[k]);
  }

 private:
  static int64_t Span(const AnyopTensor* tensor, int d) {
    return tensor->strides[d] < 0 ? -tensor->strides[d] : tensor->strides[d];
  }
};

// A place in a walk.
class Cursor {
 public:
  Cursor(const Walk& walk, int64_t begin) : walk_(walk), at_(walk.data) {
    for (int d = 0; d < walk.rank; ++d) {
      index_[d] = d + 1 < walk.rank ? begin % walk.size[d] : begin;
      begin /= walk.size[d];
      at_ += index_[d] * walk.stride_bytes[d];
    }
  }

  // Where the next n elements lie when they are contiguous, else nullptr.
  char* Contiguous(int64_t n) const {
    return walk_.stride_bytes[0] == walk_.item_bytes && walk_.size[0] - index_[0] >= n ? at_ : nullptr;
  }

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

  // Calls visit(address, n) for the runs of the next n elements and moves past them.
  template <typename Visit>
  void Pass(int64_t n, Visit visit) {
    while (n > 0) {
      const int64_t left = walk_.size[0] - index_[0], run = n < left ? n : left;
      visit(at_, run);
      Advance(run);
      n -= run;
    }
  }

 private:
  const Walk& walk_;
  char* at_;
  int64_t index_[kMaxRank];
};

// n elements of a fixed width from one stride to another; a stride of 0 repeats.
template <typename Item>
inline void CopyItems(const char* from, int64_t from_stride, int64_t n, char* to, int64_t to_stride) {
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
    case 1: return CopyItems<uint8_t>(from, from_stride, n, to, to_stride);
    case 2: return CopyItems<uint16_t>(from, from_stride, n, to, to_stride);
    case 4: return CopyItems<uint32_t>(from, from_stride, n, to, to_stride);
    default: return CopyItems<uint64_t>(from, from_stride, n, to, to_stride);
  }
}

// One input or output: hands out blocks of Wide, in place where the tensor has them, else through its buffer.
// raw: kBlock * 8 bytes, for elements on their way between a strided tensor and a conversion.
template <typename Wide>
class Blocks {
 public:
  Blocks(const Walk& walk, int64_t begin) : walk_(walk), cursor_(walk, begin) {}

  // From: the other types that the tensor may have.
  template <typename From>
  const Wide* Read(From from, int64_t n, char* raw) {
    const bool converts = walk_.dtype != kDtype<Wide>;
    const char* source = cursor_.Contiguous(n);
    if (source) {
      cursor_.Advance(n);
    } else {
      char* to = converts ? raw : reinterpret_cast<char*>(buffer_);
      source = to;
      cursor_.Pass(n, [&](const char* at, int64_t run) {
        CopyRun(walk_.item_bytes, at, walk_.stride_bytes[0], run, to, walk_.item_bytes);
        to += run * walk_.item_bytes;
      });
    }
    if (!converts) return reinterpret_cast<const Wide*>(source);
    Widen(from, walk_.dtype, source, n, buffer_);
    return buffer_;
  }

  // Where the next n results may be put; Write then brings them into the tensor.
  Wide* Target(int64_t n) {
    char* at = walk_.dtype == kDtype<Wide> ? cursor_.Contiguous(n) : nullptr;
    return at ? reinterpret_cast<Wide*>(at) : buffer_;
  }
  template <typename To>
  void Write(To to, const Wide* target, int64_t n, char* raw) {
    char* direct = cursor_.Contiguous(n);
    const char* source = reinterpret_cast<const char*>(target);
    if (walk_.dtype != kDtype<Wide>) {
      source = direct ? direct : raw;
      Narrow(to, target, n, walk_.dtype, direct ? direct : raw);
    }
    if (direct) return cursor_.Advance(n);
    cursor_.Pass(n, [&](char* at, int64_t run) {
      CopyRun(walk_.item_bytes, source, walk_.item_bytes, run, at, walk_.stride_bytes[0]);
      source += run * walk_.item_bytes;
    });
  }

 private:
  const Walk& walk_;
  Cursor cursor_;
  alignas(64) Wide buffer_[kBlock];
};

// Elements [begin, end) of out = f(in...), computed in Wide. From and To list the other types that inputs and
// output may have.
template <typename Wide, typename From, typename To, int N, typename F, typename... In>
inline void MapBlocks(const Plan<N>& plan, int64_t begin, int64_t end, F f, In&&... in) {
  bool direct = plan.out.IsContiguous(kDtype<Wide>);
  for (const Walk& walk : plan.in) direct = direct && walk.IsContiguous(kDtype<Wide>);
  const int64_t step = direct ? end - begin : kBlock;
  alignas(64) char raw[kBlock * 8];
  Blocks<Wide> out(plan.out, begin);
  for (int64_t i = begin; i < end; i += step) {
    const int64_t n = end - i < step ? end - i : step;
    Wide* target = out.Target(n);
    Apply(n, f, target, in.Read(From(), n, raw)...);
    out.Write(To(), target, n, raw);
  }
}
template <typename Wide, typename From, typename To, typename F>
inline void Map(const Plan<1>& plan, int64_t begin, int64_t end, F f) {
  MapBlocks<Wide, From, To>(plan, begin, end, f, Blocks<Wide>(plan.in[0], begin));
}
template <typename Wide, typename From, typename To, typename F>
inline void Map(const Plan<2>& plan, int64_t begin, int64_t end, F f) {
  MapBlocks<Wide, From, To>(plan, begin, end, f, Blocks<Wide>(plan.in[0], begin),
                            Blocks<Wide>(plan.in[1], begin));
}

// For kernels whose tensors all have one floating-point type: f is called with float, or double for float64.
template <int N, typename F>
inline void MapFloats(const Plan<N>& plan, int64_t begin, int64_t end, F f) {
  if (plan.out.dtype == kAnyopFloat64) return Map<double, Types<>, Types<>>(plan, begin, end, f);
  Map<float, Half, Half>(plan, begin, end, f);
}

// For kernels on promote(x, y): f is called with the type the output is computed in; integers are exact.
template <int N, typename F>
inline void MapNumbers(const Plan<N>& plan, int64_t begin, int64_t end, F f) {
  using Small = Types<bool, uint8_t, int8_t, int16_t>;
  using SmallAnd32 = Types<bool, uint8_t, int8_t, int16_t, int32_t>;
  switch (plan.out.dtype) {
    case kAnyopFloat64: {
      using Rest = Types<bool, uint8_t, int8_t, int16_t, int32_t, int64_t, float16, bfloat16, float>;
      return Map<double, Rest, Types<>>(plan, begin, end, f);
    }
    case kAnyopFloat32:
    case kAnyopFloat16:
    case kAnyopBFloat16: {
      using Rest = Types<bool, uint8_t, int8_t, int16_t, int32_t, int64_t, float16, bfloat16, double>;
      return Map<float, Rest, Half>(plan, begin, end, f);
    }
    case kAnyopInt64: return Map<int64_t, SmallAnd32, Types<>>(plan, begin, end, f);
    default: return Map<int32_t, Small, Small>(plan, begin, end, f);
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
