// SPDX-License-Identifier: Apache-2.0
// Values of the shim: a number, a handle that the call takes over, for an optional a pointer to one
// of these. What the shim cannot convert, or would convert wrongly, is refused by name.
#include "by_shim.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "anyop/kernel.h"
#include "api/c_error.h"
#include "runtime.h"
#include "shim_overlap.h"
#include "shim_view.h"

namespace anyop::aten {
namespace {

using torch::ListHandle;
using torch::StringHandle;
using torch::TensorHandle;
using torch::Value;

constexpr char kCure[] =
    "; the ATen glue can, which the C++ compiler builds at first use: `anyop doctor` says what is "
    "missing";

const torch::Shim& Shim() { return *runtime.shim; }
TensorHandle HandleOf(Value value) { return reinterpret_cast<TensorHandle>(value); }
TensorHandle HandleOf(AnyopAtenTensor* tensor) { return reinterpret_cast<TensorHandle>(tensor); }

int32_t Refuse(const Op& op, const std::string& why, int32_t status = kAnyopNotImplemented) {
  return SetError(status, (op.full_name + ": " + why).c_str());
}

int32_t TorchFailed(const Op& op) {
  const char* text = Shim().error_text ? Shim().error_text() : nullptr;
  return Refuse(op, text ? text : "torch refused the call; its text can be had with the ATen glue",
                kAnyopRuntimeError);
}

struct Loan {
  void* owner;
  void (*release)(void*);
};

void EndLoan(void*, void* context) {
  auto* loan = static_cast<Loan*>(context);
  if (loan->release) loan->release(loan->owner);
  delete loan;
}

// One call: its stack, and what it has made so far.
class ShimCall {
 public:
  ShimCall(const Op& op, const AnyopAtenValue* arguments) : op_(op), arguments_(arguments) {}
  ShimCall(const ShimCall&) = delete;
  ShimCall& operator=(const ShimCall&) = delete;
  ~ShimCall() {
    for (const TensorHandle tensor : written_) Shim().delete_tensor(tensor);
  }

  int32_t Run(AnyopAtenValue* results) {
    const auto count = op_.params.size();
    if (const int32_t status = FindReadsToCopy(op_, arguments_, &copied_)) return status;
    for (size_t i = 0; i < count; ++i) {
      const Param& p = op_.params[i];
      const int32_t status = Put(p, p.type.flags, arguments_[i], &stack_[i]);
      if (status) {
        for (; i > 0; --i) LetGo(op_.params[i - 1], op_.params[i - 1].type.flags, stack_[i - 1]);
        return status;
      }
    }
    if (Shim().Call(op_.name.c_str(), op_.overload.c_str(), stack_)) return TorchFailed(op_);
    for (size_t i = 0; i < op_.results.size(); ++i) {
      results[i] = {};
      const Param& p = op_.results[i];
      if (const int32_t status = Get(p, p.type.flags, stack_[i], &results[i])) return status;
    }
    return kAnyopOk;
  }

 private:
  // In the place of the tensor.
  int32_t Copy(TensorHandle* tensor) {
    Value stack[2] = {reinterpret_cast<Value>(*tensor), 0};
    if (Shim().Call("aten::clone", "", stack)) return TorchFailed(op_);
    *tensor = HandleOf(stack[0]);
    return kAnyopOk;
  }

  // Of what torch has not taken over.
  void LetGo(const Param& p, uint32_t flags, Value value) {
    if (flags & kAnyopAtenOptional) {
      if (!value) return;
      auto* inner = reinterpret_cast<Value*>(value);
      LetGo(p, flags & ~uint32_t{kAnyopAtenOptional}, *inner);
      delete inner;
    } else if (flags & kAnyopAtenIsList) {
      LetGoList(p, flags, reinterpret_cast<ListHandle>(value));
    } else if (p.IsTensor()) {
      Shim().delete_tensor(HandleOf(value));
    } else if (p.type.kind == kAnyopAtenKindStr) {
      Shim().delete_string(reinterpret_cast<StringHandle>(value));
    }
  }

  void LetGoList(const Param& p, uint32_t flags, ListHandle list) {
    size_t count = 0;
    if (Shim().list_size(list, &count)) return;
    for (size_t i = 0; i < count; ++i) {
      Value item = 0;
      if (!Shim().list_item(list, i, &item)) LetGo(p, ElementFlags(flags), item);
    }
    Shim().delete_list(list);
  }

  static uint32_t ElementFlags(uint32_t flags) {
    return flags & kAnyopAtenOptionalElements ? kAnyopAtenOptional : 0;
  }

  int32_t Put(const Param& p, uint32_t flags, const AnyopAtenValue& value, Value* to) {
    if (flags & kAnyopAtenOptional) {
      *to = 0;
      if (value.tag == kAnyopAtenNone) return kAnyopOk;
      Value inner = 0;
      if (const int32_t status = Put(p, flags & ~uint32_t{kAnyopAtenOptional}, value, &inner))
        return status;
      *to = reinterpret_cast<Value>(new Value(inner));
      return kAnyopOk;
    }
    if (flags & kAnyopAtenIsList) return PutList(p, flags, value, to);
    return PutOne(p, value, to);
  }

  int32_t PutList(const Param& p, uint32_t flags, const AnyopAtenValue& value, Value* to) {
    ListHandle list = nullptr;
    if (!Shim().new_list)
      return Refuse(op_, "this torch's C ABI has no lists, 2.10's has" + std::string(kCure));
    if (Shim().new_list(static_cast<size_t>(value.more.count), &list)) return TorchFailed(op_);
    for (int64_t i = 0; i < value.more.count; ++i) {
      Value item = 0;
      const int32_t status = Put(p, ElementFlags(flags), value.as.list[i], &item);
      if (status) LetGoList(p, flags, list);
      if (status) return status;
      if (Shim().push_back(list, item)) return TorchFailed(op_);
    }
    *to = reinterpret_cast<Value>(list);
    return kAnyopOk;
  }

  int32_t PutOne(const Param& p, const AnyopAtenValue& value, Value* to) {
    switch (p.type.kind) {
      case kAnyopAtenKindTensor:
        return PutTensor(p, value, to);
      case kAnyopAtenKindFloat:
        std::memcpy(to, &value.as.f, sizeof *to);
        return kAnyopOk;
      case kAnyopAtenKindStr:
        return PutText(value, to);
      case kAnyopAtenKindGenerator:
        return Refuse(op_, "torch's C ABI has no Generator (" + p.name + ")" + kCure);
      default:
        *to = static_cast<Value>(value.as.i);
        return kAnyopOk;
    }
  }

  int32_t PutText(const AnyopAtenValue& value, Value* to) {
    StringHandle text = nullptr;
    if (!Shim().new_string)
      return Refuse(op_, "this torch's C ABI has no text, 2.10's has" + std::string(kCure));
    if (Shim().new_string(value.as.s, static_cast<size_t>(value.more.count), &text))
      return TorchFailed(op_);
    *to = reinterpret_cast<Value>(text);
    return kAnyopOk;
  }

  int32_t PutTensor(const Param& p, const AnyopAtenValue& value, Value* to) {
    TensorHandle made = nullptr;
    int32_t failed = 0;
    if (value.tag == kAnyopAtenMemoryOf) {
      if (const int32_t status = Borrow(p, *value.as.memory, &made)) return status;
      if (p.Is(kAnyopAtenWrites)) failed = Shim().new_handle(made, &written_.emplace_back());
    } else if (value.tag == kAnyopAtenTorch) {
      failed = Shim().new_handle(HandleOf(value.as.tensor), &made);
    } else if (value.tag == kAnyopAtenNone) {
      failed = Shim().undefined_tensor(&made);
    } else {
      return Refuse(
          op_, "torch's C ABI has no number in the place of a tensor (" + p.name + ")" + kCure);
    }
    if (failed) return TorchFailed(op_);
    const bool copied = std::find(copied_.begin(), copied_.end(), &value) != copied_.end();
    const int32_t status = copied ? Copy(&made) : int32_t{kAnyopOk};
    *to = reinterpret_cast<Value>(made);
    return status;
  }

  int32_t Borrow(const Param& p, const AnyopAtenMemory& memory, TensorHandle* made) {
    const AnyopTensor& t = memory.tensor;
    const auto& shim = Shim();
    int64_t row_major[64];
    int64_t elements = 1;
    for (int32_t d = t.ndim - 1; d >= 0; --d) {
      row_major[d] = elements;
      if (t.shape[d] < 0 || (t.strides && t.strides[d] < 0))  // torch would end the process
        return Refuse(op_, p.name + " has a negative size or stride, which torch has not",
                      kAnyopValueError);
      if (__builtin_mul_overflow(elements, t.shape[d] > 0 ? t.shape[d] : 1, &elements))
        return Refuse(op_, p.name + " has more elements than 64 bits count", kAnyopValueError);
    }
    const int dtype = AnyopDtypeOf(&t);
    const int32_t code = dtype < 32 ? shim.torch_dtype[dtype] : -1;
    if (code < 0)
      return Refuse(op_, p.name + " has a dtype that torch's C ABI has not", kAnyopTypeError);
    const bool is_cpu = t.device_type == 1;
    const int32_t device = torch::DeviceCode(shim, t.device_type);
    const int64_t* strides = t.strides ? t.strides : row_major;
    char* data = static_cast<char*>(t.data) + t.byte_offset;
    const int32_t index = is_cpu ? -1 : t.device_id;
    if (!memory.release) {
      return shim.from_blob_2_9(data, t.ndim, t.shape, strides, 0, code, device, index, made,
                                shim.layout_strided(), nullptr, 0)
                 ? TorchFailed(op_)
                 : int32_t{kAnyopOk};
    }
    if (!shim.from_blob)
      return Refuse(op_, "this torch's C ABI cannot lend memory, 2.11's can" + std::string(kCure));
    memory.retain(memory.owner);
    auto* loan = new Loan{memory.owner, memory.release};
    if (!shim.from_blob(data, t.ndim, t.shape, strides, 0, code, device, index, made,
                        shim.layout_strided(), nullptr, 0, EndLoan, loan))
      return kAnyopOk;
    EndLoan(nullptr, loan);
    return TorchFailed(op_);
  }

  int32_t Get(const Param& p, uint32_t flags, Value value, AnyopAtenValue* to) {
    if (flags & kAnyopAtenOptional) {
      if (!value) return kAnyopOk;
      auto* inner = reinterpret_cast<Value*>(value);
      const int32_t status = Get(p, flags & ~uint32_t{kAnyopAtenOptional}, *inner, to);
      delete inner;
      return status;
    }
    if (flags & kAnyopAtenIsList) return GetList(p, reinterpret_cast<ListHandle>(value), to);
    if (p.type.kind == kAnyopAtenKindTensor) return GetTensor(HandleOf(value), to);
    to->tag = kAnyopAtenInt;
    to->as.i = static_cast<int64_t>(value);
    if (p.type.kind == kAnyopAtenKindDtype) to->as.i = static_cast<int32_t>(value);
    if (p.type.kind == kAnyopAtenKindFloat) {
      to->tag = kAnyopAtenFloat;
      std::memcpy(&to->as.f, &value, sizeof value);
    }
    if (p.type.kind == kAnyopAtenKindBool) {
      to->tag = kAnyopAtenBool;
      to->as.i = static_cast<int64_t>(value & 1);
    }
    return kAnyopOk;
  }

  int32_t GetTensor(TensorHandle tensor, AnyopAtenValue* to) {
    bool defined = false;
    if (Shim().is_defined(tensor, &defined)) return TorchFailed(op_);
    if (!defined) return Shim().delete_tensor(tensor), kAnyopOk;
    to->tag = kAnyopAtenTorch;
    to->as.tensor = reinterpret_cast<AnyopAtenTensor*>(tensor);
    return kAnyopOk;
  }

  int32_t GetList(const Param& p, ListHandle list, AnyopAtenValue* to) {
    size_t count = 0;
    if (Shim().list_size(list, &count)) return TorchFailed(op_);
    to->tag = kAnyopAtenList;
    to->more.count = static_cast<int64_t>(count);
    to->as.list = static_cast<AnyopAtenValue*>(std::calloc(count + 1, sizeof *to));
    if (!to->as.list) throw std::bad_alloc();
    for (size_t i = 0; i < count; ++i) {
      Value item = 0;
      if (Shim().list_item(list, i, &item)) return TorchFailed(op_);
      if (const int32_t status = Get(p, 0, item, &to->as.list[i])) return status;
    }
    Shim().delete_list(list);
    return kAnyopOk;
  }

  const Op& op_;
  const AnyopAtenValue* arguments_;
  std::vector<const AnyopAtenValue*> copied_;
  // Where there are two results torch lets go of the stack's tensors before it returns them.
  std::vector<TensorHandle> written_;
  Value stack_[64] = {};
};

// Gradients are off for callers outside of torch; modes and autocast are out of the shim's reach.
class NoGradients {
 public:
  explicit NoGradients(bool wanted) : was_(wanted && Shim().grad_enabled()) {
    if (was_) Shim().set_grad_enabled(false);
  }
  NoGradients(const NoGradients&) = delete;
  NoGradients& operator=(const NoGradients&) = delete;
  ~NoGradients() {
    if (was_) Shim().set_grad_enabled(true);
  }

 private:
  const bool was_;
};

}  // namespace

int32_t CallByShim(const Op& op, const AnyopAtenValue* arguments, AnyopAtenValue* results,
                   const AnyopAtenOptions* options) {
  if (!op.needs_glue.empty())
    return Refuse(op, "torch's C ABI cannot pass " + op.needs_glue + kCure);
  if (options && options->flags & kAnyopAtenHasStream)
    return Refuse(op, std::string("torch's C ABI cannot lend a stream") + kCure);
  const NoGradients state(!options || !(options->flags & kAnyopAtenAsTorch));
  return ShimCall(op, arguments).Run(results);
}

int32_t ViewByShim(AnyopAtenTensor** tensor, AnyopTensor* view, uint32_t* flags) {
  const auto& shim = Shim();
  TensorHandle handle = HandleOf(*tensor);
  int32_t dtype = 0, layout = 0;
  *flags = 0;
  if (shim.dtype(handle, &dtype) || shim.layout(handle, &layout))
    return SetError(kAnyopRuntimeError, "torch says nothing of a result");
  if (torch::DtypeOfCode(shim, dtype) == kAnyopNoDtype || layout != shim.layout_strided())
    return SetError(kAnyopTypeError, "the result has a dtype or a layout without a dense form");
  // Lazily negated or conjugated tensors become plain ones.
  for (const char* name : {"aten::resolve_conj", "aten::resolve_neg"}) {
    Value stack[1] = {reinterpret_cast<Value>(handle)};
    if (Shim().Call(name, "", stack))
      return SetError(kAnyopRuntimeError, "torch cannot resolve a result");
    handle = HandleOf(stack[0]);
    *tensor = reinterpret_cast<AnyopAtenTensor*>(handle);
  }
  if (!torch::FillView(shim, handle, view))
    return SetError(kAnyopTypeError, "the result has no memory");
  int64_t elements = 1;
  for (int32_t d = 0; d < view->ndim; ++d) elements *= view->shape[d];
  if (!view->data && elements)
    return SetError(kAnyopTypeError, "the result has no memory, as a zero tensor");
  return kAnyopOk;
}

}  // namespace anyop::aten
