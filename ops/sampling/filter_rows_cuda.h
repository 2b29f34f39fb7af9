// SPDX-License-Identifier: Apache-2.0
// Rows of the sampling operators on CUDA: a team of blocks has a row, each a part of it. What may
// matter goes to a list in shared memory while the row is read for the first time; then each block
// has the lists of all, and the row is read no more. Where the list does not hold it, the last
// token that a filter keeps is found by counting digits of the whole row, which is read again from
// the second cache.
#pragma once

#include "listed_cuda.h"

namespace anyop::cuda {
namespace {

template <typename T>
struct TeamRow : TeamList {
  using TeamList::TeamList;
  static constexpr int kRun = kPerVector<T>;
  static constexpr int kAhead = sizeof(T) == 4 ? 4 : 2;  // runs of a thread on their way

  const T* own = nullptr;  // elements of this block: from `begin` to `end` of the row
  int begin = 0, end = 0;

  __device__ float At(int v) const { return Widen(own[v - begin]); }

  __device__ void Begin(const T* row, int64_t V) {
    begin = part * share;
    own = row + begin;
    end = V - begin < share ? static_cast<int>(V) : begin + share;
    listed = -1;
    if (threadIdx.x == 0)
      shared->listed = kListed + 1, shared->limit = shared->most = 0,
      shared->count = shared->bad = 0;
    __syncthreads();
  }

  // Lets elements of this block, the first ones of many, come to the second cache.
  __device__ void Prefetch(const T* row, int64_t V) const {
#if __CUDA_ARCH__ >= 900
    constexpr int64_t kMost = 128 << 10;
    const int64_t first = int64_t{part} * share, n = V - first < share ? V - first : share;
    const int64_t bytes = n * int64_t{sizeof(T)} / 16 * 16;
    const T* const from = row + first;
    if (threadIdx.x == 0 && bytes > 0 && reinterpret_cast<uintptr_t>(from) % 16 == 0)
      asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from),
                   "r"(static_cast<unsigned>(bytes < kMost ? bytes : kMost))
                   : "memory");
#endif
  }

  // body(v, x) of each run of kRun elements from v on, of the first `runs` of this block; behind
  // its end they are `behind`. kCopies: of the body, whose code is read from memory in a launch; 1
  // of a long one.
  template <int kCopies = 1, typename Body>
  __device__ void EachRun(int runs, float behind, const Body& body) const {
    const T* const rows[] = {own};
    EachRunOf<kCopies>(rows, runs, behind,
                       [&](int v, const Unpacked<T>(&of)[1]) { body(v, of[0].at); });
  }
  // The same of several rows side by side, each from `begin` on: body(v, x of each).
  template <int kCopies, int kRows, typename Body>
  __device__ void EachRunOf(const T* const (&rows)[kRows], int runs, float behind,
                            const Body& body) const {
#if __CUDA_ARCH__ >= 900
    constexpr int kDeep = kCopies;
#else
    constexpr int kDeep = (kCopies + 1) / 2;  // other GPUs keep more of the rest in registers
#endif
    constexpr int kTrip = kDeep * kTeamThreads;
    bool aligned = true;
    for (const T* row : rows) aligned &= reinterpret_cast<uintptr_t>(row) % 16 == 0;
    int whole = aligned ? (end - begin) / kRun : 0;
    if (whole > runs) whole = runs;
    uint4 bits[kDeep][kRows];
    // Behind the last run it is read once more: a register that keeps its value would wait for it.
    const auto load = [&](int run, int r) {
      return reinterpret_cast<const uint4*>(rows[r])[run < whole ? run : whole - 1];
    };
    if (static_cast<int>(threadIdx.x) < whole) {
#pragma unroll
      for (int u = 0; u < kDeep; ++u)
#pragma unroll
        for (int r = 0; r < kRows; ++r) bits[u][r] = load(threadIdx.x + u * kTeamThreads, r);
    }
#pragma unroll 1
    for (int first = threadIdx.x; first < whole; first += kTrip) {
#pragma unroll
      for (int u = 0; u < kDeep; ++u) {
        const int run = first + u * kTeamThreads;
        Unpacked<T> wide[kRows];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          wide[r] = Unpack<T>(bits[u][r]);
          bits[u][r] = load(run + kTrip, r);
        }
        if (run < whole) body(begin + run * kRun, wide);
      }
    }
#pragma unroll 1
    for (int run = whole + static_cast<int>(threadIdx.x); run < runs; run += kTeamThreads) {
      const int v = begin + run * kRun;
      Unpacked<T> wide[kRows];
#pragma unroll
      for (int j = 0; j < kRun; ++j)
#pragma unroll
        for (int r = 0; r < kRows; ++r)
          wide[r].at[j] = v + j < end ? Widen(rows[r][v - begin + j]) : behind;
      body(v, wide);
    }
  }
  __device__ int runs() const { return (end - begin + kRun - 1) / kRun; }

  // body(place) of each element of this block.
  template <typename Body>
  __device__ void Each(const Body& body) const {
    EachRun(runs(), 0, [&](int v, const float (&x)[kRun]) {
#pragma unroll
      for (int j = 0; j < kRun; ++j)
        if (v + j < end) body(PlaceOf(x[j], static_cast<uint32_t>(v + j)));
    });
  }

  // The sum of measures of what is at least `from`, by one more reading.
  template <typename Measure>
  __device__ Sum SumFrom(Place from, const Measure& measure) {
    Sum own = 0;
    Each([&](Place place) { own += place >= from ? measure(place) : 0; });
    return SumOfTeam(own);
  }

  // Lists the elements of listed runs that reach `least`.
  __device__ void ListRuns(float least) {
    __syncthreads();
    const int runs = shared->count;
    if (runs > kListedRuns && threadIdx.x == 0) shared->listed = kListed + 1;
#pragma unroll 1
    for (int i = threadIdx.x; i < runs && runs <= kListedRuns; i += kTeamThreads) {
      const int first = shared->runs[i];
      float its[kRun];
#pragma unroll
      for (int j = 0; j < kRun; ++j) its[j] = first + j < end ? At(first + j) : NAN;
      int n = 0;
#pragma unroll
      for (int j = 0; j < kRun; ++j) n += its[j] >= least;
      n = atomicAdd(&shared->listed, n);
#pragma unroll
      for (int j = 0; j < kRun; ++j)
        if (its[j] >= least) Push(n++, its[j], first + j);
    }
    __syncthreads();
    if (threadIdx.x == 0) shared->count = 0;
  }
  // Lists a run.
  __device__ void ListRun(int v) {
    const int at = atomicAdd(&shared->count, 1);
    if (at < kListedRuns) shared->runs[at] = v;
  }

  // The place of the last element that is needed, from the greatest on, until measures reach
  // wanted; or one before which there is none but it. What is behind `from` is left out. Where all
  // do not reach it: from.
  template <typename Measure>
  __device__ Place FindCounted(Place from, Sum wanted, const Measure& measure) {
    Place prefix = 0, mask = 0;
#pragma unroll 1
    for (int level = 0; level < sampling::kLevels; ++level) {
#pragma unroll 1
      for (int i = threadIdx.x; i < kDigits; i += kTeamThreads) shared->sums[i] = 0;
      __syncthreads();
      Each([&](Place place) {
        if (place < from || (place & mask) != prefix) return;
        if (const Sum own = measure(place)) atomicAdd(&shared->sums[DigitOf(place, level)], own);
      });
      JoinSums();
      const Digits digits = SumDigits();
      if (digits.all < wanted) return from;
      FindDigit(digits, wanted, shared->found);
      __syncthreads();
      wanted -= shared->found[1];
      prefix |= static_cast<Place>(shared->found[0]) << sampling::ShiftOf(level);
      mask |= static_cast<Place>(kDigits - 1) << sampling::ShiftOf(level);
      const bool is_all = shared->found[2] == wanted;
      __syncthreads();
      if (is_all) break;
    }
    return prefix;
  }

  // The place of the k-th element, or one before which there is none but it.
  __device__ Place FindCountedFirst(int64_t k) {
    return FindCounted(0, static_cast<Sum>(k), [](Place) { return Sum{1}; });
  }
};

// A team's kernel. Few rows get teams of several blocks,
// which run at once or not at all; then, and of many rows, each is a block's.
template <auto kKernel, typename Problem>
int32_t RunTeams(AnyopCall* call, int64_t B, int64_t V, Problem problem) {
  Limits limits;
  if (int32_t status = ReadLimits(call, &limits)) return status;
  if (int32_t status = AllowShared<kKernel>(call, sizeof(TeamShared))) return status;
  constexpr int64_t kMostV = 0x7fff0000;  // beyond it, indices of steps would overflow
  if (V > kMostV)
    return call->fail(call, kAnyopValueError,
                      "rows of more than 2147418112 elements; expected fewer");
  const bool clusters = ANYOP_PTX && limits.major >= 9;
  const int fit = static_cast<int>(limits.multiprocessors / B);
  const int need = static_cast<int>(V / 4096);
  const int most = clusters && kMostParts > kClusterParts ? kClusterParts : kMostParts;
  problem.parts = fit < need ? fit : need;
  if (problem.parts > most) problem.parts = most;
  if (problem.parts > 1) {
    problem.share = static_cast<int>(CeilDiv(CeilDiv(V, problem.parts), 8) * 8);
    const int64_t blocks = B * problem.parts, bytes = B * int64_t{sizeof(TeamMemory)};
    const int64_t lists = clusters ? 0 : blocks * kListed * int64_t{sizeof(Place)};
    auto* memory = static_cast<char*>(call->workspace(call, bytes + lists));
    if (!memory) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
    problem.memory = reinterpret_cast<TeamMemory*>(memory);
    problem.lists = reinterpret_cast<Place*>(memory + bytes);
    Launch launch{dim3(static_cast<unsigned>(blocks)), dim3(kTeamThreads), sizeof(TeamShared)};
    launch.cooperative = !clusters;
    launch.cluster = clusters ? problem.parts : 1;
    if (!clusters) {
      if (int32_t status = Check(call, cudaMemsetAsync(memory, 0, bytes, StreamOf(call)),
                                 "clearing its workspace"))
        return status;
    }
    const cudaError_t started = launch.Start(call, kKernel, problem);
    if (!clusters && started != cudaErrorCooperativeLaunchTooLarge &&
        started != cudaErrorNotSupported)
      return Check(call, started, "starting its kernel");
    if (started == cudaSuccess) return kAnyopOk;
    cudaGetLastError();  // others have a share of the device
  }
  problem.parts = 1;
  problem.share = static_cast<int>(V);
  const int64_t blocks = B < 65535 ? B : 65535;
  const Launch launch{dim3(static_cast<unsigned>(blocks)), dim3(kTeamThreads), sizeof(TeamShared)};
  return launch.Run(call, kKernel, problem);
}

}  // namespace
}  // namespace anyop::cuda
