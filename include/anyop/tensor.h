// SPDX-License-Identifier: Apache-2.0
// Tensors for C++ callers: memory of the caller's that is viewed, or memory that anyop made.
#ifndef ANYOP_TENSOR_H_
#define ANYOP_TENSOR_H_

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "anyop/anyop.h"

namespace anyop {

// A failed call. The text names operator, argument, found and expected; status is an AnyopStatus.
class Error : public std::runtime_error {
 public:
  Error(int32_t status, const std::string& text) : std::runtime_error(text), status_(status) {}
  int32_t status() const { return status_; }

 private:
  int32_t status_;
};

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

inline void Check(int32_t status) {
  if (status != kAnyopOk) throw Error(status, AnyopLastError());
}

}  // namespace internal

// A handle; copies share the memory. Without a tensor it stands for an absent argument, and for a
// result that anyop makes.
class Tensor {
 public:
  Tensor() = default;

  // Memory of its own on the CPU, row-major, uninitialised.
  static Tensor New(AnyopDtype dtype, const std::vector<int64_t>& shape) {
    AnyopTensor* made = nullptr;
    internal::Check(AnyopNewTensor(dtype, static_cast<int32_t>(shape.size()), shape.data(), &made));
    return Adopt(made);
  }

  // Memory that the caller keeps alive. Strides are in elements; without them it is row-major.
  static Tensor View(void* data, AnyopDtype dtype, const std::vector<int64_t>& shape,
                     const std::vector<int64_t>& strides = {}, int32_t device_type = 1,
                     int32_t device_id = 0) {
    if (dtype < 0 || dtype >= kAnyopNumDtypes) {
      throw Error(kAnyopValueError, "Tensor::View: expected an AnyopDtype");
    }
    if (!strides.empty() && strides.size() != shape.size()) {
      throw Error(kAnyopValueError, "Tensor::View: expected as many strides as sizes");
    }
    auto viewed = std::make_shared<Viewed>(shape, strides.empty() ? RowMajor(shape) : strides);
    const int bits[] = {8, 8, 8, 16, 32, 64, 16, 16, 32, 64, 64, 128, 8, 8, 16, 32, 64};
    const int codes[] = {6, 1, 0, 0, 0, 0, 2, 4, 2, 2, 5, 5, 10, 12, 1, 1, 1};  // DLDataTypeCode
    viewed->tensor = {data,
                      device_type,
                      device_id,
                      static_cast<int32_t>(shape.size()),
                      static_cast<uint8_t>(codes[dtype]),
                      static_cast<uint8_t>(bits[dtype]),
                      1,
                      viewed->shape.data(),
                      viewed->strides.data(),
                      0};
    return Tensor(std::shared_ptr<AnyopTensor>(viewed, &viewed->tensor));
  }

  // The same for types of C++. A const element is taken for an argument, which is only read.
  template <typename T>
  static Tensor View(T* data, const std::vector<int64_t>& shape,
                     const std::vector<int64_t>& strides = {}) {
    using Element = typename std::remove_const<T>::type;
    return View(const_cast<Element*>(data), internal::DtypeFor<Element>(), shape, strides);
  }

  // Takes over a tensor that anyop made.
  static Tensor Adopt(AnyopTensor* made) {
    return Tensor(std::shared_ptr<AnyopTensor>(made, AnyopDeleteTensor));
  }

  explicit operator bool() const { return tensor_ != nullptr; }
  AnyopTensor* get() const { return tensor_.get(); }
  AnyopDtype dtype() const { return AnyopDtypeOf(&Given()); }
  int ndim() const { return Given().ndim; }
  int64_t size(int dimension) const { return Given().shape[dimension]; }
  std::vector<int64_t> shape() const { return {Given().shape, Given().shape + Given().ndim}; }
  int64_t numel() const {
    int64_t product = 1;
    for (int64_t size : shape()) product *= size;
    return product;
  }

  // The elements; T must be their type.
  template <typename T>
  T* data() const {
    if (dtype() != internal::DtypeFor<typename std::remove_const<T>::type>()) {
      throw Error(kAnyopTypeError, "Tensor::data: expected the type of the elements");
    }
    return static_cast<T*>(data());
  }
  void* data() const { return static_cast<char*>(Given().data) + Given().byte_offset; }

 private:
  struct Viewed {
    Viewed(const std::vector<int64_t>& sizes, std::vector<int64_t> steps)
        : shape(sizes), strides(std::move(steps)) {}
    AnyopTensor tensor;
    std::vector<int64_t> shape;
    std::vector<int64_t> strides;
  };

  explicit Tensor(std::shared_ptr<AnyopTensor> tensor) : tensor_(std::move(tensor)) {}

  static std::vector<int64_t> RowMajor(const std::vector<int64_t>& shape) {
    std::vector<int64_t> strides(shape.size());
    uint64_t step = 1;  // a shape too large wraps, and is refused by the call
    for (size_t i = shape.size(); i-- > 0;) {
      strides[i] = static_cast<int64_t>(step);
      step *= static_cast<uint64_t>(shape[i] > 1 ? shape[i] : 1);
    }
    return strides;
  }

  const AnyopTensor& Given() const {
    if (!tensor_) throw Error(kAnyopValueError, "Tensor: expected a tensor, found none");
    return *tensor_;
  }

  std::shared_ptr<AnyopTensor> tensor_;
};

}  // namespace anyop

#endif  // ANYOP_TENSOR_H_
