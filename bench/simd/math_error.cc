// SPDX-License-Identifier: Apache-2.0
// Prints the largest error, in units of the last place, of every function of anyop/cpu/math.h.
//
//   g++ -O3 -std=c++17 -march=x86-64-v3 -Iinclude bench/simd/math_error.cc -o math_error &&
//   ./math_error
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "anyop/cpu/math.h"

namespace {

using namespace anyop::cpu;

// Error of `found` in ulp of the nearest value of its type; infinite when only one of the two is
// finite or NaN.
template <typename Wide>
double Ulps(Wide found, long double exact) {
  const Wide nearest = static_cast<Wide>(exact);
  if (std::isnan(found) || std::isnan(nearest))
    return std::isnan(found) == std::isnan(nearest) ? 0 : INFINITY;
  if (std::isinf(found) || std::isinf(nearest)) return found == nearest ? 0 : INFINITY;
  const int exponent =
      nearest == 0 ? std::numeric_limits<Wide>::min_exponent : std::ilogb(nearest) + 1;
  const int digits = std::numeric_limits<Wide>::digits;
  const int last = std::max(exponent, std::numeric_limits<Wide>::min_exponent) - digits;
  return static_cast<double>(std::fabs(static_cast<long double>(found) - exact) /
                             std::ldexp(1.0L, last));
}

// Every `step`-th number of the type by bit pattern, all signs, denormals, infinities and NaN
// included.
template <typename Wide, typename Function, typename Exact>
void Report(const char* name, Wide limit, Function function, Exact exact) {
  using Word = typename Bits<Wide>::Word;
  const Word step = sizeof(Wide) == 4 ? Word{509} : static_cast<Word>(0x1p64 / 8e6);
  double worst = 0;
  Wide worst_at = 0;
  auto check = [&](Wide x) {
    if (!(std::fabs(x) < limit) && std::isfinite(x)) return;
    const double error = Ulps(function(x), exact(static_cast<long double>(x)));
    if (!(error <= worst)) worst = error, worst_at = x;
  };
  for (Word word = 0; word <= static_cast<Word>(~Word{0}) - step; word += step)
    check(FromBits<Wide>(word));
  for (int i = -2000000; i <= 2000000; ++i)
    check(static_cast<Wide>(i * (limit < 1e3 ? 5e-5 : 4e-4) + 1e-9));
  const Wide special[] = {
      0, INFINITY, -INFINITY, NAN, 1, -1, std::numeric_limits<Wide>::denorm_min()};
  for (Wide x : special) check(x);
  std::printf("%-6s %s %.2f ulp at %.9g\n", name, sizeof(Wide) == 4 ? "float " : "double", worst,
              static_cast<double>(worst_at));
}

template <typename Wide>
void ReportAll() {
  const Wide all = std::numeric_limits<Wide>::infinity();
  Report<Wide>(
      "exp", all, [](Wide x) { return Exp(x); }, [](long double x) { return std::exp(x); });
  Report<Wide>(
      "expm1", 80, [](Wide x) { return std::isfinite(x) ? Expm1(x) : std::expm1(x); },
      [](long double x) { return std::expm1(x); });
  Report<Wide>(
      "log", all, [](Wide x) { return Log(x); }, [](long double x) { return std::log(x); });
  Report<Wide>(
      "tanh", all, [](Wide x) { return Tanh(x); }, [](long double x) { return std::tanh(x); });
  Report<Wide>(
      "erf", all, [](Wide x) { return Erf(x); }, [](long double x) { return std::erf(x); });
}

}  // namespace

int main() {
  ReportAll<float>();
  ReportAll<double>();
}
