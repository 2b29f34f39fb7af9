// SPDX-License-Identifier: Apache-2.0
// A buffer of XLA's as a tensor.
#pragma once

#include "anyop/kernel.h"
#include "xla_ffi.h"

namespace anyop::xla {

struct Element {
  uint8_t code;
  uint8_t bits;
};

// DLPack's by xla::Type; bits 0 where no operator takes it.
constexpr Element kElements[] = {
    {0, 0},  {6, 8},  {0, 8},  {0, 16}, {0, 32},  {0, 64}, {1, 8},
    {1, 16}, {1, 32}, {1, 64}, {2, 16}, {2, 32},  {2, 64}, {0, 0},
    {0, 0},  {5, 64}, {4, 16}, {0, 0},  {5, 128}, {12, 8}, {10, 8},
};

// bits 0 for every other type, too.
inline Element ElementOf(Type type) {
  const auto number = static_cast<uint32_t>(type);
  return number < sizeof kElements / sizeof *kElements ? kElements[number] : Element{0, 0};
}

inline AnyopTensor TensorOf(const Buffer& buffer, int32_t device_type, int32_t device_id) {
  const Element element = ElementOf(buffer.type);
  return {buffer.data,
          device_type,
          device_id,
          static_cast<int32_t>(buffer.rank),
          element.code,
          element.bits,
          1,
          buffer.dims,
          nullptr,  // row-major
          0};
}

}  // namespace anyop::xla
