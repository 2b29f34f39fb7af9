/* SPDX-License-Identifier: Apache-2.0 */
/* What the glue gives the binding: Paddle's eager tensors read, made and marked in one call each.
   C ABI, no header of Paddle's.

   A tensor is named by its Python object; Python's lock is held. Nothing throws. */
#ifndef ANYOP_PADDLE_GLUE_H_
#define ANYOP_PADDLE_GLUE_H_

#include "anyop/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ANYOP_PADDLE_GLUE_VERSION 1u

typedef enum AnyopPaddleState {
  kAnyopPaddleRecords = 1,   /* gradients are being recorded */
  kAnyopPaddleElsewhere = 2, /* inside paddle.amp.auto_cast, or while a static graph is made */
} AnyopPaddleState;

typedef enum AnyopPaddleView {
  kAnyopPaddleViewed = 0,
  kAnyopPaddleNotDense = 1,     /* sparse, distributed, without memory */
  kAnyopPaddleShortStorage = 2, /* the storage ends before the tensor does */
  kAnyopPaddleOtherPlace = 3,   /* neither host nor CUDA: Paddle's exchange functions know */
} AnyopPaddleView;

typedef struct AnyopPaddleGlue {
  uint32_t size;
  uint32_t version;           /* ANYOP_PADDLE_GLUE_VERSION */
  const char* paddle_version; /* of the headers, as paddle.__version__ says it */
  /* This thread's state: bits of AnyopPaddleState. */
  int32_t (*thread_state)(void);
  /* Fills tensor (sizes and strides point into the object's tensor); an AnyopPaddleView. */
  int32_t (*view)(void* object, AnyopTensor* tensor);
  /* Raises the version that autograd compares. */
  void (*written)(void* object);
  /* A new row-major tensor in host memory of tensor's dtype and shape; sets data. A new reference
     in *object, or an AnyopStatus with a message in error; kAnyopNotImplemented: ask Paddle. */
  int32_t (*new_tensor)(AnyopTensor* tensor, void** object, char* error, int64_t error_bytes);
} AnyopPaddleGlue;

/* The library exports AnyopPaddleGlueEntry. */
typedef const AnyopPaddleGlue* (*AnyopPaddleGlueFunction)(void);

#ifdef __cplusplus
}
#endif

#endif /* ANYOP_PADDLE_GLUE_H_ */
