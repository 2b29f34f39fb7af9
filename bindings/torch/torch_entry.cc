// SPDX-License-Identifier: Apache-2.0
// Defines schemas and kernels in torch's dispatcher, by the registry's word.
#include "torch_entry.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "anyop/library_file.h"
#include "operator/registry.h"
#include "signature.h"
#include "threads/pool.h"
#include "trampolines.h"

namespace anyop::torch {
namespace {

constexpr char kLibrary[] = "libtorch_cpu.so";  // whose OpenMP runtime is torch's
constexpr const char* kKeys[] = {"CPU", "CUDA", "PrivateUse1", "Autograd"};
constexpr int kNumDevices = 3;
constexpr int kNumKeys = 4;

// torch's handles of one namespace. They own the registrations, and are never let go.
struct Space {
  LibraryHandle fragment = nullptr;
  LibraryHandle keys[kNumKeys] = {};
};

std::mutex lock;  // taken under the registry's
std::map<std::string, Space>& Spaces() {
  static auto* spaces = new std::map<std::string, Space>;
  return *spaces;
}
std::map<std::string, std::string>& Problems() {
  static auto* problems = new std::map<std::string, std::string>;
  return *problems;
}

bool OpenSpace(const char* name, Space* space) {
  const Shim& shim = *runtime.shim;
  if (space->fragment) return true;
  if (shim.library_fragment(name, "anyop", 1, &space->fragment)) return false;
  for (int k = 0; k < kNumKeys; ++k) {
    if (shim.library_for_key(name, kKeys[k], "anyop", 1, &space->keys[k])) return false;
  }
  return true;
}

bool ImplementByGlue(const Operator& op, Form form, const char* key, const std::string& kinds) {
  const std::string name = TorchName(op);
  AnyopTorchBoxed kernel = {};
  kernel.name = name.c_str();
  kernel.overload = form.destination ? "out" : "";
  kernel.key = key;
  kernel.kinds = kinds.c_str();
  kernel.recorded = RecordingOverload(form);
  kernel.run = RunLent;
  kernel.failed = FailRecording;
  kernel.context = SlotFor(&op, form);
  kernel.num_results = form.destination ? 0 : op.num_outputs;
  return runtime.glue.load()->implement(&kernel) == 0;
}

bool Implement(const Operator& op, Form form, const Space& space, int k) {
  const Shim& shim = *runtime.shim;
  const std::string kinds = runtime.glue.load() ? Kinds(op, form) : "";
  if (!kinds.empty()) return ImplementByGlue(op, form, kKeys[k], kinds);
  const LibraryHandle key = space.keys[k];
  const BoxedKernel kernel = TrampolineFor(&op, form);
  const std::string name = op.table->name + std::string(form.destination ? ".out" : "");
  return !(shim.library_impl ? shim.library_impl(key, name.c_str(), kernel, kBuiltFor)
                             : shim.library_impl_2_9(key, name.c_str(), kernel));
}

// One overload, with the glue at the Autograd keys too. What is to be recorded there goes to an
// overload of its own with a kernel in Python, which is not defined before it is needed: an
// overload is 12 KB.
const char* DefineForm(const Operator& op, bool destination, const Space& space) {
  const bool records = runtime.glue.load() != nullptr;
  for (const Form form : {Form{destination, false}, Form{destination, true}}) {
    if (form.records && !records) break;
    if (!TrampolineFor(&op, form))
      return "all 4096 entry points for torch are taken by operators loaded before";
    if (!form.records && runtime.shim->library_def(space.fragment, Signature(op, form).c_str()))
      return "torch refused its schema, or another library has defined it";
    const int first = form.records ? kNumDevices : 0, end = form.records ? kNumKeys : kNumDevices;
    for (int k = first; k < end; ++k) {
      if (!Implement(op, form, space, k)) return "torch refused its kernel";
    }
  }
  return nullptr;
}

const char* Define(const Operator& op) {
  if (NeedsListsOrText(op) && !(runtime.shim->list_size && runtime.shim->string_size))
    return "it takes lists or text, which torch's C ABI has from torch 2.10 on";
  Space& space = Spaces()[op.table->name_space];
  if (!OpenSpace(op.table->name_space, &space)) return "torch refused the namespace";
  const char* problem = DefineForm(op, false, space);
  const bool has_places = op.num_outputs > 0 && !HasMask(op);
  return problem || !has_places ? problem : DefineForm(op, true, space);
}

void Observe(Operator* op) {
  try {
    std::lock_guard<std::mutex> guard(lock);
    if (const char* problem = Define(*op)) Problems()[op->full_name] = problem;
    // NOLINTNEXTLINE(bugprone-empty-catch)
  } catch (const std::bad_alloc&) {  // it is then not there, and torch says so
  }
}

}  // namespace

// By torch's C function: its own in Python changes the hash of the operator's packet.
bool DefineRecording(const Operator& op, Form form) {
  static auto* defined = new std::set<std::pair<const Operator*, bool>>;
  const std::lock_guard<std::mutex> guard(lock);
  if (defined->count({&op, form.destination})) return true;
  const Space& space = Spaces()[op.table->name_space];
  if (runtime.shim->library_def(space.fragment, Signature(op, form).c_str())) return false;
  defined->insert({&op, form.destination});
  return true;
}

}  // namespace anyop::torch

const char* AnyopRegisterTorch(const AnyopTorchGlue* glue, AnyopTorchRaise raise,
                               AnyopTorchRecorder recorder) {
  using namespace anyop::torch;
  static std::mutex once;
  static bool done = false;
  const std::lock_guard<std::mutex> guard(once);
  if (done) return nullptr;
  runtime.glue.store(glue, std::memory_order_release);
  runtime.raise = raise;
  runtime.recorder = recorder;
  const char* why = nullptr;
  runtime.shim = LoadShim(&why);
  if (!runtime.shim) return why;
  anyop::UseTeamOf(kLibrary);
  try {
    anyop::ObserveOperators(Observe);
  } catch (const std::bad_alloc&) {
    return "out of memory";
  }
  done = true;
  return nullptr;
}

const AnyopTorchGlue* AnyopOpenTorchGlue(const char* path, const char* torch_version,
                                         const char** why) {
  static thread_local char problem[1024];
  *why = problem;
  void* library =
      AnyopOpenLibraryFile(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE, problem, sizeof problem);
  if (!library) return nullptr;
  auto entry = reinterpret_cast<AnyopTorchGlueFunction>(dlsym(library, "AnyopTorchGlueEntry"));
  const AnyopTorchGlue* glue = entry ? entry() : nullptr;
  if (!glue || glue->version != ANYOP_TORCH_GLUE_VERSION || glue->size < sizeof(AnyopTorchGlue)) {
    std::snprintf(problem, sizeof problem, "%s is no glue of this version of anyop", path);
  } else if (std::strcmp(glue->torch_version, torch_version) != 0) {
    std::snprintf(problem, sizeof problem, "%s is for torch %s, and torch %s is loaded", path,
                  glue->torch_version, torch_version);
  } else {
    anyop::UseTeamOf(anyop::torch::kLibrary);
    return glue;
  }
  return nullptr;
}

const char* AnyopTorchProblem(const char* name) {
  using namespace anyop::torch;
  try {
    const anyop::Operator* op = anyop::FindOperator(name);
    const std::lock_guard<std::mutex> guard(lock);
    const auto found = op ? Problems().find(op->full_name) : Problems().end();
    return found == Problems().end() ? nullptr : found->second.c_str();
  } catch (const std::bad_alloc&) {
    return "out of memory";
  }
}
