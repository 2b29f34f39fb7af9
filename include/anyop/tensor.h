// SPDX-License-Identifier: Apache-2.0
// Tensors for C++ callers: memory of the caller's that is viewed, or memory that anyop made.
#ifndef ANYOP_TENSOR_H_
#define ANYOP_TENSOR_H_

#include <memory>
#include <utility>

#include "anyop/memory_view.h"

namespace anyop {

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
    auto viewed =
        std::make_shared<internal::MemoryView>(data, dtype, shape, strides, device_type, device_id);
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

  // Memory that owner keeps alive; the handle holds owner, and sizes and strides of its own.
  template <typename Owner>
  static Tensor Share(const AnyopTensor& view, const Owner& owner) {
    const auto shared = std::make_shared<std::pair<internal::MemoryView, Owner>>(view, owner);
    return Tensor(std::shared_ptr<AnyopTensor>(shared, &shared->first.tensor));
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
  explicit Tensor(std::shared_ptr<AnyopTensor> tensor) : tensor_(std::move(tensor)) {}

  const AnyopTensor& Given() const {
    if (!tensor_) throw Error(kAnyopValueError, "Tensor: expected a tensor, found none");
    return *tensor_;
  }

  std::shared_ptr<AnyopTensor> tensor_;
};

}  // namespace anyop

#endif  // ANYOP_TENSOR_H_
