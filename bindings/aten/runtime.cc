// SPDX-License-Identifier: Apache-2.0
// Opens torch and the glue.
#include "runtime.h"

#include <dlfcn.h>

#include <cstring>

#include "anyop/library_file.h"

namespace anyop::aten {

Runtime runtime;

namespace {

constexpr int kMode = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;

// Programs without Python have not loaded torch. libtorch.so brings the parts for devices, too.
std::string LoadTorch(const std::string& folder) {
  if (dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY)) return "";
  const std::string path = folder + "/libtorch.so";
  char why[1024];
  if (AnyopOpenLibraryFile(path.c_str(), kMode, why, sizeof why)) return "";
  return std::string("torch cannot be loaded: ") + why;
}

std::string LoadGlue(const char* path, const std::string& version) {
  char why[1024];
  void* library = AnyopOpenLibraryFile(path, kMode, why, sizeof why);
  if (!library) return why;
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
