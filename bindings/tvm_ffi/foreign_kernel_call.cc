// SPDX-License-Identifier: Apache-2.0
// Runs a function of tvm-ffi as the kernel of an operator: its arguments by the plan, the call's
// stream as tvm-ffi's current one, its error as the call's.
#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

#include "anyop/forms/size_math.h"
#include "call/arena.h"
#include "foreign_kernel.h"
#include "foreign_kernel_loan.h"
#include "foreign_kernel_view.h"
#include "tensors/dtype.h"

namespace anyop::ffi {
namespace {

struct Known {
  const char* kind;
  int32_t status;
};
constexpr Known kKnown[] = {
    {"ValueError", kAnyopValueError},       {"IndexError", kAnyopValueError},
    {"TypeError", kAnyopTypeError},         {"NotImplementedError", kAnyopNotImplemented},
    {"MemoryError", kAnyopOutOfMemory},     {"DeviceError", kAnyopDeviceError},
    {"InternalError", kAnyopInternalError},
};

class Call {
 public:
  Call(const ForeignCall& foreign, const char* args, AnyopCall* call)
      : foreign_(foreign), library_(*foreign.library), op_(*foreign.op), args_(args), call_(call) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  int32_t Run() {
    if (!WritesAnything()) return kAnyopOk;
    const std::vector<PlanArgument>& arguments = foreign_.plan.arguments;
    const auto count = static_cast<int32_t>(arguments.size());
    TVMFFIAny* values = NewValues(count);
    int32_t status = kAnyopOk;
    for (int32_t i = 0; i < count && status == kAnyopOk; ++i)
      status = Fill(arguments[i], &values[i]);
    if (status == kAnyopOk) status = RunOnStream(values, count);
    for (int32_t i = 0; i < count; ++i) Release(values[i]);
    return LetGoOfLoans(status);
  }

 private:
  template <typename T>
  const T& Field(int param) const {
    return *reinterpret_cast<const T*>(args_ + op_.params[param].offset);
  }

  // None each.
  TVMFFIAny* NewValues(int64_t count) {
    return std::fill_n(arena_.Take<TVMFFIAny>(count + 1), count + 1, TVMFFIAny{}) - count - 1;
  }

  int32_t Fail(int32_t status, const std::string& message) {
    return call_->fail(call_, status, (foreign_.plan.function + ": " + message).c_str());
  }

  // Where nothing that the function writes has elements it is not called: a grid may not be empty.
  bool WritesAnything() const {
    bool writes = false, any = false;
    for (size_t i = 0; i < op_.params.size(); ++i) {
      const Param& p = op_.params[i];
      if (!p.Is(kAnyopOutput) && !p.Is(kAnyopMutated)) continue;
      writes = true;
      any |= p.IsList() || HasElements(Field<const AnyopTensor*>(static_cast<int>(i)));
    }
    return any || !writes;
  }

  static bool HasElements(const AnyopTensor* tensor) { return tensor && !IsEmpty(*tensor); }

  int32_t RunOnStream(TVMFFIAny* values, int32_t count) {
    void* previous = nullptr;
    const bool on_stream = call_->device_type != kDLCPU;
    if (on_stream && SetStream(call_->stream, &previous)) return TakeError();
    TVMFFIAny result = {};
    int32_t status = kAnyopOk;
    if (library_.FunctionCall(foreign_.function, values, count, &result)) status = TakeError();
    Release(result);  // results are arguments
    if (on_stream && SetStream(previous, nullptr) && status == kAnyopOk) status = TakeError();
    return status;
  }

  int SetStream(void* stream, void** previous) {
    return library_.SetStream(call_->device_type, call_->device_id, stream, previous);
  }

  int32_t TakeError() {
    TVMFFIObjectHandle error = nullptr;
    library_.TakeError(&error);
    if (!error) return Fail(kAnyopInternalError, "failed without an error text");
    const TVMFFIErrorCell* cell = TVMFFIErrorGetCellPtr(error);
    const std::string kind(cell->kind.data, cell->kind.size);
    std::string text(cell->message.data, cell->message.size);
    library_.DecRef(error);
    for (const Known& known : kKnown) {
      if (kind == known.kind) return Fail(known.status, text);
    }
    return Fail(kAnyopInternalError, kind + ": " + text);
  }

  void Release(const TVMFFIAny& value) {
    if (value.type_index >= kTVMFFIStaticObjectBegin) library_.DecRef(value.v_obj);
  }

  int32_t LetGoOfLoans(int32_t status) {
    for (Loan* loan : loans_) {
      if (loan->object) {
        library_.DecRef(loan->object);
      } else {
        loan->LetGo();  // no object came to be
      }
      if (!loan->LetGo() && status == kAnyopOk) {
        status = Fail(kAnyopInternalError, "keeps a tensor beyond the call, which is borrowed");
      }
    }
    return status;
  }

  int32_t Fill(const PlanArgument& argument, TVMFFIAny* value) {
    switch (argument.kind) {
      case PlanArgument::kNone:
        return kAnyopOk;
      case PlanArgument::kBool:
        return SetInt(kTVMFFIBool, argument.number != 0, value);
      case PlanArgument::kFloat:
        return SetFloat(argument.number, value);
      case PlanArgument::kText:
        return SetText(argument.text.c_str(), value);
      case PlanArgument::kInteger:
        return SetExpression(argument, value);
      case PlanArgument::kWorkspace:
        return SetWorkspace(argument, value);
      case PlanArgument::kList:
        return SetList(argument, value);
      default:
        return SetParam(argument, value);
    }
  }

  static int32_t SetInt(int32_t type, int64_t number, TVMFFIAny* value) {
    value->type_index = type;
    value->v_int64 = number;
    return kAnyopOk;
  }
  static int32_t SetFloat(double number, TVMFFIAny* value) {
    value->type_index = kTVMFFIFloat;
    value->v_float64 = number;
    return kAnyopOk;
  }
  static int32_t SetText(const char* text, TVMFFIAny* value) {
    value->type_index = kTVMFFIRawStr;
    value->v_c_str = text;
    return kAnyopOk;
  }

  int32_t SetExpression(const PlanArgument& argument, TVMFFIAny* value) {
    const int64_t number = EvaluateSteps(argument.steps, op_, args_);
    if (number == ANYOP_NO_SIZE) return Fail(kAnyopValueError, argument.text + " is too large");
    return SetInt(kTVMFFIInt, number, value);
  }

  int32_t SetWorkspace(const PlanArgument& argument, TVMFFIAny* value) {
    int64_t sizes[] = {EvaluateSteps(argument.steps, op_, args_), 1};
    if (sizes[0] < 0) return Fail(kAnyopValueError, argument.text + " is negative or too large");
    void* data = call_->workspace(call_, std::max<int64_t>(sizes[0], 1));
    if (!data) return Fail(kAnyopOutOfMemory, "no memory for " + argument.text);
    return Lend({data, call_->device_type, call_->device_id, 1, kDLUInt, 8, 1, sizes, sizes + 1, 0},
                value);
  }

  int32_t SetTensor(const PlanArgument& argument, TVMFFIAny* value) {
    const AnyopTensor* tensor = Field<const AnyopTensor*>(argument.param);
    if (!tensor) return kAnyopOk;  // None
    if (argument.kind == PlanArgument::kParam) return Lend(*tensor, value);
    AnyopTensor view;
    int64_t sizes[4];
    if (!JoinDimensions(*tensor, argument.kind == PlanArgument::kRows, sizes, &view)) {
      return Fail(kAnyopNotImplemented,
                  argument.text + ": its dimensions cannot be joined without a copy");
    }
    return Lend(view, value);
  }

  // Always an object: code that takes a DLTensor* takes it too, and Python's code nothing else.
  int32_t Lend(const AnyopTensor& tensor, TVMFFIAny* value) {
    auto loan = std::make_unique<Loan>(tensor);
    loans_.push_back(loan.get());
    Loan* lent = loan.release();
    if (library_.TensorFromDLPack(&lent->managed, 0, 0, &lent->object)) return TakeError();
    library_.IncRef(lent->object);  // one reference is the value's, one the loan's
    value->type_index = kTVMFFITensor;
    value->v_obj = static_cast<TVMFFIObject*>(lent->object);
    return kAnyopOk;
  }

  int32_t SetTensors(int param, TVMFFIAny* value) {
    const auto& list = Field<AnyopTensorList>(param);
    if (!list.data) return kAnyopOk;  // None
    auto* elements = NewValues(list.count);
    int32_t status = kAnyopOk;
    for (int64_t i = 0; i < list.count && status == kAnyopOk; ++i) {
      if (list.data[i].ndim >= 0) status = Lend(list.data[i], &elements[i]);
    }
    if (status == kAnyopOk) status = SetArray(elements, list.count, value);
    for (int64_t i = 0; i < list.count; ++i) Release(elements[i]);
    return status;
  }

  int32_t SetArray(TVMFFIAny* elements, int64_t count, TVMFFIAny* value) {
    if (count > INT32_MAX) return Fail(kAnyopValueError, "a list is too long");
    TVMFFIAny made = {};
    if (library_.FunctionCall(library_.make_array, elements, static_cast<int32_t>(count), &made))
      return TakeError();
    *value = made;
    return kAnyopOk;
  }

  int32_t SetList(const PlanArgument& argument, TVMFFIAny* value) {
    const auto count = static_cast<int64_t>(argument.elements.size());
    auto* elements = NewValues(count);
    for (int64_t i = 0; i < count; ++i) {
      if (int32_t status = Fill(argument.elements[i], &elements[i])) return status;
    }
    return SetArray(elements, count, value);
  }

  int32_t SetParam(const PlanArgument& argument, TVMFFIAny* value) {
    const int param = argument.param;
    const Param& p = op_.params[param];
    if (p.IsTensor()) return p.IsList() ? SetTensors(param, value) : SetTensor(argument, value);
    if (p.IsList()) return SetValues(param, value);
    if (p.kind == kAnyopStr) return SetString(p, Field<AnyopString>(param), value);
    if (p.Is(kAnyopOptional) && !Field<AnyopOptionalInt>(param).has) return kAnyopOk;
    return SetScalar(p, Field<int64_t>(param), value);
  }

  // A number in the 8 bytes of a field.
  int32_t SetScalar(const Param& p, int64_t bits, TVMFFIAny* value) {
    if (p.kind == kAnyopFloat) {
      double number;
      std::memcpy(&number, &bits, sizeof number);
      return SetFloat(number, value);
    }
    if (p.kind == kAnyopScalarType) {
      const DlpackType type = DlpackTypeOf(static_cast<int>(bits));
      value->type_index = kTVMFFIDataType;
      value->v_dtype = {type.code, type.bits, 1};
      return kAnyopOk;
    }
    return SetInt(p.kind == kAnyopBoolean ? kTVMFFIBool : kTVMFFIInt, bits, value);
  }

  int32_t SetString(const Param& p, const AnyopString& text, TVMFFIAny* value) {
    if (!text.data) return kAnyopOk;  // None
    if (std::memchr(text.data, 0, static_cast<size_t>(text.count))) {
      return Fail(kAnyopValueError, std::string(p.name) + " has a NUL inside");
    }
    return SetText(text.data, value);
  }

  int32_t SetValues(int param, TVMFFIAny* value) {
    const Param& p = op_.params[param];
    const auto& list = Field<AnyopIntList>(param);
    if (!list.data) return kAnyopOk;  // None
    auto* elements = NewValues(list.count);
    for (int64_t i = 0; i < list.count; ++i) {
      const int32_t status =
          p.kind == kAnyopStr
              ? SetString(p, reinterpret_cast<const AnyopString*>(list.data)[i], &elements[i])
              : SetScalar(p, list.data[i], &elements[i]);
      if (status != kAnyopOk) return status;
    }
    return SetArray(elements, list.count, value);
  }

  const ForeignCall& foreign_;
  const Library& library_;
  const Operator& op_;
  const char* args_;
  AnyopCall* call_;
  Arena arena_;
  std::vector<Loan*> loans_;
};

}  // namespace

int32_t RunForeign(const void* args, AnyopCall* call) {
  try {
    return Call(*static_cast<const ForeignCall*>(call->context), static_cast<const char*>(args),
                call)
        .Run();
  } catch (const std::bad_alloc&) {
    return call->fail(call, kAnyopOutOfMemory, "out of memory");
  }
}

}  // namespace anyop::ffi
