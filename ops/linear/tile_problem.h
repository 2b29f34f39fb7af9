// SPDX-License-Identifier: Apache-2.0
// What the tile kernels of products are told, where tiles lie among segments of rows, and how a sum
// becomes a result: one for Hopper (tile_sm90.h, segment_sm90.h, thin_sm90.h) and every other GPU
// (tile_mma.h).
#pragma once

#include "activation_cuda.h"
#include "anyop/cuda.h"
#include "w4_cuda.h"

namespace anyop::cuda {
namespace {

enum class TileForm {
  kPlain,
  kSegments,       // plain; on Hopper other tiles, where segments are short
  kGated,          // the columns of the gate and of the other half in one tile
  kGatedSegments,  // gated; on Hopper other tiles, as kSegments
  kBlocks,         // sums of 128 terms are scaled and added in float32
  kFourBits,       // plain, of weights of 4 bits; by tile_mma.h alone
};

// out[r] = ends(x[r] weight[e]^T) for the rows r of each segment e; rows of none are 0.
//
// Segments: of offsets where they are given, else expert e has rows e * capacity and the counts[e]
// after, all capacity without counts. A plain product is one segment.
struct TileProblem {
  const void* x;       // rows K
  const void* weight;  // experts N K; experts 2*N K where gated
  void* out;           // rows N
  void* pre;           // rows 2*N or NULL: the sums of a gated product
  int rows, N, K, experts, capacity;
  const void *offsets, *counts;  // experts + 1, experts
  bool wide_indices;             // they are int64, not int32
  AnyopDtype result, bias_type;  // float16, bfloat16 or float32

  // The end of a sum: sum * row_scale * column_scale + bias. NULL: 1 or 0.
  const float *row_scale, *column_scale;
  int64_t row_scale_stride, column_scale_stride;  // 0: one number for all
  int64_t column_scale_expert;                    // from those of an expert to the next's
  const void* bias;                               // experts N
  Activation activation;                          // gated: activation(gate) * up

  // Scales of 1 x 128 of x and 128 x 128 of weight.
  const float *x_scale, *weight_scale;
  int64_t x_scale_expert, x_scale_row, x_scale_k;
  int64_t weight_scale_expert, weight_scale_row, weight_scale_k;
  float* out_scale;  // of 1 x 128 of out, where results are quantised again

  FourBits four_bits;  // in place of weight

  const int32_t* order;  // row r of x is that of token order[r] / top_k; NULL: row r
  int top_k;
};

inline int32_t ZeroAll(AnyopCall* call, const TileProblem& p) {
  const size_t bytes = p.result == kAnyopFloat32 ? 4 : 2;
  return Check(call, cudaMemsetAsync(p.out, 0, bytes * p.rows * p.N, StreamOf(call)),
               "zeroing its result");
}
// Rows and columns are counted by 32 bits: a product with more is left to others.
inline int32_t CheckCounts(AnyopCall* call, int64_t a, int64_t b, int64_t c) {
  constexpr int64_t kMost = 0x7fffffff - 512;
  if (a <= kMost && b <= kMost && c <= kMost) return kAnyopOk;
  return call->fail(call, kAnyopDeclined, "its tiles count less than 2^31 rows and columns");
}
// A plain product of x (rows K) and weight (N K), with or without bias (N).
inline int32_t PlainProblem(AnyopCall* call, const AnyopTensor* x, const AnyopTensor* weight,
                            const AnyopTensor* bias, const AnyopTensor* out, int64_t rows,
                            int64_t N, int64_t K, TileProblem* p) {
  int64_t weight_rows = 1;
  for (int d = 0; d < weight->ndim - 1; ++d) weight_rows *= weight->shape[d];
  if (const int32_t status = CheckCounts(call, rows, weight_rows, K)) return status;
  *p = {};
  p->x = x->data, p->weight = weight->data, p->out = out->data;
  p->rows = p->capacity = static_cast<int>(rows);
  p->N = static_cast<int>(N), p->K = static_cast<int>(K), p->experts = 1;
  p->result = AnyopDtypeOf(out);
  if (bias) p->bias = bias->data, p->bias_type = AnyopDtypeOf(bias);
  return kAnyopOk;
}
// Segments of x's rows, each with a matrix of weight (E N K): by offsets (E + 1), or, of x (E C K),
// by counts (E). Without experts all rows are of no segment: out is zeroed.
inline int32_t GroupedProblem(AnyopCall* call, const AnyopTensor* x, const AnyopTensor* weight,
                              const AnyopTensor* bias, const AnyopTensor* out,
                              const AnyopTensor* offsets, const AnyopTensor* counts,
                              TileProblem* p) {
  const int64_t K = weight->shape[2], rows = x->ndim == 3 ? x->shape[0] * x->shape[1] : x->shape[0];
  if (int32_t status = PlainProblem(call, x, weight, bias, out, rows, weight->shape[1], K, p))
    return status;
  p->experts = static_cast<int>(weight->shape[0]);
  if (offsets) p->offsets = offsets->data;
  if (counts) p->counts = counts->data, p->capacity = static_cast<int>(x->shape[1]);
  p->wide_indices = AnyopDtypeOf(offsets ? offsets : counts) == kAnyopInt64;
  return p->experts ? kAnyopOk : ZeroAll(call, *p);
}
// x_scale ([experts] rows blocks, any strides), weight_scale ([experts] blocks blocks, contiguous).
inline void SetBlockScales(TileProblem* p, const AnyopTensor* x_scale,
                           const AnyopTensor* weight_scale) {
  const int rank = x_scale->ndim;
  p->x_scale = static_cast<const float*>(x_scale->data);
  p->x_scale_row = x_scale->strides[rank - 2], p->x_scale_k = x_scale->strides[rank - 1];
  // Rows are counted through all experts.
  if (rank == 3) p->x_scale_expert = x_scale->strides[0] - p->capacity * p->x_scale_row;
  p->weight_scale = static_cast<const float*>(weight_scale->data);
  p->weight_scale_row = CeilDiv(p->K, 128), p->weight_scale_k = 1;
  p->weight_scale_expert = CeilDiv(p->N, 128) * p->weight_scale_row;
}
inline int32_t DeclineFloat32(AnyopCall* call) {
  return call->fail(call, kAnyopDeclined,
                    "Hopper's sums of 8-bit floats have 14 bits, too few for a float32 result");
}
// ---- the ends of sums ----

__device__ inline float RowScale(const TileProblem& p, int64_t row) {
  return p.row_scale ? p.row_scale[row * p.row_scale_stride] : 1;
}
struct ColumnEnd {
  float scale, bias;
};
__device__ inline ColumnEnd EndOf(const TileProblem& p, int expert, int n) {
  ColumnEnd end = {1, 0};
  if (n >= p.N) return end;
  if (p.column_scale)
    end.scale = p.column_scale[expert * p.column_scale_expert + n * p.column_scale_stride];
  if (p.bias) {
    const int64_t at = int64_t{expert} * p.N + n;
    end.bias = p.bias_type == kAnyopFloat32 ? static_cast<const float*>(p.bias)[at]
               : p.bias_type == kAnyopFloat16
                   ? Widen(static_cast<const __half*>(p.bias)[at])
                   : Widen(static_cast<const __nv_bfloat16*>(p.bias)[at]);
  }
  return end;
}
__device__ inline float Finish(float sum, float row_scale, const ColumnEnd& end) {
  return MulAdd(sum * row_scale, end.scale, end.bias);
}
__device__ inline unsigned NarrowTwoAs(AnyopDtype result, float low, float high) {
  return result == kAnyopFloat16 ? NarrowTwo(__half(), low, high)
                                 : NarrowTwo(__nv_bfloat16(), low, high);
}
__device__ inline void StoreOne(AnyopDtype result, void* out, int64_t at, float v) {
  if (result == kAnyopFloat32)
    static_cast<float*>(out)[at] = v;
  else if (result == kAnyopFloat16)
    static_cast<__half*>(out)[at] = Narrow<__half>(v);
  else
    static_cast<__nv_bfloat16*>(out)[at] = Narrow<__nv_bfloat16>(v);
}

// ---- where tiles lie ----

__device__ inline int Lesser(int a, int b) { return a < b ? a : b; }

struct TilePlace {
  int expert, row, end, column;  // rows [row, end) that are left of the segment; index of column
};

// Finds tiles by their number, which may not fall from call to call. By whole warps: lane l keeps
// segment first_ + l of 32.
class TileWalk {
 public:
  // Tiles of so many rows; columns of them in a row; group: rows of tiles that are walked together,
  // so that what runs at once is nearly square. unit: 0, or the tiles of a segment have equally
  // many rows, a multiple of unit, and end where the next begins.
  __device__ TileWalk(const TileProblem& p, int tile_rows, int columns, int group, int unit = 0)
      : p_(p), tile_rows_(tile_rows), columns_(columns), group_(group), unit_(unit) {
    if (p.offsets) first_row_ = covered_ = Clamped(Index(p.offsets, 0), 0, p.rows);
    Read();
  }
  // False behind the last tile.
  __device__ bool Find(int tile, TilePlace* place) {
    for (;;) {
      const unsigned later = __ballot_sync(~0u, tile < tiles_up_to_);
      if (later) {
        const int lane = __ffs(later) - 1;
        const int begin = __shfl_sync(~0u, begin_, lane), end = __shfl_sync(~0u, end_, lane);
        const int down = (end - begin + tile_rows_ - 1) / tile_rows_;
        const int at = tile - (__shfl_sync(~0u, tiles_up_to_, lane) - down * columns_);
        const int a_group = group_ * columns_, top = at / a_group * group_;
        const int in_group = at % a_group, height = Lesser(group_, down - top);
        place->expert = first_ + lane;
        place->column = in_group / height;
        const int rows =
            unit_ ? (end - begin + down * unit_ - 1) / (down * unit_) * unit_ : tile_rows_;
        place->row = begin + (top + in_group % height) * rows;
        place->end = unit_ ? Lesser(end, place->row + rows) : end;
        return true;
      }
      before_ = __shfl_sync(~0u, tiles_up_to_, 31);
      if (p_.experts - first_ <= 32) return false;
      first_ += 32;
      Read();
    }
  }
  // Zeroes the rows of no segment, by whole warps: `threads` threads of each block.
  __device__ void ZeroRest(int thread, int threads) {
    if (!p_.offsets && !p_.counts) return;
    TilePlace place;
    if (p_.offsets) Find(0x7fffffff, &place);  // covered_ is known behind the last
    if (p_.offsets) {
      ZeroRows(0, first_row_, thread, threads, blockIdx.x, gridDim.x);
      ZeroRows(covered_, p_.rows, thread, threads, blockIdx.x, gridDim.x);
    } else if (p_.counts) {
      for (int e = blockIdx.x; e < p_.experts; e += gridDim.x)
        ZeroRows(e * p_.capacity + Clamped(Index(p_.counts, e), 0, p_.capacity),
                 (e + 1) * p_.capacity, thread, threads, 0, 1);
    }
  }

 private:
  __device__ int64_t Index(const void* indices, int i) const {
    return p_.wide_indices ? static_cast<const int64_t*>(indices)[i]
                           : static_cast<const int32_t*>(indices)[i];
  }
  __device__ static int Clamped(int64_t v, int least, int most) {
    return v < least ? least : v > most ? most : static_cast<int>(v);
  }
  // Offsets that fall count as those before them: segments never overlap.
  __device__ void Read() {
    const int lane = threadIdx.x & 31, e = first_ + lane;
    const bool is_there = e < p_.experts;
    if (p_.offsets) {
      int end = is_there ? Clamped(Index(p_.offsets, e + 1), 0, p_.rows) : 0;
      if (end < covered_) end = covered_;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int before = __shfl_up_sync(~0u, end, step);
        if (lane >= step && end < before) end = before;
      }
      const int before = __shfl_up_sync(~0u, end, 1);
      begin_ = lane ? before : covered_;
      end_ = end;
      covered_ = __shfl_sync(~0u, end, 31);
    } else {
      begin_ = is_there ? e * p_.capacity : 0;
      end_ = !is_there ? 0
                       : begin_ + (p_.counts ? Clamped(Index(p_.counts, e), 0, p_.capacity)
                                             : p_.capacity);
    }
    int tiles = (end_ - begin_ + tile_rows_ - 1) / tile_rows_ * columns_;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int before = __shfl_up_sync(~0u, tiles, step);
      if (lane >= step) tiles += before;
    }
    tiles_up_to_ = before_ + tiles;
  }
  __device__ void ZeroRows(int begin, int end, int thread, int threads, int block,
                           int blocks) const {
    const int64_t row_bytes = int64_t{p_.N} * (p_.result == kAnyopFloat32 ? 4 : 2);
    const bool by_vector = row_bytes % 16 == 0 && reinterpret_cast<uintptr_t>(p_.out) % 16 == 0;
    for (int row = begin + block; row < end; row += blocks) {
      auto* to = static_cast<uint8_t*>(p_.out) + row * row_bytes;
      if (by_vector) {
#pragma unroll 1
        for (int64_t i = thread; i < row_bytes / 16; i += threads)
          reinterpret_cast<uint4*>(to)[i] = make_uint4(0, 0, 0, 0);
      } else {
#pragma unroll 1
        for (int64_t i = thread; i < row_bytes / 2; i += threads)
          reinterpret_cast<uint16_t*>(to)[i] = 0;
      }
    }
  }

  const TileProblem& p_;
  const int tile_rows_, columns_, group_, unit_;
  int first_ = 0, before_ = 0, first_row_ = 0, covered_ = 0;
  int begin_ = 0, end_ = 0, tiles_up_to_ = 0;
};

// Rows of one segment of offsets, by the rule of TileWalk; by whole warps.
__device__ inline TilePlace SegmentOf(const TileProblem& p, int expert) {
  const int lane = threadIdx.x & 31;
  int begin = 0, end = 0;
  for (int from = 0; from <= expert + 1; from += 32) {
    const int i = from + lane;
    if (i > expert + 1) continue;
    const int64_t given = p.wide_indices ? static_cast<const int64_t*>(p.offsets)[i]
                                         : static_cast<const int32_t*>(p.offsets)[i];
    const int row = given < 0 ? 0 : given > p.rows ? p.rows : static_cast<int>(given);
    if (row > end) end = row;
    if (i <= expert && row > begin) begin = row;
  }
#pragma unroll
  for (int step = 16; step; step /= 2) {
    const int other_begin = __shfl_xor_sync(~0u, begin, step);
    const int other_end = __shfl_xor_sync(~0u, end, step);
    if (other_begin > begin) begin = other_begin;
    if (other_end > end) end = other_end;
  }
  return {expert, begin, end, 0};
}

}  // namespace
}  // namespace anyop::cuda
