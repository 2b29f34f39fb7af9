// SPDX-License-Identifier: Apache-2.0
// Reads a call site: which buffer is which tensor, and the values of attributes.
#include "xla_call.h"

#include <cstring>

#include "element.h"
#include "tensors/dtype.h"

namespace anyop::xla {

namespace {

bool IsNamed(const Param& p, std::string_view name) {
  size_t k = 0;
  while (k < name.size() && p.name[k] == name[k]) ++k;  // stops at p.name's NUL
  return k == name.size() && p.name[k] == 0;
}

}  // namespace

int32_t Site::Read() {
  frame_.unwanted = plan_.unwanted;
  if (int32_t status = ReadSlots(call_.args, plan_.args)) return status;
  if (int32_t status = ReadSlots(call_.results, plan_.results)) return status;
  const Attributes& all = call_.attributes;
  for (int64_t i = 0; i < all.size; ++i) {
    const std::string_view name(all.names[i]->data, all.names[i]->size);
    if (name.empty() || name[0] == '_') continue;  // the site's own
    if (int32_t status = ReadAttribute(name, all.types[i], all.values[i])) return status;
  }
  const uint64_t found = seen_ | frame_.given;
  return (found & plan_.expected) == plan_.expected ? int32_t{kAnyopOk} : FillDefaults();
}

int32_t Site::Wrong(const Param& p) {
  return Fail(&frame_, kAnyopInternalError,
              "%s has another kind of value; was the program made for another version of it?",
              p.name);
}

// ---- tensors ----

int32_t Site::ReadSlots(const Buffers& buffers, const std::vector<Slot>& slots) {
  next_ = 0;
  for (const Slot& slot : slots) {
    int32_t status;
    if (slot.changed) {
      status = CheckChanged(slot, buffers);
    } else {
      frame_.given |= uint64_t{1} << slot.param;
      status = slot.is_list
                   ? ReadList(slot, buffers)
                   : Take(frame_.op->params[slot.param], buffers, &frame_.tensors[slot.param]);
    }
    if (status) return status;
  }
  if (next_ == buffers.size) return kAnyopOk;
  return Fail(&frame_, kAnyopInternalError, "XLA gave %lld buffers, expected %lld",
              (long long)buffers.size, (long long)next_);
}

int32_t Site::ReadList(const Slot& slot, const Buffers& buffers) {
  const Param& p = frame_.op->params[slot.param];
  const size_t count = slot.elements.size();
  auto* tensors = frame_.arena.Take<AnyopTensor>(static_cast<int64_t>(count) + 1);
  frame_.Field<AnyopTensorList>(p) = {tensors, static_cast<int64_t>(count)};
  for (size_t k = 0; k < count; ++k) {
    if (slot.elements[k] == '0') {
      tensors[k] = {};
      tensors[k].ndim = -1;
    } else if (int32_t status = Take(p, buffers, &tensors[k])) {
      return status;
    }
  }
  return kAnyopOk;
}

// A changed argument comes back as a result that has its memory.
int32_t Site::CheckChanged(const Slot& slot, const Buffers& buffers) {
  const Param& p = frame_.op->params[slot.param];
  AnyopTensor changed;
  if (!slot.is_list) {
    const int32_t status = Take(p, buffers, &changed);
    return status ? status : CheckSame(p, frame_.tensors[slot.param], changed);
  }
  const AnyopTensorList& list = frame_.Field<AnyopTensorList>(p);
  if (static_cast<size_t>(list.count) != slot.elements.size()) return Wrong(p);
  for (int64_t k = 0; k < list.count; ++k) {
    if (slot.elements[static_cast<size_t>(k)] == '0') continue;
    if (int32_t status = Take(p, buffers, &changed)) return status;
    if (int32_t status = CheckSame(p, list.data[k], changed)) return status;
  }
  return kAnyopOk;
}

int32_t Site::CheckSame(const Param& p, const AnyopTensor& given, const AnyopTensor& changed) {
  int64_t numel = 1;
  for (int32_t d = 0; d < given.ndim; ++d) numel *= given.shape[d];
  if (given.data == changed.data || numel == 0) return kAnyopOk;
  return Fail(&frame_, kAnyopInternalError, "XLA gave %s and its new value different memory",
              p.name);
}

int32_t Site::Take(const Param& p, const Buffers& buffers, AnyopTensor* tensor) {
  if (next_ >= buffers.size || buffers.types[next_] != Argument::kBuffer) return Wrong(p);
  const auto& buffer = *static_cast<const Buffer*>(buffers.buffers[next_++]);
  if (!ElementOf(buffer.type).bits) {
    return Fail(&frame_, kAnyopTypeError, "%s has a dtype that no operator takes (XLA's type %u)",
                p.name, static_cast<uint32_t>(buffer.type));
  }
  if (buffer.rank > kMaxRank) {
    return Fail(&frame_, kAnyopValueError, "%s has %lld dimensions, expected at most %d", p.name,
                (long long)buffer.rank, kMaxRank);
  }
  *tensor = TensorOf(buffer, device_type_, device_id_);  // the core fills strides
  return kAnyopOk;
}

// ---- attributes ----

int32_t Site::ReadAttribute(std::string_view name, Attribute kind, void* value) {
  const auto& params = frame_.op->params;
  uint32_t i = 0;
  while (i < frame_.op->num_inputs && (params[i].IsTensor() || !IsNamed(params[i], name))) ++i;
  if (i == frame_.op->num_inputs) {
    return Fail(&frame_, kAnyopInternalError,
                "it has no argument '%.*s'; was the program made for another version of it?",
                static_cast<int>(name.size()), name.data());
  }
  const Param& p = params[i];
  seen_ |= uint64_t{1} << i;
  switch (kind) {
    case Attribute::kScalar:
      return ReadScalar(p, *static_cast<const Scalar*>(value));
    case Attribute::kArray:
      return ReadArray(p, *static_cast<const Array*>(value));
    case Attribute::kString: {
      const auto& text = *static_cast<const Bytes*>(value);
      if (text.size == 0) return MayBeNone(p) ? int32_t{kAnyopOk} : Wrong(p);
      if (text.data[text.size - 1] != 0) return Wrong(p);
      return p.IsList() ? ReadTexts(p, text) : ReadText(p, text);
    }
    default:
      return Wrong(p);
  }
}

int32_t Site::ReadScalar(const Param& p, const Scalar& scalar) {
  if (p.IsList()) return Wrong(p);
  if (p.kind == kAnyopFloat && scalar.type == Type::kF64) {
    SetFloat(&frame_, p, *static_cast<const double*>(scalar.value));
  } else if (p.kind == kAnyopInt && scalar.type == Type::kS64) {
    SetInt(&frame_, p, *static_cast<const int64_t*>(scalar.value));
  } else if (p.kind == kAnyopBoolean && scalar.type == Type::kPred) {
    SetInt(&frame_, p, *static_cast<const uint8_t*>(scalar.value) != 0);
  } else {
    return Wrong(p);
  }
  return kAnyopOk;
}

int32_t Site::ReadText(const Param& p, const Bytes& text) {
  if (p.kind == kAnyopStr) {
    frame_.Field<AnyopString>(p) = {text.data, static_cast<int64_t>(text.size) - 1};
    return kAnyopOk;
  }
  int64_t dtype;
  if (int32_t status = ReadDtype(p, text.data, &dtype)) return status;
  SetInt(&frame_, p, dtype);
  return kAnyopOk;
}

int32_t Site::ReadDtype(const Param& p, const char* name, int64_t* dtype) {
  if (p.kind != kAnyopScalarType) return Wrong(p);
  *dtype = DtypeFromName(name);
  return *dtype == kAnyopNoDtype ? Wrong(p) : int32_t{kAnyopOk};
}

int32_t Site::ReadTexts(const Param& p, const Bytes& texts) {
  int64_t count = 0;
  for (size_t k = 0; k < texts.size; ++k) count += texts.data[k] == 0;
  auto* strings = frame_.arena.Take<AnyopString>(count);
  auto* dtypes = frame_.arena.Take<int64_t>(count);
  const char* at = texts.data;
  for (int64_t k = 0; k < count; ++k) {
    const auto size = static_cast<int64_t>(std::strlen(at));
    strings[k] = {at, size};
    if (p.kind != kAnyopStr) {
      if (int32_t status = ReadDtype(p, at, &dtypes[k])) return status;
    }
    at += size + 1;
  }
  if (p.kind == kAnyopStr) {
    frame_.Field<AnyopStringList>(p) = {strings, count};
  } else {
    frame_.Field<AnyopIntList>(p) = {dtypes, count};
  }
  return kAnyopOk;
}

int32_t Site::ReadArray(const Param& p, const Array& array) {
  if (!p.IsList()) return Wrong(p);
  const auto count = static_cast<int64_t>(array.size);
  if (p.fixed_count >= 0 && count != p.fixed_count) {
    return Fail(&frame_, kAnyopValueError, "%s has %lld values, expected %d", p.name,
                (long long)count, p.fixed_count);
  }
  static const int64_t kNothing = 0;  // an empty list has an address
  if (count == 0) {
    frame_.Field<AnyopIntList>(p) = {&kNothing, 0};
    return kAnyopOk;
  }
  if (array.type != (p.kind == kAnyopFloat ? Type::kF64 : Type::kS64)) return Wrong(p);
  if (p.kind == kAnyopStr || p.kind == kAnyopScalarType) return Wrong(p);
  frame_.Field<AnyopIntList>(p) = {static_cast<const int64_t*>(array.data), count};
  return kAnyopOk;
}

// The site names every attribute that its version of the operator has; a later one may have more.
int32_t Site::FillDefaults() {
  for (uint32_t i = 0; i < frame_.op->num_inputs; ++i) {
    const Param& p = frame_.op->params[i];
    if ((seen_ | frame_.given) >> i & 1) continue;
    const bool absent = p.IsTensor() ? !(plan_.expected >> i & 1) : SetDefault(&frame_, p);
    if (!absent) return Fail(&frame_, kAnyopTypeError, "%s is missing", p.name);
  }
  return kAnyopOk;
}

}  // namespace anyop::xla
