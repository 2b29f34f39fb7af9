// SPDX-License-Identifier: Apache-2.0
// Reads tensors from a safetensors file: eight bytes with the size of a JSON header, the header,
// the data. Nothing in the file is believed before it is compared with the file's size.
#include "safetensors.h"

#include <anyop/ops.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "input.h"

namespace embed {
namespace {

using nlohmann::json;

constexpr uint64_t kLargestHeader = 100'000'000;  // as the format's own library has it

struct FloatType {
  AnyopDtype dtype;
  uint64_t bytes;
};
const std::map<std::string, FloatType> kFloatTypes = {
    {"F16", {kAnyopFloat16, 2}},
    {"BF16", {kAnyopBFloat16, 2}},
    {"F32", {kAnyopFloat32, 4}},
    {"F64", {kAnyopFloat64, 8}},
};

std::string Text(const std::vector<int64_t>& shape) { return json(shape).dump(); }

bool AreSizes(const json& list) {
  if (!list.is_array()) return false;
  for (const json& size : list) {
    if (!size.is_number_unsigned() || size > INT64_MAX) return false;
  }
  return true;
}

// False when the product does not fit.
bool Multiply(uint64_t* bytes, const std::vector<int64_t>& shape) {
  for (int64_t size : shape) {
    if (__builtin_mul_overflow(*bytes, static_cast<uint64_t>(size), bytes)) return false;
  }
  return true;
}

}  // namespace

Safetensors::Safetensors(const std::string& path) : path_(path) {
  RequireFile(path);
  std::error_code failed;
  const uint64_t file_bytes = std::filesystem::file_size(path, failed);
  file_.open(path, std::ios::binary);
  if (failed || !file_) Refuse("cannot be read");
  ReadEntries(file_bytes);
}

void Safetensors::Refuse(const std::string& why) const { throw InputError(path_ + ": " + why); }

void Safetensors::ReadEntries(uint64_t file_bytes) {
  unsigned char size[8];
  if (!file_.read(reinterpret_cast<char*>(size), 8)) Refuse("it is too short for a header");
  uint64_t header_bytes = 0;
  for (int i = 8; i-- > 0;) header_bytes = header_bytes << 8 | size[i];
  if (header_bytes > kLargestHeader || header_bytes > file_bytes - 8) {
    Refuse("its header claims " + std::to_string(header_bytes) + " bytes, the file has " +
           std::to_string(file_bytes));
  }
  std::string header(header_bytes, '\0');
  if (!file_.read(header.data(), static_cast<std::streamsize>(header_bytes)))
    Refuse("cannot be read");
  data_begin_ = 8 + header_bytes;
  const uint64_t data_bytes = file_bytes - data_begin_;
  const json parsed = ParseJson(path_ + ": its header", header);
  if (!parsed.is_object()) Refuse("its header is not an object");
  uint64_t used = 0;
  for (const auto& [name, entry] : parsed.items()) {
    if (name == "__metadata__") continue;
    const json offsets = entry.is_object() ? entry.value("data_offsets", json()) : json();
    if (!AreSizes(offsets) || offsets.size() != 2 || offsets[0] > offsets[1] ||
        offsets[1] > data_bytes) {
      Refuse("the data of " + name + " is not within the file");
    }
    const json dtype = entry.value("dtype", json()), shape = entry.value("shape", json());
    if (!dtype.is_string() || !AreSizes(shape)) Refuse(name + " has no dtype or shape");
    entries_[name] = {dtype, shape, offsets[0], offsets[1]};
    used = std::max(used, entries_[name].end);
  }
  if (used != data_bytes) {
    Refuse("it has " + std::to_string(data_bytes) + " bytes of data, its header describes " +
           std::to_string(used));
  }
}

const Safetensors::Entry& Safetensors::Find(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) Refuse("it lacks " + name);
  return found->second;
}

anyop::Tensor Safetensors::Read(const std::string& name) {
  const Entry& entry = Find(name);
  const auto type = kFloatTypes.find(entry.dtype);
  if (type == kFloatTypes.end()) {
    Refuse(name + " is " + entry.dtype + ", supported: F32, F16, BF16, F64");
  }
  uint64_t bytes = type->second.bytes;
  if (!Multiply(&bytes, entry.shape) || bytes != entry.end - entry.begin) {
    Refuse(name + " has shape " + Text(entry.shape) + ", which its data does not fill");
  }
  const anyop::Tensor stored = anyop::Tensor::New(type->second.dtype, entry.shape);
  file_.seekg(static_cast<std::streamoff>(data_begin_ + entry.begin));
  file_.read(static_cast<char*>(stored.data()), static_cast<std::streamsize>(bytes));
  if (!file_) Refuse(name + " cannot be read");
  return entry.dtype == "F32" ? stored : anyop::cast(stored, kAnyopFloat32);
}

anyop::Tensor Safetensors::Read(const std::string& name, const std::vector<int64_t>& shape) {
  const std::vector<int64_t>& found = Find(name).shape;
  if (found != shape) {
    Refuse(name + " has shape " + Text(found) + ", expected " + Text(shape));
  }
  return Read(name);
}

}  // namespace embed
