// SPDX-License-Identifier: Apache-2.0
// Torch's tensors, and memory of others as tensors, for the typed functions of anyop/aten.h.
//
// anyop/tensor.h is not included, for it would be a third of what including anyop/aten.h costs;
// where a program includes it, its tensors are taken and made here.
#ifndef ANYOP_ATEN_TYPES_H_
#define ANYOP_ATEN_TYPES_H_

#include "anyop/aten_call.h"
#include "anyop/memory_view.h"

namespace anyop {

class Tensor;

namespace aten {

namespace internal {

using anyop::internal::Check;
template <bool kCondition>
using If = typename std::enable_if<kCondition, int>::type;

// What handles share: a tensor of torch's, or memory that torch is lent.
struct Held {
  Held() = default;
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  virtual ~Held() { AnyopAtenRelease(tensor); }

  int64_t handles = 1;
  AnyopAtenTensor* tensor = nullptr;
  AnyopAtenMemory memory = {};
};

inline void Retain(void* held) {
  __atomic_fetch_add(&static_cast<Held*>(held)->handles, 1, __ATOMIC_RELAXED);
}

inline void Release(void* held) {
  Held* const one = static_cast<Held*>(held);
  if (__atomic_fetch_sub(&one->handles, 1, __ATOMIC_ACQ_REL) == 1) delete one;
}

// Memory and what describes it or keeps it alive.
template <typename Source>
struct Lent : Held {
  template <typename... T>
  explicit Lent(const T&... source_of) : source(source_of...) {}
  Source source;
};

// Whether elements of this kind can be read as T.
template <typename T, bool kArithmetic = std::is_arithmetic<T>::value>
struct Element {
  static constexpr AnyopDtype kDtype = anyop::internal::DtypeFor<T>();
};
// std::complex<float> and the like.
template <typename T>
struct Element<T, false> {
  static constexpr AnyopDtype kDtype =
      sizeof(typename T::value_type) == 4 ? kAnyopComplex64 : kAnyopComplex128;
};

}  // namespace internal

// What stands for no value; so does {}.
struct NoneType {};
constexpr NoneType None;

// A handle; copies are the same tensor. Without a tensor it is None.
class Tensor {
 public:
  Tensor() = default;
  Tensor(NoneType) {}

  // Memory of a tensor of anyop's, which is kept alive for as long as torch refers to it.
  template <typename T, internal::If<std::is_same<T, anyop::Tensor>::value> = 0>
  Tensor(const T& source) {
    if (source) Lend(new internal::Lent<T>(source), *source.get(), 0);
  }

  // Memory that the caller keeps alive for as long as views of it are. Strides are in elements;
  // without them it is row-major. What lies in const memory is refused where it would be written.
  static Tensor View(void* data, AnyopDtype dtype, const std::vector<int64_t>& shape,
                     const std::vector<int64_t>& strides = {}, int32_t device_type = 1,
                     int32_t device_id = 0, uint32_t flags = 0) {
    using Viewed = internal::Lent<anyop::internal::MemoryView>;
    Viewed* const viewed = new Viewed(data, dtype, shape, strides, device_type, device_id);
    Tensor made;
    made.Lend(viewed, viewed->source.tensor, flags);
    return made;
  }
  template <typename T>
  static Tensor View(T* data, const std::vector<int64_t>& shape,
                     const std::vector<int64_t>& strides = {}) {
    using Plain = typename std::remove_const<T>::type;
    return View(const_cast<Plain*>(data), internal::Element<Plain>::kDtype, shape, strides, 1, 0,
                std::is_const<T>::value ? kAnyopAtenReadOnly : 0);
  }

  // Takes over a reference to a tensor of torch's.
  static Tensor Adopt(AnyopAtenTensor* tensor) {
    Tensor made;
    if (!tensor) return made;
    made.held_ = new internal::Held;
    made.held_->tensor = tensor;
    return made;
  }

  Tensor(const Tensor& other) : held_(other.held_) {
    if (held_) internal::Retain(held_);
  }
  Tensor(Tensor&& other) noexcept : held_(other.held_) { other.held_ = nullptr; }
  Tensor& operator=(Tensor other) noexcept {
    internal::Held* const before = held_;
    held_ = other.held_;
    other.held_ = before;
    return *this;
  }
  ~Tensor() {
    if (held_) internal::Release(held_);
  }

  explicit operator bool() const { return held_ != nullptr; }

  // Sizes, strides and memory as they are now. TypeError where there is no plain memory: sparse,
  // quantized, meta. The first view of a lazily conjugated or negated tensor computes it: no other
  // thread may use the tensor meanwhile.
  AnyopTensor view() const {
    if (!held_) throw Error(kAnyopValueError, "Tensor: expected a tensor, found None");
    if (!held_->tensor) return held_->memory.tensor;
    AnyopTensor now;
    uint32_t flags = 0;
    internal::Check(AnyopAtenView(&held_->tensor, &now, &flags));
    return now;
  }
  AnyopDtype dtype() const {
    const AnyopTensor now = view();
    return AnyopDtypeOf(&now);
  }
  int ndim() const { return view().ndim; }
  std::vector<int64_t> shape() const {
    const AnyopTensor now = view();
    return {now.shape, now.shape + now.ndim};
  }
  std::vector<int64_t> strides() const {
    const AnyopTensor now = view();
    return {now.strides, now.strides + now.ndim};
  }
  int64_t size(int dimension) const { return shape().at(static_cast<size_t>(dimension)); }
  int64_t numel() const {
    int64_t product = 1;
    for (int64_t size : shape()) product *= size;
    return product;
  }

  // The elements, which lie as strides() says; T must be their type.
  template <typename T>
  T* data() const {
    if (dtype() != internal::Element<typename std::remove_const<T>::type>::kDtype) {
      throw Error(kAnyopTypeError, "Tensor::data: expected the type of the elements");
    }
    return static_cast<T*>(data());
  }
  void* data() const {
    const AnyopTensor now = view();
    return static_cast<char*>(now.data) + now.byte_offset;
  }

  // The same memory for anyop's own operators, alive as long as that handle is. Needs tensor.h.
  template <typename T = anyop::Tensor>
  T plain() const {
    return T::Share(view(), *this);
  }

  // As an argument of AnyopAtenCall; valid while this handle is.
  operator AnyopAtenValue() const {
    AnyopAtenValue value = {};
    if (!held_) return value;
    value.tag = held_->tensor ? kAnyopAtenTorch : kAnyopAtenMemoryOf;
    if (held_->tensor) {
      value.as.tensor = held_->tensor;
    } else {
      value.as.memory = &held_->memory;
    }
    return value;
  }

 private:
  void Lend(internal::Held* held, const AnyopTensor& tensor, uint32_t flags) {
    held_ = held;
    held->memory = {tensor, flags, 0, held, internal::Retain, internal::Release};
  }

  internal::Held* held_ = nullptr;
};

using TensorList = std::vector<Tensor>;

}  // namespace aten
}  // namespace anyop

#endif  // ANYOP_ATEN_TYPES_H_
