// SPDX-License-Identifier: Apache-2.0
// Cached memory on the host's device: who gets a block again and when, numbers, running out,
// threads.
#include "caching_allocator.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>

#include "anyop/anyop.h"
#include "tests/check.h"

namespace {

constexpr int64_t kMiB = 1 << 20;
const AnyopDevice* host = AnyopFindDeviceByName("host");

void* Take(int64_t bytes, void* stream = nullptr, int32_t index = 0) {
  void* memory = nullptr;
  CHECK_EQ(AnyopDeviceMalloc(host, index, stream, bytes, &memory), kAnyopOk);
  return memory;
}
void Give(void* memory, int32_t index = 0) {
  CHECK_EQ(AnyopDeviceFree(host, index, memory), kAnyopOk);
}
AnyopMemoryStats Stats(int32_t index = 0) {
  AnyopMemoryStats stats = {};
  stats.size = sizeof stats;
  CHECK_EQ(AnyopDeviceMemoryStats(host, index, &stats), kAnyopOk);
  return stats;
}
void* NewStream() {
  void* stream = nullptr;
  CHECK_EQ(host->create_stream(0, &stream), kAnyopOk);
  return stream;
}
void Sleep(void* ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(reinterpret_cast<intptr_t>(ms)));
}
void Delay(void* stream, intptr_t ms) {
  CHECK_EQ(host->launch_host(0, stream, Sleep, reinterpret_cast<void*>(ms)), kAnyopOk);
}

TEST(AStreamGetsItsBlockAgain) {
  void* const other = NewStream();
  void* const first = Take(1000);
  CHECK(reinterpret_cast<uintptr_t>(first) % 512 == 0);
  CHECK_EQ(AnyopDeviceBlockBytes(host, 0, first), 1024);
  Give(first);
  void* const foreign = Take(1000, other);
  CHECK(foreign != first);
  void* const again = Take(600);  // the same size once it is rounded up
  CHECK(again == first);
  Give(again);
  Give(foreign);
  CHECK(Take(0) == nullptr);
  Give(nullptr);
  CHECK_EQ(host->destroy_stream(0, other), kAnyopOk);
}

TEST(BlocksAreSplitAndJoined) {
  CHECK_EQ(AnyopDeviceEmptyCache(host, 0), kAnyopOk);
  CHECK_EQ(Stats().reserved_bytes, 0);
  void* blocks[4];
  for (void*& block : blocks) block = Take(kMiB / 2);
  CHECK_EQ(Stats().segments, 1);  // of 2 MiB
  for (const int i : {2, 0, 3, 1}) Give(blocks[i]);
  void* const whole = Take(kMiB);
  CHECK(whole == blocks[0]);
  Give(whole);
  CHECK_EQ(Stats().segments, 1);
  void* const large = Take(3 * kMiB);
  CHECK_EQ(Stats().reserved_bytes, 22 * kMiB);
  void* const beside = Take(5 * kMiB);
  CHECK(static_cast<char*>(beside) == static_cast<char*>(large) + 3 * kMiB);
  Give(large);
  Give(beside);
  CHECK_EQ(AnyopDeviceEmptyCache(host, 0), kAnyopOk);
  CHECK_EQ(Stats().reserved_bytes, 0);
}

TEST(Numbers) {
  CHECK_EQ(AnyopDeviceResetPeak(host, 0), kAnyopOk);
  const AnyopMemoryStats before = Stats();
  void* const one = Take(1);
  void* const two = Take(2 * kMiB + 1);
  AnyopMemoryStats now = Stats();
  CHECK_EQ(now.allocated_bytes - before.allocated_bytes, 512 + 2 * kMiB + 512);
  CHECK_EQ(now.active_bytes, now.allocated_bytes);
  CHECK_EQ(now.blocks - before.blocks, 2);
  Give(two);
  Give(one);
  now = Stats();
  CHECK_EQ(now.allocated_bytes, before.allocated_bytes);
  CHECK_EQ(now.allocated_bytes_peak - before.allocated_bytes, 2 * kMiB + 1024);
  CHECK_EQ(now.allocations - before.allocations, 2);
  CHECK_EQ(now.frees - before.frees, 2);
  AnyopMemoryStats small = {};
  small.size = 24;  // an older caller's
  CHECK_EQ(AnyopDeviceMemoryStats(host, 0, &small), kAnyopOk);
  CHECK(small.size == 24 && small.allocated_bytes_peak > 0 && small.active_bytes == 0);
}

TEST(AnotherStreamsUseIsWaitedFor) {
  void* const other = NewStream();
  void* const block = Take(4096);
  Delay(other, 100);
  CHECK_EQ(AnyopDeviceRecordStream(host, 0, block, other), kAnyopOk);
  CHECK_EQ(AnyopDeviceRecordStream(host, 0, block, other), kAnyopOk);
  CHECK_EQ(AnyopDeviceRecordStream(host, 0, block, nullptr), kAnyopOk);  // its own
  const int64_t active = Stats().active_bytes;
  Give(block);
  CHECK_EQ(Stats().active_bytes, active);
  void* const meanwhile = Take(4096);
  CHECK(meanwhile != block);
  Give(meanwhile);
  CHECK_EQ(host->synchronize_stream(0, other), kAnyopOk);
  void* first = Take(4096);
  void* second = Take(4096);
  CHECK(first == block || second == block);
  Give(first);
  Give(second);
  // A stream that is gone when the event would be recorded: the whole device is waited for.
  void* const last = Take(30 * kMiB);
  CHECK_EQ(AnyopDeviceRecordStream(host, 0, last, other), kAnyopOk);
  CHECK_EQ(host->destroy_stream(0, other), kAnyopOk);
  CHECK_EQ(host->synchronize_device(0), kAnyopOk);
  Give(last);
  CHECK(Stats().active_bytes >= 30 * kMiB);
  CHECK_EQ(AnyopDeviceEmptyCache(host, 0), kAnyopOk);
  CHECK_EQ(Stats().active_bytes, Stats().allocated_bytes);
}

TEST(WhatIsNoBlock) {
  char own[8];
  void* const block = Take(8);
  CHECK_EQ(AnyopDeviceFree(host, 0, own), kAnyopValueError);
  CHECK_EQ(AnyopDeviceFree(host, 1, block), kAnyopValueError);
  CHECK_EQ(AnyopDeviceFree(host, 0, static_cast<char*>(block) + 1), kAnyopValueError);
  Give(block);
  CHECK_EQ(AnyopDeviceFree(host, 0, block), kAnyopValueError);
  CHECK(std::strstr(AnyopLastError(), "host: what is given back is no block of this memory"));
  CHECK_EQ(AnyopDeviceRecordStream(host, 0, block, nullptr), kAnyopValueError);
  void* memory = own;
  CHECK_EQ(AnyopDeviceMalloc(host, 2, nullptr, 8, &memory), kAnyopDeviceError);
  CHECK(std::strstr(AnyopLastError(), "there is no device 2; there are 2"));
  CHECK_EQ(AnyopDeviceMalloc(host, -1, nullptr, 8, &memory), kAnyopDeviceError);
  CHECK_EQ(AnyopDeviceMalloc(nullptr, 0, nullptr, 8, &memory), kAnyopValueError);
  CHECK_EQ(AnyopDeviceMalloc(host, 0, nullptr, -8, &memory), kAnyopValueError);
  CHECK_EQ(AnyopDeviceMalloc(host, 0, nullptr, INT64_MAX, &memory), kAnyopOutOfMemory);
  CHECK(!memory);
}

TEST(OutOfMemory) {
  void* const other = NewStream();
  CHECK_EQ(AnyopDeviceSetMemoryLimit(host, 1, 64 * kMiB), kAnyopOk);
  Give(Take(40 * kMiB, other, 1), 1);
  void* const most = Take(60 * kMiB, nullptr, 1);  // what the other stream had is given back for it
  CHECK_EQ(Stats(1).retries, 1);
  void* more = &more;
  CHECK_EQ(AnyopDeviceMalloc(host, 1, nullptr, 30 * kMiB, &more), kAnyopOutOfMemory);
  CHECK(!more && std::strstr(AnyopLastError(), "host: out of memory on device 1: 31457280 bytes"));
  CHECK(std::strstr(AnyopLastError(), "the limit is 67108864"));
  CHECK_EQ(Stats(1).out_of_memory, 1);
  Give(most, 1);
  Give(Take(30 * kMiB, nullptr, 1), 1);
  // A block whose other user is at work comes back by waiting.
  void* const used = Take(60 * kMiB, nullptr, 1);
  void* slow = nullptr;
  CHECK_EQ(host->create_stream(1, &slow), kAnyopOk);
  CHECK_EQ(host->launch_host(1, slow, Sleep, reinterpret_cast<void*>(50)), kAnyopOk);
  CHECK_EQ(AnyopDeviceRecordStream(host, 1, used, slow), kAnyopOk);
  Give(used, 1);
  Give(Take(60 * kMiB, other, 1), 1);
  CHECK_EQ(AnyopDeviceSetMemoryLimit(host, 1, 0), kAnyopOk);
  CHECK_EQ(AnyopDeviceMalloc(host, 1, nullptr, int64_t{1} << 49, &more), kAnyopOutOfMemory);
  CHECK(std::strstr(AnyopLastError(), "host: there are no 562949953421312 bytes"));
  CHECK_EQ(host->destroy_stream(0, other), kAnyopOk);
}

TEST(PinnedMemory) {
  void* const stream = NewStream();
  void *one = nullptr, *two = nullptr;
  CHECK_EQ(AnyopHostMalloc(host, 0, 3000, &one), kAnyopOk);
  int32_t yes = 0;
  CHECK_EQ(host->is_host(static_cast<char*>(one) + 2999, &yes), kAnyopOk);
  CHECK_EQ(yes, 1);
  Delay(stream, 100);
  CHECK_EQ(AnyopHostRecordStream(host, one, 0, stream), kAnyopOk);
  CHECK_EQ(AnyopHostFree(host, one), kAnyopOk);
  CHECK_EQ(AnyopHostMalloc(host, 1, 3000, &two), kAnyopOk);
  CHECK(two != one);
  CHECK_EQ(host->synchronize_stream(0, stream), kAnyopOk);
  CHECK_EQ(AnyopHostFree(host, two), kAnyopOk);
  CHECK_EQ(AnyopHostEmptyCache(host), kAnyopOk);
  AnyopMemoryStats stats = {};
  stats.size = sizeof stats;
  CHECK_EQ(AnyopHostMemoryStats(host, &stats), kAnyopOk);
  CHECK(stats.reserved_bytes == 0 && stats.allocations == 2 && stats.frees == 2);
  CHECK_EQ(host->destroy_stream(0, stream), kAnyopOk);
}

// One thread's part: blocks of all sizes hold a pattern of their own until they are given back, so
// that two that overlap are told.
int64_t Soak(int thread, void* stream, int64_t count) {
  struct Held {
    uint64_t* memory;
    int64_t words;
    uint64_t mark;
  };
  constexpr size_t kHeld = 64;
  std::vector<Held> held;
  std::mt19937_64 random(thread);
  int64_t wrong = 0;
  const auto give = [&](size_t at) {
    const Held block = held[at];
    held[at] = held.back();
    held.pop_back();
    wrong += block.memory[0] != block.mark || block.memory[block.words - 1] != block.mark ||
             block.memory[block.words / 2] != block.mark;
    wrong += AnyopDeviceFree(host, 0, block.memory) != kAnyopOk;
  };
  for (int64_t i = 0; i < count; ++i) {
    if (held.size() == kHeld) give(random() % kHeld);
    const int64_t words = 1 + static_cast<int64_t>(random() >> (48 + random() % 15)) * 4;
    void* memory = nullptr;
    if (AnyopDeviceMalloc(host, 0, stream, 8 * words, &memory)) return wrong + 1;
    const Held block = {static_cast<uint64_t*>(memory), words, random()};
    block.memory[0] = block.memory[words - 1] = block.memory[words / 2] = block.mark;
    held.push_back(block);
  }
  while (!held.empty()) give(0);
  return wrong;
}

int64_t SoakAll(const std::vector<void*>& streams, int64_t count) {
  std::atomic<int64_t> wrong{0};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < streams.size(); ++t)
    threads.emplace_back([&, t] { wrong += Soak(static_cast<int>(t), streams[t], count); });
  for (std::thread& thread : threads) thread.join();
  return wrong;
}

constexpr int kThreads = 8;

int64_t SoakCount() { return std::getenv("ANYOP_TEST_FULL") ? 10'000'000 : 200'000; }

TEST(ManyThreadsShareTwoStreams) {
  void* const other = NewStream();
  std::vector<void*> streams;
  for (int t = 0; t < kThreads; ++t) streams.push_back(t % 2 ? nullptr : other);
  const int64_t before = Stats().allocations;
  const auto begin = std::chrono::steady_clock::now();
  const int64_t wrong = SoakAll(streams, SoakCount() / kThreads);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::printf("  %lld allocations by %d threads in %.1f s, %lld wrong\n", (long long)SoakCount(),
              kThreads, took.count(), (long long)wrong);
  CHECK_EQ(wrong, 0);
  CHECK_EQ(Stats().allocations - before, SoakCount());
  CHECK_EQ(Stats().active_bytes, 0);
  CHECK_EQ(host->destroy_stream(0, other), kAnyopOk);
}

// As many again. Each thread has its stream and asks for the same again and again: what the cache
// took for the first rounds is enough for all.
TEST(NothingGrows) {
  constexpr int kRounds = 10;
  std::vector<void*> streams;
  for (int t = 0; t < kThreads; ++t) streams.push_back(NewStream());
  CHECK_EQ(AnyopDeviceEmptyCache(host, 0), kAnyopOk);
  int64_t warm = 0;
  for (int round = 0; round < kRounds; ++round) {
    CHECK_EQ(SoakAll(streams, SoakCount() / kThreads / kRounds), 0);
    if (round == 1) warm = Stats().reserved_bytes;
  }
  const int64_t end = Stats().reserved_bytes;
  std::printf("  %.1f MiB taken, %.1f MiB after a fifth of it: %.2f %% more\n", end / 1048576.0,
              warm / 1048576.0, 100.0 * (end - warm) / warm);
  CHECK(end <= warm + warm / 100);
  for (void* stream : streams) CHECK_EQ(host->destroy_stream(0, stream), kAnyopOk);
}

TEST(ABlockIsTakenFromTheCache) {
  constexpr int kCount = 1'000'000;
  Give(Take(256));
  const int64_t before = Stats().segment_allocations;
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    for (int n = 0; n < kCount; ++n) {
      void* memory;
      AnyopDeviceMalloc(host, 0, nullptr, 256, &memory);
      AnyopDeviceFree(host, 0, memory);
    }
    const auto end = std::chrono::steady_clock::now();
    best = std::min(best, std::chrono::duration<double, std::nano>(end - begin).count() / kCount);
  }
  std::printf("  %.1f ns for a block taken and given back\n", best);
  CHECK_EQ(Stats().segment_allocations, before);
}

TEST(AChildOfForkIsRefused) {
#ifdef __SANITIZE_THREAD__
  std::printf("  skipped: ThreadSanitizer allows no threads after a fork\n");
#else
  void* const block = Take(8);
  const pid_t child = fork();
  if (child == 0) {
    void* memory = nullptr;
    const bool refused = AnyopDeviceMalloc(host, 0, nullptr, 8, &memory) == kAnyopDeviceError &&
                         std::strstr(AnyopLastError(), "the process was forked after") &&
                         host->synchronize_device(0) == kAnyopDeviceError;
    _exit(refused && AnyopDeviceFree(host, 0, block) == kAnyopOk ? 0 : 1);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  Give(block);
#endif
}

}  // namespace
