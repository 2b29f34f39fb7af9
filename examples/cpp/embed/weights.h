/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of a safetensors file for programs in C: float32 tensors by name. */
#ifndef EMBED_WEIGHTS_H_
#define EMBED_WEIGHTS_H_

#include <anyop/anyop.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Weights Weights;

/* NULL when the file cannot be used; the reason is WeightsError(). */
Weights* OpenWeights(const char* path);
/* The tensor of that name, which lives until CloseWeights; NULL when there is none. */
const AnyopTensor* ReadWeight(Weights* weights, const char* name);
/* One line about this thread's last failure. */
const char* WeightsError(void);
void CloseWeights(Weights* weights);

#ifdef __cplusplus
}
#endif

#endif /* EMBED_WEIGHTS_H_ */
