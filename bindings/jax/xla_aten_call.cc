// SPDX-License-Identifier: Apache-2.0
// Reads the text of a call of ATen and calls.
#include "xla_aten_call.h"

#include <charconv>
#include <cstring>
#include <string>

#include "api/c_error.h"
#include "element.h"

namespace anyop::xla {

bool ReadInt(std::string_view text, int64_t* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

namespace {

bool ReadBits(std::string_view text, double* number) {
  int64_t bits;
  if (!ReadInt(text, &bits)) return false;
  std::memcpy(number, &bits, sizeof bits);
  return true;
}

bool ReadComplex(std::string_view text, AnyopAtenValue* value) {
  const size_t comma = text.find(',');
  return comma != text.npos && ReadBits(text.substr(0, comma), &value->as.f) &&
         ReadBits(text.substr(comma + 1), &value->more.imag);
}

}  // namespace

AtenSite::AtenSite(const CallFrame& call, std::string_view text, int32_t device_type,
                   int32_t device_id, void* stream)
    : call_(call), text_(text), device_type_(device_type) {
  options_.size = sizeof options_;
  options_.device_id = device_id;
  if (device_type == 1) return;
  options_.flags = kAnyopAtenHasStream;
  options_.stream = stream;
}

int32_t AtenSite::Run() {
  if (const int32_t status = ReadName()) return status;
  const AnyopAtenOp* op = AnyopAtenFind(name_);
  if (!op) return kAnyopValueError;
  AnyopAtenValue arguments;
  if (const int32_t status = ReadList("->", &arguments)) return status;
  Outcome outcome(AnyopAtenNumResults(op));
  const auto count = static_cast<int32_t>(arguments.more.count);
  if (const int32_t status =
          AnyopAtenCall(op, arguments.as.list, count, outcome.values.data(), &options_))
    return status;
  for (AnyopAtenValue& value : outcome.values) {
    if (const int32_t status = Write(&value)) return status;
  }
  return text_.empty() && next_result_ == call_.results.size ? int32_t{kAnyopOk} : Broken();
}

int32_t AtenSite::Fail(int32_t status, const char* why) {
  return SetError(status, (std::string(name_) + ": " + why).c_str());
}

int32_t AtenSite::Broken() {
  return Fail(kAnyopInternalError,
              "the program's text of the call does not fit; was it made by another version of "
              "anyop or torch?");
}

// ---- arguments ----

std::string_view AtenSite::Token() {
  const size_t end = text_.find(' ');
  const std::string_view token = text_.substr(0, end);
  text_.remove_prefix(end == text_.npos ? text_.size() : end + 1);
  return token;
}

int32_t AtenSite::ReadName() {
  const std::string_view name = Token();
  char* copy = arena_.Take<char>(static_cast<int64_t>(name.size()) + 1);
  std::memcpy(copy, name.data(), name.size());
  copy[name.size()] = 0;
  name_ = copy;
  return kAnyopOk;
}

int32_t AtenSite::ReadList(std::string_view end, AnyopAtenValue* list) {
  std::vector<AnyopAtenValue> items;
  while (!text_.empty()) {
    const bool is_text = text_[0] == 's';  // may have blanks
    const std::string_view token = is_text ? std::string_view() : Token();
    if (token == end) {
      *list = {};
      list->tag = kAnyopAtenList;
      list->more.count = static_cast<int64_t>(items.size());
      list->as.list = arena_.Take<AnyopAtenValue>(list->more.count + 1);
      std::copy(items.begin(), items.end(), list->as.list);
      return kAnyopOk;
    }
    AnyopAtenValue value = {};
    if (const int32_t status = is_text ? ReadText(&value) : ReadValue(token, &value)) return status;
    items.push_back(value);
  }
  return Broken();
}

int32_t AtenSite::ReadValue(std::string_view token, AnyopAtenValue* value) {
  const std::string_view rest = token.substr(token.empty() ? 0 : 1);
  bool good = rest.empty();
  switch (token.empty() ? 0 : token[0]) {
    case 't':
      return Take(call_.args, &next_argument_, kAnyopAtenReadOnly, value);
    case 'r':
      return Take(call_.results, &next_place_, 0, value);
    case 'G':
      return ReadSeed(value);
    case '[':
      return ReadList("]", value);
    case 'n':
      break;
    case 'd':
      value->tag = kAnyopAtenDefault;
      break;
    case 'i':
      value->tag = kAnyopAtenInt;
      good = ReadInt(rest, &value->as.i);
      break;
    case 'b':
      value->tag = kAnyopAtenBool;
      good = ReadInt(rest, &value->as.i);
      break;
    case 'g':
      value->tag = kAnyopAtenSeed;
      good = ReadInt(rest, &value->as.i);
      break;
    case 'f':
      value->tag = kAnyopAtenFloat;
      good = ReadBits(rest, &value->as.f);
      break;
    case 'c':
      value->tag = kAnyopAtenComplex;
      good = ReadComplex(rest, value);
      break;
    default:
      good = false;
  }
  return good ? int32_t{kAnyopOk} : Broken();
}

int32_t AtenSite::ReadText(AnyopAtenValue* value) {
  const size_t colon = text_.find(':');
  int64_t size = -1;
  if (colon == text_.npos || !ReadInt(text_.substr(1, colon - 1), &size)) return Broken();
  const size_t left = text_.size() - colon - 1;
  if (size < 0 || static_cast<size_t>(size) >= left) return Broken();  // a blank follows
  value->tag = kAnyopAtenStr;
  value->as.s = text_.data() + colon + 1;
  value->more.count = size;
  text_.remove_prefix(colon + 1 + static_cast<size_t>(size) + 1);
  return kAnyopOk;
}

int32_t AtenSite::ReadSeed(AnyopAtenValue* value) {
  AnyopAtenValue buffer = {};
  if (const int32_t status = Take(call_.args, &next_argument_, kAnyopAtenReadOnly, &buffer))
    return status;
  Outcome seed(1);  // waits for the stream, where the buffer is a device's
  if (const int32_t status = Call("_local_scalar_dense", &buffer, 1, &seed)) return status;
  if (seed.values[0].tag != kAnyopAtenInt) return Broken();
  value->tag = kAnyopAtenSeed;
  value->as.i = seed.values[0].as.i;
  return kAnyopOk;
}

int32_t AtenSite::Take(const Buffers& buffers, int64_t* next, uint32_t flags,
                       AnyopAtenValue* value) {
  if (*next >= buffers.size || buffers.types[*next] != Argument::kBuffer) return Broken();
  const auto& buffer = *static_cast<const Buffer*>(buffers.buffers[(*next)++]);
  if (!ElementOf(buffer.type).bits)
    return Fail(kAnyopTypeError, "torch has no dtype of a buffer's");
  auto* memory = arena_.Take<AnyopAtenMemory>(1);
  *memory = {};
  memory->tensor = TensorOf(buffer, device_type_, options_.device_id);
  memory->flags = flags;
  *value = {};
  value->tag = kAnyopAtenMemoryOf;
  value->as.memory = memory;
  return kAnyopOk;
}

int32_t AtenSite::Call(const char* name, const AnyopAtenValue* arguments, int32_t count,
                       Outcome* outcome) {
  const AnyopAtenOp* op = AnyopAtenFind(name);
  if (!op) return kAnyopValueError;
  return AnyopAtenCall(op, arguments, count, outcome->values.data(), &options_);
}

}  // namespace anyop::xla
