// SPDX-License-Identifier: Apache-2.0
// Views of the full shape, with strides of 0.
#include "tensors/broadcast.h"

#include <string>

#include "tensors/memory.h"

namespace anyop {
namespace {

int JoinOf(const Operator& op, int group) {
  for (size_t j = 0; j < op.joins.size(); ++j) {
    for (int k = 0; k < op.joins[j].count; ++k) {
      if (op.joins[j].groups[k] == group) return op.num_groups + static_cast<int>(j);
    }
  }
  return group;
}

}  // namespace

void Expand(Frame* frame, const Sizes& sizes) {
  const Operator& op = *frame->op;
  for (uint32_t i = 0; i < op.num_inputs; ++i) {
    const Param& p = op.params[i];
    if (!p.Is(kAnyopExpanded) || !(frame->given >> i & 1)) continue;
    ShapeProgram full = p.shape;
    if (!full.broadcast) full.group = JoinOf(op, full.group);
    const AnyopTensor& t = frame->tensors[i];
    auto* shape = frame->arena.Take<int64_t>(kMaxRank);
    auto* strides = frame->arena.Take<int64_t>(kMaxRank);
    auto* view = frame->arena.Take<AnyopTensor>(1);
    const int ndim = sizes.Build(full, shape);
    // Sizes before the group stay in front; the group and what follows it are aligned at the end.
    const int front = full.broadcast ? 0 : full.before;
    for (int d = 0; d < ndim; ++d) {
      const int from = d < front ? d : d - (ndim - t.ndim);
      strides[d] =
          from < (d < front ? 0 : front) || t.shape[from] != shape[d] ? 0 : t.strides[from];
    }
    *view = t;
    view->ndim = ndim;
    view->shape = shape;
    view->strides = strides;
    frame->Field<const AnyopTensor*>(p) = view;
  }
}

int32_t FailJoin(Frame* frame, int join) {
  const Operator& op = *frame->op;
  std::string found, joined;
  for (uint32_t i = 0; i < op.num_inputs; ++i) {
    const Param& p = op.params[i];
    if (!p.IsTensor() || p.shape.broadcast || !(frame->given >> i & 1)) continue;
    const AnyopTensor& t = frame->tensors[i];
    const std::string text = std::string(p.name) + " " + SizesText(t.ndim, t.shape);
    if (p.Is(kAnyopExpanded)) found += (found.empty() ? "" : ", ") + text;
    if (p.shape.group == op.num_groups + join) joined = text;
  }
  if (!joined.empty()) {
    return Fail(frame, kAnyopValueError, "%s does not fit the broadcast of %s", joined.c_str(),
                found.c_str());
  }
  return Fail(frame, kAnyopValueError, "shapes cannot be broadcast together: %s", found.c_str());
}

}  // namespace anyop
