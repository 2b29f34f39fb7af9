// SPDX-License-Identifier: Apache-2.0
// bias_gelu as a function of tvm-ffi, to compare: as many checks, the result allocated by the
// caller's framework.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include "../ops/bias_gelu_rows.h"

namespace ffi = tvm::ffi;

ffi::Tensor BiasGelu(ffi::TensorView x, ffi::TensorView bias) {
  const DLDataType float32 = {kDLFloat, 32, 1};
  TVM_FFI_CHECK(x.device().device_type == kDLCPU, ValueError) << "bias_gelu: x is not on the CPU";
  TVM_FFI_CHECK(bias.device().device_type == kDLCPU, ValueError)
      << "bias_gelu: bias is not on the CPU";
  TVM_FFI_CHECK(x.dtype() == float32, TypeError) << "bias_gelu: x is not float32";
  TVM_FFI_CHECK(bias.dtype() == float32, TypeError) << "bias_gelu: bias is not float32";
  TVM_FFI_CHECK(x.ndim() >= 1 && bias.ndim() == 1, ValueError)
      << "bias_gelu: expected (*, D) and (D)";
  TVM_FFI_CHECK(x.size(-1) == bias.size(0), ValueError) << "bias_gelu: bias has " << bias.shape();
  TVM_FFI_CHECK(x.IsContiguous() && bias.IsContiguous(), ValueError) << "bias_gelu: not contiguous";
  const int64_t D = bias.size(0), rows = D ? x.numel() / D : 0;
  ffi::Tensor out = ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, x.shape(), float32, x.device());
  BiasGeluRows(static_cast<const float*>(x.data_ptr()), static_cast<const float*>(bias.data_ptr()),
               static_cast<float*>(out.data_ptr()), rows, D);
  return out;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(bias_gelu, BiasGelu);
