// SPDX-License-Identifier: Apache-2.0
// Reads a call site: which buffer is which tensor, and the values of attributes.
#include "site.h"

#include <cstring>

#include "dtype.h"
#include "memory.h"

namespace anyop::xla {

namespace {

struct Element {
  uint8_t code;
  uint8_t bits;
};

// By xla::Type; bits 0 where no operator takes it.
constexpr Element kElements[] = {
    {0, 0},  {6, 8},  {0, 8},  {0, 16},  {0, 32}, {0, 64},  {1, 8},  {1, 16},  {1, 32},  {1, 64},
    {2, 16}, {2, 32}, {2, 64}, {0, 0},   {0, 0},  {5, 64},  {4, 16}, {0, 0},   {5, 128}, {12, 8},
    {10, 8},
};
constexpr uint32_t kNumElements = sizeof kElements / sizeof *kElements;

std::string_view View(const Bytes& bytes) { return {bytes.data, bytes.size}; }

bool IsNamed(const Param& p, std::string_view name) {
  return std::strncmp(p.name, name.data(), name.size()) == 0 && p.name[name.size()] == 0;
}

bool MayBeNone(const Param& p) {
  return p.Is(kAnyopOptional) && !(p.Is(kAnyopOptionalElements) && !p.Is(kAnyopHasDefault));
}

}  // namespace

const Bytes* FindText(const Attributes& attributes, std::string_view name) {
  for (int64_t i = 0; i < attributes.size; ++i) {
    if (attributes.types[i] == Attribute::kString && View(*attributes.names[i]) == name)
      return static_cast<const Bytes*>(attributes.values[i]);
  }
  return nullptr;
}

int32_t Site::Read(std::string_view tensors) {
  for (uint32_t i = frame_.op->num_inputs; i < frame_.op->params.size(); ++i) {
    if (frame_.op->params[i].Is(kAnyopOptional)) frame_.unwanted |= uint64_t{1} << i;
  }
  if (int32_t status = ReadTensors(tensors)) return status;
  const Attributes& all = call_.attributes;
  for (int64_t i = 0; i < all.size; ++i) {
    const std::string_view name = View(*all.names[i]);
    if (name.empty() || name[0] == '_') continue;  // the site's own
    if (int32_t status = ReadAttribute(name, all.types[i], all.values[i])) return status;
  }
  return FillDefaults();
}

int32_t Site::Find(std::string_view name) {
  const auto& params = frame_.op->params;
  const auto count = static_cast<int32_t>(params.size());
  for (int32_t step = 0; step < count; ++step) {
    if (++last_ >= count) last_ = 0;
    if (IsNamed(params[static_cast<size_t>(last_)], name)) return last_;
  }
  return -1;
}

int32_t Site::Unknown(std::string_view name) {
  return Fail(&frame_, kAnyopInternalError,
              "it has no argument '%.*s'; was the program made for another version of it?",
              static_cast<int>(name.size()), name.data());
}

int32_t Site::Wrong(const Param& p) {
  return Fail(&frame_, kAnyopInternalError,
              "%s has another kind of value; was the program made for another version of it?",
              p.name);
}

// ---- tensors ----

int32_t Site::ReadTensors(std::string_view text) {
  while (!text.empty()) {
    const size_t end = text.find(' ');
    const std::string_view token = text.substr(0, end);
    text = end == text.npos ? std::string_view() : text.substr(end + 1);
    if (token == "->") {
      if (next_ != call_.args.size) break;
      in_results_ = true;
      next_ = 0;
    } else if (int32_t status = ReadToken(token)) {
      return status;
    }
  }
  if (in_results_ && next_ == call_.results.size) return kAnyopOk;
  return Fail(&frame_, kAnyopInternalError, "XLA gave %lld and %lld buffers, other than expected",
              (long long)call_.args.size, (long long)call_.results.size);
}

int32_t Site::ReadToken(std::string_view token) {
  const size_t colon = token.find(':');
  const int32_t found = Find(token.substr(0, colon));
  if (found < 0) return Unknown(token);
  const auto i = static_cast<uint32_t>(found);
  const Param& p = frame_.op->params[i];
  const bool is_list = colon != token.npos;
  if (!p.IsTensor() || p.IsList() != is_list) return Wrong(p);
  const std::string_view elements = is_list ? token.substr(colon + 1) : std::string_view();
  if (in_results_ && i < frame_.op->num_inputs) return ReadChanged(i, p, elements);
  frame_.given |= uint64_t{1} << i;
  frame_.unwanted &= ~(uint64_t{1} << i);
  return is_list ? ReadList(i, p, elements) : Take(p, &frame_.tensors[i]);
}

int32_t Site::ReadList(uint32_t, const Param& p, std::string_view elements) {
  auto* tensors = frame_.arena.Take<AnyopTensor>(static_cast<int64_t>(elements.size()) + 1);
  frame_.Field<AnyopTensorList>(p) = {tensors, static_cast<int64_t>(elements.size())};
  for (size_t k = 0; k < elements.size(); ++k) {
    if (elements[k] == '0') {
      tensors[k] = {};
      tensors[k].ndim = -1;
    } else if (int32_t status = Take(p, &tensors[k])) {
      return status;
    }
  }
  return kAnyopOk;
}

// A changed argument comes back as a result that has its memory.
int32_t Site::ReadChanged(uint32_t i, const Param& p, std::string_view elements) {
  AnyopTensor changed;
  if (!p.IsList()) {
    if (int32_t status = Take(p, &changed)) return status;
    return Check(p, frame_.tensors[i], changed);
  }
  const AnyopTensorList& list = frame_.Field<AnyopTensorList>(p);
  if (static_cast<size_t>(list.count) != elements.size()) return Wrong(p);
  for (size_t k = 0; k < elements.size(); ++k) {
    if (elements[k] == '0') continue;
    if (int32_t status = Take(p, &changed)) return status;
    if (int32_t status = Check(p, list.data[k], changed)) return status;
  }
  return kAnyopOk;
}

int32_t Site::Check(const Param& p, const AnyopTensor& given, const AnyopTensor& changed) {
  int64_t numel = 1;
  for (int32_t d = 0; d < given.ndim; ++d) numel *= given.shape[d];
  if (given.data == changed.data || numel == 0) return kAnyopOk;
  return Fail(&frame_, kAnyopInternalError, "XLA gave %s and its new value different memory",
              p.name);
}

int32_t Site::Take(const Param& p, AnyopTensor* tensor) {
  const Buffers& buffers = in_results_ ? call_.results : call_.args;
  if (next_ >= buffers.size || buffers.types[next_] != Argument::kBuffer) return Wrong(p);
  const auto& buffer = *static_cast<const Buffer*>(buffers.buffers[next_++]);
  const auto type = static_cast<uint32_t>(buffer.type);
  if (type >= kNumElements || !kElements[type].bits) {
    return Fail(&frame_, kAnyopTypeError, "%s has a dtype that no operator takes (XLA's type %u)",
                p.name, type);
  }
  if (buffer.rank > kMaxRank) {
    return Fail(&frame_, kAnyopValueError, "%s has %lld dimensions, expected at most %d", p.name,
                (long long)buffer.rank, kMaxRank);
  }
  *tensor = {buffer.data,
             device_type_,
             device_id_,
             static_cast<int32_t>(buffer.rank),
             kElements[type].code,
             kElements[type].bits,
             1,
             buffer.dims,
             nullptr,  // row-major: the core fills it
             0};
  return kAnyopOk;
}

// ---- attributes ----

int32_t Site::ReadAttribute(std::string_view name, Attribute kind, void* value) {
  const int32_t found = Find(name);
  if (found < 0) return Unknown(name);
  const Param& p = frame_.op->params[static_cast<size_t>(found)];
  if (p.IsTensor()) return Wrong(p);
  seen_ |= uint64_t{1} << found;
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
    const bool absent = p.IsTensor() ? p.Is(kAnyopHasDefault) || MayBeNone(p)
                                     : SetDefault(&frame_, p);
    if (!absent) return Fail(&frame_, kAnyopTypeError, "%s is missing", p.name);
  }
  return kAnyopOk;
}

}  // namespace anyop::xla
