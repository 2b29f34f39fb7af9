/* SPDX-License-Identifier: Apache-2.0 */
/* What lies below a framework's own device: whose kernels take tensors of the DLDeviceType
   ANYOP_DEVICE_TYPE_EXTENSION, said by who brings the device (anyop's own in PyTorch). C ABI. */
#ifndef ANYOP_DEVICE_BELOW_H_
#define ANYOP_DEVICE_BELOW_H_

#include "anyop/anyop.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct AnyopDeviceBelow {
  uint32_t size;
  int32_t types[2]; /* DLDeviceTypes whose kernels take its memory, the nearest first; 0: no more */
  int32_t reserved;
  /* Before a kernel of one of these types runs in the calling thread, on memory of device `index`:
     its current stream, which the kernel is put into. For the CPU it waits until that stream is
     done with what it holds. An AnyopStatus with a message in error; throws nothing. */
  int32_t (*enter)(int32_t type, int32_t index, void** stream, char* error, int64_t error_bytes);
} AnyopDeviceBelow;
ANYOP_STATIC_ASSERT(sizeof(AnyopDeviceBelow) == 24 && offsetof(AnyopDeviceBelow, enter) == 16);

/* Once and for all; the struct must live as long as the process. The same again is no error. */
ANYOP_API int32_t AnyopSetDeviceBelow(const AnyopDeviceBelow* below);

#ifdef __cplusplus
}
#endif

#endif /* ANYOP_DEVICE_BELOW_H_ */
