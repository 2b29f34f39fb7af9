// SPDX-License-Identifier: Apache-2.0
// Behind a vendor's headers and src/device/cuda_like/runtime_api.h: their prototypes and numbers,
// compared by the compiler. RUNTIME(F) and MODULES(F) list F(ours, theirs), NUMBER_ErrorNotReady
// and the like are theirs.
#include "anyop/device.h"
#include "shape.h"

namespace {

using anyop::cuda_like::Api;
using anyop::cuda_like::ModuleApi;

#define NUMBER(name) \
  int { NUMBER_##name }
#define COMPARE(ours, theirs) \
  static_assert(kSame<std::decay_t<decltype(theirs)>, decltype(Api::ours)>, #theirs " differs");
#define COMPARE_MODULE(ours, theirs)                                              \
  static_assert(kSame<std::decay_t<decltype(theirs)>, decltype(ModuleApi::ours)>, \
                #theirs " differs");
RUNTIME(COMPARE)
MODULES(COMPARE_MODULE)

static_assert(NUMBER(ErrorMemoryAllocation) == anyop::cuda_like::kOutOfMemory);
static_assert(NUMBER(ErrorNoDevice) == anyop::cuda_like::kNoDevice);
static_assert(NUMBER(ErrorNoBinary) == anyop::cuda_like::kNoBinary);
static_assert(NUMBER(ErrorNotFound) == anyop::cuda_like::kNotFound);
static_assert(NUMBER(ErrorNotReady) == anyop::cuda_like::kNotReady);
static_assert(NUMBER(ErrorNotSupported) == anyop::cuda_like::kNotSupported);
static_assert(NUMBER(StreamNonBlocking) == anyop::cuda_like::kNonBlocking);
static_assert(NUMBER(EventDisableTiming) == anyop::cuda_like::kDisableTiming);
static_assert(NUMBER(HostAllocPortable) == anyop::cuda_like::kPortable);
static_assert(NUMBER(MemcpyHostToDevice) == int{kAnyopHostToDevice});
static_assert(NUMBER(MemcpyDeviceToHost) == int{kAnyopDeviceToHost});
static_assert(NUMBER(MemcpyDeviceToDevice) == int{kAnyopDeviceToDevice});

}  // namespace
