// SPDX-License-Identifier: Apache-2.0
// Divides a product into parts that one thread each computes by oneDNN.
//
// oneDNN copies its part of b into blocks at every call, so b is divided among the threads where
// the parts lie close together, the rows of a where they do not.
#include "dnnl_product.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "dnnl_plans.h"
#include "lanes.h"

namespace anyop::dnnl {
namespace {

constexpr int64_t kColumns = 64, kRows = 32;  // of the results, that stay together
constexpr int64_t kFixed = 256;               // where parts may not depend on the number of CPUs
constexpr int64_t kTile = 8 << 20;            // results in scratch memory, of many rows
constexpr int64_t kMostOf = 1 << 30;          // sizes that are given to oneDNN
constexpr double kGrain = 1e6;                // multiplications, some 5 us

// out[B,M,N] = a[B,M,K] b[B,K,N] + bias[N]: everything that a primitive is made for. `out` has no
// gaps but between its rows.
struct Kind {
  int64_t B, M, N, K, bias, wide_out;
  int64_t a_batch, a_row, a_col, b_batch, b_row, b_col, out_row;
};

struct Pointers {
  const uint16_t *a, *b;
  char* out;
  const uint16_t* bias;
};

// A primitive of a product.
class ProductPlan : public Plan<Kind> {
 public:
  // False where oneDNN has no fast kernel.
  bool Make(const Library& library, const Kind& kind) {
    Begin(library, kind);
    const Desc a = Matrices(kind.B, kind.M, kind.K, kind.a_batch, kind.a_row, kind.a_col);
    const Desc b = Matrices(kind.B, kind.K, kind.N, kind.b_batch, kind.b_row, kind.b_col);
    const Desc out = Matrices(kind.B, kind.M, kind.N, kind.M * kind.out_row, kind.out_row, 1,
                              kind.wide_out ? kFloat32 : kBFloat16);
    const Desc bias = kind.bias ? Matrices(1, 1, kind.N, kind.N, kind.N, 1) : nullptr;
    const bool made = a && b && out && (bias || !kind.bias) && Describe(a, b, bias, out);
    for (Desc desc : {a, b, out, bias}) {
      if (desc) library.memory_desc_destroy(desc);
    }
    return made;
  }

 private:
  // Strides of dimensions of size 1 are free; oneDNN compares them, so they are the usual ones.
  Desc Matrices(int64_t count, int64_t rows, int64_t cols, int64_t batch, int64_t row, int64_t col,
                int type = kBFloat16) const {
    if (rows == 1) row = col == 1 ? cols : 1;
    if (cols == 1) col = row == 1 ? rows : 1;
    const Dims sizes = {count, rows, cols}, strides = {batch, row, col};
    const int alone = kind().B == 1;  // one matrix needs no batch
    Desc desc = nullptr;
    const int status = library().memory_desc_create_with_strides(&desc, 3 - alone, sizes + alone,
                                                                 type, strides + alone);
    return status == kOk ? desc : nullptr;
  }

  bool Describe(Desc a, Desc b, Desc bias, Desc out) {
    const Attr attr = MakeAttr();
    if (!attr) return false;
    PrimitiveDesc desc = nullptr;
    const int status =
        library().matmul_primitive_desc_create(&desc, library().engine, a, b, bias, out, attr);
    library().primitive_attr_destroy(attr);
    if (status != kOk) return false;
    const bool made = IsFast(desc) && Create(desc) && Add(kSource, a) && Add(kWeights, b) &&
                      Add(kResult, out) && (!bias || Add(kBias, bias)) && AddScratch(desc);
    library().primitive_desc_destroy(desc);
    return made;
  }
};

using ProductPlans = Plans<ProductPlan>;

bool IsPlain(const GemmSide& side, int64_t rows, int64_t cols) {
  return LiesInRows(side, rows, cols) || LiesInColumns(side, rows, cols);
}

// The one stride of all dimensions of a batch, -1 where they have several.
int64_t StrideOf(const GemmProblem& p, const GemmSide& side) {
  int64_t stride = 0, next = 0;  // of the innermost; what the next would have
  for (int32_t d = p.batch_dims - 1; d >= 0; --d) {
    if (p.batch_shape[d] == 1) continue;
    if (!next) {
      stride = side.batch_strides[d];
    } else if (side.batch_strides[d] != next) {
      return -1;
    }
    next = side.batch_strides[d] * p.batch_shape[d];
    if (!next) return -1;  // one matrix for all: oneDNN would read it as many
  }
  return stride;
}

class Product {
 public:
  Product(const GemmProblem& problem, const Library& library) : p_(problem), library_(library) {
    for (int32_t d = 0; d < p_.batch_dims; ++d) batch_ *= p_.batch_shape[d];
    a_batch_ = StrideOf(p_, p_.a), b_batch_ = StrideOf(p_, p_.b);
    by_columns_ = p_.b.row_stride == 1 && p_.b.col_stride == p_.K && p_.N > kColumns;
    length_ = by_columns_ ? p_.N : p_.M;
    unit_ = kFixed;
    if (!p_.fixed_tiles) {  // one part for each CPU: oneDNN copies b, or its part of b, for each
      const int64_t some = by_columns_ ? kColumns : kRows, all = CountLanes(length_) * some;
      unit_ = (length_ + all - 1) / all * some;
    }
    unit_ = std::min(unit_, length_);
    if (batch_ >= kManyMatrices) unit_ = length_;
    units_ = (length_ + unit_ - 1) / unit_;
  }

  bool Run(AnyopCall* call) const {
    return units_ == 1 && a_batch_ >= 0 && b_batch_ >= 0 ? RunMatrices(call) : RunUnits(call);
  }

 private:
  static constexpr int64_t kManyMatrices = 16;

  int64_t item() const { return p_.wide_out ? 4 : 2; }  // bytes of a result

  double Work() const {
    return static_cast<double>(p_.M) * static_cast<double>(p_.N) * static_cast<double>(p_.K);
  }

  // run(index, count), which says whether it could, for all of them; with the same parts for any
  // number of threads if the problem asks for that.
  template <typename Run>
  bool Divide(AnyopCall* call, int64_t count, double work, int64_t fixed, const Run& run) const {
    std::atomic<bool> ran{true};
    const int64_t step = p_.fixed_tiles ? fixed : 1;
    ParallelFor(call, (count + step - 1) / step,
                static_cast<int64_t>(kGrain / (work * static_cast<double>(step))) + 1,
                [&](int64_t begin, int64_t end) {
                  const int64_t last = std::min(end * step, count);
                  for (int64_t at = begin * step; at < last && ran.load();) {
                    const int64_t done =
                        run(at, p_.fixed_tiles ? std::min(step, last - at) : last - at);
                    if (!done) ran.store(false);
                    at += done;
                  }
                });
    return ran.load();
  }

  bool RunMatrices(AnyopCall* call) const {
    return Divide(call, batch_, Work(), kManyMatrices, [&](int64_t first, int64_t count) {
      return RunPart(first, count, 0, length_) ? count : 0;
    });
  }

  bool RunUnits(AnyopCall* call) const {
    const double work = Work() / static_cast<double>(units_);
    return Divide(call, batch_ * units_, work, 1, [&](int64_t at, int64_t count) {
      const int64_t first = at % units_, joined = std::min(count, units_ - first);
      const int64_t to = std::min((first + joined) * unit_, length_);
      return RunPart(at / units_, 1, first * unit_, to) ? joined : 0;
    });
  }

  int64_t BatchOffset(int64_t batch, const GemmSide& side) const {
    return OffsetOf(batch, p_.batch_dims, p_.batch_shape, side.batch_strides);
  }

  // Columns or rows [from, to) of the results of some matrices.
  bool RunPart(int64_t batch, int64_t matrices, int64_t from, int64_t to) const {
    Kind kind{matrices,
              p_.M,
              p_.N,
              p_.K,
              p_.bias != nullptr,
              p_.wide_out,
              matrices > 1 ? a_batch_ : 0,
              p_.a.row_stride,
              p_.a.col_stride,
              matrices > 1 ? b_batch_ : 0,
              p_.b.row_stride,
              p_.b.col_stride,
              p_.N};
    Pointers at{static_cast<const uint16_t*>(p_.a.data) + BatchOffset(batch, p_.a),
                static_cast<const uint16_t*>(p_.b.data) + BatchOffset(batch, p_.b),
                static_cast<char*>(p_.out) + batch * p_.M * p_.N * item(),
                static_cast<const uint16_t*>(p_.bias)};
    ProductPlans& plans = ProductPlans::OfThisThread(library_);
    if (!by_columns_) {
      kind.M = to - from;
      at.a += from * p_.a.row_stride;
      at.out += from * p_.N * item();
      if (p_.a.row_stride == 1 && p_.K > 1 && kind.M < p_.a.col_stride)
        return RunCopied(plans, kind, at);
      return Run(plans, kind, at);
    }
    kind.N = kind.out_row = to - from;
    at.b += from * p_.b.col_stride;
    if (at.bias) at.bias += from;
    at.out += from * item();
    return kind.N == p_.N || p_.M == 1 ? Run(plans, kind, at) : RunInTile(plans, kind, at);
  }

  static bool Run(ProductPlans& plans, Kind kind, Pointers at) {
    if (kind.M == 1 && kind.K > 1 && kind.a_col != 1 && !CopySteps(plans, &kind, &at)) return false;
    const void* data[] = {at.a, at.b, at.out, at.bias};
    const bool ran = plans.Run(kind, data, at.bias ? 4 : 3);
    plans.row().Shrink();
    return ran;
  }

  // One row of a with steps inside, of each matrix: oneDNN 3.2 reads it as if it had none.
  static bool CopySteps(ProductPlans& plans, Kind* kind, Pointers* at) {
    auto* copy = static_cast<uint16_t*>(
        plans.row().Get(static_cast<size_t>(kind->B * kind->K) * sizeof *at->a));
    if (!copy) return false;
    for (int64_t i = 0; i < kind->B; ++i) {
      for (int64_t k = 0; k < kind->K; ++k)
        copy[i * kind->K + k] = at->a[i * kind->a_batch + k * kind->a_col];
    }
    kind->a_col = 1;
    if (kind->B > 1) kind->a_batch = kind->K;
    at->a = copy;
    return true;
  }

  // oneDNN is fast where the rows of the results have no gaps.
  bool RunInTile(ProductPlans& plans, Kind kind, Pointers at) const {
    const int64_t most = std::max(kRows, kTile / kind.N);
    const size_t row = static_cast<size_t>(kind.N * item());
    char* out = at.out;
    bool ran = true;
    for (int64_t m = 0; m < p_.M && ran; m += most) {
      kind.M = std::min(most, p_.M - m);
      at.out = static_cast<char*>(plans.tile().Get(static_cast<size_t>(kind.M) * row));
      ran = at.out && Run(plans, kind, at);
      for (int64_t i = 0; i < kind.M && ran; ++i)
        std::memcpy(out + (m + i) * p_.N * item(), at.out + static_cast<size_t>(i) * row, row);
      at.a += kind.M * p_.a.row_stride;
    }
    plans.tile().Shrink();
    return ran;
  }

  // So with the rows of a, which lie in columns here: one matrix after the other.
  bool RunCopied(ProductPlans& plans, Kind kind, Pointers at) const {
    const int64_t matrices = kind.B, a_step = kind.a_batch, b_step = kind.b_batch;
    const auto* from = at.a;
    auto* copy =
        static_cast<uint16_t*>(plans.tile().Get(static_cast<size_t>(kind.M * p_.K) * sizeof *at.a));
    bool ran = copy;
    kind.B = 1, kind.a_batch = kind.b_batch = 0, kind.a_col = kind.M;
    at.a = copy;
    for (int64_t i = 0; i < matrices && ran; ++i) {
      for (int64_t k = 0; k < p_.K; ++k) {
        std::memcpy(copy + k * kind.M, from + i * a_step + k * p_.a.col_stride,
                    static_cast<size_t>(kind.M) * sizeof *at.a);
      }
      ran = Run(plans, kind, at);
      at.b += b_step;
      at.out += kind.M * p_.N * item();
    }
    plans.tile().Shrink();
    return ran;
  }

  const GemmProblem& p_;
  const Library& library_;
  int64_t batch_ = 1, a_batch_, b_batch_;
  bool by_columns_;
  int64_t length_, unit_, units_;  // what is divided, and into what
};

}  // namespace

bool Multiply(AnyopCall* call, const GemmProblem& problem, const Library& library) {
  const GemmProblem& p = problem;
  const bool fits = p.dtype == kAnyopBFloat16 && p.sum_dims == 0 && IsPlain(p.a, p.M, p.K) &&
                    IsPlain(p.b, p.K, p.N) && std::max({p.M, p.N, p.K}) <= kMostOf;
  return fits && Product(p, library).Run(call);
}

}  // namespace anyop::dnnl
