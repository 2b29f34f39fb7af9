/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of CUDA kernels whose columns are summed as well, as the gradient of a norm's weight is. */
#ifndef ANYOP_CUDA_ROW_SUMS_H_
#define ANYOP_CUDA_ROW_SUMS_H_

#include "anyop/cuda/parts.h"
#include "anyop/cuda/summing_row.h"

// The operator is as in cuda/row.h, with these besides:
//
//   static constexpr int kInputs = 2, kSums = 1, kColumns = 1;
//   static constexpr bool kPlain = !kAny;
//   RowsAt<kAny> in[kInputs];
//   template <typename Row, typename Sums, typename Release, typename Column>
//   __device__ void operator()(Row& row, Sums& sums, const Release& release,
//                              const Column& column) const {
//     const auto v = row.ReadAll(in);
//     W totals[2] = {};  // 1, 2 or 4
//     row.ForEach([&](W a, W b, W w) { totals[0] += ...; }, v[0], v[1], column);
//     row.Totals(totals);
//     release();                               // the inputs are read: what comes next is fetched
//     const Notes<W> notes = row.Note(scale);  // what AddColumn needs of the row
//     row.WriteAndAdd(*this, out, sums, notes, f, v, column);
//   }
//   __device__ static void AddColumn(W (&sums)[kSums], const Notes<W>& notes,
//                                    const W (&in)[kInputs], W w);
//   template <typename F>
//   __device__ auto WithColumns(const F& f) const { return f(weight); }
//
// f and AddColumn get the inputs of a column as an array, then those of WithColumns, which come to
// the operator as they are held: a thread keeps its columns from row to row. Totals, or a barrier
// of the block, stands between ReadAll and release.
//
// Who does what: as many blocks as fit stay on the device and walk over rows, which are copied to
// shared memory ahead (cuda/ring.h); a thread keeps the sums of its columns in registers. Short
// rows are shared by lanes of a warp, without the copies, long ones by the blocks of a cluster
// (Hopper), each of which takes a slice of the columns. Each walker writes its sums as a part, and
// the parts are added in order: by the same blocks where they wait for one another, which is half a
// launch cheaper, else by a second kernel. Rows that are too long or not aligned are read again for
// their columns, by blocks that walk down some columns.
namespace anyop::cuda {

// ---- kernels ----

// Whether a thread has registers for its columns besides its sums and its part of a row.
template <typename T, int kVectors, typename Op>
constexpr bool kHasRegisters =
    kVectors * (kPerVector<T> * (Op::kSums + Op::kColumns) + 4 * Op::kInputs) <= 96;

// Blocks that share a row, a cluster, take `slice` of its vectors each; they walk over rows walker,
// walker + walkers, ...
template <typename T, int kVectors, typename Op>
__global__ void __launch_bounds__(kMaxSummingThreads, 1)
    SumInRing(const __grid_constant__ Op op, int64_t rows, int vectors, int slice, int slices,
              int stages, Wide<T>* parts, const __grid_constant__ PartsToAdd<Op::kSums> add,
              bool adds) {
  __shared__ Meeting<Wide<T>> meeting;
  __shared__ __align__(8) uint64_t barriers[RowRing<Op::kInputs>::kMaxStages];
  const int walker = static_cast<int>(blockIdx.x) / slices;
  const int first = (static_cast<int>(blockIdx.x) - walker * slices) * slice;
  const int count = vectors - first < slice ? vectors - first : slice;
  SummingRow<T, kVectors, Op::kInputs> row(0, meeting, {first, count, vectors, slices});
  const auto row_of = [&](int input, int64_t r) {
    return reinterpret_cast<const uint4*>(op.in[input].At(r)) + first;
  };
  RowRing<Op::kInputs> ring(DynamicShared(), barriers, stages, count);
  const int step = static_cast<int>(gridDim.x) / slices;
  LetNextStart();  // it waits for the end of this one where there is room
  row.Start();
  ring.Start(walker, step, rows, row_of);
  HeldSums<T, kVectors, Op::kSums> sums;
  const auto walk = [&](const auto&... columns) {
    for (int64_t r = walker; r < rows; r += step) {
      row.Take(r, rows, ring.Wait(0));
      op(row, sums, [&] { ring.Refill(r + stages * step, rows, row_of); }, columns...);
    }
  };
  op.WithColumns([&](const auto&... columns) {
    constexpr bool kKeeps = Op::kPlain && kHasRegisters<T, kVectors, Op>;
    walk(row.template Hold<kKeeps>(columns)...);
  });
  if (!parts) return;
  row.WritePart(sums, parts, walker);
  if (!adds) return;
  WaitForGrid();
  AddParts<Wide<T>, 4>(parts, add, reinterpret_cast<Wide<T>*>(DynamicShared()));
}

// The lanes of a warp that share rows walk over them.
template <typename T, typename Op>
__global__ void __launch_bounds__(128)
    SumInLanes(const __grid_constant__ Op op, int64_t rows, int64_t D, int lanes, Wide<T>* parts) {
  __shared__ Meeting<Wide<T>> meeting;
  const int vectors = static_cast<int>(D / kPerVector<T>);
  SummingRow<T, 1, Op::kInputs> row(lanes, meeting, {0, vectors, vectors, 1});
  const int of_block = blockDim.x / lanes, mine = threadIdx.x / lanes;
  LetNextStart();
  HeldSums<T, 1, Op::kSums> sums;
  const auto walk = [&](const auto&... columns) {
    for (int64_t first = int64_t{blockIdx.x} * of_block; first < rows;
         first += int64_t{gridDim.x} * of_block) {
      row.Take(first + mine, rows, nullptr);
      op(row, sums, [] {}, columns...);
    }
  };
  op.WithColumns([&](const auto&... columns) { walk(row.template Hold<true>(columns)...); });
  if (parts) row.WritePart(sums, parts, int64_t{blockIdx.x} * of_block + mine);
}

template <typename T, int kPiece, typename Op>
__global__ void __launch_bounds__(1024)
    NoteRows(const __grid_constant__ Op op, int64_t rows, int64_t D, int lanes, Wide<T>* notes) {
  __shared__ Partials<Wide<T>> partials;
  NotingRow<T, kPiece, Op::kInputs> row(lanes, partials, D, notes, rows);
  NoSums none;
  const int of_block = blockDim.x / lanes;
  for (int64_t first = int64_t{blockIdx.x} * of_block; first < rows;
       first += int64_t{gridDim.x} * of_block) {
    row.Take(first + threadIdx.x / lanes, rows);
    op.WithColumns([&](const auto&... columns) { op(row, none, [] {}, row.Columns(columns)...); });
  }
}

constexpr int kRowLanes = 8;  // threads that share columns

// add(notes, inputs, columns...) of each row of this thread.
template <typename T, int kPer, typename Op, typename F, typename... Columns>
__device__ void AddRows(const Op& op, int64_t rows, int64_t d, const Wide<T>* notes, const F& add,
                        const Columns&... columns) {
  using W = Wide<T>;
  const int64_t step = int64_t{gridDim.y} * kRowLanes;
#pragma unroll 2
  for (int64_t row = int64_t{blockIdx.y} * kRowLanes + threadIdx.y; row < rows; row += step) {
    Piece<W, kPer> v[Op::kInputs];
#pragma unroll
    for (int n = 0; n < Op::kInputs; ++n)
      v[n] = ReadPieceOf<T, kPer, true>(op.in[n], op.in[n].At(row), d);
    add(Notes<W>{{notes[row], notes[rows + row]}}, v, columns...);
  }
}

// Block (b, c): 32 pieces of columns from 32 b on, rows c * kRowLanes + lane, ... of every
// gridDim.y * kRowLanes.
template <typename T, int kPer, typename Op>
__global__ void __launch_bounds__(32 * kRowLanes)
    SumDownColumns(const __grid_constant__ Op op, int64_t rows, int64_t D, const Wide<T>* notes,
                   Wide<T>* parts) {
  using W = Wide<T>;
  __shared__ W shared[kRowLanes][Op::kSums][kPer][32];
  const int64_t d = (int64_t{blockIdx.x} * 32 + threadIdx.x) * kPer;
  W sums[kPer][Op::kSums] = {};
  const auto add = [&](const Notes<W>& noted, const Piece<W, kPer>(&v)[Op::kInputs],
                       const auto&... columns) {
#pragma unroll
    for (int k = 0; k < kPer; ++k) {
      W each[Op::kInputs];
#pragma unroll
      for (int n = 0; n < Op::kInputs; ++n) each[n] = v[n].at[k];
      Op::AddColumn(sums[k], noted, each, columns.at[k]...);
    }
  };
  op.WithColumns([&](const auto&... columns) {
    if (d < D) AddRows<T, kPer>(op, rows, d, notes, add, ReadColumns<kPer, W>(columns, d)...);
  });
#pragma unroll
  for (int s = 0; s < Op::kSums; ++s) {
#pragma unroll
    for (int k = 0; k < kPer; ++k) shared[threadIdx.y][s][k][threadIdx.x] = sums[k][s];
  }
  __syncthreads();
  if (threadIdx.y || d >= D) return;
#pragma unroll
  for (int s = 0; s < Op::kSums; ++s) {
#pragma unroll
    for (int k = 0; k < kPer; ++k) {
      W sum = sums[k][s];
      for (int i = 1; i < kRowLanes; ++i) sum += shared[i][s][k][threadIdx.x];
      parts[(int64_t{blockIdx.y} * Op::kSums + s) * D + d + k] = sum;
    }
  }
}

// ---- launches ----

// A call: what RunRowsAndSums goes through, one step after the other.
template <typename T, int kSums>
struct SummingCall {
  using W = Wide<T>;
  AnyopCall* call;
  RowShape shape;
  SumsTo<kSums> to;
  Limits limits = {};

  bool WantsSums() const {
    for (const char* data : to.data) {
      if (data) return true;
    }
    return false;
  }
  W* Workspace(int64_t count) const {
    return static_cast<W*>(call->workspace(call, count * int64_t{sizeof(W)}));
  }
  int32_t Add(const W* parts, int64_t count, bool overlaps) const {
    return RunAddParts(call, parts, to, count, shape.D, overlaps);
  }

  template <int kVectors, typename Op>
  int32_t InRing(const Op& op, int slice, int slices, int threads, int stages, bool* fits) const {
    const auto kernel = SumInRing<T, kVectors, Op>;
    const int of_ring = stages * Op::kInputs * 16 * slice, of_sums = BytesToAdd<W>(threads, 4);
    const int bytes = of_ring > of_sums ? of_ring : of_sums;
    if (int32_t status = Check(
            call, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
            "asking for shared memory"))
      return status;
    Launch launch{dim3(static_cast<unsigned>(slices)), dim3(threads), static_cast<size_t>(bytes),
                  false, slices};
    int walkers = limits.multiprocessors * (kMaxSummingThreads / threads);
    if (slices > 1) {
      if (int32_t status = launch.CountClusters(call, kernel, &walkers)) return status;
      *fits = walkers > 0;
      if (!*fits) return kAnyopOk;
    }
    // Equally many rows for every walker: no turn that only a few of them take.
    const int64_t turns = CeilDiv(shape.rows, walkers), count = CeilDiv(shape.rows, turns);
    W* parts = WantsSums() ? Workspace(count * kSums * shape.D) : nullptr;
    if (WantsSums() && !parts) return kAnyopOutOfMemory;
    launch.grid = dim3(static_cast<unsigned>(count * slices));
    const int vectors = static_cast<int>(shape.D / kPerVector<T>);
    const PartsToAdd<kSums> add(to, shape.D, count, count, 4, threads);
    const auto start = [&](bool adds) {
      launch.cooperative = adds;
      return launch.Start(call, kernel, op, shape.rows, vectors, slice, slices, stages, parts, add,
                          adds);
    };
    bool adds = parts && slices == 1;
    cudaError_t started = start(adds);
    if (adds &&
        (started == cudaErrorCooperativeLaunchTooLarge || started == cudaErrorNotSupported)) {
      cudaGetLastError();  // others have a share of the device
      started = start(adds = false);
    }
    if (int32_t status = Check(call, started, "starting its kernel")) return status;
    return parts && !adds ? Add(parts, count, limits.major >= 9) : kAnyopOk;
  }

  // Rows of 33 vectors and more; *fits is false where they are too long, or shared memory is too
  // small for them.
  template <typename Op>
  int32_t RunInRing(const Op& op, bool* fits) const {
    constexpr int64_t kKept = 2048;  // of each block, for its own variables and the system
    constexpr int64_t kMaxStages = 3, kOfTwo = 2 * kMaxSummingThreads, kOfFour = 2 * kOfTwo;
    const int64_t vectors = shape.D / kPerVector<T>;
    int slices = 1;
    if (limits.major >= 9) {
      while (slices < kMaxSlices && vectors > slices * (kHasRegisters<T, 4, Op> ? kOfFour : kOfTwo))
        slices *= 2;
    }
    const int64_t slice = CeilDiv(vectors, slices);
    *fits = slice <= kOfFour;
    if (!*fits) return kAnyopOk;
    const int of_thread = slice > kOfTwo ? 4 : 2;
    int threads = static_cast<int>(CeilDiv(CeilDiv(slice, of_thread), 32) * 32);
    if (threads < 64) threads = 64;  // so that threads meet at barriers of the block
    const int64_t room = limits.shared_bytes / (kMaxSummingThreads / threads) - kKept,
                  most = limits.shared_bytes_of_block - kKept;
    int64_t stages = (room < most ? room : most) / (Op::kInputs * 16 * slice);
    *fits = stages >= 1;
    if (!*fits) return kAnyopOk;
    if (stages > kMaxStages) stages = kMaxStages;
    const int s = static_cast<int>(slice), n = static_cast<int>(stages);
    // Not plain: one kernel for both, whose threads take the same columns.
    if constexpr (Op::kPlain) {
      if (of_thread == 2) return InRing<2>(op, s, slices, threads, n, fits);
    }
    return InRing<4>(op, s, slices, threads, n, fits);
  }

  // Rows of up to 32 vectors.
  template <typename Op>
  int32_t RunInLanes(const Op& op) const {
    const RowThreads threads(shape.D / kPerVector<T>, 1, 32);
    const int64_t of_block = threads.threads / threads.lanes;
    const int64_t most = int64_t{limits.multiprocessors} * 8,
                  needed = CeilDiv(shape.rows, of_block);
    const int64_t blocks = needed < most ? needed : most;
    W* parts = WantsSums() ? Workspace(blocks * of_block * kSums * shape.D) : nullptr;
    if (WantsSums() && !parts) return kAnyopOutOfMemory;
    const Launch launch{dim3(static_cast<unsigned>(blocks)), dim3(threads.threads)};
    if (int32_t status =
            launch.Run(call, SumInLanes<T, Op>, op, shape.rows, shape.D, threads.lanes, parts))
      return status;
    return parts ? Add(parts, blocks * of_block, limits.major >= 9) : kAnyopOk;
  }

  template <int kPer, typename Op>
  int32_t RunInStreams(const Op& op) const {
    W* notes = nullptr;
    if (WantsSums()) {
      notes = Workspace(shape.rows * 2);
      if (!notes) return kAnyopOutOfMemory;
    }
    const RowThreads threads(shape.D / kPer, 4, 1024);
    using Element = std::conditional_t<kPer == 1, W, T>;  // one by one: of any dtype
    if (int32_t status = threads.LaunchFor(shape.rows)
                             .Run(call, NoteRows<Element, kPer, Op>, op, shape.rows, shape.D,
                                  threads.lanes, notes))
      return status;
    if (!notes) return kAnyopOk;
    // Enough blocks for the device, no more parts than needed for that.
    const int64_t blocks = CeilDiv(shape.D, 32 * kPer);
    const int64_t wanted = CeilDiv(int64_t{limits.multiprocessors} * 8, blocks);
    const int64_t most = CeilDiv(shape.rows, kRowLanes);
    const int64_t count = wanted < most ? wanted : most;
    W* parts = Workspace(count * kSums * shape.D);
    if (!parts) return kAnyopOutOfMemory;
    const Launch launch{dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(count)),
                        dim3(32, kRowLanes)};
    const W* noted = notes;
    if (int32_t status = launch.Run(call, SumDownColumns<Element, kPer, Op>, op, shape.rows,
                                    shape.D, noted, parts))
      return status;
    return Add(parts, count, false);
  }
};

// Runs make(zero, kAny) as RunRows does, and writes the sums over rows to `sums`.
template <typename T, typename Make, size_t kRead, size_t kWritten, size_t kColumns, size_t kSums>
int32_t RunRowsAndSums(AnyopCall* call, RowShape shape, const AnyopTensor* const (&read)[kRead],
                       const AnyopTensor* const (&written)[kWritten],
                       const AnyopTensor* const (&columns)[kColumns],
                       const AnyopTensor* const (&sums)[kSums], const Make& make) {
  SummingCall<T, static_cast<int>(kSums)> run = {call, shape, {}};
  for (size_t s = 0; s < kSums; ++s) {
    run.to.data[s] = sums[s] ? static_cast<char*>(sums[s]->data) : nullptr;
    run.to.dtype[s] = sums[s] ? AnyopDtypeOf(sums[s]) : kAnyopNoDtype;
  }
  if (shape.D == 0) return kAnyopOk;
  if (shape.D > int64_t{32} * 0x7fffffff)  // more blocks than a grid has
    return call->fail(call, kAnyopNotImplemented, "rows are longer than 2^36");
  if (shape.rows == 0) return run.WantsSums() ? run.Add(nullptr, 0, false) : kAnyopOk;
  if (int32_t status = ReadLimits(call, &run.limits)) return status;
  const RowsFit fit = FitRows<T>(shape, read, written, columns);
  const int64_t vectors = shape.D / kPerVector<T>;
  if constexpr (sizeof(T) < 8) {  // as in RunRows
    if (fit.vectors && fit.one_stride && vectors <= 32)
      return fit.plain ? run.RunInLanes(make(T(), std::false_type()))
                       : run.RunInLanes(make(T(), std::true_type()));
    if (fit.vectors && fit.one_stride) {
      bool fits = false;
      const int32_t status = fit.plain ? run.RunInRing(make(T(), std::false_type()), &fits)
                                       : run.RunInRing(make(T(), std::true_type()), &fits);
      if (fits || status) return status;
    }
  }
  if constexpr (sizeof(T) < 8) {
    if (fit.vectors) return run.template RunInStreams<kPerVector<T>>(make(T(), std::true_type()));
  }
  return run.template RunInStreams<1>(make(Wide<T>(), std::true_type()));
}

}  // namespace anyop::cuda

#endif  // ANYOP_CUDA_ROW_SUMS_H_
