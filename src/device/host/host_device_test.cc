// SPDX-License-Identifier: Apache-2.0
// What only the host's device promises: bad handles and wrong devices are found out, work outlives
// the handles it was given by. What every device promises, `anyop device-check host` asks.
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "anyop/anyop.h"
#include "anyop/device.h"
#include "tests/check.h"

namespace {

const AnyopDevice* host = AnyopFindDeviceByName("host");

void Sleep(void* ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(reinterpret_cast<intptr_t>(ms)));
}
void* Ms(intptr_t ms) { return reinterpret_cast<void*>(ms); }
bool Says(const char* text) { return std::strstr(host->last_error(), text); }

void* Stream(int32_t device) {
  void* stream = nullptr;
  CHECK_EQ(host->create_stream(device, &stream), kAnyopOk);
  return stream;
}
char* Memory(int32_t device, int64_t bytes) {
  void* memory = nullptr;
  CHECK_EQ(host->allocate(device, bytes, &memory), kAnyopOk);
  return static_cast<char*>(memory);
}

TEST(BadHandles) {
  void* const stream = Stream(0);
  void* event = nullptr;
  int32_t done;
  CHECK_EQ(host->create_event(1, &event), kAnyopOk);
  CHECK_EQ(host->synchronize_stream(1, stream), kAnyopValueError);
  CHECK(Says("is no stream of device 1, but of another one"));
  CHECK_EQ(host->query_stream(0, event, &done), kAnyopValueError);
  CHECK(Says("is no stream of device 0"));
  CHECK_EQ(host->record_event(0, event, stream), kAnyopValueError);
  CHECK(Says("is an event of device 1, not of 0"));
  CHECK_EQ(host->query_event(1, stream, &done), kAnyopValueError);
  CHECK(Says("is no event"));
  CHECK_EQ(host->destroy_event(1, event), kAnyopOk);
  CHECK_EQ(host->destroy_event(1, event), kAnyopValueError);
  CHECK_EQ(host->destroy_stream(0, stream), kAnyopOk);
  CHECK_EQ(host->destroy_stream(0, stream), kAnyopValueError);
  CHECK_EQ(host->launch_host(0, stream, Sleep, nullptr), kAnyopValueError);
}

TEST(MemoryKnowsItsDevice) {
  char *const here = Memory(0, 100), *const there = Memory(1, 100);
  char plain[100];
  CHECK_EQ(host->copy(0, there, plain, 8, kAnyopHostToDevice), kAnyopValueError);
  CHECK(Says("is memory of device 1, expected that of another device"));
  CHECK_EQ(host->copy(0, here, there, 8, kAnyopDeviceToDevice), kAnyopValueError);
  CHECK_EQ(host->copy(0, plain, plain + 50, 8, kAnyopDeviceToHost), kAnyopValueError);
  CHECK(Says("is no memory of the device"));
  CHECK_EQ(host->copy(0, here, here + 50, 8, kAnyopHostToDevice), kAnyopValueError);
  CHECK(Says("is memory of device 0, expected memory of the host"));
  CHECK_EQ(host->copy_on(0, nullptr, here + 90, plain, 11, kAnyopHostToDevice), kAnyopValueError);
  CHECK(Says("leaves its allocation"));
  CHECK_EQ(host->copy_on(0, nullptr, here, nullptr, 11, kAnyopHostToDevice), kAnyopValueError);
  CHECK_EQ(host->set_on(1, nullptr, here, 1, 8), kAnyopValueError);
  CHECK_EQ(host->copy_between_on(0, nullptr, here, 1, there, 0, 8), kAnyopValueError);
  CHECK_EQ(host->free(1, here), kAnyopValueError);
  CHECK_EQ(host->free(0, here + 1), kAnyopValueError);
  CHECK_EQ(host->free_host(0, here), kAnyopValueError);
  CHECK(Says("is no pinned memory, or was freed already"));
  CHECK_EQ(host->free(0, here), kAnyopOk);
  CHECK_EQ(host->free(0, here), kAnyopValueError);
  CHECK_EQ(host->free(1, there), kAnyopOk);
}

TEST(WritingBeyondTheEndIsTold) {
  char* const memory = Memory(0, 100);
  memory[100] = 1;
  CHECK_EQ(host->free(0, memory), kAnyopDeviceError);
  CHECK(Says("something was written before or behind the 100 bytes"));
  char* const other = Memory(0, 100);
  other[-1] = 1;
  CHECK_EQ(host->free(0, other), kAnyopDeviceError);
}

TEST(WorkOutlivesItsStream) {
  void* const stream = Stream(1);
  std::atomic<int> ran{0};
  CHECK_EQ(host->launch_host(1, stream, Sleep, Ms(50)), kAnyopOk);
  CHECK_EQ(host->launch_host(
               1, stream, [](void* count) { ++*static_cast<std::atomic<int>*>(count); }, &ran),
           kAnyopOk);
  CHECK_EQ(host->destroy_stream(1, stream), kAnyopOk);
  CHECK_EQ(ran.load(), 0);
  CHECK_EQ(host->synchronize_device(1), kAnyopOk);
  CHECK_EQ(ran.load(), 1);
}

TEST(AnEventRecordedAgainMisleadsNobody) {
  void *const slow = Stream(0), *const fast = Stream(0), *const waits = Stream(1);
  void* event = nullptr;
  int32_t done = 1;
  CHECK_EQ(host->create_event(0, &event), kAnyopOk);
  std::atomic<int> ran{0};
  CHECK_EQ(host->launch_host(0, slow, Sleep, Ms(100)), kAnyopOk);
  CHECK_EQ(host->launch_host(
               0, slow, [](void* count) { ++*static_cast<std::atomic<int>*>(count); }, &ran),
           kAnyopOk);
  CHECK_EQ(host->record_event(0, event, slow), kAnyopOk);
  CHECK_EQ(host->wait_event(1, waits, event), kAnyopOk);
  CHECK_EQ(host->record_event(0, event, fast), kAnyopOk);
  CHECK_EQ(host->destroy_event(0, event), kAnyopOk);
  CHECK_EQ(host->query_stream(1, waits, &done), kAnyopOk);
  CHECK_EQ(done, 0);
  CHECK_EQ(host->synchronize_stream(1, waits), kAnyopOk);
  CHECK_EQ(ran.load(), 1);
}

TEST(AFunctionMayNotWaitForItself) {
  struct Answer {
    int32_t status;
    std::string text;
  } answer = {};
  const auto ask = [](void* to) {
    auto* answer = static_cast<Answer*>(to);
    answer->status = host->synchronize_device(0);
    answer->text = host->last_error();
  };
  CHECK_EQ(host->launch_host(0, nullptr, ask, &answer), kAnyopOk);
  CHECK_EQ(host->synchronize_stream(0, nullptr), kAnyopOk);
  CHECK_EQ(answer.status, kAnyopDeviceError);
  CHECK_EQ(answer.text, "host: a function that a stream runs may not wait");
}

TEST(ManyThreadsOneStream) {
  constexpr int kThreads = 4, kTimes = 2000;
  void* const stream = Stream(0);
  int64_t sum = 0;  // of the stream alone
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < kTimes; ++i) {
        host->launch_host(0, stream, [](void* at) { ++*static_cast<int64_t*>(at); }, &sum);
        if (i % 500 == 0) host->synchronize_stream(0, stream);
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(host->synchronize_stream(0, stream), kAnyopOk);
  CHECK_EQ(sum, kThreads * kTimes);
  CHECK_EQ(host->destroy_stream(0, stream), kAnyopOk);
}

}  // namespace
