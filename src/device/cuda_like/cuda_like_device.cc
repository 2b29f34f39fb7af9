// SPDX-License-Identifier: Apache-2.0
// Every runtime shaped like CUDA's as an AnyopDevice, one in a process: the loader says which, by
// the name of its row.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <mutex>

#include "by_name.h"
#include "fork.h"
#include "images.h"
#include "memory.h"
#include "streams.h"

namespace anyop::cuda_like {
namespace {

constexpr size_t kPropertiesBytes = 16384;  // more than any vendor's struct
constexpr size_t kNameBytes = 256;          // with which all of them begin

// Nothing is thrown through the C ABI.
template <auto kFunction>
struct Guarded;
template <typename... Parameters, int32_t (*kFunction)(Parameters...)>
struct Guarded<kFunction> {
  static int32_t Call(Parameters... parameters) {
    try {
      return kFunction(parameters...);
    } catch (const std::exception& error) {
      return RefuseOnDevice(kAnyopOutOfMemory, "cuda_like: %s", error.what());
    }
  }
};

int32_t Versions(AnyopDeviceVersions* versions) {
  if (versions->size < sizeof *versions)
    return RefuseOnDevice(kAnyopValueError, "cuda_like: the struct of versions is too small");
  if (int32_t status = CheckDevice(0)) return status;
  versions->driver = versions->minimum_driver = 0;
  versions->runtime = TheRuntime().library.version;
  if (!TheApi().DriverGetVersion) return kAnyopOk;
  return Check(TheApi().DriverGetVersion(&versions->driver), "asking for the driver's version");
}

int32_t Count(int32_t* count) {
  *count = 0;
  if (!Forked() && TheRuntime().problem.empty() && TheRuntime().count == 0) return kAnyopOk;
  if (int32_t status = CheckDevice(0)) return status;
  *count = std::min<int32_t>(TheRuntime().count, kMaxDevices);
  return kAnyopOk;
}

int32_t GetCurrent(int32_t* device) {
  *device = 0;
  if (int32_t status = CheckDevice(0)) return status;
  return Check(TheApi().GetDevice(device), "asking for the device");
}

int32_t SetCurrent(int32_t device) {
  if (int32_t status = CheckDevice(device)) return status;
  return Check(TheApi().SetDevice(device), "setting the device");
}

// The name is all that is read of the vendor's struct.
Code ReadName(int32_t device, char* name, size_t size) {
  std::string properties(kPropertiesBytes, '\0');
  if (Code code = TheApi().GetDeviceProperties(properties.data(), device)) return code;
  properties[kNameBytes - 1] = '\0';
  std::snprintf(name, size, "%.127s", properties.c_str());
  return 0;
}

Code ReadAttributes(int32_t device, AnyopDeviceProperties* properties) {
  const Row& row = TheRuntime().row;
  properties->compute_units = 1;
  if (row.attributes.empty() || !TheApi().DeviceGetAttribute) return 0;
  int32_t* values[] = {&properties->compute_units, &properties->major, &properties->minor};
  for (size_t i = 0; i < 3; ++i) {
    if (Code code = TheApi().DeviceGetAttribute(values[i], row.attributes[i], device)) return code;
  }
  return 0;
}

int32_t Properties(int32_t device, AnyopDeviceProperties* properties) {
  if (properties->size < sizeof *properties)
    return RefuseOnDevice(kAnyopValueError, "cuda_like: the struct of properties is too small");
  if (int32_t status = CheckDevice(device)) return status;
  AnyopDeviceProperties found = {};
  found.size = properties->size;
  int64_t free_bytes;
  if (int32_t status = MemoryInfo(device, &free_bytes, &found.total_bytes)) return status;
  if (int32_t status = PriorityRange(device, &found.least_priority, &found.greatest_priority))
    return status;
  const int32_t status = On(device, "asking for the device's properties", [&] {
    const Code code = ReadName(device, found.name, sizeof found.name);
    return code ? code : ReadAttributes(device, &found);
  });
  if (status == kAnyopOk) *properties = found;
  return status;
}

#define ANYOP_GUARDED(function) Guarded<function>::Call

AnyopDevice device_table = {
    sizeof(AnyopDevice),
    ANYOP_DEVICE_ABI_VERSION,
    nullptr,  // name and device_type are the row's
    0,
    0,
    ANYOP_GUARDED(Enter),
    ANYOP_GUARDED(Leave),
    LastDeviceError,
    ANYOP_GUARDED(Versions),
    ANYOP_GUARDED(Count),
    ANYOP_GUARDED(GetCurrent),
    ANYOP_GUARDED(SetCurrent),
    ANYOP_GUARDED(Allocate),
    ANYOP_GUARDED(Free),
    ANYOP_GUARDED(AllocateOn),
    ANYOP_GUARDED(FreeOn),
    ANYOP_GUARDED(Copy),
    ANYOP_GUARDED(CopyOn),
    ANYOP_GUARDED(CreateStream),
    ANYOP_GUARDED(DestroyStream),
    ANYOP_GUARDED(SynchronizeStream),
    ANYOP_GUARDED(SynchronizeDevice),
    ANYOP_GUARDED(CreateEvent),
    ANYOP_GUARDED(DestroyEvent),
    ANYOP_GUARDED(RecordEvent),
    ANYOP_GUARDED(WaitEvent),
    ANYOP_GUARDED(SynchronizeEvent),
    ANYOP_GUARDED(ElapsedMs),
    ANYOP_GUARDED(Properties),
    ANYOP_GUARDED(MemoryInfo),
    ANYOP_GUARDED(AllocateHost),
    ANYOP_GUARDED(FreeHost),
    ANYOP_GUARDED(IsHost),
    ANYOP_GUARDED(DeviceOf),
    ANYOP_GUARDED(SetOn),
    ANYOP_GUARDED(CopyBetweenOn),
    ANYOP_GUARDED(CreateStreamWith),
    ANYOP_GUARDED(QueryStream),
    ANYOP_GUARDED(LaunchHost),
    ANYOP_GUARDED(CreateEventWith),
    ANYOP_GUARDED(QueryEvent),
    ANYOP_GUARDED(LoadImage),
    ANYOP_GUARDED(FindKernel),
    ANYOP_GUARDED(LaunchKernel),
};

// "row.cuda" is the row cuda, whose own name a built-in device has.
constexpr const char* kPrefix = "row.";

std::string DeviceName(const Row& row) { return row.name == "cuda" ? "row.cuda" : row.name; }

const Row* FindRow(const std::vector<Row>& rows, const std::string& name) {
  for (const Row& row : rows) {
    if (name == DeviceName(row) || name == kPrefix + row.name) return &row;
  }
  return nullptr;
}

std::string MakeDevice(const Row& row, const std::string& name) {
  static std::mutex* mutex = new std::mutex;
  const std::lock_guard<std::mutex> lock(*mutex);
  if (device_table.name && name == device_table.name) return "";
  Runtime* runtime = ChooseRuntime(row, name);
  if (!runtime)
    return std::string("this process uses the runtime ") + device_table.name + " already; " + name +
           " needs a process of its own";
  if (row.shape != "cuda" || std::count(row.missing.begin(), row.missing.end(), "MemcpyPeerAsync"))
    device_table.copy_between_on = nullptr;
  device_table.device_type = static_cast<int32_t>(row.device_type);
  device_table.name = runtime->name.c_str();
  return "";
}

int32_t ByName(const char* name, const AnyopDevice** device, std::string* text) {
  std::vector<Row> rows;
  *text = ReadRows(&rows);
  if (!text->empty()) return kAnyopValueError;
  if (const Row* row = FindRow(rows, name)) {
    *text = MakeDevice(*row, name);
    *device = &device_table;
    return text->empty() ? kAnyopOk : kAnyopValueError;
  }
  for (const Row& row : rows) *text += (text->empty() ? "" : ", ") + DeviceName(row);
  return kAnyopNotImplemented;
}

}  // namespace
}  // namespace anyop::cuda_like

extern "C" __attribute__((visibility("default"))) int32_t
AnyopDeviceByName(uint32_t abi_version, const char* name, const AnyopDevice** device, char* text,
                  size_t capacity) {
  try {
    std::string said;
    const int32_t status = abi_version < ANYOP_DEVICE_ABI_VERSION
                               ? int32_t{kAnyopNotImplemented}
                               : anyop::cuda_like::ByName(name, device, &said);
    std::snprintf(text, capacity, "%s", said.c_str());
    return status;
  } catch (const std::exception& error) {
    std::snprintf(text, capacity, "%s", error.what());
    return kAnyopOutOfMemory;
  }
}
