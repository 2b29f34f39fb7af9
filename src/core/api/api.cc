// SPDX-License-Identifier: Apache-2.0
// The C ABI of anyop.h: values into a frame and back, tensors of the host, loading of libraries.
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "anyop/anyop.h"
#include "anyop/held.h"
#include "anyop/library_file.h"
#include "api/c_error.h"
#include "call/call.h"
#include "call/held.h"
#include "operator/registry.h"
#include "router/router.h"
#include "router/rules/scope.h"
#include "tensors/dtype.h"
#include "tensors/memory.h"
#include "threads/pool.h"

namespace anyop {
namespace {

// A fixed buffer, so that noting an error cannot fail.
thread_local char last_error[1024] = "";

}  // namespace

int32_t SetError(int32_t status, const char* text) {
  std::snprintf(last_error, sizeof last_error, "%s", text);
  return status;
}

namespace {

const Operator* Handle(const AnyopOperator* op) { return reinterpret_cast<const Operator*>(op); }

// A tensor, its sizes and strides in one block; data behind it, 64-byte aligned.
struct alignas(64) OwnedTensor {
  AnyopTensor tensor;
  int64_t sizes[2 * kMaxRank];
};

int32_t NewTensor(int dtype, int ndim, const int64_t* shape, AnyopTensor** out) {
  if (dtype < 0 || dtype >= kAnyopNumDtypes || ndim < 0 || ndim > kMaxRank || (ndim && !shape) ||
      !out) {
    return SetError(
        kAnyopValueError,
        "AnyopNewTensor: expected a dtype, 0 to 32 dimensions and a place for the tensor");
  }
  OwnedTensor probe;
  const DlpackType type = DlpackTypeOf(dtype);
  std::copy_n(shape, ndim, probe.sizes);
  FillStrides(ndim, shape, probe.sizes + kMaxRank);
  probe.tensor = {nullptr, 1, 0, ndim, type.code, type.bits, 1, probe.sizes, probe.sizes + kMaxRank,
                  0};
  Footprint f;
  if (MeasureFootprint(probe.tensor, type.bits / 8, &f) != Extent::kFits) {
    return SetError(
        kAnyopValueError,
        ("AnyopNewTensor: the shape " + SizesText(ndim, shape) + " has no size").c_str());
  }
  const uint64_t bytes = (static_cast<uint64_t>(f.numel) * (type.bits / 8) + 63) / 64 * 64;
  void* memory = std::aligned_alloc(64, sizeof(OwnedTensor) + bytes);
  if (!memory) return SetError(kAnyopOutOfMemory, "out of memory");
  auto* owned = new (memory) OwnedTensor(probe);
  owned->tensor.data = owned + 1;
  owned->tensor.shape = owned->sizes;
  owned->tensor.strides = owned->sizes + kMaxRank;
  *out = &owned->tensor;
  return kAnyopOk;
}

// Results made for AnyopInvoke; freed again when the call fails.
struct Made {
  const AnyopInvokeOptions* options = nullptr;  // where the caller makes them
  AnyopTensor* tensors[kMaxParams] = {};
  bool keep = false;
  ~Made() {
    for (AnyopTensor* t : tensors) {
      if (t && !keep) AnyopDeleteTensor(t);
    }
  }
};

int32_t AllocateByCaller(Frame* frame, uint32_t output, AnyopTensor* tensor) {
  const AnyopInvokeOptions& options = *static_cast<Made*>(frame->binding)->options;
  const int32_t status = options.allocate(options.context, static_cast<int32_t>(output), tensor);
  if (status == kAnyopOk || status == kAnyopPending) return status;
  return Fail(frame, status, "the caller could not make %s",
              frame->op->params[frame->op->num_inputs + output].name);
}

int32_t AllocateOnHost(Frame* frame, uint32_t output, AnyopTensor* tensor) {
  if (tensor->device_type != 1) {
    return Fail(frame, kAnyopValueError, "%s must be given: only results on the CPU are made here",
                frame->op->params[frame->op->num_inputs + output].name);
  }
  AnyopTensor* made;
  const int32_t status = NewTensor(AnyopDtypeOf(tensor), tensor->ndim, tensor->shape, &made);
  if (status != kAnyopOk) return Fail(frame, status, "%s", last_error);
  static_cast<Made*>(frame->binding)->tensors[output] = made;
  *tensor = *made;
  return kAnyopOk;
}

int32_t KindFails(Frame* frame, const Param& p, int kind) {
  return Fail(frame, kAnyopTypeError, "%s has the value kind %d, expected that of its type in %s",
              p.name, kind, frame->op->table->schema);
}

// Texts that are there, and dtypes that there are.
int32_t CheckElements(Frame* frame, const Param& p, const AnyopValue& v) {
  for (int64_t i = 0; p.kind == kAnyopStr && i < v.as.strings.count; ++i) {
    if (v.as.strings.data[i].data && v.as.strings.data[i].count >= 0) continue;
    return Fail(frame, kAnyopValueError, "%s points to nothing [element %lld]", p.name,
                (long long)i);
  }
  for (int64_t i = 0; p.kind == kAnyopScalarType && i < v.as.ints.count; ++i) {
    const int64_t dtype = v.as.ints.data[i];
    if (dtype >= 0 && dtype < kAnyopNumDtypes) continue;
    return Fail(frame, kAnyopValueError, "%s has %lld, expected an AnyopDtype [element %lld]",
                p.name, (long long)dtype, (long long)i);
  }
  return kAnyopOk;
}

// Writes an argument that is no single tensor.
int32_t SetArgument(Frame* frame, const Param& p, const AnyopValue& v) {
  static constexpr int kScalarKind[] = {
      0, 0, kAnyopIntValue, kAnyopFloatValue, kAnyopIntValue, kAnyopStringValue, kAnyopIntValue};
  static constexpr int kListKind[] = {0,
                                      kAnyopTensorsValue,
                                      kAnyopIntsValue,
                                      kAnyopFloatsValue,
                                      kAnyopIntsValue,
                                      kAnyopStringsValue,
                                      kAnyopIntsValue};
  const int expected = p.IsList() ? kListKind[p.kind] : kScalarKind[p.kind];
  if (v.kind == kAnyopIntValue && expected == kAnyopFloatValue) {
    SetFloat(frame, p, static_cast<double>(v.as.i));
    return kAnyopOk;
  }
  if (v.kind != expected) return KindFails(frame, p, v.kind);
  if (p.IsList() ? v.as.ints.count < 0 || (v.as.ints.count && !v.as.ints.data)
                 : p.kind == kAnyopStr && !v.as.s) {
    return Fail(frame, kAnyopValueError, "%s points to nothing", p.name);
  }
  if (p.IsList() && p.fixed_count >= 0 && v.as.ints.count != p.fixed_count) {
    return Fail(frame, kAnyopValueError, "%s has %lld values, expected %d", p.name,
                (long long)v.as.ints.count, p.fixed_count);
  }
  if (int32_t status = p.IsList() ? CheckElements(frame, p, v) : kAnyopOk) return status;
  if (p.IsList() && p.IsTensor()) {
    auto* copies =
        frame->arena.Take<AnyopTensor>(v.as.tensors.count);  // the core normalises them in place
    std::copy_n(v.as.tensors.data, v.as.tensors.count, copies);
    frame->Field<AnyopTensorList>(p) = {copies, v.as.tensors.count};
  } else if (p.IsList()) {
    std::memcpy(frame->args + p.offset, &v.as, 16);
  } else if (p.kind == kAnyopStr) {
    frame->Field<AnyopString>(p) = {v.as.s, static_cast<int64_t>(std::strlen(v.as.s))};
  } else if (p.kind == kAnyopFloat) {
    SetFloat(frame, p, v.as.f);
  } else if (p.kind == kAnyopScalarType && (v.as.i < 0 || v.as.i >= kAnyopNumDtypes)) {
    return Fail(frame, kAnyopValueError, "%s is %lld, expected an AnyopDtype", p.name,
                (long long)v.as.i);
  } else {
    SetInt(frame, p, p.kind == kAnyopBoolean ? v.as.i != 0 : v.as.i);
  }
  return kAnyopOk;
}

int32_t FillFrame(Frame* frame, AnyopValue* values, int32_t count) {
  const Operator& op = *frame->op;
  const int32_t total = static_cast<int32_t>(op.num_inputs + op.num_outputs);
  if (count < 0 || count > total || (count && !values)) {
    return Fail(frame, kAnyopTypeError, "got %d values, expected at most %d", count, total);
  }
  for (int32_t i = 0; i < total; ++i) {
    const Param& p = op.params[static_cast<size_t>(i)];
    const AnyopValue none = {};
    const AnyopValue& v = i < count ? values[i] : none;
    const bool output = p.Is(kAnyopOutput);
    if (v.kind == kAnyopNoValue || (output && v.kind == kAnyopTensorValue && !v.as.tensor)) {
      if (output && i >= count && !p.Is(kAnyopOptional)) {
        return Fail(frame, kAnyopTypeError,
                    "got %d values, expected %d: the result %s needs a place", count, total,
                    p.name);
      }
      if (output && p.Is(kAnyopOptional) && v.kind == kAnyopNoValue)
        frame->unwanted |= uint64_t{1} << i;
      const bool absent = p.IsTensor() ? p.Is(kAnyopOptional) : SetDefault(frame, p);
      if (!output && !absent) return Fail(frame, kAnyopTypeError, "%s is missing", p.name);
      continue;
    }
    if (p.IsTensor() && !p.IsList()) {
      if (v.kind != kAnyopTensorValue) return KindFails(frame, p, v.kind);
      if (!v.as.tensor || (v.as.tensor->ndim > 0 && !v.as.tensor->shape)) {
        return Fail(frame, kAnyopValueError, "%s points to nothing", p.name);
      }
      frame->tensors[i] = *v.as.tensor;
    } else if (int32_t status = SetArgument(frame, p, v)) {
      return status;
    }
    frame->given |= uint64_t{1} << i;
  }
  return kAnyopOk;
}

// Of every operator, as it is written: rms_norm and anyop.rms_norm, acme.scale.
int32_t FailUnknown(const char* name) {
  std::vector<std::string> known;
  std::vector<Operator*> operators(static_cast<size_t>(ListOperators(nullptr, 0)));
  operators.resize(static_cast<size_t>(
      std::min(ListOperators(operators.data(), static_cast<int32_t>(operators.size())),
               static_cast<int32_t>(operators.size()))));
  for (const Operator* op : operators) {
    known.push_back(op->name);
    if (op->full_name != op->name) known.push_back(op->full_name);
  }
  const std::string text(name ? name : "NULL");
  return SetError(
      kAnyopValueError,
      ("no operator is named " + text.substr(0, 100) + DidYouMean(text, known)).c_str());
}

int32_t ReadOptions(const AnyopInvokeOptions* options, Frame* frame) {
  constexpr size_t kFirst = offsetof(AnyopInvokeOptions, use);  // what the first release had
  constexpr size_t kSecond = offsetof(AnyopInvokeOptions, allocate);
  if (options && options->size >= kFirst) frame->stream = options->stream;
  if (options && options->size >= sizeof(AnyopInvokeOptions) && options->allocate) {
    static_cast<Made*>(frame->binding)->options = options;
    frame->allocate = AllocateByCaller;
  }
  if (!options || options->size < kSecond || !options->use) return kAnyopOk;
  std::string error;
  frame->scope = UseScope(options->use, &error);
  return frame->scope ? int32_t{kAnyopOk} : Fail(frame, kAnyopValueError, "%s", error.c_str());
}

int32_t Invoke(const Operator* op, AnyopValue* values, int32_t count,
               const AnyopInvokeOptions* options, std::string* explanation, Held* held = nullptr) {
  Frame frame(op);
  const UsedHeld used(held, &frame);
  Made made;
  frame.binding = &made;
  frame.allocate = AllocateOnHost;
  frame.explanation = explanation;
  int32_t status = ReadOptions(options, &frame);
  if (status == kAnyopOk) status = FillFrame(&frame, values, count);
  if (status == kAnyopOk) status = AnyopRunFrame(&frame);
  if (status != kAnyopOk) return SetError(status, frame.error);
  made.keep = true;
  for (uint32_t o = 0; o < op->num_outputs; ++o) {
    if (!made.tensors[o]) continue;
    values[op->num_inputs + o].kind = kAnyopTensorValue;
    values[op->num_inputs + o].as.tensor = made.tensors[o];
  }
  return kAnyopOk;
}

// An explanation is also there when nothing takes the call.
int32_t Explain(const Operator* op, AnyopValue* values, int32_t count,
                const AnyopInvokeOptions* options, char* text, int64_t capacity, int64_t* length) {
  std::string explanation;
  const int32_t status = Invoke(op, values, count, options, &explanation);
  if (explanation.empty()) return status;
  if (capacity > 0) std::snprintf(text, static_cast<size_t>(capacity), "%s", explanation.c_str());
  *length = static_cast<int64_t>(explanation.size()) + 1;
  return kAnyopOk;
}

int32_t LoadLibrary(const char* path) {
  char problem[sizeof last_error];
  void* library = AnyopOpenLibraryFile(path, RTLD_NOW | RTLD_LOCAL, problem, sizeof problem);
  if (!library) return SetError(kAnyopValueError, problem);
  auto entry = reinterpret_cast<AnyopLibraryFunction>(dlsym(library, "AnyopLibraryEntry"));
  if (!entry) {
    return SetError(
        kAnyopValueError,
        (std::string(path) + " is no library of operators: it exports no AnyopLibraryEntry")
            .c_str());
  }
  return AnyopRegisterLibrary(entry());
}

}  // namespace
}  // namespace anyop

using anyop::Guarded;
using anyop::SetError;

const char* AnyopVersion(void) { return ANYOP_VERSION; }

uint32_t AnyopAbiVersion(void) { return ANYOP_ABI_VERSION; }

const char* AnyopLastError(void) { return anyop::last_error; }

const AnyopOperator* AnyopFindOperator(const char* name) {
  const AnyopOperator* found = nullptr;
  Guarded([&] {
    if (!anyop::RouteError().empty())
      return SetError(kAnyopValueError, anyop::RouteError().c_str());
    found = name ? reinterpret_cast<const AnyopOperator*>(anyop::FindOperator(name)) : nullptr;
    if (found) return int32_t{kAnyopOk};
    return anyop::FailUnknown(name);
  });
  return found;
}

int32_t AnyopListOperators(const AnyopOperator** operators, int32_t capacity) {
  int32_t count = -1;
  Guarded([&] {
    count = anyop::ListOperators(
        reinterpret_cast<anyop::Operator**>(const_cast<AnyopOperator**>(operators)), capacity);
    return int32_t{kAnyopOk};
  });
  return count;
}

const AnyopOp* AnyopOperatorTable(const AnyopOperator* op) { return anyop::Handle(op)->table; }

int32_t AnyopInvoke(const AnyopOperator* op, AnyopValue* values, int32_t count,
                    const AnyopInvokeOptions* options) {
  if (!op) return SetError(kAnyopValueError, "AnyopInvoke: the operator is NULL");
  return Guarded([&] { return anyop::Invoke(anyop::Handle(op), values, count, options, nullptr); });
}

int32_t AnyopInvokeHeld(AnyopHeld* held, AnyopValue* values, int32_t count,
                        const AnyopInvokeOptions* options) {
  if (!held) return SetError(kAnyopValueError, "AnyopInvokeHeld: the handle is NULL");
  auto* kept = reinterpret_cast<anyop::Held*>(held);
  return Guarded([&] { return anyop::Invoke(kept->op, values, count, options, nullptr, kept); });
}

int32_t AnyopExplain(const AnyopOperator* op, AnyopValue* values, int32_t count,
                     const AnyopInvokeOptions* options, char* text, int64_t capacity,
                     int64_t* length) {
  if (!op || !length || (capacity > 0 && !text))
    return SetError(kAnyopValueError, "AnyopExplain: an argument is NULL");
  return Guarded([&] {
    return anyop::Explain(anyop::Handle(op), values, count, options, text, capacity, length);
  });
}

int32_t AnyopNewTensor(AnyopDtype dtype, int32_t ndim, const int64_t* shape, AnyopTensor** tensor) {
  return Guarded([&] { return anyop::NewTensor(dtype, ndim, shape, tensor); });
}

void AnyopDeleteTensor(AnyopTensor* tensor) { std::free(tensor); }

int32_t AnyopRegisterLibrary(const AnyopLibrary* library) {
  return Guarded([&] {
    std::string error;
    const int32_t status = anyop::RegisterLibrary(library, &error);
    return status == kAnyopOk ? status : SetError(status, error.c_str());
  });
}

int32_t AnyopLoadLibrary(const char* path) {
  if (!path) return SetError(kAnyopValueError, "AnyopLoadLibrary: the path is NULL");
  return Guarded([&] { return anyop::LoadLibrary(path); });
}

int32_t AnyopGetNumThreads(void) { return anyop::NumThreads(); }

int32_t AnyopSetNumThreads(int32_t count) {
  if (count < 1) return SetError(kAnyopValueError, "the number of threads must be at least 1");
  return Guarded([&] {
    anyop::SetNumThreads(count);
    return int32_t{kAnyopOk};
  });
}
