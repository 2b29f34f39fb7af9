// SPDX-License-Identifier: Apache-2.0
// Opens torch and the glue.
#include "runtime.h"

#include <dlfcn.h>

#include <cstring>

namespace anyop::aten {

Runtime runtime;

namespace {

// Programs without Python have not loaded torch. libtorch.so brings the parts for devices, too.
std::string LoadTorch(const std::string& folder) {
  if (dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY)) return "";
  const std::string path = folder + "/libtorch.so";
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) return "";
  const char* why = dlerror();
  return std::string("torch cannot be loaded: ") + (why ? why : path.c_str());
}

std::string LoadGlue(const char* path, const std::string& version) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!library) {
    const char* why = dlerror();
    return why ? why : path;
  }
  const auto entry =
      reinterpret_cast<AnyopTorchAtenGlueFunction>(dlsym(library, "AnyopTorchAtenGlueEntry"));
  const AnyopTorchAtenGlue* glue = entry ? entry() : nullptr;
  if (!glue || glue->version != ANYOP_TORCH_ATEN_GLUE_VERSION || glue->size < sizeof *glue)
    return std::string(path) + " is no ATen glue of this version of anyop";
  if (version != glue->torch_version)
    return std::string(path) + " is for torch " + glue->torch_version + ", the table for " +
           version;
  runtime.glue = glue;
  return "";
}

}  // namespace

std::string StartRuntime(const std::string& libraries, const std::string& version,
                         const char* glue) {
  std::string why = LoadTorch(libraries);
  if (!why.empty()) return why;
  const char* problem = nullptr;
  runtime.shim = torch::LoadShim(&problem);
  if (!runtime.shim) return problem;
  return glue ? LoadGlue(glue, version) : "";
}

}  // namespace anyop::aten
