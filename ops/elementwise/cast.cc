// SPDX-License-Identifier: Apache-2.0
// cast and its gradient on the CPU: one read and one write an element; small types pass through
// int32 or float32 in the cache.
#include "anyop/ops/cast.h"

#include "anyop/cpu/map.h"
#include "anyop/ops/cast_backward.h"

namespace anyop::cpu {
namespace {

template <typename Wide>
inline void FromWide(const Wide* from, int64_t n, AnyopDtype to, void* out) {
  switch (to) {
    case kAnyopBool:
      return NarrowTo(from, n, static_cast<boolean*>(out));
    case kAnyopUInt8:
      return NarrowTo(from, n, static_cast<uint8_t*>(out));
    case kAnyopInt8:
      return NarrowTo(from, n, static_cast<int8_t*>(out));
    case kAnyopInt16:
      return NarrowTo(from, n, static_cast<int16_t*>(out));
    case kAnyopInt32:
      return NarrowTo(from, n, static_cast<int32_t*>(out));
    case kAnyopInt64:
      return NarrowTo(from, n, static_cast<int64_t*>(out));
    case kAnyopFloat32:
      return NarrowTo(from, n, static_cast<float*>(out));
    case kAnyopFloat64:
      return NarrowTo(from, n, static_cast<double*>(out));
    default:
      break;
  }
  float single[kBlock];
  const float* source = single;
  if constexpr (kDtype<Wide> == kAnyopFloat32) {
    source = from;
  } else {
    NarrowTo(from, n, single);
  }
  Narrow(Types<float16, bfloat16>(), source, n, to, out);
}

// The small types as int32 or float32; false when `from` is none of them.
inline bool Widened(AnyopDtype from, const void* in, int64_t n, int32_t* integers, float* floats) {
  switch (from) {
    case kAnyopBool:
      WidenFrom(static_cast<const boolean*>(in), n, integers);
      return true;
    case kAnyopUInt8:
      WidenFrom(static_cast<const uint8_t*>(in), n, integers);
      return true;
    case kAnyopInt8:
      WidenFrom(static_cast<const int8_t*>(in), n, integers);
      return true;
    case kAnyopInt16:
      WidenFrom(static_cast<const int16_t*>(in), n, integers);
      return true;
    case kAnyopFloat16:
    case kAnyopBFloat16:
      Widen(Types<float16, bfloat16>(), from, in, n, floats);
      return true;
    default:
      return false;
  }
}

// Up to kBlock elements.
ANYOP_CPU_CLONES void Convert(AnyopDtype from, const void* in, int64_t n, AnyopDtype to,
                              void* out) {
  int32_t integers[kBlock];
  float floats[kBlock];
  const bool is_half = from == kAnyopFloat16 || from == kAnyopBFloat16;
  const AnyopDtype wide = is_half ? kAnyopFloat32 : kAnyopInt32;
  const bool direct = to == wide;  // widening is all there is to do
  if (Widened(from, in, n, direct ? static_cast<int32_t*>(out) : integers,
              direct ? static_cast<float*>(out) : floats)) {
    if (direct) return;
    in = is_half ? static_cast<void*>(floats) : integers;
    from = wide;
  }
  switch (from) {
    case kAnyopFloat32:
      return FromWide(static_cast<const float*>(in), n, to, out);
    case kAnyopFloat64:
      return FromWide(static_cast<const double*>(in), n, to, out);
    case kAnyopInt64:
      return FromWide(static_cast<const int64_t*>(in), n, to, out);
    default:
      return FromWide(static_cast<const int32_t*>(in), n, to, out);
  }
}

void Run(const Plan<1>& plan, int64_t begin, int64_t end) {
  alignas(64) char gathered[kBlock * 8], scattered[kBlock * 8];
  Cursor in(plan.in[0], begin), out(plan.out, begin);
  const bool converts = plan.in[0].dtype != plan.out.dtype;
  for (int64_t i = begin, n; i < end; i += n) {
    n = end - i < kBlock ? end - i : kBlock;
    const char* source = in.Contiguous(n);
    if (source) {
      in.Advance(n);
    } else {
      in.Gather(n, gathered);
      source = gathered;
    }
    char* target = out.Contiguous(n);
    if (converts) {
      Convert(plan.in[0].dtype, source, n, plan.out.dtype, target ? target : scattered);
      source = scattered;
    }
    if (target && converts) {
      out.Advance(n);
    } else {
      out.Scatter(n, source);
    }
  }
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_cast_cpu(const CastArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  return RunMap(call, Plan<1>(args->out, {args->x}), Run);
}
extern "C" int32_t anyop_cast_backward_cpu(const CastBackwardArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  return RunMap(call, Plan<1>(args->grad_x, {args->grad_out}), Run);
}
