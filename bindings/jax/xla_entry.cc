// SPDX-License-Identifier: Apache-2.0
// One handler for every operator and every call of ATen: finds it, runs it, gives its error to XLA.
// Keeps no state.
#include "xla_entry.h"

#include <new>

#include "router/choose/route.h"
#include "xla_aten_call.h"
#include "xla_call.h"

namespace anyop::xla {
namespace {

Error* Report(const Api& api, int32_t status, const char* message) {
  Code code = Code::kInternal;
  const bool is_callers = status == kAnyopValueError || status == kAnyopTypeError ||
                          status == kAnyopIndexError || status == kAnyopRuntimeError;
  if (is_callers) code = Code::kInvalidArgument;
  if (status == kAnyopNotImplemented) code = Code::kUnimplemented;
  if (status == kAnyopOutOfMemory) code = Code::kResourceExhausted;
  ErrorCreateArgs args = {sizeof args, nullptr, message, code};
  return api.error_create(&args);
}

// XLA's threads round subnormal numbers to zero; kernels compute as in every other framework. Only
// the calling thread needs this: those of the pool are ours.
class ExactFloats {
#if defined(__x86_64__)
 public:
  ExactFloats() : before_(__builtin_ia32_stmxcsr()) {
    if (before_ & kToZero) __builtin_ia32_ldmxcsr(before_ & ~kToZero);
  }
  ~ExactFloats() {
    if (before_ & kToZero) __builtin_ia32_ldmxcsr(before_);
  }

 private:
  static constexpr uint32_t kToZero = 1u << 15 | 1u << 6;  // FTZ, DAZ
  const uint32_t before_;
#elif defined(__aarch64__)
 public:
  ExactFloats() {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    if (before_ & kToZero) asm volatile("msr fpcr, %0" : : "r"(before_ & ~kToZero));
  }
  ~ExactFloats() {
    if (before_ & kToZero) asm volatile("msr fpcr, %0" : : "r"(before_));
  }

 private:
  static constexpr uint64_t kToZero = 1u << 24 | 1u << 19;  // FZ, FZ16
  uint64_t before_;
#endif
};

thread_local int depth = 0;  // of calls from XLA

struct Waiting {
  Waiting() { ++depth; }
  ~Waiting() { --depth; }
};

// XLA asks what the handler was built for, in a call without arguments.
bool AnswerMetadata(const CallFrame& call) {
  for (Extension* e = call.extensions; e; e = e->next) {
    if (e->type != kMetadataExtension) continue;
    Metadata* metadata = reinterpret_cast<MetadataExtension*>(e)->metadata;
    metadata->version.major = kApiMajor;
    const int32_t known = call.api ? call.api->version.minor : kOldestApiMinor;
    metadata->version.minor = known < kApiMinor ? known : kApiMinor;
    metadata->traits = 0;
    return true;
  }
  return false;
}

// The attribute of that name, where it is a string.
const Bytes* FindText(const Attributes& attributes, std::string_view name) {
  for (int64_t i = 0; i < attributes.size; ++i) {
    const Bytes& found = *attributes.names[i];
    if (attributes.types[i] == Attribute::kString &&
        std::string_view(found.data, found.size) == name)
      return static_cast<const Bytes*>(attributes.values[i]);
  }
  return nullptr;
}

// What was traced in no scope runs in none, whatever the thread that runs it is in.
const Scope* ScopeOf(const Plan& plan) {
  static const Scope none;
  const bool asks = !plan.scope && plan.op->shortcut.load(std::memory_order_acquire)->scoped;
  return asks ? &none : plan.scope;
}

// An error names the operator that was called.
Error* ReportOf(const Plan& plan, const Api& api, int32_t status, std::string_view error) {
  const std::string prefix = plan.op->name + ": ";
  if (plan.called.empty() || error.substr(0, prefix.size()) != prefix)
    return Report(api, status, std::string(error).c_str());
  error.remove_prefix(prefix.size());
  return Report(api, status, (plan.called + ": " + std::string(error)).c_str());
}

Error* RunOn(const CallFrame& call, const Plan& plan, int32_t device, int32_t ordinal,
             void* stream) {
  Frame frame(plan.op);
  frame.stream = stream;
  frame.scope = ScopeOf(plan);
  frame.allocate = [](Frame* f, uint32_t, AnyopTensor*) {  // results are XLA's
    return Fail(f, kAnyopInternalError, "a result has no buffer");
  };
  int32_t status = Site(call, plan, device, ordinal, &frame).Read();
  if (status == kAnyopOk) status = AnyopRunFrame(&frame);
  return status == kAnyopOk ? nullptr : ReportOf(plan, *call.api, status, frame.error);
}

Error* RunOperator(const CallFrame& call, int32_t device, int32_t ordinal, void* stream) {
  const Bytes* text = FindText(call.attributes, "_call");
  if (!text)
    return Report(*call.api, kAnyopInternalError, "anyop: a call site without the text _call");
  std::string error;
  int32_t status = kAnyopInternalError;
  const Plan* plan = FindPlan({text->data, text->size}, &error, &status);
  if (!plan) return Report(*call.api, status, error.c_str());
  return RunOn(call, *plan, device, ordinal, stream);
}

Error* RunAten(const CallFrame& call, const Bytes& text, int32_t device, int32_t ordinal,
               void* stream) {
  AtenSite site(call, {text.data, text.size}, device, ordinal, stream);
  const int32_t status = site.Run();
  return status == kAnyopOk ? nullptr : Report(*call.api, status, AnyopLastError());
}

Error* Run(const CallFrame& call, int32_t device) {
  const Api& api = *call.api;
  int32_t ordinal = 0;
  void* stream = nullptr;
  if (device != 1) {
    if (api.struct_size < sizeof(Api))
      return Report(api, kAnyopNotImplemented, "anyop: this jaxlib says no device ordinal");
    DeviceOrdinalGetArgs where = {sizeof where, nullptr, call.context, 0};
    if (Error* error = api.device_ordinal_get(&where)) return error;
    StreamGetArgs on = {sizeof on, nullptr, call.context, nullptr};
    if (Error* error = api.stream_get(&on)) return error;
    ordinal = where.ordinal;
    stream = on.stream;
  }
  const Bytes* aten = FindText(call.attributes, "_aten");
  return aten ? RunAten(call, *aten, device, ordinal, stream)
              : RunOperator(call, device, ordinal, stream);
}

Error* Handle(CallFrame* call, int32_t device) noexcept {
  if (AnswerMetadata(*call) || call->stage != Stage::kExecute) return nullptr;
  const Waiting waiting;
  try {
    return Run(*call, device);
  } catch (const std::bad_alloc&) {
    return Report(*call->api, kAnyopOutOfMemory, "anyop: out of memory");
  } catch (...) {
    return Report(*call->api, kAnyopInternalError, "anyop: an exception of unknown kind");
  }
}

}  // namespace
}  // namespace anyop::xla

anyop::xla::Error* AnyopXlaCpu(anyop::xla::CallFrame* call) {
  [[maybe_unused]] const anyop::xla::ExactFloats floats;
  return anyop::xla::Handle(call, 1);
}

anyop::xla::Error* AnyopXlaCuda(anyop::xla::CallFrame* call) { return anyop::xla::Handle(call, 2); }

bool AnyopXlaWaits() { return anyop::xla::depth > 0; }
