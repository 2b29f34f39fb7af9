// SPDX-License-Identifier: Apache-2.0
// Finds the platform: the one that ANYOP_OPENCL_DEVICE names, and never another in its place; else
// the first with a GPU; else the first.
#include "runtime.h"

#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>

#include "fork.h"
#include "streams.h"

namespace anyop::opencl {
namespace {

constexpr const char* kVariable = "ANYOP_OPENCL_DEVICE";

struct Platform {
  Handle id;
  std::string name;
  std::vector<Handle> devices, gpus;
};

const char* NameOf(Code code) {
  switch (code) {
    case -2:
      return "CL_DEVICE_NOT_AVAILABLE";
    case kMemAllocationFailure:
      return "CL_MEM_OBJECT_ALLOCATION_FAILURE";
    case kOutOfResources:
      return "CL_OUT_OF_RESOURCES";
    case kOutOfHostMemory:
      return "CL_OUT_OF_HOST_MEMORY";
    case -7:
      return "CL_PROFILING_INFO_NOT_AVAILABLE";
    case -8:
      return "CL_MEM_COPY_OVERLAP";
    case kBuildFailure:
      return "CL_BUILD_PROGRAM_FAILURE";
    case -14:
      return "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST";
    case -36:
      return "CL_INVALID_COMMAND_QUEUE";
    case kInvalidKernelName:
      return "CL_INVALID_KERNEL_NAME";
    case -51:
      return "CL_INVALID_ARG_SIZE";
    case -52:
      return "CL_INVALID_KERNEL_ARGS";
    case -54:
      return "CL_INVALID_WORK_GROUP_SIZE";
    case kInvalidBufferSize:
      return "CL_INVALID_BUFFER_SIZE";
    default:
      return "error";
  }
}

std::string Open(Api* cl) {
  const char* own = std::getenv("ANYOP_OPENCL_LIBRARY");
  const char* path = own && *own ? own : "libOpenCL.so.1";
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* reason = dlerror();
    return std::string(path) + " cannot be opened: " + (reason ? reason : "no reason given") +
           "; install an OpenCL loader (Debian: ocl-icd-libopencl1) and the vendor's driver";
  }
  std::string missing;
  // NOLINTBEGIN(bugprone-macro-parentheses): parameters of a type
#define ANYOP_FIND(result, name, parameters)                                     \
  cl->name = reinterpret_cast<result(*) parameters>(dlsym(library, "cl" #name)); \
  if (!cl->name) missing += missing.empty() ? "cl" #name : ", cl" #name;
  ANYOP_OPENCL_FUNCTIONS(ANYOP_FIND)
#undef ANYOP_FIND
  // NOLINTEND(bugprone-macro-parentheses)
  if (missing.empty()) return "";
  return std::string(path) + " lacks " + missing + ", expected a loader of OpenCL 1.2 or newer";
}

template <typename Function, typename Object>
std::string Text(Function function, Object object, uint32_t what) {
  size_t bytes = 0;
  if (function(object, what, 0, nullptr, &bytes) || !bytes) return "";
  std::string text(bytes, '\0');
  if (function(object, what, bytes, text.data(), nullptr)) return "";
  return text.c_str();  // without the NUL
}

std::vector<Handle> DevicesOf(const Api& cl, Handle platform, Bits type) {
  uint32_t count = 0;
  if (cl.GetDeviceIDs(platform, type, 0, nullptr, &count)) return {};
  std::vector<Handle> found(count);
  if (count && cl.GetDeviceIDs(platform, type, count, found.data(), nullptr)) return {};
  return found;
}

std::vector<Platform> Platforms(const Api& cl) {
  uint32_t count = 0;
  if (cl.GetPlatformIDs(0, nullptr, &count)) return {};
  std::vector<Handle> ids(count);
  if (count && cl.GetPlatformIDs(count, ids.data(), nullptr)) return {};
  std::vector<Platform> found;
  for (Handle id : ids)
    found.push_back({id, Text(cl.GetPlatformInfo, id, kPlatformName), DevicesOf(cl, id, kTypeAll),
                     DevicesOf(cl, id, kTypeGpu)});
  return found;
}

std::string Small(std::string text) {
  for (char& letter : text)
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return text;
}

std::string Listed(const std::vector<Platform>& platforms) {
  std::string text;
  for (const Platform& p : platforms)
    text += (text.empty() ? "" : ", ") + p.name + " (devices: " + std::to_string(p.devices.size()) +
            ")";
  return text.empty() ? "no platform at all" : text;
}

// "NVIDIA", "NVIDIA:1": of the platform whose name has these letters all its devices, or one.
std::string Choose(const std::vector<Platform>& platforms, const std::string& wanted,
                   Platform* chosen) {
  const size_t colon = wanted.rfind(':');
  const std::string name = Small(wanted.substr(0, colon));
  for (const Platform& p : platforms) {
    if (Small(p.name).find(name) == std::string::npos) continue;
    *chosen = p;
    if (!p.gpus.empty() && p.gpus.size() < p.devices.size()) chosen->devices = p.gpus;
    if (colon == std::string::npos) return "";
    const std::string digits = wanted.substr(colon + 1);
    const bool is_number =
        !digits.empty() && digits.size() < 4 &&
        std::all_of(digits.begin(), digits.end(), [](unsigned char c) { return std::isdigit(c); });
    const size_t number = is_number ? std::stoul(digits) : p.devices.size();
    if (number >= p.devices.size())
      return std::string(kVariable) + "=" + wanted + ": " + p.name + " has " +
             std::to_string(p.devices.size()) + " devices, counted from 0";
    chosen->devices = {p.devices[number]};
    return "";
  }
  return std::string(kVariable) + "=" + wanted + ": no such platform; there is " +
         Listed(platforms) + ". Is the vendor's .icd file in /etc/OpenCL/vendors?";
}

void Fill(const Api& cl, Handle id, Device* device) {
  device->id = id;
  device->name = Text(cl.GetDeviceInfo, id, kDeviceName);
  device->driver = Text(cl.GetDeviceInfo, id, kDriverVersion);
  device->version = Text(cl.GetDeviceInfo, id, kDeviceVersion);
  uint64_t config = 0;
  cl.GetDeviceInfo(id, kDeviceGlobalBytes, 8, &device->total_bytes, nullptr);
  cl.GetDeviceInfo(id, kDeviceMaxAllocation, 8, &device->largest_bytes, nullptr);
  cl.GetDeviceInfo(id, kDeviceLocalBytes, 8, &device->local_bytes, nullptr);
  cl.GetDeviceInfo(id, kDeviceUnits, 4, &device->units, nullptr);
  cl.GetDeviceInfo(id, kDeviceDoubleConfig, 8, &config, nullptr);
  device->has_double = config != 0;
  if (device->version.find("CUDA") != std::string::npos)
    cl.GetDeviceInfo(id, kDeviceNvidiaMajor, 4, &device->nvidia_major, nullptr);
}

void Start(Runtime* made) {
  made->problem = Open(&made->cl);
  if (!made->problem.empty()) return;
  const std::vector<Platform> platforms = Platforms(made->cl);
  const char* wanted = std::getenv(kVariable);
  Platform chosen = {};
  if (wanted && *wanted) {
    made->problem = Choose(platforms, wanted, &chosen);
    if (!made->problem.empty()) return;
  }
  for (const Platform& p : platforms) {
    if (!chosen.id && !p.gpus.empty()) chosen = {p.id, p.name, p.gpus, p.gpus};
  }
  for (const Platform& p : platforms) {
    if (!chosen.id && !p.devices.empty()) chosen = p;
  }
  if (chosen.devices.empty()) {
    made->problem = "libOpenCL is there, but " + Listed(platforms) +
                    "; install the vendor's OpenCL driver (Debian, for CPUs: pocl-opencl-icd)";
    made->lacks_all = true;
    return;
  }
  made->platform = chosen.name + ", " + Text(made->cl.GetPlatformInfo, chosen.id, kPlatformVersion);
  Code code = 0;
  made->context = made->cl.CreateContext(nullptr, static_cast<uint32_t>(chosen.devices.size()),
                                         chosen.devices.data(), nullptr, nullptr, &code);
  if (!made->context) {
    made->problem =
        chosen.name + " makes no context: " + NameOf(code) + " (" + std::to_string(code) + ")";
    return;
  }
  for (Handle id : chosen.devices) Fill(made->cl, id, made->devices.emplace_back(new Device).get());
  std::atexit(FinishAll);  // what the streams still have to do is done before the end
}

// exit() ends the main thread's objects first. What a driver made since Start is gone by the time
// that atexit's handler runs, and PoCL's threads, which compile a kernel once it is started, need
// it.
struct MainThread {
  ~MainThread() {
    if (syscall(SYS_gettid) == getpid()) FinishAll();
  }
};

}  // namespace

Runtime& TheRuntime() {
  static Runtime* runtime = new Runtime;  // never destroyed: threads may outlive main
  static std::once_flag once;
  std::call_once(once, [] {
    WatchForks();
    Start(runtime);
  });
  thread_local const MainThread until_the_end;
  (void)until_the_end;  // in each thread that comes here: any may be the main one
  return *runtime;
}

int32_t CheckDevice(int32_t device, Device** found) {
  if (Forked()) return RefuseOnDevice(kAnyopDeviceError, "opencl: %s", kForkedText);
  Runtime& runtime = TheRuntime();
  if (!runtime.problem.empty())
    return RefuseOnDevice(kAnyopDeviceError, "opencl: %s", runtime.problem.c_str());
  if (device < 0 || static_cast<size_t>(device) >= runtime.devices.size())
    return RefuseOnDevice(kAnyopDeviceError, "opencl: there is no device %d; %s has %zu", device,
                          runtime.platform.c_str(), runtime.devices.size());
  if (found) *found = runtime.devices[static_cast<size_t>(device)].get();
  return kAnyopOk;
}

int32_t CheckBytes(const char* what, int64_t bytes) {
  if (bytes >= 0) return kAnyopOk;
  return RefuseOnDevice(kAnyopValueError, "opencl: %s of %lld bytes", what, (long long)bytes);
}

int32_t Check(Code code, const char* doing) {
  if (code == 0) return kAnyopOk;
  const bool is_memory =
      code == kMemAllocationFailure || code == kOutOfHostMemory || code == kInvalidBufferSize;
  return RefuseOnDevice(is_memory ? kAnyopOutOfMemory : kAnyopDeviceError,
                        "opencl: %s says %s (%d) while %s", TheRuntime().platform.c_str(),
                        NameOf(code), code, doing);
}

}  // namespace anyop::opencl
