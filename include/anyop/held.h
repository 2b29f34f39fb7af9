/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that come again with the same lists: a handle that keeps what was checked. */
#ifndef ANYOP_HELD_H_
#define ANYOP_HELD_H_

#include "anyop/anyop.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A handle for calls of one operator that come again with the same lists, as an optimizer's. Each
   call passes all its values, as to AnyopInvoke, and is answered as by AnyopInvoke. What was
   checked in the call before is not checked again: sizes, strides, dtypes and devices are compared
   with what that call had, and of a tensor that lies elsewhere its address and the overlap. The
   handle owns nothing and reads no memory of an earlier call, so that tensors may be freed in
   between. Calls of two threads with one handle are right; all but one then check everything anew.
   Delete a handle when no call is in it; NULL is ignored. A library from before handles lacks these
   symbols. */
typedef struct AnyopHeld AnyopHeld;
ANYOP_API int32_t AnyopNewHeld(const AnyopOperator* op, AnyopHeld** held);
ANYOP_API int32_t AnyopInvokeHeld(AnyopHeld* held, AnyopValue* values, int32_t count,
                                  const AnyopInvokeOptions* options);
ANYOP_API void AnyopDeleteHeld(AnyopHeld* held);

#ifdef __cplusplus
}
#endif

#endif /* ANYOP_HELD_H_ */
