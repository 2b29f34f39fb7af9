// SPDX-License-Identifier: Apache-2.0
// Multi-head latent attention to the rows that indices name, of floats or of 656 bytes, on CUDA.
#include "anyop/ops/mla_sparse.h"
#include "anyop/ops/mla_sparse_fp8.h"
#include "mla_cuda.h"
#include "mla_view.h"

namespace anyop::cuda {
namespace {

template <bool kBytes, typename Args>
int32_t AttendListed(const Args& args, int64_t W, int64_t R, AnyopCall* call) {
  PagedView p = {};
  if (!ViewListed(args, W, R, &p)) return DeclineLatent(call);
  return AttendToLatent<kBytes>(&p, AnyopDtypeOf(args.q), 0, call);
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_mla_sparse_cuda(const MlaSparseArgs* args, AnyopCall* call) {
  return anyop::cuda::AttendListed<false>(*args, args->W, args->R, call);
}
extern "C" int32_t anyop_mla_sparse_fp8_cuda(const MlaSparseFp8Args* args, AnyopCall* call) {
  return anyop::cuda::AttendListed<true>(*args, 576, 512, call);
}
