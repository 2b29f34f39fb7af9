// SPDX-License-Identifier: Apache-2.0
// The functions that XLA calls for every operator, one for each platform.
//
// A call site has these attributes, written by python/anyop/jax/call_site.py:
//   _call   JSON: the operator, then whose the buffers are, in order (plan.h). A list has one digit
//           for each element, 0 where it is None. What is not named is absent. An argument among
//           the results is one that the operator changes; XLA gave both one buffer. "use" is the
//           scope (core/router/rules/scope.h), if any.
//   others  by the name of the argument: numbers as int64, double or bool, arrays of them for
//           lists. Texts end with NUL, those of a list stand one behind the other; a dtype is its
//           name. A text of no bytes is None, an array of no elements an empty list.
//
// One with the attribute _aten is a call of ATen (xla_aten_call.h).
#pragma once

#include "xla_ffi.h"

extern "C" {
__attribute__((visibility("default"))) anyop::xla::Error* AnyopXlaCpu(anyop::xla::CallFrame* call);
__attribute__((visibility("default"))) anyop::xla::Error* AnyopXlaCuda(anyop::xla::CallFrame* call);
// Whether XLA waits for this thread: what waits for XLA here would wait for ever.
__attribute__((visibility("default"))) bool AnyopXlaWaits();
}
