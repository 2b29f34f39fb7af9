// SPDX-License-Identifier: Apache-2.0
// The lattice of a transducer's joint on CUDA: operands, and which threads share a row.
#pragma once

#include "anyop/cuda/rows.h"
#include "joint_numbers.h"

namespace anyop::cuda {
namespace {

constexpr int kJointThreads = 256;

// Rows of H elements, seen as pieces of 16 bytes, or of one element.
struct JointRows {
  Lattice lattice;
  JointNumbers numbers;
  int64_t H, pieces;
  int lanes;  // threads of a row: a power of two up to those of the block

  JointRows(const Lattice& lattice, const JointNumbers& numbers, int64_t H, int of_piece)
      : lattice(lattice), numbers(numbers), H(H), pieces(H / of_piece), lanes(1) {
    while (lanes < pieces && lanes < kJointThreads) lanes *= 2;
  }
  Launch LaunchFor(int64_t rows) const {
    const int64_t blocks = CeilDiv(rows, kJointThreads / lanes);
    return {dim3(static_cast<unsigned>(blocks < 0x7fffffff ? blocks : 0x7fffffff)),
            dim3(kJointThreads)};
  }
  // Calls of_row(row, body of a piece) for all rows of this thread, and through them each of its
  // pieces.
  template <typename OfRow>
  __device__ void Each(int64_t rows, const OfRow& of_row) const {
    const int own = DivideByLanes(threadIdx.x, lanes), of_block = DivideByLanes(blockDim.x, lanes);
    for (int64_t row = int64_t{blockIdx.x} * of_block + own; row < rows;
         row += int64_t{gridDim.x} * of_block)
      of_row(row, [&](const auto& of_piece) {
        for (int64_t piece = threadIdx.x & (lanes - 1); piece < pieces; piece += lanes)
          of_piece(piece);
      });
  }
};

// Word i of four, without an array in local memory.
__device__ inline uint32_t WordAt(const PhiloxWords& words, int64_t i) {
  const uint32_t low = i & 1 ? words.at[1] : words.at[0];
  const uint32_t high = i & 1 ? words.at[3] : words.at[2];
  return i & 2 ? high : low;
}

// Which of f + g are kept, from element h on, a multiple of kPer.
template <typename W, int kPer>
__device__ void FindKept(const JointNumbers& numbers, int64_t padded_row, int64_t h,
                         const Piece<W, kPer>& f, const Piece<W, kPer>& g, bool (&kept)[kPer]) {
  PhiloxWords words = {};
#pragma unroll
  for (int k = 0; k < kPer; ++k) {
    if (numbers.seed && k % 4 == 0) words = numbers.Words(padded_row, (h + k) / 4 * 4);
    kept[k] = numbers.Keeps(f.at[k] + g.at[k], WordAt(words, h + k));
  }
}

}  // namespace
}  // namespace anyop::cuda
