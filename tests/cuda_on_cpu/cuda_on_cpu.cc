// SPDX-License-Identifier: Apache-2.0
// Runs a block's threads as fibers: each until it waits for the others of its warp or block.
#include "cuda_on_cpu.h"

#include <setjmp.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace cuda_on_cpu {
namespace {

constexpr size_t kStackBytes = 64 << 10;
constexpr unsigned kMaxThreads = 1024, kLanes = 32;
constexpr size_t kMaxSharedBytes = 163 << 10;

// Who waits for whom: a generation ends when all that are alive have come.
struct Barrier {
  unsigned alive = 0, here = 0;
  uint64_t generation = 0;
  bool EndsNow() {
    if (here < alive) return false;
    here = 0;
    ++generation;
    return true;
  }
};

struct Fiber {
  ucontext_t context;  // where it begins
  jmp_buf resume;      // where it waits: without the system calls of swapcontext
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  dim3 place;
  const Barrier* waits_for = nullptr;
  uint64_t generation = 0;
  bool begun = false, done = false;
  uint64_t exchanges = 0;
};

struct Block {
  std::vector<Fiber> fibers{kMaxThreads};
  Barrier all, warps[kMaxThreads / kLanes];
  uint64_t slots[kMaxThreads / kLanes][2][kLanes];
  alignas(128) char shared[kMaxSharedBytes];
  jmp_buf scheduler;
  unsigned current = 0;
  const std::function<void()>* kernel = nullptr;
};
Block& block = *new Block;

unsigned WarpOfCurrent() { return block.current / kLanes; }

void Wait(Barrier& barrier) {
  Fiber& fiber = block.fibers[block.current];
  const uint64_t generation = barrier.generation;
  ++barrier.here;
  if (barrier.EndsNow()) return;
  fiber.waits_for = &barrier;
  fiber.generation = generation;
  if (_setjmp(fiber.resume) == 0) _longjmp(block.scheduler, 1);
  fiber.waits_for = nullptr;
}

void RunThread() {
  (*block.kernel)();
  block.fibers[block.current].done = true;
  Barrier& warp = block.warps[WarpOfCurrent()];
  --warp.alive;
  --block.all.alive;
  if (warp.alive && warp.here) warp.EndsNow();
  if (block.all.alive && block.all.here) block.all.EndsNow();
  _longjmp(block.scheduler, 1);
}

void Resume(Fiber& fiber) {
  if (_setjmp(block.scheduler)) return;
  if (fiber.begun) _longjmp(fiber.resume, 1);
  fiber.begun = true;
  setcontext(&fiber.context);
}

void RunBlock(dim3 at, unsigned threads, size_t shared_bytes) {
  blockIdx = at;
  block.all = Barrier{};
  for (Barrier& warp : block.warps) warp = Barrier{};
  std::memset(block.shared, 0xff, shared_bytes);  // NaN: nobody has written it
  for (unsigned t = 0; t < threads; ++t) {
    Fiber& fiber = block.fibers[t];
    fiber.done = false;
    fiber.waits_for = nullptr;
    fiber.exchanges = 0;
    fiber.place = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
    getcontext(&fiber.context);
    fiber.context.uc_stack = {fiber.stack.get(), 0, kStackBytes};
    fiber.context.uc_link = nullptr;
    fiber.begun = false;
    makecontext(&fiber.context, RunThread, 0);
    ++block.all.alive;
    ++block.warps[t / kLanes].alive;
  }
  for (bool any = true; block.all.alive && any;) {
    any = false;
    for (unsigned t = 0; t < threads; ++t) {
      Fiber& fiber = block.fibers[t];
      if (fiber.done) continue;
      if (fiber.waits_for && fiber.waits_for->generation == fiber.generation) continue;
      any = true;
      block.current = t;
      threadIdx = fiber.place;
      Resume(fiber);
    }
  }
  if (block.all.alive == 0) return;
  std::fprintf(stderr, "cuda_on_cpu: the threads of a block wait for one another for ever\n");
  std::abort();
}

}  // namespace

void WaitForBlock() { Wait(block.all); }
void WaitForWarp() {
  ++block.fibers[block.current].exchanges;
  Wait(block.warps[WarpOfCurrent()]);
}
uint64_t* SlotOfWarp(unsigned lane) {
  const Fiber& fiber = block.fibers[block.current];
  return &block.slots[WarpOfCurrent()][fiber.exchanges % 2][lane];
}
void* SharedMemory() { return block.shared; }

int Run(dim3 grid, dim3 size, size_t shared_bytes, const std::function<void()>& kernel) {
  const uint64_t threads = uint64_t{size.x} * size.y * size.z;
  if (threads == 0 || threads > kMaxThreads || shared_bytes > kMaxSharedBytes || grid.x == 0 ||
      grid.x > 0x7fffffff || grid.y == 0 || grid.y > 65535 || grid.z == 0 || grid.z > 65535)
    return cudaErrorInvalidConfiguration;
  blockDim = size;
  gridDim = grid;
  block.kernel = &kernel;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x)
        RunBlock({x, y, z}, static_cast<unsigned>(threads), shared_bytes);
    }
  }
  return cudaSuccess;
}

}  // namespace cuda_on_cpu
