// SPDX-License-Identifier: Apache-2.0
// Every value is checked against its schema here, and nowhere behind.
#include "arguments.h"

#include "api/c_error.h"

namespace anyop::aten {
namespace {

const char* const kTagNames[] = {
    "None",     "nothing",  "an int", "a float", "a bool",      "a complex number", "text",
    "a tensor", "a tensor", "a list", "a seed",  "a Generator", "a device"};

int32_t Refuse(const Op& op, const Param& p, int32_t status, const std::string& why) {
  return SetError(status, (op.full_name + ": " + p.name + " " + why).c_str());
}

int32_t WrongKind(const Op& op, const Param& p, const AnyopAtenValue& value) {
  const bool known = value.tag >= 0 && value.tag <= kAnyopAtenDevice;
  return Refuse(op, p, kAnyopTypeError,
                std::string("is ") + (known ? kTagNames[value.tag] : "of an unknown tag") +
                    ", expected " + p.type_text);
}

int32_t CheckMemory(const Op& op, const Param& p, const AnyopAtenMemory& memory) {
  const AnyopTensor& t = memory.tensor;
  if (p.Is(kAnyopAtenWrites) && (memory.flags & kAnyopAtenReadOnly))
    return Refuse(op, p, kAnyopValueError, "is read-only, and the operator would write it");
  if (t.ndim < 0 || t.ndim > 64 || (t.ndim && !t.shape))
    return Refuse(op, p, kAnyopValueError, "has no sizes, or more than 64 dimensions");
  constexpr uint8_t kBfloat = 4;  // DLDataTypeCode
  if (op.needs_alignment && t.dtype_code == kBfloat &&
      (reinterpret_cast<uintptr_t>(t.data) + t.byte_offset) % 32)
    return Refuse(op, p, kAnyopValueError,
                  "begins at an address that is no multiple of 32, which torch's kernel needs");
  return kAnyopOk;
}

// A name as torch's code. Codes may be given, too.
int32_t LookUp(const Op& op, const Param& p, AnyopAtenValue* value) {
  const auto kind = static_cast<AnyopAtenKind>(p.type.kind);
  if (value->tag == kAnyopAtenInt && kind != kAnyopAtenKindDevice) return kAnyopOk;
  if (value->tag == kAnyopAtenDevice && kind == kAnyopAtenKindDevice) return kAnyopOk;
  if (value->tag != kAnyopAtenStr) return WrongKind(op, p, *value);
  const std::string_view text(value->as.s, static_cast<size_t>(value->more.count));
  int64_t code = -1;
  const bool found =
      kind == kAnyopAtenKindDevice ? ParseDevice(text, &code) : (code = CodeOf(kind, text)) >= 0;
  if (!found)
    return Refuse(
        op, p, kAnyopValueError,
        "is '" + std::string(text.substr(0, 60)) + "', which is no " + p.type_text + " of torch's");
  *value = {};
  value->tag = kind == kAnyopAtenKindDevice ? kAnyopAtenDevice : kAnyopAtenInt;
  value->as.i = code;
  return kAnyopOk;
}

bool IsNumber(int32_t tag) {
  return tag == kAnyopAtenInt || tag == kAnyopAtenFloat || tag == kAnyopAtenBool ||
         tag == kAnyopAtenComplex;
}

int32_t ToFloat(const Op& op, const Param& p, AnyopAtenValue* value) {
  if (value->tag == kAnyopAtenFloat) return kAnyopOk;
  if (value->tag != kAnyopAtenInt && value->tag != kAnyopAtenBool) return WrongKind(op, p, *value);
  value->as.f = static_cast<double>(value->as.i);
  value->tag = kAnyopAtenFloat;
  return kAnyopOk;
}

int32_t ToInt(const Op& op, const Param& p, AnyopAtenValue* value) {
  if (value->tag != kAnyopAtenInt && value->tag != kAnyopAtenBool) return WrongKind(op, p, *value);
  value->tag = kAnyopAtenInt;
  return kAnyopOk;
}

int32_t ToTensor(const Op& op, const Param& p, AnyopAtenValue* value) {
  if (value->tag == kAnyopAtenMemoryOf) {
    return value->as.memory ? CheckMemory(op, p, *value->as.memory) : WrongKind(op, p, {});
  }
  const bool good =
      value->tag == kAnyopAtenTorch || (IsNumber(value->tag) && !p.Is(kAnyopAtenWrites));
  return good ? int32_t{kAnyopOk} : WrongKind(op, p, *value);
}

// One value, or one element of a list.
int32_t Convert(const Op& op, const Param& p, AnyopAtenValue* value) {
  switch (p.type.kind) {
    case kAnyopAtenKindTensor:
      return ToTensor(op, p, value);
    case kAnyopAtenKindScalar:
      return IsNumber(value->tag) ? int32_t{kAnyopOk} : WrongKind(op, p, *value);
    case kAnyopAtenKindInt:
      return ToInt(op, p, value);
    case kAnyopAtenKindFloat:
      return ToFloat(op, p, value);
    case kAnyopAtenKindBool:
      if (value->tag == kAnyopAtenInt && (value->as.i == 0 || value->as.i == 1))
        value->tag = kAnyopAtenBool;
      return value->tag == kAnyopAtenBool ? int32_t{kAnyopOk} : WrongKind(op, p, *value);
    case kAnyopAtenKindStr:
      return value->tag == kAnyopAtenStr ? int32_t{kAnyopOk} : WrongKind(op, p, *value);
    case kAnyopAtenKindGenerator:
      return value->tag == kAnyopAtenSeed || value->tag == kAnyopAtenGenerator
                 ? int32_t{kAnyopOk}
                 : WrongKind(op, p, *value);
    default:
      return LookUp(op, p, value);
  }
}

int32_t ConvertList(const Op& op, const Param& p, Arena* arena, AnyopAtenValue* value) {
  const bool is_list = value->tag == kAnyopAtenList;
  if (!is_list && p.fixed_count < 0) return WrongKind(op, p, *value);
  const int64_t count = is_list ? value->more.count : p.fixed_count;
  if (count < 0) return WrongKind(op, p, *value);
  auto* items = arena->Take<AnyopAtenValue>(count + 1);
  for (int64_t i = 0; i < count; ++i) {
    items[i] = is_list ? value->as.list[i] : *value;
    if (items[i].tag == kAnyopAtenNone && p.Is(kAnyopAtenOptionalElements)) continue;
    if (const int32_t status = Convert(op, p, &items[i])) return status;
  }
  *value = {};
  value->tag = kAnyopAtenList;
  value->as.list = items;
  value->more.count = count;
  return kAnyopOk;
}

int32_t CheckHiddenWrites(const Op& op, const AnyopAtenValue* prepared) {
  for (const HiddenWrite& write : op.hidden_writes) {
    const AnyopAtenValue &value = prepared[write.param], &condition = prepared[write.condition];
    const bool writes = write.param == write.condition || condition.as.i;
    if (writes && value.tag == kAnyopAtenMemoryOf && value.as.memory->flags & kAnyopAtenReadOnly)
      return Refuse(op, op.params[write.param], kAnyopValueError,
                    "is read-only, and the operator would write it");
  }
  return kAnyopOk;
}

}  // namespace

int32_t Prepare(const Op& op, const AnyopAtenValue* given, int32_t count, Arena* arena,
                AnyopAtenValue* prepared) {
  const auto num_params = static_cast<int32_t>(op.params.size());
  if (count < 0 || count > num_params)
    return SetError(kAnyopTypeError, (op.full_name + ": got " + std::to_string(count) +
                                      " arguments, expected " + op.schema)
                                         .c_str());
  for (int32_t i = 0; i < num_params; ++i) {
    const Param& p = op.params[static_cast<size_t>(i)];
    AnyopAtenValue& value = prepared[i];
    if (i >= count || given[i].tag == kAnyopAtenDefault) {
      if (!p.has_default) return Refuse(op, p, kAnyopTypeError, "is missing in " + op.schema);
      value = p.default_value;
    } else {
      value = given[i];
    }
    if (value.tag == kAnyopAtenNone && p.Is(kAnyopAtenOptional)) continue;
    const int32_t status = p.IsList() ? ConvertList(op, p, arena, &value) : Convert(op, p, &value);
    if (status) return status;
  }
  return CheckHiddenWrites(op, prepared);
}

}  // namespace anyop::aten
