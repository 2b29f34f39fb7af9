// SPDX-License-Identifier: Apache-2.0
// Reads tensors from a safetensors file: eight bytes with the size of a JSON header, the header,
// the data. Nothing in the file is believed before it is compared with the file's size.
#ifndef EMBED_SAFETENSORS_H_
#define EMBED_SAFETENSORS_H_

#include <anyop/tensor.h>

#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace embed {

class Safetensors {
 public:
  // Reads the header; throws InputError.
  explicit Safetensors(const std::string& path);

  bool Has(const std::string& name) const { return entries_.count(name) > 0; }
  // The tensor as float32 in memory of its own. Throws InputError where it is missing or no float.
  anyop::Tensor Read(const std::string& name);
  // The same, for a tensor that must have this shape.
  anyop::Tensor Read(const std::string& name, const std::vector<int64_t>& shape);

 private:
  struct Entry {
    std::string dtype;
    std::vector<int64_t> shape;
    uint64_t begin, end;  // bytes, from the beginning of the data
  };

  void ReadEntries(uint64_t file_bytes);
  const Entry& Find(const std::string& name) const;
  [[noreturn]] void Refuse(const std::string& why) const;

  std::string path_;
  std::ifstream file_;
  uint64_t data_begin_ = 0;
  std::map<std::string, Entry> entries_;
};

}  // namespace embed

#endif  // EMBED_SAFETENSORS_H_
