// SPDX-License-Identifier: Apache-2.0
// Opens the chosen runtime at its first use. What it says of an error is passed on as it is.
#include "runtime.h"

#include <algorithm>
#include <mutex>

namespace anyop::cuda_like {
namespace {

std::mutex choosing;

std::string Named(const Api& api, Code code) {
  const char* text = api.GetErrorString(code);
  const char* name = api.GetErrorName(code);
  return std::string("\"") + (text ? text : "") + "\" (" + (name ? name : "no name") + ", " +
         std::to_string(code) + ")";
}

Runtime* Open(Runtime* runtime) {
  WatchForks();
  Library& library = runtime->library;
  runtime->problem = OpenLibrary(runtime->row, &library);
  if (!runtime->problem.empty()) return runtime;
  const Code code = library.api.GetDeviceCount(&runtime->count);
  if (code != 0) {
    runtime->count = 0;
    if (library.api.GetLastError) library.api.GetLastError();
    if (code != kNoDevice)
      runtime->problem = runtime->row.vendor + ": " + library.path + " says " +
                         Named(library.api, code) + " when asked for its devices; " +
                         runtime->row.mend;
  }
  runtime->handles_know_device = runtime->row.shape == "cuda";
  runtime->has_stream_memory = library.api.MallocAsync && library.api.FreeAsync;
  if (runtime->problem.empty())
    usable_devices.store(static_cast<uint32_t>(std::min(runtime->count, kMaxDevices)),
                         std::memory_order_release);
  return runtime;
}

}  // namespace

Runtime* chosen_runtime = nullptr;
std::atomic<uint32_t> usable_devices{0};

Runtime* ChooseRuntime(const Row& row, const std::string& name) {
  const std::lock_guard<std::mutex> lock(choosing);
  if (chosen_runtime) return nullptr;
  chosen_runtime = new Runtime;
  chosen_runtime->row = row;
  chosen_runtime->name = name;
  return chosen_runtime;
}

Runtime& OpenRuntime() {
  static Runtime* const runtime = Open(chosen_runtime);
  return *runtime;
}

int32_t OpenOrRefuse(int32_t device) {
  const char* name = chosen_runtime->name.c_str();
  if (Forked()) return RefuseOnDevice(kAnyopDeviceError, "%s: %s", name, kForkedText);
  const Runtime& runtime = TheRuntime();
  if (!runtime.problem.empty())
    return RefuseOnDevice(kAnyopDeviceError, "%s: %s", name, runtime.problem.c_str());
  if (device >= 0 && device < runtime.count && device < kMaxDevices) return kAnyopOk;
  if (runtime.count == 0)
    return RefuseOnDevice(kAnyopDeviceError, "%s: %s finds no device of %s; %s", name,
                          runtime.library.path.c_str(), runtime.row.vendor.c_str(),
                          runtime.row.mend.c_str());
  return RefuseOnDevice(kAnyopDeviceError, "%s: there is no device %d; this process sees %d", name,
                        device, runtime.count);
}

int32_t CheckBytes(int64_t bytes) {
  if (bytes >= 0) return kAnyopOk;
  return RefuseOnDevice(kAnyopValueError, "%s: a negative number of bytes, %lld",
                        chosen_runtime->name.c_str(), static_cast<long long>(bytes));
}

int32_t NoteFailure(Code code, const char* doing) {
  const Api& api = TheApi();
  const std::string said = Named(api, code);
  if (api.GetLastError) api.GetLastError();
  return RefuseOnDevice(code == kOutOfMemory ? kAnyopOutOfMemory : kAnyopDeviceError,
                        "%s: %s says %s while %s", chosen_runtime->name.c_str(),
                        chosen_runtime->row.vendor.c_str(), said.c_str(), doing);
}

int32_t Leave(const AnyopDeviceScope* scope) {
  if (!scope->changed) return kAnyopOk;
  return Check(TheApi().SetDevice(scope->reserved), "going back to the device that was current");
}

}  // namespace anyop::cuda_like
