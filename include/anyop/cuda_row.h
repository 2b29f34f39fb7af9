/* SPDX-License-Identifier: Apache-2.0 */
/* The row scheme of CUDA kernels: an operator says what happens to one row, and each row is read
   from memory once. */
#ifndef ANYOP_CUDA_ROW_H_
#define ANYOP_CUDA_ROW_H_

#include "anyop/cuda_held_row.h"
#include "anyop/cuda_streamed_row.h"

// An operator is a struct of its operands with one function, which all threads of a row run:
//
//   template <typename Row>
//   __device__ void operator()(Row& row) const {
//     const auto v = row.Read(x);
//     const W squares = row.Sum([](W sum, W v) { return MulAdd(v, v, sum); }, v);
//     const W scale = ReciprocalRoot(MulAdd(squares, inverse_D, eps));
//     row.Write(out, [=](W v, W w) { return v * scale * w; }, v, row.Columns(weight));
//   }
//
// RunRows chooses who the threads are. Rows of vectors of 16 bytes lie in registers, shared by 1 to
// 32 lanes of a warp, by a block or (Hopper) by a cluster of blocks. Rows that are too long for
// that, not aligned or of several dtypes are read again for each Sum, Max and Write, from the
// second cache.
namespace anyop::cuda {

// ---- launches ----

// What an operator may say: rows that it holds together (1), and vectors of a thread for rows of
// some length (4).
template <typename Op, typename = void>
constexpr int kHeldBy = 1;
template <typename Op>
constexpr int kHeldBy<Op, std::void_t<decltype(Op::kHeld)>> = Op::kHeld;
template <typename Op, typename = void>
constexpr int kVectorsOf = 4;
template <typename Op>
constexpr int kVectorsOf<Op, std::void_t<decltype(Op::kVectors)>> = Op::kVectors;

// Vectors of a thread: 1 of rows of up to 32; what Op asks for up to 1,024 (2,048 where it holds
// two rows); else 8. MaxThreads: of a block; MinBlocks: that must fit on a multiprocessor, so that
// enough loads are on their way.
constexpr int kMaxHeld = 8 * 1024;
constexpr int MaxThreads(int of_thread) {
  return of_thread == 1 ? 128 : of_thread == 4 ? 512 : 1024;
}
constexpr int MinBlocks(int of_thread) { return of_thread == 1 ? 8 : of_thread == 4 ? 2 : 1; }
template <typename Op>
int VectorsOfThread(int64_t vectors) {
  if (vectors <= 32) return 1;
  return vectors <= 1024 * kHeldBy<Op> ? kVectorsOf<Op> : 8;
}

template <typename Row, typename Op>
__device__ void WalkRows(const Op& op, int64_t rows, int64_t D, int lanes, int64_t walker,
                         int64_t walkers) {
  __shared__ typename Row::TeamPartials partials;
  Row row(lanes, partials, D);
  const bool in_warp = lanes <= 32;
  const int own = in_warp ? DivideByLanes(threadIdx.x, lanes) : 0,
            rows_of_block = in_warp ? DivideByLanes(blockDim.x, lanes) : 1;
  for (int64_t first = walker * rows_of_block; first < rows; first += walkers * rows_of_block) {
    row.Take(first + own, rows);
    op(row);
  }
}

template <typename T, int kVectors, typename Op>
__global__ void __launch_bounds__(MaxThreads(kVectors), MinBlocks(kVectors))
    RunInRegisters(const __grid_constant__ Op op, int64_t rows, int64_t D, int lanes) {
  WalkRows<RegisterRow<T, kVectors>>(op, rows, D, lanes, blockIdx.x, gridDim.x);
}
template <typename T, typename Op>
__global__ void __launch_bounds__(MaxThreads(4), MinBlocks(4))
    RunInSlices(const __grid_constant__ Op op, int64_t rows, int64_t D) {
  WalkRows<RegisterRow<T, 4, Share::kSlice>>(op, rows, D, blockDim.x, blockIdx.x, gridDim.x);
}
template <typename T, int kVectors, typename Op>
__global__ void __launch_bounds__(1024)
    RunInClusters([[maybe_unused]] const __grid_constant__ Op op, [[maybe_unused]] int64_t rows,
                  [[maybe_unused]] int64_t D) {
#if __CUDA_ARCH__ >= 900
  using Row = RegisterRow<T, kVectors, Share::kCluster>;
  __shared__ typename Row::TeamPartials partials;
  Row row(blockDim.x, partials, D);
  const int64_t step = gridDim.x / BlocksOfCluster();
  for (int64_t r = blockIdx.x / BlocksOfCluster(); r < rows; r += step) {
    row.Take(r, rows);
    op(row);
  }
  row.Leave();
#endif
}
template <typename T, int kPiece, typename Op>
__global__ void __launch_bounds__(1024)
    RunInStreams(const __grid_constant__ Op op, int64_t rows, int64_t D, int lanes) {
  WalkRows<StreamRow<T, kPiece>>(op, rows, D, lanes, blockIdx.x, gridDim.x);
}

// Threads of a row and of a block, for so many pieces of which a thread takes some.
struct RowThreads {
  int lanes, threads;
  RowThreads(int64_t pieces, int of_thread, int most) {
    const int64_t needed = CeilDiv(pieces, of_thread);
    lanes = 1;
    while (lanes < needed && lanes < 32) lanes *= 2;
    if (needed > 32) lanes = static_cast<int>(needed < most ? CeilDiv(needed, 32) * 32 : most);
    threads = lanes <= 32 ? 128 : lanes;
  }
  Launch LaunchFor(int64_t rows) const {
    const int64_t blocks = CeilDiv(rows, threads / lanes);
    return {dim3(static_cast<unsigned>(blocks < 0x7fffffff ? blocks : 0x7fffffff)), dim3(threads)};
  }
};

// kAny: one kernel for all, whose threads share rows as the plain ones do, for the same bits.
template <typename T, bool kAny, typename Op>
int32_t LaunchInRegisters(AnyopCall* call, RowShape shape, const Op& op) {
  const int64_t vectors = shape.D / kPerVector<T>;
  const int of_thread = VectorsOfThread<Op>(vectors);
  const RowThreads threads(vectors, of_thread, 1024);
  const Launch launch = threads.LaunchFor(shape.rows);
  if (kAny || of_thread == 8)
    return launch.Run(call, RunInRegisters<T, 8, Op>, op, shape.rows, shape.D, threads.lanes);
  if constexpr (!kAny) {
    if (of_thread == 1)
      return launch.Run(call, RunInRegisters<T, 1, Op>, op, shape.rows, shape.D, threads.lanes);
    return launch.Run(call, RunInRegisters<T, kVectorsOf<Op>, Op>, op, shape.rows, shape.D,
                      threads.lanes);
  }
  return kAnyopInternalError;
}

// *fits is false where the device has no clusters, or the rows are too long for one.
template <typename T, typename Op>
int32_t LaunchInClusters(AnyopCall* call, RowShape shape, const Op& op, bool* fits) {
  constexpr int kVectors = kHeldBy<Op> > 1 ? 4 : 8;
  Limits limits;
  if (int32_t status = ReadLimits(call, &limits)) return status;
  const int64_t vectors = shape.D / kPerVector<T>;
  int threads = 256, blocks = 1;
  while (threads < 1024 && vectors > int64_t{threads} * kVectors * kMaxBlocks) threads *= 2;
  while (vectors > int64_t{threads} * kVectors * blocks) blocks *= 2;
  *fits = limits.major >= 9 && blocks <= kMaxBlocks;
  if (!*fits) return kAnyopOk;
  const int64_t most = 0x7fffffff / blocks, clusters = shape.rows < most ? shape.rows : most;
  Launch launch{dim3(static_cast<unsigned>(clusters * blocks)), dim3(threads)};
  launch.cluster = blocks;
  return launch.Run(call, RunInClusters<T, kVectors, Op>, op, shape.rows, shape.D);
}

// Rows that are read once; *fits is false where they are too long.
template <typename T, bool kAny, typename Op>
int32_t LaunchHeld(AnyopCall* call, RowShape shape, const Op& op, bool* fits) {
  const int64_t vectors = shape.D / kPerVector<T>;
  if (vectors > 4096 / kHeldBy<Op>) {
    if (int32_t status = LaunchInClusters<T>(call, shape, op, fits)) return status;
    if (*fits) return kAnyopOk;
  }
  *fits = vectors <= kMaxHeld;
  return *fits ? LaunchInRegisters<T, kAny>(call, shape, op) : int32_t{kAnyopOk};
}

// kPlain: what is written does, whatever `fit` says.
template <typename T, bool kPlain = false, typename Make>
int32_t RunFitted(AnyopCall* call, RowShape shape, RowsFit fit, const Make& make) {
  if (shape.rows == 0 || shape.D == 0) return kAnyopOk;
  if constexpr (sizeof(T) < 8) {  // float64, which GPUs are slow at, is not worth their size
    if (fit.vectors && fit.one_stride && shape.D / kPerVector<T> < (1 << 24)) {
      bool fits = false;
      int32_t status = kAnyopOk;
      if (kPlain || fit.plain) {
        status = LaunchHeld<T, false>(call, shape, make(T(), std::false_type()), &fits);
      } else if constexpr (!kPlain) {
        status = LaunchHeld<T, true>(call, shape, make(T(), std::true_type()), &fits);
      }
      if (fits || status) return status;
    }
  }
  const int64_t pieces = fit.columns ? 1 : fit.vectors ? shape.D / kPerVector<T> : shape.D;
  const RowThreads threads(pieces, 4, 1024);  // side by side: a thread for each
  const Launch launch = threads.LaunchFor(shape.rows);
  const auto run = [&](auto* kernel, const auto& op) {
    return launch.Run(call, kernel, op, shape.rows, shape.D, threads.lanes);
  };
  if constexpr (sizeof(T) < 8) {
    if (fit.vectors) {
      const auto op = make(T(), std::true_type());
      return run(RunInStreams<T, kPerVector<T>, std::remove_const_t<decltype(op)>>, op);
    }
  }
  // Elements of any dtype: one kernel for all that are summed alike.
  const auto op = make(Wide<T>(), std::true_type());
  return run(RunInStreams<Wide<T>, 1, std::remove_const_t<decltype(op)>>, op);
}

// Runs make(zero, kAny), an operator on rows of zero's type, over rows of D elements of T; of
// Wide<T>, where elements are read one by one, whatever their dtype. NULL tensors are left out.
template <typename T, typename Make, size_t kRead, size_t kWritten>
int32_t RunRows(AnyopCall* call, RowShape shape, const AnyopTensor* const (&read)[kRead],
                const AnyopTensor* const (&written)[kWritten], const Make& make) {
  return RunFitted<T>(call, shape, FitRows<T>(shape, read, written), make);
}
// Of rows and columns.
template <typename T, typename Make, size_t kRead, size_t kWritten, size_t kColumns>
int32_t RunRows(AnyopCall* call, RowShape shape, const AnyopTensor* const (&read)[kRead],
                const AnyopTensor* const (&written)[kWritten],
                const AnyopTensor* const (&columns)[kColumns], const Make& make) {
  return RunFitted<T>(call, shape, FitRows<T>(shape, read, written, columns), make);
}

}  // namespace anyop::cuda

#endif  // ANYOP_CUDA_ROW_H_
