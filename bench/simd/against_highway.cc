// SPDX-License-Identifier: Apache-2.0
// Times anyop's kernels against the same loops written with Google Highway, which has to be
// installed for it. From the root of the repository:
//
//   python -m codegen --out build/simd ops
//   g++ -O2 -std=c++17 -fopenmp-simd -fno-math-errno -fno-trapping-math -I. -Iinclude -Ibuild/simd
//     bench/simd/against_highway.cc ops/norm/rms_norm.cc ops/softmax/softmax.cc
//     ops/elementwise/gelu.cc -lhwy -o build/simd/against_highway
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/simd/against_highway.cc"
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <vector>

#include "hwy/foreach_target.h"
// Highway's own order of includes.
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace peer::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using Tag = hn::ScalableTag<float>;
using Vec = hn::Vec<Tag>;

// To nearest even, NaN kept; Highway 1.0's own DemoteTo cuts off.
void StoreRounded(Vec v, hwy::bfloat16_t* to) {
  const hn::Rebind<uint32_t, Tag> words;
  const hn::Rebind<uint16_t, Tag> halves;
  const auto bits = hn::BitCast(words, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(words, 0x7fff)), odd));
  const auto is_nan = hn::RebindMask(words, hn::IsNaN(v));
  const auto result = hn::IfThenElse(is_nan, hn::Set(words, 0x7fc0), rounded);
  hn::StoreU(hn::TruncateTo(halves, result), halves, reinterpret_cast<uint16_t*>(to));
}

// Sizes are multiples of four vectors. T: float or hwy::bfloat16_t.
template <typename T>
void RmsNormOf(const T* x, const T* weight, T* y, size_t rows, size_t D) {
  const Tag d;
  const hn::Rebind<T, Tag> storage;
  const size_t N = hn::Lanes(d);
  const auto load = [&](const T* from) {
    if constexpr (sizeof(T) == 4) {
      return hn::LoadU(d, from);
    } else {
      return hn::PromoteTo(d, hn::LoadU(storage, from));
    }
  };
  for (size_t row = 0; row < rows; ++row, x += D, y += D) {
    Vec sum[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    for (size_t i = 0; i < D; i += 4 * N) {
      for (size_t j = 0; j < 4; ++j) {
        const Vec v = load(x + i + j * N);
        sum[j] = hn::MulAdd(v, v, sum[j]);
      }
    }
    const Vec all = hn::SumOfLanes(d, hn::Add(hn::Add(sum[0], sum[1]), hn::Add(sum[2], sum[3])));
    const Vec scale = hn::Set(d, 1 / std::sqrt(hn::GetLane(all) / D + 1e-6f));
    for (size_t i = 0; i < D; i += N) {
      const Vec v = hn::Mul(hn::Mul(load(x + i), scale), load(weight + i));
      if constexpr (sizeof(T) == 4) {
        hn::StoreU(v, d, y + i);
      } else {
        StoreRounded(v, y + i);
      }
    }
  }
}
void RmsNorm(const float* x, const float* weight, float* y, size_t rows, size_t D) {
  RmsNormOf(x, weight, y, rows, D);
}
void RmsNormHalf(const hwy::bfloat16_t* x, const hwy::bfloat16_t* weight, hwy::bfloat16_t* y,
                 size_t rows, size_t D) {
  RmsNormOf(x, weight, y, rows, D);
}
void Gelu(const float* x, float* y, size_t count) {
  const Tag d;
  const Vec linear = hn::Set(d, -1.5957691216f), cubic = hn::Set(d, 0.044715f),
            one = hn::Set(d, 1.0f);
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    const Vec v = hn::LoadU(d, x + i);
    const Vec u = hn::Mul(hn::Mul(linear, v), hn::MulAdd(hn::Mul(cubic, v), v, one));
    hn::StoreU(hn::Div(v, hn::Add(one, hn::Exp(d, u))), d, y + i);
  }
}
void Softmax(const float* x, float* y, size_t rows, size_t C) {
  const Tag d;
  const size_t N = hn::Lanes(d);
  for (size_t row = 0; row < rows; ++row, x += C, y += C) {
    Vec most = hn::Set(d, -INFINITY), other = most, sum = hn::Zero(d), rest = sum;
    for (size_t i = 0; i < C; i += 2 * N) {
      most = hn::Max(most, hn::LoadU(d, x + i));
      other = hn::Max(other, hn::LoadU(d, x + i + N));
    }
    most = hn::MaxOfLanes(d, hn::Max(most, other));
    for (size_t i = 0; i < C; i += 2 * N) {
      const Vec a = hn::Exp(d, hn::Sub(hn::LoadU(d, x + i), most));
      const Vec b = hn::Exp(d, hn::Sub(hn::LoadU(d, x + i + N), most));
      sum = hn::Add(sum, a);
      rest = hn::Add(rest, b);
      hn::StoreU(a, d, y + i);
      hn::StoreU(b, d, y + i + N);
    }
    const Vec scale = hn::Div(hn::Set(d, 1.0f), hn::SumOfLanes(d, hn::Add(sum, rest)));
    for (size_t i = 0; i < C; i += N) hn::StoreU(hn::Mul(hn::LoadU(d, y + i), scale), d, y + i);
  }
}
}  // namespace peer::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "anyop/ops/gelu.h"
#include "anyop/ops/rms_norm.h"
#include "anyop/ops/softmax.h"

namespace peer {
HWY_EXPORT(RmsNorm);
HWY_EXPORT(RmsNormHalf);
HWY_EXPORT(Gelu);
HWY_EXPORT(Softmax);
}  // namespace peer

namespace {

constexpr int64_t D = 4096;

// A contiguous tensor of 4- or 2-byte floats.
struct Tensor {
  int64_t shape[2], strides[2] = {D, 1};
  AnyopTensor view;
  Tensor(void* data, int64_t rows, int bytes, int ndim) : shape{rows, D} {
    view = {data,
            1,
            0,
            ndim,
            static_cast<uint8_t>(bytes == 2 ? 4 : 2),
            static_cast<uint8_t>(8 * bytes),
            1,
            shape + 2 - ndim,
            strides + 2 - ndim,
            0};
  }
};

void Serial(AnyopCall*, int64_t count, int64_t, AnyopBody body, void* context) {
  body(context, 0, count);
}

template <typename Ours, typename Theirs>
void Compare(const char* name, int64_t rows, Ours ours, Theirs theirs) {
  std::vector<double> us[2];
  const auto measure = [&](int side, auto run) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    us[side].push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
            .count());
  };
  for (int round = 0; round < (rows > 100 ? 60 : 1500); ++round)
    measure(0, ours), measure(1, theirs);
  for (auto& side : us) std::sort(side.begin(), side.end());
  std::printf("%-14s%5ld %10.1f %10.1f %6.2f\n", name, static_cast<long>(rows), us[0][0], us[1][0],
              us[1][0] / us[0][0]);
}

template <typename T, typename Theirs>
void CompareRmsNorm(const char* name, int64_t rows, std::vector<T>& x, std::vector<T>& w,
                    std::vector<T>& y, AnyopCall* call, Theirs theirs) {
  Tensor tx(x.data(), rows, sizeof(T), 2), tw(w.data(), rows, sizeof(T), 1),
      ty(y.data(), rows, sizeof(T), 2);
  RmsNormArgs args = {};
  args.x = &tx.view, args.weight = &tw.view, args.out = &ty.view;
  args.eps = 1e-6, args.D = D, args.rows = rows;
  Compare(name, rows, [&] { anyop_rms_norm_cpu(&args, call); }, theirs);
}

void CompareAll(int64_t rows) {
  AnyopCall call = {};
  call.size = sizeof(call);
  call.parallel = Serial;
  const size_t count = rows * D;
  std::vector<float> x(count), y(count), w(D, 1.5f);
  std::vector<uint16_t> hx(count), hy(count), hw(D, 0x3f80);
  for (size_t i = 0; i < count; ++i) {
    x[i] = 3 * std::sin(0.37f * i);
    uint32_t bits;
    __builtin_memcpy(&bits, &x[i], 4);
    hx[i] = bits >> 16;
  }
  Tensor tx(x.data(), rows, 4, 2), ty(y.data(), rows, 4, 2);
  CompareRmsNorm("rms_norm f32", rows, x, w, y, &call, [&] {
    HWY_DYNAMIC_DISPATCH(peer::RmsNorm)(x.data(), w.data(), y.data(), rows, D);
  });
  const auto half = [](std::vector<uint16_t>& v) {
    return reinterpret_cast<hwy::bfloat16_t*>(v.data());
  };
  CompareRmsNorm("rms_norm bf16", rows, hx, hw, hy, &call, [&] {
    HWY_DYNAMIC_DISPATCH(peer::RmsNormHalf)(half(hx), half(hw), half(hy), rows, D);
  });
  GeluArgs gelu = {};
  gelu.x = &tx.view, gelu.approximate = {"tanh", 4}, gelu.out = &ty.view;
  Compare(
      "gelu tanh f32", rows, [&] { anyop_gelu_cpu(&gelu, &call); },
      [&] { HWY_DYNAMIC_DISPATCH(peer::Gelu)(x.data(), y.data(), count); });
  SoftmaxArgs softmax = {};
  softmax.x = &tx.view, softmax.dim = -1, softmax.out = &ty.view;
  Compare(
      "softmax f32", rows, [&] { anyop_softmax_cpu(&softmax, &call); },
      [&] { HWY_DYNAMIC_DISPATCH(peer::Softmax)(x.data(), y.data(), rows, D); });
}

}  // namespace

int main() {
  std::printf("%-14s%5s %10s %10s %6s\n", "one thread", "rows", "anyop us", "highway us", "ratio");
  CompareAll(64);
  CompareAll(2048);
}
#endif  // HWY_ONCE
