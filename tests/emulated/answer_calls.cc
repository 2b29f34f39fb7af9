// SPDX-License-Identifier: Apache-2.0
// Calls operators for a Python program that runs on another processor: calls on stdin, answers on
// stdout.
//
// Both are little-endian. A call is: buffers, the operator's name, values. Each value is the kind
// of an AnyopValue and its contents; a tensor is a place in a buffer, or buffer -1 for a result
// that is to be made. An answer is: status, text, all buffers as they are now, the tensors that
// were made.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "anyop/anyop.h"

namespace {

constexpr size_t kPage = 4096;

void Read(void* to, size_t bytes) {
  if (bytes && std::fread(to, 1, bytes, stdin) != bytes) std::exit(feof(stdin) ? 0 : 1);
}
template <typename T>
T Read() {
  T value;
  Read(&value, sizeof value);
  return value;
}
std::string ReadText() {
  std::string text(Read<uint32_t>(), '\0');
  Read(&text[0], text.size());
  return text;
}
template <typename T>
std::vector<T> ReadList() {
  std::vector<T> list(Read<uint32_t>());
  Read(list.data(), list.size() * sizeof(T));
  return list;
}

void Write(const void* from, size_t bytes) { std::fwrite(from, 1, bytes, stdout); }
template <typename T>
void Write(T value) {
  Write(&value, sizeof value);
}

// Memory that lies in its page as it does for the other program.
struct Buffer {
  void* memory;
  char* data;
  size_t bytes;
};
Buffer ReadBuffer() {
  const auto at = Read<uint64_t>() % kPage;
  const size_t bytes = Read<uint64_t>();
  void* memory = std::aligned_alloc(kPage, (at + bytes + kPage) / kPage * kPage);
  if (!memory) std::exit(1);
  Buffer buffer = {memory, static_cast<char*>(memory) + at, bytes};
  Read(buffer.data, bytes);
  return buffer;
}

// Of an empty list too, which is something else than None.
template <typename T>
const T* Data(std::vector<T>* list) {
  list->reserve(1);
  return list->data();
}

// The values of one call, and what they point to.
struct Call {
  std::vector<Buffer> buffers;
  std::deque<AnyopTensor> tensors;
  std::deque<std::vector<int64_t>> ints;
  std::deque<std::vector<double>> floats;
  std::deque<std::string> texts;
  std::deque<std::vector<AnyopTensor>> lists;
  std::deque<std::vector<AnyopString>> strings;
  std::vector<AnyopValue> values;

  Call() = default;
  Call(const Call&) = delete;
  ~Call() {
    for (const Buffer& buffer : buffers) std::free(buffer.memory);
  }

  // NULL for a result that is to be made.
  AnyopTensor* ReadTensor() {
    const auto buffer = Read<int32_t>();
    if (buffer == -1) return nullptr;
    AnyopTensor& tensor = tensors.emplace_back();
    std::memset(&tensor, 0, sizeof tensor);
    if (buffer == -2) {  // None in a list
      tensor.ndim = -1;
      return &tensor;
    }
    tensor.data = buffers.at(buffer).data + Read<int64_t>();
    tensor.device_type = 1;
    tensor.dtype_code = Read<uint8_t>();
    tensor.dtype_bits = Read<uint8_t>();
    tensor.dtype_lanes = 1;
    ints.push_back(ReadList<int64_t>());
    tensor.ndim = static_cast<int32_t>(ints.back().size());
    tensor.shape = ints.back().data();
    ints.push_back(ReadList<int64_t>());
    tensor.strides = ints.back().data();
    return &tensor;
  }

  AnyopValue ReadValue() {
    AnyopValue value;
    std::memset(&value, 0, sizeof value);
    value.kind = Read<int32_t>();
    switch (value.kind) {
      case kAnyopTensorValue:
        value.as.tensor = ReadTensor();
        break;
      case kAnyopIntValue:
        value.as.i = Read<int64_t>();
        break;
      case kAnyopFloatValue:
        value.as.f = Read<double>();
        break;
      case kAnyopStringValue:
        value.as.s = texts.emplace_back(ReadText()).c_str();
        break;
      case kAnyopTensorsValue: {
        auto& list = lists.emplace_back();
        for (auto n = Read<uint32_t>(); n > 0; --n) list.push_back(*ReadTensor());
        value.as.tensors = {Data(&list), static_cast<int64_t>(list.size())};
        break;
      }
      case kAnyopIntsValue:
        ints.push_back(ReadList<int64_t>());
        value.as.ints = {Data(&ints.back()), static_cast<int64_t>(ints.back().size())};
        break;
      case kAnyopFloatsValue:
        floats.push_back(ReadList<double>());
        value.as.floats = {Data(&floats.back()), static_cast<int64_t>(floats.back().size())};
        break;
      case kAnyopStringsValue: {
        auto& list = strings.emplace_back();
        for (auto n = Read<uint32_t>(); n > 0; --n) {
          const std::string& text = texts.emplace_back(ReadText());
          list.push_back({text.c_str(), static_cast<int64_t>(text.size())});
        }
        value.as.strings = {Data(&list), static_cast<int64_t>(list.size())};
        break;
      }
      default:
        break;
    }
    return value;
  }
};

void WriteMade(const AnyopTensor& tensor) {
  int64_t bytes = tensor.dtype_bits / 8;
  Write(tensor.dtype_code);
  Write(tensor.dtype_bits);
  Write(static_cast<uint32_t>(tensor.ndim));
  for (int32_t i = 0; i < tensor.ndim; ++i) {
    Write(tensor.shape[i]);
    bytes *= tensor.shape[i];
  }
  Write(static_cast<char*>(tensor.data) + tensor.byte_offset, static_cast<size_t>(bytes));
}

void Answer() {
  Call call;
  for (auto n = Read<uint32_t>(); n > 0; --n) call.buffers.push_back(ReadBuffer());
  const std::string name = ReadText();
  for (auto n = Read<uint32_t>(); n > 0; --n) call.values.push_back(call.ReadValue());
  std::vector<size_t> wanted;
  for (size_t i = 0; i < call.values.size(); ++i) {
    const AnyopValue& value = call.values[i];
    if (value.kind == kAnyopTensorValue && !value.as.tensor) wanted.push_back(i);
  }
  const AnyopOperator* op = AnyopFindOperator(name.c_str());
  const int32_t status =
      op ? AnyopInvoke(op, call.values.data(), static_cast<int32_t>(call.values.size()), nullptr)
         : kAnyopValueError;
  const std::string text = !op ? "no operator " + name : status ? AnyopLastError() : "";
  Write(status);
  Write(static_cast<uint32_t>(text.size()));
  Write(text.data(), text.size());
  for (const Buffer& buffer : call.buffers) Write(buffer.data, buffer.bytes);
  for (const size_t at : wanted) {
    if (status == kAnyopOk) WriteMade(*call.values[at].as.tensor);
    AnyopDeleteTensor(call.values[at].as.tensor);
  }
  std::fflush(stdout);
}

}  // namespace

int main(int count, char** paths) {
  for (int i = 1; i < count; ++i) {
    if (AnyopLoadLibrary(paths[i]) != kAnyopOk) {
      std::fprintf(stderr, "%s\n", AnyopLastError());
      return 1;
    }
  }
  for (;;) Answer();
}
