// SPDX-License-Identifier: Apache-2.0
// Each thread takes some panels, or has its own blocks. A step adds the products of a pair of terms
// of 6 rows of a and of the 64 columns to 384 sums, which 24 registers hold: 4 loads of the panel
// and 6 pairs of a, each repeated in a register, for 24 instructions.
#include "panels.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "convert.h"
#include "dots.h"
#include "kept_memory.h"
#include "pair_products.h"

namespace anyop {
namespace {

#ifdef ANYOP_DOTS_TARGET
constexpr int64_t kColumns = kPanelColumns, kTogether = 6;  // rows of a step
constexpr int kVectors = kColumns / 16;
constexpr int64_t kDepth = 1024;      // terms of a panel that stay in the second cache
constexpr int64_t kRows = 256;        // whose sums stay there
constexpr int64_t kPackedRows = 120;  // whose sums stay in the first cache
constexpr int64_t kPair = 2 * kColumns;
constexpr double kGrain = 250e3;  // multiplications, some 3 us

typedef int Pairs __attribute__((vector_size(64)));

// The products of a pair of terms of kCount rows of x, or of one term that is left.
template <int kCount, bool kWhole>
ANYOP_DOTS_TARGET inline void Step(const uint16_t* x, int64_t x_step, const uint16_t* panel,
                                   Sums (&sums)[kCount][kVectors]) {
  Terms y[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    y[v] = *reinterpret_cast<const StoredTerms*>(panel + v * 32);
    __builtin_prefetch(panel + v * 32 + 8 * kPair);
  }
#pragma GCC unroll 8
  for (int m = 0; m < kCount; ++m) {
    int pair = 0;
    std::memcpy(&pair, x + m * x_step, kWhole ? 4 : 2);
    const Terms both = reinterpret_cast<Terms>(Pairs{} + pair);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[m][v] = AddProducts(sums[m][v], both, y[v]);
  }
}

// Sums of rows of 64.
struct PanelSums {
  float* data;
  int64_t step;
};

// sums[kCount][64] = or += rows of x by K terms of a panel.
template <int kCount>
ANYOP_DOTS_TARGET void Add(const PairRows& x, const uint16_t* panel, int64_t K, bool first,
                           const PanelSums& to) {
  const int64_t x_step = x.row_step, pair_step = x.pair_step;
  Sums sums[kCount][kVectors];
#pragma GCC unroll 8
  for (int m = 0; m < kCount; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      sums[m][v] = first ? Sums{} : *reinterpret_cast<StoredSums*>(to.data + m * to.step + v * 16);
  }
  int64_t k = 0;
  const uint16_t* at = x.data;
  for (; k + 2 <= K; k += 2, at += pair_step, panel += kPair)
    Step<kCount, true>(at, x_step, panel, sums);
  if (k < K) Step<kCount, false>(at, x_step, panel, sums);
#pragma GCC unroll 8
  for (int m = 0; m < kCount; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      *reinterpret_cast<StoredSums*>(to.data + m * to.step + v * 16) = sums[m][v];
  }
}

void AddRows(const PairRows& x, int64_t M, const uint16_t* panel, int64_t K, bool first,
             const PanelSums& sums) {
  constexpr void (*kAdd[])(const PairRows&, const uint16_t*, int64_t, bool, const PanelSums&) = {
      Add<1>, Add<2>, Add<3>, Add<4>, Add<5>, Add<6>};
  const int64_t blocks = (M + kTogether - 1) / kTogether;
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t m = M * i / blocks, end = M * (i + 1) / blocks;
    kAdd[end - m - 1]({x.data + m * x.row_step, x.row_step, x.pair_step}, panel, K, first,
                      {sums.data + m * sums.step, sums.step});
  }
}

// The same of fewer than 64 columns, whose sums may lie side by side with others.
void AddSome(const PairRows& x, int64_t M, int64_t columns, const uint16_t* panel, int64_t K,
             bool first, const PanelSums& sums) {
  const auto bytes = static_cast<size_t>(columns) * sizeof(float);
  for (int64_t m = 0; m < M; m += kTogether) {
    const int64_t count = std::min(kTogether, M - m);
    alignas(64) float whole[kTogether * kColumns] = {};
    float* own = sums.data + m * sums.step;
    for (int64_t i = 0; !first && i < count; ++i)
      std::memcpy(whole + i * kColumns, own + i * sums.step, bytes);
    AddRows({x.data + m * x.row_step, x.row_step, x.pair_step}, count, panel, K, first,
            {whole, kColumns});
    for (int64_t i = 0; i < count; ++i)
      std::memcpy(own + i * sums.step, whole + i * kColumns, bytes);
  }
}

// to[i] = the from[i]-th of both.
ANYOP_DOTS_TARGET inline Terms Alternate(Terms one, Terms from, Terms other) {
  asm("vpermt2w %2, %1, %0" : "+v"(one) : "v"(from), "v"(other));
  return one;
}

// Which elements of two rows alternate in the first and in the second half of 32 columns' pairs.
struct Order {
  uint16_t low[32], high[32];
  constexpr Order() : low(), high() {
    for (int i = 0; i < 16; ++i) {
      low[2 * i] = static_cast<uint16_t>(i), low[2 * i + 1] = static_cast<uint16_t>(32 + i);
      high[2 * i] = static_cast<uint16_t>(16 + i), high[2 * i + 1] = static_cast<uint16_t>(48 + i);
    }
  }
};
constexpr Order kOrder;

ANYOP_DOTS_TARGET inline Terms At(const uint16_t* data) {
  return *reinterpret_cast<const StoredTerms*>(data);
}
ANYOP_DOTS_TARGET inline void Put(Terms terms, uint16_t* to) {
  *reinterpret_cast<StoredTerms*>(to) = terms;
}

// K rows of b from one column on, as a part of a panel; zeros where b has no element.
ANYOP_DOTS_TARGET void MakePanel(const uint16_t* b, int64_t b_step, int64_t K, int64_t columns,
                                 uint16_t* to) {
  const Terms low = At(kOrder.low), high = At(kOrder.high);
  for (int64_t k = 0; k < K; k += 2, to += kPair) {
    const uint16_t *one = b + k * b_step, *other = one + b_step;
    uint16_t rows[2][kColumns];
    if (columns < kColumns || k + 1 == K) {
      const size_t bytes = static_cast<size_t>(std::min(columns, kColumns)) * sizeof *b;
      std::memset(rows, 0, sizeof rows);
      std::memcpy(rows[0], one, bytes);
      if (k + 1 < K) std::memcpy(rows[1], other, bytes);
      one = rows[0], other = rows[1];
    } else {
      for (int half = 0; half < 2; ++half) {
        __builtin_prefetch(one + 16 * b_step + half * 32);
        __builtin_prefetch(other + 16 * b_step + half * 32);
      }
    }
    for (int half = 0; half < 2; ++half) {
      const Terms a = At(one + half * 32), c = At(other + half * 32);
      Put(Alternate(a, low, c), to + half * 64);
      Put(Alternate(a, high, c), to + half * 64 + 32);
    }
  }
}

typedef int Four __attribute__((vector_size(16)));
typedef int StoredFour __attribute__((vector_size(16), aligned(2), may_alias));
typedef int Eight __attribute__((vector_size(32)));

// Four pairs of rows i, i + 4, i + 8 and i + 12.
ANYOP_DOTS_TARGET inline Pairs JoinRows(const uint16_t* from, int64_t step) {
  const auto row = [&](int64_t i) -> Four {
    return *reinterpret_cast<const StoredFour*>(from + i * step);
  };
  const Eight low = __builtin_shufflevector(row(0), row(4), 0, 1, 2, 3, 4, 5, 6, 7);
  const Eight high = __builtin_shufflevector(row(8), row(12), 0, 1, 2, 3, 4, 5, 6, 7);
  return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
ANYOP_DOTS_TARGET inline Pairs AlternateLow(Pairs a, Pairs b) {  // in each quarter
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
}
ANYOP_DOTS_TARGET inline Pairs AlternateHigh(Pairs a, Pairs b) {
  return __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
}
ANYOP_DOTS_TARGET inline Pairs FirstTwo(Pairs a, Pairs b) {
  return __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
}
ANYOP_DOTS_TARGET inline Pairs LastTwo(Pairs a, Pairs b) {
  return __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}

// Four pairs of sixteen rows to four pairs of sixteen columns of a panel.
ANYOP_DOTS_TARGET inline void TurnSixteen(const uint16_t* from, int64_t step, uint16_t* to) {
  Pairs row[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) row[i] = JoinRows(from + i * step, step);
  const Pairs a = AlternateLow(row[0], row[1]), b = AlternateLow(row[2], row[3]);
  const Pairs c = AlternateHigh(row[0], row[1]), d = AlternateHigh(row[2], row[3]);
  const Pairs pair[4] = {FirstTwo(a, b), LastTwo(a, b), FirstTwo(c, d), LastTwo(c, d)};
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) Put(reinterpret_cast<Terms>(pair[i]), to + i * kPair);
}

// A panel of `columns` rows of b; zeros where b has no element.
ANYOP_DOTS_TARGET void TurnPanel(const uint16_t* b, int64_t step, int64_t K, int64_t columns,
                                 uint16_t* to) {
  const int64_t whole = K / 8 * 8;
  if (columns < kColumns) std::memset(to, 0, static_cast<size_t>(PanelStep(K)) * sizeof *to);
  int64_t n = 0;
  for (; n + 16 <= columns; n += 16) {
    for (int64_t k = 0; k < whole; k += 8)
      TurnSixteen(b + n * step + k, step, to + k * kColumns + 2 * n);
  }
  for (int64_t row = 0; row < columns; ++row) {
    for (int64_t k = row < n ? whole : 0; k < K; k += 2) {
      uint16_t* pair = to + k * kColumns + 2 * row;
      pair[0] = b[row * step + k], pair[1] = k + 1 < K ? b[row * step + k + 1] : uint16_t{0};
    }
  }
}

class Product {
 public:
  explicit Product(const GemmProblem& problem)
      : p_(problem),
        a_(static_cast<const uint16_t*>(p_.a.data)),
        b_(static_cast<const uint16_t*>(p_.b.data)) {}

  // Two panels at a time: a row of b is read 256 bytes at once.
  bool Run(AnyopCall* call) const {
    constexpr int64_t kGroup = 2 * kColumns;
    std::atomic<bool> ran{true};
    ParallelFor(call, (p_.N + kGroup - 1) / kGroup, Grain(kGroup), [&](int64_t begin, int64_t end) {
      thread_local KeptMemory scratch;
      auto* panels = static_cast<uint16_t*>(
          scratch.Get(kDepth * kGroup * sizeof(uint16_t) + kRows * kGroup * sizeof(float)));
      if (!panels) return ran.store(false);
      auto* sums = reinterpret_cast<float*>(panels + kDepth * kGroup);
      for (; begin < end; ++begin) {
        const int64_t parts = (p_.M + kRows - 1) / kRows;
        for (int64_t i = 0; i < parts; ++i) {
          const int64_t m = p_.M * i / parts;
          Group(begin * kGroup, m, p_.M * (i + 1) / parts - m, panels, sums);
        }
      }
    });
    return ran.load();
  }

  void RunPacked(AnyopCall* call) const {
    const int64_t panels = p_.N / kColumns, parts = (p_.M + kPackedRows - 1) / kPackedRows;
    ParallelFor(call, panels * parts, Grain(kColumns), [&](int64_t begin, int64_t end) {
      for (; begin < end; ++begin) {
        const int64_t n = begin / parts * kColumns, part = begin % parts;
        const int64_t m = p_.M * part / parts, M = p_.M * (part + 1) / parts - m;
        alignas(64) float sums[kPackedRows * kColumns];
        for (int64_t k = 0; k < p_.K; k += kDepth)
          AddTerms(m, M, k, std::min(kDepth, p_.K - k), b_ + n * p_.K + k * kColumns, sums);
        Write(m, M, n, sums);
      }
    });
  }

 private:
  int64_t Grain(int64_t columns) const {
    const double work = static_cast<double>(std::min(p_.M, kRows)) * static_cast<double>(p_.K);
    return static_cast<int64_t>(kGrain / (work * static_cast<double>(columns))) + 1;
  }

  void AddTerms(int64_t m, int64_t M, int64_t k, int64_t K, const uint16_t* panel,
                float* sums) const {
    AddRows({a_ + m * p_.a.row_stride + k, p_.a.row_stride, 2}, M, panel, K, k == 0,
            {sums, kColumns});
  }

  // The results of two panels.
  void Group(int64_t n, int64_t m, int64_t M, uint16_t* panels, float* sums) const {
    const int64_t count = p_.N - n > kColumns ? 2 : 1;
    for (int64_t k = 0; k < p_.K; k += kDepth) {
      const int64_t K = std::min(kDepth, p_.K - k);
      for (int64_t at = 0; at < K; at += kBand) {
        for (int64_t i = 0; i < count; ++i)
          MakePanel(b_ + (k + at) * p_.b.row_stride + n + i * kColumns, p_.b.row_stride,
                    std::min(kBand, K - at), p_.N - n - i * kColumns,
                    panels + i * kDepth * kColumns + at * kColumns);
      }
      for (int64_t i = 0; i < count; ++i)
        AddTerms(m, M, k, K, panels + i * kDepth * kColumns, sums + i * kRows * kColumns);
    }
    for (int64_t i = 0; i < count; ++i) Write(m, M, n + i * kColumns, sums + i * kRows * kColumns);
  }

  // Rounds sums once, with the bias.
  void Write(int64_t m, int64_t M, int64_t n, float* sums) const {
    const int64_t count = std::min(kColumns, p_.N - n);
    float bias[kColumns];
    if (p_.bias) Widen(kAnyopBFloat16, p_.bias, n, 1, count, bias);
    for (int64_t i = 0; i < M; ++i) {
      float* row = sums + i * kColumns;
      for (int64_t j = 0; p_.bias && j < count; ++j) row[j] += bias[j];
      Narrow(row, count, p_.wide_out ? kAnyopFloat32 : kAnyopBFloat16, p_.out, (m + i) * p_.N + n);
    }
  }

  static constexpr int64_t kBand = 16;  // rows of b that are read together

  const GemmProblem& p_;
  const uint16_t *a_, *b_;
};

bool Fits(const GemmProblem& p) {
  return p.dtype == kAnyopBFloat16 && p.batch_dims == 0 && p.sum_dims == 0 &&
         (p.a.col_stride == 1 || p.K == 1) && HasBF16Dots();
}
#endif

}  // namespace

bool Panels(AnyopCall* call, const GemmProblem& p) {
#ifdef ANYOP_DOTS_TARGET
  return Fits(p) && (p.b.col_stride == 1 || p.N == 1) && Product(p).Run(call);
#else
  (void)call, (void)p;
  return false;
#endif
}

bool PackedPanels(AnyopCall* call, const GemmProblem& p) {
#ifdef ANYOP_DOTS_TARGET
  if (!Fits(p)) return false;
  Product(p).RunPacked(call);
  return true;
#else
  (void)call, (void)p;
  return false;
#endif
}

#ifdef ANYOP_DOTS_TARGET
void MakePanels(const uint16_t* b, int64_t step, int64_t K, int64_t N, uint16_t* to) {
  for (int64_t n = 0; n < N; n += kColumns, to += PanelStep(K))
    MakePanel(b + n, step, K, N - n, to);
}

void MakeTurnedPanels(const uint16_t* b, int64_t step, int64_t K, int64_t N, uint16_t* to) {
  for (int64_t n = 0; n < N; n += kColumns, to += PanelStep(K))
    TurnPanel(b + n * step, step, K, std::min(kColumns, N - n), to);
}

void AddPanels(const PairRows& a, const uint16_t* panels, int64_t panel_step, int64_t M, int64_t N,
               int64_t K, bool first, float* c, int64_t ldc) {
  for (int64_t n = 0; n < N; n += kColumns, panels += panel_step) {
    if (N - n >= kColumns) {
      AddRows(a, M, panels, K, first, {c + n, ldc});
    } else {
      AddSome(a, M, N - n, panels, K, first, {c + n, ldc});
    }
  }
}
#else
void MakePanels(const uint16_t*, int64_t, int64_t, int64_t, uint16_t*) {}
void MakeTurnedPanels(const uint16_t*, int64_t, int64_t, int64_t, uint16_t*) {}
void AddPanels(const PairRows&, const uint16_t*, int64_t, int64_t, int64_t, int64_t, bool, float*,
               int64_t) {}
#endif

}  // namespace anyop
