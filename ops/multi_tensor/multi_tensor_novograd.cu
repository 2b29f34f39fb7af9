// SPDX-License-Identifier: Apache-2.0
// multi_tensor_novograd on CUDA: the norms of the gradients, then three reads and two writes an
// element.
#include "cuda_norms.h"
#include "cuda_step.h"
#include "novograd_step.h"

namespace anyop::cuda {
namespace {

template <bool kMaximum>
int32_t UpdateNorms(AnyopCall* call, const AnyopTensorList& g, const Novograd<Single>& novograd) {
  Parts parts;
  if (int32_t status = StartChunks<kMaximum>(call, g, novograd.inv_scale, true, &parts))
    return status;
  return StartEach<kMaximum>(call, parts, novograd);
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_multi_tensor_novograd_cuda(const MultiTensorNovogradArgs* args,
                                                    AnyopCall* call) {
  using namespace anyop::cuda;
  const anyop::Novograd<Single> novograd(*args);
  if (int32_t status = novograd.maximum ? UpdateNorms<true>(call, args->g, novograd)
                                        : UpdateNorms<false>(call, args->g, novograd))
    return status;
  return RunSteps(call, novograd, args->master, args->copy, args->p, args->g, args->m);
}
