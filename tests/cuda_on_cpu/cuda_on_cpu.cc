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
constexpr size_t kMaxSharedBytes = kSharedBytes;
constexpr uint64_t kMaxPolls = uint64_t{1} << 28;  // of one block: a second or two

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
  alignas(1024) char shared[kMaxSharedBytes];
  dim3 place;
  unsigned current = 0;
};
std::vector<std::unique_ptr<Block>> blocks;  // kept for later launches
Block* block = nullptr;                      // that runs
Barrier grid;
uint64_t blocks_begun = 0, polls = 0;
jmp_buf scheduler;
const std::function<void()>* kernel_of_threads = nullptr;

unsigned WarpOfCurrent() { return block->current / kLanes; }

void Wait(Barrier& barrier) {
  Fiber& fiber = block->fibers[block->current];
  const uint64_t generation = barrier.generation;
  ++barrier.here;
  if (barrier.EndsNow()) return;
  fiber.waits_for = &barrier;
  fiber.generation = generation;
  if (_setjmp(fiber.resume) == 0) _longjmp(scheduler, 1);
  fiber.waits_for = nullptr;
}

void RunThread() {
  (*kernel_of_threads)();
  block->fibers[block->current].done = true;
  Barrier& warp = block->warps[WarpOfCurrent()];
  --warp.alive;
  --block->all.alive;
  --grid.alive;
  if (warp.alive && warp.here) warp.EndsNow();
  if (block->all.alive && block->all.here) block->all.EndsNow();
  if (grid.alive && grid.here) grid.EndsNow();
  _longjmp(scheduler, 1);
}

void Resume(Fiber& fiber) {
  if (_setjmp(scheduler)) return;
  if (fiber.begun) _longjmp(fiber.resume, 1);
  fiber.begun = true;
  setcontext(&fiber.context);
}

void Prepare(dim3 at, unsigned threads, size_t shared_bytes) {
  ++blocks_begun;
  polls = 0;
  block->place = at;
  block->all = Barrier{};
  for (Barrier& warp : block->warps) warp = Barrier{};
  std::memset(block->shared, 0xff, shared_bytes);  // NaN: nobody has written it
  for (unsigned t = 0; t < threads; ++t) {
    Fiber& fiber = block->fibers[t];
    fiber.done = false;
    fiber.waits_for = nullptr;
    fiber.exchanges = 0;
    fiber.place = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
    getcontext(&fiber.context);
    fiber.context.uc_stack = {fiber.stack.get(), 0, kStackBytes};
    fiber.context.uc_link = nullptr;
    fiber.begun = false;
    makecontext(&fiber.context, RunThread, 0);
    ++block->all.alive;
    ++block->warps[t / kLanes].alive;
  }
  grid.alive += threads;
}

[[noreturn]] void EndOfWaiting() {
  std::fprintf(stderr, "cuda_on_cpu: threads wait for one another for ever\n");
  std::abort();
}

// Each thread of the block until it waits; false where none could run.
bool RunOnce(unsigned threads) {
  bool any = false;
  blockIdx = block->place;
  for (unsigned t = 0; t < threads; ++t) {
    Fiber& fiber = block->fibers[t];
    if (fiber.done) continue;
    if (fiber.waits_for && fiber.waits_for->generation == fiber.generation) continue;
    any = true;
    block->current = t;
    threadIdx = fiber.place;
    Resume(fiber);
  }
  return any;
}

void RunBlocks(const std::vector<dim3>& places, unsigned threads, size_t shared_bytes) {
  while (blocks.size() < places.size()) blocks.push_back(std::make_unique<Block>());
  grid = Barrier{};
  for (size_t i = 0; i < places.size(); ++i) {
    block = blocks[i].get();
    Prepare(places[i], threads, shared_bytes);
  }
  for (bool any = true; grid.alive && any;) {
    any = false;
    for (size_t i = 0; i < places.size(); ++i) {
      block = blocks[i].get();
      any |= RunOnce(threads);
    }
  }
  if (grid.alive > 0) EndOfWaiting();
}

}  // namespace

void WaitForBlock() { Wait(block->all); }
void WaitForWarp() {
  ++block->fibers[block->current].exchanges;
  Wait(block->warps[WarpOfCurrent()]);
}
uint64_t* SlotOfWarp(unsigned lane) {
  const Fiber& fiber = block->fibers[block->current];
  return &block->slots[WarpOfCurrent()][fiber.exchanges % 2][lane];
}
void WaitForGrid() { Wait(grid); }
void Poll() {
  if (++polls > kMaxPolls) EndOfWaiting();
  if (_setjmp(block->fibers[block->current].resume) == 0) _longjmp(scheduler, 1);
}
uint64_t BlocksBegun() { return blocks_begun; }
void* SharedMemory() { return block->shared; }

int Run(dim3 size, dim3 threads_of, size_t shared_bytes, bool at_once,
        const std::function<void()>& kernel) {
  const uint64_t threads = uint64_t{threads_of.x} * threads_of.y * threads_of.z;
  if (threads == 0 || threads > kMaxThreads || shared_bytes > kMaxSharedBytes || size.x == 0 ||
      size.x > 0x7fffffff || size.y == 0 || size.y > 65535 || size.z == 0 || size.z > 65535)
    return cudaErrorInvalidConfiguration;
  blockDim = threads_of;
  gridDim = size;
  kernel_of_threads = &kernel;
  std::vector<dim3> places;
  for (unsigned z = 0; z < size.z; ++z) {
    for (unsigned y = 0; y < size.y; ++y) {
      for (unsigned x = 0; x < size.x; ++x) {
        places.push_back({x, y, z});
        if (at_once) continue;
        RunBlocks(places, static_cast<unsigned>(threads), shared_bytes);
        places.clear();
      }
    }
  }
  if (at_once) RunBlocks(places, static_cast<unsigned>(threads), shared_bytes);
  return cudaSuccess;
}

}  // namespace cuda_on_cpu
