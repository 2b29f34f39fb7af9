// SPDX-License-Identifier: Apache-2.0
// One C function serves every operator as tvm-ffi's global function; the function object carries
// which one it is.
#include "tvm_ffi_entry.h"

#include <atomic>
#include <mutex>
#include <new>

#include "call/call.h"
#include "library.h"
#include "operator/registry.h"
#include "tensors/memory.h"
#include "values.h"

namespace anyop::ffi {
namespace {

Library library;
std::atomic<AnyopRaiseInPython> raise_in_python{nullptr};
std::atomic<const char*> noted{nullptr};  // where libtvm_ffi lies
constexpr int kErrorIsPythons = -2;       // tvm-ffi's word for it

const char* ErrorKind(int32_t status) {
  switch (status) {
    case kAnyopValueError:
      return "ValueError";
    case kAnyopTypeError:
      return "TypeError";
    case kAnyopNotImplemented:
      return "NotImplementedError";
    case kAnyopIndexError:
      return "IndexError";
    case kAnyopOutOfMemory:
      return "MemoryError";
    case kAnyopDeviceError:
      return "DeviceError";
    default:
      return "InternalError";
  }
}

// The results that were made in this call; let go of again unless they are handed out.
class Results {
 public:
  explicit Results(const Operator& op) : op_(op) {}
  Results(const Results&) = delete;
  Results& operator=(const Results&) = delete;
  ~Results() {
    for (uint32_t o = 0; o < op_.num_outputs; ++o) {
      if (made_[o].type_index == kTVMFFITensor) library.DecRef(made_[o].v_obj);
    }
  }

  // By the allocator that tvm-ffi keeps for this thread, which is that of the caller's framework.
  static int32_t Allocate(Frame* frame, uint32_t output, AnyopTensor* tensor) {
    TVMFFIObjectHandle handle;
    if (library.TensorAlloc(reinterpret_cast<DLTensor*>(tensor), &handle)) return kAnyopPending;
    TVMFFIAny& made = static_cast<Results*>(frame->binding)->made_[output];
    made.type_index = kTVMFFITensor;
    made.v_obj = static_cast<TVMFFIObject*>(handle);
    const AnyopTensor wanted = *tensor;
    std::memcpy(tensor, TensorOf(made), sizeof *tensor);
    if (tensor->ndim != wanted.ndim)
      return Fail(frame, kAnyopInternalError, "the allocator made another shape");
    tensor->data = static_cast<char*>(tensor->data) + tensor->byte_offset;
    tensor->byte_offset = 0;
    tensor->shape = wanted.shape;
    if (!tensor->strides) tensor->strides = wanted.strides;
    return kAnyopOk;
  }

  // One result alone, several as an Array with None where one was given or not wanted; None when
  // all were.
  int Return(TVMFFIAny* result) {
    int count = 0;
    for (uint32_t o = 0; o < op_.num_outputs; ++o) count += made_[o].type_index == kTVMFFITensor;
    if (count > 0 && op_.num_outputs > 1) {
      return library.FunctionCall(library.make_array, made_, static_cast<int32_t>(op_.num_outputs),
                                  result);
    }
    *result = made_[0];
    made_[0] = {};
    return 0;
  }

 private:
  const Operator& op_;
  TVMFFIAny made_[kMaxParams] = {};
};

int32_t Missing(Frame* frame, const Param& p) {
  return Fail(frame, kAnyopTypeError, "%s is missing in %s", p.name, frame->op->table->schema);
}

// absent: not given at all, as opposed to None.
int32_t FillNone(Frame* frame, const Param& p, bool absent) {
  if (p.Is(kAnyopOutput)) return kAnyopOk;  // the core makes it
  if (p.Is(kAnyopOptional) && !absent) {
    const bool is_list_of_optional = p.IsTensor() && p.IsList() && !p.Is(kAnyopHasDefault);
    return is_list_of_optional ? Missing(frame, p) : int32_t{kAnyopOk};
  }
  const bool defaulted =
      p.IsTensor() ? p.Is(kAnyopHasDefault) || p.Is(kAnyopOptional) : SetDefault(frame, p);
  return defaulted ? int32_t{kAnyopOk} : Missing(frame, p);
}

int32_t FillFrame(Frame* frame, const TVMFFIAny* args, uint32_t count) {
  const Operator& op = *frame->op;
  const uint32_t total = op.num_inputs + op.num_outputs;
  if (count > total) {
    return Fail(frame, kAnyopTypeError,
                "got %u arguments, expected at most %u (the results last): %s", count, total,
                op.table->schema);
  }
  for (uint32_t i = 0; i < total; ++i) {
    const Param& p = op.params[i];
    const TVMFFIAny value = i < count ? Resolve(args[i]) : TVMFFIAny{};
    int32_t status = kAnyopOk;
    if (value.type_index == kTVMFFINone) {
      status = FillNone(frame, p, i >= count);
    } else if (p.Is(kAnyopOutput) && p.Is(kAnyopOptional) && value.type_index == kTVMFFIBool &&
               !value.v_int64) {
      frame->unwanted |= uint64_t{1} << i;  // False: not needed
    } else {
      status = SetArgument(library, frame, i, value);
      frame->given |= uint64_t{1} << i;
    }
    if (status != kAnyopOk) return status;
  }
  return kAnyopOk;
}

void* StreamOf(const Frame& frame) {
  for (uint32_t i = 0; i < frame.op->params.size(); ++i) {
    const Param& p = frame.op->params[i];
    if (!p.IsTensor() || p.IsList() || !(frame.given >> i & 1)) continue;
    const AnyopTensor& t = frame.tensors[i];
    return t.device_type == kDLCPU ? nullptr : library.GetStream(t.device_type, t.device_id);
  }
  return nullptr;
}

int Run(const Operator* op, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  Frame frame(op);
  Results results(*op);
  frame.binding = &results;
  frame.allocate = Results::Allocate;
  int32_t status = FillFrame(&frame, args, static_cast<uint32_t>(count));
  if (status == kAnyopOk) {
    frame.stream = StreamOf(frame);
    status = AnyopRunFrame(&frame);
  }
  if (status == kAnyopOk) return results.Return(result);
  if (status == kAnyopPending) return -1;
  const AnyopRaiseInPython raise = raise_in_python.load(std::memory_order_acquire);
  if (raise && raise(frame.error)) return kErrorIsPythons;
  library.SetError(ErrorKind(status), frame.error);
  return -1;
}

int SafeCall(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  try {
    return Run(static_cast<const Operator*>(self), args, count, result);
  } catch (const std::bad_alloc&) {
    library.SetError("MemoryError", "out of memory");
  } catch (...) {
    library.SetError("InternalError", "an exception of unknown kind was thrown");
  }
  return -1;
}

void DropError() {
  TVMFFIObjectHandle error = nullptr;
  library.TakeError(&error);
  if (error) library.DecRef(error);
}

// A name that is taken stays with who took it.
void Register(Operator* op) {
  TVMFFIObjectHandle function;
  if (library.FunctionCreate(op, SafeCall, nullptr, &function)) return DropError();
  const TVMFFIByteArray name = {op->full_name.data(), op->full_name.size()};
  if (library.FunctionSetGlobal(&name, function, 0)) DropError();
  library.DecRef(function);
}

const char* RegisterAll(const char* path) {
  static std::mutex mutex;
  static bool done = false;
  std::lock_guard<std::mutex> lock(mutex);
  if (done) return nullptr;
  const char* problem = nullptr;
  const Library* opened = OpenedLibrary(path, &problem);
  if (!opened) return problem;
  library = *opened;
  InstallAllocator(library);
  ObserveOperators(Register);
  done = true;
  return nullptr;
}

}  // namespace
}  // namespace anyop::ffi

void AnyopSetRaiseInPython(AnyopRaiseInPython raise) {
  anyop::ffi::raise_in_python.store(raise, std::memory_order_release);
}

void anyop::ffi::RegisterNoted() {
  if (const char* path = noted.load(std::memory_order_acquire)) AnyopRegisterTvmFfi(path);
}

void AnyopNoteTvmFfi(const char* path) { anyop::ffi::noted.store(path, std::memory_order_release); }

const char* AnyopRegisterTvmFfi(const char* path) {
  try {
    return anyop::ffi::RegisterAll(path);
  } catch (...) {
    return "out of memory";
  }
}
