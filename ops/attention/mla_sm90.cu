// SPDX-License-Identifier: Apache-2.0
// Latent attention on Hopper: to pages, and to the rows that indices name, of floats or of 656
// bytes.
#include "anyop/ops/mla_decode.h"
#include "anyop/ops/mla_sparse.h"
#include "anyop/ops/mla_sparse_fp8.h"
#include "mla_sm90.h"
#include "mla_view.h"

namespace anyop::cuda {
namespace {

// Of which out is the result.
template <bool kBytes>
int32_t AttendToLatentOnHopper(PagedView* p, const AnyopTensor& out, AnyopDtype dtype,
                               int64_t split_size, AnyopCall* call) {
  if (p->S == 0 || p->H == 0) return kAnyopOk;
  if (!p->q_aligned || !p->k_aligned || !(p->scale > 0)) return DeclineHopper(call);
  p->out_aligned = HasAlignedPages(out);
  if (dtype == kAnyopFloat16) return RunLatentOnHopper<__half, kBytes>(p, split_size, dtype, call);
  return RunLatentOnHopper<__nv_bfloat16, kBytes>(p, split_size, dtype, call);
}
}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_mla_decode_cuda_sm90(const MlaDecodeArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  PagedView p = {};
  if (!ViewLatent(*args, &p)) return DeclineLatent(call);
  return AttendToLatentOnHopper<false>(&p, *args->out, AnyopDtypeOf(args->q), args->split_size,
                                       call);
}
extern "C" int32_t anyop_mla_sparse_cuda_sm90(const MlaSparseArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  PagedView p = {};
  if (!ViewListed(*args, args->W, args->R, &p)) return DeclineLatent(call);
  return AttendToLatentOnHopper<false>(&p, *args->out, AnyopDtypeOf(args->q), 0, call);
}
extern "C" int32_t anyop_mla_sparse_fp8_cuda_sm90(const MlaSparseFp8Args* args, AnyopCall* call) {
  using namespace anyop::cuda;
  PagedView p = {};
  if (!ViewListed(*args, 576, 512, &p)) return DeclineLatent(call);
  return AttendToLatentOnHopper<true>(&p, *args->out, AnyopDtypeOf(args->q), 0, call);
}
