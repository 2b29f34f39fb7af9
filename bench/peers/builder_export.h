/* SPDX-License-Identifier: Apache-2.0 */
// What each generated tvm-ffi export of bench/peers/builder_exports.py includes: tensors as kernels
// see them, and a call.
#ifndef ANYOP_BENCH_PEERS_BUILDER_EXPORT_H_
#define ANYOP_BENCH_PEERS_BUILDER_EXPORT_H_

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>
#include <tvm/ffi/string.h>

#include "anyop/kernel.h"

namespace exported {

namespace ffi = tvm::ffi;

inline AnyopTensor View(const ffi::TensorView& x) {
  const DLDataType dtype = x.dtype();
  return {x.data_ptr(),
          x.device().device_type,
          x.device().device_id,
          x.ndim(),
          dtype.code,
          dtype.bits,
          dtype.lanes,
          const_cast<int64_t*>(x.shape().data()),
          const_cast<int64_t*>(x.strides().data()),
          0};
}

// Product of the sizes without the first `before` and the last `after`.
inline int64_t Product(const ffi::TensorView& x, int before, int after) {
  int64_t product = 1;
  for (int i = before; i < x.ndim() - after; ++i) product *= x.size(i);
  return product;
}

inline int32_t Fail(AnyopCall*, int32_t status, const char*) { return status; }
inline void Parallel(AnyopCall*, int64_t count, int64_t, AnyopBody body, void* context) {
  if (count) body(context, 0, count);
}
inline void* Workspace(AnyopCall* call, int64_t bytes) {
  return call->internal = ::operator new(static_cast<size_t>(bytes));
}

template <typename Args>
void Run(int32_t (*kernel)(const Args*, AnyopCall*), Args* args) {
  AnyopCall call = {};
  call.size = sizeof call;
  call.device_type = 1;
  call.workspace = Workspace;
  call.fail = Fail;
  call.parallel = Parallel;
  args->base.size = sizeof *args;
  const int32_t status = kernel(args, &call);
  ::operator delete(call.internal);
  TVM_FFI_CHECK(status == kAnyopOk, ValueError) << "status " << status;
}

}  // namespace exported

#endif  // ANYOP_BENCH_PEERS_BUILDER_EXPORT_H_
