// SPDX-License-Identifier: Apache-2.0
// The instruction multiplies unsigned by signed bytes, four products to a sum: weights become
// unsigned by adding 128, and 128 times the sum of a row of x is taken off.
//
// Each thread takes 64 columns of the results. Up to 16 rows are dot products: a step adds 64 terms
// of 6 rows and of 4 columns to 24 sums. More rows go by panels, as in panels.cc: a step adds four
// terms of 6 rows and of 64 columns, which have been put side by side.
#include "int8_product.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "kept_memory.h"

namespace anyop {
namespace {

#if defined(__x86_64__) && (!defined(ANYOP_CPU_ISA) || ANYOP_CPU_ISA >= 4)
#define ANYOP_INT8_TARGET __attribute__((target("avx512f,avx512bw,avx512vnni")))
constexpr int64_t kColumns = 64, kTogether = 6, kTerms = 64, kByDots = 16;
constexpr int64_t kGroup = 2 * kColumns;  // of a block of results of more rows
constexpr int64_t kDepth = 2048;          // terms of a panel
constexpr int64_t kRows = 384;            // of a block of results
constexpr double kGrain = 500e3;          // multiplications, some 3 us

typedef int Ints __attribute__((vector_size(64)));
typedef Ints StoredInts __attribute__((aligned(1), may_alias));

ANYOP_INT8_TARGET inline Ints AddProducts(Ints sums, Ints unsigned_bytes, Ints bytes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(unsigned_bytes), "v"(bytes));
  return sums;
}
ANYOP_INT8_TARGET inline Ints Every(int value) { return Ints{} + value; }
ANYOP_INT8_TARGET inline Ints At(const void* data) { return *static_cast<const StoredInts*>(data); }
ANYOP_INT8_TARGET inline Ints Unsigned(Ints bytes) {
  return bytes ^ Every(static_cast<int>(0x80808080u));
}

// 64 bytes, or those that are left and zeros.
template <bool kWhole>
ANYOP_INT8_TARGET inline Ints Load(const int8_t* from, int64_t left) {
  if (kWhole) return At(from);
  Ints bytes = {};
  std::memcpy(&bytes, from, static_cast<size_t>(left));
  return bytes;
}

ANYOP_INT8_TARGET inline int Total(Ints sums) {
  unsigned total = 0;  // the sums on the way may be beyond int32, not what is left of them
  for (int i = 0; i < 16; ++i) total += static_cast<unsigned>(sums[i]);
  return static_cast<int>(total);
}

// What the 128 that is added to weights adds to the results of a row.
ANYOP_INT8_TARGET int Excess(const int8_t* x, int64_t K) {
  Ints sums = {};
  const Ints all = Every(static_cast<int>(0x80808080u));
  int64_t k = 0;
  for (; k + kTerms <= K; k += kTerms) sums = AddProducts(sums, all, At(x + k));
  if (k < K) sums = AddProducts(sums, all, Load<false>(x + k, K - k));
  return Total(sums);
}

template <int kCount, bool kWhole>
ANYOP_INT8_TARGET inline void DotStep(const int8_t* x, const int8_t* const (&w)[4], int64_t k,
                                      int64_t K, Ints (&sums)[4][kCount]) {
  Ints rows[kCount];
#pragma GCC unroll 8
  for (int m = 0; m < kCount; ++m) rows[m] = Load<kWhole>(x + m * K + k, K - k);
#pragma GCC unroll 4
  for (int n = 0; n < 4; ++n) {
    const Ints column = Unsigned(Load<kWhole>(w[n] + k, K - k));
    __builtin_prefetch(w[n] + 4 * K + k);
#pragma GCC unroll 8
    for (int m = 0; m < kCount; ++m) sums[n][m] = AddProducts(sums[n][m], column, rows[m]);
  }
}

// to[row][0..count) for four columns, the last one again where there are fewer.
template <int kCount>
ANYOP_INT8_TARGET void Dots(const int8_t* x, const int8_t* weight, int64_t count, int64_t K,
                            int* to, int64_t to_step) {
  const int8_t* w[4];
  for (int64_t n = 0; n < 4; ++n) w[n] = weight + std::min(n, count - 1) * K;
  Ints sums[4][kCount];
#pragma GCC unroll 4
  for (int n = 0; n < 4; ++n) {
#pragma GCC unroll 8
    for (int m = 0; m < kCount; ++m) sums[n][m] = Ints{};
  }
  int64_t k = 0;
  for (; k + kTerms <= K; k += kTerms) DotStep<kCount, true>(x, w, k, K, sums);
  if (k < K) DotStep<kCount, false>(x, w, k, K, sums);
#pragma GCC unroll 4
  for (int n = 0; n < 4; ++n) {
#pragma GCC unroll 8
    for (int m = 0; m < kCount; ++m) to[m * to_step + n] = Total(sums[n][m]);
  }
}

// Four terms, or `left` of them, of kCount rows of x and of a panel.
template <int kCount>
ANYOP_INT8_TARGET inline void PanelStep(const int8_t* x, int64_t step, const int8_t* panel,
                                        size_t left, Ints (&sums)[kCount][4]) {
  Ints columns[4];
#pragma GCC unroll 4
  for (int v = 0; v < 4; ++v) columns[v] = At(panel + v * 64);
#pragma GCC unroll 8
  for (int m = 0; m < kCount; ++m) {
    int four = 0;
    std::memcpy(&four, x + m * step, left);
    const Ints row = Every(four);
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) sums[m][v] = AddProducts(sums[m][v], columns[v], row);
  }
}

// Rows of 64 sums, with `to_step` from row to row: += rows of x by K terms of a panel. They begin
// with -excess, where that is given.
template <int kCount>
ANYOP_INT8_TARGET void AddPanel(const int8_t* x, int64_t step, const int8_t* panel, int64_t K,
                                const int* excess, int* to, int64_t to_step) {
  Ints sums[kCount][4];
#pragma GCC unroll 8
  for (int m = 0; m < kCount; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v)
      sums[m][v] = excess ? Every(static_cast<int>(0u - static_cast<unsigned>(excess[m])))
                          : At(to + m * to_step + v * 16);
  }
  int64_t k = 0;
  for (; k + 4 <= K; k += 4, panel += 4 * kColumns) PanelStep<kCount>(x + k, step, panel, 4, sums);
  if (k < K) PanelStep<kCount>(x + k, step, panel, static_cast<size_t>(K - k), sums);
#pragma GCC unroll 8
  for (int m = 0; m < kCount; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v)
      *reinterpret_cast<StoredInts*>(to + m * to_step + v * 16) = sums[m][v];
  }
}

// Rows of N, `step` apart, become rows of N float32 without gaps, in the same memory.
ANYOP_INT8_TARGET void ToFloats(int* sums, int64_t rows, int64_t N, int64_t step) {
  typedef float Floats __attribute__((vector_size(64), aligned(4), may_alias));
  for (int64_t i = 0; i < rows; ++i) {
    const int* from = sums + i * step;
    int* to = sums + i * N;
    int64_t n = 0;
    for (; n + 16 <= N; n += 16)
      *reinterpret_cast<Floats*>(to + n) = __builtin_convertvector(At(from + n), Floats);
    for (; n < N; ++n) {
      const auto exact = static_cast<float>(from[n]);
      std::memcpy(to + n, &exact, sizeof exact);
    }
  }
}

#define ANYOP_SHUFFLE(name, instruction)                      \
  ANYOP_INT8_TARGET inline Ints name(Ints a, Ints b) {        \
    Ints c;                                                   \
    asm(instruction "%2, %1, %0" : "=v"(c) : "v"(a), "v"(b)); \
    return c;                                                 \
  }
ANYOP_SHUFFLE(LowInts, "vpunpckldq ")
ANYOP_SHUFFLE(HighInts, "vpunpckhdq ")
ANYOP_SHUFFLE(LowPairs, "vpunpcklqdq ")
ANYOP_SHUFFLE(HighPairs, "vpunpckhqdq ")
ANYOP_SHUFFLE(EvenQuarters, "vshufi32x4 $0x88, ")
ANYOP_SHUFFLE(OddQuarters, "vshufi32x4 $0xdd, ")
#undef ANYOP_SHUFFLE

// 16 rows of 64 bytes become 16 rows of four bytes of each; `next` bytes between those.
ANYOP_INT8_TARGET inline void Turn(const int8_t* from, int64_t step, int8_t* to) {
  Ints r[16], t[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = Unsigned(At(from + i * step));
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2)
    t[i] = LowInts(r[i], r[i + 1]), t[i + 1] = HighInts(r[i], r[i + 1]);
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = LowPairs(t[i], t[i + 2]), r[i + 1] = HighPairs(t[i], t[i + 2]);
    r[i + 2] = LowPairs(t[i + 1], t[i + 3]), r[i + 3] = HighPairs(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const Ints a = EvenQuarters(r[j], r[4 + j]), b = OddQuarters(r[j], r[4 + j]);
    const Ints c = EvenQuarters(r[8 + j], r[12 + j]), d = OddQuarters(r[8 + j], r[12 + j]);
    const Ints found[4] = {EvenQuarters(a, c), EvenQuarters(b, d), OddQuarters(a, c),
                           OddQuarters(b, d)};
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      *reinterpret_cast<StoredInts*>(to + (4 * i + j) * 4 * kColumns) = found[i];
  }
}

// K terms of `count` rows of weight as a panel[K/4][64][4]; what is beyond either holds anything
// that x's zeros or nobody reads.
ANYOP_INT8_TARGET void MakePanel(const int8_t* weight, int64_t step, int64_t count, int64_t K,
                                 int8_t* panel) {
  for (int64_t k = 0; k < K; k += 64, panel += 64 * kColumns) {
    for (int64_t n = 0; n < kColumns; n += 16) {
      int8_t copy[16][64] = {};
      const int8_t* from = weight + n * step + k;
      int64_t from_step = step;
      if (K - k < 64 || count - n < 16) {
        for (int64_t i = 0; i < std::min<int64_t>(16, count - n); ++i)
          std::memcpy(copy[i], from + i * step, static_cast<size_t>(std::min<int64_t>(64, K - k)));
        from = copy[0], from_step = 64;
      }
      Turn(from, from_step, panel + n * 4);
    }
  }
}

class Product {
 public:
  Product(const Int8Problem& problem,
          void (*store)(const void*, int64_t, int64_t, int64_t, int64_t, const float*),
          const void* context)
      : p_(problem), store_(store), context_(context) {}

  // False where there is no memory.
  bool Run(AnyopCall* call) const {
    const bool by_dots = p_.M <= kByDots;
    const int64_t wide = by_dots ? kColumns : kGroup, groups = (p_.N + wide - 1) / wide;
    const int64_t parts = (p_.M + kRows - 1) / kRows;
    const double work = static_cast<double>(std::min(p_.M, kRows)) * static_cast<double>(p_.K);
    std::atomic<bool> ran{true};
    ParallelFor(call, groups * parts,
                static_cast<int64_t>(kGrain / (work * static_cast<double>(wide))) + 1,
                [&](int64_t begin, int64_t end) {
                  thread_local KeptMemory scratch;
                  auto* sums = static_cast<int*>(scratch.Get(by_dots ? kDotsBytes : kPanelsBytes));
                  if (!sums) return ran.store(false);
                  for (; begin < end; ++begin) {
                    const int64_t part = begin % parts, n = begin / parts * wide;
                    const int64_t m = p_.M * part / parts, M = p_.M * (part + 1) / parts - m;
                    const int64_t N = std::min(wide, p_.N - n);
                    if (by_dots) {
                      RunDots(n, N, sums);
                    } else {
                      RunPanels(m, M, n, N, sums);
                    }
                    ToFloats(sums, M, N, wide);
                    store_(context_, m, M, n, N, reinterpret_cast<float*>(sums));
                  }
                });
    return ran.load();
  }

 private:
  // The sums of a block, and behind those of many rows a panel.
  static constexpr size_t kDotsBytes = kByDots * kColumns * sizeof(int);
  static constexpr size_t kPanelsBytes = kRows * kGroup * sizeof(int) + kDepth * kColumns;

  // run(first row, how many), up to 6 at a time.
  template <typename Run>
  static void ForRows(int64_t M, const Run& run) {
    const int64_t blocks = (M + kTogether - 1) / kTogether;
    for (int64_t i = 0; i < blocks; ++i) run(M * i / blocks, M * (i + 1) / blocks - M * i / blocks);
  }

  void RunDots(int64_t first, int64_t N, int* sums) const {
    constexpr void (*kDots[])(const int8_t*, const int8_t*, int64_t, int64_t, int*, int64_t) = {
        Dots<1>, Dots<2>, Dots<3>, Dots<4>, Dots<5>, Dots<6>};
    const int8_t* weight = p_.weight + first * p_.K;
    for (int64_t n = 0; n < N; n += 4) {
      ForRows(p_.M, [&](int64_t m, int64_t rows) {
        kDots[rows - 1](p_.x + m * p_.K, weight + n * p_.K, std::min<int64_t>(4, N - n), p_.K,
                        sums + m * kColumns + n, kColumns);
      });
    }
    for (int64_t m = 0; m < p_.M; ++m) {
      const auto excess = static_cast<unsigned>(Excess(p_.x + m * p_.K, p_.K));
      for (int64_t n = 0; n < N; ++n) {
        int& sum = sums[m * kColumns + n];
        sum = static_cast<int>(static_cast<unsigned>(sum) - excess);
      }
    }
  }

  void RunPanels(int64_t first_row, int64_t M, int64_t first, int64_t N, int* sums) const {
    constexpr void (*kAdd[])(const int8_t*, int64_t, const int8_t*, int64_t, const int*, int*,
                             int64_t) = {AddPanel<1>, AddPanel<2>, AddPanel<3>,
                                         AddPanel<4>, AddPanel<5>, AddPanel<6>};
    auto* panel = reinterpret_cast<int8_t*>(sums + kRows * kGroup);
    const int8_t* x = p_.x + first_row * p_.K;
    int excess[kRows];
    for (int64_t m = 0; m < M; ++m) excess[m] = Excess(x + m * p_.K, p_.K);
    for (int64_t k = 0; k < p_.K; k += kDepth) {
      const int64_t K = std::min(kDepth, p_.K - k);
      for (int64_t n = 0; n < N; n += kColumns) {
        MakePanel(p_.weight + (first + n) * p_.K + k, p_.K, std::min(kColumns, N - n), K, panel);
        ForRows(M, [&](int64_t m, int64_t rows) {
          kAdd[rows - 1](x + m * p_.K + k, p_.K, panel, K, k ? nullptr : excess + m,
                         sums + m * kGroup + n, kGroup);
        });
      }
    }
  }

  const Int8Problem& p_;
  void (*store_)(const void*, int64_t, int64_t, int64_t, int64_t, const float*);
  const void* context_;
};
#endif

}  // namespace

bool FitsInt8(const Int8Problem& problem) {
#ifdef ANYOP_INT8_TARGET
  constexpr int64_t kMost = 131071;  // of 128 * 128 each
  return std::min({problem.M, problem.N, problem.K}) > 0 && problem.K <= kMost &&
         __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw");
#else
  (void)problem;
  return false;
#endif
}

bool MultiplyInt8(AnyopCall* call, const Int8Problem& problem,
                  void (*store)(const void*, int64_t, int64_t, int64_t, int64_t, const float*),
                  const void* context) {
#ifdef ANYOP_INT8_TARGET
  return Product(problem, store, context).Run(call);
#else
  (void)call, (void)problem, (void)store, (void)context;
  return false;
#endif
}

}  // namespace anyop
