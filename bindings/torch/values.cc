// SPDX-License-Identifier: Apache-2.0
// Reads what torch's boxed calls put on the stack: a number, a handle, or for an optional a pointer
// to one of these.
#include "values.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "router/router.h"
#include "router/rules/scope.h"
#include "shim_view.h"
#include "signature.h"
#include "tensors/dtype.h"

namespace anyop::torch {

Runtime runtime = {nullptr, nullptr, nullptr, {nullptr}};

namespace {

// A handle is a pointer to torch's tensor, which is a pointer to its TensorImpl.
void* ImplOf(TensorHandle handle) { return *reinterpret_cast<void**>(handle); }

// Owns the TensorImpl; of memory that torch's own handles are of.
TensorHandle NewHandle(void* impl) {
  auto* handle = static_cast<void**>(::operator new(sizeof(void*)));
  *handle = impl;
  return reinterpret_cast<TensorHandle>(handle);
}

TensorHandle HandleOf(Value value) { return reinterpret_cast<TensorHandle>(value); }

// T? and T[]?; a Tensor?[] is optional in its elements only.
bool IsOptional(const Param& p) {
  return p.Is(kAnyopOptional) && !(p.Is(kAnyopOptionalElements) && !p.Is(kAnyopHasDefault));
}

Value* Pointed(Value value) { return reinterpret_cast<Value*>(value); }

// Of the operator's own parameters.
uint64_t NumGiven(const Operator& op, Form form) {
  return form.destination ? op.params.size() : op.num_inputs;
}

bool Writes(const Param& p) { return p.flags & (kAnyopOutput | kAnyopMutated); }

}  // namespace

Values::Values(const Operator* op, Form form, const Value* stack, uint64_t count, bool lent)
    : frame(op),
      shim_(*runtime.shim),
      glue_(runtime.glue.load(std::memory_order_acquire)),
      form_(form),
      count_(count),
      has_mask_(!form.destination && HasMask(*op)),
      takes_scope_(count > NumGiven(*op, form) + has_mask_),
      lent_(lent),
      owns_stack_(!lent),
      stack_(lent ? stack : copied_) {
  if (!lent) std::copy_n(stack, count, copied_);
  std::fill_n(results_, op->num_outputs, nullptr);
  std::fill_n(impls_, op->num_outputs, nullptr);
  if (op->has_lists) std::fill_n(listed_, op->params.size(), nullptr);
  frame.binding = this;
  frame.allocate = [](Frame* f, uint32_t output, AnyopTensor* tensor) {
    return static_cast<Values*>(f->binding)->Allocate(output, tensor);
  };
  if (!glue_) return;
  frame.torch_input = [](Frame* f, uint32_t i) {
    return static_cast<Values*>(f->binding)->InputImpl(i);
  };
  frame.take_result = [](Frame* f, uint32_t output, void* impl) {
    static_cast<Values*>(f->binding)->impls_[output] = impl;
  };
}

void* Values::InputImpl(uint32_t i) const {
  return ImplOf(HandleOf(IsOptional(ParamAt(i)) ? *Pointed(stack_[i]) : stack_[i]));
}

Values::~Values() {
  const uint64_t given = owns_stack_ ? NumGiven(*frame.op, form_) : 0;
  for (uint64_t i = 0; i < given; ++i) LetGo(ParamAt(i), stack_[i]);
  if (takes_scope_ && stack_[count_ - 1]) LetGoScope();
  for (uint32_t o = 0; o < frame.op->num_outputs; ++o) {
    if (results_[o]) shim_.delete_tensor(results_[o]);
    if (impls_[o]) glue_->release(impls_[o]);
  }
}

// Elements are on the stack with their list: whoever lets the list go lets them go.
void Values::LetGoElements(const Param& p, ListHandle list) {
  size_t count = 0;
  if (!(p.IsTensor() || p.kind == kAnyopStr) || shim_.list_size(list, &count)) return;
  for (size_t k = 0; k < count; ++k) {
    Value element = 0;
    if (shim_.list_item(list, k, &element)) continue;
    if (p.Is(kAnyopOptionalElements)) {
      Value* inner = Pointed(element);
      if (!inner) continue;
      element = *inner;
      delete inner;
    }
    if (p.IsTensor()) {
      shim_.delete_tensor(HandleOf(element));
    } else {
      shim_.delete_string(reinterpret_cast<StringHandle>(element));
    }
  }
}

void Values::LetGo(const Param& p, Value value) {
  if (IsOptional(p)) {
    Value* inner = Pointed(value);
    if (!inner) return;
    value = *inner;
    delete inner;
  }
  if (p.IsList()) {
    LetGoElements(p, reinterpret_cast<ListHandle>(value));
    shim_.delete_list(reinterpret_cast<ListHandle>(value));
  } else if (p.IsTensor()) {
    shim_.delete_tensor(HandleOf(value));
  } else if (p.kind == kAnyopStr) {
    shim_.delete_string(reinterpret_cast<StringHandle>(value));
  }
}

void Values::LetGoScope() {
  if (!owns_stack_) return;
  Value* inner = Pointed(stack_[count_ - 1]);
  shim_.delete_string(reinterpret_cast<StringHandle>(*inner));
  delete inner;
}

int32_t Values::Read() {
  const Operator& op = *frame.op;
  const uint64_t given = NumGiven(op, form_);
  if (form_.records) {
    records_ = kAnyopTorchObserved;
    plain_ = glue_->thread_verdict(&records_) == kAnyopTorchPlain;
  }
  for (uint32_t i = 0; i < given; ++i) {
    if (int32_t status = ReadArgument(i, ParamAt(i), stack_[i])) return status;
  }
  if (has_mask_) {
    for (uint32_t o = 0; o < op.num_outputs; ++o) {
      const uint32_t i = op.num_inputs + o;
      if (!(stack_[given] >> o & 1) && ParamAt(i).Is(kAnyopOptional))
        frame.unwanted |= uint64_t{1} << i;
    }
  }
  if (takes_scope_ && stack_[count_ - 1] && plain_) {
    if (int32_t status = ReadScope()) return status;
  }
  // Where somebody else will take the call, tensors were not looked at.
  return plain_ && first_ && first_->device_type != 1 ? SetStream() : int32_t{kAnyopOk};
}

int32_t Values::ReadArgument(uint32_t i, const Param& p, Value value) {
  if (IsOptional(p)) {
    if (!value) return kAnyopOk;
    value = *Pointed(value);
  }
  frame.given |= uint64_t{1} << i;
  if (p.IsList()) return ReadList(p, value);
  if (p.IsTensor()) return ReadTensor(p, value, &frame.tensors[i]);
  if (p.kind == kAnyopStr) return ReadElement(p, value, &frame.Field<AnyopString>(p));
  int64_t number = 0;
  if (int32_t status = ReadElement(p, value, &number)) return status;
  if (p.kind == kAnyopFloat) {
    double real;
    std::memcpy(&real, &number, sizeof real);
    SetFloat(&frame, p, real);
  } else {
    SetInt(&frame, p, number);
  }
  return kAnyopOk;
}

int32_t Values::ReadTensor(const Param& p, Value value, AnyopTensor* tensor) {
  if (!first_) first_ = tensor;
  return glue_ ? ViewByGlue(p, HandleOf(value), tensor) : ViewByShim(p, HandleOf(value), tensor);
}

int32_t Values::ViewByGlue(const Param& p, TensorHandle handle, AnyopTensor* tensor) {
  int32_t flags = (Writes(p) ? int{kAnyopTorchWrites} : 0) | records_;
  if (form_.records) {
    plain_ &= glue_->view(ImplOf(handle), &flags, tensor) == kAnyopTorchPlain;
    if (!plain_) return kAnyopOk;
  } else if (glue_->view_memory(ImplOf(handle), &flags, tensor)) {
    return Fail(&frame, kAnyopTypeError,
                "%s is a tensor without plain memory on a CPU, CUDA or PrivateUse1 device", p.name);
  }
  const char* why = AnyopTorchRefusal(flags);
  return why ? Fail(&frame, kAnyopValueError, "%s %s", p.name, why) : int32_t{kAnyopOk};
}

int32_t Values::ViewByShim(const Param& p, TensorHandle handle, AnyopTensor* tensor) {
  int64_t storage = 0, offset = 0, numel = 1;
  if (!FillView(shim_, handle, tensor) || shim_.storage_size(handle, &storage) ||
      shim_.storage_offset(handle, &offset))
    return Fail(&frame, kAnyopTypeError, "%s is a tensor without plain memory", p.name);
  int64_t last = offset;
  for (int32_t d = 0; d < tensor->ndim; ++d) {
    numel *= tensor->shape[d];
    last += (tensor->shape[d] - 1) * tensor->strides[d];
  }
  if (numel && (last + 1) * (tensor->dtype_bits / 8) > storage)
    return Fail(&frame, kAnyopValueError, "%s is larger than its storage", p.name);
  return kAnyopOk;
}

// One value that is no tensor, to 8 bytes (16 for a string).
int32_t Values::ReadElement(const Param& p, Value value, void* to) {
  if (p.kind == kAnyopStr) {
    AnyopString text = {};
    const int32_t status = ReadText(p.name, reinterpret_cast<StringHandle>(value), &text);
    std::memcpy(to, &text, sizeof text);
    return status;
  }
  if (p.kind == kAnyopBoolean) value &= 1;
  if (p.kind == kAnyopScalarType) {
    const int dtype = DtypeOfCode(shim_, static_cast<int32_t>(value));
    if (dtype == kAnyopNoDtype)
      return Fail(&frame, kAnyopTypeError, "%s is a dtype that no operator takes", p.name);
    value = static_cast<Value>(dtype);
  }
  std::memcpy(to, &value, sizeof value);
  return kAnyopOk;
}

int32_t Values::ReadText(const char* name, StringHandle handle, AnyopString* text) {
  size_t size = 0;
  if (lent_) {
    const auto& given = *reinterpret_cast<const AnyopTorchText*>(handle);
    text->data = given.data, size = given.bytes;
  } else if (shim_.string_size(handle, &size) || shim_.string_text(handle, &text->data))
    return Fail(&frame, kAnyopInternalError, "torch gave no text for %s", name);
  text->count = static_cast<int64_t>(size);
  return std::strlen(text->data) == size
             ? int32_t{kAnyopOk}
             : Fail(&frame, kAnyopValueError, "%s holds a NUL character", name);
}

int32_t Values::ReadScope() {
  AnyopString text = {};
  auto handle = reinterpret_cast<StringHandle>(*Pointed(stack_[count_ - 1]));
  if (int32_t status = ReadText("use", handle, &text)) return status;
  std::string error;
  frame.scope = UseScope({text.data, static_cast<size_t>(text.count)}, &error);
  return frame.scope ? int32_t{kAnyopOk} : Fail(&frame, kAnyopValueError, "%s", error.c_str());
}

int32_t Values::ReadList(const Param& p, Value value) {
  auto list = reinterpret_cast<ListHandle>(value);
  size_t size = 0;
  if (shim_.list_size(list, &size))
    return Fail(&frame, kAnyopInternalError, "torch gave no list for %s", p.name);
  const auto count = static_cast<int64_t>(size);
  if (p.IsTensor()) return ReadTensors(p, list, count);
  if (p.fixed_count >= 0 && count != p.fixed_count) {
    return Fail(&frame, kAnyopValueError, "%s has %lld values, expected %d", p.name,
                (long long)count, p.fixed_count);
  }
  const int64_t item = p.kind == kAnyopStr ? 16 : 8;
  char* values = frame.arena.Take<char>(count * item + 1);
  for (int64_t k = 0; k < count; ++k) {
    Value element = 0;
    if (shim_.list_item(list, static_cast<size_t>(k), &element))
      return Fail(&frame, kAnyopInternalError, "torch gave no element of %s", p.name);
    if (int32_t status = ReadElement(p, element, values + k * item)) return status;
  }
  frame.Field<AnyopIntList>(p) = {reinterpret_cast<const int64_t*>(values), count};
  return kAnyopOk;
}

int32_t Values::ReadTensors(const Param& p, ListHandle list, int64_t count) {
  auto* tensors = frame.arena.Take<AnyopTensor>(count + 1);
  auto* handles = frame.arena.Take<TensorHandle>(count + 1);
  std::fill_n(handles, count, nullptr);
  handles[count] = HandleOf(~Value{0});
  listed_[&p - frame.op->params.data()] = handles;
  for (int64_t k = 0; k < count; ++k) {
    Value element = 0;
    if (shim_.list_item(list, static_cast<size_t>(k), &element))
      return Fail(&frame, kAnyopInternalError, "torch gave no element of %s", p.name);
    if (p.Is(kAnyopOptionalElements)) {
      Value* inner = Pointed(element);
      if (!inner) {
        tensors[k] = {};
        tensors[k].ndim = -1;
        continue;
      }
      element = *inner;
    }
    handles[k] = HandleOf(element);
    if (int32_t status = ReadTensor(p, element, &tensors[k])) return status;
  }
  frame.Field<AnyopTensorList>(p) = {tensors, count};
  return kAnyopOk;
}

int32_t Values::SetStream() {
  if (first_->device_type != 2) return kAnyopOk;
  if (!shim_.cuda_stream)
    return Fail(&frame, kAnyopNotImplemented, "this torch says no current CUDA stream");
  return shim_.cuda_stream(first_->device_id, &frame.stream)
             ? Fail(&frame, kAnyopDeviceError, "torch has no stream for CUDA device %d",
                    first_->device_id)
             : int32_t{kAnyopOk};
}

int32_t Values::Allocate(uint32_t output, AnyopTensor* tensor) {
  if (!glue_) return AllocateByShim(output, tensor);
  void* impl = nullptr;
  char why[512];
  why[0] = 0;
  if (int32_t status = glue_->new_tensor(tensor, &impl, why, sizeof why))
    return Fail(&frame, status, "%s", why);
  impls_[output] = impl;
  frame.torch_result = [](Frame* f, uint32_t o) {
    return static_cast<Values*>(f->binding)->impls_[o];
  };
  return kAnyopOk;
}

int32_t Values::AllocateByShim(uint32_t output, AnyopTensor* tensor) {
  const int32_t dtype = shim_.torch_dtype[AnyopDtypeOf(tensor)];
  if (dtype < 0)
    return Fail(&frame, kAnyopTypeError, "this torch has no dtype %s",
                DtypeName(AnyopDtypeOf(tensor)));
  TensorHandle* made = &results_[output];
  if (shim_.empty_strided(tensor->ndim, tensor->shape, tensor->strides, dtype,
                          DeviceCode(shim_, tensor->device_type), tensor->device_id, made) ||
      shim_.data_ptr(*made, &tensor->data)) {
    return Fail(&frame, kAnyopOutOfMemory, "torch could not allocate the result");
  }
  return kAnyopOk;
}

void Values::MarkWritten() {
  if (!glue_) return;  // anyop.torch's kernel for ADInplaceOrView has done it
  const Operator& op = *frame.op;
  for (uint64_t bits = op.written; bits; bits &= bits - 1) {
    const auto i = static_cast<uint32_t>(__builtin_ctzll(bits));
    if (!(frame.given >> i & 1)) continue;
    if (ParamAt(i).IsList()) {
      for (TensorHandle* t = listed_[i]; t && *t != HandleOf(~Value{0}); ++t) {
        if (*t) glue_->written(ImplOf(*t));
      }
      continue;
    }
    const Value value = IsOptional(ParamAt(i)) ? *Pointed(stack_[i]) : stack_[i];
    glue_->written(ImplOf(HandleOf(value)));
  }
}

void Values::Return(Value* stack) {
  if (form_.destination) return;
  const Operator& op = *frame.op;
  for (uint32_t o = 0; o < op.num_outputs; ++o) {
    if (impls_[o]) results_[o] = NewHandle(impls_[o]);
    auto handle = reinterpret_cast<Value>(results_[o]);
    results_[o] = nullptr, impls_[o] = nullptr;
    const bool optional = ParamAt(op.num_inputs + o).Is(kAnyopOptional);
    stack[o] = optional ? reinterpret_cast<Value>(handle ? new Value(handle) : nullptr) : handle;
  }
}

void Values::ReturnImpls(void** impls) {
  if (form_.destination) return;
  for (uint32_t o = 0; o < frame.op->num_outputs; ++o) impls[o] = std::exchange(impls_[o], nullptr);
}

}  // namespace anyop::torch
