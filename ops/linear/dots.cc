// SPDX-License-Identifier: Apache-2.0
// Each thread takes some columns of the results; a step adds 32 products of each row and each of
// four columns to 16 sums.
#include "dots.h"

#include <algorithm>
#include <cstring>

#include "convert.h"

namespace anyop {
namespace {

constexpr int64_t kMostRows = 4;

#if defined(__x86_64__) && (!defined(ANYOP_CPU_ISA) || ANYOP_CPU_ISA >= 4)
#define ANYOP_DOTS_TARGET __attribute__((target("avx512f,avx512bw,avx512bf16")))
constexpr int kColumns = 4, kTerms = 32;
constexpr int64_t kPanel = 64;  // columns whose results are rounded together
typedef float Sums __attribute__((vector_size(64)));
typedef short Terms __attribute__((vector_size(64)));
typedef short StoredTerms __attribute__((vector_size(64), aligned(2), may_alias));

struct Work {
  const uint16_t *a, *b, *bias;
  uint16_t* out;
  int64_t a_step, b_step, N, K;  // steps between rows, in elements
};

// The instruction by its name, for its intrinsic's types differ between compilers.
ANYOP_DOTS_TARGET inline void AddProducts(Sums& sums, Terms x, Terms y) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sums) : "v"(x), "v"(y));
}

template <bool kWhole>
ANYOP_DOTS_TARGET inline Terms Load(const uint16_t* from, int64_t left) {
  if (kWhole) return *reinterpret_cast<const StoredTerms*>(from);
  Terms terms = {};
  std::memcpy(&terms, from, static_cast<size_t>(left) * sizeof *from);
  return terms;
}

// One value for each of four rows. Members, because compilers keep no array in registers here.
template <typename T>
struct OfRows {
  T r0{}, r1{}, r2{}, r3{};
};

// The products of one column and each row.
template <int kRows>
ANYOP_DOTS_TARGET inline void Add(OfRows<Sums>& sums, const OfRows<Terms>& x, Terms y) {
  AddProducts(sums.r0, x.r0, y);
  if (kRows > 1) AddProducts(sums.r1, x.r1, y);
  if (kRows > 2) AddProducts(sums.r2, x.r2, y);
  if (kRows > 3) AddProducts(sums.r3, x.r3, y);
}

// By halves.
ANYOP_DOTS_TARGET inline float Total(const Sums& sums) {
  typedef float Eight __attribute__((vector_size(32)));
  typedef float Four __attribute__((vector_size(16)));
  Eight eight[2];
  std::memcpy(eight, &sums, sizeof eight);
  eight[0] += eight[1];
  Four four[2];
  std::memcpy(four, eight, sizeof four);
  four[0] += four[1];
  return (four[0][0] + four[0][1]) + (four[0][2] + four[0][3]);
}

// Four columns of b, the last one again where there are fewer, and their sums.
template <int kRows>
struct Columns {
  const uint16_t *b0, *b1, *b2, *b3;
  OfRows<Sums> s0, s1, s2, s3;

  // The products of the terms from k on: 32, or those that are left.
  template <bool kWhole>
  ANYOP_DOTS_TARGET inline void Step(const Work& w, int64_t k) {
    const int64_t left = w.K - k, next = kColumns * w.b_step + k;
    const uint16_t* a = w.a + k;
    OfRows<Terms> x;
    x.r0 = Load<kWhole>(a, left);
    if (kRows > 1) x.r1 = Load<kWhole>(a + w.a_step, left);
    if (kRows > 2) x.r2 = Load<kWhole>(a + 2 * w.a_step, left);
    if (kRows > 3) x.r3 = Load<kWhole>(a + 3 * w.a_step, left);
    for (const uint16_t* b : {b0, b1, b2, b3}) __builtin_prefetch(b + next);
    Add<kRows>(s0, x, Load<kWhole>(b0 + k, left));
    Add<kRows>(s1, x, Load<kWhole>(b1 + k, left));
    Add<kRows>(s2, x, Load<kWhole>(b2 + k, left));
    Add<kRows>(s3, x, Load<kWhole>(b3 + k, left));
  }

  ANYOP_DOTS_TARGET inline void Write(Sums OfRows<Sums>::* row, float* to) const {
    to[0] = Total(s0.*row), to[1] = Total(s1.*row);
    to[2] = Total(s2.*row), to[3] = Total(s3.*row);
  }
};

// Results of kRows rows and of `count` columns from n on, of each row at to[row].
template <int kRows>
ANYOP_DOTS_TARGET void Block(const Work& w, int64_t n, int64_t count, float (*to)[kPanel]) {
  const auto column = [&](int64_t i) { return w.b + (n + std::min(i, count - 1)) * w.b_step; };
  Columns<kRows> columns = {column(0), column(1), column(2), column(3), {}, {}, {}, {}};
  int64_t k = 0;
  for (; k + kTerms <= w.K; k += kTerms) columns.template Step<true>(w, k);
  if (k < w.K) columns.template Step<false>(w, k);
  columns.Write(&OfRows<Sums>::r0, to[0]);
  if (kRows > 1) columns.Write(&OfRows<Sums>::r1, to[1]);
  if (kRows > 2) columns.Write(&OfRows<Sums>::r2, to[2]);
  if (kRows > 3) columns.Write(&OfRows<Sums>::r3, to[3]);
}

// Columns [begin, end) of the results, no more than a panel.
void Panel(const Work& w, int64_t M, int64_t begin, int64_t end) {
  constexpr void (*kBlocks[])(const Work&, int64_t, int64_t, float (*)[kPanel]) = {
      Block<1>, Block<2>, Block<3>, Block<4>};
  float sums[kMostRows][kPanel], bias[kPanel] = {};
  for (int64_t n = begin; n < end; n += kColumns) {
    float (*to)[kPanel] = reinterpret_cast<float (*)[kPanel]>(&sums[0][n - begin]);
    kBlocks[M - 1](w, n, std::min<int64_t>(kColumns, end - n), to);
  }
  if (w.bias) Widen(kAnyopBFloat16, w.bias, begin, 1, end - begin, bias);
  for (int64_t m = 0; m < M; ++m) {
    for (int64_t n = 0; n < end - begin; ++n) sums[m][n] += bias[n];
    Narrow(sums[m], end - begin, kAnyopBFloat16, w.out, m * w.N + begin);
  }
}
#endif

}  // namespace

bool Dots(AnyopCall* call, const GemmProblem& p) {
#ifdef ANYOP_DOTS_TARGET
  const bool fits = p.dtype == kAnyopBFloat16 && p.M <= kMostRows && p.batch_dims == 0 &&
                    p.sum_dims == 0 && (p.a.col_stride == 1 || p.K == 1) &&
                    (p.b.row_stride == 1 || p.K == 1);
  if (!fits || !HasBF16Dots()) return false;
  const Work work = {static_cast<const uint16_t*>(p.a.data),
                     static_cast<const uint16_t*>(p.b.data),
                     static_cast<const uint16_t*>(p.bias),
                     static_cast<uint16_t*>(p.out),
                     p.a.row_stride,
                     p.b.col_stride,
                     p.N,
                     p.K};
  const int64_t panels = (p.N + kPanel - 1) / kPanel;
  ParallelFor(call, panels, 65536 / (p.K * kPanel) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin * kPanel; n < std::min(end * kPanel, p.N); n += kPanel)
      Panel(work, p.M, n, std::min(n + kPanel, p.N));
  });
  return true;
#else
  (void)call, (void)p;
  return false;
#endif
}

}  // namespace anyop
