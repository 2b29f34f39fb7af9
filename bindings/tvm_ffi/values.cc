// SPDX-License-Identifier: Apache-2.0
// Strict about types, as the Python binding is: a float is no int, a bool only True or False.
#include "values.h"

#include <algorithm>

#include "tensors/dtype.h"

namespace anyop::ffi {
namespace {

// What all releases of 0.1 agree on and the C header of the early ones does not name.
constexpr int32_t kList = 75;
struct Sequence {
  const TVMFFIAny* data;
  int64_t count;
};

const char* const kKindName[] = {"", "Tensor", "int", "float", "bool", "str", "dtype"};
const char* const kPodName[] = {"None",   "int",    "bool",   "float", "an opaque pointer",
                                "dtype",  "Device", "Tensor", "str",   "bytes",
                                "Object", "str",    "bytes"};

std::string TypeText(const Library& library, int32_t type) {
  if (type >= 0 && type < static_cast<int32_t>(std::size(kPodName))) return kPodName[type];
  const TVMFFITypeInfo* info =
      type >= kTVMFFIStaticObjectBegin ? library.GetTypeInfo(type) : nullptr;
  return info ? std::string(info->type_key.data, info->type_key.size) : "value of unknown type";
}

// One argument on its way into a frame.
class Taker {
 public:
  Taker(const Library& library, Frame* frame, const Param& p)
      : library_(library), frame_(frame), p_(p) {}

  int32_t TakeTensor(const TVMFFIAny& value, AnyopTensor* tensor) {
    const DLTensor* found = TensorOf(value);
    if (!found) return WrongType(value);
    static_assert(sizeof(AnyopTensor) == sizeof(DLTensor));
    std::memcpy(tensor, found, sizeof *tensor);
    return kAnyopOk;
  }

  int32_t TakeScalar(const TVMFFIAny& value) {
    if (p_.kind == kAnyopStr) return TakeString(value, &frame_->Field<AnyopString>(p_));
    int64_t bits = 0;
    if (int32_t status = TakeElement(value, &bits)) return status;
    if (p_.kind == kAnyopFloat) {
      double number;
      std::memcpy(&number, &bits, sizeof number);
      SetFloat(frame_, p_, number);
    } else {
      SetInt(frame_, p_, bits);
    }
    return kAnyopOk;
  }

  int32_t TakeList(const TVMFFIAny& value) {
    if (value.type_index == kTVMFFIShape && p_.kind == kAnyopInt) return TakeShape(value);
    const bool is_sequence = value.type_index == kTVMFFIArray || value.type_index == kList;
    if (!is_sequence && (p_.IsTensor() || p_.fixed_count < 0)) return WrongType(value);
    // A single value stands for all where the number is known.
    const Sequence given = is_sequence ? SequenceOf(value) : Sequence{&value, 1};
    const int64_t count = is_sequence ? given.count : p_.fixed_count;
    if (int32_t status = CheckCount(count)) return status;
    if (p_.IsTensor()) return TakeTensors(given);
    const int64_t item = p_.kind == kAnyopStr ? sizeof(AnyopString) : sizeof(int64_t);
    char* items = frame_->arena.Take<char>(count * item + 1);
    for (int64_t i = 0; i < count; ++i) {
      const TVMFFIAny element = Resolve(given.data[is_sequence ? i : 0]);
      char* to = items + i * item;
      const int32_t status = p_.kind == kAnyopStr
                                 ? TakeString(element, reinterpret_cast<AnyopString*>(to))
                                 : TakeElement(element, reinterpret_cast<int64_t*>(to));
      if (status != kAnyopOk) return status;
    }
    frame_->Field<AnyopIntList>(p_) = {reinterpret_cast<const int64_t*>(items), count};
    return kAnyopOk;
  }

 private:
  static Sequence SequenceOf(const TVMFFIAny& value) {
    Sequence found;
    std::memcpy(&found, reinterpret_cast<const char*>(value.v_obj) + sizeof(TVMFFIObject),
                sizeof found);
    return found;
  }

  int32_t WrongType(const TVMFFIAny& value) {
    return Fail(frame_, kAnyopTypeError, "%s is %s, expected %s%s", p_.name,
                WithArticle(TypeText(library_, value.type_index)).c_str(),
                p_.IsList() ? "an Array or List of " : "", kKindName[p_.kind]);
  }

  int32_t CheckCount(int64_t count) {
    if (p_.fixed_count < 0 || count == p_.fixed_count) return kAnyopOk;
    return Fail(frame_, kAnyopValueError, "%s has %lld values, expected %d", p_.name,
                static_cast<long long>(count), p_.fixed_count);
  }

  int32_t TakeShape(const TVMFFIAny& value) {
    const auto* cell = reinterpret_cast<const TVMFFIShapeCell*>(
        reinterpret_cast<const char*>(value.v_obj) + sizeof(TVMFFIObject));
    const auto count = static_cast<int64_t>(cell->size);
    if (int32_t status = CheckCount(count)) return status;
    int64_t* items = frame_->arena.Take<int64_t>(count + 1);  // an empty list has data
    std::copy_n(cell->data, count, items);
    frame_->Field<AnyopIntList>(p_) = {items, count};
    return kAnyopOk;
  }

  int32_t TakeTensors(const Sequence& given) {
    auto* tensors = frame_->arena.Take<AnyopTensor>(given.count + 1);
    for (int64_t i = 0; i < given.count; ++i) {
      const TVMFFIAny element = Resolve(given.data[i]);
      if (element.type_index == kTVMFFINone && p_.Is(kAnyopOptionalElements)) {
        tensors[i] = {};
        tensors[i].ndim = -1;  // None
      } else if (int32_t status = TakeTensor(element, &tensors[i])) {
        return status;
      }
    }
    frame_->Field<AnyopTensorList>(p_) = {tensors, given.count};
    return kAnyopOk;
  }

  // Any kind but a string, as 8 bytes.
  int32_t TakeElement(const TVMFFIAny& value, int64_t* to) {
    const int32_t type = value.type_index;
    if (p_.kind == kAnyopScalarType) return TakeDtype(value, to);
    if (p_.kind == kAnyopFloat && type == kTVMFFIFloat) {
      std::memcpy(to, &value.v_float64, sizeof *to);
    } else if (p_.kind == kAnyopFloat && (type == kTVMFFIInt || type == kTVMFFIBool)) {
      const auto number = static_cast<double>(value.v_int64);
      std::memcpy(to, &number, sizeof *to);
    } else if (p_.kind == kAnyopInt && (type == kTVMFFIInt || type == kTVMFFIBool)) {
      *to = value.v_int64;
    } else if (p_.kind == kAnyopBoolean && type == kTVMFFIBool) {
      *to = value.v_int64 != 0;
    } else {
      return WrongType(value);
    }
    return kAnyopOk;
  }

  // Copies, for not every form of a string ends with NUL.
  int32_t TakeString(const TVMFFIAny& value, AnyopString* to) {
    TVMFFIByteArray text;
    if (value.type_index == kTVMFFIRawStr) {
      text = {value.v_c_str, std::strlen(value.v_c_str)};
    } else if (value.type_index == kTVMFFISmallStr) {
      text = TVMFFISmallBytesGetContentByteArray(&value);
    } else if (value.type_index == kTVMFFIStr) {
      text = *TVMFFIBytesGetByteArrayPtr(value.v_obj);
    } else {
      return WrongType(value);
    }
    if (std::memchr(text.data, 0, text.size)) {
      return Fail(frame_, kAnyopValueError, "%s holds a NUL character", p_.name);
    }
    char* copy = frame_->arena.Take<char>(static_cast<int64_t>(text.size) + 1);
    std::memcpy(copy, text.data, text.size);
    copy[text.size] = 0;
    *to = {copy, static_cast<int64_t>(text.size)};
    return kAnyopOk;
  }

  int32_t TakeDtype(const TVMFFIAny& value, int64_t* to) {
    if (value.type_index == kTVMFFIDataType) {
      AnyopTensor typed = {};
      typed.dtype_code = value.v_dtype.code;
      typed.dtype_bits = value.v_dtype.bits;
      *to = value.v_dtype.lanes == 1 ? AnyopDtypeOf(&typed) : kAnyopNoDtype;
      if (*to != kAnyopNoDtype) return kAnyopOk;
      return Fail(frame_, kAnyopTypeError,
                  "%s is a dtype that no operator knows (code %d, %d bits, %d lanes)", p_.name,
                  value.v_dtype.code, value.v_dtype.bits, value.v_dtype.lanes);
    }
    AnyopString name = {};
    if (int32_t status = TakeString(value, &name)) return status;
    *to = DtypeFromName(name.data);
    if (*to != kAnyopNoDtype) return kAnyopOk;
    return Fail(frame_, kAnyopTypeError, "%s is %s, expected a dtype such as \"float32\"", p_.name,
                name.data);
  }

  const Library& library_;
  Frame* frame_;
  const Param& p_;
};

}  // namespace

TVMFFIAny Resolve(const TVMFFIAny& value) {
  if (value.type_index != kTVMFFIObjectRValueRef) return value;
  TVMFFIAny resolved = {};
  resolved.v_obj = *static_cast<TVMFFIObject**>(value.v_ptr);
  resolved.type_index = resolved.v_obj ? resolved.v_obj->type_index : int32_t{kTVMFFINone};
  return resolved;
}

const DLTensor* TensorOf(const TVMFFIAny& value) {
  if (value.type_index == kTVMFFIDLTensorPtr) return static_cast<const DLTensor*>(value.v_ptr);
  if (value.type_index == kTVMFFITensor) return TVMFFITensorGetDLTensorPtr(value.v_obj);
  return nullptr;
}

int32_t SetArgument(const Library& library, Frame* frame, uint32_t index, const TVMFFIAny& value) {
  const Param& p = frame->op->params[index];
  Taker taker(library, frame, p);
  if (p.IsList()) return taker.TakeList(value);
  return p.IsTensor() ? taker.TakeTensor(value, &frame->tensors[index]) : taker.TakeScalar(value);
}

}  // namespace anyop::ffi
