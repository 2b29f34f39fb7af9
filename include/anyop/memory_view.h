// SPDX-License-Identifier: Apache-2.0
// What the tensors of C++ callers share: element types, and descriptions of memory.
#ifndef ANYOP_MEMORY_VIEW_H_
#define ANYOP_MEMORY_VIEW_H_

#include <type_traits>
#include <vector>

#include "anyop/error.h"

namespace anyop {
namespace internal {

// The AnyopDtype of a C++ type. Types that C++ lacks are given as AnyopDtype and void*.
template <typename T>
constexpr AnyopDtype DtypeFor() {
  static_assert(std::is_arithmetic<T>::value && sizeof(T) <= 8, "no element type of anyop");
  if (std::is_same<T, bool>::value) return kAnyopBool;
  if (std::is_floating_point<T>::value) return sizeof(T) == 4 ? kAnyopFloat32 : kAnyopFloat64;
  constexpr AnyopDtype kSigned[] = {kAnyopInt8, kAnyopInt16, kAnyopInt32, kAnyopInt64};
  constexpr AnyopDtype kUnsigned[] = {kAnyopUInt8, kAnyopUInt16, kAnyopUInt32, kAnyopUInt64};
  const int log2 = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
  return std::is_signed<T>::value ? kSigned[log2] : kUnsigned[log2];
}

// A description of memory that holds its sizes. Strides are in elements; without them it is
// row-major.
class MemoryView {
 public:
  MemoryView(void* data, AnyopDtype dtype, const std::vector<int64_t>& shape,
             const std::vector<int64_t>& strides, int32_t device_type, int32_t device_id)
      : shape_(shape), strides_(strides.empty() ? RowMajor(shape) : strides) {
    if (dtype < 0 || dtype >= kAnyopNumDtypes) {
      throw Error(kAnyopValueError, "Tensor::View: expected an AnyopDtype");
    }
    if (strides_.size() != shape.size()) {
      throw Error(kAnyopValueError, "Tensor::View: expected as many strides as sizes");
    }
    const uint8_t bits[] = {8, 8, 8, 16, 32, 64, 16, 16, 32, 64, 64, 128, 8, 8, 16, 32, 64};
    const uint8_t codes[] = {6, 1, 0, 0, 0, 0, 2, 4, 2, 2, 5, 5, 10, 12, 1, 1, 1};  // DLPack's
    tensor = {data,
              device_type,
              device_id,
              static_cast<int32_t>(shape.size()),
              codes[dtype],
              bits[dtype],
              1,
              shape_.data(),
              strides_.data(),
              0};
  }
  explicit MemoryView(const AnyopTensor& view)
      : tensor(view),
        shape_(view.shape, view.shape + view.ndim),
        strides_(view.strides, view.strides + view.ndim) {
    tensor.shape = shape_.data();
    tensor.strides = strides_.data();
  }
  MemoryView(const MemoryView&) = delete;
  MemoryView& operator=(const MemoryView&) = delete;

  AnyopTensor tensor;

 private:
  static std::vector<int64_t> RowMajor(const std::vector<int64_t>& shape) {
    std::vector<int64_t> strides(shape.size());
    uint64_t step = 1;  // a shape too large wraps, and is refused by the call
    for (size_t i = shape.size(); i-- > 0;) {
      strides[i] = static_cast<int64_t>(step);
      step *= static_cast<uint64_t>(shape[i] > 1 ? shape[i] : 1);
    }
    return strides;
  }

  std::vector<int64_t> shape_;
  std::vector<int64_t> strides_;
};

}  // namespace internal
}  // namespace anyop

#endif  // ANYOP_MEMORY_VIEW_H_
