// SPDX-License-Identifier: Apache-2.0
// Loops over elements of channels on the CPU, in their place and converted in registers: over a run
// of one channel, or over neighbouring channels of several pixels, so that what is known of a
// channel is read once for these.
#ifndef ANYOP_OPS_NORM_CHANNEL_PIXELS_H_
#define ANYOP_OPS_NORM_CHANNEL_PIXELS_H_

#include <type_traits>
#include <utility>

#include "channel_runs.h"

namespace anyop::cpu {

// The functions below are called with elements of type E: double, float, float16 or bfloat16. What
// has another type, or is masked, is copied as float. A place: `pixels` runs of n elements from
// number `first` on, each `step` behind the one before.
struct Place {
  int64_t first, n, pixels, step;
};
constexpr int64_t kPixelsSummed = 8;
template <typename E>
constexpr int64_t kPixelsMapped = sizeof(E) == sizeof(bfloat16) ? 2 : 1;

// float16 is taken as it lies in runs of one channel alone, by functions that convert in registers.
template <typename E>
constexpr bool kRunsAlone = kDtype<E> == kAnyopFloat16;

// each(E(), unit) for units from begin on. runs: of one channel. copies: the elements of 16 bits
// are masked, or so much is done with them that a copy takes less time.
template <typename Each>
inline void ForUnitsInPlace(AnyopDtype dtype, bool runs, bool copies, int64_t begin, int64_t end,
                            Each each) {
  const auto units = [&](auto element) {
    for (int64_t unit = begin; unit < end; ++unit) each(element, unit);
  };
  if (dtype == kAnyopFloat64) return units(double());
  if (dtype == kAnyopBFloat16 && !copies) return units(bfloat16());
  if (dtype == kAnyopFloat16 && runs && !copies && AddsHalves<float16>()) return units(float16());
  units(float());
}

// Elements of a place.
template <typename E>
struct Run {
  E* data;
  int64_t step;

  auto Get(int64_t i, int64_t pixel) const {
    return Load<typename WideOf<std::remove_const_t<E>>::Type>(data[i + pixel * step]);
  }
  template <typename Wide>
  void Set(Wide value, int64_t i, int64_t pixel) const {
    Store(value, data + i + pixel * step);
  }
};

template <typename E>
class RunReader {
 public:
  using Wide = typename WideOf<E>::Type;
  explicit RunReader(const PlainRows& rows, const uint8_t* mask = nullptr)
      : rows_(rows), mask_(mask), in_place_(rows.dtype == kDtype<E> && !mask) {}

  Run<const E> Read(const Place& place) {
    if (in_place_) {
      const E* data = reinterpret_cast<const E*>(rows_.At(place.first));
      // The next pixels: processors do not see these as one run of memory.
      const bool fetches = place.pixels > 1 && place.step * int64_t{sizeof(E)} < 4096;
      for (int64_t pixel = place.pixels; fetches && pixel < 2 * place.pixels; ++pixel)
        Fetch(reinterpret_cast<const char*>(data + pixel * place.step),
              place.n * int64_t{sizeof(E)});
      return {data, place.step};
    }
    if constexpr (sizeof(E) != sizeof(bfloat16)) {
      if (place.n == place.step) {
        Copy(place.first, place.pixels * place.n, buffer_);
        return {buffer_, place.n};
      }
      for (int64_t pixel = 0; pixel < place.pixels; ++pixel)
        Copy(place.first + pixel * place.step, place.n, buffer_ + pixel * place.n);
    }
    return {buffer_, place.n};
  }

 private:
  void Copy(int64_t first, int64_t n, E* to) {
    const char* from = rows_.At(first);
    if (rows_.dtype != kDtype<E>)
      Widen(Types<float16, bfloat16, float>(), rows_.dtype, from, n, to);
    if (mask_)
      Masked(n, rows_.dtype == kDtype<E> ? reinterpret_cast<const E*>(from) : to, mask_, first, to);
  }

  const PlainRows& rows_;
  const uint8_t* mask_;
  const bool in_place_;
  alignas(64) E buffer_[sizeof(E) == sizeof(bfloat16) ? 1 : kPixelsSummed * kBlock];
};

template <typename E>
class RunWriter {
 public:
  explicit RunWriter(const PlainRows& rows) : rows_(rows), in_place_(rows.dtype == kDtype<E>) {}

  Run<E> Target(const Place& place) {
    if (in_place_) return {reinterpret_cast<E*>(rows_.At(place.first)), place.step};
    return {buffer_, place.n};
  }
  void Write(const Place& place) {
    if constexpr (sizeof(E) != sizeof(bfloat16)) {
      for (int64_t pixel = 0; !in_place_ && pixel < place.pixels; ++pixel)
        Narrow(Types<float16, bfloat16, float>(), buffer_ + pixel * place.n, place.n, rows_.dtype,
               rows_.At(place.first + pixel * place.step));
    }
  }

 private:
  const PlainRows& rows_;
  const bool in_place_;
  alignas(64) E buffer_[sizeof(E) == sizeof(bfloat16) ? 1 : kBlock];
};

// use(place) for a run of n elements.
template <typename Use>
inline void ForRun(int64_t first, int64_t n, Use use) {
  ForBlocks(n, [&](int64_t at, int64_t size) { use(Place{first + at, size, 1, size}); });
}
// use(place, std::make_index_sequence of its pixels) for `size` channels of pixels, from element
// `first` on: kPixels at once, and the last ones one by one.
template <int64_t kPixels, typename Use>
inline void ForPixelsAtOnce(int64_t first, int64_t size, int64_t pixels, int64_t C, Use use) {
  int64_t p = 0;
  for (; p + kPixels <= pixels; p += kPixels)
    use(Place{first + p * C, size, kPixels, C}, std::make_index_sequence<kPixels>());
  for (; p < pixels; ++p) use(Place{first + p * C, size, 1, C}, std::make_index_sequence<1>());
}
// Sum of f(x[i]) over a block.
template <typename E, typename F>
inline auto SumOfRun(int64_t n, F f, const E* x) {
  if constexpr (sizeof(E) == sizeof(bfloat16)) {
    return SumHalves(n, f, x);
  } else {
    return SumBlock(n, f, x);
  }
}
template <typename E>
inline Moments MomentsOfRun(const PlainRows& x, int64_t first, int64_t n) {
  RunReader<E> in(x);
  Moments all;
  ForRun(first, n, [&](const Place& place) {
    const E* v = in.Read(place).data;
    const auto mean = SumOfRun(
                          place.n, [](const auto& v) { return v; }, v) /
                      static_cast<typename WideOf<E>::Type>(place.n);
    const auto squared = [mean](const auto& v) { return (v - mean) * (v - mean); };
    all.Join(place.first - first, place.n, mean, SumOfRun(place.n, squared, v));
  });
  return all;
}

// Sums of d and of d * h over a block, of h = to_h(x[i]) and d = to_d(grad[i], h).
template <typename E, typename ToH, typename ToD>
inline void AddRun(int64_t n, const E* grad, const E* x, ToH to_h, ToD to_d, double* sums) {
  using Wide = typename WideOf<E>::Type;
  constexpr int kLanes = 64 / sizeof(Wide);
  Wide a[kLanes], b[kLanes], p[kLanes], q[kLanes];
  for (int j = 0; j < kLanes; ++j) a[j] = b[j] = p[j] = q[j] = 0;
  const auto add = [&](int64_t i, Wide& sum, Wide& product) {
    const Wide h = to_h(Load<Wide>(x[i])), d = to_d(Load<Wide>(grad[i]), h);
    sum += d, product += d * h;
  };
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
#pragma omp simd
    for (int j = 0; j < kLanes; ++j) {
      add(i + j, a[j], p[j]);
      add(i + j + kLanes, b[j], q[j]);
    }
  }
  for (int64_t left; i < n; i += left) {
    left = n - i < kLanes ? n - i : kLanes;
#pragma omp simd
    for (int64_t j = 0; j < left; ++j) add(i + j, a[j], p[j]);
  }
#pragma omp simd
  for (int j = 0; j < kLanes; ++j) a[j] += b[j], p[j] += q[j];
  const auto plus = [](Wide a, Wide b) { return a + b; };
  sums[0] += JoinLanes<kLanes>(a, plus), sums[1] += JoinLanes<kLanes>(p, plus);
}

// Of each of n channels: the moments of some pixels, joined to those of `before` others.
template <typename E, typename Wide, size_t... k>
inline void JoinPixels(const Place& place, int64_t before, Run<const E> x, Wide* mean,
                       Wide* squares, std::index_sequence<k...>) {
  constexpr auto kPixels = static_cast<Wide>(sizeof...(k));
  const Wide share = kPixels / (static_cast<Wide>(before) + kPixels),
             kept = static_cast<Wide>(before) / (static_cast<Wide>(before) + kPixels),
             weight = share * static_cast<Wide>(before);
#pragma omp simd
  for (int64_t c = 0; c < place.n; ++c) {
    [&](auto... v) {
      const Wide found = (v + ...) / kPixels, far = found - mean[c];
      mean[c] = mean[c] * kept + found * share;  // of an infinity: itself
      squares[c] += (((v - found) * (v - found)) + ...) + far * weight * far;
    }(x.Get(c, k)...);
  }
}
// Of `size` channels of some pixels: mean, and sum of squared distances from it.
template <typename E, typename Wide>
inline void MomentsOfPixels(RunReader<E>& in, int64_t first, int64_t size, int64_t pixels,
                            int64_t C, Wide* mean, Wide* squares) {
  int64_t before = 0;
  for (int64_t c = 0; c < size; ++c) mean[c] = squares[c] = 0;
  ForPixelsAtOnce<kPixelsSummed>(first, size, pixels, C, [&](const Place& place, auto numbers) {
    JoinPixels(place, before, in.Read(place), mean, squares, numbers);
    before += place.pixels;
  });
}

// Of each of n channels: d and d * h of some pixels added, of h = to_h(c)(x) and d = to_d(c)(grad,
// h).
template <typename E, typename Wide, size_t... k, typename ToH, typename ToD>
inline void AddPixels(const Place& place, Run<const E> grad, Run<const E> x,
                      std::index_sequence<k...>, ToH to_h, ToD to_d, Wide* sums, Wide* products) {
  const auto h_of = [&](int64_t c, int64_t pixel) { return to_h(c)(x.Get(c, pixel)); };
  const auto d_of = [&](int64_t c, int64_t pixel, Wide h) {
    return to_d(c)(grad.Get(c, pixel), h);
  };
#pragma omp simd
  for (int64_t c = 0; c < place.n; ++c) {
    [&](auto... h) {
      [&](auto... d) {
        sums[c] += (d + ...);
        products[c] += ((d * h) + ...);
      }(d_of(c, k, h)...);
    }(h_of(c, k)...);
  }
}

// out = of(i)(in...) for the elements of a place, of which i is the number in its run.
template <typename E, size_t... k, typename Of, typename... In>
inline void MapPixels(const Place& place, std::index_sequence<k...>, Of of, RunWriter<E>& out,
                      Run<const In>... in) {
  const Run<E> to = out.Target(place);
  const auto value = [&](int64_t i, int64_t pixel) { return of(i)(in.Get(i, pixel)...); };
#pragma omp simd
  for (int64_t i = 0; i < place.n; ++i) {
    // All are read before one is written, which might be what the compiler reads `of` from.
    [&](auto... values) { (to.Set(values, i, k), ...); }(value(i, k)...);
  }
  out.Write(place);
}

// The channel of element i of a run.
template <bool kLast>
struct ChannelAt {
  int64_t first;
  int64_t operator()(int64_t i) const { return kLast ? first + i : first; }
};
// out = of(channel)(in...) for the elements of a place. of's functions take vectors, too.
template <typename E, typename Pixels, bool kLast, typename Of, typename... In>
inline void MapChannels(const Place& place, Pixels pixels, ChannelAt<kLast> channel, Of of,
                        RunWriter<E>& out, Run<const In>... in) {
  if constexpr (!kLast && sizeof(E) == sizeof(bfloat16)) {
    Apply(place.n, of(channel(0)), out.Target(place).data, in.data...);
  } else {
    MapPixels(place, pixels, [&](int64_t i) { return of(channel(i)); }, out, in...);
  }
}
// use(place, numbers of its pixels, channel at) for all places of one of runs.pieces().
template <typename E, typename Use>
inline void ForPlaces(const ChannelRuns& runs, int64_t piece, Use use) {
  if (!runs.last()) {
    const int64_t cuts = runs.cuts(), row = piece / cuts, at = piece % cuts * runs.kCut;
    return ForRun(row * runs.S + at, runs.S - at < runs.kCut ? runs.S - at : runs.kCut,
                  [&](const Place& place) {
                    use(place, std::make_index_sequence<1>(), ChannelAt<false>{row % runs.C});
                  });
  }
  if constexpr (!kRunsAlone<E>) {
    ForBlocks(runs.C, [&](int64_t at, int64_t size) {
      ForPixelsAtOnce<kPixelsMapped<E>>(
          piece * runs.kPixels * runs.C + at, size, runs.InPart(piece), runs.C,
          [&](const Place& place, auto pixels) { use(place, pixels, ChannelAt<true>{at}); });
    });
  }
}

// use(place, numbers of its pixels, its first channel) for all places of a part, channels last.
template <int64_t kPixels, typename Use>
inline void ForPlaces(const ChannelPlanes& planes, int64_t unit, Use use) {
  ForBlocks(planes.C, [&](int64_t at, int64_t size) {
    ForPixelsAtOnce<kPixels>(planes.FirstOf(unit) + at, size, planes.PixelsOf(unit), planes.C,
                             [&](const Place& place, auto pixels) { use(place, pixels, at); });
  });
}

}  // namespace anyop::cpu

#endif  // ANYOP_OPS_NORM_CHANNEL_PIXELS_H_
