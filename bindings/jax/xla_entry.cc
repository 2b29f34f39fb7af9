// SPDX-License-Identifier: Apache-2.0
// One handler for every operator: finds it, runs its frame, gives its error to XLA. Keeps no state.
#include "xla_entry.h"

#include <atomic>
#include <new>

#include "registry.h"
#include "site.h"

namespace anyop::xla {
namespace {

Error* Report(const Api& api, int32_t status, const char* message) {
  Code code = Code::kInternal;
  if (status == kAnyopValueError || status == kAnyopTypeError) code = Code::kInvalidArgument;
  if (status == kAnyopNotImplemented) code = Code::kUnimplemented;
  if (status == kAnyopOutOfMemory) code = Code::kResourceExhausted;
  ErrorCreateArgs args = {sizeof args, nullptr, message, code};
  return api.error_create(&args);
}

// XLA asks what the handler was built for, in a call without arguments.
bool AnswerMetadata(const CallFrame& call) {
  for (Extension* e = call.extensions; e; e = e->next) {
    if (e->type != kMetadataExtension) continue;
    Metadata* metadata = reinterpret_cast<MetadataExtension*>(e)->metadata;
    metadata->version.major = kApiMajor;
    metadata->version.minor = kApiMinor;
    metadata->traits = 0;
    return true;
  }
  return false;
}

// Operators found before, by a hash of their names: without the registry's lock. Operators stay for
// ever; an entry that another one replaces is only slower.
const Operator* Lookup(std::string_view name) {
  static std::atomic<const Operator*> known[256];
  uint32_t hash = 2166136261u;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 16777619u;
  std::atomic<const Operator*>& slot = known[(hash ^ hash >> 16) & 255];
  const Operator* op = slot.load(std::memory_order_acquire);
  if (op && op->full_name == name) return op;
  op = FindOperator(std::string(name).c_str());
  if (op) slot.store(op, std::memory_order_release);
  return op;
}

Error* RunOn(const CallFrame& call, const Operator* op, std::string_view tensors, int32_t device,
             int32_t ordinal, void* stream) {
  Frame frame(op);
  frame.stream = stream;
  frame.allocate = [](Frame* f, uint32_t, AnyopTensor*) {  // results are XLA's
    return Fail(f, kAnyopInternalError, "a result has no buffer");
  };
  int32_t status = Site(call, device, ordinal, &frame).Read(tensors);
  if (status == kAnyopOk) status = AnyopRunFrame(&frame);
  return status == kAnyopOk ? nullptr : Report(*call.api, status, frame.error);
}

Error* Run(const CallFrame& call, int32_t device) {
  const Api& api = *call.api;
  const Bytes* name = FindText(call.attributes, "_operator");
  const Bytes* tensors = FindText(call.attributes, "_tensors");
  if (!name || !tensors)
    return Report(api, kAnyopInternalError, "anyop: a call without _operator and _tensors");
  const Operator* op = Lookup({name->data, name->size});
  if (!op) {
    const std::string message = "there is no operator " + std::string(name->data, name->size) +
                                "; load its library with anyop.load() first";
    return Report(api, kAnyopValueError, message.c_str());
  }
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
  return RunOn(call, op, {tensors->data, tensors->size}, device, ordinal, stream);
}

Error* Handle(CallFrame* call, int32_t device) noexcept {
  if (AnswerMetadata(*call) || call->stage != Stage::kExecute) return nullptr;
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

anyop::xla::Error* AnyopXlaCpu(anyop::xla::CallFrame* call) { return anyop::xla::Handle(call, 1); }

anyop::xla::Error* AnyopXlaCuda(anyop::xla::CallFrame* call) { return anyop::xla::Handle(call, 2); }
