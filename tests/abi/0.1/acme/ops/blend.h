/* Generated from blend.toml; do not edit. What the kernels of acme.blend get. */
#ifndef ACME_OPS_BLEND_H_
#define ACME_OPS_BLEND_H_

#include "anyop/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* acme::blend(Tensor x, Tensor? y=None, float? factor=None, int[] shift=[1, 2], str mode='plain', bool twice=False) -> (Tensor out, Tensor total) */
typedef struct BlendArgs {
  AnyopArgs base;
  const AnyopTensor* x; /* (* D) */
  const AnyopTensor* y; /* (D); NULL when absent */
  AnyopOptionalFloat factor;
  AnyopIntList shift;
  AnyopString mode;
  int64_t twice; /* 0 or 1 */
  AnyopTensor* out; /* (* D) */
  AnyopTensor* total; /* (*) */
  int64_t D;
  int64_t rows; /* product of the sizes under * */
} BlendArgs;

/* Of the fields above; whoever brings a kernel from elsewhere must show it. */
#define ANYOP_HASH_ACME_BLEND 0x8f4770792c0df1a5ull

int32_t acme_blend_cpu(const BlendArgs* args, AnyopCall* call);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ACME_OPS_BLEND_H_ */
