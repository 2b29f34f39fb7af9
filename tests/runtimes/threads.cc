// SPDX-License-Identifier: Apache-2.0
// Eight threads use one device of the plugin cuda_like at once, for ThreadSanitizer: streams,
// events, memory of both kinds, copies, functions of the host. It is built with the plugin's
// sources.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "anyop/device.h"

extern "C" int32_t AnyopDeviceByName(uint32_t abi_version, const char* name,
                                     const AnyopDevice** device, char* text, size_t capacity);

namespace {

constexpr int kThreads = 8, kRounds = 100;
constexpr int64_t kBytes = 4096;

const AnyopDevice* device;

void Must(int32_t status) {
  if (status == kAnyopOk) return;
  std::fprintf(stderr, "%s\n", device->last_error());
  std::exit(1);
}

void Round(int index, int value, void* stream, void* event, char* pinned,
           std::vector<char>* plain) {
  void *memory = nullptr, *scratch = nullptr;
  int32_t done = 0, owner = -1;
  Must(device->allocate(index, kBytes, &memory));
  Must(device->allocate_on(index, stream, kBytes, &scratch));
  Must(device->set_on(index, stream, scratch, value, kBytes));
  Must(device->copy_on(index, stream, memory, scratch, kBytes, kAnyopDeviceToDevice));
  Must(device->free_on(index, stream, scratch));
  Must(device->record_event(index, event, stream));
  Must(device->wait_event(index, nullptr, event));
  Must(device->copy_on(index, nullptr, pinned, memory, kBytes, kAnyopDeviceToHost));
  Must(device->query_stream(index, stream, &done));
  Must(device->device_of(memory, &owner));
  Must(device->synchronize_stream(index, nullptr));
  Must(device->copy_on(index, stream, plain->data(), memory, kBytes, kAnyopDeviceToHost));
  Must(device->free(index, memory));
  const bool right = owner == index && pinned[kBytes - 1] == static_cast<char>(value) &&
                     std::memcmp(pinned, plain->data(), kBytes) == 0;
  if (!right) std::printf("wrong\n");
}

void Work(int thread) {
  const int index = thread % 2;
  std::vector<char> plain(kBytes);
  for (int i = 0; i < kRounds; ++i) {
    void *stream = nullptr, *event = nullptr, *pinned = nullptr;
    Must(device->create_stream_with(index, -thread, &stream));
    Must(device->create_event(index, &event));
    Must(device->allocate_host(index, kBytes, &pinned));
    int calls = 0;
    Must(device->launch_host(index, stream, [](void* at) { ++*static_cast<int*>(at); }, &calls));
    Round(index, thread * kRounds + i, stream, event, static_cast<char*>(pinned), &plain);
    Must(device->launch_host(index, stream, [](void*) {}, nullptr));
    Must(device->destroy_stream(index, stream));  // with work in it
    Must(device->destroy_event(index, event));
    Must(device->free_host(index, pinned));
    if (calls != 1) std::printf("not called\n");
  }
  Must(device->synchronize_device(index));
}

}  // namespace

int main(int, char** words) {
  char text[512] = "";
  if (AnyopDeviceByName(ANYOP_DEVICE_ABI_VERSION, words[1], &device, text, sizeof text))
    return std::fprintf(stderr, "%s\n", text), 1;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) threads.emplace_back(Work, t);
  for (std::thread& thread : threads) thread.join();
  std::puts("done");
  return 0;
}
