/* SPDX-License-Identifier: Apache-2.0 */
/* The row scheme of CUDA kernels: an operator says what happens to one row, and each row is read
   from memory once. */
#ifndef ANYOP_CUDA_ROW_H_
#define ANYOP_CUDA_ROW_H_

#include "anyop/cuda_held_row.h"
#include "anyop/cuda_ring.h"
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
// and, where rows may be copied ahead, what they are read from, in the order of its Reads:
//
//   static constexpr int kInputs = 1;
//   __device__ const char* InputAt(int, int64_t row) const { return x.At(row); }
//
// RunRows chooses who the threads are. Rows of vectors of 16 bytes lie in registers, shared by 1 to
// 32 lanes of a warp or by a block. Long ones are copied to shared memory a turn ahead, by a block
// or (Hopper) by a cluster of blocks. Rows that are too long for that, not aligned or of several
// dtypes are read again for each Sum, Max and Write, from the second cache.
namespace anyop::cuda {

// ---- a row copied ahead ----

// What Op says that its rows are read from; 0 where it does not.
template <typename Op, typename = void>
constexpr int kInputsOf = 0;
template <typename Op>
constexpr int kInputsOf<Op, std::void_t<decltype(Op::kInputs)>> = Op::kInputs;

// A block has a slice of its cluster's rows; the next row's is copied to shared memory as soon as
// this one's is in registers, which the threads know where they have met.
template <typename T, int kVectors, typename Op>
class RingRow : public RegisterRow<T, kVectors, Share::kCluster> {
 public:
  using Base = RegisterRow<T, kVectors, Share::kCluster>;
  using typename Base::W;
  using Ring = RowRing<Op::kInputs>;

  __device__ RingRow(const Op& op, typename Base::TeamPartials& partials,
                     uint64_t (&barriers)[Ring::kMaxStages], int64_t rows, int64_t D, int slice)
      : Base(blockDim.x, partials, D, slice),
        op_(op),
        rows_(rows),
        step_(gridDim.x / BlocksOfCluster()),
        ring_(DynamicShared(), barriers, 1, this->vectors_ - this->begin_) {
    ring_.Start(blockIdx.x / BlocksOfCluster(), step_, rows, From());
  }
  // Op on all rows of the cluster.
  __device__ void Run() {
    for (int64_t row = blockIdx.x / BlocksOfCluster(); row < rows_; row += step_) {
      this->Take(row, rows_);
      stage_ = ring_.Wait(0);
      copied_ = false;
      op_(*this);
      if (copied_) continue;
      __syncthreads();
      CopyNext();
    }
    this->Leave();
  }

  template <bool kAny>
  __device__ HeldRow<T, kVectors> Read(const RowsAt<kAny>&) {
    HeldRow<T, kVectors> held;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (this->At(i) < this->mine_) held.bits[i] = stage_[this->At(i) - this->begin_];
    }
    stage_ += this->vectors_ - this->begin_;
    return held;
  }
  using Base::Read;  // of flags
  template <typename F, typename... Held>
  __device__ W Sum(const F& f, const Held&... held) {
    return Met(Base::Sum(f, held...));
  }
  template <typename F, typename... Held>
  __device__ W Max(const F& f, const Held&... held) {
    return Met(Base::Max(f, held...));
  }
  template <typename F>
  __device__ W Join(W v, W none, const F& join) {
    return Met(Base::Join(v, none, join));
  }
  __device__ W Most(const HeldRow<T, kVectors>& held) { return Met(Base::Most(held)); }

 private:
  __device__ auto From() const {
    return [this](int input, int64_t row) {
      return reinterpret_cast<const uint4*>(op_.InputAt(input, row)) + this->begin_;
    };
  }
  __device__ void CopyNext() {
    ring_.Refill(this->index_ + step_, rows_, From());
    copied_ = true;
  }
  __device__ W Met(W v) {
    if (!copied_) CopyNext();
    return v;
  }

  const Op& op_;
  int64_t rows_, step_;
  Ring ring_;
  const uint4* stage_ = nullptr;
  bool copied_ = false;
};

// ---- launches ----

// Vectors of a thread: 1 of rows of up to 32; else what Op asks for, up to so many threads, or 4 up
// to 256 threads; 8 of longer rows. MaxThreads: of a block; MinBlocks: that must fit on a
// multiprocessor, so that enough loads are on their way.
template <typename Op, typename = void>
constexpr int kVectorsOf = 4;
template <typename Op>
constexpr int kVectorsOf<Op, std::void_t<decltype(Op::kVectors)>> = Op::kVectors;

constexpr int kMaxHeld = 8 * 1024;
constexpr int MaxThreads(int of_thread) {
  return of_thread == 1 ? 128 : of_thread == 4 ? 512 : 1024;
}
constexpr int MinBlocks(int of_thread) { return of_thread == 1 ? 8 : of_thread == 4 ? 2 : 1; }
template <typename Op>
int VectorsOfThread(int64_t vectors) {
  if (vectors <= 32) return 1;
  const bool two = kInputsOf<Op> > 1;  // rows that are held
  return vectors <= (two ? 2048 : 1024) ? kVectorsOf<Op> : 8;
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
    RunInRing(const __grid_constant__ Op op, int64_t rows, int64_t D, int slice) {
  using Row = RingRow<T, kVectors, Op>;
  __shared__ typename Row::TeamPartials partials;
  __shared__ __align__(8) uint64_t barriers[Row::Ring::kMaxStages];
  Row row(op, partials, barriers, rows, D, slice);
  row.Run();
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

// Rows that are copied ahead: a block of up to 1,024 threads has 8 vectors of one input or 4 of two
// for each, a cluster 8 such blocks. *fits is false where the device cannot.
template <typename T, typename Op>
int32_t LaunchInRing(AnyopCall* call, RowShape shape, const Op& op, bool* fits) {
  constexpr int kInputs = Op::kInputs, kVectors = kInputs > 1 ? 4 : 8;
  constexpr int64_t kKept = 8192;  // shared memory of each block for its own variables
  Limits limits;
  if (int32_t status = ReadLimits(call, &limits)) return status;
  const int64_t vectors = shape.D / kPerVector<T>;
  const int most = limits.major >= 9 ? kMaxBlocks : 1;
  int blocks = 1;
  const auto bytes = [&] { return CeilDiv(vectors, blocks) * 16 * kInputs; };
  const auto is_large = [&] {
    return CeilDiv(vectors, blocks) > 1024 * kVectors ||
           bytes() > limits.shared_bytes_of_block - kKept;
  };
  while (blocks < most && is_large()) blocks *= 2;
  *fits = !is_large();
  if (!*fits) return kAnyopOk;
  const auto kernel = RunInRing<T, kVectors, Op>;
  if (int32_t status =
          Check(call,
                cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(bytes())),
                "asking for shared memory"))
    return status;
  // Equally many rows for every cluster.
  const int64_t turns = CeilDiv(shape.rows, CeilDiv(limits.multiprocessors, blocks)),
                clusters = CeilDiv(shape.rows, turns), slice = CeilDiv(vectors, blocks);
  const int64_t threads = CeilDiv(CeilDiv(slice, kVectors), 32) * 32;
  Launch launch{dim3(static_cast<unsigned>(clusters * blocks)),
                dim3(static_cast<unsigned>(threads)), static_cast<size_t>(bytes())};
  launch.cluster = blocks;
  return launch.Run(call, kernel, op, shape.rows, shape.D, static_cast<int>(slice));
}

// Rows that are read once; *fits is false where they are too long.
template <typename T, bool kAny, typename Op>
int32_t LaunchHeld(AnyopCall* call, RowShape shape, const Op& op, bool* fits) {
  const int64_t vectors = shape.D / kPerVector<T>;
  if constexpr (kInputsOf<Op> > 0) {
    if (vectors > (kInputsOf<Op> > 1 ? 2048 : 4096)) {
      if (int32_t status = LaunchInRing<T>(call, shape, op, fits)) return status;
      if (*fits) return kAnyopOk;
    }
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
        status = LaunchHeld<T, false>(call, shape, make(std::false_type()), &fits);
      } else if constexpr (!kPlain) {
        status = LaunchHeld<T, true>(call, shape, make(std::true_type()), &fits);
      }
      if (fits || status) return status;
    }
  }
  const auto op = make(std::true_type());
  using Op = std::remove_const_t<decltype(op)>;
  const int64_t pieces = fit.columns ? 1 : fit.vectors ? shape.D / kPerVector<T> : shape.D;
  const RowThreads threads(pieces, 4, 1024);  // side by side: a thread for each
  const Launch launch = threads.LaunchFor(shape.rows);
  if constexpr (sizeof(T) < 8) {
    if (fit.vectors)
      return launch.Run(call, RunInStreams<T, kPerVector<T>, Op>, op, shape.rows, shape.D,
                        threads.lanes);
  }
  return launch.Run(call, RunInStreams<T, 1, Op>, op, shape.rows, shape.D, threads.lanes);
}

// Runs make(kAny), an operator, over rows of D elements of T. NULL tensors are left out.
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
