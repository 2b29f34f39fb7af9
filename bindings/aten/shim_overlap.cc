// SPDX-License-Identifier: Apache-2.0
// Which of torch's kernels would do without copies nobody knows here: all that share are copied.
#include "shim_overlap.h"

#include <string>

#include "../torch_glue/torch_aten_overlap.h"
#include "api/c_error.h"
#include "runtime.h"
#include "shim_view.h"

namespace anyop::aten {
namespace {

using glue::Extent;

constexpr int32_t kMostDims = 64;  // Prepare has seen to it
constexpr uint8_t kAnyWrite = kAnyopAtenWrites | kAnyopAtenWritesUnmarked;

struct Operand {
  const Param* param;
  const AnyopAtenValue* value;
  bool writes;
  Extent extent;
};

template <class Visit>
void ForEachTensor(const Op& op, const AnyopAtenValue* arguments, Visit&& visit) {
  for (size_t i = 0; i < op.params.size(); ++i) {
    const AnyopAtenValue& value = arguments[i];
    if (!op.params[i].IsTensor()) continue;
    if (value.tag != kAnyopAtenList) visit(i, value);
    for (int64_t k = 0; value.tag == kAnyopAtenList && k < value.more.count; ++k)
      visit(i, value.as.list[k]);
  }
}

Extent ExtentOf(const AnyopTensor& t, int64_t* row_major) {
  int64_t step = 1;
  for (int32_t d = t.ndim - 1; d >= 0 && !t.strides; --d) {
    row_major[d] = step;
    if (__builtin_mul_overflow(step, t.shape[d], &step)) return {};  // is refused later
  }
  return {static_cast<char*>(t.data) + t.byte_offset, t.shape, t.strides ? t.strides : row_major,
          t.ndim, t.dtype_bits / 8};
}

Extent ExtentOf(AnyopAtenTensor* tensor) {
  const torch::Shim& shim = *runtime.shim;
  const auto handle = reinterpret_cast<torch::TensorHandle>(tensor);
  int32_t layout = 0;
  AnyopTensor view;
  if (shim.layout(handle, &layout) || layout != shim.layout_strided() ||
      !torch::FillView(shim, handle, &view))
    return {};
  constexpr int64_t kWidest = 16;
  return {view.data, view.shape, view.strides, view.ndim,
          AnyopDtypeOf(&view) == kAnyopNoDtype ? kWidest : view.dtype_bits / 8};
}

bool Writes(const AnyopAtenType& type, const AnyopAtenValue* arguments) {
  return type.flags & kAnyopAtenWrites ||
         (type.flags & kAnyopAtenWritesUnmarked && (type.alias < 0 || arguments[type.alias].as.i));
}

}  // namespace

int32_t FindReadsToCopy(const Op& op, const AnyopAtenValue* arguments,
                        std::vector<const AnyopAtenValue*>* copied) {
  uint8_t flags = 0;
  for (const AnyopAtenType& type : op.types) flags |= type.flags;
  if (!(flags & kAnyWrite) || op.name == "aten::set_")
    return kAnyopOk;  // takes memory, writes none
  size_t count = 0;
  ForEachTensor(op, arguments, [&](size_t, const AnyopAtenValue&) { ++count; });
  std::vector<int64_t> row_major(kMostDims * count);
  std::vector<Operand> operands;
  ForEachTensor(op, arguments, [&](size_t i, const AnyopAtenValue& value) {
    Extent extent;
    if (value.tag == kAnyopAtenMemoryOf)
      extent = ExtentOf(value.as.memory->tensor, &row_major[kMostDims * operands.size()]);
    if (value.tag == kAnyopAtenTorch) extent = ExtentOf(value.as.tensor);
    operands.push_back({&op.params[i], &value, Writes(op.types[i], arguments), extent});
  });
  for (const Operand& a : operands) {
    for (const Operand& b : operands) {
      if (&a == &b || !a.writes || !a.extent.Meets(b.extent)) continue;
      if (!b.writes)
        copied->push_back(b.value);
      else if (a.extent.SharesElements(b.extent))
        return SetError(kAnyopValueError,
                        (op.full_name + ": " + b.param->name +
                         " shares memory with another argument, and the operator would write both")
                            .c_str());
    }
  }
  return kAnyopOk;
}

}  // namespace anyop::aten
