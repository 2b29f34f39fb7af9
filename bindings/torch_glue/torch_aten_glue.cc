// SPDX-License-Identifier: Apache-2.0
// Calls of ATen's operators by torch's dispatcher, boxed, and the one file with its headers: built
// once per torch version at first need, or shipped.
#include "torch_aten_glue.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <pthread.h>

#include <new>
#include <optional>
#include <utility>

#include "torch_aten_arguments.h"
#include "torch_aten_machine.h"
#include "torch_aten_results.h"
#include "torch_aten_separate.h"
#include "torch_aten_view.h"

namespace {

using namespace anyop::glue;
using c10::OperatorHandle;
using torch::jit::Stack;

struct ErrorText {
  char* text;
  int64_t bytes;

  int32_t Set(int32_t status, const std::string& what) const {
    std::snprintf(text, static_cast<size_t>(bytes), "%s", what.c_str());
    return status;
  }
};

// Without what torch's makers may ask themselves, and without the list of all kernels.
std::string FirstSentences(std::string text) {
  for (const char* rest : {"\n\n", " This could be because", "  This usually means"})
    text.resize(std::min(text.size(), text.find(rest)));
  return text;
}

// Status and text of what was thrown; called in a catch.
int32_t Caught(const ErrorText& error) {
  try {
    throw;
  } catch (const Refusal& e) {
    return error.Set(e.status, e.text);
  } catch (const c10::IndexError& e) {
    return error.Set(kAnyopIndexError, e.what_without_backtrace());
  } catch (const c10::ValueError& e) {
    return error.Set(kAnyopValueError, e.what_without_backtrace());
  } catch (const c10::TypeError& e) {
    return error.Set(kAnyopTypeError, e.what_without_backtrace());
  } catch (const c10::NotImplementedError& e) {
    return error.Set(kAnyopNotImplemented, FirstSentences(e.what_without_backtrace()));
  } catch (const c10::OutOfMemoryError& e) {
    return error.Set(kAnyopOutOfMemory, e.what_without_backtrace());
  } catch (const c10::AcceleratorError& e) {
    return error.Set(kAnyopDeviceError, e.what_without_backtrace());
  } catch (const c10::Error& e) {
    const std::string text = e.what_without_backtrace();
    const size_t memory = text.find("DefaultCPUAllocator: ");
    return memory == std::string::npos ? error.Set(kAnyopRuntimeError, text)
                                       : error.Set(kAnyopOutOfMemory, text.substr(memory));
  } catch (const std::bad_alloc&) {
    return error.Set(kAnyopOutOfMemory, "out of memory");
  } catch (const std::exception& e) {
    return error.Set(kAnyopRuntimeError, e.what());
  } catch (...) {
    return error.Set(kAnyopInternalError, "torch threw what is no std::exception");
  }
}

// No destructor of the thread's: where there is no memory to note it, glibc ends the process.
thread_local Stack* kept = nullptr;

void FreeKept(void*) { delete std::exchange(kept, nullptr); }

// Where it cannot be kept, there is none.
Stack* Kept() {
  static const auto key = [] {
    std::optional<pthread_key_t> made(std::in_place);
    return pthread_key_create(&*made, FreeKept) ? std::nullopt : made;
  }();
  if (kept || !key) return kept;
  kept = new (std::nothrow) Stack;
  if (kept && pthread_setspecific(*key, kept)) FreeKept(kept);
  return kept;
}

// This thread's stack, whose memory is kept for the next call. A call inside a call has its own.
class ThreadStack {
 public:
  ThreadStack() {
    if (kept) stack_.swap(*kept);
  }
  ~ThreadStack() {
    stack_.clear();
    if (Stack* const next = Kept()) stack_.swap(*next);
  }
  Stack& operator*() { return stack_; }

 private:
  Stack stack_;
};

const std::string& NameOf(const OperatorHandle& op, int32_t argument) {
  return op.schema().arguments()[static_cast<size_t>(argument)].name();
}

// An out= that the operator gave another shape or storage, which its owner would not see. Argument
// 0 is what works in place: its new geometry is the result's.
void CheckWritten(const OperatorHandle& op, const Arguments& arguments) {
  for (const Loan& loan : arguments.loans)
    if (loan.writes && loan.argument && !(loan.HasItsStorage() && loan.HasItsShape()))
      throw Refusal{kAnyopValueError, NameOf(op, loan.argument) + " has shape " +
                                          ShapeText(loan.Sizes()) + ", the result has " +
                                          ShapeText(loan.impl->sizes())};
}

// Torch may leave the conjugate, or the negative, of a result in memory and say so in the tensor
// alone, as linalg_solve(left=False) does: the values themselves are written.
void WriteLazyValues(const Arguments& arguments) {
  for (const Loan& loan : arguments.loans) {
    if (!loan.writes || !(loan.impl->is_conj() || loan.impl->is_neg())) continue;
    const at::Tensor written(loan.impl);
    const at::Tensor values = Through("aten::resolve_neg", Through("aten::resolve_conj", written));
    loan.impl->_set_conj(false);
    loan.impl->_set_neg(false);
    Stack stack{written, values, false};
    c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "").callBoxed(stack);
  }
}

// torch sets the sizes before it finds that the memory is not its own.
void ExplainResize(const OperatorHandle& op, const Arguments& arguments, const c10::Error& e) {
  if (!std::strstr(e.what_without_backtrace(), "resiz")) return;
  for (const Loan& loan : arguments.loans)
    if (loan.writes && !loan.HasItsShape())
      throw Refusal{kAnyopValueError, NameOf(op, loan.argument) + " has shape " +
                                          ShapeText(loan.Sizes()) + ", the result needs " +
                                          ShapeText(loan.impl->sizes()) +
                                          ", and a caller's memory is not resized"};
}

void Results(Stack& stack, AnyopAtenValue* results, int32_t count) {
  if (stack.size() != static_cast<size_t>(count))
    throw Refusal{kAnyopInternalError, "torch returned " + std::to_string(stack.size()) +
                                           " results, expected " + std::to_string(count)};
  for (int32_t i = 0; i < count; ++i) results[i] = {};
  try {
    for (int32_t i = 0; i < count; ++i) ToValue(std::move(stack[i]), &results[i]);
  } catch (...) {
    for (int32_t i = 0; i < count; ++i) Drop(&results[i]);
    throw;
  }
}

void Run(const OperatorHandle& op, Arguments& arguments, Stack& stack) {
  try {
    try {
      uint32_t flags = 0;
      for (int32_t i = 0; i < arguments.count; ++i) {
        stack.push_back(arguments.Convert(i));
        flags |= arguments.types[i].flags;
      }
      if (flags & (kAnyopAtenWrites | kAnyopAtenWritesUnmarked)) Separate(op, arguments, stack);
    } catch (const Refusal& e) {
      const int32_t argument = e.argument < 0 ? arguments.at : e.argument;
      throw Refusal{e.status, NameOf(op, argument) + " " + e.text};
    }
    op.callBoxed(stack);
    CheckWritten(op, arguments);
    WriteLazyValues(arguments);
  } catch (const c10::Error& e) {
    ExplainResize(op, arguments, e);
    throw;
  }
}

void Call(const OperatorHandle& op, Arguments& arguments, AnyopAtenValue* results, int32_t count) {
  ThreadStack stack;
  try {
    Run(op, arguments, *stack);
  } catch (...) {  // also a kernel that fails may have kept an argument
    (*stack).clear();
    arguments.loans.Settle();
    throw;
  }
  arguments.loans.Settle();
  Results(*stack, results, count);
}

void* Find(const char* name, const char* overload) {
  try {
    const auto found = c10::Dispatcher::singleton().findSchema({name, overload});
    return found ? new OperatorHandle(*found) : nullptr;
  } catch (...) {
    return nullptr;
  }
}

// The state of the thread while a call runs.
struct CallState {
  explicit CallState(const AnyopAtenOptions* options) {
    const uint32_t flags = options ? options->flags : 0;
    if (!(flags & kAnyopAtenAsTorch)) plain.emplace();
    if (flags & kAnyopAtenHasStream) stream.emplace(options->device_id, options->stream);
  }
  std::optional<PlainState> plain;
  std::optional<StreamState> stream;
};

int32_t CallOp(void* op, const AnyopAtenType* types, int32_t num_arguments,
               const AnyopAtenValue* values, AnyopAtenValue* results, int32_t num_results,
               const AnyopAtenOptions* options, char* error, int64_t error_bytes) {
  try {
    const CallState state(options);
    Arguments arguments{types, values, num_arguments};
    Call(*static_cast<const OperatorHandle*>(op), arguments, results, num_results);
    return kAnyopOk;
  } catch (...) {
    return Caught({error, error_bytes});
  }
}

void Release(AnyopAtenTensor* tensor) { delete reinterpret_cast<at::Tensor*>(tensor); }

int32_t View(AnyopAtenTensor** tensor, AnyopTensor* view, uint32_t* flags, char* error,
             int64_t error_bytes) {
  try {
    ViewOf(*reinterpret_cast<at::Tensor*>(*tensor), view, flags);
    return kAnyopOk;
  } catch (...) {
    return Caught({error, error_bytes});
  }
}

void* MakePlan(const AnyopAtenPlan* plan) {
  try {
    return NewPlan(*plan);
  } catch (...) {
    return nullptr;
  }
}

void FreePlan(void* plan) { delete static_cast<Plan*>(plan); }

int32_t RunPlan(const void* plan, const AnyopAtenValue* values, uint64_t deferred, void** made,
                const AnyopAtenOptions* options, int32_t* kept, char* error, int64_t error_bytes) {
  try {
    const CallState state(options);
    ThreadStack stack;
    Machine machine(*static_cast<const Plan*>(plan), values, deferred, &*stack);
    int32_t status = kAnyopPending;
    try {
      machine.Compute();
      status = kAnyopOk;
      machine.Write(made, state.plain && state.plain->was_inference());
    } catch (...) {
      if (status == kAnyopOk) status = Caught({error, error_bytes});
    }
    *kept = machine.TakeBack();
    return status;
  } catch (...) {
    return kAnyopPending;
  }
}

const AnyopTorchAtenGlue glue = {
    sizeof(AnyopTorchAtenGlue),
    ANYOP_TORCH_ATEN_GLUE_VERSION,
    ANYOP_TORCH_VERSION,
    Find,
    CallOp,
    Release,
    View,
    MakePlan,
    FreePlan,
    RunPlan,
};

}  // namespace

void anyop::glue::StartCuda(c10::Device device) {
  static std::once_flag once;
  std::call_once(once, [&] {
    if (!at::detail::getCUDAHooks().hasCUDA())
      throw Refusal{kAnyopNotImplemented, "lies on a CUDA device, and this torch can use none"};
    const PlainState plain;
    const auto empty =
        c10::Dispatcher::singleton().findSchemaOrThrow("aten::empty", "memory_format");
    Stack stack{c10::List<int64_t>({0}), IValue(), IValue(), device, IValue(), IValue()};
    empty.callBoxed(stack);
  });
}

extern "C" __attribute__((visibility("default"))) const AnyopTorchAtenGlue*
AnyopTorchAtenGlueEntry() {
  return &glue;
}
