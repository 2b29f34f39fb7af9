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

constexpr int kRun = 4;  // elements that a thread takes at a time

template <typename T>
struct TeamRow : TeamList {
  using TeamList::TeamList;
  using Run = std::conditional_t<sizeof(T) == 4, uint4, uint2>;

  const T* own = nullptr;  // elements of this block: from `begin` to `end` of the row
  int begin = 0, end = 0;

  __device__ static Unpacked<float> FloatsOf(const uint4& run) { return Unpack<float>(run); }
  __device__ static Unpacked<float> FloatsOf(const uint2& run) {
    return {
        {WidenLow(T(), run.x), WidenHigh(T(), run.x), WidenLow(T(), run.y), WidenHigh(T(), run.y)}};
  }
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

  // Lets elements of this block come to the second cache: all of a few blocks', the first of many.
  __device__ void Prefetch(const T* row, int64_t V) const {
#if __CUDA_ARCH__ >= 900
    const int most = gridDim.x > 128 ? 32 << 10 : 128 << 10;
    const int64_t first = int64_t{part} * share, n = V - first < share ? V - first : share;
    const int64_t bytes = n * int64_t{sizeof(T)} / 16 * 16;
    const T* const from = row + first;
    if (threadIdx.x == 0 && bytes > 0 && reinterpret_cast<uintptr_t>(from) % 16 == 0)
      asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from),
                   "r"(static_cast<unsigned>(bytes < most ? bytes : most))
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
                       [&](int v, const Unpacked<float>(&of)[1]) { body(v, of[0].at); });
  }
  // The same of several rows side by side, each from `begin` on: body(v, x of each).
  template <int kCopies, int kRows, typename Body>
  __device__ void EachRunOf(const T* const (&of)[kRows], int runs, float behind,
                            const Body& body) const {
    const T* rows[kRows];
    for (int r = 0; r < kRows; ++r) {
      rows[r] = of[r];
#if ANYOP_PTX
      asm volatile("" : "+l"(rows[r]));  // else a thread's place in it is kept from loop to loop
#endif
    }
#if __CUDA_ARCH__ >= 900
    constexpr int kDeep = kCopies;
#else
    constexpr int kDeep = (kCopies + 1) / 2;  // other GPUs keep more of the rest in registers
#endif
    constexpr int kTrip = kDeep * kTeamThreads;
    bool aligned = true;
    for (const T* row : rows) aligned &= reinterpret_cast<uintptr_t>(row) % sizeof(Run) == 0;
    int whole = aligned ? (end - begin) / kRun : 0;
    if (whole > runs) whole = runs;
    Run bits[kDeep][kRows];
    // Behind the last run it is read once more: a register that keeps its value would wait for it.
    const auto load = [&](int run, int r) {
      return reinterpret_cast<const Run*>(rows[r])[run < whole ? run : whole - 1];
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
        Unpacked<float> wide[kRows];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          wide[r] = FloatsOf(bits[u][r]);
          bits[u][r] = load(run + kTrip, r);
        }
        if (run < whole) body(begin + run * kRun, wide);
      }
    }
#pragma unroll 1
    for (int run = whole + static_cast<int>(threadIdx.x); run < runs; run += kTeamThreads) {
      const int v = begin + run * kRun;
      Unpacked<float> wide[kRows];
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

  // Lists the elements of a run from v on that reach `least`.
  __device__ void ListRun(int v, const float (&x)[kRun], float least) {
    int n = 0;
#pragma unroll
    for (int j = 0; j < kRun; ++j) n += x[j] >= least && v + j < end;
    n = atomicAdd(&shared->listed, n);
#pragma unroll
    for (int j = 0; j < kRun; ++j)
      if (x[j] >= least && v + j < end) Push(n++, x[j], v + j);
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

// How many blocks share a row: as many as run at once with those of the other rows. slots: blocks
// that the device runs at once.
inline int PartsOf(int64_t B, int64_t V, int64_t slots, bool clusters) {
  const int64_t need = V / 4096, fit = slots / B < need ? slots / B : need;
  if (!clusters) return static_cast<int>(fit < 1 ? 1 : fit < kMostParts ? fit : kMostParts);
  // A group's multiprocessors may be too few for one more cluster: an eighth is left out.
  for (int parts : {kClusterParts, kClusterParts / 2})
    if (parts <= need && parts <= slots / 8 * 7 / B) return parts;
  return fit >= 2 ? 2 : 1;
}

// A team's kernel, of which a multiprocessor has kBlocks blocks. Few rows get teams of several
// blocks, which run at once or not at all; then, and of many rows, each is a block's.
template <auto kKernel, int kBlocks, typename Problem>
int32_t RunTeams(AnyopCall* call, int64_t B, int64_t V, Problem problem) {
  Limits limits;
  if (int32_t status = ReadLimits(call, &limits)) return status;
  if (int32_t status = AllowShared<kKernel>(call, sizeof(TeamShared))) return status;
  constexpr int64_t kMostV = 0x7fff0000;  // beyond it, indices of steps would overflow
  if (V > kMostV)
    return call->fail(call, kAnyopValueError,
                      "rows of more than 2147418112 elements; expected fewer");
  const bool clusters = ANYOP_PTX && limits.major >= 9 && kMostParts > 1;
  constexpr int kTaken = sizeof(TeamShared) + 1024;  // of a multiprocessor's shared memory
  const int blocks_of_one = clusters && limits.shared_bytes >= kBlocks * kTaken ? kBlocks : 1;
  const int64_t slots = int64_t{limits.multiprocessors} * blocks_of_one;
  problem.parts = PartsOf(B, V, slots, clusters);
  if (problem.parts > 1) {
    problem.share = static_cast<int>(CeilDiv(CeilDiv(V, problem.parts), 8) * 8);
    const int64_t blocks = B * problem.parts;
    Launch launch{dim3(static_cast<unsigned>(blocks)), dim3(kTeamThreads), sizeof(TeamShared)};
    launch.cooperative = !clusters;
    launch.cluster = clusters ? problem.parts : 1;
    if (!clusters) {
      const int64_t bytes = B * int64_t{sizeof(TeamMemory)};
      const int64_t lists = blocks * kListed * int64_t{sizeof(Place)};
      auto* memory = static_cast<char*>(call->workspace(call, bytes + lists));
      if (!memory) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
      problem.memory = reinterpret_cast<TeamMemory*>(memory);
      problem.lists = reinterpret_cast<Place*>(memory + bytes);
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
