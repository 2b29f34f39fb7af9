// SPDX-License-Identifier: Apache-2.0
// One function of the shim for each field.
#include "shim_view.h"

#include "tensors/dtype.h"

namespace anyop::torch {
namespace {

constexpr int32_t kDlCpu = 1, kDlCuda = 2, kDlRocm = 10, kDlExtension = 12;
constexpr DlpackType kOpaque = {3, 8};

}  // namespace

bool FillView(const Shim& shim, TensorHandle handle, AnyopTensor* view) {
  int64_t ndim = 0;
  int32_t dtype = -1, device = -1, index = 0;
  *view = {};
  if (shim.dim(handle, &ndim) || shim.sizes(handle, &view->shape) ||
      shim.strides(handle, &view->strides) || shim.dtype(handle, &dtype) ||
      shim.device_type(handle, &device) || shim.device_index(handle, &index) ||
      shim.data_ptr(handle, &view->data))
    return false;
  const int known = DtypeOfCode(shim, dtype);
  const DlpackType type = known == kAnyopNoDtype ? kOpaque : DlpackTypeOf(known);
  view->ndim = static_cast<int32_t>(ndim);
  view->device_type = device == shim.device_cpu()    ? kDlCpu
                      : device == shim.device_cuda() ? kDlCuda
                                                     : kDlExtension;
  view->device_id = index < 0 ? 0 : index;
  view->dtype_code = type.code;
  view->dtype_bits = type.bits;
  view->dtype_lanes = 1;
  return true;
}

int32_t DeviceCode(const Shim& shim, int32_t dlpack) {
  return dlpack == kDlCpu                         ? shim.device_cpu()
         : dlpack == kDlCuda || dlpack == kDlRocm ? shim.device_cuda()
                                                  : shim.device_private();
}

int DtypeOfCode(const Shim& shim, int32_t code) {
  return code >= 0 && code < 64 ? shim.dtype_of[code] : int{kAnyopNoDtype};
}

}  // namespace anyop::torch
