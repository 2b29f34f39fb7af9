// SPDX-License-Identifier: Apache-2.0
// Finds a plugin, and refuses one that lacks what PyTorch's device calls.
#include <anyop/anyop.h>

#include "platform/plugin_memory.h"

namespace anyop::torch_device {
namespace {

struct Needed {
  size_t offset;
  const char* name;
};
#define NEEDED(function) {offsetof(AnyopDevice, function), #function}
constexpr Needed kNeeded[] = {
    NEEDED(count),
    NEEDED(properties),
    NEEDED(memory_info),
    NEEDED(allocate),
    NEEDED(free),
    NEEDED(allocate_host),
    NEEDED(free_host),
    NEEDED(is_host),
    NEEDED(copy),
    NEEDED(copy_on),
    NEEDED(create_stream_with),
    NEEDED(query_stream),
    NEEDED(launch_host),
    NEEDED(synchronize_stream),
    NEEDED(synchronize_device),
    NEEDED(destroy_event),
    NEEDED(create_event_with),
    NEEDED(record_event),
    NEEDED(wait_event),
    NEEDED(synchronize_event),
    NEEDED(elapsed_ms),
    NEEDED(query_event),  // the last one of the table
};
#undef NEEDED

// Fields behind the table's size, of a plugin that is older than they are, are not there.
void CheckTable(const AnyopDevice& device) {
  for (const Needed& needed : kNeeded) {
    const auto* field = reinterpret_cast<const char*>(&device) + needed.offset;
    const bool is_there = needed.offset + sizeof(void*) <= device.size &&
                          *reinterpret_cast<void* const*>(field) != nullptr;
    TORCH_CHECK_NOT_IMPLEMENTED(is_there, "device ", device.name, " lacks ", needed.name,
                                ", which PyTorch's device needs (anyop device-check names all)");
  }
}

}  // namespace

const AnyopDevice* OpenPlugin(const std::string& name) {
  const AnyopDevice* device = nullptr;
  const bool is_path = name.find('/') != std::string::npos;
  const int32_t status =
      is_path ? AnyopLoadDevice(name.c_str(), &device)
              : ((device = AnyopFindDeviceByName(name.c_str())) ? kAnyopOk : kAnyopValueError);
  CheckCore(status);
  CheckTable(*device);
  CheckCore(AnyopUseDevice(device));
  return device;
}

}  // namespace anyop::torch_device
