// SPDX-License-Identifier: Apache-2.0
// Finds the function that a text names: in a library, in what Python makes, or among tvm-ffi's
// globals.
#include "foreign_kernel.h"

#include <atomic>
#include <memory>

#include "api/c_error.h"
#include "router/router.h"

namespace anyop::ffi {
namespace {

std::atomic<AnyopFindInPython> find_in_python{nullptr};

// Kind and text of the error that a call left in this thread.
std::string TakeErrorText(const Library& library) {
  TVMFFIObjectHandle error = nullptr;
  library.TakeError(&error);
  if (!error) return "an error without text";
  const TVMFFIErrorCell* cell = TVMFFIErrorGetCellPtr(error);
  const std::string text(cell->message.data, cell->message.size);
  library.DecRef(error);
  return text;
}

TVMFFIObjectHandle FindGlobal(const Library& library, const std::string& name, std::string* why) {
  const TVMFFIByteArray bytes = {name.data(), name.size()};
  TVMFFIObjectHandle found = nullptr;
  if (library.FunctionGetGlobal(&bytes, &found)) {
    *why = TakeErrorText(library);
  } else if (!found) {
    *why = "tvm-ffi has no global function '" + name + "'";
  }
  return found;
}

// The result of a global function of tvm-ffi itself, which must be an object; nullptr and *why.
TVMFFIObjectHandle CallGlobal(const Library& library, const char* name, TVMFFIAny* args, int count,
                              std::string* why) {
  const TVMFFIObjectHandle function = FindGlobal(library, name, why);
  if (!function) return nullptr;
  TVMFFIAny result = {};
  const bool failed = library.FunctionCall(function, args, count, &result);
  if (failed) *why = TakeErrorText(library);
  library.DecRef(function);
  return !failed && result.type_index >= kTVMFFIStaticObjectBegin ? result.v_obj : nullptr;
}

TVMFFIAny RawText(const std::string& text) {
  TVMFFIAny value = {};
  value.type_index = kTVMFFIRawStr;
  value.v_c_str = text.c_str();
  return value;
}

// The function keeps its library alive.
TVMFFIObjectHandle FindInLibrary(const Library& library, const CallText& text,
                                 const std::string& name, std::string* why) {
  TVMFFIAny path = RawText(text.library);
  const TVMFFIObjectHandle module = CallGlobal(library, "ffi.ModuleLoadFromFile", &path, 1, why);
  if (!module) return nullptr;
  TVMFFIAny args[3] = {{}, RawText(name), {}};
  args[0].type_index = kTVMFFIModule;
  args[0].v_obj = static_cast<TVMFFIObject*>(module);
  args[2].type_index = kTVMFFIBool;
  why->clear();
  const TVMFFIObjectHandle found = CallGlobal(library, "ffi.ModuleGetFunction", args, 3, why);
  library.DecRef(module);
  if (!found && why->empty()) *why = text.library + " has no function '" + name + "'";
  return found;
}

TVMFFIObjectHandle Find(const Library& library, const CallText& text, const std::string& name,
                        std::string* why) {
  if (!text.library.empty()) return FindInLibrary(library, text, name, why);
  if (text.module.empty()) return FindGlobal(library, name, why);
  const AnyopFindInPython find = find_in_python.load(std::memory_order_acquire);
  if (find) return find(text.module, name, why);
  *why = "the module " + text.module + " is Python's, which does not run in this process";
  return nullptr;
}

// Of an implementation that was registered.
void ForgetForeign(void* function, void* context) {
  const char* problem = nullptr;
  if (function) OpenedLibrary("libtvm_ffi.so", &problem)->DecRef(function);
  delete static_cast<ForeignCall*>(context);
}

const bool installed = (SetProvider("tvm_ffi", ResolveForeign), true);

}  // namespace

bool ResolveForeign(const Implementation& implementation, AnyopKernel* run, void** context,
                    std::string* why) {
  CallText text;
  auto made = std::make_unique<ForeignCall>();
  made->op = implementation.op;
  if (!ReadCallText(implementation.text, &text, why)) return false;
  if (!ParseCall(text.call, *made->op, &made->plan, why)) return false;
  const char* problem = nullptr;
  RegisterNoted();
  made->library = OpenedLibrary("libtvm_ffi.so", &problem);
  if (!made->library) {
    *why = problem;
    return false;
  }
  made->function = implementation.resolve_context;
  if (made->function) {
    made->library->IncRef(made->function);
  } else {
    made->function = Find(*made->library, text, made->plan.function, why);
  }
  if (!made->function) {
    const char* between = " (needs ";
    for (const std::string& need : text.needs) {
      *why += between + need;
      between = ", ";
    }
    if (!text.needs.empty()) *why += ')';
    return false;
  }
  *run = RunForeign;
  *context = made.release();
  return true;
}

}  // namespace anyop::ffi

void AnyopSetFindInPython(AnyopFindInPython find) {
  anyop::ffi::find_in_python.store(find, std::memory_order_release);
}

void AnyopRetainTvmFfi(void* object) {
  const char* problem = nullptr;
  anyop::ffi::OpenedLibrary("libtvm_ffi.so", &problem)->IncRef(object);
}

int32_t AnyopAddTvmFfiCall(const AnyopOperator* handle, const AnyopImplementation* described,
                           const char* text, void* function) {
  using namespace anyop;
  return Guarded([&] {
    auto* op = reinterpret_cast<Operator*>(const_cast<AnyopOperator*>(handle));
    ffi::CallText read;
    ffi::CallPlan plan;
    std::string error;
    const char* problem = nullptr;
    const ffi::Library* library = ffi::OpenedLibrary("libtvm_ffi.so", &problem);
    if (!ffi::ReadCallText(text, &read, &error) || !ffi::ParseCall(read.call, *op, &plan, &error)) {
      return SetError(kAnyopValueError, (op->name + ": " + error).c_str());
    }
    if (function && !library) return SetError(kAnyopNotImplemented, problem);
    auto made = std::make_unique<Implementation>();
    made->op = op;
    made->backend = described->backend;
    made->name = described->name ? described->name : described->backend;
    made->source = described->source ? described->source : "";
    made->form = "tvm_ffi";
    made->text = text;
    made->device_type = described->device_type;
    made->priority = described->priority;
    made->deterministic = described->flags & kAnyopDeterministic;
    made->resolve = ffi::ResolveForeign;
    made->forget = ffi::ForgetForeign;
    made->resolve_context = function;
    if (function) library->IncRef(function);
    if (!AddImplementation(op, std::move(made), described->when, &error)) {
      return SetError(kAnyopValueError, error.c_str());
    }
    return int32_t{kAnyopOk};
  });
}
