// SPDX-License-Identifier: Apache-2.0
// A program is its device's text (prelude.cl, then the image) under the options of one call; a
// kernel is set and started under its lock, for OpenCL keeps its arguments in it.
#include "programs.h"

#include <cstring>
#include <map>

#include "memory.h"
#include "streams.h"

__asm__(
    ".pushsection .rodata\n.local kAnyopOpenclPrelude\nkAnyopOpenclPrelude:\n"
    ".incbin \"" ANYOP_OPENCL_PRELUDE "\"\n.byte 0\n.popsection\n");
extern "C" __attribute__((visibility("hidden"))) const char kAnyopOpenclPrelude[];

namespace anyop::opencl {
namespace {

struct Program {
  int32_t device;
  std::string name;
  Handle handle;
};

struct Kernel {
  int32_t device;
  std::string entry;
  Handle handle;
  uint32_t arguments = 0;
  size_t most_threads = 0;
  uint64_t local_bytes = 0;
  std::mutex mutex;
  std::map<uint32_t, std::string> values;  // that arguments have by now; not those that are buffers
};

struct Programs {
  std::mutex mutex;  // also held while one is built
  std::map<std::string, std::unique_ptr<Program>> by_identity;
};

Programs& ThePrograms() {
  static auto* programs = new Programs;
  return *programs;
}

std::string BuildLog(const Device& device, Handle program) {
  const Api& cl = TheRuntime().cl;
  size_t bytes = 0;
  cl.GetProgramBuildInfo(program, device.id, kBuildLog, 0, nullptr, &bytes);
  std::string log(bytes, '\0');
  if (!bytes || cl.GetProgramBuildInfo(program, device.id, kBuildLog, bytes, log.data(), nullptr))
    return "no log";
  log = log.c_str();
  const size_t error = log.find("error:");  // the line of the first one, before warnings
  const size_t line = error == std::string::npos ? std::string::npos : log.rfind('\n', error);
  return line == std::string::npos ? log : log.substr(line + 1);
}

Code Build(const Device& device, Handle program, const char* options) {
  return TheRuntime().cl.BuildProgram(program, 1, &device.id, options, nullptr, nullptr);
}

// nullptr: the cache has none that this driver takes.
Handle FromCache(const Device& device, const std::string& identity, const char* options) {
  const std::string binary = ReadProgram(identity);
  if (binary.empty()) return nullptr;
  Runtime& runtime = TheRuntime();
  const size_t bytes = binary.size();
  const auto* data = reinterpret_cast<const unsigned char*>(binary.data());
  Code code = 0, loaded = 0;
  Handle program = runtime.cl.CreateProgramWithBinary(runtime.context, 1, &device.id, &bytes, &data,
                                                      &loaded, &code);
  if (!code && !loaded && program && !Build(device, program, options)) return program;
  if (program) runtime.cl.ReleaseProgram(program);
  return nullptr;
}

void ToCache(const std::string& identity, Handle program) {
  const Api& cl = TheRuntime().cl;
  // Of each device of the context; one alone has been built for.
  std::vector<size_t> sizes(TheRuntime().devices.size());
  if (cl.GetProgramInfo(program, kProgramBinarySizes, sizes.size() * sizeof(size_t), sizes.data(),
                        nullptr))
    return;
  std::vector<std::string> binaries;
  for (size_t bytes : sizes) binaries.emplace_back(bytes, '\0');
  std::vector<char*> places;
  for (std::string& binary : binaries) places.push_back(binary.empty() ? nullptr : binary.data());
  if (cl.GetProgramInfo(program, kProgramBinaries, places.size() * sizeof(char*), places.data(),
                        nullptr))
    return;
  for (const std::string& binary : binaries) {
    if (!binary.empty()) return KeepProgram(identity, binary);
  }
}

int32_t FromSource(const Device& device, const std::string& text, const AnyopDeviceImage& image,
                   const char* options, Handle* program) {
  Runtime& runtime = TheRuntime();
  const char* data = text.data();
  const size_t bytes = text.size();
  Code code = 0;
  *program = runtime.cl.CreateProgramWithSource(runtime.context, 1, &data, &bytes, &code);
  if (int32_t status = Check(code, "taking a program")) return status;
  code = Build(device, *program, options);
  if (code == 0) return kAnyopOk;
  const std::string log = BuildLog(device, *program);
  runtime.cl.ReleaseProgram(*program);
  if (code != kBuildFailure) return Check(code, "building a program");
  return RefuseOnDevice(kAnyopDeviceError, "opencl: %s does not compile on %s: %s", image.name,
                        device.name.c_str(), log.c_str());
}

std::string KernelNames(Handle program) {
  const Api& cl = TheRuntime().cl;
  size_t bytes = 0;
  if (cl.GetProgramInfo(program, kProgramKernelNames, 0, nullptr, &bytes) || !bytes) return "";
  std::string names(bytes, '\0');
  cl.GetProgramInfo(program, kProgramKernelNames, bytes, names.data(), nullptr);
  return names.c_str();
}

// Under the kernel's lock.
// A driver takes a microsecond for each.
Code SetValue(Kernel* kernel, uint32_t at, const void* value, size_t bytes) {
  std::string& last = kernel->values[at];
  if (last.size() == bytes && !std::memcmp(last.data(), value, bytes)) return 0;
  last.assign(static_cast<const char*>(value), bytes);
  const Code code = TheRuntime().cl.SetKernelArg(kernel->handle, at, bytes, value);
  if (code) last.clear();
  return code;
}

int32_t SetArguments(Kernel* kernel, const AnyopDeviceLaunch& launch) {
  const Api& cl = TheRuntime().cl;
  uint32_t at = 0;
  for (uint32_t i = 0; i < launch.num_values; ++i) {
    Code code;
    if (launch.bytes[i]) {
      code = SetValue(kernel, at++, launch.values[i], launch.bytes[i]);
    } else {
      const void* memory = *static_cast<const void* const*>(launch.values[i]);
      Place place;
      if (memory) {
        if (int32_t status = Resolve(kernel->device, memory, "a tensor", &place)) return status;
      }
      code =
          cl.SetKernelArg(kernel->handle, at++, sizeof(Handle), memory ? &place.buffer : nullptr);
      if (!code) code = SetValue(kernel, at++, &place.offset, sizeof place.offset);
    }
    if (code)
      return Check(code,
                   ("setting argument " + std::to_string(i + 1) + " of " + kernel->entry).c_str());
  }
  if (launch.shared_bytes == 0) return kAnyopOk;
  return Check(
      cl.SetKernelArg(kernel->handle, at, static_cast<size_t>(launch.shared_bytes), nullptr),
      "asking for local memory");
}

int32_t CheckLaunch(const Device& device, const Kernel& kernel, const AnyopDeviceLaunch& launch) {
  uint32_t tensors = 0;
  for (uint32_t i = 0; i < launch.num_values; ++i) tensors += launch.bytes[i] == 0;
  const uint32_t given = launch.num_values + tensors + (launch.shared_bytes > 0);
  if (given != kernel.arguments)
    return RefuseOnDevice(kAnyopInternalError,
                          "opencl: %s takes %u arguments, and %u are passed (two for each tensor, "
                          "one for shared_bytes)",
                          kernel.entry.c_str(), kernel.arguments, given);
  const uint64_t threads =
      static_cast<uint64_t>(launch.block[0] * launch.block[1] * launch.block[2]);
  if (threads > kernel.most_threads)
    return RefuseOnDevice(kAnyopValueError, "opencl: a block of %s has %llu threads, %s takes %zu",
                          kernel.entry.c_str(), (unsigned long long)threads, device.name.c_str(),
                          kernel.most_threads);
  const uint64_t local = kernel.local_bytes + static_cast<uint64_t>(launch.shared_bytes);
  if (launch.shared_bytes < 0 || local > device.local_bytes)
    return RefuseOnDevice(kAnyopValueError,
                          "opencl: %s asks for %llu bytes of local memory, %s has %llu",
                          kernel.entry.c_str(), (unsigned long long)local, device.name.c_str(),
                          (unsigned long long)device.local_bytes);
  return kAnyopOk;
}

}  // namespace

int32_t LoadImage(int32_t index, const AnyopDeviceImage* image, void** loaded) {
  Device* device;
  *loaded = nullptr;
  if (int32_t status = CheckDevice(index, &device)) return status;
  if (!image || image->size < sizeof *image || !image->data || !image->name || image->bytes < 0)
    return RefuseOnDevice(kAnyopValueError, "opencl: the image has no name, text or size");
  const std::string options =
      "-cl-std=CL1.2 -DNVIDIA_MAJOR=" + std::to_string(device->nvidia_major) + " " +
      (image->options ? image->options : "");
  if (options.find("-DREAL_IS_DOUBLE=1") != std::string::npos && !device->has_double)
    return RefuseOnDevice(kAnyopNotImplemented, "opencl: %s has no float64", device->name.c_str());
  const std::string text =
      std::string(kAnyopOpenclPrelude) + "\n#line 1 \"" + image->name + "\"\n" +
      std::string(static_cast<const char*>(image->data), static_cast<size_t>(image->bytes));
  const std::string identity = TheRuntime().platform + "\n" + device->name + "\n" + device->driver +
                               "\n" + device->version + "\n" + options + "\n" + text;
  Programs& programs = ThePrograms();
  const std::lock_guard<std::mutex> lock(programs.mutex);
  std::unique_ptr<Program>& program = programs.by_identity[std::to_string(index) + "\n" + identity];
  if (!program) {
    Handle handle = FromCache(*device, identity, options.c_str());
    if (!handle) {
      if (int32_t status = FromSource(*device, text, *image, options.c_str(), &handle))
        return status;
      ToCache(identity, handle);
    }
    program.reset(new Program{index, image->name, handle});
  }
  *loaded = program.get();
  return kAnyopOk;
}

int32_t FindKernel(int32_t index, void* loaded, const char* entry, void** found) {
  Device* device;
  *found = nullptr;
  if (int32_t status = CheckDevice(index, &device)) return status;
  const auto* program = static_cast<const Program*>(loaded);
  if (!program || !entry || program->device != index)
    return RefuseOnDevice(kAnyopValueError, "opencl: no image of this device, or no entry");
  const Api& cl = TheRuntime().cl;
  Code code = 0;
  auto kernel = std::make_unique<Kernel>();
  kernel->device = index;
  kernel->entry = entry;
  kernel->handle = cl.CreateKernel(program->handle, entry, &code);
  if (code == kInvalidKernelName)
    return RefuseOnDevice(kAnyopNotImplemented, "opencl: %s has no kernel %s; it has %s",
                          program->name.c_str(), entry, KernelNames(program->handle).c_str());
  if (int32_t status = Check(code, "making a kernel")) return status;
  cl.GetKernelInfo(kernel->handle, kKernelNumArguments, 4, &kernel->arguments, nullptr);
  cl.GetKernelWorkGroupInfo(kernel->handle, device->id, kKernelGroupSize, sizeof(size_t),
                            &kernel->most_threads, nullptr);
  cl.GetKernelWorkGroupInfo(kernel->handle, device->id, kKernelLocalBytes, 8, &kernel->local_bytes,
                            nullptr);
  *found = kernel.release();  // kept, as images are
  return kAnyopOk;
}

int32_t LaunchKernel(int32_t index, void* handle, void* started, const AnyopDeviceLaunch* launch) {
  Device* device;
  Stream* stream;
  if (int32_t status = CheckDevice(index, &device)) return status;
  if (int32_t status = FindStream(index, handle, &stream)) return status;
  auto* kernel = static_cast<Kernel*>(started);
  if (!kernel || kernel->device != index || !launch || launch->size < sizeof *launch)
    return RefuseOnDevice(kAnyopValueError, "opencl: no kernel of this device, or no launch");
  if (int32_t status = CheckLaunch(*device, *kernel, *launch)) return status;
  size_t global[3], local[3];
  for (int i = 0; i < 3; ++i) {
    local[i] = static_cast<size_t>(launch->block[i]);
    global[i] = static_cast<size_t>(launch->grid[i]) * local[i];
    if (global[i] == 0) return kAnyopOk;
  }
  const std::lock_guard<std::mutex> lock(kernel->mutex);
  if (int32_t status = SetArguments(kernel, *launch)) return status;
  return Check(Put(stream,
                   [&](Handle queue) {
                     return TheRuntime().cl.EnqueueNDRangeKernel(
                         queue, kernel->handle, 3, nullptr, global, local, 0, nullptr, nullptr);
                   }),
               ("starting " + kernel->entry).c_str());
}

}  // namespace anyop::opencl
