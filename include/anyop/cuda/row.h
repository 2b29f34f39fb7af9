/* SPDX-License-Identifier: Apache-2.0 */
/* The row scheme of CUDA kernels: an operator says what happens to one row, and each row is read
   from memory once. */
#ifndef ANYOP_CUDA_ROW_H_
#define ANYOP_CUDA_ROW_H_

#include "anyop/cuda/held_row.h"
#include "anyop/cuda/streamed_row.h"

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
// that, not aligned, of several dtypes or written elsewhere than in such vectors are read again for
// each Sum, Max and Write, from the second cache.
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

template <typename Row, typename Op, typename... More>
__device__ void WalkRows(const Op& op, int64_t rows, int64_t D, int lanes, int64_t walker,
                         int64_t walkers, More... more) {
  // In this order: the kernel behind may rely on all that is older than this one.
  WaitForWork();
  LetNextStart();
  __shared__ typename Row::TeamPartials partials;
  Row row(lanes, partials, D, more...);
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
  WaitForWork();
  LetNextStart();
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
    RunInStreams(const __grid_constant__ Op op, int64_t rows, int64_t D, int lanes, int64_t slice) {
  WalkRows<StreamRow<T, kPiece>>(op, rows, D, lanes, blockIdx.x, gridDim.x, slice);
}

inline Launch OverlappingLaunch(const RowThreads& threads, int64_t rows) {
  Launch launch = threads.LaunchFor(rows);
  launch.overlaps = true;
  return launch;
}
template <typename T, typename Op>
int32_t LaunchInRegisters(AnyopCall* call, RowShape shape, const Op& op) {
  const int64_t vectors = shape.D / kPerVector<T>;
  const int of_thread = VectorsOfThread<Op>(vectors);
  const RowThreads threads(vectors, of_thread, 1024);
  const auto run = [&](auto* kernel) {
    return OverlappingLaunch(threads, shape.rows)
        .Run(call, kernel, op, shape.rows, shape.D, threads.lanes);
  };
  if (of_thread == 8) return run(RunInRegisters<T, 8, Op>);
  if (of_thread == 1) return run(RunInRegisters<T, 1, Op>);
  return run(RunInRegisters<T, kVectorsOf<Op>, Op>);
}

// Blocks of a row's cluster and threads of each; !fits where the device has no clusters, or the
// row is too short or too long for one.
template <typename Op>
struct RowCluster {
  static constexpr int kVectors = kHeldBy<Op> > 1 ? 4 : 8;
  int threads = 256, blocks = 1;
  bool fits = false;

  int32_t Plan(AnyopCall* call, int64_t vectors) {
    if (vectors <= 4096 / kHeldBy<Op>) return kAnyopOk;
    Limits limits;
    if (int32_t status = ReadLimits(call, &limits)) return status;
    while (threads < 1024 && vectors > int64_t{threads} * kVectors * kMaxBlocks) threads *= 2;
    while (vectors > int64_t{threads} * kVectors * blocks) blocks *= 2;
    fits = limits.major >= 9 && blocks <= kMaxBlocks;
    return kAnyopOk;
  }
};

// Rows that are read once; *fits is false where they are too long.
template <typename T, typename Op>
int32_t LaunchHeld(AnyopCall* call, RowShape shape, const Op& op, bool* fits) {
  const int64_t vectors = shape.D / kPerVector<T>;
  RowCluster<Op> cluster;
  if (int32_t status = cluster.Plan(call, vectors)) return status;
  *fits = cluster.fits || vectors <= kMaxHeld;
  if (!*fits) return kAnyopOk;
  if (!cluster.fits) return LaunchInRegisters<T>(call, shape, op);
  const int64_t most = 0x7fffffff / cluster.blocks,
                clusters = shape.rows < most ? shape.rows : most;
  Launch launch{dim3(static_cast<unsigned>(clusters * cluster.blocks)), dim3(cluster.threads)};
  launch.cluster = cluster.blocks;
  launch.overlaps = true;
  return launch.Run(call, RunInClusters<T, RowCluster<Op>::kVectors, Op>, op, shape.rows, shape.D);
}

// Who reads a row again for each step, and the pieces that they sum for themselves.
struct StreamThreads {
  RowThreads threads;
  int64_t slice = INT64_MAX;

  explicit StreamThreads(int64_t pieces) : threads(pieces, 4, 1024) {}

  // As LaunchHeld has it: the same bits, wherever results go.
  template <typename Op>
  int32_t BeAsHeld(AnyopCall* call, int64_t vectors) {
    RowCluster<Op> cluster;
    if (int32_t status = cluster.Plan(call, vectors)) return status;
    if (cluster.fits) {
      threads.lanes = threads.threads = cluster.threads;
      slice = int64_t{cluster.threads} * cluster.kVectors;
    } else if (vectors <= kMaxHeld) {
      threads = RowThreads(vectors, VectorsOfThread<Op>(vectors), 1024);
    }
    return kAnyopOk;
  }
  template <typename T, int kPiece, typename Op>
  int32_t Run(AnyopCall* call, RowShape shape, const Op& op) const {
    return OverlappingLaunch(threads, shape.rows)
        .Run(call, RunInStreams<T, kPiece, Op>, op, shape.rows, shape.D, threads.lanes, slice);
  }
};

// kPlain: what is written does, whatever `fit` says.
template <typename T, bool kPlain = false, typename Make>
int32_t RunFitted(AnyopCall* call, RowShape shape, RowsFit fit, const Make& make) {
  if (shape.rows == 0 || shape.D == 0) return kAnyopOk;
  if constexpr (sizeof(T) < 8) {  // float64, which GPUs are slow at, is not worth their size
    const int64_t vectors = shape.D / kPerVector<T>;
    const bool held = fit.vectors && fit.one_stride && vectors < (1 << 24);
    if (held && (kPlain || fit.plain)) {
      bool fits = false;
      const int32_t status = LaunchHeld<T>(call, shape, make(T(), std::false_type()), &fits);
      if (fits || status) return status;
    }
    if (fit.vectors) {
      const auto op = make(T(), std::true_type());
      StreamThreads streams(fit.columns ? 1 : vectors);
      if (held) {
        if (int32_t status = streams.BeAsHeld<decltype(op)>(call, vectors)) return status;
      }
      return streams.Run<T, kPerVector<T>>(call, shape, op);
    }
  }
  // Elements of any dtype: one kernel for all that are summed alike. Side by side: a thread for
  // each.
  return StreamThreads(fit.columns ? 1 : shape.D)
      .Run<Wide<T>, 1>(call, shape, make(Wide<T>(), std::true_type()));
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
