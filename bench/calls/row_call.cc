// SPDX-License-Identifier: Apache-2.0
// The loop of bench/calls/row_call.py: nanoseconds of calls of devices' functions, the devices in
// turns.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "anyop/anyop.h"
#include "anyop/device.h"

namespace {

constexpr int64_t kBytes = 4096;

void Must(const AnyopDevice* device, int32_t status) {
  if (status == kAnyopOk) return;
  std::fprintf(stderr, "%s: %s\n", device->name, device->last_error());
  std::exit(1);
}

struct Side {
  const AnyopDevice* device;
  void *stream = nullptr, *event = nullptr, *memory = nullptr, *pinned = nullptr;

  explicit Side(const AnyopDevice* given) : device(given) {
    Must(device, device->create_stream(0, &stream));
    Must(device, device->create_event_with(0, kAnyopEventNoTiming, &event));
    Must(device, device->allocate(0, kBytes, &memory));
    Must(device, device->allocate_host(0, kBytes, &pinned));
  }
  void Allocate() const {
    void* made;
    Must(device, device->allocate(0, 1 << 20, &made));
    Must(device, device->free(0, made));
  }
  void Copy() const { Must(device, device->copy(0, memory, pinned, kBytes, kAnyopHostToDevice)); }
  void Record() const { Must(device, device->record_event(0, event, stream)); }
  void Wait() const {
    Record();
    Must(device, device->synchronize_event(0, event));
  }
};

double Time(const Side& side, void (Side::*call)() const, int calls) {
  for (int i = 0; i < calls / 10 + 1; ++i) (side.*call)();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) (side.*call)();
  const auto end = std::chrono::steady_clock::now();
  Must(side.device, side.device->synchronize_device(0));
  return std::chrono::duration<double, std::nano>(end - begin).count() / calls;
}

}  // namespace

int main(int count, char** words) {
  if (count < 4) return 2;
  const int rounds = std::atoi(words[1]), calls = std::atoi(words[2]);
  std::vector<Side> sides;
  for (int i = 3; i < count; ++i) {
    const AnyopDevice* device = AnyopFindDeviceByName(words[i]);
    if (!device) return std::fprintf(stderr, "%s\n", AnyopLastError()), 1;
    sides.emplace_back(device);
  }
  const std::pair<const char*, void (Side::*)() const> cases[] = {{"allocate", &Side::Allocate},
                                                                  {"copy", &Side::Copy},
                                                                  {"record", &Side::Record},
                                                                  {"wait", &Side::Wait}};
  for (const auto& [name, call] : cases) {
    for (int round = 0; round < rounds; ++round) {
      for (size_t s = 0; s < sides.size(); ++s)
        std::printf("%s %zu %.1f\n", name, s, Time(sides[s], call, calls));
    }
  }
  return 0;
}
