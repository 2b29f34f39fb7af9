// SPDX-License-Identifier: Apache-2.0
// One call of ATen for all typed functions of anyop/aten.h.
#ifndef ANYOP_ATEN_INVOKE_H_
#define ANYOP_ATEN_INVOKE_H_

#include <cstdlib>
#include <cstring>

#include "anyop/aten/arguments.h"

namespace anyop {
namespace aten {

namespace internal {

inline thread_local const AnyopAtenOptions* options = nullptr;

// Results are taken out of their values; what is not taken is dropped.
template <typename Result>
Result Take(AnyopAtenValue* value);

template <>
inline Tensor Take(AnyopAtenValue* value) {
  if (value->tag != kAnyopAtenTorch) return {};
  Tensor taken = Tensor::Adopt(value->as.tensor);
  *value = {};
  return taken;
}
template <>
inline TensorList Take(AnyopAtenValue* value) {
  TensorList taken(static_cast<size_t>(value->more.count));
  for (size_t i = 0; i < taken.size(); ++i) taken[i] = Take<Tensor>(&value->as.list[i]);
  return taken;
}
template <>
inline Scalar Take(AnyopAtenValue* value) {
  return Scalar::Of(*value);
}
template <>
inline Dtype Take(AnyopAtenValue* value) {
  return Dtype(static_cast<int>(value->as.i));
}
template <>
inline int64_t Take(AnyopAtenValue* value) {
  return value->as.i;
}
template <>
inline bool Take(AnyopAtenValue* value) {
  return value->as.i != 0;
}
template <>
inline double Take(AnyopAtenValue* value) {
  return Scalar::Of(*value).real();
}

template <int32_t kCount>
struct Owned {
  AnyopAtenValue values[kCount + 1] = {};
  ~Owned() { AnyopAtenDrop(values, kCount); }
};

}  // namespace internal

// An overload by its schema. A call of it finds it once.
class Op {
 public:
  explicit constexpr Op(const char* schema) : schema_(schema) {}

  // arguments: count values. results: as many as the schema says.
  void Call(const AnyopAtenValue* arguments, int32_t count, AnyopAtenValue* results) {
    const AnyopAtenOp* op = __atomic_load_n(&found_, __ATOMIC_ACQUIRE);
    if (!op) op = Find();
    internal::Check(AnyopAtenCall(op, arguments, count, results, internal::options));
  }

 private:
  const AnyopAtenOp* Find() {
    const std::string name(schema_, std::strcspn(schema_, "("));
    const AnyopAtenOp* op = AnyopAtenFind(name.c_str());
    if (!op) throw Error(kAnyopValueError, AnyopLastError());
    if (std::strcmp(AnyopAtenSchema(op), schema_) != 0) {
      throw Error(kAnyopValueError, name + ": anyop/aten.h is another torch's, it has " + schema_ +
                                        ", this torch has " + AnyopAtenSchema(op));
    }
    __atomic_store_n(&found_, op, __ATOMIC_RELEASE);
    return op;
  }

  const char* schema_;
  const AnyopAtenOp* found_ = nullptr;
};

namespace internal {

// A plain function for each type of result: the compiler reads thousands of calls of them, and a
// template of the type would cost it three times as much.
template <typename Result>
Result CallOne(Op& op, const AnyopAtenValue* arguments, int32_t count) {
  Owned<1> results;
  op.Call(arguments, count, results.values);
  return Take<Result>(results.values);
}
inline Tensor Call_Tensor(Op& op, const AnyopAtenValue* arguments, int32_t count) {
  return CallOne<Tensor>(op, arguments, count);
}
inline TensorList Call_TensorList(Op& op, const AnyopAtenValue* arguments, int32_t count) {
  return CallOne<TensorList>(op, arguments, count);
}
inline Scalar Call_Scalar(Op& op, const AnyopAtenValue* arguments, int32_t count) {
  return CallOne<Scalar>(op, arguments, count);
}
inline Dtype Call_Dtype(Op& op, const AnyopAtenValue* arguments, int32_t count) {
  return CallOne<Dtype>(op, arguments, count);
}
inline int64_t Call_int64_t(Op& op, const AnyopAtenValue* arguments, int32_t count) {
  return CallOne<int64_t>(op, arguments, count);
}
inline bool Call_bool(Op& op, const AnyopAtenValue* arguments, int32_t count) {
  return CallOne<bool>(op, arguments, count);
}
inline double Call_double(Op& op, const AnyopAtenValue* arguments, int32_t count) {
  return CallOne<double>(op, arguments, count);
}
inline void Call_void(Op& op, const AnyopAtenValue* arguments, int32_t count) {
  Owned<0> results;
  op.Call(arguments, count, results.values);
}

}  // namespace internal

// Once a process, before the first call; not where anyop.aten runs in it already. By default the
// table and the glue that the header was made with, or those that ANYOP_ATEN_TABLE and
// ANYOP_ATEN_GLUE name.
inline void OpenTable(const char* table, const char* glue) {
  const char* const named_table = std::getenv("ANYOP_ATEN_TABLE");
  const char* const named_glue = std::getenv("ANYOP_ATEN_GLUE");
  if (named_table && *named_table) table = named_table;
  if (named_glue && *named_glue) glue = named_glue;
  internal::Check(AnyopAtenOpen(table, glue && *glue ? glue : nullptr));
}

// How this thread's calls run while it lives.
class Options {
 public:
  // Device memory is used on this stream (cudaStream_t) of a CUDA device.
  Options(void* stream, int32_t device_id)
      : Options({sizeof(AnyopAtenOptions), kAnyopAtenHasStream, stream, device_id, 0}) {}
  // Gradients are recorded and modes followed, as in calls of torch's user.
  static Options AsTorch() {
    return Options({sizeof(AnyopAtenOptions), kAnyopAtenAsTorch, nullptr, 0, 0});
  }
  Options(const Options&) = delete;
  Options& operator=(const Options&) = delete;
  ~Options() { internal::options = before_; }

 private:
  explicit Options(const AnyopAtenOptions& options) : options_(options) {
    internal::options = &options_;
  }

  const AnyopAtenOptions options_;
  const AnyopAtenOptions* const before_ = internal::options;
};

}  // namespace aten
}  // namespace anyop

#endif  // ANYOP_ATEN_INVOKE_H_
