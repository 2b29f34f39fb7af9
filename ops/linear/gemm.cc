// SPDX-License-Identifier: Apache-2.0
// Divides a batched matrix product into tiles, one product of the BLAS each. bfloat16 goes by dot
// products (dots.cc) and by oneDNN (dnnl_product.cc) first, where the CPU has its instructions.
//
// The results of all batches are cut into tiles. When the BLAS can read a and b where they lie and
// write out, a thread takes a range of tiles and joins neighbours into one product. Else a tile is
// computed in scratch memory: blocks of a and b are converted to the computing type (float32 for
// half types), multiplied and added up there over K, and rounded once.
#include "gemm.h"

#include <cstring>

#include "convert.h"
#include "dnnl_product.h"
#include "dots.h"
#include "lanes.h"
#include "multiply.h"
#include "panels.h"

namespace anyop {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Whether the BLAS can read the matrix where it lies, and how.
template <typename T>
bool SeenByBlas(const GemmSide& side, int64_t rows, int64_t cols, BlasView<T>* view) {
  const auto* data = static_cast<const T*>(side.data);
  if (LiesInRows(side, rows, cols)) {
    *view = {data, false, rows == 1 ? cols : side.row_stride};
    return true;
  }
  if (LiesInColumns(side, rows, cols)) {
    *view = {data, true, cols == 1 ? rows : side.col_stride};
    return true;
  }
  return false;
}

// Joins the batch into the rows of a when b is the same in every batch.
void JoinBatch(GemmProblem* problem) {
  GemmProblem p = *problem;
  for (int32_t d = p.batch_dims - 1; d >= 0; --d) {
    const int64_t size = p.batch_shape[d], step = p.a.batch_strides[d];
    if (size == 1) continue;
    if (p.M == 1) p.a.row_stride = step;
    if (p.b.batch_strides[d] != 0 || step != p.M * p.a.row_stride) return;
    p.M *= size;
  }
  p.batch_dims = 0;
  *problem = p;
}

// Joins the innermost dimensions that are summed over into the terms of the products.
void JoinSums(GemmProblem* p) {
  while (p->sum_dims > 0) {
    const int32_t d = p->sum_dims - 1;
    const int64_t size = p->sum_shape[d];
    if (size != 1) {
      if (p->K == 1) {
        p->a.col_stride = p->a.sum_strides[d];
        p->b.row_stride = p->b.sum_strides[d];
      } else if (p->a.sum_strides[d] != p->K * p->a.col_stride ||
                 p->b.sum_strides[d] != p->K * p->b.row_stride) {
        return;
      }
    }
    p->K *= size;
    p->sum_dims = d;
  }
}

template <typename T>
class Product {
 public:
  Product(const GemmProblem& problem, const Blas& blas) : p_(problem), blas_(blas) {
    for (int32_t d = 0; d < p_.batch_dims; ++d) batch_ *= p_.batch_shape[d];
    for (int32_t d = 0; d < p_.sum_dims; ++d) sums_ *= p_.sum_shape[d];
    const bool exact = p_.dtype == (sizeof(T) == 8 ? kAnyopFloat64 : kAnyopFloat32);
    direct_a_ = exact && SeenByBlas(p_.a, p_.M, p_.K, &a_);
    direct_b_ = exact && SeenByBlas(p_.b, p_.K, p_.N, &b_);
    direct_out_ = exact || p_.wide_out;
  }

  int32_t Run(AnyopCall* call) {
    if (direct_a_ && direct_b_) {
      RunInPlace(call);
      return kAnyopOk;
    }
    return RunInScratch(call);
  }

 private:
  struct Tile {
    int64_t batch, m, n, M, N;
  };

  // Of one of the products that are added up.
  int64_t OffsetIn(const GemmSide& side, int64_t batch, int64_t sum) const {
    return OffsetOf(batch, p_.batch_dims, p_.batch_shape, side.batch_strides) +
           OffsetOf(sum, p_.sum_dims, p_.sum_shape, side.sum_strides);
  }

  // Tiles are counted down the rows first, then along the columns, then through the batch.
  void CutInto(int64_t tile_m, int64_t tile_n) {
    tile_m_ = std::min(tile_m, p_.M);
    tile_n_ = std::min(tile_n, p_.N);
    tall_ = CeilDiv(p_.M, tile_m_);
    wide_ = CeilDiv(p_.N, tile_n_);
  }

  Tile TileAt(int64_t index) const {
    const int64_t in_batch = index % (tall_ * wide_);
    const int64_t m = in_batch % tall_ * tile_m_, n = in_batch / tall_ * tile_n_;
    return {index / (tall_ * wide_), m, n, std::min(tile_m_, p_.M - m),
            std::min(tile_n_, p_.N - n)};
  }

  void RunInPlace(AnyopCall* call) {
    constexpr int64_t kTiles = 64;    // enough to keep as many threads busy
    constexpr double kGrain = 250e3;  // multiplications, some 5 us: below that a thread costs more
    CutInto(128, p_.N);
    const int64_t wanted = CeilDiv(kTiles, std::min(kTiles, batch_ * tall_));
    if (p_.fixed_tiles) {
      CutInto(256, 256);
    } else if (wanted > 1) {
      CutInto(128, std::max<int64_t>(32, CeilDiv(CeilDiv(p_.N, wanted), 16) * 16));
    }
    const double tile = static_cast<double>(tile_m_) * static_cast<double>(tile_n_) * p_.K;
    ParallelFor(call, batch_ * tall_ * wide_, static_cast<int64_t>(kGrain / tile) + 1,
                [this](int64_t begin, int64_t end) {
                  while (begin < end) {
                    begin += JoinedTiles(begin, p_.fixed_tiles ? begin + 1 : end);
                  }
                });
  }

  // Multiplies the largest block of tiles that begins at begin; how many they are.
  int64_t JoinedTiles(int64_t begin, int64_t end) const {
    Tile tile = TileAt(begin);
    const int64_t row = tile.m / tile_m_, col = tile.n / tile_n_;
    const int64_t left = std::min(end - begin, (wide_ - col) * tall_ - row);
    int64_t tiles = std::min(left, tall_ - row);
    if (row == 0 && left > tall_) {
      const int64_t cols = left / tall_;
      tiles = cols * tall_;
      tile.N = std::min(cols * tile_n_, p_.N - tile.n);
    }
    tile.M = std::min(std::min(tiles, tall_ - row) * tile_m_, p_.M - tile.m);
    T* out = static_cast<T*>(p_.out) + (tile.batch * p_.M + tile.m) * p_.N + tile.n;
    const bool bias = SetBias(tile, out, p_.N);
    for (int64_t sum = 0; sum < sums_; ++sum) {
      BlasView<T> a = a_, b = b_;
      a.data += OffsetIn(p_.a, tile.batch, sum);
      b.data += OffsetIn(p_.b, tile.batch, sum);
      Multiply<T>(blas_, {tile.M, tile.N, p_.K}, a.Part(tile.m, 0), b.Part(0, tile.n),
                  T(bias || sum), out, p_.N);
    }
    return tiles;
  }

  // The bias is what the product is added to: one pass over the results less than adding it later.
  bool SetBias(const Tile& tile, T* c, int64_t ldc) const {
    if (!p_.bias) return false;
    Widen(p_.dtype, p_.bias, tile.n, 1, tile.N, c);
    for (int64_t m = 1; m < tile.M; ++m)
      std::memcpy(c + m * ldc, c, sizeof(T) * static_cast<size_t>(tile.N));
    return true;
  }

  int32_t RunInScratch(AnyopCall* call) {
    CutInto(256, 256);
    depth_ = std::min<int64_t>(p_.K, 512);
    const int64_t tiles = batch_ * tall_ * wide_, lanes = CountLanes(tiles);
    const int64_t a_size = tile_m_ * depth_, b_size = depth_ * tile_n_;
    const int64_t lane_size = (a_size + b_size + tile_m_ * tile_n_ + 15) / 16 * 16;
    auto* scratch = static_cast<T*>(call->workspace(call, lanes * lane_size * sizeof(T)));
    if (!scratch) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
    ForTasks(call, tiles, lanes, [&](int64_t lane, int64_t task) {
      T* a = scratch + lane * lane_size;
      TileInScratch(TileAt(task), a, a + a_size, a + a_size + b_size);
    });
    return kAnyopOk;
  }

  void TileInScratch(const Tile& tile, T* a_block, T* b_block, T* c_block) const {
    const int64_t at = (tile.batch * p_.M + tile.m) * p_.N + tile.n;
    T* c = direct_out_ ? static_cast<T*>(p_.out) + at : c_block;
    const int64_t ldc = direct_out_ ? p_.N : tile.N;
    const bool bias = SetBias(tile, c, ldc);
    const int64_t turns = CeilDiv(p_.K, depth_);  // through the terms of one product
    for (int64_t turn = 0; turn < sums_ * turns; ++turn) {
      const int64_t a_at = OffsetIn(p_.a, tile.batch, turn / turns);
      const int64_t b_at = OffsetIn(p_.b, tile.batch, turn / turns);
      const int64_t k = turn % turns * depth_, K = std::min(depth_, p_.K - k);
      const BlasView<T> a = direct_a_ ? BlasView<T>{a_.At(tile.m, k) + a_at, a_.trans, a_.ld}
                                      : Pack(p_.a, a_at, tile.m, k, tile.M, K, a_block);
      const BlasView<T> b = direct_b_ ? BlasView<T>{b_.At(k, tile.n) + b_at, b_.trans, b_.ld}
                                      : Pack(p_.b, b_at, k, tile.n, K, tile.N, b_block);
      Multiply<T>(blas_, {tile.M, tile.N, K}, a, b, T(bias || turn), c, ldc);
    }
    if (direct_out_) return;
    for (int64_t m = 0; m < tile.M; ++m)
      Narrow(c + m * ldc, tile.N, p_.dtype, p_.out, at + m * p_.N);
  }

  // Copies a block to scratch memory, along the direction in which it is contiguous.
  BlasView<T> Pack(const GemmSide& side, int64_t at, int64_t row, int64_t col, int64_t rows,
                   int64_t cols, T* block) const {
    at += row * side.row_stride + col * side.col_stride;
    const bool trans = side.row_stride == 1 && side.col_stride != 1;
    const int64_t lines = trans ? cols : rows, length = trans ? rows : cols;
    const int64_t step = trans ? side.row_stride : side.col_stride;
    const int64_t next = trans ? side.col_stride : side.row_stride;
    for (int64_t i = 0; i < lines; ++i)
      Widen(p_.dtype, side.data, at + i * next, step, length, block + i * length);
    return {block, trans, length};
  }

  GemmProblem p_;
  const Blas& blas_;
  BlasView<T> a_{}, b_{};
  bool direct_a_, direct_b_, direct_out_;
  int64_t batch_ = 1, sums_ = 1;
  int64_t tile_m_ = 0, tile_n_ = 0, tall_ = 0, wide_ = 0, depth_ = 0;
};

// Up to how many rows panels are as fast as oneDNN, which cuts the rows alone, into parts of 256
// in gradients.
int64_t MostPanelRows(const GemmProblem& p) {
  return HasBF16Tiles() ? 16 : p.fixed_tiles ? 256 : 128;
}

// Nothing to sum: bias or zeros.
void FillWithBias(AnyopCall* call, const GemmProblem& p, int64_t rows) {
  const int64_t row_bytes = p.N * SizeOf(p.wide_out ? kAnyopFloat32 : p.dtype);
  ParallelFor(call, rows, 65536 / (row_bytes + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
      char* row = static_cast<char*>(p.out) + m * row_bytes;
      if (p.bias && p.wide_out)
        Widen(p.dtype, p.bias, 0, 1, p.N, reinterpret_cast<float*>(row));
      else if (p.bias)
        std::memcpy(row, p.bias, static_cast<size_t>(row_bytes));
      else
        std::memset(row, 0, static_cast<size_t>(row_bytes));
    }
  });
}

}  // namespace

int32_t Gemm(AnyopCall* call, const GemmProblem& problem) {
  GemmProblem p = problem;
  JoinBatch(&p);
  JoinSums(&p);
  int64_t terms = p.K;
  for (int32_t d = 0; d < p.sum_dims; ++d) terms *= p.sum_shape[d];
  int64_t rows = p.M;
  for (int32_t d = 0; d < p.batch_dims; ++d) rows *= p.batch_shape[d];
  if (rows == 0 || p.N == 0) return kAnyopOk;
  if (terms == 0) {
    FillWithBias(call, p, rows);
    return kAnyopOk;
  }
  if (Dots(call, p)) return kAnyopOk;
  if (p.dtype == kAnyopBFloat16) {
    if (p.M <= MostPanelRows(p) && Panels(call, p)) return kAnyopOk;
    const dnnl::Library* library = nullptr;
    if (const int32_t status = dnnl::GetLibrary(call, p.dtype, &library)) return status;
    if (library && dnnl::Multiply(call, p, *library)) return kAnyopOk;
    if (!library && Panels(call, p)) return kAnyopOk;
  }
  const Blas* blas = nullptr;
  if (const int32_t status = GetBlas(call, &blas)) return status;
  if (p.dtype == kAnyopFloat64) return Product<double>(p, *blas).Run(call);
  return Product<float>(p, *blas).Run(call);
}

}  // namespace anyop
