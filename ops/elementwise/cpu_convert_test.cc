// SPDX-License-Identifier: Apache-2.0
// anyop/cpu/convert.h: each instruction set's conversions give what plain code gives, which rounds
// to nearest even, at any alignment and up to the edge of a page that may not be touched. Sums too.
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "anyop/cpu/convert.h"
#include "anyop/cpu/rows.h"
#include "tests/check.h"

namespace {

using namespace anyop::cpu;

// n elements of which the last ends where a page begins that ends the program when touched, or of
// which the first begins behind such a page.
template <typename T>
class AtEdge {
 public:
  AtEdge(size_t n, bool is_first)
      : page_(static_cast<size_t>(getpagesize())),
        bytes_((n * sizeof(T) + page_ - 1) / page_ * page_) {
    void* map = mmap(nullptr, bytes_ + 2 * page_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memory_ = static_cast<char*>(map);
    if (bytes_) mprotect(memory_ + page_, bytes_, PROT_READ | PROT_WRITE);
    at = reinterpret_cast<T*>(memory_ + page_ + (is_first ? 0 : bytes_ - n * sizeof(T)));
  }
  ~AtEdge() { munmap(memory_, bytes_ + 2 * page_); }
  AtEdge(const AtEdge&) = delete;
  T* at;

 private:
  size_t page_, bytes_;
  char* memory_;
};

template <typename T>
bool SameBytes(const T* a, const T* b, int64_t n) {
  return n == 0 || std::memcmp(a, b, static_cast<size_t>(n) * sizeof(T)) == 0;
}

// The number of a 16-bit float with so many bits of fraction, by its definition.
double NumberOf(unsigned bits, int fraction) {
  const int exponents = (1 << (15 - fraction)) - 1, bias = exponents / 2;
  const int exponent = static_cast<int>(bits >> fraction) & exponents;
  const double part = bits & ((1u << fraction) - 1), one = 1 << fraction;
  const double sign = bits >> 15 ? -1 : 1;
  if (exponent == exponents) return sign * (part != 0 ? NAN : INFINITY);
  if (exponent == 0) return sign * std::ldexp(part / one, 1 - bias);
  return sign * std::ldexp(1 + part / one, exponent - bias);
}

// float32 at and beside the numbers of a 16-bit float and halfway between them, and others.
std::vector<float> Floats(int fraction) {
  std::vector<float> x;
  for (unsigned bits = 0; bits < 1u << 15; ++bits) {
    const double low = NumberOf(bits, fraction), high = NumberOf(bits + 1, fraction);
    for (const double value : {low, (low + high) / 2}) {
      const float at = static_cast<float>(value);
      for (const float v : {at, std::nextafter(at, INFINITY), std::nextafter(at, -INFINITY)})
        x.insert(x.end(), {v, -v});
    }
  }
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 65521)  // denormals and NaN too
    x.push_back(FloatOf(static_cast<uint32_t>(bits)));
  for (const uint32_t nan : {0x7f800001u, 0xff800001u, 0x7fc12345u, 0xffffffffu, 0x7fa00000u})
    x.push_back(FloatOf(nan));
  return x;
}

// The nearest 16-bit float, of two the even one; of NaN any.
unsigned Nearest(float x, int fraction) {
  const unsigned sign = std::signbit(x) ? 0x8000 : 0;
  const double a = std::fabs(static_cast<double>(x));
  if (a != a) return sign | 0x7fff;
  unsigned low = 0, high = ((1u << (15 - fraction)) - 1) << fraction;
  while (low + 1 < high) {  // low <= a < high, by bits
    const unsigned middle = (low + high) / 2;
    (NumberOf(middle, fraction) <= a ? low : high) = middle;
  }
  // What infinity stands for in rounding: the number that would be next.
  const double below = NumberOf(low, fraction), step = below - NumberOf(low - 1, fraction);
  const bool is_last = std::isinf(NumberOf(high, fraction));
  const double above = is_last ? below + step : NumberOf(high, fraction);
  if (a - below != above - a) return sign | (a - below < above - a ? low : high);
  return sign | (low % 2 ? high : low);
}

template <typename From, typename To>
using Way = int64_t (*)(const From*, int64_t, To*);

template <typename From, typename To>
int64_t Plain(const From* from, int64_t n, To* to) {
  if constexpr (kDtype<To> == kAnyopBFloat16) {
    NarrowByInteger(from, n, to);
  } else {
    for (int64_t i = 0; i < n; ++i) Store(Load<float>(from[i]), to + i);
  }
  return n;
}
template <typename From, typename To>
int64_t Whole(const From* from, int64_t n, To* to) {
  if constexpr (kDtype<To> == kAnyopFloat32) {
    WidenFrom(from, n, to);
  } else {
    NarrowTo(from, n, to);
  }
  return n;
}
// The ways that this processor has.
template <typename From, typename To>
std::vector<Way<From, To>> Ways() {
  std::vector<Way<From, To>> ways = {Whole<From, To>};
#ifdef ANYOP_CPU_512
  if (Has512<To>()) ways.push_back(Convert512<From, To>);
#endif
#ifdef ANYOP_CPU_F16C
  if constexpr (kDtype<From> == kAnyopFloat16) {
    if (HasF16C()) ways.push_back(WidenF16C);
  } else if constexpr (kDtype<To> == kAnyopFloat16) {
    if (HasF16C()) ways.push_back(NarrowF16C);
  }
#endif
  return ways;
}

template <typename From, typename To>
void CompareWays(const std::vector<From>& from) {
  const int64_t n = static_cast<int64_t>(from.size());
  std::vector<To> expected(from.size());
  Plain(from.data(), n, expected.data());
  for (const Way<From, To> way : Ways<From, To>()) {
    std::vector<To> to(from.size());
    const int64_t done = way(from.data(), n, to.data());
    CHECK(n - done < 32);
    CHECK(SameBytes(to.data(), expected.data(), done));
    for (size_t size = 0; size <= 130; ++size) {
      for (const bool is_first : {false, true}) {
        const AtEdge<From> in(size, is_first);
        const AtEdge<To> out(size, is_first);
        const size_t begin = size * 131 % (from.size() - size);
        if (size) std::memcpy(in.at, from.data() + begin, size * sizeof(From));
        const int64_t some = way(in.at, static_cast<int64_t>(size), out.at);
        CHECK(SameBytes(out.at, expected.data() + begin, some));
      }
    }
  }
}

template <typename T>
void CompareType(int fraction) {
  std::vector<T> halves(1 << 16);
  for (unsigned bits = 0; bits < 1u << 16; ++bits) {
    halves[bits].bits = static_cast<uint16_t>(bits);
    const double number = NumberOf(bits, fraction), found = Load<float>(halves[bits]);
    if (!(found == number || (found != found && number != number))) CHECK_EQ(found, number);
  }
  const std::vector<float> floats = Floats(fraction);
  std::vector<T> narrow(floats.size());
  Plain(floats.data(), static_cast<int64_t>(floats.size()), narrow.data());
  const unsigned infinity = ((1u << (15 - fraction)) - 1) << fraction;
  for (size_t i = 0; i < floats.size(); ++i) {
    const unsigned found = narrow[i].bits, nearest = Nearest(floats[i], fraction);
    const bool quiet = (found & 0x7fff) >= (infinity | 1u << (fraction - 1));
    const bool good =
        floats[i] == floats[i] ? found == nearest : quiet && (found & 0x8000) == (nearest & 0x8000);
    if (!good) CHECK_EQ(found, nearest);
  }
  for (T& half : halves)  // as the instructions do, unlike plain code
    if ((half.bits & 0x7fff) > infinity) half.bits |= 1u << (fraction - 1);
  CompareWays<T, float>(halves);
  CompareWays<float, T>(floats);
}

TEST(Float16) { CompareType<float16>(10); }
TEST(BFloat16) { CompareType<bfloat16>(7); }

// A sum is rounded once and in one way, so that every instruction set must give the same bits.
template <typename Out, typename A, typename B>
void CompareApply() {
  const auto sum = [](const auto& a, const auto& b) { return a + b; };
  for (size_t n = 0; n <= 130; ++n) {
    for (const bool is_first : {false, true}) {
      const AtEdge<Out> out(n, is_first);
      const AtEdge<A> a(n, is_first);
      const AtEdge<B> b(n, is_first);
      std::vector<Out> expected(n);
      for (size_t i = 0; i < n; ++i) {
        const bool tiny = n % 8 == 0 && i == n - 1;  // denormal numbers
        Store(std::ldexp(static_cast<float>(i * 97 % 101) - 50, tiny ? -130 : -3), a.at + i);
        Store(std::ldexp(static_cast<float>(i * 37 % 89) - 44, tiny ? -133 : 4), b.at + i);
        Store(Load<float>(a.at[i]) + Load<float>(b.at[i]), expected.data() + i);
      }
      ApplyInRegisters(static_cast<int64_t>(n), sum, out.at, a.at, b.at);
      CHECK(SameBytes(out.at, expected.data(), static_cast<int64_t>(n)));
    }
  }
}
template <typename A, typename B>
void CompareApplies() {
  CompareApply<float, A, B>();
  CompareApply<float16, A, B>();
  CompareApply<bfloat16, A, B>();
}
// Small whole numbers, of which every order of additions makes the same sum.
template <typename T>
ANYOP_CPU_CLONES float SumOfProducts(int64_t n, const T* a, const T* b) {
  const auto product = [](const auto& a, const auto& b) { return a * b; };
  if constexpr (kDtype<T> == kAnyopFloat32) {
    return SumBlock(n, product, a, b);
  } else {
    return SumHalves(n, product, a, b);
  }
}
template <typename T>
void CompareSums() {
  for (int64_t n = 0; n <= 330; ++n) {
    for (const bool is_first : {false, true}) {
      const AtEdge<T> a(static_cast<size_t>(n), is_first), b(static_cast<size_t>(n), is_first);
      float expected = 0;
      for (int64_t i = 0; i < n; ++i) {
        const float x = static_cast<float>(i % 13 - 5), y = static_cast<float>(i % 7 - 2);
        Store(x, a.at + i);
        Store(y, b.at + i);
        expected += x * y;
      }
      CHECK_EQ(SumOfProducts(n, a.at, b.at), expected);
    }
  }
}
TEST(Sums) {
  CompareSums<float>();
  CompareSums<float16>();
  CompareSums<bfloat16>();
}

TEST(Apply) {
  CompareApplies<float16, float16>();
  CompareApplies<float16, float>();
  CompareApplies<float, bfloat16>();
  CompareApplies<bfloat16, float16>();
  CompareApplies<float, float>();
}

}  // namespace
