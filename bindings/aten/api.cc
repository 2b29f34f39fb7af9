// SPDX-License-Identifier: Apache-2.0
// The C ABI of aten_call.h.
#include <cstdlib>

#include "api/c_error.h"
#include "arguments.h"
#include "by_shim.h"
#include "router/read/route_file.h"
#include "runtime.h"

namespace anyop::aten {
namespace {

const Op* Handle(const AnyopAtenOp* op) { return reinterpret_cast<const Op*>(op); }

const Op* Find(std::string_view name) {
  if (name.substr(0, 6) == "aten::") name.remove_prefix(6);
  const size_t dot = name.find('.');
  const std::string_view overload =
      dot == std::string_view::npos ? std::string_view() : name.substr(dot + 1);
  const Name* found = FindName(name.substr(0, dot));
  if (!found) return nullptr;
  std::string known;
  std::vector<std::string> names;
  for (const Op* op : found->overloads) {
    if (op->overload == overload || (op->overload.empty() && overload == "default")) return op;
    known += (known.empty() ? "" : ", ") + op->full_name;
    names.push_back(op->full_name);
  }
  SetError(kAnyopValueError, ("no overload " + std::string(name.substr(0, 100)) + " of ATen, but " +
                              known + DidYouMean(name, names))
                                 .c_str());
  return nullptr;
}

int32_t CallByGlue(const Op& op, const AnyopAtenValue* arguments, AnyopAtenValue* results,
                   const AnyopAtenOptions* options) {
  const AnyopTorchAtenGlue& glue = *runtime.glue;
  void* handle = op.handle.load(std::memory_order_acquire);
  if (__builtin_expect(!handle, 0)) {
    handle = glue.find(op.name.c_str(), op.overload.c_str());
    if (!handle)
      return SetError(
          kAnyopRuntimeError,
          (op.full_name + ": the loaded torch has it not; the table is another torch's").c_str());
    op.handle.store(handle, std::memory_order_release);
  }
  char error[1024] = "";
  const int32_t status =
      glue.call(handle, op.types.data(), static_cast<int32_t>(op.params.size()), arguments, results,
                static_cast<int32_t>(op.results.size()), options, error, sizeof error);
  return __builtin_expect(status, 0) ? SetError(status, (op.full_name + ": " + error).c_str())
                                     : status;
}

int32_t Call(const Op& op, const AnyopAtenValue* given, int32_t count, AnyopAtenValue* results,
             const AnyopAtenOptions* options) {
  if (__builtin_expect(!op.refusal.empty(), 0))
    return SetError(kAnyopNotImplemented,
                    (op.full_name + " cannot be called from outside torch: " + op.refusal).c_str());
  Arena arena;
  AnyopAtenValue arguments[kMaxArguments];
  if (const int32_t status = Prepare(op, given, count, &arena, arguments)) return status;
  return runtime.glue ? CallByGlue(op, arguments, results, options)
                      : CallByShim(op, arguments, results, options);
}

void Drop(AnyopAtenValue* value) {
  if (value->tag == kAnyopAtenTorch) AnyopAtenRelease(value->as.tensor);
  if (value->tag == kAnyopAtenStr) std::free(const_cast<char*>(value->as.s));
  if (value->tag == kAnyopAtenList) {
    for (int64_t i = 0; i < value->more.count; ++i) Drop(&value->as.list[i]);
    std::free(value->as.list);
  }
  *value = {};
}

}  // namespace
}  // namespace anyop::aten

using anyop::aten::Handle;

const AnyopAtenOp* AnyopAtenFind(const char* name) {
  const AnyopAtenOp* found = nullptr;
  anyop::Guarded([&] {
    if (!name) return anyop::SetError(kAnyopValueError, "AnyopAtenFind: the name is NULL");
    found = reinterpret_cast<const AnyopAtenOp*>(anyop::aten::Find(name));
    return int32_t{kAnyopOk};
  });
  return found;
}

const char* AnyopAtenSchema(const AnyopAtenOp* op) { return Handle(op)->schema.c_str(); }

int32_t AnyopAtenNumArguments(const AnyopAtenOp* op) {
  return static_cast<int32_t>(Handle(op)->params.size());
}

int32_t AnyopAtenNumResults(const AnyopAtenOp* op) {
  return static_cast<int32_t>(Handle(op)->results.size());
}

int32_t AnyopAtenCall(const AnyopAtenOp* op, const AnyopAtenValue* arguments, int32_t count,
                      AnyopAtenValue* results, const AnyopAtenOptions* options) {
  return anyop::Guarded(
      [&] { return anyop::aten::Call(*Handle(op), arguments, count, results, options); });
}

void AnyopAtenDrop(AnyopAtenValue* values, int32_t count) {
  for (int32_t i = 0; i < count; ++i) anyop::aten::Drop(&values[i]);
}

void AnyopAtenRelease(AnyopAtenTensor* tensor) {
  using anyop::aten::runtime;
  if (!tensor) return;
  if (runtime.glue) return runtime.glue->release(tensor);
  runtime.shim->delete_tensor(reinterpret_cast<anyop::torch::TensorHandle>(tensor));
}

int32_t AnyopAtenView(AnyopAtenTensor** tensor, AnyopTensor* view, uint32_t* flags) {
  using namespace anyop::aten;
  return anyop::Guarded([&] {
    if (!runtime.glue) return ViewByShim(tensor, view, flags);
    char error[512] = "";
    const int32_t status = runtime.glue->view(tensor, view, flags, error, sizeof error);
    return status ? anyop::SetError(status, error) : status;
  });
}
