// SPDX-License-Identifier: Apache-2.0
// The types of arguments of the typed functions of anyop/aten.h.
//
// Every parameter has a type that takes what its schema takes and nothing else: a number never
// stands for a flag, nor 0 for a name. So of several overloads the one that is meant is called, or
// the program does not compile.
#ifndef ANYOP_ATEN_ARGUMENTS_H_
#define ANYOP_ATEN_ARGUMENTS_H_

#include <initializer_list>

#include "anyop/aten/types.h"

namespace anyop {
namespace aten {

namespace internal {

template <typename T>
constexpr bool kIsBool = std::is_same<T, bool>::value;
template <typename T>
constexpr bool kIsInt = std::is_integral<T>::value && !kIsBool<T>;
// char*, char[] and std::string; not 0, which is a null pointer too.
template <typename T>
constexpr bool kIsText =
    std::is_convertible<const T&, std::string>::value &&
    (std::is_class<T>::value || std::is_array<T>::value || std::is_pointer<T>::value);
template <typename T>
using IfComplex = decltype(std::declval<const T&>().imag(), int());
template <typename T>
using IfItems = decltype(std::declval<const T&>().begin(), std::declval<const T&>().size(), int());

struct Value : AnyopAtenValue {
  Value() : AnyopAtenValue{} {}
  void Set(AnyopAtenTag kind, int64_t i) { tag = kind, as.i = i; }
  void SetFloat(AnyopAtenTag kind, double f) { tag = kind, as.f = f; }
  void SetText(const char* text) { SetText(text, std::char_traits<char>::length(text)); }
  void SetText(const std::string& text) { SetText(text.data(), text.size()); }
  void SetText(const char* text, size_t bytes) {
    tag = kAnyopAtenStr, as.s = text, more.count = static_cast<int64_t>(bytes);
  }
};

// Up to eight items lie in the object itself.
class List : public Value {
 public:
  List(const List&) = delete;
  List& operator=(const List&) = delete;
  ~List() { delete[] more_items_; }

 protected:
  List() {}

  template <typename Item, typename Items>
  void Fill(const Items& items) {
    AnyopAtenValue* to = items_;
    if (items.size() > kItems) to = more_items_ = new AnyopAtenValue[items.size()];
    tag = kAnyopAtenList, as.list = to, more.count = static_cast<int64_t>(items.size());
    for (const auto& item : items) *to++ = Item(item);
  }

 private:
  static constexpr size_t kItems = 8;
  AnyopAtenValue items_[kItems];
  AnyopAtenValue* more_items_ = nullptr;
};

}  // namespace internal

struct Int : internal::Value {
  template <typename T, internal::If<internal::kIsInt<T>> = 0>
  Int(T i) {
    Set(kAnyopAtenInt, static_cast<int64_t>(i));
  }

 protected:
  Int() {}
};

struct Bool : internal::Value {
  template <typename T, internal::If<internal::kIsBool<T>> = 0>
  Bool(T b) {
    Set(kAnyopAtenBool, b);
  }

 protected:
  Bool() {}
};

struct Float : internal::Value {
  template <typename T, internal::If<std::is_arithmetic<T>::value && !internal::kIsBool<T>> = 0>
  Float(T f) {
    SetFloat(kAnyopAtenFloat, static_cast<double>(f));
  }

 protected:
  Float() {}
};

// A number of any kind, std::complex too.
struct Scalar : internal::Value {
  template <typename T, internal::If<std::is_arithmetic<T>::value> = 0>
  Scalar(T n) {
    if (std::is_floating_point<T>::value)
      SetFloat(kAnyopAtenFloat, static_cast<double>(n));
    else
      Set(internal::kIsBool<T> ? kAnyopAtenBool : kAnyopAtenInt, static_cast<int64_t>(n));
  }
  template <typename T, internal::IfComplex<T> = 0>
  Scalar(const T& c) {
    SetFloat(kAnyopAtenComplex, static_cast<double>(c.real()));
    more.imag = static_cast<double>(c.imag());
  }
  static Scalar Of(const AnyopAtenValue& value) {
    Scalar made;
    static_cast<AnyopAtenValue&>(made) = value;
    return made;
  }
  double real() const {
    return tag == kAnyopAtenInt || tag == kAnyopAtenBool ? static_cast<double>(as.i) : as.f;
  }
  double imag() const { return tag == kAnyopAtenComplex ? more.imag : 0; }

 protected:
  Scalar() {}
};

// Text is read in the call, not copied before.
struct Str : internal::Value {
  template <typename T, internal::If<internal::kIsText<T>> = 0>
  Str(const T& text) {
    SetText(text);
  }

 protected:
  Str() {}
};

// A name such as "strided" or "channels_last", or torch's own code.
struct Layout : Str {
  using Str::Str;
  explicit Layout(int code) { Set(kAnyopAtenInt, code); }

 protected:
  Layout() {}
};
struct Format : Layout {
  using Layout::Layout;

 protected:
  Format() {}
};

struct Dtype : Layout {
  using Layout::Layout;
  Dtype(AnyopDtype dtype) {
    static const char* const names[] = {
        "bool",          "uint8",       "int8",    "int16",   "int32",     "int64",
        "float16",       "bfloat16",    "float32", "float64", "complex64", "complex128",
        "float8_e4m3fn", "float8_e5m2", "uint16",  "uint32",  "uint64"};
    if (dtype < 0 || dtype >= kAnyopNumDtypes) throw Error(kAnyopValueError, "no AnyopDtype");
    SetText(names[dtype]);
  }
  int64_t code() const { return as.i; }  // of a result: torch's

 protected:
  Dtype() {}
};

// "cpu", "cuda:1".
struct Device : Str {
  using Str::Str;

 protected:
  Device() {}
};

// A seed, for a generator of the call's own; or a c10::GeneratorImpl*.
struct Generator : internal::Value {
  template <typename T, internal::If<internal::kIsInt<T>> = 0>
  Generator(T seed) {
    Set(kAnyopAtenSeed, static_cast<int64_t>(seed));
  }
  explicit Generator(void* generator) { tag = kAnyopAtenGenerator, as.generator = generator; }

 protected:
  Generator() {}
};

// Lists: from braces, and from whatever has begin() and size(), as std::vector.
template <typename Item>
struct ListOf : internal::List {
  ListOf() : ListOf(std::initializer_list<Item>()) {}
  ListOf(std::initializer_list<Item> items) { Fill<Item>(items); }
  template <typename Items, internal::IfItems<Items> = 0,
            internal::If<!internal::kIsText<Items>> = 0>
  ListOf(const Items& items) {
    Fill<Item>(items);
  }

 protected:
  explicit ListOf(NoneType) {}
};
using Floats = ListOf<Float>;
using Bools = ListOf<Bool>;
using Scalars = ListOf<Scalar>;

using Ints = ListOf<Int>;

// Where the schema says how long a list is, one number stands for all of it.
struct IntOrInts : Ints {
  using Ints::Ints;
  template <typename T, internal::If<internal::kIsInt<T>> = 0>
  IntOrInts(T i) : Ints(None) {
    Set(kAnyopAtenInt, static_cast<int64_t>(i));
  }

 protected:
  explicit IntOrInts(NoneType) : Ints(None) {}
};

struct Tensors : internal::List {
  Tensors() : Tensors(std::initializer_list<Tensor>()) {}
  Tensors(std::initializer_list<Tensor> items) : kept_(items) { Fill<Tensor>(kept_); }
  template <typename Items, internal::IfItems<Items> = 0>
  Tensors(const Items& items) : kept_(items.begin(), items.end()) {
    Fill<Tensor>(kept_);
  }

 private:
  std::vector<Tensor> kept_;
};

// What may be left out.
template <typename T>
struct Opt : T {
  using T::T;
  Opt(NoneType = {}) {}
};
template <typename T>
struct OptList : T {
  using T::T;
  OptList(NoneType = {}) : T(None) {}
};

}  // namespace aten
}  // namespace anyop

#endif  // ANYOP_ATEN_ARGUMENTS_H_
