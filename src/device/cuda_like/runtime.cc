// SPDX-License-Identifier: Apache-2.0
// Opens the chosen runtime at its first use. What it says of an error is passed on as it is.
#include "runtime.h"

#include <mutex>

#include "fork.h"

namespace anyop::cuda_like {
namespace {

std::mutex choosing;
Runtime* chosen = nullptr;  // never destroyed: threads may outlive main
std::once_flag opened;

std::string Named(const Api& api, Code code) {
  const char* text = api.GetErrorString(code);
  const char* name = api.GetErrorName(code);
  return std::string("\"") + (text ? text : "") + "\" (" + (name ? name : "no name") + ", " +
         std::to_string(code) + ")";
}

void Open(Runtime* runtime) {
  WatchForks();
  Library& library = runtime->library;
  runtime->problem = OpenLibrary(runtime->row, &library);
  if (!runtime->problem.empty()) return;
  const Code code = library.api.GetDeviceCount(&runtime->count);
  if (code != 0) {
    runtime->count = 0;
    if (library.api.GetLastError) library.api.GetLastError();
    if (code != kNoDevice)
      runtime->problem = runtime->row.vendor + ": " + library.path + " says " +
                         Named(library.api, code) + " when asked for its devices; " +
                         runtime->row.mend;
  }
  runtime->has_stream_memory = library.api.MallocAsync && library.api.FreeAsync;
}

}  // namespace

Runtime* ChooseRuntime(const Row& row, const std::string& name) {
  const std::lock_guard<std::mutex> lock(choosing);
  if (chosen) return nullptr;
  chosen = new Runtime;
  chosen->row = row;
  chosen->name = name;
  return chosen;
}

Runtime& TheRuntime() {
  std::call_once(opened, [] { Open(chosen); });
  return *chosen;
}

int32_t CheckDevice(int32_t device) {
  const char* name = chosen->name.c_str();
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
                        chosen->name.c_str(), static_cast<long long>(bytes));
}

int32_t Check(Code code, const char* doing) {
  if (__builtin_expect(code == 0, 1)) return kAnyopOk;
  const Api& api = TheApi();
  const std::string said = Named(api, code);
  if (api.GetLastError) api.GetLastError();
  return RefuseOnDevice(code == kOutOfMemory ? kAnyopOutOfMemory : kAnyopDeviceError,
                        "%s: %s says %s while %s", chosen->name.c_str(), chosen->row.vendor.c_str(),
                        said.c_str(), doing);
}

int32_t Enter(int32_t device, AnyopDeviceScope* scope) {
  *scope = {};
  if (int32_t status = CheckDevice(device)) return status;
  const Api& api = TheApi();
  int now = -1;
  if (int32_t status = Check(api.GetDevice(&now), "asking for the device")) return status;
  if (__builtin_expect(now == device, 1)) return kAnyopOk;
  if (int32_t status = Check(api.SetDevice(device), "setting the device")) return status;
  *scope = {nullptr, 1, now};
  return kAnyopOk;
}

int32_t Leave(const AnyopDeviceScope* scope) {
  if (!scope->changed) return kAnyopOk;
  return Check(TheApi().SetDevice(scope->reserved), "going back to the device that was current");
}

}  // namespace anyop::cuda_like
