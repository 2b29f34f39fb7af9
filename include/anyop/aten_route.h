/* SPDX-License-Identifier: Apache-2.0 */
/* Which backend runs an overload of ATen's on the PyTorch device and in overlays: the rules aten.*
   of route files and the variables ANYOP_OP_ATEN__*, asked by who runs the overloads. C ABI, no
   torch header.

   An overload has its full name, "add.Tensor" or "mm". Backends are aten (torch's
   own kernel; boxed is taken as another name for it), native, triton, flaggems, cpu_fallback, none,
   and those that AnyopAddAtenBackend names; what they mean is the caller's.

   Every function may be called from any thread. Functions that return int32_t return an
   AnyopStatus unless they say otherwise; the text of a failure is AnyopLastError() of the same
   thread. Nothing throws. */
#ifndef ANYOP_ATEN_ROUTE_H_
#define ANYOP_ATEN_ROUTE_H_

#include "anyop/anyop.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All overloads that can be routed, in place of those of an earlier call; texts are copied. Rules
   and variables that name no such overload are errors from now on. So they are among those in
   force: then nothing is taken over, and the error says where the rule stands and the nearest name.
   Also fails where the environment's routes cannot be read. */
ANYOP_API int32_t AnyopSetAtenOverloads(const char* const* names, int64_t count);

/* One more name that rules and ANYOP_DISABLE may use: a letter, then letters, digits and _. Again
   is no error. */
ANYOP_API int32_t AnyopAddAtenBackend(const char* name);

/* What is said of one overload. Set size; the texts live as long as the process. */
typedef struct AnyopAtenRouting {
  uint32_t size;
  /* 1: no rule and no variable speaks of it, all texts but reason are "". */
  int32_t is_default;
  const char* backends; /* "native,aten": who is asked, in turn, without what is disabled */
  const char* disabled; /* "triton": those that the rule names and ANYOP_DISABLE removes */
  const char* reason;   /* "default", "routes.txt:12", "ANYOP_OP_ATEN__MM" */
} AnyopAtenRouting;
ANYOP_STATIC_ASSERT(sizeof(AnyopAtenRouting) == 32 && offsetof(AnyopAtenRouting, reason) == 24);

/* device: "anyop", or for an overlay "cpu" or "cuda". Overloads need not be set before. Takes a
   lock: ask when routes change, not in a call. */
ANYOP_API int32_t AnyopAtenRoute(const char* overload, const char* device,
                                 AnyopAtenRouting* routing);

/* Whether ANYOP_DISABLE removes a backend of ATen's overloads, for routes that no rule says: 1 or
   0. "!native" removes all others; "!cpu" is about operators alone. */
ANYOP_API int32_t AnyopAtenIsDisabled(const char* backend);

/* Whether an operator has an implementation for a DLDeviceType that may run there, whatever its
   conditions are: 1 or 0. Cheap: to be asked in each call. */
ANYOP_API int32_t AnyopHasKernel(const AnyopOperator* op, int32_t device_type);

/* From now on changed(context) is called after every change of rules, in the thread that makes it,
   one call at a time, with the new rules in force. It may ask anything of this header; it may not
   throw, change rules or wait for another thread. The same pair again is no error; it is never
   forgotten. */
ANYOP_API int32_t AnyopWatchAtenRoutes(void (*changed)(void* context), void* context);

/* One choice for who listens to ANYOP_LOG_DISPATCH, ANYOP_LOG_FILE and anyop.log_dispatch: the
   first of its kind at level 1, each at level 2. device: "anyop:0"; reason: of the routing;
   is_fallback: 1 where it runs because no backend of the route does. */
ANYOP_API int32_t AnyopLogAtenDispatch(const char* overload, const char* backend,
                                       const char* device, const char* reason, int32_t is_fallback);
/* 0: nobody listens, 1, 2. It stays where it is and changes at any time: read it atomically
   (__atomic_load_n) before each call of AnyopLogAtenDispatch. */
ANYOP_API const int32_t* AnyopDispatchLogLevel(void);
/* As AnyopWatchAtenRoutes, after every change of that level; neither is called for the other's. */
ANYOP_API int32_t AnyopWatchDispatchLog(void (*changed)(void* context), void* context);

/* To be called before a backend runs for want of another. why: "native takes float32". By
   ANYOP_FALLBACK it is said on stderr once for each overload, device, backend and reason (warn),
   passed over (silent), or fails with kAnyopNotImplemented (error): then the backend may not run.
 */
ANYOP_API int32_t AnyopAtenFallback(const char* overload, const char* backend, const char* device,
                                    const char* why);

#ifdef __cplusplus
}
#endif

#endif /* ANYOP_ATEN_ROUTE_H_ */
