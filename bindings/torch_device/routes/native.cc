// SPDX-License-Identifier: Apache-2.0
// Runs anyop's operators on tensors of the device in the place of torch's.
#include "routes/native.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <anyop/anyop.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/SmallVector.h>

#include <deque>
#include <exception>
#include <mutex>

#include "platform/platform.h"
#include "routes/native_place.h"
#include "routes/native_table.h"
#include "torch_view.h"

namespace anyop::torch_device {
namespace {

using at::Tensor;
using c10::IValue;

std::mutex native_mutex;
std::deque<NativeText>& Texts() {  // they stay where they are
  static auto* made = new std::deque<NativeText>();
  return *made;
}

// One call of an operator: reads the arguments into values, makes results.
class Attempt {
 public:
  Attempt(const NativeKernel& kernel, const Overload& overload, const IValue* arguments)
      : kernel_(kernel), overload_(overload), table_(*kernel.text->table), arguments_(arguments) {
    values_.resize(table_.num_inputs + table_.num_outputs);
    views_.resize(values_.size());
    tensors_.resize(values_.size(), nullptr);
    results_.resize(table_.num_outputs);
  }

  bool Run(std::string* why) {
    if (!Read(why) || !Fits(why)) return false;
    const at::AutoDispatchBelowADInplaceOrView below;
    const c10::Device device = first_->device();
    const c10::OptionalDeviceGuard guard(device);
    return RunOn(StreamOf(device), why);
  }

  // The results in the place of the arguments.
  void Return(torch::jit::Stack* stack) {
    c10::SmallVector<IValue, 4> found;
    for (size_t r = 0; r < overload_.written_results.size(); ++r) {
      const int argument = overload_.written_results[r];
      found.push_back(argument < 0 ? IValue(std::move(results_[r])) : arguments_[argument]);
    }
    torch::jit::drop(*stack, kernel_.slots.size());
    for (IValue& value : found) stack->push_back(std::move(value));
  }

 private:
  bool RunOn(void* stream, std::string* why) {
    const AnyopInvokeOptions options = {sizeof options, 0, stream, nullptr, &Allocate, this};
    const int32_t status = AnyopInvoke(kernel_.text->op, values_.data(),
                                       static_cast<int32_t>(values_.size()), &options);
    if (status == kAnyopOk) return true;
    if (status == kAnyopPending) std::rethrow_exception(error_);
    *why = AnyopLastError();
    if (status == kAnyopValueError || status == kAnyopTypeError || status == kAnyopNotImplemented)
      return false;
    if (status == kAnyopOutOfMemory) TORCH_CHECK_WITH(OutOfMemoryError, false, *why);
    TORCH_CHECK(false, *why);
  }

  const AnyopParam& Param(int p) const {
    return *reinterpret_cast<const AnyopParam*>(reinterpret_cast<const char*>(table_.params) +
                                                static_cast<size_t>(p) * table_.param_size);
  }

  bool Read(std::string* why) {
    for (const Slot::Form form :
         {Slot::kParameter, Slot::kAny}) {  // what others speak of comes first
      for (size_t i = 0; i < kernel_.slots.size(); ++i) {
        const Slot& slot = kernel_.slots[i];
        const bool is_parameter = slot.form == Slot::kParameter || slot.form == Slot::kTransposed ||
                                  slot.form == Slot::kEnds;
        if (is_parameter != (form == Slot::kParameter)) continue;
        if (is_parameter ? Put(slot, arguments_[i]) : Agrees(slot, arguments_[i])) continue;
        *why = std::string(table_.name) + " does not take " +
               overload_.op.schema().arguments()[i].name() + " as it is";
        return false;
      }
    }
    for (const Slot& slot : kernel_.text->given) {
      if (Put(slot, slot.value)) continue;
      *why = std::string(table_.name) + " does not take what its text says of " +
             Param(slot.parameter).name;
      return false;
    }
    PutWritten();
    return true;
  }

  // In place: the results are arguments.
  void PutWritten() {
    for (size_t r = 0; r < overload_.written_results.size(); ++r) {
      const int argument = overload_.written_results[r];
      if (argument >= 0 && kernel_.slots[static_cast<size_t>(argument)].form != Slot::kResult)
        PutTensor(static_cast<int>(table_.num_inputs + r), arguments_[argument].toTensor(), false);
    }
  }

  bool Agrees(const Slot& slot, const IValue& given) {
    switch (slot.form) {
      case Slot::kResult:
        return given.isTensor() && PutTensor(static_cast<int>(table_.num_inputs) + slot.parameter,
                                             given.toTensor(), false);
      case Slot::kSizes:
        return HasSizes(slot, given);
      case Slot::kDtype: {
        const Tensor* tensor = tensors_[static_cast<size_t>(slot.parameter)];
        return given.isInt() && tensor && given.toScalarType() == tensor->scalar_type();
      }
      case Slot::kValue:
        return IsValue(slot.value, given);
      default:
        return true;
    }
  }

  static bool IsValue(const IValue& expected, const IValue& given) {
    if (expected.isNone() || given.isNone()) return expected.isNone() && given.isNone();
    if (expected.isString())
      return given.isString() && given.toStringRef() == expected.toStringRef();
    if (expected.isList()) return given.isList() && given == expected;
    const auto number = [](const IValue& value) {
      return value.isInt() || value.isDouble() || value.isBool();
    };
    return number(expected) && number(given) &&
           expected.toScalar().to<double>() == given.toScalar().to<double>();
  }

  bool HasSizes(const Slot& slot, const IValue& given) const {
    if (!given.isIntList()) return false;
    const auto sizes = given.toIntList();
    if (sizes.size() != slot.sizes.size()) return false;
    for (size_t i = 0; i < slot.sizes.size(); ++i) {
      const Tensor* tensor = tensors_[static_cast<size_t>(slot.sizes[i].first)];
      const int64_t at = slot.sizes[i].second, rank = tensor ? tensor->dim() : 0;
      if (at >= rank || at < -rank || tensor->size(at) != sizes.get(i)) return false;
    }
    return true;
  }

  bool Put(const Slot& slot, const IValue& given) {
    const AnyopParam& param = Param(slot.parameter);
    AnyopValue& value = values_[static_cast<size_t>(slot.parameter)];
    if (given.isNone()) return (param.flags & kAnyopOptional) != 0;
    switch (param.kind) {
      case kAnyopTensor: {
        if (!given.isTensor()) return false;
        const Tensor& tensor = given.toTensor();
        if (!tensor.defined()) return (param.flags & kAnyopOptional) != 0;
        if (slot.form == Slot::kEnds) return PutEnds(slot.parameter, tensor);
        return HasLetters(slot, tensor) &&
               PutTensor(slot.parameter, tensor, slot.form == Slot::kTransposed);
      }
      case kAnyopFloat:
        if (given.isDouble())
          value.as.f = given.toDouble();
        else if (given.isInt() || given.isBool())
          value.as.f = given.toScalar().to<double>();
        else
          return false;
        value.kind = kAnyopFloatValue;
        return true;
      case kAnyopStr:
        if (!given.isString()) return false;
        value.as.s = given.toStringRef().c_str();
        value.kind = kAnyopStringValue;
        return true;
      case kAnyopScalarType: {
        value.as.i = given.isInt() ? OperatorDtype(given.toScalarType()) : kAnyopNoDtype;
        value.kind = kAnyopIntValue;
        return value.as.i != kAnyopNoDtype;
      }
      default:
        if (!given.isInt() && !given.isBool()) return false;
        value.as.i = given.isInt() ? given.toInt() : given.toBool();
        value.kind = kAnyopIntValue;
        return true;
    }
  }

  bool HasLetters(const Slot& slot, const Tensor& tensor) {
    if (slot.letters.empty()) return true;
    if (tensor.dim() != static_cast<int64_t>(slot.letters.size())) return false;
    for (size_t d = 0; d < slot.letters.size(); ++d) {
      for (const auto& [letter, size] : sizes_)
        if (*letter == slot.letters[d] && size != tensor.size(static_cast<int64_t>(d)))
          return false;
      sizes_.emplace_back(&slot.letters[d], tensor.size(static_cast<int64_t>(d)));
    }
    return true;
  }

  // The operator has where the first segment begins, too: 0.
  bool PutEnds(int p, const Tensor& ends) {
    if (ends.dim() != 1) return false;
    const at::AutoDispatchBelowADInplaceOrView below;
    const c10::OptionalDeviceGuard guard(ends.device());
    return PutTensor(p, made_.emplace_back(at::constant_pad_nd(ends, {1, 0})), false);
  }

  bool PutTensor(int p, const Tensor& tensor, bool transposed) {
    if (tensor.layout() != at::kStrided || tensor.is_conj() || tensor.is_neg()) return false;
    const bool written = p >= static_cast<int>(table_.num_inputs);
    const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    AnyopTensor& view = views_[static_cast<size_t>(p)];
    if (glue::FillView(impl, written, &view) != glue::Memory::kWhole ||
        AnyopDtypeOf(&view) == kAnyopNoDtype || (transposed && view.ndim < 2))
      return false;
    if (transposed) {
      const auto rank = static_cast<size_t>(tensor.dim());
      auto& turned = turned_.emplace_back(tensor.sizes().begin(), tensor.sizes().end());
      turned.append(tensor.strides().begin(), tensor.strides().end());
      std::swap(turned[rank - 1], turned[rank - 2]);
      std::swap(turned[2 * rank - 1], turned[2 * rank - 2]);
      view.shape = turned.data(), view.strides = turned.data() + rank;
    }
    values_[static_cast<size_t>(p)].kind = kAnyopTensorValue;
    values_[static_cast<size_t>(p)].as.tensor = &view;
    tensors_[static_cast<size_t>(p)] = &tensor;
    return true;
  }

  // One device; and no promotion between a number and a tensor, which torch does by its own rules.
  bool Fits(std::string* why) {
    bool numbers = false, mixed = false;
    for (const Tensor* tensor : tensors_) {
      if (!tensor) continue;
      if (!first_) first_ = tensor;
      if (tensor->device() != first_->device()) {
        *why =
            c10::str(table_.name, " got tensors of ", first_->device(), " and ", tensor->device());
        return false;
      }
      numbers |= tensor->dim() == 0;
      mixed |= tensor->scalar_type() != first_->scalar_type();
    }
    const c10::DeviceType wanted = kernel_.text->device;
    if (first_ && wanted != c10::kMeta && DeviceBelow(first_->device()) != wanted) {
      *why = c10::str(table_.name, " stands for it on ", wanted, " alone");
      return false;
    }
    // Scales of 8-bit floats are numbers beside them, which torch does not promote.
    const bool promoted = numbers && mixed && !c10::isFloat8Type(first_->scalar_type());
    if (!first_ || promoted) *why = std::string(table_.name) + " does not promote numbers";
    return first_ && !promoted;
  }

  static AnyopDtype OperatorDtype(c10::ScalarType type) {
    const glue::Dtype* dtype = glue::FindDtype(type);
    AnyopTensor of = {};
    of.dtype_code = dtype ? dtype->code : glue::kOpaque, of.dtype_bits = dtype ? dtype->bits : 0;
    return AnyopDtypeOf(&of);
  }

  static int32_t Allocate(void* context, int32_t result, AnyopTensor* view) {
    auto* call = static_cast<Attempt*>(context);
    try {
      call->Make(result, view);
      return kAnyopOk;
    } catch (...) {
      call->error_ = std::current_exception();
      return kAnyopPending;
    }
  }

  void Make(int32_t result, AnyopTensor* view) {
    const glue::Dtype* dtype = glue::FindDtype(*view);
    TORCH_CHECK_NOT_IMPLEMENTED(dtype, table_.name, ": torch has no dtype of this result");
    Tensor& made = results_[static_cast<size_t>(result)];
    made = at::empty({view->shape, static_cast<size_t>(view->ndim)},
                     at::TensorOptions(first_->device()).dtype(dtype->torch));
    view->data = made.mutable_data_ptr();
    glue::SetSizes(*made.unsafeGetTensorImpl(), view);
  }

  const NativeKernel& kernel_;
  const Overload& overload_;
  const AnyopOp& table_;
  const IValue* arguments_;
  c10::SmallVector<AnyopValue, 10> values_;  // by parameter, as the next two
  c10::SmallVector<AnyopTensor, 10> views_;
  c10::SmallVector<const Tensor*, 10> tensors_;
  c10::SmallVector<Tensor, 4> results_;
  c10::SmallVector<std::pair<const std::string*, int64_t>, 6> sizes_;
  std::deque<c10::SmallVector<int64_t, 6>> turned_;  // sizes, then strides
  std::deque<Tensor> made_;
  const Tensor* first_ = nullptr;
  std::exception_ptr error_;
};

}  // namespace

void AddNative(const IValue& texts) {
  const std::lock_guard lock(native_mutex);
  for (const IValue& said : texts.toTupleRef().elements()) Texts().push_back(ReadNative(said));
}

void AttachNative(Overload* overload) {
  const std::lock_guard lock(native_mutex);
  auto kernels = std::make_unique<std::vector<NativeKernel>>();
  const std::string packet = overload->name.substr(0, overload->name.find('.'));
  for (const NativeText& text : Texts()) {
    const std::string plain = text.overload.substr(0, text.overload.find('.'));
    if (packet != plain && packet != plain + "_") continue;
    NativeKernel kernel;
    if (BindNative(text, overload->op.schema(), &kernel)) kernels->push_back(std::move(kernel));
  }
  // What calls in flight read stays.
  if (!kernels->empty()) overload->native.store(kernels.release(), std::memory_order_release);
}

bool RunNative(const Overload& overload, torch::jit::Stack* stack, std::string* why) {
  const auto* kernels = overload.native.load(std::memory_order_acquire);
  if (!kernels) {
    *why = "no operator of anyop's stands for " + overload.name;
    return false;
  }
  const IValue* arguments = stack->data() + stack->size() - overload.arguments.size();
  for (const NativeKernel& kernel : *kernels) {
    Attempt attempt(kernel, overload, arguments);
    if (!attempt.Run(why)) continue;
    attempt.Return(stack);
    return true;
  }
  return false;
}

}  // namespace anyop::torch_device
