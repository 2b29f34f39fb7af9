// SPDX-License-Identifier: Apache-2.0
// build_permute_map and check_permutations on CUDA. A thread takes a permutation; a block reads
// tiles of a group's rows to shared memory, where the columns of a row lie in different banks. Its
// best is noted, and a second kernel takes the best of the blocks of a group. Groups of more than
// four stripes are read from global memory.
#include "anyop/cuda.h"
#include "anyop/cuda/launch.h"
#include "anyop/ops/build_permute_map.h"
#include "anyop/ops/check_permutations.h"
#include "two_of_four.h"

namespace anyop::cuda {
namespace {

constexpr int kSearchThreads = 128, kTileRows = 32;

struct Search {
  Matrix matrix;
  Indices stripes, permutations;
  int64_t G, W, P, chunks, per_chunk;
  float* sums;    // of each permutation, or NULL
  double* bases;  // of each group
  BestPermutation* best;

  __device__ bool HasStripes(int64_t group) const {
    bool inside = true;
    for (int64_t w = 0; w < W; ++w) {
      const int64_t stripe = stripes[group * W + w];
      inside = inside && stripe >= 0 && stripe < matrix.C / 4;
    }
    return inside;
  }
  __device__ const float* At(int64_t r, int64_t group, int64_t c) const {
    return matrix.At(r, stripes[group * W + c / 4] * 4 + c % 4);
  }
};

// One block's work on a group of kW stripes.
template <int kW>
struct Tiles {
  float tile[kTileRows][4 * kW];

  __device__ double Sum(const Search& s, int64_t group, int64_t p, bool stripes_inside) {
    int columns[4 * kW];
    bool inside = stripes_inside && p < s.P;
#pragma unroll
    for (int i = 0; i < 4 * kW; ++i) {
      const int64_t c = p < s.P ? s.permutations[p * 4 * kW + i] : 0;
      const bool good = c >= 0 && c < 4 * kW;
      columns[i] = good ? static_cast<int>(c) : 0;
      inside = inside && good;
    }
    double sums[kSumLanes] = {};
    for (int64_t top = 0; stripes_inside && top < s.matrix.R; top += kTileRows) {
      __syncthreads();
      for (int i = threadIdx.x; i < kTileRows * 4 * kW; i += kSearchThreads) {
        const int r = i / (4 * kW), c = i % (4 * kW);
        tile[r][c] = top + r < s.matrix.R ? *s.At(top + r, group, c) : 0.0f;
      }
      __syncthreads();
      for (int r = 0; r < kTileRows; r += kSumLanes) {
#pragma unroll
        for (int k = 0; k < kSumLanes; ++k) {
          const float* row = tile[r + k];
          double of_row = 0;
#pragma unroll
          for (int w = 0; w < 4 * kW; w += 4)
            of_row += Kept(row[columns[w]], row[columns[w + 1]], row[columns[w + 2]],
                           row[columns[w + 3]]);
          sums[k] += of_row;
        }
      }
    }
    return inside ? AddLanes(sums) : static_cast<double>(NAN);
  }
};

// Of any W.
template <>
struct Tiles<0> {
  __device__ double Sum(const Search& s, int64_t group, int64_t p, bool stripes_inside) const {
    if (!stripes_inside || p >= s.P) return static_cast<double>(NAN);
    const int64_t first = p * 4 * s.W;
    for (int64_t i = 0; i < 4 * s.W; ++i) {
      const int64_t c = s.permutations[first + i];
      if (c < 0 || c >= 4 * s.W) return static_cast<double>(NAN);
    }
    double sums[kSumLanes] = {};
    for (int64_t top = 0; top < s.matrix.R; top += kSumLanes) {
#pragma unroll
      for (int k = 0; k < kSumLanes; ++k) {
        double of_row = 0;
        for (int64_t i = first; top + k < s.matrix.R && i < first + 4 * s.W; i += 4) {
          const auto at = [&](int64_t j) { return *s.At(top + k, group, s.permutations[i + j]); };
          of_row += Kept(at(0), at(1), at(2), at(3));
        }
        sums[k] += of_row;
      }
    }
    return AddLanes(sums);
  }
};

template <int kW>
__global__ void __launch_bounds__(kSearchThreads) SearchChunks(const __grid_constant__ Search s) {
  __shared__ Tiles<kW> tiles;
  __shared__ BestPermutation each[kSearchThreads];
  for (int64_t part = blockIdx.x; part < s.G * s.chunks; part += gridDim.x) {
    const int64_t group = part / s.chunks, first = part % s.chunks * s.per_chunk;
    const int64_t end = first + s.per_chunk < s.P ? first + s.per_chunk : s.P;
    const bool inside = s.HasStripes(group);
    BestPermutation best = {-HUGE_VAL, 0};
    for (int64_t p = first + threadIdx.x; p - threadIdx.x < end; p += kSearchThreads) {
      const double sum = tiles.Sum(s, group, p, inside);
      if (p < end) best.Take(sum, p);
      if (p < end && s.sums) s.sums[p] = static_cast<float>(sum);
      if (p == 0) s.bases[group] = sum;
    }
    each[threadIdx.x] = best;
    for (int half = kSearchThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.x < half)
        each[threadIdx.x].Take(each[threadIdx.x + half].sum, each[threadIdx.x + half].p);
    }
    if (threadIdx.x == 0) s.best[part] = each[0];
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kSearchThreads)
    FindBest(const __grid_constant__ Search s, float* improvement, Indices found) {
  for (int64_t g = int64_t{blockIdx.x} * kSearchThreads + threadIdx.x; g < s.G;
       g += int64_t{gridDim.x} * kSearchThreads) {
    const double base = s.P > 0 ? s.bases[g] : 0;
    BestPermutation best = {base, 0};
    for (int64_t c = 0; c < s.chunks; ++c)
      best.Take(s.best[g * s.chunks + c].sum, s.best[g * s.chunks + c].p);
    improvement[g] = static_cast<float>(best.sum - base);
    found.Set(g, best.p);
  }
}

inline unsigned Blocks(int64_t needed) {
  return static_cast<unsigned>(needed < 0x7fffffff ? needed : 0x7fffffff);
}

template <typename Args>
int32_t Run(const Args& args, int64_t G, float* sums, AnyopCall* call) {
  if (G == 0) return kAnyopOk;
  constexpr int64_t kEnoughBlocks = 1024;
  const int64_t steps = args.P > 0 ? CeilDiv(args.P, kSearchThreads) : 1,
                most = CeilDiv(kEnoughBlocks, G);
  const int64_t per_chunk = CeilDiv(steps, steps < most ? steps : most) * kSearchThreads;
  const int64_t chunks = args.P > 0 ? CeilDiv(args.P, per_chunk) : 1, parts = G * chunks;
  const auto bytes = static_cast<int64_t>(parts * sizeof(BestPermutation) + G * sizeof(double));
  auto* best = static_cast<BestPermutation*>(call->workspace(call, bytes));
  if (!best) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  const Search search = {Matrix(args.matrix),
                         Indices(args.stripes),
                         Indices(args.permutations),
                         G,
                         args.W,
                         args.P,
                         chunks,
                         per_chunk,
                         sums,
                         reinterpret_cast<double*>(best + parts),
                         best};
  void (*const kernels[])(Search) = {SearchChunks<0>, SearchChunks<1>, SearchChunks<2>,
                                     SearchChunks<3>, SearchChunks<4>};
  const Launch launch{dim3(Blocks(parts)), dim3(kSearchThreads)};
  if (const int32_t status = launch.Run(call, kernels[args.W <= 4 ? args.W : 0], search))
    return status;
  const Launch last{dim3(Blocks(CeilDiv(G, kSearchThreads))), dim3(kSearchThreads)};
  return last.Run(call, FindBest, search, static_cast<float*>(args.improvement->data),
                  Indices(args.best));
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_build_permute_map_cuda(const BuildPermuteMapArgs* args, AnyopCall* call) {
  return anyop::cuda::Run(*args, args->G, nullptr, call);
}

extern "C" int32_t anyop_check_permutations_cuda(const CheckPermutationsArgs* args,
                                                 AnyopCall* call) {
  return anyop::cuda::Run(*args, 1, static_cast<float*>(args->sums->data), call);
}
