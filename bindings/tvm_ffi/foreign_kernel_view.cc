// SPDX-License-Identifier: Apache-2.0
// Joins dimensions where one stride walks through all of their elements.
#include "foreign_kernel_view.h"

#include <algorithm>

namespace anyop::ffi {

bool IsEmpty(const AnyopTensor& tensor) {
  int64_t* end = tensor.shape + tensor.ndim;
  return std::find(tensor.shape, end, 0) != end;
}

bool JoinDimensions(const AnyopTensor& tensor, bool keep_last, int64_t* sizes, AnyopTensor* view) {
  const int joined = tensor.ndim - keep_last;
  if (joined < 0) return false;
  *view = tensor;
  view->ndim = 1 + keep_last;
  view->shape = sizes;
  view->strides = sizes + 2;
  const bool is_empty = IsEmpty(tensor);
  int64_t size = 1, stride = 0;  // 0: no dimension of more than one element yet
  for (int i = joined - 1; i >= 0; --i) {
    if (tensor.shape[i] == 1) continue;
    if (stride == 0) {
      stride = tensor.strides[i];
      if (stride == 0 && !is_empty) return false;  // repeated: rare, and not worth a case
    } else if (tensor.strides[i] != stride * size && !is_empty) {
      return false;
    }
    size *= tensor.shape[i];
  }
  view->shape[0] = size;
  view->strides[0] = stride;
  if (keep_last) {
    view->shape[1] = tensor.shape[joined];
    view->strides[1] = tensor.strides[joined];
  }
  if (stride == 0) view->strides[0] = keep_last ? view->shape[1] : 1;
  return true;
}

}  // namespace anyop::ffi
