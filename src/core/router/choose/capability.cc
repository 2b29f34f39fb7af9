// SPDX-License-Identifier: Apache-2.0
// Asks devices for their capability, and keeps what they said.
#include "router/choose/capability.h"

#include <atomic>

#include "loader.h"
#include "router/choose/device_below.h"
#include "router/choose/route.h"

namespace anyop {
namespace {

constexpr int kMaxDevices = 64;  // of a kind; those beyond are asked at each call
constexpr int kCpu = 1;

std::atomic<int> capabilities[kMaxDeviceTypes][kMaxDevices];
std::atomic<int> common[kMaxDeviceTypes];
std::atomic<const std::string*> names[kMaxDeviceTypes];
std::atomic<bool> asked[kMaxDeviceTypes];

bool AskProperties(int device_type, int device_id, AnyopDeviceProperties* found) {
  const AnyopDevice* device = FindDevice(device_type);
  *found = {};
  found->size = sizeof *found;
  return device && HasFunction(device, &AnyopDevice::properties) &&
         device->properties(device_id, found) == kAnyopOk;
}

int Ask(int device_type, int device_id) {
  AnyopDeviceProperties found;
  return AskProperties(device_type, device_id, &found) ? 10 * found.major + found.minor : 0;
}

std::string AskName(int device_type, int device_id) {
  AnyopDeviceProperties found;
  return AskProperties(device_type, device_id, &found) ? found.name : "";
}

}  // namespace

int CapabilityOf(int device_type, int device_id) {
  device_type = NearestBelow(device_type);
  if (device_type == kCpu) return 0;
  if (device_id < 0 || device_id >= kMaxDevices) return Ask(device_type, device_id);
  std::atomic<int>& kept = capabilities[device_type][device_id];
  int found = kept.load(std::memory_order_relaxed);
  if (!found) kept.store(found = Ask(device_type, device_id), std::memory_order_relaxed);
  return found;
}

bool LearnCapabilities(int device_type) {
  device_type = NearestBelow(device_type);
  if (device_type == kCpu || asked[device_type].load(std::memory_order_relaxed)) return false;
  const AnyopDevice* device = FindDevice(device_type);
  int32_t count = 0;
  if (!device || !HasFunction(device, &AnyopDevice::count) || device->count(&count) != kAnyopOk)
    return false;
  if (asked[device_type].exchange(true)) return false;
  int same = count ? CapabilityOf(device_type, 0) : 0;
  std::string name = count ? AskName(device_type, 0) : "";
  for (int32_t id = 1; id < count; ++id) {
    if (CapabilityOf(device_type, id) != same) same = 0;
    if (AskName(device_type, id) != name) name.clear();
  }
  common[device_type].store(same, std::memory_order_release);
  names[device_type].store(new std::string(name), std::memory_order_release);  // for good
  return true;
}

std::string CommonName(int device_type) {
  device_type = NearestBelow(device_type);
  const std::string* name = names[device_type].load(std::memory_order_acquire);
  return name ? *name : "";
}

int CommonCapability(int device_type) {
  device_type = NearestBelow(device_type);
  return common[device_type].load(std::memory_order_acquire);
}

std::string CapabilityText(int capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

}  // namespace anyop
