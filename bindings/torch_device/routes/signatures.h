// SPDX-License-Identifier: Apache-2.0
// The C++ signatures that most overloads share, and the text by which a schema tells its own.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>

#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>

namespace anyop::torch_device::signatures {

using at::Scalar;
using at::Tensor;
using c10::SymInt;
using c10::SymIntArrayRef;
using std::optional;
using OptionalTensor = optional<Tensor>;

// Which C++ type an argument or result has in at::_ops, told from its schema.
inline std::string TypeText(const c10::Argument& argument) {
  std::string text = argument.real_type()->str();
  if (argument.alias_info() && argument.alias_info()->isWrite()) text += "!";
  return text;
}

inline std::string SignatureText(const c10::FunctionSchema& schema) {
  std::string text;
  for (const auto& argument : schema.arguments()) text += TypeText(argument) + ",";
  text += ">";
  for (const auto& result : schema.returns()) text += TypeText(result) + ",";
  return text;
}

template <class T>
struct Text;
#define ANYOP_TYPE_TEXT(type, text)            \
  template <>                                  \
  struct Text<type> {                          \
    static constexpr const char* value = text; \
  }
ANYOP_TYPE_TEXT(const Tensor&, "Tensor");
ANYOP_TYPE_TEXT(Tensor&, "Tensor!");
ANYOP_TYPE_TEXT(Tensor, "Tensor");
ANYOP_TYPE_TEXT(const OptionalTensor&, "Tensor?");
ANYOP_TYPE_TEXT(const at::ITensorListRef&, "Tensor[]");
ANYOP_TYPE_TEXT(at::TensorList, "Tensor[]");
ANYOP_TYPE_TEXT(const c10::List<OptionalTensor>&, "Tensor?[]");
ANYOP_TYPE_TEXT(const Scalar&, "Scalar");
ANYOP_TYPE_TEXT(int64_t, "int");
ANYOP_TYPE_TEXT(SymInt, "SymInt");
ANYOP_TYPE_TEXT(optional<int64_t>, "int?");
ANYOP_TYPE_TEXT(double, "float");
ANYOP_TYPE_TEXT(optional<double>, "float?");
ANYOP_TYPE_TEXT(bool, "bool");
ANYOP_TYPE_TEXT(optional<bool>, "bool?");
ANYOP_TYPE_TEXT(c10::string_view, "str");
ANYOP_TYPE_TEXT(at::ScalarType, "ScalarType");
ANYOP_TYPE_TEXT(optional<at::ScalarType>, "ScalarType?");
ANYOP_TYPE_TEXT(at::IntArrayRef, "int[]");
ANYOP_TYPE_TEXT(at::OptionalIntArrayRef, "int[]?");
ANYOP_TYPE_TEXT(SymIntArrayRef, "SymInt[]");
ANYOP_TYPE_TEXT(optional<at::Generator>, "Generator?");
#undef ANYOP_TYPE_TEXT

template <class R>
struct ResultText {
  static std::string Get() { return std::string(Text<R>::value) + ","; }
};
template <class... T>
struct ResultText<std::tuple<T...>> {
  static std::string Get() { return ((std::string(Text<T>::value) + ",") + ...); }
};

using In = const Tensor&;
using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;
using Quadruple = std::tuple<Tensor, Tensor, Tensor, Tensor>;
// Of CUDA's attention: result, logsumexp, two sequences and their lengths, a generator's state.
using Attended = std::tuple<Tensor, Tensor, Tensor, Tensor, SymInt, SymInt, Tensor, Tensor, Tensor>;

template <class Table>
void AddFunctional(Table* to) {
  to->template Add<Tensor, In>();
  to->template Add<Tensor, In, In>();
  to->template Add<Tensor, In, In, In>();
  to->template Add<Tensor, In, const Scalar&>();
  to->template Add<Tensor, In, In, const Scalar&>();
  to->template Add<Tensor, In, const Scalar&, const Scalar&>();
  to->template Add<Tensor, In, In, In, const Scalar&>();
  to->template Add<Tensor, In, In, In, const Scalar&, const Scalar&>();
  to->template Add<Tensor, In, int64_t>();
  to->template Add<Tensor, In, SymInt>();
  to->template Add<Tensor, In, int64_t, bool>();
  to->template Add<Tensor, In, c10::string_view>();
  to->template Add<Tensor, In, In, c10::string_view>();
  to->template Add<Tensor, In, In, int64_t>();
  to->template Add<Tensor, In, In, int64_t, at::ScalarType>();
  to->template Add<Tensor, In, optional<at::ScalarType>>();
  to->template Add<Tensor, In, at::OptionalIntArrayRef, bool, optional<at::ScalarType>>();
  to->template Add<Tensor, In, int64_t, optional<at::ScalarType>>();
  to->template Add<Tensor, In, at::IntArrayRef, bool>();
  to->template Add<Tensor, In, optional<int64_t>, bool>();
  to->template Add<Tensor, In, int64_t, In>();
  to->template Add<Tensor, In, int64_t, In, bool>();
  to->template Add<Tensor, In, int64_t, In, In>();
  to->template Add<Tensor, In, In, SymInt, bool, bool>();
  to->template Add<Tensor, In, In, SymInt, SymInt, bool>();
  to->template Add<Tensor, const at::ITensorListRef&, int64_t>();
  to->template Add<Tensor, at::TensorList, int64_t>();
  to->template Add<Tensor, In, const c10::List<OptionalTensor>&>();
  to->template Add<Tensor, In, SymIntArrayRef>();
  to->template Add<Tensor, In, const OptionalTensor&, const OptionalTensor&>();
}

template <class Table>
void AddPairs(Table* to) {
  to->template Add<Pair, In>();
  to->template Add<Pair, In, int64_t, bool>();
  to->template Add<Pair, In, double, optional<bool>>();
  to->template Add<Pair, In, SymInt, int64_t, bool, bool>();
  to->template Add<Pair, In, In, const OptionalTensor&, int64_t, SymInt>();
  to->template Add<Pair, In, In, In, double, bool, const OptionalTensor&, optional<double>>();
  to->template Add<Triple, In, SymIntArrayRef, const OptionalTensor&, const OptionalTensor&,
                   double>();
}

template <class Table>
void AddAttention(Table* to) {
  to->template Add<Attended, In, In, In, double, bool, bool, optional<double>>();
  to->template Add<Attended, In, In, In, const OptionalTensor&, bool, double, bool, bool,
                   optional<double>>();
  to->template Add<Quadruple, In, In, In, const OptionalTensor&, bool, double, bool,
                   optional<double>>();
}

template <class Table>
void AddWritten(Table* to) {
  to->template Add<Tensor&, Tensor&>();
  to->template Add<Tensor&, Tensor&, In>();
  to->template Add<Tensor&, Tensor&, const Scalar&>();
  to->template Add<Tensor&, Tensor&, In, const Scalar&>();
  to->template Add<Tensor&, Tensor&, In, In>();
  to->template Add<Tensor&, Tensor&, In, In, const Scalar&>();
  to->template Add<Tensor&, Tensor&, double, double, optional<at::Generator>>();
  to->template Add<Tensor&, Tensor&, double, optional<at::Generator>>();
  to->template Add<Tensor&, In, Tensor&>();
  to->template Add<Tensor&, In, In, Tensor&>();
  to->template Add<Tensor&, In, const Scalar&, Tensor&>();
  to->template Add<Tensor&, In, In, const Scalar&, Tensor&>();
  to->template Add<Tensor&, const Scalar&, const Scalar&, const Scalar&, Tensor&>();
}

// What Maker makes of each signature, Maker::Make<R, A...>, by text. Some texts stand for several
// signatures.
template <class Maker>
class Table {
 public:
  using Made = decltype(&Maker::template Make<Tensor, In>);

  static const Table& Get() {
    static const Table table;
    return table;
  }

  // Those of a schema's text, until one is taken.
  template <class Take>
  bool Find(const c10::FunctionSchema& schema, const Take& take) const {
    const auto [begin, end] = made_.equal_range(SignatureText(schema));
    for (auto found = begin; found != end; ++found) {
      try {
        take(found->second);
        return true;
      } catch (const c10::Error&) {  // its C++ types are others
      }
    }
    return false;
  }

  template <class R, class... A>
  void Add() {
    made_.emplace(((std::string(Text<A>::value) + ",") + ...) + ">" + ResultText<R>::Get(),
                  &Maker::template Make<R, A...>);
  }

 private:
  Table() {
    AddFunctional(this);
    AddPairs(this);
    AddAttention(this);
    AddWritten(this);
  }

  std::unordered_multimap<std::string, Made> made_;
};

}  // namespace anyop::torch_device::signatures
