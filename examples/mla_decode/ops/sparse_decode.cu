// SPDX-License-Identifier: Apache-2.0
// sparse_decode on CUDA: partial_mma.h and partial_cuda.h, over the tokens of a list.
//
// The indices are on the device: one that is outside makes NaN of what it concerns, and nothing
// outside is read.
#include "mla/ops/sparse_decode.h"
#include "partial_run.h"

extern "C" int32_t mla_sparse_decode_cuda(const SparseDecodeArgs* args, AnyopCall* call) {
  return anyop::cuda::RunParts(*args, call, anyop::mla::ListOf(*args));
}
